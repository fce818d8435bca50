"""Large frames on their way between two processes of one host, through shared memory: one segment for each message.

    Sharing   to_shared_memory    [header, frame, LARGE FRAME, ...]
                                  -->  [header with Flag.TICKETS, frame, ..., ticket, marks]
              from_shared_memory  the reverse; marks has a byte for each frame after the first: 1 for the segment's

    sender    Segments.place(frames) --> a ticket, which goes through the socket instead of the frames
    receiver  Mappings.open(ticket) --> views of the same memory, without a copy
              when the views have no user any more, the state byte says FREE, and the sender uses the segment again;
              RETIRED instead if the receiver has forked since, because its children see the memory, too

    segment   offset 0     state: FREE, BUSY, RETIRED
              offset 4096  the frames, each at a multiple of 64 bytes

The caller finds out whether memory can be shared and says so with Flag.SHARES when it has the object made. A segment
is a file of `parl_core._shared_memory`. Fresh pages cost more than the copy, so segments are kept: a new one is written
with a system call, which need not clear the pages first, and mapped by the sender only when it is used again. What does
not fit, for number or size, takes the way through the socket. A thread gives back what was not used for a while; it
runs only as long as there is something to give back.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parl_core import _shared_memory
from parl_core._shared_memory import MemoryAddress, MemoryGone
from parl_remote._links.call_messages import Flag
from parl_remote._system.shortage import is_shortage, start_daemon
from parl_remote._transport import Buffer
from parl_remote.errors import ChannelClosed, RemoteProtocolError

__all__ = ["LARGE", "TICKETS", "Mappings", "Segments", "Sharing", "can_share", "give_back_unused"]


LARGE = 2**17  # bytes, of a frame or of all smaller ones together; below it one copy more is cheaper than a segment

_FREE, _BUSY, _RETIRED = 0, 1, 2
_NAME = "parl"  # the name in /proc; the file has no name in any directory
_FRAMES_AT = 4096
_ALIGNMENT = 64  # a cache line, the preferred alignment of arrays
_TICKET = struct.Struct("<IIQQ")  # sender's pid, its descriptor, inode, bytes of the file; then the frames' lengths
_LENGTH_BYTES = 8
# A fault for each page would cost more than the copy. Other systems than Linux have no such flag, and no segments.
_POPULATED = getattr(mmap, "MAP_SHARED", 0) | getattr(mmap, "MAP_POPULATE", 0)
# segments per connection and direction: each needs a descriptor at both ends, and there may be 100 actors
_MOST_SEGMENTS = 16
_MOST_BYTES = 2**30  # frames beyond this, for a receiver that keeps them all, are copied through the socket
_IDLE_USES = 64  # a segment that was not used for this many messages is dropped
# as is one that was not used for this many seconds, which is also the interval of the thread that drops them
_IDLE_S = 20.0


def can_share(pid: int) -> bool:
    """Return whether this process and one of the same user can open each other's descriptors.

    They cannot in different containers, even if both see the same sockets.
    """
    try:
        return bool(pid) and os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


@dataclass(slots=True, eq=False)
class _Segment:
    """One anonymous file of the sender."""

    descriptor: int
    inode: int
    size: int
    last_use: int = 0
    used_at: float = 0.0
    memory: mmap.mmap | None = None

    @property
    def capacity(self) -> int:
        return self.size - _FRAMES_AT

    def state(self) -> int:
        return self.memory[0] if self.memory is not None else os.pread(self.descriptor, 1, 0)[0]

    def set_state(self, state: int) -> None:
        if self.memory is not None:
            self.memory[0] = state
        else:
            os.pwrite(self.descriptor, bytes((state,)), 0)

    def write(self, frames: Sequence[memoryview]) -> None:
        """Write frames into the segment; raise `OSError` if no memory is left."""
        if self.last_use and self.memory is None:
            self.memory = mmap.mmap(self.descriptor, self.size, _POPULATED)
        at = _FRAMES_AT
        for frame in frames:
            if self.memory is not None:
                _shared_memory.copy_into(self.memory, frame, at)
            else:
                _shared_memory.fill(self.descriptor, frame, at)
            at += _aligned(len(frame))

    def drop(self) -> None:
        """Give the memory back, at once if it has no reader, else when that one lets it go."""
        if self.state() == _FREE:
            os.ftruncate(self.descriptor, _FRAMES_AT)  # the receiver may keep it mapped until it reports otherwise
        self.set_state(_RETIRED)
        self.memory = None
        descriptor, self.descriptor = self.descriptor, -1  # an interrupted `place` writes to no other file
        os.close(descriptor)


class Segments:
    """The sender's end of one connection; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._segments: list[_Segment] = []
        self._uses = 0
        self._closed = False

    def place(self, frames: Sequence[Buffer]) -> bytes | None:
        """Copy the frames of a message into a segment.

        Returns:
            The ticket for `Mappings.open`; None if the limits are reached, or another call was interrupted, and the
            frames have to be sent another way.
        """
        if self._lock._is_owned():  # type: ignore[attr-defined]  # a signal handler or a finalizer came in between
            return None
        views = [memoryview(frame).cast("B") for frame in frames]
        lengths = [len(view) for view in views]
        size = sum(map(_aligned, lengths))
        with self._lock:
            # A forked copy's descriptors are not seen by the receiver; what is placed after the end would stay.
            if os.getpid() != self._pid or self._closed:
                return None
            self._uses += 1
            try:
                segment = self._find(size) or self._make(size)
                if segment is None:
                    return None
                segment.write(views)
                segment.set_state(_BUSY)
            except OSError:  # no memory or no descriptors left
                return None
            segment.last_use = self._uses
            segment.used_at = time.monotonic()
            ticket = _TICKET.pack(self._pid, segment.descriptor, segment.inode, segment.size)
        return ticket + struct.pack(f"<{len(lengths)}Q", *lengths)

    def take_back(self, ticket: Buffer) -> None:
        """Free the segment of a ticket that was not sent."""
        descriptor = _TICKET.unpack_from(ticket)[1]
        with self._lock:
            for segment in self._segments:
                if segment.descriptor == descriptor:
                    segment.set_state(_FREE)

    def give_back(self, unused_since: float) -> bool:
        """Drop the segments that are not read and that were last used before then; return whether any are left."""
        if os.getpid() != self._pid:
            return False
        with self._lock:
            self._drop_retired()
            for segment in self._segments[:]:
                if segment.used_at < unused_since and segment.state() == _FREE:
                    self._segments.remove(segment)
                    segment.drop()
            return bool(self._segments)

    def __del__(self) -> None:
        if os.getpid() == self._pid:
            self.close()

    def close(self) -> None:
        """Drop all segments, and make no more; the receiver keeps its mappings."""
        with self._lock:
            self._closed = True
            for segment in self._segments:
                segment.drop()
            self._segments.clear()

    def _drop_retired(self) -> None:
        """Drop the segments that the receiver does not give back."""
        for segment in [segment for segment in self._segments if segment.state() == _RETIRED]:
            self._segments.remove(segment)
            segment.drop()

    def _find(self, size: int) -> _Segment | None:
        """Return the smallest free segment that fits; drop those that were not used for long."""
        best: _Segment | None = None
        for segment in [segment for segment in self._segments if segment.state() == _FREE]:
            if size <= segment.capacity <= 2 * size and (best is None or segment.size < best.size):
                best = segment
            elif self._uses - segment.last_use > _IDLE_USES:
                self._segments.remove(segment)
                segment.drop()
        return best

    def _make(self, size: int) -> _Segment | None:
        self._drop_retired()
        whole = _FRAMES_AT + _shared_memory.whole_size(size)
        if not self._may_grow(whole):
            return None
        descriptor = _shared_memory.create(_NAME, whole)
        segment = _Segment(descriptor, _shared_memory.address_of(descriptor).inode, whole)
        self._segments.append(segment)
        _give_back_later(self)
        return segment

    def _may_grow(self, size: int) -> bool:
        """Return whether one more segment is within the limits, after dropping free ones that did not fit."""
        free = sorted((s for s in self._segments if s.state() == _FREE), key=lambda s: s.last_use, reverse=True)
        most = max(_MOST_BYTES, size)  # a message of any size, if it is the only one
        while len(self._segments) >= _MOST_SEGMENTS or size + sum(s.size for s in self._segments) > most:
            if not free:
                return False
            oldest = free.pop()
            self._segments.remove(oldest)
            oldest.drop()
        return True


def _aligned(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT


class _Watch:
    """Returns segments that connections of this process have not used for a while, in a thread that then ends."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.RLock()  # as that of `Segments`
        self._holders: weakref.WeakSet[Segments] = weakref.WeakSet()
        self._runs = False
        self._has_more = False

    def add(self, segments: Segments) -> None:
        """Watch a connection that has made a segment."""
        with self._lock:
            self._holders.add(segments)
            self._has_more = True
            if self._runs:
                return
            self._runs = True
        try:
            start_daemon(self._run, "parl-memory")
        except RuntimeError:  # the limit of threads: unused segments stay until the next one is made
            self._runs = False

    def _run(self) -> None:
        while self._runs:
            time.sleep(_IDLE_S)
            self.give_back(_IDLE_S)

    def give_back(self, unused_s: float) -> None:
        """Drop the segments that are not read and that were not used for so long."""
        since = time.monotonic() - unused_s
        with self._lock:
            self._has_more = False
            holders = list(self._holders)
        kept = [segments for segments in holders if segments.give_back(since)]
        with self._lock:
            self._runs = bool(kept) or self._has_more
            if not self._runs:
                self._holders.clear()


_watch = [_Watch()]


def give_back_unused(seconds: float) -> None:
    """Drop this process's segments that are not read and that were not used for so long."""
    _watch[0].give_back(seconds)


def _give_back_later(segments: Segments) -> None:
    """Return the segments of a connection when they are not used."""
    if _watch[0].pid != os.getpid():
        _watch[0] = _Watch()  # the thread and the locks of the other one belong to the process that forked this one
    _watch[0].add(segments)


class Mappings:
    """The receiver's end of one connection; used by one thread at a time, views may end in any thread."""

    def __init__(self) -> None:
        self._memory: dict[tuple[int, int], mmap.mmap] = {}
        self._lent: dict[tuple[int, int], weakref.finalize[..., Any]] = {}
        self._uses = 0
        self._closed = False

    def open(self, ticket: Buffer) -> list[memoryview]:
        """Return the frames of a ticket, writable; the segment is free again once nothing refers to any of them.

        Raises:
            ChannelClosed: The sender is gone, and the frames with it.
            RemoteProtocolError: The bytes are not a valid ticket.
        """
        import numpy as np  # here, because a process that gets no large frames does not need it

        count, over = divmod(len(ticket) - _TICKET.size, _LENGTH_BYTES)
        if count < 1 or over:
            raise RemoteProtocolError(f"{len(ticket)} bytes are not a ticket for shared memory")
        pid, descriptor, inode, size = _TICKET.unpack_from(ticket)
        lengths = struct.unpack_from(f"<{count}Q", ticket, _TICKET.size)
        whole = sum(map(_aligned, lengths))
        if _FRAMES_AT + whole > size:
            raise RemoteProtocolError(f"frames of {whole} bytes are not in a segment of {size}")
        self._uses += 1
        if not self._uses % _IDLE_USES:
            self._forget_retired()
        memory = self._memory.get((descriptor, inode))
        if memory is None or len(memory) != size:
            memory = self._map(pid, descriptor, inode, size)
        content = np.frombuffer(memory, np.uint8, whole, _FRAMES_AT)
        # The memory must not be unmapped before the frames are gone; the callback keeps it mapped until then.
        lent = weakref.finalize(content, _give_back, memory, os.getpid(), _forks[0])
        lent.atexit = False
        self._lent[descriptor, inode] = lent
        view, frames, at = content.data, [], 0
        for length in lengths:
            frames.append(view[at : at + length])
            at += _aligned(length)
        return frames

    def discard(self, ticket: Buffer) -> None:
        """Free the segment of a ticket whose frames are not read, as far as there is a descriptor for that.

        Args:
            ticket: The ticket; the lengths of its frames may be cut off.
        """
        with contextlib.suppress(MemoryGone, OSError, struct.error):
            ours = _shared_memory.open_at(MemoryAddress(*_TICKET.unpack_from(ticket)), _NAME, writable=True)
            try:
                _free(ours)
            finally:
                os.close(ours)

    def close(self) -> None:
        """Drop all mappings, and keep no more; frames that are in use keep theirs. Callable beside `open`."""
        self._closed = True
        self._take_back()
        self._memory, self._lent = {}, {}

    def _map(self, pid: int, descriptor: int, inode: int, size: int) -> mmap.mmap:
        self._take_back()
        self._forget_retired()
        try:
            ours = _shared_memory.open_at(MemoryAddress(pid, descriptor, inode, size), _NAME, writable=True)
        except (MemoryGone, OSError) as error:
            if is_shortage(error):
                raise
            raise ChannelClosed(f"a large frame cannot be read: {error}") from error
        try:
            memory = mmap.mmap(ours, size, _POPULATED)
        except (ValueError, OverflowError) as error:
            raise RemoteProtocolError(f"a ticket for a segment of {size} bytes: {error}") from error
        except OSError:  # no memory
            _free(ours)
            raise
        finally:
            os.close(ours)
        self._memory[descriptor, inode] = memory
        if self._closed:
            self._memory = {}
        return memory

    def _take_back(self) -> None:
        """Free the segments whose frames are gone; a signal's handler that raises may have ended their finalizers."""
        for lent in list(self._lent.values()):
            if lent.alive and lent.peek() is None:
                lent()

    def _forget_retired(self) -> None:
        self._memory = {key: memory for key, memory in self._memory.items() if memory[0] != _RETIRED}
        self._lent = {key: lent for key, lent in self._lent.items() if lent.alive}


_forks = [0]  # how often this process was forked


def _note_fork() -> None:
    _forks[0] += 1


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(before=_note_fork)


def _free(descriptor: int) -> None:
    """Release a segment that is not mapped here for a message."""
    os.pwrite(descriptor, bytes((_FREE,)), 0)


def _give_back(memory: mmap.mmap, pid: int, forks: int) -> None:
    """Release a segment once its frames' last user is gone; not in a forked copy of the process."""
    if os.getpid() == pid:
        memory[0] = _FREE if forks == _forks[0] else _RETIRED


TICKETS = int(Flag.TICKETS)
_FLAGS_AT = 1  # offset in the header, see `call_messages`
_HEADER_TICKET_AND_MARKS = 3  # frames


class Sharing:
    """Shared memory for the large frames of one connection, in both directions."""

    def __init__(self) -> None:
        self._segments = Segments()
        self._mappings = Mappings()

    def to_shared_memory(self, frames: list[Buffer]) -> list[Buffer]:
        """Replace large frames by a ticket, and smaller ones where they are large together.

        If there is no memory for them the message stays as it is.
        """
        sizes = list(map(len, frames[1:]))
        small = sum(size for size in sizes if size < LARGE)
        least = 1 if small >= LARGE else LARGE  # a small frame that is kept would keep a large one's memory
        marks = bytes(size >= least for size in sizes)
        if 1 not in marks:
            return frames
        ticket = self._segments.place([frame for frame, marked in zip(frames[1:], marks, strict=True) if marked])
        if ticket is None:
            return frames
        header = bytearray(frames[0])
        header[_FLAGS_AT] |= TICKETS
        rest = [frame for frame, marked in zip(frames[1:], marks, strict=True) if not marked]
        return [bytes(header), *rest, ticket, marks]

    def take_back(self, frames: Sequence[Buffer]) -> None:
        """Free the memory of a message of `to_shared_memory` that was not sent."""
        if frames[0][_FLAGS_AT] & TICKETS:
            self._segments.take_back(frames[-2])

    def discard(self, message: Sequence[memoryview]) -> None:
        """Free the memory of a received message that is not read, and whose frames may be cut."""
        if message[0][_FLAGS_AT] & TICKETS and len(message) >= _HEADER_TICKET_AND_MARKS:
            self._mappings.discard(message[-2])

    def from_shared_memory(self, frames: Sequence[memoryview]) -> list[memoryview]:
        """Return the original frames. Every message with `TICKETS` is passed here or to `discard`, to free its memory.

        Raises:
            ChannelClosed: The sender is gone, and the frames with it.
            RemoteProtocolError: The message is malformed.
        """
        if len(frames) < _HEADER_TICKET_AND_MARKS:
            raise RemoteProtocolError("a message in shared memory has a ticket and marks")
        header, *sent, ticket, marks = frames
        placed = self._mappings.open(ticket)
        if len(marks) != len(sent) + len(placed) or sum(map(bool, marks)) != len(placed):
            raise RemoteProtocolError(f"marks for {len(marks)} frames, and there are {len(sent)} and {len(placed)}")
        from_segment, from_socket = iter(placed), iter(sent)
        return [header, *(next(from_segment if marked else from_socket) for marked in bytes(marks))]

    def close(self) -> None:
        """Drop the memory; the receiver keeps the frames that it has."""
        self._segments.close()
        self._mappings.close()
