"""A worker's part for files: keeps contents, lays out folders for programs, removes them when a program has ended.

    loop's thread   messages --jobs--> one thread of its own: hashes, writes, lays out --answers--> loop's thread

Disks can stall for seconds and starting actors must not, hence the thread, which is started by the first job. A
client sends its next parts when the last ones are written, so that no more than these wait in memory. A disk
that is full fails the request, with the figures; the worker goes on.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from parl_remote.errors import RemoteError, RemoteProtocolError
from parl_remote.files.blobs import Blobs, DamagedBlob
from parl_remote.files.folder import make_folder, remove_folder
from parl_remote.files.manifest import LARGEST_MANIFEST, Manifest, is_digest
from parl_remote.links.handshake import Link
from parl_remote.links.identity import host_name
from parl_remote.links.loop import Loop
from parl_remote.messages import Done, Failed, Message
from parl_remote.messages.files import FilesSeen, FolderAnswer, PrepareFolder, SeeFiles, StoreParts

__all__ = ["KEPT_BYTES", "TAKES", "WorkerFiles"]

_log = logging.getLogger("parl.remote")

TAKES = ("SeeFiles", "PrepareFolder", "StoreParts")
KEPT_BYTES = 4 * 2**30  # a program's data and code, and those of the few before it
_MOST_LACKING = 2000  # hashes in one answer: 130 KB
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_LAST_JOB_S = 0.5  # for the file that is just being written; more would keep `xparl stop` waiting
_TRY_AGAIN_S = 1.0  # an actor that is being ended may still write into its folder


class _Program:
    """One link's folders, by the hash of their manifests."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.folders: dict[str, Path] = {}
        self.needs: set[str] = set()
        self.gone = False


class WorkerFiles:
    """See the module.

    Args:
        loop: The node's loop.
        directory: Where contents and folders go.
        in_use: Gives the directories that actors run in now.
        kept_bytes: Contents beyond this are removed once nobody needs them.
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
        """See `parts.Part`."""
        if isinstance(message, SeeFiles):
            link.tell(FilesSeen(message.request_id, all(_is_same(p.path, p.device, p.inode) for p in message.places)))
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
                raise RemoteProtocolError(f"a frame of {len(frames[1])} bytes is not what its parts say")
            self._do(link, message.request_id, lambda: self._store(program, message, frames[1]))
        else:
            raise RemoteProtocolError(f"files are not handled with {type(message).__name__}")

    def closed(self, link: Link) -> None:
        """A program has ended: its folders go once its actors have ended, too."""
        program = self._programs.pop(link, None)
        if program is not None:
            program.gone = True
            self._clear(program)

    def close(self) -> None:
        """The node ends, and its zygote removes the directory; thousands of files are not waited for here."""
        if self._thread is not None:
            self._closing = True
            self._jobs.put(None)
            self._thread.join(_LAST_JOB_S)

    def _do(self, link: Link, request_id: int, job: Callable[[], Message]) -> None:
        """Have a job done in the other thread, and its outcome told to the client."""

        def attempt() -> None:
            try:
                answer = job()
            except RemoteProtocolError as error:
                answer = Failed(request_id, f"{host_name()} refuses the files: {error}")
            except RemoteError as error:
                answer = Failed(request_id, f"files on {host_name()}: {error}")
            except OSError as error:
                answer = Failed(request_id, self._explained(error))
            self._loop.call_soon(functools.partial(_tell, link, answer))

        self._begin(attempt)

    def _begin(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="parl-files", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _clear(self, program: _Program) -> None:
        """Remove a program's folders as soon as no actor runs in them; detached ones may for long."""
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

        self._begin(attempt)

    def _clear_later(self, program: _Program) -> None:
        self._loop.call_later(_TRY_AGAIN_S, lambda: self._clear(program))

    # -- in the thread of its own --------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._closing:
            job()
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
            _log.warning("%s; it is asked for again", damaged)
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
        """Better now than after half of it has been sent."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        free = shutil.disk_usage(self._directory).free
        if needed > free:
            self._blobs.shrink(program.needs, 0)  # what is kept for later may be what fills the disk
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
