"""The transport on one host: plain unix stream sockets in private directories.

    channel   the caller's own thread writes and reads: one system call each for a small message
    listener  reads what is there, queues what a peer does not take at once

While a channel waits for room to send it reads what the peer sends meanwhile and keeps it for `receive`, so that two
peers that both send first do not wait for each other for ever. Only processes of the same user get in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from parl_remote.config import Limits
from parl_remote.errors import ChannelClosed, RemoteProtocolError, ResultTimeout
from parl_remote.framing import FrameReader, frame_prefix
from parl_remote.transport import Buffer, Closed, Event, Opened, Received

__all__ = ["UnixChannel", "UnixListener"]

_SOCKET_BUFFER = 2**20  # larger ones save wake-ups on arrays; the kernel caps it at net.core.wmem_max
_JOIN_BELOW = 2**14  # copying so little is cheaper than handing the kernel a list
_PARTS_AT_ONCE = 512  # the kernel takes 1024 (IOV_MAX)
_NOW = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


def _widen(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)


def _stream(frames: Sequence[Buffer]) -> list[Buffer]:
    """The buffers to write for a message: one for a small message."""
    prefix = frame_prefix(frames)
    if len(frames) == 1 and len(frames[0]) < _JOIN_BELOW:
        return [b"".join((prefix, frames[0]))]
    return [prefix, *frames]


class UnixChannel:
    """A connection to one peer on this host.

    Args:
        connection: A connected stream socket; the channel owns it from now on.
        max_bytes: Largest message that is accepted.
        allocate: Makes the memory for long frames.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        max_bytes: int = Limits.max_frame_bytes,
        allocate: Callable[[int], Buffer] = bytearray,
    ) -> None:
        connection.setblocking(True)
        _widen(connection)
        self._socket = connection
        self._reader = FrameReader(max_bytes, allocate)
        self._inbox: deque[list[memoryview]] = deque()
        self._send_lock = threading.Lock()
        self._receive_lock = threading.Lock()
        self._closed = False

    @classmethod
    def connect(cls, path: str, *, allocate: Callable[[int], Buffer] = bytearray) -> UnixChannel:
        """Connect to the listener at `path`.

        Raises:
            ChannelClosed: Nobody listens there.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise ChannelClosed(f"nobody listens at {path}: {error.strerror}") from error
        return cls(connection, allocate=allocate)

    def send(self, frames: Sequence[Buffer], timeout_s: float | None = None) -> None:
        """Send one message; see `Channel.send`."""
        self.send_parts(_stream(frames), timeout_s)

    def send_batch(self, messages: Sequence[Sequence[Buffer]]) -> None:
        """Send several messages with as few system calls as one.

        Raises:
            ChannelClosed: The peer is gone.
        """
        parts = [part for frames in messages for part in _stream(frames)]
        if sum(map(len, parts)) < _JOIN_BELOW:
            parts = [b"".join(parts)]
        self.send_parts(parts)

    def send_parts(self, parts: list[Buffer], timeout_s: float | None = None) -> None:
        """Write buffers that make up whole messages, prefixes included, as one."""
        with self._send_lock:
            try:
                if len(parts) == 1:
                    size = len(parts[0])
                    sent = self._socket.send(parts[0], _NOW)
                    if sent == size:
                        return
                else:
                    sent = self._socket.sendmsg(parts[:_PARTS_AT_ONCE], (), _NOW)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise self._broken(error) from error
            self._send_rest(parts, sent, timeout_s)

    def _send_rest(self, parts: list[Buffer], sent: int, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        started = sent > 0
        rest = _after(parts, sent)
        try:
            while rest:
                if not self._wait_for_room(deadline):
                    raise ResultTimeout(f"the peer took nothing for {timeout_s} s")
                try:
                    sent = self._socket.sendmsg(rest[:_PARTS_AT_ONCE], (), _NOW)
                except BlockingIOError:
                    continue
                started = True
                rest = _after(rest, sent)
        except OSError as error:
            raise self._broken(error) from error
        finally:
            if rest and started:  # half a message is on its way and nothing can follow it
                self._hang_up()

    def _wait_for_room(self, deadline: float | None) -> bool:
        """Wait until the socket may take more, reading meanwhile; False once the deadline has passed."""
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT)
        if self._receive_lock.acquire(blocking=False):  # otherwise another thread is reading anyway
            try:
                poller.modify(self._socket, select.POLLOUT | select.POLLIN)
                ready = poller.poll(_milliseconds(deadline))
                if ready and ready[0][1] & select.POLLIN:
                    self._read_ahead()
            finally:
                self._receive_lock.release()
        else:
            ready = poller.poll(_milliseconds(deadline))
        return bool(ready)

    def _read_ahead(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                self._reader.fill(self._socket, socket.MSG_DONTWAIT)
            except EOFError as error:
                raise ConnectionResetError(errno.ECONNRESET, "the peer closed the connection") from error
            while (frames := self._reader.next()) is not None:
                self._inbox.append(frames)

    def receive(self, timeout_s: float | None = None) -> list[memoryview]:
        """Wait for one message; see `Channel.receive`."""
        with self._receive_lock:
            if self._inbox:
                return self._inbox.popleft()
            reader = self._reader
            frames = reader.next()
            if frames is not None:
                return frames
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            try:
                while True:
                    if deadline is None:
                        reader.fill(self._socket)
                    else:
                        self._fill_before(deadline, timeout_s)
                    frames = reader.next()
                    if frames is not None:
                        return frames
            except EOFError as error:
                raise ChannelClosed("the peer closed the connection") from error
            except OSError as error:
                if isinstance(error, ResultTimeout):
                    raise
                raise self._broken(error) from error

    def receive_ready(self) -> list[list[memoryview]]:
        """All messages that are there, with one read that does not wait; for a loop that knows the socket is readable.

        Raises:
            ChannelClosed: The peer is gone and everything it had sent was received.
            RemoteProtocolError: What the peer sent cannot be a message.
        """
        with self._receive_lock:
            messages = list(self._inbox)
            self._inbox.clear()
            try:
                self._reader.fill(self._socket, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except EOFError as error:
                if not messages:
                    raise ChannelClosed("the peer closed the connection") from error
            except OSError as error:
                if not messages:
                    raise self._broken(error) from error
            while (frames := self._reader.next()) is not None:
                messages.append(frames)
        return messages

    @property
    def has_read_ahead(self) -> bool:
        """Whether messages were read while sending had to wait."""
        return bool(self._inbox)

    def _fill_before(self, deadline: float, timeout_s: float | None) -> None:
        try:
            self._reader.fill(self._socket, socket.MSG_DONTWAIT)
        except BlockingIOError:
            poller = select.poll()
            poller.register(self._socket, select.POLLIN)
            if not poller.poll(_milliseconds(deadline)) and time.monotonic() >= deadline:
                raise ResultTimeout(f"nothing came within {timeout_s} s") from None

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def pending(self) -> bool:
        """Whether messages were read ahead."""
        if self._inbox:
            return True
        if not self._receive_lock.acquire(blocking=False):
            return False
        try:
            frames = self._reader.next()
            if frames is not None:
                self._inbox.append(frames)
        finally:
            self._receive_lock.release()
        return frames is not None

    def close(self) -> None:
        """Close; what was sent is with the kernel already and still arrives."""
        if self._closed:
            return
        self._closed = True
        self._hang_up()
        with self._receive_lock, self._send_lock:  # a thread that waits in either has been woken by the line above
            self._socket.close()

    def abandon(self) -> None:
        """Close this process's copy of the descriptor and leave the connection alone: for the child of a fork."""
        self._closed = True
        self._send_lock, self._receive_lock = threading.Lock(), threading.Lock()  # their holders were not copied
        self._socket.close()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _broken(self, error: OSError) -> ChannelClosed:
        if self._closed or error.errno == errno.EBADF:
            return ChannelClosed("this channel was closed")
        return ChannelClosed(f"the connection broke: {error.strerror or error}")


def _milliseconds(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)


def _after(parts: Sequence[Buffer], sent: int) -> list[Buffer]:
    """What is left of `parts` once `sent` bytes are gone."""
    rest: list[Buffer] = []
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
        elif sent:
            rest.append(memoryview(part)[sent:])
            sent = 0
        else:
            rest.append(part)
    return rest


class _Peer:
    """One connection of a listener: what was read and what still has to be written."""

    __slots__ = ("closing", "connection", "number", "outbox", "reader")

    def __init__(self, number: int, connection: socket.socket, max_bytes: int) -> None:
        self.number = number
        self.connection = connection
        self.reader = FrameReader(max_bytes)
        self.outbox: deque[Buffer] = deque()
        self.closing = False

    def flush(self) -> bool:
        """Write what the kernel takes; True once nothing is left."""
        while self.outbox:
            parts = [self.outbox[i] for i in range(min(len(self.outbox), _PARTS_AT_ONCE))]
            try:
                sent = self.connection.sendmsg(parts, (), _NOW)
            except BlockingIOError:
                return False
            for _ in parts:
                self.outbox.popleft()
            self.outbox.extendleft(reversed(_after(parts, sent)))
        return True


class UnixListener:
    """Listens at a path; peers are served by whoever calls `poll`.

    Args:
        path: Where to listen; a socket that exists there is an error.
        listening: An already listening socket to use instead of making one; `path` says where it is.
        max_bytes: Largest message that is accepted.
    """

    def __init__(
        self, path: str | Path, *, listening: socket.socket | None = None, max_bytes: int = Limits.max_frame_bytes
    ) -> None:
        self._path = str(path)
        self._socket = listen_at(self._path) if listening is None else listening
        self._socket.setblocking(False)
        self._max_bytes = max_bytes
        self._epoll = select.epoll()
        self._epoll.register(self._socket.fileno(), select.EPOLLIN)
        self._by_number: dict[int, _Peer] = {}
        self._by_fd: dict[int, _Peer] = {}
        self._last_number = 0
        self._lost: deque[Event] = deque()
        self._closed = False

    @property
    def address(self) -> str:
        """The path."""
        return self._path

    def fileno(self) -> int:
        """Readable while there is something to do for `poll`."""
        return self._epoll.fileno()

    def pending(self) -> bool:
        """Whether a peer was lost while sending to it."""
        return bool(self._lost)

    def poll(self) -> list[Event]:
        """What happened since the last call; see `Listener.poll`."""
        events: list[Event] = list(self._lost)
        self._lost.clear()
        for fd, mask in self._epoll.poll(0):
            if fd == self._socket.fileno():
                self._accept(events)
                continue
            peer = self._by_fd.get(fd)
            if peer is None:
                continue
            if mask & select.EPOLLOUT:
                self._flush(peer)
            if mask & ~select.EPOLLOUT and not peer.closing:
                self._read(peer, events)
        events.extend(self._lost)
        self._lost.clear()
        return events

    def _accept(self, events: list[Event]) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            if peer_uid(connection) != os.getuid():
                connection.close()
                continue
            events.append(Opened(self._admit(connection)))

    def _admit(self, connection: socket.socket) -> int:
        connection.setblocking(False)
        _widen(connection)
        self._last_number += 1
        peer = _Peer(self._last_number, connection, self._max_bytes)
        self._by_number[peer.number] = self._by_fd[connection.fileno()] = peer
        self._epoll.register(connection.fileno(), select.EPOLLIN)
        return peer.number

    def dial(self, path: str) -> int:
        """Connect to another listener, which from then on is a peer like those that came by themselves.

        Raises:
            ChannelClosed: Nobody listens there.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise ChannelClosed(f"nobody listens at {path}: {error.strerror}") from error
        return self._admit(connection)

    def _read(self, peer: _Peer, events: list[Event]) -> None:
        try:
            peer.reader.fill(peer.connection)
            while (frames := peer.reader.next()) is not None:
                events.append(Received(peer.number, frames))
        except BlockingIOError:
            return
        except EOFError:
            self._lose(peer, "the peer closed the connection", events)
        except (OSError, RemoteProtocolError, MemoryError) as error:
            self._lose(peer, str(error), events)

    def send(self, peer: int, frames: Sequence[Buffer]) -> None:
        """Queue one message for a peer; see `Listener.send`."""
        to = self._by_number.get(peer)
        if to is None or to.closing:
            raise ChannelClosed(f"peer {peer} of {self._path} is gone")
        waiting = bool(to.outbox)
        to.outbox.extend(_stream(frames))
        if not waiting:
            self._flush(to)

    def _flush(self, peer: _Peer) -> None:
        try:
            if not peer.flush():
                self._epoll.modify(peer.connection.fileno(), select.EPOLLIN | select.EPOLLOUT)
            elif peer.closing:
                self._forget(peer)
            else:
                self._epoll.modify(peer.connection.fileno(), select.EPOLLIN)
        except OSError:
            # What the peer sent before it went is still there to be read; only then comes its end.
            peer.outbox.clear()
            if peer.closing:
                self._forget(peer)

    def drop(self, peer: int) -> None:
        """Close the connection to a peer after what was queued; see `Listener.drop`."""
        known = self._by_number.pop(peer, None)
        if known is None:
            return
        known.closing = True
        if known.outbox:
            self._epoll.modify(known.connection.fileno(), select.EPOLLOUT)
        else:
            self._forget(known)

    def close(self) -> None:
        """Drop all peers, waiting a little for those that are slow to read, and stop listening."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + Limits.linger_s
        for peer in list(self._by_fd.values()):
            with contextlib.suppress(OSError):
                peer.connection.settimeout(max(0.01, deadline - time.monotonic()))
                for part in peer.outbox:
                    peer.connection.sendall(part)
            self._forget(peer)
        self._epoll.close()
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _lose(self, peer: _Peer, reason: str, events: list[Event]) -> None:
        self._forget(peer)
        events.append(Closed(peer.number, reason))

    def _forget(self, peer: _Peer) -> None:
        self._by_number.pop(peer.number, None)
        fd = peer.connection.fileno()
        if self._by_fd.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            peer.connection.close()


def listen_at(path: str) -> socket.socket:
    """A stream socket that listens at `path`, for this user only.

    Raises:
        OSError: The path is taken, too long (107 bytes), or cannot be made.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(128)
    except BaseException:
        listening.close()
        raise
    return listening


def peer_uid(connection: socket.socket) -> int:
    """The user whose process is at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("iII", credentials)[1])
