"""The sending of an actor's files from its program to its worker, unless the worker has them.

place(granted) -- the worker sees the program's directories?   yes: only distributed_files are sent
               -- PrepareFolder(hash of the manifest) ----->   the folder, or the missing contents
               -- StoreParts, until nothing is lacking ---->
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from parl_remote._data.ownership import is_own, working_dir
from parl_remote._files.manifest import (
    WORK,
    ActorDirectory,
    Entry,
    FolderLayout,
    Manifest,
    here,
    inherited,
    lay_out,
)
from parl_remote._files.program import OwnCode
from parl_remote._files.selection import select_files
from parl_remote._links.identity import host_id
from parl_remote._messages import LeaseGranted, Message
from parl_remote._messages.parts import (
    CompareDirectories,
    DirectoriesCompared,
    DirectoryIdentity,
    FolderAnswer,
    Part,
    PrepareFolder,
    StoreParts,
)
from parl_remote._transport import Buffer
from parl_remote.errors import RemoteError, RemoteProtocolError

__all__ = ["ActorDirectories", "ProgramFiles", "Progress"]


_log = logging.getLogger("parl.remote")

_LARGE = 32 * 2**20  # below it there is nothing to wait for
_EVERY_S = 0.1
_WIDTH = 30


class Progress:
    """The progress of one upload.

    Args:
        what: The destination, for display.
        total: The number of bytes to send.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._shown_at = 0.0
        self._speaks = total >= _LARGE
        self._draws = self._speaks and sys.stderr is not None and sys.stderr.isatty()
        if self._speaks and not self._draws:
            _log.info("sending %s to %s", _mib(total), what)

    def advance(self, size: int) -> None:
        """Add `size` sent bytes."""
        self._done += size
        now = time.monotonic()
        if self._draws and (now - self._shown_at > _EVERY_S or self._done >= self._total):
            self._shown_at = now
            share = min(1.0, self._done / self._total)
            bar = "#" * round(share * _WIDTH)
            sys.stderr.write(f"\rsending to {self._what} [{bar:<{_WIDTH}}] {_mib(self._done)} of {_mib(self._total)}")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._draws and self._shown_at:
            sys.stderr.write("\n")
            sys.stderr.flush()


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


@dataclass(frozen=True, slots=True)
class _State:
    """The properties of a file that change when it is written to."""

    size: int
    changed_ns: int
    inode: int
    mode: int

    @classmethod
    def of(cls, status: os.stat_result) -> _State:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, stat.S_IMODE(status.st_mode))


class Contents:
    """Cached hashes of files; used by one thread at a time."""

    def __init__(self) -> None:
        self._hashed: dict[str, tuple[_State, str]] = {}
        self._sources: dict[str, str] = {}

    def manifest(self, files: Mapping[str, str | None]) -> Manifest:
        """Return the manifest of some files in their current state.

        Args:
            files: The path of each file, None for a directory, by its path in the manifest.

        Raises:
            OSError: A file cannot be read.
            RemoteProtocolError: A path is invalid in a folder.
        """
        return Manifest.of(Entry(path) if file is None else self._entry(path, file) for path, file in files.items())

    def pieces(self, digest: str, largest: int) -> Iterator[tuple[int, bytes]]:
        """Yield a content's pieces with their offsets; one empty piece for an empty file.

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
        """Return a file that has this content."""
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
        f"{file} was changed or removed after parl.connect() had listed it, and a worker that an actor is to run on "
        "does not have it yet. Write files that change elsewhere, take them out with a pattern such as '!*.log', or "
        "call parl.disconnect() and parl.connect() once they are complete."
    )


_BATCH = 4 * 2**20  # bytes in one message; large enough for the line, small enough for the worker's memory
_MOST_PARTS = 2000  # in one message
_MOST_ATTEMPTS = 3  # attempts to send one content; repeated losses are no accident
_SEEN_KEPT = 1000  # answers of workers on this host


class Worker(Protocol):
    """A way to send requests to workers; `WorkerClients` is one."""

    def ask(
        self,
        at: LeaseGranted,
        make: Callable[[int], Message],
        timeout_s: float | None,
        frames: Sequence[Buffer] = (),
    ) -> Message:
        """Send a request and wait for its answer."""


class ProgramFiles:
    """Files and code of this program; arguments and exceptions are those of `ActorDirectories`."""

    def __init__(self, patterns: Iterable[str | os.PathLike[str]] = (), *, same_host_shortcut: bool = True) -> None:
        self._base = working_dir()
        self._shortcut = same_host_shortcut
        self._lock = threading.Lock()
        self._contents = Contents()
        self._code = OwnCode()
        self._uploading: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
        self._seen: dict[tuple[str, tuple[DirectoryIdentity, ...]], bool] = {}
        self._inherited = inherited()
        self._only_selected: Manifest | None = None
        self._selected: dict[str, str | None]
        if self._inherited is None:
            self._selected = {f"{WORK}/{path}": file for path, file in select_files(patterns, self._base).items()}
        else:
            self._selected = dict(self._inherited.files)
        if self._selected:
            self._only_selected = self._contents.manifest({**self._selected, WORK: None})

    def place(self, granted: LeaseGranted, worker: Worker, class_module: str) -> ActorDirectory:
        """Provide all files at an actor's worker and return its working directory and module paths.

        Args:
            granted: Its lease.
            worker: Sends requests to workers.
            class_module: Name of the module of its class.

        Raises:
            RemoteError: Files cannot be sent, or the worker cannot store them.
        """
        if self._shares_directories(granted, worker):
            if self._only_selected is None or self._inherited is not None:
                return here()
            folder = self._folder(granted, worker, self._only_selected)
            own = (os.path.join(working_dir(), entry) for entry in sys.path)
            return ActorDirectory(f"{folder}/{WORK}", (*own, f"{folder}/{WORK}"))
        with self._lock:
            plan, manifest = self._everything(class_module)
        folder = self._folder(granted, worker, manifest)
        return ActorDirectory(f"{folder}/{WORK}", (*(f"{folder}/{path}" for path in plan.sys_path), None))

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _shares_directories(self, granted: LeaseGranted, worker: Worker) -> bool:
        """Return whether the worker sees the program's own directories."""
        if not granted.node_addresses:
            return True  # a private cluster's worker is this program's child
        if not self._shortcut or granted.host_id != host_id():
            return False
        places = tuple(_seen(path) for path in sorted({working_dir(), *_own_directories()}) if os.path.isdir(path))
        key = granted.node_id, places
        seen = self._seen.get(key)
        if seen is None:
            answer = worker.ask(granted, lambda number: CompareDirectories(number, places), None)
            seen = isinstance(answer, DirectoriesCompared) and answer.all
            if len(self._seen) >= _SEEN_KEPT:
                self._seen.clear()
            self._seen[key] = seen
        return seen

    def _everything(self, class_module: str) -> tuple[FolderLayout, Manifest]:
        """Return the plan and manifest of the current code and the selected files as in `connect`."""
        code = self._code.of(class_module)
        paths: tuple[str, ...] = ()
        if self._inherited is not None:
            code = [own for own in code if not self._inherited.holds(own.file)]
            paths = self._inherited.sys_path
        plan = lay_out(self._selected, code, base=self._base, sys_path=sys.path, inherited=paths)
        rest = {path: file for path, file in plan.files.items() if path not in self._selected}
        entries = self._contents.manifest(rest).entries
        if self._only_selected is not None:
            entries += tuple(entry for entry in self._only_selected.entries if entry.path != WORK)
        return plan, Manifest.of(entries)

    def _folder(self, granted: LeaseGranted, worker: Worker, manifest: Manifest) -> str:
        """Return the manifest's folder at a worker, with one upload to it at a time."""
        with self._lock:
            uploading = self._uploading.setdefault(granted.node_id, threading.Lock())
        with uploading:
            attempts: Counter[str] = Counter()
            size = len(manifest.content)
            while True:
                answer = worker.ask(granted, lambda number: PrepareFolder(number, manifest.digest, size), None)
                if not isinstance(answer, FolderAnswer):
                    raise RemoteProtocolError(f"a worker answered PrepareFolder with {type(answer).__name__}")
                if answer.folder:
                    return answer.folder
                attempts.update(answer.lacks)
                self._check_lacks(answer.lacks, attempts, manifest)
                with Progress(_name_of(granted), sum(manifest.sizes.get(one, 0) for one in answer.lacks)) as progress:
                    self._send(granted, worker, manifest, answer.lacks, progress)

    def _check_lacks(self, lacks: Sequence[str], attempts: Counter[str], manifest: Manifest) -> None:
        known = manifest.sizes
        for digest in lacks:
            if digest != manifest.digest and digest not in known:
                raise RemoteProtocolError(f"a worker asks for a content {digest[:80]!r} that it was not offered")
            if attempts[digest] > _MOST_ATTEMPTS:
                what = "the list of files" if digest == manifest.digest else self._contents.name(digest)
                raise RemoteError(f"{what} was sent {_MOST_ATTEMPTS} times, and the worker lost it every time")
        if not lacks:
            raise RemoteProtocolError("a worker has all files but does not make the folder")

    def _send(
        self,
        granted: LeaseGranted,
        worker: Worker,
        manifest: Manifest,
        digests: Sequence[str],
        progress: Progress,
    ) -> None:
        """Send contents, batching small ones."""
        batch: list[Part] = []
        pieces: list[bytes] = []
        size = 0
        for part, piece in self._pieces(manifest, digests):
            if batch and (size + len(piece) > _BATCH or len(batch) == _MOST_PARTS):
                _store(granted, worker, batch, pieces, progress)
                batch, pieces, size = [], [], 0
            batch.append(part)
            pieces.append(piece)
            size += len(piece)
        _store(granted, worker, batch, pieces, progress)

    def _pieces(self, manifest: Manifest, digests: Sequence[str]) -> Iterator[tuple[Part, bytes]]:
        sizes = manifest.sizes
        for digest in digests:
            if digest == manifest.digest:
                content = manifest.content
                for offset in range(0, len(content), _BATCH):
                    piece = content[offset : offset + _BATCH]
                    yield Part(digest, len(content), offset, len(piece)), piece
            else:
                for offset, piece in self._contents.pieces(digest, _BATCH):
                    yield Part(digest, sizes[digest], offset, len(piece)), piece


def _store(granted: LeaseGranted, worker: Worker, batch: list[Part], pieces: list[bytes], progress: Progress) -> None:
    parts = tuple(batch)
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    worker.ask(granted, lambda number: StoreParts(number, parts), None, [data])
    progress.advance(len(data))


def _own_directories() -> Iterator[str]:
    """Yield the directories that may hold the program's own modules."""
    for entry in sys.path:
        path = os.path.join(working_dir(), entry)
        if is_own(os.path.join(path, "module.py")):
            yield path


def _seen(path: str) -> DirectoryIdentity:
    status = os.stat(path)
    return DirectoryIdentity(path, status.st_dev, status.st_ino)


def _name_of(granted: LeaseGranted) -> str:
    return granted.node_addresses[0] if granted.node_addresses else "this machine"


class ActorDirectories:
    """Provides the working directory and module paths of each actor of a program.

    Args:
        patterns: Those of `distributed_files`, relative to the current directory; resolved now.
        same_host_shortcut: Whether workers of this host may use the program's own directories.

    Raises:
        TypeError: The patterns are not a list of texts.
        ValueError: A pattern is absolute, leads upwards or matches nothing.
        OSError: A file cannot be read.
    """

    def __init__(self, patterns: Sequence[str] = (), *, same_host_shortcut: bool = True) -> None:
        self._shortcut = same_host_shortcut
        self._lock = threading.Lock()
        self._files: ProgramFiles | None = None
        if not isinstance(patterns, tuple | list) or patterns:
            self._files = self._program_files(patterns)

    def of(self, granted: LeaseGranted, worker: Worker, class_module: str) -> ActorDirectory:
        """Provide all files at an actor's worker and return its working directory and module paths.

        Args:
            granted: Its lease.
            worker: Sends requests to workers.
            class_module: Name of the module of its class.

        Raises:
            RemoteError: Files cannot be sent, or the worker cannot store them.
        """
        if self._files is None:
            if not granted.node_addresses:  # a private cluster's worker is this program's child and sees what it sees
                return here()
            with self._lock:
                self._files = self._files or self._program_files(())
        return self._files.place(granted, worker, class_module)

    def _program_files(self, patterns: Sequence[str]) -> ProgramFiles:
        return ProgramFiles(patterns, same_host_shortcut=self._shortcut)
