"""The worker's service for files: stores contents, builds programs' folders, and removes them afterwards.

    loop's thread   messages --jobs--> one thread of its own: hashes, writes, lays out --answers--> loop's thread

Disks can stall for seconds and starting actors must not, hence the thread, which is started by the first job. A
client sends its next parts when the last ones are written, so that no more than these wait in memory. A disk
that is full fails the request, with the figures; the worker continues.

    <directory>/incoming/<number>-<hash>   a content on its way; moved when it is whole and its hash is right
    <directory>/<hash>                     kept, the least recently used ones removed beyond the limit
    <parent>/<name>.partial/...            a job's folder, written with new files and new directories only
    <parent>/<name>/...                    moved there when it is complete

No entry of a manifest can lead out of a folder: its paths were checked, the folder is new, holds no links, and
each file is made under the condition that nothing has its name. Contents are hashed once more while they are copied,
so that a copy that was damaged since it came is noticed. Copies, not links: what one program writes is not what the
next gets.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import itertools
import logging
import os
import queue
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from parl_remote._files.manifest import LARGEST_MANIFEST, MANIFEST, Entry, Manifest, is_digest
from parl_remote._links.handshake import Link
from parl_remote._links.identity import host_name
from parl_remote._links.loop import Loop
from parl_remote._messages import Done, Failed, Message
from parl_remote._messages.parts import CompareDirectories, DirectoriesCompared, FolderAnswer, PrepareFolder, StoreParts
from parl_remote._system.facilities import BINARY, CLOSE_ON_EXEC, NO_FOLLOW
from parl_remote.errors import RemoteError, RemoteProtocolError

__all__ = ["Blobs", "DamagedBlob", "WorkerFiles", "make_folder"]


class DamagedBlob(RemoteError):
    """A kept content has changed: the worker's files were modified.

    Attributes:
        digest: Its hash.
    """

    def __init__(self, digest: str) -> None:
        super().__init__(f"the worker's copy of the content {digest} is damaged")
        self.digest = digest


class _Incoming:
    """A content that is being received."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.got = 0
        self.hash = hashlib.sha256()
        self.file = open(path, "xb", buffering=0)  # noqa: SIM115  # it stays open until the content is whole

    def drop(self) -> None:
        self.file.close()
        self.path.unlink(missing_ok=True)


class Blobs:
    """Contents of files by hash.

    Args:
        directory: Made when the first content arrives.
        limit: Bytes beyond which contents that are not needed now are removed.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._incoming: dict[tuple[str, str], _Incoming] = {}
        self._numbers = itertools.count(1)

    @property
    def total(self) -> int:
        """The total size of the stored contents in bytes."""
        return sum(self._sizes.values())

    def __contains__(self, digest: str) -> bool:
        return digest in self._sizes

    def add(self, who: str, digest: str, size: int, offset: int, data: memoryview) -> None:
        """Add the next part of a content.

        Args:
            who: The sender; two may send the same content at once.
            digest: Its hash.
            size: The size of the content in bytes.
            offset: The offset of this part; 0 starts anew.
            data: The part.

        Raises:
            RemoteProtocolError: A part does not continue the previous one, or exceeds the announced size.
            RemoteError: The content does not have the announced hash.
            OSError: The content cannot be written.
        """
        if not is_digest(digest):
            raise RemoteProtocolError(f"{digest[:80]!r} is not a SHA-256")
        if digest in self._sizes:
            self._give_up(who, digest)  # another program was quicker
            return
        coming = self._incoming_content(who, digest, size, offset)
        if coming.got != offset or coming.size != size or offset + len(data) > size:
            raise RemoteProtocolError(f"{len(data)} bytes at {offset} of {size} do not follow on {coming.got}")
        try:
            while data:
                written = coming.file.write(data)
                coming.hash.update(data[:written])
                coming.got += written
                data = data[written:]
        except OSError:
            self._give_up(who, digest)
            raise
        if coming.got == size:
            self._complete(who, digest, coming)

    def read(self, digest: str) -> Path:
        """Return the path of a content, which the reader must verify, and count it as used.

        Raises:
            DamagedBlob: The content is not stored.
        """
        if digest not in self._sizes:
            raise DamagedBlob(digest)
        self._sizes.move_to_end(digest)
        return self._directory / digest

    def discard(self, digest: str) -> None:
        """Remove a content."""
        self._sizes.pop(digest, None)
        with contextlib.suppress(OSError):
            (self._directory / digest).unlink()

    def forget(self, who: str) -> None:
        """Drop the unfinished contents of a sender that is gone."""
        for known, digest in [key for key in self._incoming if key[0] == who]:
            self._give_up(known, digest)

    def close(self) -> None:
        """Drop all unfinished contents."""
        for who, digest in list(self._incoming):
            self._give_up(who, digest)

    def shrink(self, needed: Collection[str], limit: int | None = None) -> None:
        """Remove the least recently used contents until the rest fits the limit; contents in `needed` stay."""
        excess = self.total - (self._limit if limit is None else limit)
        for digest, size in list(self._sizes.items()):
            if excess <= 0:
                return
            if digest not in needed:
                self.discard(digest)
                excess -= size

    def _incoming_content(self, who: str, digest: str, size: int, offset: int) -> _Incoming:
        if offset == 0:
            self._give_up(who, digest)
            directory = self._directory / "incoming"
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._incoming[who, digest] = _Incoming(directory / f"{next(self._numbers)}-{digest}", size)
        coming = self._incoming.get((who, digest))
        if coming is None:
            raise RemoteProtocolError(f"{offset} bytes of {digest} are missing")
        return coming

    def _complete(self, who: str, digest: str, coming: _Incoming) -> None:
        if coming.hash.hexdigest() != digest:
            self._give_up(who, digest)
            raise RemoteError(f"the content {digest} came with another hash: the file was changed meanwhile")
        del self._incoming[who, digest]
        coming.file.close()
        os.replace(coming.path, self._directory / digest)
        self._sizes[digest] = coming.size

    def _give_up(self, who: str, digest: str) -> None:
        coming = self._incoming.pop((who, digest), None)
        if coming is not None:
            coming.drop()


_CHUNK = 2**20


def make_folder(folder: Path, manifest: Manifest, blobs: Blobs) -> None:
    """Make a job's folder.

    Args:
        folder: Its path, which must not exist.
        manifest: Its entries.
        blobs: The contents.

    Raises:
        DamagedBlob: A content is missing or damaged.
        RemoteError: Two names are the same on this host.
        OSError: The folder cannot be written.
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
    """Remove a folder and its contents; return False if it still exists, because a process writes there."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _make_directory(top: Path, path: str, made: set[str]) -> None:
    """Make a directory and its missing parents."""
    missing = []
    while path and path not in made:
        missing.append(path)
        path = path.rpartition("/")[0]
    for path in reversed(missing):
        try:
            (top / path).mkdir(mode=0o700)
        except FileExistsError:
            raise _same_file_error(path) from None
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
    """Return a new file, created exclusively."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOSE_ON_EXEC | NO_FOLLOW | BINARY
    try:
        return io.FileIO(os.open(path, flags, mode), "wb")
    except FileExistsError:
        raise _same_file_error(name) from None


def _same_file_error(path: str) -> RemoteError:
    return RemoteError(
        f"this host's file system treats {path!r} and another name as the same file; do they differ only in case?"
    )


_log = logging.getLogger("parl.remote")

TAKES = ("CompareDirectories", "PrepareFolder", "StoreParts")
KEPT_BYTES = 4 * 2**30  # a program's data and code, and those of the few before it
_MOST_LACKING = 2000  # hashes in one answer: 130 KB
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_LAST_JOB_S = 0.5  # seconds for the file that is just being written; a longer wait would delay `xparl stop`
_TRY_AGAIN_S = 1.0  # an actor that is being ended may still write into its folder


class _Program:
    """One program's folders, by the hash of their manifests."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.folders: dict[str, Path] = {}
        self.needs: set[str] = set()
        self.gone = False


class WorkerFiles:
    """The file service of a worker; see the module's docstring.

    Args:
        loop: The node's loop.
        directory: The directory of contents and folders.
        in_use: Returns the directories that actors run in now.
        kept_bytes: Contents beyond this size are removed once they are not needed.
    """

    def __init__(
        self, loop: Loop, directory: Path, in_use: Callable[[], set[str]], kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._in_use = in_use
        self._blobs = Blobs(directory / "contents", kept_bytes)
        self._programs: dict[Link, _Program] = {}
        self._count = 0
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = False

    # -- in the loop's thread ------------------------------------------------------------------------------------

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:
        """Process a message of a program about its files: compare directories, store contents, prepare a folder."""
        if isinstance(message, CompareDirectories):
            link.tell(
                DirectoriesCompared(
                    message.request_id, all(_is_same(p.path, p.device, p.inode) for p in message.places)
                )
            )
            return
        program = self._programs.get(link)
        if program is None:
            self._count += 1
            program = self._programs[link] = _Program(self._count)
        if isinstance(message, PrepareFolder):
            if not is_digest(message.digest) or not 0 < message.size <= LARGEST_MANIFEST:
                raise RemoteProtocolError(f"no list of files has {message.size} bytes and the hash {message.digest!r}")
            self._do(link, message.request_id, lambda: self._prepare(program, message))
        elif isinstance(message, StoreParts):
            if len(frames) != 2 or any(part.length < 0 for part in message.parts):
                raise RemoteProtocolError(f"parts of files come in one frame, not in {len(frames) - 1}")
            if sum(part.length for part in message.parts) != len(frames[1]):
                raise RemoteProtocolError(f"a frame of {len(frames[1])} bytes does not match its parts")
            self._do(link, message.request_id, lambda: self._store(program, message, frames[1]))
        else:
            raise RemoteProtocolError(f"files are not handled with {type(message).__name__}")

    def closed(self, link: Link) -> None:
        """Mark a program as ended: its folders are removed once its actors have ended, too."""
        program = self._programs.pop(link, None)
        if program is not None:
            program.gone = True
            self._clear(program)

    def close(self) -> None:
        """Stop the thread; the zygote removes the directory, because thousands of files would take too long here."""
        if self._thread is not None:
            self._closing = True
            self._jobs.put(None)
            self._thread.join(_LAST_JOB_S)

    def _do(self, link: Link, request_id: int, job: Callable[[], Message]) -> None:
        """Run a job in the other thread, and send its outcome to the client."""

        def attempt() -> None:
            try:
                answer = job()
            except RemoteProtocolError as error:
                answer = Failed(request_id, f"{host_name()} refuses the files: {error}")
            except RemoteError as error:
                answer = Failed(request_id, f"files on {host_name()}: {error}")
            except OSError as error:
                answer = Failed(request_id, self._explained(error))
            except Exception as error:  # such as a lack of memory; other requests follow
                answer = Failed(request_id, f"files on {host_name()}: {type(error).__name__}: {error}")
            self._loop.call_soon(functools.partial(_tell, link, answer))

        try:
            self._begin(attempt)
        except RuntimeError as error:
            raise RemoteError(f"files on {host_name()}: {error}") from error

    def _begin(self, job: Callable[[], None]) -> None:
        """Queue a job for the other thread; raise `RuntimeError` if no thread can be started."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="parl-files", daemon=True)
            thread.start()
            self._thread = thread
        self._jobs.put(job)

    def _clear(self, program: _Program) -> None:
        """Remove a program's folders as soon as no actor runs in them; detached actors may run for long."""
        used = self._in_use()

        def attempt() -> None:
            self._blobs.forget(str(program.number))
            for digest, folder in list(program.folders.items()):
                if not any(path == str(folder) or path.startswith(f"{folder}/") for path in used) and remove_folder(
                    folder
                ):
                    del program.folders[digest]
            if program.folders:
                self._loop.call_soon(lambda: self._clear_later(program))

        try:
            self._begin(attempt)
        except RuntimeError:
            self._clear_later(program)

    def _clear_later(self, program: _Program) -> None:
        self._loop.call_later(_TRY_AGAIN_S, lambda: self._clear(program))

    # -- in the thread of its own --------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._closing:
            try:
                job()
            except Exception:
                _log.exception("files of a program could not be removed")
        self._blobs.close()

    def _prepare(self, program: _Program, message: PrepareFolder) -> Message:
        folder = program.folders.get(message.digest)
        if folder is not None and folder.is_dir():
            return FolderAnswer(message.request_id, str(folder))
        if program.gone:
            raise RemoteError("the program has ended")
        program.needs.add(message.digest)
        try:
            if message.digest not in self._blobs:
                return FolderAnswer(message.request_id, lacks=(message.digest,))
            manifest = Manifest.parse(self._blobs.read(message.digest).read_bytes())
            if manifest.digest != message.digest:
                raise DamagedBlob(message.digest)
            sizes = manifest.sizes
            program.needs |= sizes.keys()
            lacks = [digest for digest in sizes if digest not in self._blobs]
            if lacks:
                self._check_space(
                    program, sum(sizes[digest] for digest in lacks) + sum(e.size for e in manifest.entries)
                )
                return FolderAnswer(message.request_id, lacks=tuple(lacks[:_MOST_LACKING]))
            folder = self._directory / "jobs" / f"{program.number}-{message.digest[:16]}"
            make_folder(folder, manifest, self._blobs)
        except DamagedBlob as damaged:
            _log.warning("%s; it is requested again", damaged)
            self._blobs.discard(damaged.digest)
            return FolderAnswer(message.request_id, lacks=(damaged.digest,))
        program.folders[message.digest] = folder
        program.needs.clear()
        self._blobs.shrink({digest for other in list(self._programs.values()) for digest in other.needs})
        return FolderAnswer(message.request_id, str(folder))

    def _store(self, program: _Program, message: StoreParts, data: memoryview) -> Message:
        if program.gone:
            raise RemoteError("the program has ended")
        at = 0
        for part in message.parts:
            piece = data[at : at + part.length]
            self._blobs.add(str(program.number), part.digest, part.size, part.offset, piece)
            at += part.length
        return Done(message.request_id)

    def _check_space(self, program: _Program, needed: int) -> None:
        """Raise `OSError` if the disk is too full, before data is sent."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        free = shutil.disk_usage(self._directory).free
        if needed > free:
            self._blobs.shrink(program.needs, 0)  # contents kept for later may be what fills the disk
            free = shutil.disk_usage(self._directory).free
        if needed > free:
            raise OSError(errno.ENOSPC, f"{_mib(needed)} are needed and {_mib(free)} are free", str(self._directory))

    def _explained(self, error: OSError) -> str:
        where = f"files cannot be written on {host_name()}: {error.strerror} ({error.filename or self._directory})"
        if error.errno not in _FULL:
            return where
        return f"{where}. Free space there, or start that worker with TMPDIR set to a larger disk."


def _tell(link: Link, answer: Message) -> None:
    link.tell(answer)


def _is_same(path: str, device: int, inode: int) -> bool:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return (status.st_dev, status.st_ino) == (device, inode)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
