"""A job's folder at a worker: made from a manifest and the contents that are kept, removed when its program ends.

    <parent>/<name>.partial/...   written with new files and new directories only
    <parent>/<name>/...           moved there when it is complete

Nothing that a manifest says can lead out: its paths were checked, the folder is new, holds no links, and each
file is made under the condition that nothing has its name. Contents are hashed once more while they are copied, so a
copy that was damaged since it came is noticed. Copies, not links: what one program writes is not what the next gets.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from pathlib import Path

from parl_remote.errors import RemoteError
from parl_remote.files.blobs import Blobs, DamagedBlob
from parl_remote.files.inherited import MANIFEST
from parl_remote.files.manifest import Entry, Manifest
from parl_remote.system.facilities import BINARY, CLOSE_ON_EXEC, NO_FOLLOW

__all__ = ["make_folder", "remove_folder"]

_CHUNK = 2**20


def make_folder(folder: Path, manifest: Manifest, blobs: Blobs) -> None:
    """Make a job's folder.

    Args:
        folder: Where; nothing is there yet.
        manifest: What it holds.
        blobs: The contents.

    Raises:
        DamagedBlob: A content is missing or damaged.
        RemoteError: This host takes two names for one.
        OSError: It cannot be written.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    remove_folder(partial)
    partial.mkdir(parents=True, mode=0o700)
    try:
        made: set[str] = set()
        for entry in manifest.entries:
            _make_directory(partial, entry.path if entry.is_directory else entry.path.rpartition("/")[0], made)
            if not entry.is_directory:
                _write(partial / entry.path, entry, blobs.read(entry.digest))
        with _new(partial / MANIFEST, MANIFEST, 0o600) as file:
            file.write(manifest.content)
        partial.rename(folder)
    except BaseException:
        remove_folder(partial)
        raise


def remove_folder(folder: Path) -> bool:
    """Remove a folder with all that is in it; False if something is still there, because somebody writes there."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _make_directory(top: Path, path: str, made: set[str]) -> None:
    """Make a directory and those above it."""
    missing = []
    while path and path not in made:
        missing.append(path)
        path = path.rpartition("/")[0]
    for path in reversed(missing):
        try:
            (top / path).mkdir(mode=0o700)
        except FileExistsError:
            raise _two_names(path) from None
        made.add(path)


def _write(path: Path, entry: Entry, source: Path) -> None:
    hashed = hashlib.sha256()
    with _new(path, entry.path, 0o700 if entry.runs else 0o600) as target:
        try:
            content = open(source, "rb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            raise DamagedBlob(entry.digest) from None
        with content:
            while chunk := content.read(_CHUNK):
                hashed.update(chunk)
                rest = memoryview(chunk)
                while rest:
                    rest = rest[target.write(rest) :]
    if hashed.hexdigest() != entry.digest:
        raise DamagedBlob(entry.digest)


def _new(path: Path, name: str, mode: int) -> io.FileIO:
    """A file that nothing had the name of."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOSE_ON_EXEC | NO_FOLLOW | BINARY
    try:
        return io.FileIO(os.open(path, flags, mode), "wb")
    except FileExistsError:
        raise _two_names(name) from None


def _two_names(path: str) -> RemoteError:
    return RemoteError(f"this host takes {path!r} and another name for the same, perhaps by upper and lower case")
