"""Writing samples and rewards: one `write` per record, on a segment that only this process writes.

With tokens, `sampled` returns a token, and `reward` takes one. The log counts refused tokens, with at most one record
per second, so that the update can report them and an attacker cannot fill the disk.
"""

import contextlib
import errno
import os
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from math import isfinite, isinf
from operator import index
from os import PathLike
from socket import gethostname
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._directories import path_of, try_lock
from parl_evokit._params import array_of
from parl_evokit._records import FLOAT, Record, SamplingInfo, decision, encode_sample
from parl_evokit._samples import NUMBERS
from parl_evokit.errors import InvalidReward, InvalidToken, LogError, RecordError, SecretError, _shown
from parl_evokit.log._frames import SUFFIX, Header, frame
from parl_evokit.tokens import Refusal, Tokens

__all__ = ["LogWriter"]


TALLY_S = 1.0


class LogWriter:
    """A writer of a log, which is a directory of segments; each process writes its own segments.

    Readers see a record as soon as the call returns, even if this process is killed right after; `fsync_every` limits
    the loss if the machine fails, or if someone removes the segment. Threads must not share a writer: each needs its
    own.

    Args:
        directory: The log; it is made if necessary.
        fsync_every: Number of records after which the system writes to disk, 0 or more; 0 for never.
        max_bytes: Size of a segment beyond which a new one is begun, 1 or more.
        max_seconds: Age of a segment after which a new one is begun, above 0, so that old segments can be removed.
        tokens: Issues and redeems tokens: `sampled` returns a token, and `reward` takes only tokens.

    Raises:
        LogError: A number is out of its range, or the directory is a file or cannot be made.
        SecretError: The file of the secret is in the directory of the log.
    """

    def __init__(
        self,
        directory: str | PathLike[str],
        *,
        fsync_every: int = 100,
        max_bytes: int = 64 * 2**20,
        max_seconds: float = 24 * 3600.0,
        tokens: Tokens | None = None,
    ) -> None:
        if fsync_every < 0 or max_bytes < 1 or not max_seconds > 0:
            raise LogError(
                f"fsync_every must be 0 or more, max_bytes 1 or more and max_seconds above 0, not {fsync_every}, "
                f"{max_bytes} and {max_seconds}"
            )
        self._directory = path_of(directory, LogError)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise LogError(f"{directory} is a file; a log is a directory of segments") from error
        except OSError as error:
            raise LogError(f"{directory} cannot be made: {error}") from error
        if tokens is not None and tokens.file is not None and tokens.file.is_relative_to(os.path.realpath(directory)):
            raise SecretError(f"{tokens.file} is in the directory of the log, which is often copied: choose another")
        self._tokens = tokens
        self._refused: Counter[Refusal] = Counter()
        self._counting = os.getpid()  # the process of this tally
        self._tallied = -1.0
        self._fsync_every = fsync_every
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._begun = 0.0
        self._descriptor: int | None = None
        self._owner = 0
        self._fingerprint = 0
        self._size = self._unsynced = 0

    def sampled(
        self,
        info: SamplingInfo,
        *,
        context: Sequence[float] | NDArray[np.floating] = (),
        action: int | None = None,
        propensity: float = 1.0,
    ) -> str:
        """Log that a sample was served; its reward can follow later.

        Args:
            info: Record of the sample.
            context: For `off_policy`, the input on which the action was chosen, finite numbers.
            action: Index of the chosen action, 0 or more; None leaves out context and propensity.
            propensity: Probability with which the action was chosen, above 0 to 1.

        Returns:
            The token of the sample; empty if the log has no tokens.

        Raises:
            RecordError: A number is out of its range.
            LogError: The disk is full, or the segment was removed while it was open (see `sync`).
        """
        token = "" if self._tokens is None else self._tokens.issue(info)
        more = b"" if action is None else _decision(context, action, propensity)
        self._append(info, None, time.time_ns() // 1000, more=more)
        return token

    def reward(self, sample: SamplingInfo | str, reward: float) -> None:
        """Log the reward of a sample, which any process may have served.

        Several rewards of one sample count by their mean; for one token only the first counts.

        Args:
            sample: Record of the sample; with tokens, its token.
            reward: The reward; larger is better.

        Raises:
            RecordError: The reward is not a number, or is beyond float32.
            InvalidReward: With tokens, the reward is not finite; the token stays valid.
            InvalidToken: The token was not issued with these secrets, was changed, or has expired.
            LogError: The disk is full; earlier records are complete, and later calls may succeed. Or as in `sampled`.
        """
        if self._tokens is None:
            if isinstance(sample, str):
                raise RecordError("this log has no tokens: pass the sample's record, or use LogWriter(tokens=)")
            self._append(sample, _number(reward))
            return
        try:
            info = self._tokens.redeem(sample)  # type: ignore[arg-type]  # which refuses a bare record
            try:
                number = _number(reward)
                if not isfinite(number):
                    raise InvalidReward(f"a reward must be a finite number, not {number}")
                FLOAT.pack(number)
            except (RecordError, InvalidReward, OverflowError) as error:
                self._tokens.refuse(Refusal.BAD_REWARD)
                self._refuse(Refusal.BAD_REWARD)
                if isinstance(error, OverflowError):
                    raise RecordError(f"a reward must be a float32 number, for which {number} is too large") from error
                raise
        except InvalidToken as error:
            self._refuse(error.reason)
            raise
        self._append(info, number, time.time_ns() // 1000, token=True)

    def sync(self) -> None:
        """Make the system write all records to disk.

        Raises:
            LogError: The system cannot, or the segment was removed while it was open.
        """
        if self._descriptor is not None and self._owner == os.getpid():
            try:
                os.fsync(self._descriptor)
                removed = os.fstat(self._descriptor).st_nlink == 0
            except OSError as error:
                raise LogError(f"{self._directory} cannot be written to disk: {error}") from error
            self._unsynced = 0
            if removed:
                self._give_back()
                raise LogError(
                    f"a segment of {self._directory} was removed while it was written to, and its records are lost; "
                    "the next record begins a new one"
                )

    def close(self) -> None:
        """Write all records to disk and close the segment; a later record begins a new one.

        Raises:
            LogError: The last records could not be written, or the segment was removed; it is closed nevertheless.
        """
        try:
            if self._own_refused():
                self._tally()
        finally:
            self._end()

    def _end(self) -> None:
        try:
            self.sync()
        finally:
            self._give_back()

    def _give_back(self) -> None:
        """Close all files; the next record begins a segment."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(
        self, info: SamplingInfo, reward: float | None, time_us: int = 0, token: bool = False, more: bytes = b""
    ) -> None:
        if not isinstance(info, SamplingInfo):
            raise RecordError(f"a sample must be a SamplingInfo, not of type {type(info).__name__}")
        # After a fork the open segment is the parent's: two processes must not share one.
        mine = self._descriptor is not None and self._owner == os.getpid()
        fingerprint = info.fingerprint
        # A record without a fingerprint would be read with that of the header.
        nameless = fingerprint == 0 != self._fingerprint
        if not mine or nameless or self._size >= self._max_bytes or self._is_old():
            info.SerializeToString()  # only samples begin a segment
            self._begin(fingerprint)
        if fingerprint == self._fingerprint:  # the header has it: five bytes less in each record
            fingerprint = 0
        self._write(frame(encode_sample(info, fingerprint, reward, time_us, token) + more))
        self._unsynced += 1
        if self._fsync_every and self._unsynced >= self._fsync_every:
            self.sync()

    def _is_old(self) -> bool:
        return time.monotonic() - self._begun > self._max_seconds

    def _refuse(self, reason: Refusal) -> None:
        self._own_refused()[reason] += 1
        if time.monotonic() - self._tallied >= TALLY_S:
            self._tally()

    def _own_refused(self) -> Counter[Refusal]:
        """Return the tally of this process; a forked child begins a new one, because the parent writes its own."""
        if self._counting != os.getpid():
            self._refused, self._counting = Counter(), os.getpid()
        return self._refused

    def _tally(self) -> None:
        """Write the number of tokens rejected since the last call."""
        if self._descriptor is None or self._owner != os.getpid():
            self._begin(self._fingerprint)
        refused = {reason.value: count for reason, count in self._refused.items()}
        self._write(frame(Record(refused=refused).encode()))
        self._refused.clear()
        self._tallied = time.monotonic()

    def _begin(self, fingerprint: int) -> None:
        self._end()
        self._begun = time.monotonic()
        segment = secrets.token_hex(16)
        now = time.time_ns() // 1000
        moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now / 1e6))
        path = self._directory / f"{moment}-{segment[:12]}{SUFFIX}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)  # it may have been removed since
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise LogError(f"{path} cannot be made: {error}") from error
        self._owner, self._fingerprint, self._size = os.getpid(), fingerprint, 0
        with contextlib.suppress(OSError):  # shows readers that the file is in use; not all file systems have locks
            try_lock(self._descriptor)
        header = frame(Header(segment, fingerprint, gethostname(), self._owner, now).encode())
        try:
            self._write(header + header)  # twice, so that no single damage makes the segment nameless
        except LogError:  # no record must go where no header is
            self._give_back()
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise

    def _write(self, data: bytes) -> None:
        assert self._descriptor is not None
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            raise LogError(f"{self._directory} cannot be written to: {error}; the record was not written") from error
        if written != len(data):  # the disk is full: raise the error, and remove the torn frame for readers
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError:  # they skip it as damage; a file longer than `_size` must not be truncated
                self._give_back()
            raise LogError(
                f"only {written} of {len(data)} bytes could be written to {self._directory}: disk full?"
            ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written


def _decision(context: Sequence[float] | NDArray[np.floating], action: int, propensity: float) -> bytes:
    try:
        given = np.asarray(array_of(context))
        if given.dtype.kind not in NUMBERS:  # numpy would make numbers of texts and dates
            raise TypeError(f"these are of type {given.dtype}")
        with np.errstate(over="ignore"):  # beyond float32 becomes infinite
            numbers = given.astype("<f4")
        if not np.isfinite(numbers).all():
            raise ValueError(f"float32 has no {given.ravel()[~np.isfinite(numbers.ravel())][:1].tolist()}")
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"context must be a sequence of finite numbers: {error}") from error
    try:
        number, probability = index(action), float(propensity)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(
            f"action must be an integer and propensity a number, not {_shown(action)} and {_shown(propensity)}"
        ) from error
    return decision(numbers.tobytes(), number, probability)


def _number(reward: Any) -> float:
    if isinstance(reward, str | bytes):
        raise RecordError(f"a reward must be a number, not {reward!r}")
    try:
        number = float(reward)
        if isinf(number) and reward != number:  # for decimals; integers raise themselves
            raise OverflowError("it is too large")
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"a reward must be a float32 number, not {_shown(reward)}: {error}") from error
    return number
