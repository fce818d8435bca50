"""Directories that are replaced as a whole, so that readers see no partial state, and locks on them.

    replacing(D):  D.tmp-<id> with D's files as links ─► changes ─► to disk ─► exchanged with D ─► old one removed

If the file system cannot exchange two directories, D is moved away (D.tmp-<id>-old) and the new one moved to its place.
A writer holds the system's lock on its temporary directories. A temporary directory without a lock belongs to a process
that ended; the next writer removes it, or moves the old directory back if that process ended between the two moves.

`update_lock` admits one update at a time to a directory D by a lock beside it:

    D.lock     {"pid": ..., "host": ..., "since": ...}   the holder, for messages of processes that wait

The lock is the system's lock on that file (flock), which ends with the process, even after `kill -9`. The mere presence
of the file has no meaning. The holder removes the file at the end, while it still holds the lock.
"""

import contextlib
import ctypes
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import gethostname
from typing import TypeVar

from parl_core.atomic_write import sync
from parl_evokit.errors import EvolutionError, SolverError, StorageError, UpdateLocked

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = [
    "clear_leftovers",
    "is_same_file",
    "open_directory",
    "path_of",
    "read_unchanged",
    "removed",
    "replacing",
    "try_lock",
    "update_lock",
]

PAUSE_S = 0.05  # interval of attempts, short compared to any update, because flock has no timeout
AT_FDCWD = -100
RENAME_EXCHANGE = 2
LEFTOVER = re.compile(r"(?P<name>.+)\.tmp-[0-9a-f]{12}(?P<old>-old)?")
T = TypeVar("T")


def path_of(path: str | os.PathLike[str], error: type[EvolutionError]) -> Path:
    """Return the path of a caller's argument.

    Raises:
        EvolutionError: The path has a NUL or an invalid character; the error is of the class `error`.
    """
    try:
        if b"\0" in os.fsencode(path):
            raise ValueError("it has a NUL")
    except ValueError as reason:
        raise error(f"{os.fspath(path)!r} is no path: {reason}") from reason
    return Path(path)


@contextlib.contextmanager
def replacing(directory: Path) -> Iterator[Path]:
    """Provide a new directory to write into, which replaces `directory` at the end of the `with` block.

    It starts with the files of `directory`, if there are any. They are links: remove a file or rename over it to change
    it, and never write to it in place. After an exception nothing has changed.

    Args:
        directory: The directory, which need not exist; parents are made. The target of a symbolic link is replaced.

    Raises:
        SolverError: The directory contains the current directory of this process, or it is a file.
        StorageError: The disk is full, or a permission is missing.
    """
    try:
        directory = Path(os.path.realpath(directory))
        if _is_in_use(directory):
            raise SolverError(
                f"{directory} contains the current directory and cannot be replaced: save into a directory below it"
            )
        if directory.exists() and not directory.is_dir():
            raise SolverError(f"{directory} is a file; weights and solver need a directory: give another name")
        directory.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(directory.parent, directory.name)
        with _temporary(directory) as fresh:
            if directory.is_dir():
                shutil.copytree(directory, fresh, copy_function=_link, dirs_exist_ok=True)
            yield fresh
            _sync_tree(fresh)
            _put_in_place(fresh, directory)
            # Readers use the new directory from here on, so no error may be raised: a power loss could at worst
            # bring back the old one, whole.
            with contextlib.suppress(OSError):
                sync(directory.parent)
    except (OSError, StorageError) as error:  # a model raises StorageError, which names `fresh`
        reason = error.__cause__ if isinstance(error, StorageError) and error.__cause__ else error
        raise StorageError(f"{directory} cannot be written: {reason}; it is unchanged") from error


def _is_in_use(directory: Path) -> bool:
    """Return whether this process is in the directory, or below it."""
    try:
        return Path.cwd().is_relative_to(directory)
    except FileNotFoundError:  # the process's previous working directory has been removed
        return False


def clear_leftovers(parent: Path, name: str | None = None) -> None:
    """Remove temporary directories of writers that ended.

    Args:
        parent: The directory to search.
        name: Name of the directory that they would have replaced. Default: any.
    """
    for path in sorted(parent.iterdir()):
        found = LEFTOVER.fullmatch(path.name)
        if found is None or name not in {None, found["name"]} or not path.is_dir():
            continue
        with contextlib.suppress(OSError):
            descriptor = open_directory(path)
            try:
                if not try_lock(descriptor) or not is_same_file(descriptor, path):
                    continue  # its writer is alive
                target = parent / found["name"]
                if found["old"] and not target.exists():
                    path.rename(target)
                else:
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def removed(directory: Path) -> None:
    """Remove a directory in one step for readers: rename it before its files are removed."""
    if directory.is_symlink():
        directory.unlink()
        return
    away = _temporary_name(directory)
    directory.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def read_unchanged(directory: Path, read: Callable[[], T]) -> T:
    """Return the result of `read`, which is all from before or all from after a replacement of the directory.

    Args:
        directory: The directory; it is read again if it was replaced meanwhile.
        read: Function that reads the directory by its name.
    """
    while True:
        before = _identity(directory)
        try:
            result = read()
        except Exception:
            if _identity(directory) == before:
                raise
            continue
        if _identity(directory) == before:
            return result


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(directory)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _temporary_name(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.tmp-{secrets.token_hex(6)}")


@contextlib.contextmanager
def _temporary(directory: Path) -> Iterator[Path]:
    """Provide a locked new directory beside another, and remove what has its name at the end."""
    with contextlib.ExitStack() as stack:
        while True:
            fresh = _temporary_name(directory)
            fresh.mkdir()
            if _held(fresh, stack):
                break
        try:
            yield fresh
        finally:
            with contextlib.suppress(OSError):  # the next writer removes leftovers
                shutil.rmtree(fresh, ignore_errors=True)


def _held(directory: Path, stack: contextlib.ExitStack) -> bool:
    """Lock a directory until the stack closes; return False where it was cleared away before."""
    try:
        descriptor = open_directory(directory)
    except FileNotFoundError:
        return False
    except OSError:  # a system that cannot open directories, where it cannot look like one of a dead process
        return True
    stack.callback(os.close, descriptor)
    try:
        return try_lock(descriptor) and is_same_file(descriptor, directory)
    except OSError:  # a file system without such locks
        return True


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _sync_tree(directory: Path) -> None:
    for folder, _, files in os.walk(directory):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))


def _put_in_place(fresh: Path, directory: Path) -> None:
    if not directory.exists():
        fresh.rename(directory)
    elif not _exchange(fresh, directory):
        with contextlib.ExitStack() as stack:
            _held(directory, stack)
            old = fresh.with_name(fresh.name + "-old")
            directory.rename(old)
            try:
                fresh.rename(directory)
            except OSError:
                old.rename(directory)
                raise
            shutil.rmtree(old, ignore_errors=True)  # the next writer removes leftovers


def _exchange(a: Path, b: Path) -> bool:
    """Swap two names at once, where the system can (Linux)."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(rename(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE) == 0)


@contextlib.contextmanager
def update_lock(
    directory: str | os.PathLike[str], wait_s: float = 0.0, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the update lock of a directory in a `with` block.

    The lock is not reentrant: a second lock of the same directory waits for the first one, in the same process, too.

    Args:
        directory: The directory to update; it need not exist.
        wait_s: Maximum time to wait for another holder, in seconds; 0 or more.
        waiting: Function that is called once before waiting, with a description of the holder.

    Raises:
        ValueError: `wait_s` is below 0 or not a number.
        UpdateLocked: Another process still holds the lock after `wait_s`; the message names it, its host and the time.
        StorageError: The file of the lock cannot be made.
    """
    if not wait_s >= 0.0:  # with NaN, no deadline would ever pass
        raise ValueError(f"wait_s must be 0 or more, not {wait_s}")
    target = Path(os.path.realpath(path_of(directory, StorageError)))
    path = target.with_name(target.name + ".lock")
    descriptor = _acquire(path, target, wait_s, waiting)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it may have been removed with its directory
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
            # otherwise its last holder has removed it between open and lock
    except OSError as error:
        raise StorageError(f"{path}, the lock of updates, cannot be made: {error}") from error
    me = {"pid": os.getpid(), "host": gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}
    # The holder's name only informs waiting processes, so a full disk does not matter.
    with contextlib.suppress(OSError):
        os.truncate(descriptor, 0)
        os.write(descriptor, json.dumps(me).encode())
    return descriptor


def _holder(path: Path) -> str:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return f"pid {found['pid']} on {found['host']} since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it is being written or removed
        return "another process"


def try_lock(descriptor: int) -> bool:
    """Lock an open file or directory; return False while another open of it has the lock.

    Raises:
        OSError: This file system has no locks, or no locks of directories.
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
    """Return a descriptor of a directory, for a lock.

    Raises:
        OSError: The directory does not exist, or this system cannot open directories.
    """
    return os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))


def is_same_file(descriptor: int, path: Path) -> bool:
    """Return whether the path still refers to the open file."""
    try:
        found, here = os.fstat(descriptor), os.stat(path)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (here.st_dev, here.st_ino)
