"""zmq sockets set up for a cluster (CURVE keys, heartbeats, limits, a monitor of connections), and messages in parts.

    first part   | kind u8 | 0 u24 | number of frames u32 | length u64 of each frame |
    INLINE       the frames follow in the same part, each at a multiple of 8 bytes, the alignment of arrays
    PARTS        the frames follow in further parts, each cut into pieces of at most 1 MiB
    OPEN, BYE    begin and end a connection; no frames

Long frames are cut so that one end encrypts while the other decrypts, so that heartbeats pass between the pieces, and
so that zmq can refuse larger parts (`MAX_PART`) from peers that announce them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias, TypeVar

import zmq
from zmq.utils import z85

from parl_remote._config import Limits
from parl_remote._security import ClusterKey
from parl_remote._system.facilities import Waker, is_portable
from parl_remote._transport import KEPT_OF_CUT, Buffer, CutMessage
from parl_remote.errors import RemoteProtocolError

__all__ = [
    "MORE_NOW",
    "NOW",
    "Context",
    "Curve",
    "Kind",
    "Socket",
    "TcpEnds",
    "configure",
    "connection_events",
    "descriptor",
    "monitored",
    "new_waker",
    "own_context",
    "pack",
    "pack_bare",
    "peer_of",
    "port_of",
    "readable",
    "send_heartbeats",
    "shut_down",
    "unpack",
]


class Kind(IntEnum):
    """The purpose of a message."""

    INLINE = 0
    PARTS = 1
    OPEN = 2
    BYE = 3


_HEAD = struct.Struct("<BxxxI")
_ALIGNMENT = 8
_INLINE_BELOW = 2**14  # copying so little costs less than another encrypted part
_CUT = 2**20
_MAX_FRAMES = 2**20  # as in `unix.sockets`
_PADDING = [bytes(-rest % _ALIGNMENT) for rest in range(_ALIGNMENT)]  # by the remainder of a frame's length
MAX_PART = 2 * _CUT
_EVENT = struct.Struct("=Hi")  # of a monitor


def pack_bare(kind: Kind) -> bytes:
    """Return the single part of a message without frames."""
    return _HEAD.pack(kind, 0)


def pack(frames: Sequence[Buffer]) -> list[Buffer]:
    """Return the parts of one message; a single one owns its memory, later ones of several share the frames'."""
    views = [memoryview(frame) for frame in frames]
    sizes = [view.nbytes for view in views]
    inline = sum(sizes) < _INLINE_BELOW
    head = struct.pack(f"<BxxxI{len(sizes)}Q", Kind.INLINE if inline else Kind.PARTS, len(sizes), *sizes)
    if inline:
        if len(views) == 1:
            return [b"".join((head, views[0]))]
        padded = [part for view, size in zip(views, sizes, strict=True) for part in (view, _PADDING[size % _ALIGNMENT])]
        return [b"".join((head, *padded[:-1]))]
    parts: list[Buffer] = [head]
    for view, size in zip(views, sizes, strict=True):
        if size:
            flat = view.cast("B")
            parts.extend(flat[start : start + _CUT] for start in range(0, size, _CUT))
    return parts


def unpack(parts: Sequence[memoryview]) -> tuple[Kind, list[memoryview]]:
    """Return the kind of a message and its frames, which may refer to the parts' memory; see `CutMessage`.

    Raises:
        RemoteProtocolError: The parts are not a valid message.
    """
    head = parts[0]
    if len(head) < _HEAD.size:
        raise RemoteProtocolError(f"a message's first part has {len(head)} bytes, its header alone {_HEAD.size}")
    number, count = _HEAD.unpack_from(head)
    body = _HEAD.size + 8 * count
    if number >= len(_KINDS) or count > _MAX_FRAMES or len(head) < body:
        raise RemoteProtocolError(f"a message of kind {number} with {count} frames in a part of {len(head)} bytes")
    kind = _KINDS[number]
    sizes = struct.unpack_from(f"<{count}Q", head, _HEAD.size)
    if kind is Kind.PARTS:
        return kind, _joined(sizes, parts[1:])
    if count == 1:
        starts = [body]
    else:
        starts = list(itertools.accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=body))
    end = starts[count - 1] + sizes[-1] if count else body
    if len(parts) != 1 or end != len(head):
        raise RemoteProtocolError(
            f"{len(parts)} parts, the first of {len(head)} bytes, for frames of {sizes[:8]} bytes"
        )
    return kind, [head[start : start + size] for start, size in zip(starts, sizes, strict=False)]


_KINDS = tuple(Kind)  # by number


def _joined(sizes: Sequence[int], parts: Sequence[memoryview]) -> list[memoryview]:
    expected = [piece for size in sizes for piece in _pieces(size, len(parts))]
    if expected != [len(part) for part in parts]:
        raise RemoteProtocolError(f"{len(parts)} parts are not the {len(sizes)} frames of {sizes[:8]} bytes")
    rest = iter(parts)
    try:
        return [_whole(size, rest) for size in sizes]
    except MemoryError:
        rest = iter(parts)
        return CutMessage(sizes, [_beginning(size, rest) for size in sizes])


def _pieces(size: int, limit: int) -> Iterator[int]:
    """Yield the lengths of a frame's pieces; a false size yields at most one piece more than `limit`."""
    full, last = divmod(size, _CUT)
    yield from itertools.repeat(_CUT, min(full, limit + 1))
    if last:
        yield last


def _whole(size: int, parts: Iterator[memoryview]) -> memoryview:
    if size <= _CUT:
        return next(parts) if size else memoryview(b"")
    whole = memoryview(bytearray(size))
    for start in range(0, size, _CUT):
        piece = next(parts)
        whole[start : start + len(piece)] = piece
    return whole


def _beginning(size: int, parts: Iterator[memoryview]) -> memoryview:
    pieces = list(itertools.islice(parts, -(-size // _CUT)))
    return memoryview(bytes(pieces[0][:KEPT_OF_CUT]) if pieces else b"")


_Answer = TypeVar("_Answer")

TcpEnds: TypeAlias = tuple[tuple[Any, ...], tuple[Any, ...]]
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
        """Return the key pairs derived from the cluster's key."""
        server, client = z85.encode(key.derive("curve server")), z85.encode(key.derive("curve client"))
        return cls(zmq.curve_public(server), server, zmq.curve_public(client), client)


def own_context() -> Context:
    """Return the context shared by all channels of this process, separate from that of the user's own zmq code."""
    return _context_of(os.getpid())


@functools.cache
def _context_of(_: int) -> Context:
    context: Context = zmq.Context()
    context.max_sockets = context.get(zmq.SOCKET_LIMIT)  # three a channel; zmq's default ends at 341 channels
    return context


def configure(socket: Socket, limits: Limits, *, ipv6: bool) -> None:
    """Set the options common to both ends."""
    socket.setsockopt(zmq.IPV6, ipv6)
    socket.setsockopt(zmq.HANDSHAKE_IVL, int(limits.hello_timeout_s * 1000))
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_PART)
    socket.setsockopt(zmq.LINGER, int(limits.linger_s * 1000))


def monitored(socket: Socket, events: int) -> Socket:
    """Return a socket that receives the connection events of another.

    The last event, that there will be no more, is left out: zmq sends it while it destroys the socket, and would wait
    for ever once the monitor is gone, so that it destroyed no other socket of the process either.
    """
    events &= ~int(zmq.EVENT_MONITOR_STOPPED)
    # zmq's default name is made of the descriptor's number, which a socket that is still closing may hold as well
    monitor: Socket = socket.get_monitor_socket(events, addr=f"inproc://monitor-{os.urandom(8).hex()}")
    return monitor


def connection_events(monitor: Socket) -> Iterator[tuple[int, int]]:
    """Yield the pending events as (event, value); the value is a descriptor, an error number or a time.

    They are plain numbers: pyzmq's own function makes a member of an enum of each value, and keeps it for good.
    """
    while readable(monitor):
        event, _endpoint = monitor.recv_multipart()
        yield _EVENT.unpack(event)


def readable(socket: Socket) -> bool:
    """Return whether a message is available; the call also processes the signals of zmq's thread."""
    events: int = socket.getsockopt(_EVENTS)  # type: ignore[assignment]  # pyzmq types all options as int | bytes
    return bool(events & _POLLIN)


def descriptor(socket: Socket) -> int:
    """Return the descriptor that is readable when zmq's thread has signalled something."""
    fileno: int = socket.getsockopt(zmq.FD)  # type: ignore[assignment]  # pyzmq types all options as int | bytes
    return fileno


def peer_of(connection: int) -> TcpEnds | None:
    """Return the two ends of the TCP connection with this descriptor; None if that is no such connection."""
    return _ask_socket(connection, lambda known: (known.getsockname(), known.getpeername()))


def port_of(descriptor: int) -> int | None:
    """Return the local port of the TCP socket with this descriptor; None if that is no such socket."""
    own = _ask_socket(descriptor, lambda known: known.getsockname())
    return int(own[1]) if isinstance(own, tuple) else None  # a unix socket's name is a path


def shut_down(connection: int) -> None:
    """End the TCP connection with this descriptor, which zmq then closes."""
    _ask_socket(connection, lambda known: known.shutdown(socket.SHUT_RDWR))


def _ask_socket(descriptor: int, ask: Callable[[socket.socket], _Answer]) -> _Answer | None:
    try:
        known = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        return ask(known)
    except OSError:
        return None
    finally:
        known.detach()  # it is zmq's


def send_heartbeats(socket: Socket, limits: Limits) -> None:
    """Make zmq's thread ping each peer; one end of a connection suffices.

    A peer that does not answer in time counts as lost, and a ping tells the peer how long to wait for the next one.
    """
    silence_ms = int(limits.liveness_limit_s * 1000)
    ping_ms = max(1, silence_ms // _PINGS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, ping_ms)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, max(1, silence_ms - ping_ms))  # from the ping on, which may come so late
    socket.setsockopt(zmq.HEARTBEAT_TTL, min(silence_ms, _LONGEST_TTL_MS))


def new_waker() -> Waker | _EventWaker:
    """Return a waker, whose descriptor any thread can make readable."""
    return Waker() if is_portable() else _EventWaker()


class _EventWaker:
    """Return a waker, whose descriptor any thread can make readable."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._rung = False

    def fileno(self) -> int:
        """Return a descriptor that is readable from `wake` to `clear`."""
        return self._descriptor

    def wake(self) -> None:
        """Make the descriptor readable."""
        self._rung = True
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Make it unreadable; not while another thread wakes it."""
        if self._rung:
            self._rung = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)
