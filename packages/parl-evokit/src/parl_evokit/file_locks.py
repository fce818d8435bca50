"""The system's own locks on open files and directories; they end with the process that holds them."""

import os
import sys
from pathlib import Path

__all__ = ["is_same_file", "open_directory", "try_lock"]


def try_lock(descriptor: int) -> bool:
    """Lock an open file or directory; False while another open of it has the lock.

    Raises:
        OSError: This file system has no locks, or none on directories.
    """
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_directory(path: Path) -> int:
    """A descriptor of a directory, to be locked.

    Raises:
        OSError: There is none, or this system cannot open directories.
    """
    return os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether the path still leads to the open file."""
    try:
        found, here = os.fstat(descriptor), os.stat(path)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (here.st_dev, here.st_ino)
