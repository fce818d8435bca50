"""Locks on files and directories; the system ends them with the process that holds them.

`update_lock` admits one update at a time to a directory D by a lock beside it:

    D.lock     {"pid": ..., "host": ..., "since": ...}   the holder, for those that wait

What counts is the system's lock on that file (flock), which ends with the process, `kill -9` included; that the file is
there means nothing. Its holder removes it at the end, while it still holds the lock.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import gethostname

from parl_evokit.errors import StorageError, UpdateLocked

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["is_same_file", "open_directory", "try_lock", "update_lock"]

PAUSE_S = 0.05  # flock cannot wait for a given time, so it is asked again and again; short beside any update


@contextlib.contextmanager
def update_lock(
    directory: str | os.PathLike[str], wait_s: float = 0.0, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the update lock of a directory within the block.

    Not reentrant: a second lock of one directory in one process waits for the first, as that of another process does.

    Args:
        directory: What is updated; it need not exist.
        wait_s: How long to wait for another holder, in seconds.
        waiting: Called once, with who holds it, before waiting.

    Raises:
        UpdateLocked: Another still holds it after `wait_s`; says who, where and since when.
        StorageError: The lock's file cannot be made.
    """
    target = Path(os.path.realpath(directory))
    path = target.with_name(target.name + ".lock")
    descriptor = _acquire(path, target, wait_s, waiting)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it may be gone with its directory
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path, target: Path, wait_s: float, waiting: Callable[[str], None] | None) -> int:
    deadline = time.monotonic() + wait_s
    while True:
        descriptor = _try(path)
        if descriptor is not None:
            return descriptor
        holder = _holder(path)
        if time.monotonic() >= deadline:
            raise UpdateLocked(
                f"{target} is being updated by {holder}: wait for it (--wait, wait_s), or end that process"
            )
        if waiting is not None:
            waiting(f"waiting up to {wait_s:g} s for {holder}, which updates {target}")
            waiting = None
        time.sleep(PAUSE_S)


def _try(path: Path) -> int | None:
    """Return the locked file, or None while another holds it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
            try:
                mine = try_lock(descriptor)
                if mine and is_same_file(descriptor, path):
                    break
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            if not mine:
                return None
            # else its last holder has removed it between open and lock
    except OSError as error:
        raise StorageError(f"{path} cannot be made, which keeps two updates apart: {error}") from error
    me = {"pid": os.getpid(), "host": gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}
    # Who holds it is only told to those who wait: a full disk is no reason not to hold it.
    with contextlib.suppress(OSError):
        os.truncate(descriptor, 0)
        os.write(descriptor, json.dumps(me).encode())
    return descriptor


def _holder(path: Path) -> str:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return f"pid {found['pid']} on {found['host']} since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it is just being written, or removed
        return "another process"


def try_lock(descriptor: int) -> bool:
    """Lock an open file or directory; return False while another open of it has the lock.

    Raises:
        OSError: This file system has no locks, or none on directories.
    """
    if sys.platform == "win32":
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_directory(path: Path) -> int:
    """Return a descriptor of a directory, to be locked.

    Raises:
        OSError: There is none, or this system cannot open directories.
    """
    return os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))


def is_same_file(descriptor: int, path: Path) -> bool:
    """Return whether the path still leads to the open file."""
    try:
        found, here = os.fstat(descriptor), os.stat(path)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (here.st_dev, here.st_ino)
