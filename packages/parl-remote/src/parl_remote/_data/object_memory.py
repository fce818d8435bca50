"""Shared memory of values stored by `put`: written once, read by any process of this host, freed by the kernel.

    owner    MemoryPool.store(frames) --> Memory --place()--> (pid, descriptor, inode, size, serial), sent in messages
    reader   read(place) --> views without a copy, read-only; unmapped with the last array that uses them

    file     serial number, number of frames, length and kind of each; the frames, each at a multiple of 64 bytes

The files are those of `parl_core._shared_memory`. Each reader opens one anew and holds a shared lock on it for as long
as it is mapped. The kernel releases mapping and lock when the last array goes, and also when the process is killed: an
owner that gets the exclusive lock has no readers, and may reuse the memory, because fresh pages cost
ten times what the copy does. Memory that is not reused is freed after a second.

A value that is not in shared memory of this process's host is looked up in the context of the actor or connection that
unpickles its reference:

    find_sent(id)  a worker that was sent a copy notes its address in the node's private directory, as a link that
                   points nowhere: its text is the address. Actors look there
    sender()       the sender of the message that this thread is reading, if on another host: it can be asked
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import select
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from parl_core import _shared_memory
from parl_core._shared_memory import MemoryAddress, MemoryGone
from parl_remote._transport import Buffer

__all__ = [
    "FrameKind",
    "Memory",
    "MemoryGone",
    "MemoryPool",
    "Source",
    "ValueAddress",
    "adopt",
    "find_sent",
    "forget_note",
    "has_directory",
    "is_id",
    "note",
    "read",
    "read_image",
    "reading_from",
    "sender",
    "set_directory",
]


with contextlib.suppress(ImportError):  # missing on Windows, where values travel in their references
    import fcntl


_NAME = "parl-object"  # the name in /proc; the file has no name in any directory
_ALIGNMENT = 64  # a cache line, and more than the alignment of any element type
_SERIAL = struct.Struct("<Q")  # the number of the value among those that the file has held
_HEAD = struct.Struct("<QQ")  # that number, and the number of frames
_ENTRY = struct.Struct("<QQ")  # length, kind
_KEPT_S = 1.0  # longer than the time between two broadcasts of a training loop
_MOST_KEPT = 2**28  # bytes that may idle


class FrameKind:
    """The permitted use of a frame: READ_ONLY, or OWN_COPY if writes must work and stay within the process."""

    READ_ONLY = 0
    OWN_COPY = 1


class ValueAddress(NamedTuple):
    """The address of a value, for processes of this host.

    Attributes:
        pid: The id of a process that has the file open.
        descriptor: The descriptor in that process.
        inode: The file's inode, to detect that pid and descriptor were reused.
        size: The file's size in bytes.
        serial: The serial number of the value in the file.
    """

    pid: int
    descriptor: int
    inode: int
    size: int
    serial: int

    @property
    def address(self) -> MemoryAddress:
        """The file, whatever value it holds."""
        return MemoryAddress(self.pid, self.descriptor, self.inode, self.size)


@dataclass(slots=True, eq=False)
class Memory:
    """An anonymous file that this process has open; its owner writes it, a borrower holds it.

    Attributes:
        file: Has the descriptor, and closes it with the last reference to this memory; see `_file_of`.
        inode: The file's inode.
        size: The file's size in bytes.
        serial: The serial number of the value in the file.
        mapped: The mapping through which the owner writes; None for new memory.
    """

    file: select.epoll
    inode: int
    size: int
    serial: int = 0
    mapped: mmap.mmap | None = None

    def place(self) -> ValueAddress:
        """Return the location for other processes, valid while this process has the file open."""
        return ValueAddress(os.getpid(), self.file.fileno(), self.inode, self.size, self.serial)

    def seize(self) -> bool:
        """Lock the memory exclusively if no process has it mapped or holds it; `write` readmits readers."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def write(self, parts: Sequence[tuple[int, Buffer]]) -> None:
        """Write another value; its serial number is not among the parts.

        Raises:
            OSError: No memory is left.
        """
        self.serial += 1
        self._put(_SERIAL.pack(self.serial), 0)
        for at, part in parts:
            self._put(part, at)
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def _put(self, frame: Buffer, at: int) -> None:
        if self.mapped is None:
            _shared_memory.fill(self.file.fileno(), frame, at)
        else:
            _shared_memory.copy_into(self.mapped, frame, at)

    def close(self) -> None:
        """Close the file; readers keep their mappings."""
        self.mapped = None
        self.file.close()


def _file_of(descriptor: int) -> select.epoll:
    """Return an object that closes a descriptor at its own end.

    `epoll` takes any file, and closes it in C: a finalizer in Python can be ended by the handler of a signal.
    """
    return select.epoll.fromfd(descriptor)


def read(place: ValueAddress) -> tuple[list[memoryview], list[int]]:
    """Return the frames of a value, without a copy, and their kinds.

    Raises:
        MemoryGone: The process that held it is gone.
    """
    with _open(place) as file:
        shared = mmap.mmap(file.fileno(), place.size, mmap.MAP_SHARED, mmap.PROT_READ)
        entries, at = _table(shared)
        own: mmap.mmap | None = None
        if any(kind == FrameKind.OWN_COPY for _, kind in entries):  # a page is copied when it is written to
            own = mmap.mmap(file.fileno(), place.size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    frames = []
    for length, kind in entries:
        memory = own if own is not None and kind == FrameKind.OWN_COPY else shared
        frames.append(memoryview(memory)[at : at + length])
        at = _aligned(at + length)
    return frames, [kind for _, kind in entries]


def read_image(place: ValueAddress) -> memoryview:
    """Return the memory image of a value, to be stored elsewhere with `MemoryPool.store_image`.

    Raises:
        MemoryGone: The process that held it is gone.
    """
    with _open(place) as file:
        memory = mmap.mmap(file.fileno(), place.size, mmap.MAP_SHARED, mmap.PROT_READ)
    entries, at = _table(memory)
    for length, _ in entries:
        at = _aligned(at + length)
    return memoryview(memory)[_SERIAL.size : at]


def adopt(place: ValueAddress) -> Memory:
    """Hold another process's memory, so that it stays when that process releases it.

    Raises:
        MemoryGone: That process is gone.
    """
    return Memory(_open(place), place.inode, place.size, place.serial)


def _open(place: ValueAddress) -> select.epoll:
    """Open the file for this process, with a shared lock."""
    file = _file_of(_shared_memory.open_at(place.address, _NAME))
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise MemoryGone(f"process {place.pid} has freed it") from error
    if _HEAD.unpack(os.pread(file.fileno(), _HEAD.size, 0))[0] != place.serial:
        raise MemoryGone(f"process {place.pid} has freed it")
    return file


def _table(memory: mmap.mmap) -> tuple[list[tuple[int, int]], int]:
    """Return the length and kind of each frame, and the offset of the first one.

    Raises:
        MemoryGone: The memory holds no value: a peer sent an invalid one.
    """
    count = _HEAD.unpack_from(memory)[1]
    first = _aligned(_HEAD.size + _ENTRY.size * count)
    if first <= len(memory):
        entries = [_ENTRY.unpack_from(memory, _HEAD.size + i * _ENTRY.size) for i in range(count)]
        if first + sum(_aligned(length) for length, _ in entries) <= len(memory):
            return entries, first
    raise MemoryGone(f"these {len(memory)} bytes do not hold a stored value")


def _layout(frames: Sequence[Buffer], kinds: Sequence[int]) -> tuple[list[tuple[int, Buffer]], int]:
    """Return the parts with their offsets, and the total size in bytes."""
    table = _HEAD.pack(0, len(frames)) + b"".join(map(_ENTRY.pack, map(len, frames), kinds))
    parts: list[tuple[int, Buffer]] = [(_SERIAL.size, table[_SERIAL.size :])]
    at = _aligned(len(table))
    for frame in frames:
        parts.append((at, frame))
        at = _aligned(at + len(frame))
    return parts, at


def _aligned(at: int) -> int:
    return -(-at // _ALIGNMENT) * _ALIGNMENT


class MemoryPool:
    """The shared memory that a process has stored; thread-safe.

    Args:
        on_first: Called once, in `store`, before there can be anything to `tidy`.
    """

    def __init__(self, on_first: Callable[[MemoryPool], None]) -> None:
        self._at_first = on_first
        self.begin()

    def begin(self) -> None:
        """Begin without memory; also in the child of a fork, which closes the parent's with its own references."""
        self._lock = threading.RLock()
        self._lent: dict[int, tuple[Memory, tuple[weakref.ref[object], ...]]] = {}  # by the identity of the first
        # Both are filled when a holder ends, at any point, even within their own methods: they are re-entrant. The
        # second only wakes the waiting thread: from Python 3.14 on it hands over before that thread has its turn.
        self._ended: deque[weakref.ref[object]] = deque()
        self._wakes: queue.SimpleQueue[weakref.ref[object]] = queue.SimpleQueue()
        self._idle: list[tuple[float, Memory]] = []
        self._on_first: Callable[[MemoryPool], None] | None = self._at_first

    def store(self, frames: Sequence[Buffer], kinds: Sequence[int]) -> Memory:
        """Write frames into memory, reused if some fits.

        Raises:
            OSError: There is no memory or no descriptor left.
        """
        return self._fill(*_layout(frames, kinds))

    def store_image(self, image: Buffer) -> Memory:
        """Write an image returned by `read_image` elsewhere.

        Raises:
            OSError: There is no memory or no descriptor left.
        """
        return self._fill([(_SERIAL.size, image)], _SERIAL.size + len(image))

    def _fill(self, parts: Sequence[tuple[int, Buffer]], needed: int) -> Memory:
        is_nested = self._lock._is_owned()  # type: ignore[attr-defined]  # by a finalizer or a signal handler
        with self._lock:
            on_first, self._on_first = self._on_first, None
            self._collect()
            memory = None if is_nested else self._find(needed)
        if on_first is not None:
            on_first(self)
        memory = memory or _new(needed)
        try:
            memory.write(parts)
        except BaseException:
            memory.close()
            raise
        return memory

    def lend(self, memory: Memory, holder: object) -> None:
        """Return memory at the end of its holder."""
        # Python calls both in C, the last one first, so no signal handler runs before the end is noted.
        wakes = weakref.ref(holder, self._wakes.put)
        use = weakref.ref(holder, self._ended.append)
        self._lent[id(use)] = memory, (use, wakes)

    def give_back(self, memory: Memory) -> None:
        """Return memory that this process does not refer to any more."""
        with self._lock:
            self._idle.append((time.monotonic(), memory))

    def wait(self) -> None:
        """Wait until the holder of memory ends, and take it back."""
        self._wakes.get()
        with self._lock:
            self._collect()

    def tidy(self) -> bool:
        """Free memory that has idled for a second, except for its remaining readers; return whether more idles.

        To be called every half second while it returns True.
        """
        with self._lock:
            self._collect()
            before = time.monotonic() - _KEPT_S
            kept = sum(memory.size for _, memory in self._idle)
            while self._idle and (self._idle[0][0] <= before or kept > _MOST_KEPT):
                memory = self._idle.pop(0)[1]
                kept -= memory.size
                memory.close()
            return bool(self._idle)

    def _collect(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self.give_back(self._lent.pop(id(self._ended.popleft()))[0])

    def _find(self, needed: int) -> Memory | None:
        """Return memory that fits and has no readers, exclusively locked, or None."""
        fitting = [entry for entry in self._idle if needed <= entry[1].size <= 2 * needed]
        for entry in sorted(fitting, key=lambda entry: entry[1].size):
            memory = entry[1]
            if memory.seize():
                self._idle.remove(entry)
                if memory.mapped is None:
                    memory.mapped = mmap.mmap(memory.file.fileno(), memory.size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
                return memory
        return None


def _new(needed: int) -> Memory:
    descriptor = _shared_memory.create(_NAME, _shared_memory.whole_size(needed))
    address = _shared_memory.address_of(descriptor)
    return Memory(_file_of(descriptor), address.inode, address.size)


_LONGEST_ID = 100


class Reference(Protocol):
    """A reference to a value, see `object_ref.ObjectRef`."""

    id: str


class Source(Protocol):
    """A node with values that this process cannot map."""

    def hold(self, ref: Reference, place: ValueAddress) -> None:
        """Make the node keep a value of one of its processes for the lifetime of the reference."""

    def fetch(self, object_id: str, timeout_s: float | None) -> memoryview:
        """Return the value's image.

        Raises:
            ObjectLost: The node does not have it any more.
            ResultTimeout: The node did not answer in time.
        """


class _PerThread(threading.local):
    directory: Path | None = None  # the same for all threads: set on the class
    sender: Source | None = None


_here = _PerThread()


def set_directory(socket_directory: str) -> None:
    """Set the directory in which to look for values sent to the node; called once in an actor's process."""
    _PerThread.directory = Path(socket_directory)


def has_directory() -> bool:
    """Return whether `set_directory` was called, here or before the fork that made this process."""
    return _PerThread.directory is not None


def find_sent(object_id: str) -> ValueAddress | None:
    """Return the location of a value that was sent to this node's worker, or None."""
    if _here.directory is None:
        return None

    try:
        text = os.readlink(_note_of(_here.directory, object_id))
        return ValueAddress(*map(int, text.split(":")))
    except (OSError, ValueError, TypeError):
        return None


def note(socket_directory: Path, object_id: str, place: ValueAddress) -> None:
    """Record the location of a value that was sent to the worker.

    Raises:
        OSError: The directory cannot be written to.
    """
    os.symlink(":".join(map(str, place)), _note_of(socket_directory, object_id))


def forget_note(socket_directory: Path, object_id: str) -> None:
    """Remove the record of a value."""
    with contextlib.suppress(OSError):
        os.unlink(_note_of(socket_directory, object_id))


def is_id(text: str) -> bool:
    """Return whether this can be the id of a value, and so part of a file's name."""
    return len(text) <= _LONGEST_ID and text.isascii() and text.replace("-", "").isalnum()


def _note_of(socket_directory: Path, object_id: str) -> Path:
    if not is_id(object_id):
        raise ValueError(f"{object_id!r} is not an id of a value")
    return socket_directory / f"{object_id}.at"


@contextlib.contextmanager
def reading_from(source: Source | None) -> Iterator[None]:
    """Set the source of the message that this thread reads within the block; None for one on this host."""
    before, _here.sender = _here.sender, source
    try:
        yield
    finally:
        _here.sender = before


def sender() -> Source | None:
    """Return the source of the message that this thread reads, None if it is on this host."""
    return _here.sender
