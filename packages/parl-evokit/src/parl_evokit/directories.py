"""Directories that a reader sees old or new, never half written.

    replacing(D):  D.tmp-<id> with D's files as links ─► changes ─► to disk ─► exchanged with D ─► old one removed

Where the file system cannot exchange two directories, D is moved away and the new one moved in its place; a process
that dies between these two leaves both under their temporary names, and nothing lost.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from parl_evokit.errors import SolverError

__all__ = ["replacing", "sync_file"]

AT_FDCWD = -100
RENAME_EXCHANGE = 2


@contextlib.contextmanager
def replacing(directory: Path) -> Iterator[Path]:
    """A new directory to write into, which takes the place of `directory` when all went well.

    It starts with the files of `directory`, if there are any. They are links: to change one, write it anew (remove it
    first, or rename over it), never in place. After an exception nothing has changed.

    Args:
        directory: It need not exist; parents are made.

    Raises:
        SolverError: It holds the current directory, which would vanish under this process.
    """
    directory = Path(os.path.abspath(directory))
    if Path.cwd().is_relative_to(directory):
        raise SolverError(f"{directory} holds the current directory and cannot be replaced: save into one below it")
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = directory.with_name(f"{directory.name}.tmp-{secrets.token_hex(6)}")
    fresh.mkdir()
    try:
        if directory.is_dir():
            shutil.copytree(directory, fresh, copy_function=_link, dirs_exist_ok=True)
        yield fresh
        _sync_tree(fresh)
        _put_in_place(fresh, directory)
        sync_file(directory.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def sync_file(path: Path) -> None:
    """Have the system write a file, or a directory's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _sync_tree(directory: Path) -> None:
    for folder, _, files in os.walk(directory):
        for name in files:
            sync_file(Path(folder, name))
        sync_file(Path(folder))


def _put_in_place(fresh: Path, directory: Path) -> None:
    if not directory.exists():
        fresh.rename(directory)
    elif not _exchange(fresh, directory):
        old = fresh.with_name(fresh.name + "-old")
        directory.rename(old)
        fresh.rename(directory)
        shutil.rmtree(old)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two names at once, where the system can (Linux)."""
    import ctypes  # here, because it is slow to import and only saving needs it

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(rename(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE) == 0)
