"""The connecting end: one peer, used by many threads.

The caller's own thread writes and reads, one system call each for a small message. While a channel waits until it can
send, it reads the peer's messages and keeps them for `receive`, so that two peers that both send first do not
deadlock.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from parl_remote._config import Limits
from parl_remote._system.facilities import IN, OUT, BusyPoll, is_raised_by_handler, wait_once
from parl_remote._system.texts import in_seconds
from parl_remote._transport import Buffer, abandoned_in_children, copied
from parl_remote._transport.unix.sockets import (
    DONT_WAIT,
    JOIN_BELOW,
    NOW,
    PACK_ONE,
    PARTS_AT_ONCE,
    FrameReader,
    Messages,
    after,
    connect_to,
    peer_pid,
    send_with_descriptor,
    size_in_stream,
    stream,
    unread_bytes,
    widen,
    would_block,
)
from parl_remote.errors import ChannelClosed, RemoteProtocolError, ResultTimeout

__all__ = ["UnixChannel"]

_LONGEST_WAIT_MS = 2_000_000_000  # 23 days; the system refuses to wait for 25


class UnixChannel:
    """A connection to one peer on this host.

    Args:
        connection: A connected stream socket; the channel owns it from now on.
        max_bytes: Largest message that is accepted.
        allocate: Allocates the memory for long frames.
        reader: Parses the bytes that arrive; by default as they are.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        max_bytes: int = Limits.max_frame_bytes,
        allocate: Callable[[int], Buffer] = bytearray,
        reader: FrameReader | None = None,
    ) -> None:
        connection.setblocking(True)
        widen(connection)
        self._socket = connection
        self._reader = FrameReader(max_bytes, allocate) if reader is None else reader
        self._inbox: deque[list[memoryview]] = deque()
        # Re-entrant, because a signal handler may close the channel while this thread is in here.
        self._send_lock, self._receive_lock = threading.RLock(), threading.RLock()
        self._unsent: deque[list[Buffer]] = deque()  # the rest of what `post` took, by message
        self._closed = False
        self._busy: BusyPoll | None = None  # from the first wait on
        abandoned_in_children(self)

    @classmethod
    def connect(cls, path: str, *, allocate: Callable[[int], Buffer] = bytearray) -> UnixChannel:
        """Connect to the listener at `path`.

        Raises:
            ChannelClosed: Nothing listens there.
            OSError: This process has no descriptors or no memory left, whatever listens there.
        """
        return cls(connect_to(path, wait=True), allocate=allocate)

    @property
    def peer_pid(self) -> int:
        """The process id of the other end, or of the process that it was forked from; 0 if it is not visible here."""
        return peer_pid(self._socket)

    def send(self, frames: Sequence[Buffer], timeout_s: float | None = None) -> None:
        """Send one message; see `Channel.send`."""
        parts = stream(frames)
        with self._send_lock:
            if self._unsent:
                timeout_s = self._await_flushed(timeout_s)
            try:
                if len(parts) == 1:
                    size = len(parts[0])
                    sent = self._socket.send(parts[0], NOW)
                    if sent == size:
                        return
                else:
                    sent = self._socket.sendmsg(parts[:PARTS_AT_ONCE], (), NOW)
            except OSError as error:
                if not would_block(error):
                    raise self._broken(error) from error
                sent = 0
            self._send_rest(parts, sent, timeout_s)

    def send_with_descriptor(self, frames: Sequence[Buffer], descriptor: int) -> None:
        """Send one small message, without waiting, with a descriptor that the peer gets a copy of.

        Raises:
            ChannelClosed: The peer is gone, does not read, or the kernel has no buffer; nothing was sent.
        """
        with self._send_lock:
            try:
                send_with_descriptor(self._socket, b"".join(stream(frames)), descriptor)
            except OSError as error:
                raise self._broken(error) from error

    def cut_messages(self) -> None:
        """Receive each message for which there is no memory as a `CutMessage`; else it ends the connection."""
        self._reader.cuts = True

    @property
    def descriptors(self) -> deque[int] | None:
        """The descriptors that came with messages, in their order; None, which is at first, refuses them."""
        return self._reader.descriptors

    @descriptors.setter
    def descriptors(self, into: deque[int] | None) -> None:
        self._reader.descriptors = into

    def post(self, frames: Sequence[Buffer], more: Sequence[Sequence[Buffer]] = ()) -> bool:
        """Take one message, or several with as few system calls, without waiting; see `Channel.post`."""
        if not more and len(frames) == 1 and len(frames[0]) < JOIN_BELOW:  # the usual case
            parts: list[Buffer] = [PACK_ONE(1, len(frames[0])) + frames[0]]
        else:
            parts = stream(frames, *more)
        with self._send_lock:
            try:
                if len(parts) == 1 and not self._unsent:
                    sent = self._socket.send(parts[0], NOW)
                    if sent == len(parts[0]):
                        return True
                    parts = after(parts, sent)
            except OSError as error:
                if not would_block(error):
                    raise self._broken(error) from error
            return self._write_or_keep(parts)

    def _write_or_keep(self, parts: list[Buffer]) -> bool:
        """Write a message after those before it, without waiting; return False if a part of it is kept."""
        rest = parts if self._unsent else self._rest_of(parts)
        if rest:
            self._unsent.append(rest)
        return not rest

    def freeze(self, frames: Sequence[Buffer] | None = None) -> None:
        """Refer to memory of the caller no more; see `Channel.freeze`."""
        with self._send_lock:
            if not self._unsent:
                return
            kept = self._unsent[-1]
            if frames is not None:
                parts = stream(frames)
                self._unsent[-1] = after(parts, sum(map(len, parts)) - sum(map(len, kept)))
                return
            self._unsent[-1] = [copied(part) for part in kept]

    def withdraw(self, frames: Sequence[Buffer]) -> bool:
        """Forget a message of which nothing has been sent; see `Channel.withdraw`."""
        with self._send_lock:
            if not self._unsent or sum(map(len, self._unsent[-1])) < size_in_stream(frames):
                return False
            self._unsent.pop()
        return True

    def wait_writable(self, timeout_s: float) -> None:
        """Wait until the peer takes more, is gone, or the time has passed, without reading."""
        with contextlib.suppress(OSError, ValueError):  # it is closed
            wait_once(self._socket, OUT, 1000 * timeout_s)

    def flush(self) -> bool:
        """Send the rest of posted messages, without waiting; see `Channel.flush`."""
        with self._send_lock:
            while self._unsent:
                rest = self._rest_of(self._unsent[0])
                if rest:
                    self._unsent[0] = rest
                    return False
                self._unsent.popleft()
        return True

    def _rest_of(self, parts: list[Buffer]) -> list[Buffer]:
        """Write without waiting, and return the parts that the socket did not take."""
        try:
            while parts:
                parts = after(parts, self._socket.sendmsg(parts[:PARTS_AT_ONCE], (), NOW))
        except OSError as error:
            if not would_block(error):
                raise self._broken(error) from error
        return parts

    def _await_flushed(self, timeout_s: float | None) -> float | None:
        """Wait until all is sent that `post` took; return the time that is left."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.flush():
            if not self._wait_writable(deadline):
                raise ResultTimeout(f"the peer received nothing for {timeout_s} s")
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def _send_rest(self, parts: list[Buffer], sent: int, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        started = sent > 0
        rest = after(parts, sent)
        try:
            while rest:
                if not self._wait_writable(deadline, inside_message=started):
                    raise ResultTimeout(f"the peer received nothing for {timeout_s} s")
                try:
                    sent = self._socket.sendmsg(rest[:PARTS_AT_ONCE], (), NOW)
                except OSError as error:
                    if not would_block(error):
                        raise
                    continue
                started = True
                rest = after(rest, sent)
        except OSError as error:
            if is_raised_by_handler(error):
                raise
            raise self._broken(error) from error
        finally:
            if rest and started:  # half a message is on its way and nothing can follow it
                self._hang_up()

    def _wait_writable(self, deadline: float | None, *, inside_message: bool = False) -> bool:
        """Wait until the socket accepts data, reading meanwhile; return False once the deadline has passed."""
        may_be_interrupted = not inside_message
        if self._may_read():  # otherwise another thread is reading anyway
            try:
                ready = wait_once(
                    self._socket, OUT | IN, _milliseconds(deadline), may_be_interrupted=may_be_interrupted
                )
                if ready & IN:
                    self._read_ahead()
            finally:
                self._receive_lock.release()
        else:
            ready = wait_once(self._socket, OUT, _milliseconds(deadline), may_be_interrupted=may_be_interrupted)
        return bool(ready)

    def _read_ahead(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                self._reader.fill(self._socket, DONT_WAIT)
            except EOFError as error:
                raise ConnectionResetError(errno.ECONNRESET, "the peer closed the connection") from error
            while (frames := self._reader.next()) is not None:
                self._inbox.append(frames)

    def receive(self, timeout_s: float | None = None) -> list[memoryview]:
        """Wait for one message; see `Channel.receive`."""
        with self._receive_lock:
            if not self._inbox:
                self.receive_all(self._inbox, timeout_s)
            return self._inbox.popleft()

    def receive_all(self, into: Messages, timeout_s: float | None = None) -> None:
        """Wait for a message and add it, with all others that have arrived; see `Channel.receive`.

        Args:
            into: The container to add them to, empty; if a signal's handler raises, it has those that were taken.
            timeout_s: The time to wait.
        """
        with self._receive_lock:
            if self._inbox:
                rest: deque[list[memoryview]] = deque()
                inbox, self._inbox = self._inbox, rest
                into.extend(inbox)
            reader = self._reader
            reader.take_all(into)
            if into:
                return
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            try:
                while not into:
                    if deadline is None:
                        (self._busy or self._busy_poll()).poll()
                        reader.fill(self._socket)
                    else:
                        self._fill_before(deadline, timeout_s)
                    reader.take_all(into)
            except (EOFError, OSError) as error:
                if isinstance(error, ResultTimeout):
                    raise
                if is_raised_by_handler(error):
                    raise
                if isinstance(error, EOFError):
                    raise ChannelClosed("the peer closed the connection") from error
                raise self._broken(error) from error

    def _busy_poll(self) -> BusyPoll:
        self._busy = BusyPoll(self._socket.fileno())
        return self._busy

    def _may_read(self) -> bool:
        """Begin to read unless another thread or this one reads; after True the caller releases the lock."""
        is_here = self._receive_lock._is_owned()  # type: ignore[attr-defined]  # not in its stub
        return not is_here and self._receive_lock.acquire(blocking=False)

    def receive_ready(self) -> list[list[memoryview]]:
        """Return all messages that are there, with one read that does not wait, once the socket is readable.

        Raises:
            ChannelClosed: The peer is gone and everything it had sent was received.
            RemoteProtocolError: The peer sent an invalid message.
        """
        with self._receive_lock:
            messages: list[list[memoryview]] = []
            if self._inbox:
                messages.extend(self._inbox)
                self._inbox.clear()
            try:
                self._reader.fill(self._socket, DONT_WAIT)
            except BlockingIOError:
                pass
            except EOFError as error:
                if not messages:
                    raise ChannelClosed("the peer closed the connection") from error
            except OSError as error:
                if not messages:
                    raise self._broken(error) from error
            self._reader.take_all(messages)
        return messages

    def _fill_before(self, deadline: float, timeout_s: float | None) -> None:
        try:
            self._reader.fill(self._socket, DONT_WAIT)
            return
        except BlockingIOError:
            pass  # waiting here would show it in the traceback of Ctrl-C
        if timeout_s and (self._busy or self._busy_poll()).poll():
            return
        if not wait_once(self._socket, IN, _milliseconds(deadline)) and time.monotonic() >= deadline:
            raise ResultTimeout(f"nothing arrived within {in_seconds(timeout_s)}")

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def pending(self) -> bool:
        """Return whether messages were read ahead."""
        if self._inbox:
            return True
        if not self._may_read():
            return False
        try:
            frames = self._reader.next()
            if frames is not None:
                self._inbox.append(frames)
        finally:
            self._receive_lock.release()
        return frames is not None

    @property
    def unread_by_peer(self) -> bool:
        """Return whether the peer has not yet read all that was sent."""
        return unread_bytes(self._socket) > 0

    def close(self) -> None:
        """Close the channel; sent messages are in the kernel's buffers and still arrive.

        Messages that have arrived can still be received. All bytes are read for that, and because TCP drops what was
        sent when a socket is closed with bytes that nobody has read.
        """
        if self._closed:
            return
        self._closed = True
        self._hang_up()
        with self._receive_lock, self._send_lock:  # a thread that waits in either has been woken by the line above
            with contextlib.suppress(EOFError, OSError, RemoteProtocolError):
                while True:
                    while (frames := self._reader.next()) is not None:
                        self._inbox.append(frames)
                    self._reader.fill(self._socket, DONT_WAIT)
            self._socket.close()

    def abandon(self) -> None:
        """Close this process's copy of the descriptor, in the child of a fork, and leave the connection alone."""
        self._closed = True
        self._send_lock, self._receive_lock = threading.RLock(), threading.RLock()  # their holders were not copied
        self._socket.close()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _broken(self, error: OSError) -> ChannelClosed:
        if self._closed or error.errno == errno.EBADF:
            return ChannelClosed("this channel was closed")
        return ChannelClosed(f"the connection broke: {error.strerror or error}")


def _milliseconds(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, min((deadline - time.monotonic()) * 1000, _LONGEST_WAIT_MS))
