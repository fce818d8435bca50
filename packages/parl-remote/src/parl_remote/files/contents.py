"""Hashes of files, taken once for each state that a file is in, and their contents piece by piece."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from parl_remote.errors import RemoteError
from parl_remote.files.manifest import Entry, Manifest

__all__ = ["Contents"]


@dataclass(frozen=True, slots=True)
class _State:
    """What changes when a file is written to."""

    size: int
    changed_ns: int
    inode: int
    mode: int

    @classmethod
    def of(cls, status: os.stat_result) -> _State:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, stat.S_IMODE(status.st_mode))


class Contents:
    """What is known of files; one thread at a time."""

    def __init__(self) -> None:
        self._hashed: dict[str, tuple[_State, str]] = {}
        self._sources: dict[str, str] = {}

    def manifest(self, files: Mapping[str, str | None]) -> Manifest:
        """The manifest of some files as they are now.

        Args:
            files: Where each lies, None for a directory, by its path in the manifest.

        Raises:
            OSError: One cannot be read.
            RemoteProtocolError: A path cannot be one in a folder.
        """
        return Manifest.of(Entry(path) if file is None else self._entry(path, file) for path, file in files.items())

    def pieces(self, digest: str, largest: int) -> Iterator[tuple[int, bytes]]:
        """A content's pieces with their offsets; one empty piece of an empty file.

        Raises:
            RemoteError: The file has changed since it was hashed.
        """
        file = self._sources[digest]
        try:
            with open(file, "rb", buffering=0) as opened:
                if self._digest(file, os.fstat(opened.fileno())) != digest:
                    raise _changed(file)
                offset = 0
                while piece := opened.read(largest):
                    yield offset, piece
                    offset += len(piece)
                if offset == 0:
                    yield 0, b""
        except FileNotFoundError:
            raise _changed(file) from None

    def name(self, digest: str) -> str:
        """A file that has this content."""
        return self._sources[digest]

    def _entry(self, path: str, file: str) -> Entry:
        status = os.stat(file)
        digest = self._digest(file, status)
        self._sources[digest] = file
        return Entry(path, status.st_size, digest, bool(status.st_mode & stat.S_IXUSR))

    def _digest(self, file: str, status: os.stat_result) -> str:
        state = _State.of(status)
        known = self._hashed.get(file)
        if known is None or known[0] != state:
            with open(file, "rb", buffering=0) as opened:
                known = state, hashlib.file_digest(opened, "sha256").hexdigest()
            self._hashed[file] = known
        return known[1]


def _changed(file: str) -> RemoteError:
    return RemoteError(
        f"{file} was changed or removed since parl.connect() took note of it, and a worker that an actor is to run on "
        "does not have it yet. Write files that change elsewhere, take them out with a pattern such as '!*.log', or "
        "call parl.disconnect() and parl.connect() once they are complete."
    )
