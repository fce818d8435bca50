"""Anonymous shared memory between processes of one host: creation, look-up by descriptor, writing and mapping.

    owner    create(name, bytes) --> a descriptor --address_of()--> MemoryAddress, small, sent in messages
             fill(descriptor, ...) with system calls, or copy_into(mapping, ...)
    reader   open_at(address, name) --> a descriptor of its own, of exactly that file

A file has no name in any directory (memfd), so nothing can be left behind: the kernel frees the memory when the last
process that has it open or mapped ends in any way. Callers of this module decide who may write when, and how an owner
learns that no readers are left (decision 15).
"""

import errno
import mmap
import os
import sys
from typing import NamedTuple, TypeAlias

__all__ = [
    "MemoryAddress",
    "MemoryGone",
    "address_of",
    "copy_into",
    "create",
    "fill",
    "has_shared_memory",
    "open_at",
    "whole_size",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

_GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM})
_WRITE_AT_ONCE = 2**30  # the kernel accepts a little less than 2 GiB
_SMALLEST_STEP = 12  # bits of a page size
_NUMPYS_FROM = 2**18  # bytes; a shorter copy ends before other threads could do much


class MemoryGone(Exception):
    """The process with the memory has ended, is not visible from here, or has another file with that descriptor."""


class MemoryAddress(NamedTuple):
    """An address by which other processes of this host find memory, as long as its process has it open.

    Attributes:
        pid: A process that has the file open.
        descriptor: The descriptor in that process.
        inode: The file's inode, to detect that both numbers have been reused.
        size: Bytes of the file.
    """

    pid: int
    descriptor: int
    inode: int
    size: int


def has_shared_memory() -> bool:
    """Return whether this system has anonymous files that other processes can open."""
    return hasattr(os, "memfd_create") and os.path.isdir(f"/proc/{os.getpid()}/fd")


def whole_size(needed: int) -> int:
    """Return `needed` rounded up by at most a quarter, so that similar sizes become equal."""
    step = 1 << max(_SMALLEST_STEP, needed.bit_length() - 3)
    return -(-needed // step) * step


def create(name: str, size: int) -> int:
    """Create a file of zeros, and return its descriptor.

    Args:
        name: The name shown in /proc and requested by `open_at`.
        size: Its size in bytes.

    Raises:
        OSError: There is no memory or no descriptor left.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def address_of(descriptor: int) -> MemoryAddress:
    """Return the address under which other processes find a file that this one has open."""
    found = os.fstat(descriptor)
    return MemoryAddress(os.getpid(), descriptor, found.st_ino, found.st_size)


def open_at(address: MemoryAddress, name: str, *, writable: bool = False) -> int:
    """Open another process's file; return a descriptor of this process.

    Args:
        address: Its location.
        name: The name that it was created with.
        writable: True to write to it.

    Raises:
        MemoryGone: Its process has ended, is not visible, or has another file there.
        OSError: It cannot be opened; for example, no descriptors are left.
    """
    path = f"/proc/{address.pid}/fd/{address.descriptor}"
    try:
        if not os.readlink(path).startswith(f"/memfd:{name} "):
            raise MemoryGone(f"process {address.pid}, which held it, has ended, and another process has its id")
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        raise MemoryGone(f"process {address.pid}, which held it, has ended: {error.strerror}") from error
    found = os.fstat(descriptor)
    if (found.st_ino, found.st_size) != (address.inode, address.size):
        os.close(descriptor)
        raise MemoryGone(f"process {address.pid}, which held it, has ended, and another process has its id")
    return descriptor


def fill(descriptor: int, data: Buffer, at: int) -> None:
    """Write with system calls, for new memory, because the kernel need not clear its pages first.

    Raises:
        OSError: There is no memory left.
    """
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done : done + _WRITE_AT_ONCE], at + done)


def copy_into(memory: mmap.mmap, data: Buffer, at: int) -> None:
    """Copy into mapped memory, for memory that was used before; ten times as fast as fresh pages."""
    view = memoryview(data).cast("B")
    numpy = sys.modules.get("numpy")  # its copy releases the GIL; a process without numpy does not need that
    if numpy is None or len(view) < _NUMPYS_FROM:
        memory[at : at + len(view)] = view
    else:
        with memoryview(memory)[at : at + len(view)] as place:
            numpy.copyto(numpy.frombuffer(place, numpy.uint8), numpy.frombuffer(view, numpy.uint8))
