"""Network addresses in the form "host:port", and their properties that can be found without asking another host."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from dataclasses import dataclass

__all__ = [
    "EVERY_INTERFACE",
    "Address",
    "address_here",
    "advertised_by",
    "is_loopback",
    "is_this_host",
    "own_address_toward",
    "without_brackets",
]

EVERY_INTERFACE = frozenset({"0.0.0.0", "::"})  # hosts to listen on that stand for all interfaces
_LOCALHOST = EVERY_INTERFACE | {"127.0.0.1", "localhost"}


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP endpoint; `str` returns it in the form that `parse` reads."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address of "host:port"; an IPv6 host is in brackets.

        Raises:
            ValueError: The text is no such address.
        """
        host, colon, port = text.strip().rpartition(":")
        if (bare := without_brackets(host)) == host and ":" in host:
            colon = ""
        if not colon or not bare or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"an address is 'host:port', for example 'localhost:8037', not {text!r}")
        return cls(bare, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def without_brackets(host: str) -> str:
    """Return a host's name or number without the brackets that an IPv6 number has in an address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def address_here(host: str, port: int) -> Address:
    """Return the address by which programs of this host reach a server that listens on an interface."""
    return Address("localhost" if host in _LOCALHOST else host, port)


def advertised_by(node_address: str, master: Address) -> Address:
    """Return the reachable address of a node that the master at `master` has reported.

    A node without a host of its own (":8037") is on the master's host, as seen from this process.
    """
    return Address(master.host, int(node_address[1:])) if node_address.startswith(":") else Address.parse(node_address)


def own_address_toward(address: Address) -> str:
    """Return the source address of this host for packets to another one; loopback for this host itself.

    Raises:
        OSError: The host's name is unknown, or there is no route to it.
    """
    family, kind, protocol, _, target = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # `connect` of a datagram socket selects the route and sends nothing
        return str(probe.getsockname()[0])


def is_loopback(host: str) -> bool:
    """Return whether a host's name or number is only reachable on that host itself; False for unknown ones."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(ipaddress.ip_address(target[0]).is_loopback for *_, target in found)
    return False


def is_this_host(host: str) -> bool:
    """Return whether a host's name or number is one of this host's; False for unknown ones."""
    with contextlib.suppress(OSError):
        for family, _, _, _, target in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((target[0], 0))
                return True
    return False
