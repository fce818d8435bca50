"""zmq sockets set up for a cluster: CURVE keys, heartbeats, limits, and a monitor that tells of connections."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from parl_remote.config import Limits
from parl_remote.security import ClusterKey
from parl_remote.system.bell import Bell
from parl_remote.system.facilities import is_portable
from parl_remote.transport.zmq.wire import MAX_PART

__all__ = [
    "MORE_NOW",
    "NOW",
    "Context",
    "Curve",
    "Socket",
    "configure",
    "connection_events",
    "descriptor",
    "monitored",
    "new_bell",
    "own_context",
    "readable",
    "send_heartbeats",
]

Socket: TypeAlias = "zmq.Socket[bytes]"
Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"

# Plain numbers: operations on pyzmq's enums would take a tenth of the master's time.
NOW = int(zmq.NOBLOCK)
MORE_NOW = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)

_PINGS = 6  # within the limit of silence; the loss of a peer is noticed between five sixths of it and the whole
_LONGEST_TTL_MS = 6_553_500  # ZMTP sends it as 16 bits of tenths of a second


@dataclass(frozen=True, slots=True)
class Curve:
    """The CURVE key pairs of one cluster, in zmq's text form."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    @classmethod
    def of(cls, key: ClusterKey) -> Curve:
        """Derive them from the cluster's key."""
        server, client = z85.encode(key.derive("curve server")), z85.encode(key.derive("curve client"))
        return cls(zmq.curve_public(server), server, zmq.curve_public(client), client)


def own_context() -> Context:
    """The context that all channels of this process share, apart from the one of the user's own zmq code."""
    return _context_of(os.getpid())


@functools.cache
def _context_of(_: int) -> Context:
    context: Context = zmq.Context()
    context.max_sockets = context.get(zmq.SOCKET_LIMIT)  # three a channel; zmq's default ends at 341 channels
    return context


def configure(socket: Socket, limits: Limits, *, ipv6: bool) -> None:
    """Set what both ends have in common."""
    socket.setsockopt(zmq.IPV6, ipv6)
    socket.setsockopt(zmq.HANDSHAKE_IVL, int(limits.hello_timeout_s * 1000))
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_PART)
    socket.setsockopt(zmq.LINGER, int(limits.linger_s * 1000))


def monitored(socket: Socket, events: int) -> Socket:
    """A socket that receives the connection events of another."""
    # zmq's default name is made of the descriptor's number, which a socket that is still closing may hold as well
    monitor: Socket = socket.get_monitor_socket(events, addr=f"inproc://monitor-{os.urandom(8).hex()}")
    return monitor


def connection_events(monitor: Socket) -> Iterator[tuple[int, int]]:
    """The events that have come, as (event, value); the value is a descriptor or an error number."""
    while readable(monitor):
        event = recv_monitor_message(monitor)
        yield event["event"], event["value"]


def readable(socket: Socket) -> bool:
    """Whether a message waits; asking also takes in what zmq's thread has announced."""
    events: int = socket.getsockopt(_EVENTS)  # type: ignore[assignment]  # pyzmq types all options as int | bytes
    return bool(events & _POLLIN)


def descriptor(socket: Socket) -> int:
    """Readable when zmq's thread has announced something."""
    fileno: int = socket.getsockopt(zmq.FD)  # type: ignore[assignment]  # pyzmq types all options as int | bytes
    return fileno


def send_heartbeats(socket: Socket, limits: Limits) -> None:
    """Have zmq's thread ping each peer; one end of a connection is enough.

    A peer that does not answer in time is lost, and a ping tells the peer how long to wait for the next one.
    """
    silence_ms = int(limits.liveness_limit_s * 1000)
    ping_ms = max(1, silence_ms // _PINGS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, ping_ms)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, max(1, silence_ms - ping_ms))  # from the ping on, which may come so late
    socket.setsockopt(zmq.HEARTBEAT_TTL, min(silence_ms, _LONGEST_TTL_MS))


def new_bell() -> Bell | _EventBell:
    """A descriptor that any thread can make readable."""
    return Bell() if is_portable() else _EventBell()


class _EventBell:
    """A descriptor that any thread can make readable."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._rung = False

    def fileno(self) -> int:
        """Readable while it is rung."""
        return self._descriptor

    def ring(self) -> None:
        """Make it readable."""
        self._rung = True
        os.eventfd_write(self._descriptor, 1)

    def quiet(self) -> None:
        """Make it unreadable; not while another thread rings."""
        if self._rung:
            self._rung = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Give back the descriptor."""
        os.close(self._descriptor)
