"""Writing samples and rewards: one `write` a record, on a segment that belongs to this process alone."""

import contextlib
import os
import secrets
import time
from os import PathLike
from pathlib import Path
from socket import gethostname
from types import TracebackType

from parl_evokit._records import SamplingInfo, encode_sample
from parl_evokit.errors import LogError, RecordError
from parl_evokit.log._frames import SUFFIX, Header, frame

__all__ = ["LogWriter"]


class LogWriter:
    """Appends to a log: a directory of segments, one for each process and stretch of time.

    A record is there for readers as soon as the call returns, also when this process dies right after; `fsync_every`
    bounds what is lost when the machine dies. Not to be shared among threads: give each one its own.

    Args:
        directory: The log; it is made if need be.
        fsync_every: Records after which the system is asked to write to disk; 0: never.
        max_bytes: A new segment is begun beyond this size.

    Raises:
        LogError: A number is out of its range, or the directory is a file.
    """

    def __init__(self, directory: str | PathLike[str], *, fsync_every: int = 100, max_bytes: int = 64 * 2**20) -> None:
        if fsync_every < 0 or max_bytes < 1:
            raise LogError(f"fsync_every is 0 or more and max_bytes 1 or more, not {fsync_every} and {max_bytes}")
        self._directory = Path(directory)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise LogError(f"{directory} is a file; a log is a directory of segments") from error
        except OSError as error:
            raise LogError(f"{directory} cannot be made: {error}") from error
        self._fsync_every = fsync_every
        self._max_bytes = max_bytes
        self._descriptor: int | None = None
        self._owner = 0
        self._fingerprint = 0
        self._size = self._unsynced = 0

    def sampled(self, info: SamplingInfo) -> None:
        """Note that a sample was served; its reward comes later, or never."""
        self._append(info, None)

    def reward(self, info: SamplingInfo, reward: float) -> None:
        """Note the reward of a sample, wherever it was served; several rewards of one sample count by their mean.

        Raises:
            RecordError: The reward is no number, or none that 32 bits hold.
            LogError: The disk is full; records before this one are there, and later ones may be written.
        """
        try:
            number = float(reward)
        except (TypeError, ValueError) as error:
            raise RecordError(f"a reward is a number, not {reward!r}") from error
        self._append(info, number)

    def sync(self) -> None:
        """Have the system write everything to disk.

        Raises:
            LogError: It cannot.
        """
        if self._descriptor is not None and self._owner == os.getpid():
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                raise LogError(f"{self._directory} cannot be written to disk: {error}") from error
            self._unsynced = 0

    def close(self) -> None:
        """Sync and end the segment; a later call begins a new one."""
        self.sync()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, info: SamplingInfo, reward: float | None) -> None:
        # After a fork the open segment is the parent's: two processes must not share one.
        mine = self._descriptor is not None and self._owner == os.getpid()
        fingerprint = info.fingerprint
        # A record without fingerprint would be read with that of the header.
        nameless = fingerprint == 0 != self._fingerprint
        if not mine or nameless or self._size >= self._max_bytes:
            self._begin(fingerprint)
        if fingerprint == self._fingerprint:  # the header has it: five bytes less in each record
            fingerprint = 0
        self._write(frame(encode_sample(info, fingerprint, reward)))
        self._unsynced += 1
        if self._fsync_every and self._unsynced >= self._fsync_every:
            self.sync()

    def _begin(self, fingerprint: int) -> None:
        self.close()
        segment = secrets.token_hex(16)
        now = time.time_ns() // 1000
        moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now / 1e6))
        path = self._directory / f"{moment}-{segment[:12]}{SUFFIX}"
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise LogError(f"{path} cannot be made: {error}") from error
        self._owner, self._fingerprint, self._size = os.getpid(), fingerprint, 0
        header = frame(Header(segment, fingerprint, gethostname(), self._owner, now).encode())
        try:
            self._write(header + header)  # twice, so that no single damage makes the segment nameless
        except LogError:  # no record must go where no header is
            os.close(self._descriptor)
            self._descriptor = None
            path.unlink(missing_ok=True)
            raise

    def _write(self, data: bytes) -> None:
        assert self._descriptor is not None
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            raise LogError(f"{self._directory} cannot be written to: {error}; the record is not in it") from error
        if written != len(data):  # the disk is full: the caller must know, readers need not see the torn frame
            with contextlib.suppress(OSError):  # they skip it as damage where it stays
                os.ftruncate(self._descriptor, self._size)
            raise LogError(f"only {written} of {len(data)} bytes could be written to {self._directory}: disk full?")
        self._size += written
