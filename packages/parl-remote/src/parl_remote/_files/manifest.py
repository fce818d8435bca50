r"""The folder of a job: its layout, and its manifest, which is checked before anything is written.

    <folder>/work/...      the working directory of actors: the files of distributed_files, at the same relative paths,
                           and code whose root is the program's own directory or lies below it
    <folder>/code/<n>/...  code from elsewhere, one directory per root, in the order of the program's sys.path

So a module finds the data beside it where it found them in the program, and of two modules with one name the same one
is imported. An actor that runs in such a folder finds its manifest there, and passes all of it on to the actors that it
makes:

    {"entries": [["work/data/a.csv", 5120, "9f86d0...", false], ["work/empty", 0, "", false]]}

A path is relative, with "/" as separator on every host; an entry without a hash is a directory. There are no links,
owners or modes other than "executable", so a manifest cannot request any of these.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parl_remote._data.ownership import absolute, working_dir
from parl_remote.errors import RemoteProtocolError

if TYPE_CHECKING:
    from parl_remote._files.program import OwnFile

__all__ = [
    "LARGEST_MANIFEST",
    "MANIFEST",
    "WORK",
    "ActorDirectory",
    "Entry",
    "FolderLayout",
    "Manifest",
    "here",
    "inherited",
    "is_digest",
    "lay_out",
]


WORK = "work"
_CODE = "code"


@dataclass(frozen=True, slots=True)
class FolderLayout:
    """The layout of a folder.

    Attributes:
        files: The path of each file on this host, None for a directory, by its path in the folder.
        sys_path: Module paths in the folder, in order.
    """

    files: Mapping[str, str | None]
    sys_path: tuple[str, ...]


def lay_out(
    selected: Mapping[str, str | None],
    code: Sequence[OwnFile],
    *,
    base: str,
    sys_path: Sequence[str],
    inherited: Sequence[str] = (),
) -> FolderLayout:
    """Return the layout of files and code.

    Args:
        selected: Files by their paths in the folder.
        code: The user's own modules.
        base: The program's directory.
        sys_path: The program's own.
        inherited: Paths in the folder that modules are looked for in first, among the selected files.
    """
    taken = [path.split("/")[1] for path in inherited if path.startswith(f"{_CODE}/")]
    first = 1 + max((int(number) for number in taken if number.isdigit()), default=-1)
    order = {absolute(entry): number for number, entry in reversed(list(enumerate(sys_path)))}
    roots = sorted({own.root for own in code}, key=lambda root: (order.get(root, len(order)), root))
    places = {root: _place(root, number, base) for number, root in enumerate(roots, first)}
    files: dict[str, str | None] = {WORK: None}
    searched = list(inherited)
    for own in code:
        files[f"{places[own.root]}/{own.path}" if own.path else places[own.root]] = own.file
    files.update(selected)
    for place in (*(places[root] for root in roots), WORK):
        if place not in searched:
            searched.append(place)
    return FolderLayout(files, tuple(searched))


def _place(root: str, number: int, base: str) -> str:
    """Return a root's path in the folder."""
    if base and (root == base or root.startswith(base.rstrip(os.sep) + os.sep)):
        below = os.path.relpath(root, base).replace(os.sep, "/")
        return WORK if below == "." else f"{WORK}/{below}"
    return f"{_CODE}/{number}" if os.path.isdir(root) else f"{_CODE}/{number}/{os.path.basename(root)}"


@dataclass(frozen=True, slots=True)
class ActorDirectory:
    """The directory that an actor runs in, and its `sys.path`.

    Attributes:
        working_dir: The directory; empty for that of its worker.
        sys_path: Its module paths; None stands for those that its process has already.
    """

    working_dir: str
    sys_path: tuple[str | None, ...]


def here() -> ActorDirectory:
    """Return this program's own directory and module paths."""
    return ActorDirectory(working_dir(), tuple(sys.path))


LARGEST_MANIFEST = 256 * 2**20  # some two million files
_LONGEST_PART = 255  # bytes; the limit of file systems
_LONGEST_PATH = 3000  # bytes; the kernel's limit is 4096, and the folder's own path precedes it
_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Return whether a text is a hash in this package's form: 64 lower-case hexadecimal digits of SHA-256."""
    return _DIGEST.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, or a directory.

    Attributes:
        path: Its path relative to the job's folder.
        size: Its size in bytes.
        digest: SHA-256 of its content; empty for a directory.
        runs: Whether its owner may execute it.

    Raises:
        RemoteProtocolError: The path could lead out of the folder, or is not portable between hosts.
    """

    path: str
    size: int = 0
    digest: str = ""
    runs: bool = False

    def __post_init__(self) -> None:
        _check_path(self.path)
        if self.digest and not is_digest(self.digest):
            raise RemoteProtocolError(f"{self.digest[:80]!r} is not a SHA-256")
        if not 0 <= self.size < 2**60 or (self.size and not self.digest):
            raise RemoteProtocolError(f"{self.path[:80]!r} cannot have a size of {self.size}")

    @property
    def is_directory(self) -> bool:
        """Return whether it is a directory."""
        return not self.digest


@dataclass(frozen=True)
class Manifest:
    """The entries of a folder, in order of their paths.

    Attributes:
        entries: The entries.
        content: The manifest's encoding.
        digest: SHA-256 of the content, by which a worker identifies the folder.

    Raises:
        RemoteProtocolError: Two entries have the same path, or a file is a directory as well.
    """

    entries: tuple[Entry, ...]
    content: bytes = field(repr=False)
    digest: str

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Manifest:
        """Return a manifest of entries."""
        ordered = tuple(sorted(entries, key=lambda entry: entry.path))
        _check_tree(ordered)
        rows = [[entry.path, entry.size, entry.digest, entry.runs] for entry in ordered]
        content = json.dumps({"entries": rows}, separators=(",", ":")).encode()
        return cls(ordered, content, hashlib.sha256(content).hexdigest())

    @classmethod
    def parse(cls, content: bytes) -> Manifest:
        """Return the manifest of untrusted bytes, fully validated."""
        try:
            rows = json.loads(content)["entries"]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise RemoteProtocolError(f"a list of files of {len(content)} bytes cannot be read: {error!r}") from error
        if not isinstance(rows, list):
            raise RemoteProtocolError("a list of files must be a list")
        entries = tuple(_entry(row) for row in rows)
        _check_tree(entries)
        return cls(entries, content, hashlib.sha256(content).hexdigest())

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each content by its hash; equal files count once."""
        return {entry.digest: entry.size for entry in self.entries if entry.digest}


def _entry(row: Any) -> Entry:
    match row:
        case [str(path), int(size), str(digest), bool(runs)] if not isinstance(size, bool):
            return Entry(path, size, digest, runs)
    raise RemoteProtocolError(f"an entry is path, size, hash and executable flag, not {repr(row)[:80]}")


def _check_path(path: str) -> None:
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        raise RemoteProtocolError(f"the file name {path[:80]!r} is not Unicode text") from None
    parts = path.split("/")
    if (
        not raw
        or len(raw) > _LONGEST_PATH
        or any(part in {"", ".", ".."} or len(part.encode()) > _LONGEST_PART for part in parts)
        or any(character in path for character in "\0\\")
        or ":" in parts[0]
    ):
        raise RemoteProtocolError(f"{path[:80]!r} is not a path within a job's folder")


def _check_tree(entries: Sequence[Entry]) -> None:
    files: set[str] = set()
    directories: set[str] = set()
    for entry in entries:
        if entry.path in files or (entry.path in directories and not entry.is_directory):
            raise RemoteProtocolError(f"there are two files {entry.path[:80]!r}")
        (directories if entry.is_directory else files).add(entry.path)
        parent = entry.path.rpartition("/")[0]
        while parent and parent not in directories:
            directories.add(parent)
            parent = parent.rpartition("/")[0]
    if both := files & directories:
        raise RemoteProtocolError(f"{min(both)[:80]!r} is both a file and a directory")


MANIFEST = ".manifest.json"


@dataclass(frozen=True, slots=True)
class ProcessFolder:
    """The folder that this process runs in.

    Attributes:
        folder: Its path.
        files: The path of each of its files, None for a directory, by its path in the folder.
    """

    folder: str
    files: Mapping[str, str | None]

    def holds(self, path: str) -> bool:
        """Return whether a path lies in the folder."""
        return path.startswith(self.folder + os.sep)

    @property
    def sys_path(self) -> tuple[str, ...]:
        """The directories of the folder that are in `sys.path`, relative to it."""
        return tuple(
            os.path.relpath(entry, self.folder).replace(os.sep, "/") for entry in sys.path if self.holds(str(entry))
        )


def inherited() -> ProcessFolder | None:
    """Return the folder of this process, None if it has none."""
    for entry in map(str, sys.path):
        folder, name = os.path.split(entry)
        if name == WORK and os.path.isfile(os.path.join(folder, MANIFEST)):
            try:
                with open(os.path.join(folder, MANIFEST), "rb") as file:
                    entries = Manifest.parse(file.read()).entries
            except (OSError, RemoteProtocolError):
                continue  # an actor may have overwritten the file
            places = {entry.path: None if entry.is_directory else os.path.join(folder, entry.path) for entry in entries}
            there = {path: file for path, file in places.items() if os.path.exists(file or os.path.join(folder, path))}
            return ProcessFolder(folder, there)
    return None
