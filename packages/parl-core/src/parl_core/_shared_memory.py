"""Anonymous memory that processes of one host share: made, found by its descriptor, filled and mapped.

    owner    create(name, bytes) --> a descriptor --address_of()--> MemoryAddress, small, sent in messages
             fill(descriptor, ...) with system calls, or copy_into(mapping, ...)
    reader   open_at(address, name) --> a descriptor of its own, of exactly that file

A file has no name in any directory (memfd), so nothing can be left behind: the kernel frees the memory with the last
process that has it open or mapped, however that process ends. This module does not decide who may write when, or how an
owner learns that no readers are left; its callers do (decision 15).
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
_WRITE_AT_ONCE = 2**30  # the kernel takes a little less than 2 GiB
_SMALLEST_STEP = 12  # bits: a page
_NUMPYS_FROM = 2**18  # bytes; a copy that is shorter ends before other threads could do much


class MemoryGone(Exception):
    """The process that held the memory has ended, cannot be seen from here, or has another file at that number."""


class MemoryAddress(NamedTuple):
    """An address by which other processes of this host find memory, as long as its process has it open.

    Attributes:
        pid: A process that has the file open.
        descriptor: Its number there.
        inode: The file's, to notice that both numbers have been used again.
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
    """Return `needed` rounded up by at most a quarter, so that sizes that vary a little are alike."""
    step = 1 << max(_SMALLEST_STEP, needed.bit_length() - 3)
    return -(-needed // step) * step


def create(name: str, size: int) -> int:
    """Make a file of zeros; return its descriptor.

    Args:
        name: The name shown in /proc and requested by `open_at`.
        size: Its bytes.

    Raises:
        OSError: There is no memory, or there are no descriptors left.
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
        writable: Whether it will be written to.

    Raises:
        MemoryGone: Its process is gone, cannot be seen, or has something else there.
        OSError: No descriptors are left here, for example.
    """
    path = f"/proc/{address.pid}/fd/{address.descriptor}"
    try:
        if not os.readlink(path).startswith(f"/memfd:{name} "):
            raise MemoryGone(f"process {address.pid}, which held it, is gone, and another has its number")
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        raise MemoryGone(f"process {address.pid}, which held it, is gone: {error.strerror}") from error
    found = os.fstat(descriptor)
    if (found.st_ino, found.st_size) != (address.inode, address.size):
        os.close(descriptor)
        raise MemoryGone(f"process {address.pid}, which held it, is gone, and another has its number")
    return descriptor


def fill(descriptor: int, data: Buffer, at: int) -> None:
    """Write with system calls: for memory that is new, because the kernel need not clear its pages first.

    Raises:
        OSError: There is no memory left.
    """
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done : done + _WRITE_AT_ONCE], at + done)


def copy_into(memory: mmap.mmap, data: Buffer, at: int) -> None:
    """Copy into memory that is mapped: for memory that was used before; ten times as fast as fresh pages."""
    view = memoryview(data).cast("B")
    numpy = sys.modules.get("numpy")  # its copy lets other threads run; a process without it does not need that
    if numpy is None or len(view) < _NUMPYS_FROM:
        memory[at : at + len(view)] = view
    else:
        with memoryview(memory)[at : at + len(view)] as place:
            numpy.copyto(numpy.frombuffer(place, numpy.uint8), numpy.frombuffer(view, numpy.uint8))
