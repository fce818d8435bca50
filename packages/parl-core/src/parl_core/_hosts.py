"""This machine's address, free ports and accelerators, found without a connection or a framework.

The sources are the routing table and the interfaces (Linux), device files, and the environment.
"""

import contextlib
import random
import socket
import struct
from pathlib import Path

from parl_core._config import visible_gpus

__all__ = [
    "get_free_tcp_port",
    "get_gpu_count",
    "get_ip_address",
    "get_port_from_range",
    "is_gpu_available",
    "is_port_available",
    "is_xpu_available",
]

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface
_FIRST_PORT = 20_000  # most registered services have lower ports
_EPHEMERAL = 49_152  # IANA's default; Linux has a setting
_ATTEMPTS = 100
_TUNNELS = ("tun", "tap", "wg", "utun", "ppp", "tailscale", "docker", "br-", "veth", "virbr")


def get_ip_address() -> str:
    """Return the IPv4 address under which other hosts most likely reach this one.

    That is the address of the interface with the default route, else of another real one; interfaces of tunnels,
    bridges and containers come last. On a machine without a network the result is `"127.0.0.1"`. On a machine with
    several networks, pass the address yourself.
    """
    addresses = {name: address for _, name in socket.if_nameindex() if (address := _address_of(name))}
    routed = _default_route()
    ranked = sorted(addresses, key=lambda name: (name.startswith(_TUNNELS), name != routed, name))
    for name in ranked:
        if not addresses[name].startswith("127."):
            return addresses[name]
    return LOOPBACK


def get_free_tcp_port() -> int:
    """Return a TCP port that is free at present, below the range of outgoing connections.

    Another program may take it first: if possible, bind port 0 yourself and ask the socket for its number.
    """
    below = _first_ephemeral_port()
    for _ in range(_ATTEMPTS if below > _FIRST_PORT else 0):
        with contextlib.suppress(OSError):
            return _bound(random.SystemRandom().randrange(_FIRST_PORT, below))
    return _bound(0)


def _bound(port: int) -> int:
    """Bind a socket to a port, 0 for a free one, and return it; raise `OSError` if another socket has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", port))
        return int(probe.getsockname()[1])


def _first_ephemeral_port() -> int:
    """Return the first port that the system may give to an outgoing connection."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):  # not on Linux
        return _EPHEMERAL


def is_port_available(port: int | str) -> bool:
    """Return whether a program could listen on a TCP port of this machine at present."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a program can listen on a port in TIME_WAIT
        try:
            probe.bind(("", int(port)))
        except OSError:
            return False
        return True


def get_port_from_range(start: int, end: int) -> int:
    """Return a free TCP port between `start` and `end`, both included.

    Raises:
        ValueError: The range is empty.
        OSError: All ports of the range are taken.
    """
    ports = list(range(start, end + 1))
    if not ports:
        raise ValueError(f"the port range {start} to {end} is empty: start must not be above end")
    random.Random().shuffle(ports)  # programs that start together should try different ports
    for port in ports:
        if is_port_available(port):
            return port
    raise OSError(f"all ports from {start} to {end} are taken: give a wider range")


def get_gpu_count() -> int:
    """Return the number of NVIDIA GPUs that this process may use, according to `CUDA_VISIBLE_DEVICES`."""
    present = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = visible_gpus()
    if visible is None:
        return present
    count = 0
    for device in visible.split(","):  # CUDA ignores everything from the first invalid entry on
        device = device.strip()
        if not device or device.startswith("-") or (device.isdigit() and int(device) >= present):
            break
        count += 1
    return min(count, present)


def is_gpu_available() -> bool:
    """Return whether there is an NVIDIA GPU that this process may use."""
    return get_gpu_count() > 0


def is_xpu_available() -> bool:
    """Return whether there is a Kunlun XPU."""
    return any(Path("/dev").glob("xpu[0-9]*"))


def _address_of(interface: str) -> str | None:
    try:
        import fcntl
    except ImportError:  # not on Unix
        return None
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
        except OSError:  # no IPv4 address, or not on Linux
            return None
    return socket.inet_ntoa(answer[20:24])


def _default_route() -> str | None:
    try:
        lines = Path("/proc/net/route").read_text().splitlines()[1:]
    except OSError:
        return None
    for line in lines:
        interface, destination = line.split()[:2]
        if destination == "00000000":
            return interface
    return None
