"""The end that peers connect to: a listening socket, and many connections served by one loop, which never waits.

Acceptor        accepts at a listening socket, also when no descriptor is left
UnixPeers       the connections; can connect, too
UnixListener    both together
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from parl_remote._config import Limits
from parl_remote._system.facilities import IN, OUT, new_poller
from parl_remote._system.shortage import is_shortage, shortage_of
from parl_remote._transport import Buffer, Closed, Event, Opened, Received
from parl_remote._transport.unix.sockets import (
    NOW,
    PARTS_AT_ONCE,
    FrameReader,
    Listening,
    after,
    connect_to,
    is_own_user,
    listen_at,
    stream,
    widen,
    would_block,
)
from parl_remote.errors import ChannelClosed, RemoteProtocolError

__all__ = ["Acceptor", "Refusal", "UnixListener", "UnixPeers"]


Refusal = Callable[[str], Sequence[Buffer]]

_REST_S = 0.01  # seconds to wait where not even a refusal is possible, so that a loop does not spin


class Acceptor:
    """Accepts the connections of this user's processes, or of any user's.

    One descriptor is kept in reserve. Where no other is left, it is given up for the moment that it takes to tell a
    peer why it is refused; a connection that is not accepted would keep the listening socket ready.

    Args:
        listening: The listening socket, which the acceptor owns from now on.
        refusal: Returns the only message to a peer for which there is no descriptor, from the reason.
        any_user: Whether peers may be of other users and on other hosts; they have to prove themselves in another way.
    """

    def __init__(self, listening: Listening, refusal: Refusal | None = None, *, any_user: bool = False) -> None:
        self._any_user = any_user
        self._listening = listening
        self._listening.setblocking(False)
        self._refusal = refusal
        self._reserve = -1
        self._reserve_one()

    def fileno(self) -> int:
        """Return the descriptor that is readable while connections are waiting."""
        return self._listening.fileno()

    def waiting(self) -> Iterator[socket.socket]:
        """Yield the connections that are waiting, without blocking."""
        self._reserve_one()
        while True:
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if not is_shortage(error):
                    raise
                self._refuse_one(shortage_of(error))
                return
            if self._any_user or is_own_user(connection):
                yield connection
            else:
                connection.close()

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        self._listening.close()
        self._give_up_reserve()

    def _refuse_one(self, reason: str) -> None:
        self._give_up_reserve()
        try:
            connection, _ = self._listening.accept()
        except OSError:
            time.sleep(_REST_S)
            return
        with connection, contextlib.suppress(OSError):  # the peer is gone or does not read
            connection.setblocking(False)
            if self._refusal is not None and is_own_user(connection):
                connection.sendmsg(stream(self._refusal(reason)))
        self._reserve_one()

    def _reserve_one(self) -> None:
        if self._reserve < 0:
            with contextlib.suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY)

    def _give_up_reserve(self) -> None:
        reserve, self._reserve = self._reserve, -1
        if reserve >= 0:
            os.close(reserve)


_LARGE = 2**20  # memory for larger frames is taken page by page, as they arrive
_PRIVATE = {"flags": mmap.MAP_PRIVATE} if hasattr(mmap, "MAP_PRIVATE") else {}  # shared memory has no huge pages
_HUGE = 2**22  # bytes from which on pages of 2 MB are requested, which takes a quarter of the time


def _memory_for(size: int) -> Buffer:
    """Return memory for a frame; large frames take it page by page, as they arrive."""
    if size < _LARGE:
        return bytearray(size)
    try:
        memory = mmap.mmap(-1, size, **_PRIVATE)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"no memory for {size} bytes: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE") and size >= _HUGE:
        with contextlib.suppress(OSError):  # this kernel does not support it
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


MakeReader: TypeAlias = Callable[[int, Callable[[int], Buffer]], FrameReader]
Encode: TypeAlias = Callable[[Sequence[Buffer]], list[Buffer]]


class _Peer:
    """One connection of a listener: its read state and its queued data."""

    __slots__ = ("closing", "connection", "encode", "is_new", "mask", "number", "outbox", "paused", "reader", "waiting")

    def __init__(self, number: int, connection: socket.socket, reader: FrameReader, encode: Encode) -> None:
        self.number = number
        self.connection = connection
        self.reader = reader
        self.encode = encode
        self.is_new = True  # it has sent no message yet
        self.outbox: deque[Buffer] = deque()
        self.waiting = 0  # bytes in it
        self.closing = False
        self.paused = False
        self.mask = IN

    def flush(self) -> bool:
        """Write as much as the kernel accepts; return True once nothing is left."""
        while self.outbox:
            parts = [self.outbox[i] for i in range(min(len(self.outbox), PARTS_AT_ONCE))]
            try:
                sent = self.connection.sendmsg(parts, (), NOW)
            except OSError as error:
                if not would_block(error):
                    raise
                return False
            for _ in parts:
                self.outbox.popleft()
            self.outbox.extendleft(reversed(after(parts, sent)))
            self.waiting -= sent
        return True


class UnixPeers:
    """Connections by number.

    Args:
        max_bytes: Largest message that is accepted.
        first_bytes: Largest first message of a connection that is accepted, where that is less.
    """

    def __init__(self, max_bytes: int = Limits.max_frame_bytes, first_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._first_bytes = max_bytes if first_bytes is None else first_bytes
        self._poller = new_poller()
        self._by_number: dict[int, _Peer] = {}
        self._by_fd: dict[int, _Peer] = {}
        self._last_number = 0

    def add(self, connection: socket.socket, *, reader: MakeReader = FrameReader, encode: Encode = stream) -> int:
        """Serve a connected socket from now on.

        Args:
            connection: The socket.
            reader: Makes what parses the bytes that arrive.
            encode: Returns the bytes to write for a message.

        Returns:
            Its number.
        """
        connection.setblocking(False)
        widen(connection)
        self._last_number += 1
        parser = reader(self._first_bytes, _memory_for)
        parser.cuts = True
        peer = _Peer(self._last_number, connection, parser, encode)
        self._by_number[peer.number] = self._by_fd[connection.fileno()] = peer
        self._poller.register(connection.fileno(), IN)
        return peer.number

    def connect(self, path: str) -> int:
        """Connect to the listener at `path`; return the connection's number.

        Raises:
            ChannelClosed: Nothing listens there.
            OSError: There is no descriptor left, whatever listens there.
        """
        return self.add(connect_to(path, wait=False))

    def fileno(self) -> int:
        """Return a descriptor that is readable while `poll` has something to do."""
        return self._poller.fileno()

    def pending(self) -> bool:
        """Return False: the descriptor signals everything."""
        return False

    def poll(self) -> list[Event]:
        """Return the events since the last call."""
        events: list[Event] = []
        for fd, mask in self._poller.poll(0):
            self.serve(fd, mask, events)
        return events

    def serve(self, fd: int, mask: int, events: list[Event]) -> None:
        """Handle the kernel's events for one descriptor; unknown ones are ignored."""
        peer = self._by_fd.get(fd)
        if peer is None:
            return
        if mask & OUT:
            self._flush(peer)
        if mask & ~OUT and not peer.closing:
            self._read(peer, events)

    def _read(self, peer: _Peer, events: list[Event]) -> None:
        try:
            peer.reader.fill(peer.connection)
            while (frames := peer.reader.next()) is not None:
                if peer.is_new:
                    peer.is_new = False
                    peer.reader.limit(self._max_bytes)
                events.append(Received(peer.number, frames))
        except BlockingIOError:
            return
        except EOFError:
            self._lose(peer, "the peer closed the connection", events)
        except (OSError, RemoteProtocolError, MemoryError) as error:
            self._lose(peer, str(error), events, shortage_of(error) if is_shortage(error) else "")

    def send(self, peer: int, frames: Sequence[Buffer]) -> None:
        """Queue one message for a peer; see `Listener.send`."""
        to = self._by_number.get(peer)
        if to is None or to.closing:
            raise ChannelClosed(f"peer {peer} is gone")
        parts = to.encode(frames)
        if to.outbox or len(parts) > 1 or not self._send_now(to, parts[0]):
            waited = bool(to.outbox)
            to.outbox.extend(parts)
            to.waiting += sum(map(len, parts))
            if not waited:
                self._flush(to)

    def _send_now(self, peer: _Peer, part: Buffer) -> bool:
        """Write a small message at once, as most are; return False if the kernel refused it."""
        try:
            sent = peer.connection.send(part, NOW)
        except OSError:  # full, or broken: `_flush` finds out which
            return False
        if sent < len(part):
            peer.outbox.append(memoryview(part)[sent:])
            peer.waiting = len(part) - sent
            self._flush(peer)
        return True

    def backlog(self, peer: int) -> int:
        """Return the number of bytes queued for a peer."""
        known = self._by_number.get(peer)
        return 0 if known is None else known.waiting

    def pause(self, peer: int) -> None:
        """Do not read from a peer until `resume`."""
        self._set_paused(peer, True)

    def resume(self, peer: int) -> None:
        """Read from a peer again."""
        self._set_paused(peer, False)

    def _set_paused(self, peer: int, paused: bool) -> None:
        known = self._by_number.get(peer)
        if known is not None and not known.closing:
            known.paused = paused
            self._watch(known)

    def _watch(self, peer: _Peer) -> None:
        """Update the events that the kernel reports for a peer."""
        mask = 0 if peer.paused or peer.closing else IN
        if peer.outbox:
            mask |= OUT
        if mask != peer.mask:
            peer.mask = mask
            self._poller.modify(peer.connection.fileno(), mask)

    def _flush(self, peer: _Peer) -> None:
        try:
            if peer.flush() and peer.closing:
                self._forget(peer)
            else:
                self._watch(peer)
        except OSError:
            # What the peer sent before it went is still there to be read; only then comes its end.
            peer.outbox.clear()
            peer.waiting = 0
            if peer.closing:
                self._forget(peer)

    def take_out(self, peer: int) -> socket.socket | None:
        """Stop serving a peer and return its socket; None if it is gone, or within a message in either direction."""
        known = self._by_number.get(peer)
        if known is None or known.outbox or known.reader.inside_message:
            return None
        del self._by_number[peer], self._by_fd[known.connection.fileno()]
        self._poller.unregister(known.connection.fileno())
        return known.connection

    def drop(self, peer: int) -> None:
        """Close the connection to a peer after the queued messages; see `Listener.drop`."""
        known = self._by_number.pop(peer, None)
        if known is None:
            return
        known.closing = True
        if known.outbox:
            self._watch(known)
        else:
            self._forget(known)

    def close(self) -> None:
        """Drop all peers, waiting a little for slow ones."""
        deadline = time.monotonic() + Limits.linger_s
        for peer in list(self._by_fd.values()):
            with contextlib.suppress(OSError):
                peer.connection.settimeout(max(0.01, deadline - time.monotonic()))
                for part in peer.outbox:
                    peer.connection.sendall(part)
            self._forget(peer)
        self._poller.close()

    def _lose(self, peer: _Peer, reason: str, events: list[Event], shortage: str = "") -> None:
        self._forget(peer)
        events.append(Closed(peer.number, reason, shortage))

    def _forget(self, peer: _Peer) -> None:
        self._by_number.pop(peer.number, None)
        fd = peer.connection.fileno()
        if self._by_fd.pop(fd, None) is not None:
            self._poller.unregister(fd)
            peer.connection.close()


class UnixListener:
    """Listens at a path; calls of `poll` serve the peers.

    Args:
        path: The path to listen at; an existing socket there is an error.
        listening: An already listening socket to use instead of making one; `path` is its path.
        max_bytes: Largest message that is accepted.
        first_bytes: Largest first message of a connection that is accepted, where that is less.
        refusal: See `Acceptor`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        listening: Listening | None = None,
        max_bytes: int = Limits.max_frame_bytes,
        first_bytes: int | None = None,
        refusal: Refusal | None = None,
    ) -> None:
        self._path = str(path)
        self._acceptor = Acceptor(listen_at(self._path) if listening is None else listening, refusal)
        self._peers = UnixPeers(max_bytes, first_bytes)
        self._poller = new_poller()
        self._poller.register(self._acceptor.fileno(), IN)
        self._poller.register(self._peers.fileno(), IN)
        self._closed = False

    @property
    def address(self) -> str:
        """The path."""
        return self._path

    def fileno(self) -> int:
        """Return a descriptor that is readable while `poll` has something to do."""
        return self._poller.fileno()

    def pending(self) -> bool:
        """Return False: the descriptor signals everything."""
        return False

    def poll(self) -> list[Event]:
        """Return the events since the last call; see `Listener.poll`."""
        events: list[Event] = []
        ready = {fd for fd, _ in self._poller.poll(0)}
        if self._acceptor.fileno() in ready:
            events.extend(Opened(self._peers.add(connection)) for connection in self._acceptor.waiting())
        if self._peers.fileno() in ready:
            events.extend(self._peers.poll())
        return events

    def send(self, peer: int, frames: Sequence[Buffer]) -> None:
        """Queue one message for a peer; see `Listener.send`."""
        self._peers.send(peer, frames)

    def drop(self, peer: int) -> None:
        """Close the connection to a peer after the queued messages; see `Listener.drop`."""
        self._peers.drop(peer)

    def close(self) -> None:
        """Drop all peers, waiting a little for slow ones, and stop listening."""
        if self._closed:
            return
        self._closed = True
        self._peers.close()
        self._poller.close()
        self._acceptor.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
