"""Large frames on their way between two processes of one host, through shared memory.

    Sharing   stow    [header, frame, LARGE FRAME, ...]  -->  [header with Flag.TICKETS, frame, ticket, ..., marks]
              unstow  the way back; marks has one byte for each frame after the first: 1 where it is a ticket

    sender    Segments.place(frame) --> a ticket, which goes through the socket in the frame's stead
    receiver  Mappings.open(ticket) --> a view of the same memory, without a copy
              when its last user lets the view go, the state byte says FREE, and the sender uses the segment again

    segment   offset 0     state: FREE, BUSY, RETIRED
              offset 4096  the frame

The caller finds out whether memory can be shared and says so with Flag.SHARES when it has the object made. A segment
is a file of `parl_core.shared_memory`. Fresh pages cost more than the copy, so segments are kept: a new one is written
with a system call, which need not clear the pages first, and mapped by the sender only when it is used again. What does
not fit, for number or size, takes the way through the socket.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from parl_core import shared_memory
from parl_core.shared_memory import MemoryAddress, MemoryGone
from parl_remote._links.call_messages import Flag
from parl_remote._transport import Buffer, Channel
from parl_remote.errors import ChannelClosed, RemoteProtocolError

__all__ = ["LARGE", "TICKETS", "Mappings", "Segments", "Sharing", "can_share"]


LARGE = 2**17  # below it one copy more is cheaper than two more system calls

_FREE, _BUSY, _RETIRED = 0, 1, 2
_NAME = "parl"  # what /proc shows; no name in any directory
_FRAME_AT = 4096
_TICKET = struct.Struct("<IIQQQ")  # sender's pid, its descriptor, inode, bytes of the file, bytes of the frame
# A fault for each page would cost more than the copy. Other systems than Linux have no such flag, and no segments.
_POPULATED = getattr(mmap, "MAP_SHARED", 0) | getattr(mmap, "MAP_POPULATE", 0)
_MOST_SEGMENTS = 16  # of one connection and direction: each is a descriptor at both ends, and there may be 100 actors
_MOST_BYTES = 2**30  # frames beyond this, for a receiver that keeps them all, are copied through the socket
_IDLE_USES = 64  # a segment that was not used for this many frames is dropped


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
    memory: mmap.mmap | None = None

    @property
    def capacity(self) -> int:
        return self.size - _FRAME_AT

    def state(self) -> int:
        return self.memory[0] if self.memory is not None else os.pread(self.descriptor, 1, 0)[0]

    def set_state(self, state: int) -> None:
        os.pwrite(self.descriptor, bytes((state,)), 0)

    def write(self, frame: memoryview) -> None:
        """Write a frame into the segment; raise `OSError` if no memory is left."""
        if self.last_use and self.memory is None:
            self.memory = mmap.mmap(self.descriptor, self.size, _POPULATED)
        if self.memory is not None:
            shared_memory.copy_into(self.memory, frame, _FRAME_AT)
        else:
            shared_memory.fill(self.descriptor, frame, _FRAME_AT)

    def drop(self) -> None:
        self.set_state(_RETIRED)
        self.memory = None
        os.close(self.descriptor)


class Segments:
    """The sender's end of one connection; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._segments: list[_Segment] = []
        self._uses = 0
        self._closed = False

    def place(self, frame: Buffer) -> bytes | None:
        """Copy a frame into a segment.

        Returns:
            The ticket for `Mappings.open`; None if the limits are reached, and the frame has to be sent another way.
        """
        view = memoryview(frame).cast("B")
        with self._lock:
            # A forked copy's descriptors are not seen by the receiver; what is placed after the end nobody would drop.
            if os.getpid() != self._pid or self._closed:
                return None
            self._uses += 1
            try:
                segment = self._find(len(view)) or self._make(len(view))
                if segment is None:
                    return None
                segment.write(view)
                segment.set_state(_BUSY)
            except OSError:  # no memory or no descriptors left
                return None
            segment.last_use = self._uses
            return _TICKET.pack(self._pid, segment.descriptor, segment.inode, segment.size, len(view))

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
        whole = _FRAME_AT + shared_memory.whole_size(size)
        if not self._make_room(whole):
            return None
        descriptor = shared_memory.create(_NAME, whole)
        segment = _Segment(descriptor, shared_memory.address_of(descriptor).inode, whole)
        self._segments.append(segment)
        return segment

    def _make_room(self, size: int) -> bool:
        """Return whether one more segment is within the limits, after dropping free ones that did not fit."""
        free = sorted((s for s in self._segments if s.state() == _FREE), key=lambda s: s.last_use, reverse=True)
        while len(self._segments) >= _MOST_SEGMENTS or size + sum(s.size for s in self._segments) > _MOST_BYTES:
            if not free:
                return False
            oldest = free.pop()
            self._segments.remove(oldest)
            oldest.drop()
        return True


class Mappings:
    """The receiver's end of one connection; used by one thread at a time, views may end in any thread."""

    def __init__(self) -> None:
        self._memory: dict[tuple[int, int], mmap.mmap] = {}
        self._uses = 0

    def open(self, ticket: Buffer) -> memoryview:
        """Return the frame of a ticket, writable; the segment is free again once nothing refers to it.

        Raises:
            ChannelClosed: The sender is gone, and the frame with it.
            RemoteProtocolError: The bytes are no valid ticket.
        """
        import numpy as np  # here, because a process that gets no large frames does not need it

        if len(ticket) != _TICKET.size:
            raise RemoteProtocolError(f"a ticket for shared memory has {_TICKET.size} bytes, not {len(ticket)}")
        pid, descriptor, inode, size, length = _TICKET.unpack(ticket)
        self._uses += 1
        if not self._uses % _IDLE_USES:
            self._forget_retired()
        memory = self._memory.get((descriptor, inode))
        if memory is None or len(memory) != size:
            memory = self._map(pid, descriptor, inode, size)
        if _FRAME_AT + length > size:
            raise RemoteProtocolError(f"a frame of {length} bytes is not in a segment of {size}")
        frame = np.frombuffer(memory, np.uint8, length, _FRAME_AT)
        # The memory must not be unmapped before the frame is gone; the callback sees to both.
        weakref.finalize(frame, _give_back, memory, os.getpid()).atexit = False
        return frame.data

    def close(self) -> None:
        """Drop all mappings; frames that are in use keep theirs."""
        self._memory = {}

    def _map(self, pid: int, descriptor: int, inode: int, size: int) -> mmap.mmap:
        self._forget_retired()
        try:
            ours = shared_memory.open_at(MemoryAddress(pid, descriptor, inode, size), _NAME, writable=True)
        except (MemoryGone, OSError) as error:
            raise ChannelClosed(f"a large frame cannot be read: {error}") from error
        try:
            memory = mmap.mmap(ours, size, _POPULATED)
        except (ValueError, OverflowError) as error:
            raise RemoteProtocolError(f"a ticket for a segment of {size} bytes: {error}") from error
        finally:
            os.close(ours)
        self._memory[descriptor, inode] = memory
        return memory

    def _forget_retired(self) -> None:
        self._memory = {key: memory for key, memory in self._memory.items() if memory[0] != _RETIRED}


def _give_back(memory: mmap.mmap, pid: int) -> None:
    """Mark a segment as free once its frame's last user is gone; not in a forked copy of the process."""
    if os.getpid() == pid:
        memory[0] = _FREE


TICKETS = int(Flag.TICKETS)
_FLAGS_AT = 1  # of the header, see `call_messages`
_HEADER_AND_MARKS = 2  # frames


class Sharing:
    """Shared memory for the large frames of one connection, in both directions."""

    def __init__(self) -> None:
        self._segments = Segments()
        self._mappings = Mappings()

    @classmethod
    def through(cls, channel: Channel) -> Sharing | None:
        """Return the sharing with a channel's peer; None if it cannot see this process's memory."""
        return cls() if can_share(getattr(channel, "peer_pid", 0)) else None  # which channels on one host have

    def stow(self, frames: list[Buffer]) -> list[Buffer]:
        """Replace large frames by tickets; those for which there is no memory stay in the message."""
        stowed: list[Buffer] = []
        marks = bytearray()
        for frame in frames[1:]:
            ticket = self._segments.place(frame) if len(frame) >= LARGE else None
            stowed.append(frame if ticket is None else ticket)
            marks.append(ticket is not None)
        if 1 not in marks:
            return frames
        header = bytearray(frames[0])
        header[_FLAGS_AT] |= TICKETS
        return [bytes(header), *stowed, bytes(marks)]

    def unstow(self, frames: Sequence[memoryview]) -> list[memoryview]:
        """Return the original frames. Every message with `TICKETS` must be passed here, or its memory stays in use.

        Raises:
            ChannelClosed: The sender is gone, and the frames with it.
            RemoteProtocolError: The message is malformed.
        """
        if len(frames) < _HEADER_AND_MARKS:
            raise RemoteProtocolError("a message with tickets has marks for them")
        header, *rest, marks = frames
        if len(marks) != len(rest):
            raise RemoteProtocolError(f"a message of {len(rest)} frames has marks for {len(marks)}")
        opened = [
            self._mappings.open(frame) if marked else frame for frame, marked in zip(rest, bytes(marks), strict=True)
        ]
        return [header, *opened]

    def close(self) -> None:
        """Drop the memory; the receiver keeps the frames that it has."""
        self._segments.close()
        self._mappings.close()
