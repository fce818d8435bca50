"""Hosts on one machine and the packets between them, carried by this program: lost, late, doubled, out of order.

    namespace a                     this program                        namespace b
    TCP -> device parl0 --packet--> PacketNetwork (by destination) --packet--> device parl0 -> TCP

The devices are TUN devices, whose other end is a file: every IP packet that a host sends is read here, meets the
conditions of its sender's way out and its receiver's way in, and is written to the receiver. TCP on both hosts is the
kernel's own and sees real loss and real reordering. `tc netem` would do the same where the kernel has it.
Linux, root, /dev/net/tun.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from faults import namespaces
from parl_remote.testing import Conditions, Direction, FaultUnavailable

with contextlib.suppress(ImportError):  # without it there are no such networks either
    import fcntl

__all__ = ["Host", "PacketCounts", "PacketNetwork"]

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_DEVICE = "parl0"
_LARGEST_PACKET = 65536
_MOST_WAITING = 20_000  # packets under way; a router drops what does not fit
_DESTINATION = slice(16, 20)  # of an IPv4 header
_CLOSING_S = 10.0
_PERFECT = Conditions()


@dataclass
class PacketCounts:
    """The counts of a network's packets so far, by their fate."""

    passed: int = 0
    lost: int = 0
    duplicated: int = 0
    overtook: int = 0


@dataclass(eq=False)
class Host:
    """One host of a network.

    Attributes:
        name: What its network calls it.
        namespace: Its network namespace.
        address: Its IPv4 address.
    """

    name: str
    namespace: str
    address: str
    _file: int = -1
    _ways: dict[Direction, _Way] = field(default_factory=dict)

    def command(self, *command: str) -> list[str]:
        """The command line that runs a command on this host."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def start(self, *command: str, environment: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Run a command on this host; `options` are those of `subprocess.Popen`, which is returned."""
        env = None if environment is None else dict(environment)
        return subprocess.Popen(self.command(*command), env=env, **options)

    def set(self, conditions: Conditions, direction: Direction = Direction.BOTH) -> None:
        """Have what goes to this host, or comes from it, meet these conditions from now on."""
        for which, way in self._ways.items():
            if which in direction:
                way.conditions = conditions

    def cut(self, direction: Direction = Direction.BOTH) -> None:
        """Lose every packet from now on, one way or both."""
        for which, way in self._ways.items():
            way.cut |= which in direction

    def restore(self) -> None:
        """End the cut; what was lost meanwhile stays lost, and TCP sends it again."""
        for way in self._ways.values():
            way.cut = False


@dataclass
class _Way:
    conditions: Conditions = _PERFECT
    cut: bool = False
    free_at: float = 0.0


class PacketNetwork:
    """Hosts, and the one thread that carries their packets.

    Args:
        names: The hosts' names; the first has the address 10.77.0.1, the next 10.77.0.2, and so on.
        seed: For what is random.

    Attributes:
        hosts: The hosts by name.
        counts: What happened to packets so far.

    Raises:
        FaultUnavailable: There are no namespaces or no TUN devices for this user.
    """

    def __init__(self, names: Sequence[str] = ("a", "b"), *, seed: int = 0) -> None:
        self.hosts: dict[str, Host] = {}
        self.counts = PacketCounts()
        self._dice = random.Random(seed)
        self._by_address: dict[bytes, Host] = {}
        self._by_file: dict[int, Host] = {}
        self._epoll = select.epoll()
        self._stopped = os.eventfd(0, os.EFD_CLOEXEC)
        self._epoll.register(self._stopped, select.EPOLLIN)
        self._waiting: list[tuple[float, int, Host, bytes]] = []
        self._numbers = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="parl-packets", daemon=True)
        try:
            for number, name in enumerate(names, start=1):
                self._add(name, f"parl-{os.getpid()}-{name}", f"10.77.0.{number}")
        except BaseException:
            self._give_back()
            raise
        self._thread.start()

    def host(self, name: str) -> Host:
        """The host of that name."""
        return self.hosts[name]

    def set(self, conditions: Conditions) -> None:
        """Have every packet meet these conditions once, on its sender's way out."""
        for host in self.hosts.values():
            host.set(conditions, Direction.OUT)

    def close(self) -> None:
        """Take the hosts apart; end their processes first. A second call does nothing."""
        if self._closed:
            return
        os.eventfd_write(self._stopped, 1)
        self._thread.join(_CLOSING_S)
        self._give_back()

    def __enter__(self) -> PacketNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, name: str, namespace: str, address: str) -> None:
        host = Host(name, namespace, address, _ways={Direction.IN: _Way(), Direction.OUT: _Way()})
        namespaces.create(namespace)
        self.hosts[name] = host
        host._file = namespaces.inside(namespace, _open_device)
        namespaces.ip("-n", namespace, "address", "add", f"{address}/24", "dev", _DEVICE)
        namespaces.ip("-n", namespace, "link", "set", _DEVICE, "up", "txqueuelen", "1000")
        self._by_address[bytes(map(int, address.split(".")))] = host
        self._by_file[host._file] = host
        self._epoll.register(host._file, select.EPOLLIN)

    def _give_back(self) -> None:
        self._closed = True
        for host in self.hosts.values():
            if host._file >= 0:
                os.close(host._file)
            namespaces.delete(host.namespace)
        self._epoll.close()
        os.close(self._stopped)

    # -- in the network's own thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            wait_s = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else -1
            for file, _ in self._epoll.poll(wait_s):
                if file == self._stopped:
                    return
                self._take(self._by_file[file])
            now = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now:
                _, _, host, packet = heapq.heappop(self._waiting)
                self._write(host, packet)

    def _take(self, sender: Host) -> None:
        """Read what a host has sent, as long as there is something."""
        while True:
            try:
                packet = os.read(sender._file, _LARGEST_PACKET)
            except BlockingIOError:
                return
            receiver = self._by_address.get(packet[_DESTINATION])
            if receiver is not None:  # packets without a receiver here are broadcasts or IPv6
                self._send(sender, receiver, packet)

    def _send(self, sender: Host, receiver: Host, packet: bytes) -> None:
        due = time.monotonic()
        copies = 1
        for way in (sender._ways[Direction.OUT], receiver._ways[Direction.IN]):
            if way.cut or self._happens(way.conditions.loss) or len(self._waiting) >= _MOST_WAITING:
                self.counts.lost += 1
                return
            due = self._later(way, due, len(packet))
            if self._happens(way.conditions.duplicate):
                self.counts.duplicated += 1
                copies = 2
        for _ in range(copies):
            heapq.heappush(self._waiting, (due, next(self._numbers), receiver, packet))

    def _later(self, way: _Way, due: float, size: int) -> float:
        """Return the time at which a packet that enters this way at `due` leaves it."""
        conditions = way.conditions
        if conditions.bytes_per_s is not None:
            due = way.free_at = max(due, way.free_at) + size / conditions.bytes_per_s
        if self._happens(conditions.reorder):
            self.counts.overtook += 1
            return due
        return due + conditions.delay_s + conditions.jitter_s * self._dice.random()

    def _happens(self, share: float) -> bool:
        return bool(share) and self._dice.random() < share

    def _write(self, host: Host, packet: bytes) -> None:
        try:
            os.write(host._file, packet)
            self.counts.passed += 1
        except OSError:  # its queue is full, or it is down
            self.counts.lost += 1


def _open_device() -> int:
    """A TUN device in this thread's namespace."""
    try:
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise FaultUnavailable(f"/dev/net/tun cannot be opened: {error.strerror}") from error
    try:
        fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22s", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI, b""))
    except OSError as error:
        os.close(file)
        raise FaultUnavailable(f"a TUN device cannot be made: {error.strerror}") from error
    return file
