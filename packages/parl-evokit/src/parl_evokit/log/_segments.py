"""The files of a log: reading the new records of a segment from all of its copies, and removing used segments.

Copies are read together: a record that is damaged or missing in one copy is taken from another, and each record counts
once, because its place in the segment identifies it. A file is read piece by piece, so that memory does not grow with
its size; records of many small segments are decoded together.

    file ─► pieces ─► good frames ─► Batch ─► columns
                           │
                           └─► damage, (start, end)

A segment can be removed after all of it has been used, if no writer has it open and it has no records of another model:
the solver's ledger does not say whether that one has used them. It is deleted, or first written into an archive: one
segment for each fingerprint and run, instead of thousands of small ones. The ledger drops removed segments
automatically. While segments are archived, they are in a folder of the log that has the name of the archive:

    log/*.evl ─► rename ─► log/archiving-N/ ─► archive-N.evl, whole or not at all ─► remove the folder

Two processes that run at the same time divide the segments between them, and a later run completes the work of a killed
one, so an archive has each record once.
"""

import contextlib
import errno
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from os import PathLike
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from parl_core.atomic_write import atomic_write
from parl_evokit._directories import path_of, try_lock
from parl_evokit._samples import DecodedRecords, Samples, decode_spans
from parl_evokit.errors import LogError, RecordError, StorageError
from parl_evokit.log._frames import (
    FORMAT_TAG,
    HEAD,
    SUFFIX,
    Frames,
    Header,
    cut_off,
    find_frames,
    frame,
    is_header,
    scan,
)

__all__ = [
    "QUARANTINE",
    "Batch",
    "FileGone",
    "FileUnreadable",
    "LogFile",
    "RetentionReport",
    "SegmentReport",
    "compact",
    "files_of",
    "prune",
    "read_header",
    "read_segment",
    "stretch_of",
    "used_files",
]


HEADERS = 1024  # bytes within which a segment's two headers lie
PIECE = 4 * 2**20  # bytes read at a time: some 100 000 records
BATCH = 4 * 2**20  # bytes decoded at a time
QUARANTINE = "quarantine"
STAGED = "archiving-"  # folder of segments that are on their way into an archive, and the archive's name
DIGITS = 12  # length of a segment's name at the end of its file's name
DAY_S = 86400.0
# Errors of one file, not of the process or system:
OF_ONE_FILE = {errno.EACCES, errno.EPERM, errno.EIO, errno.EISDIR, errno.ESPIPE, errno.ELOOP, errno.ENAMETOOLONG}


class FileGone(LogError):
    """A listed file of the log has been removed or archived."""


class FileUnreadable(LogError):
    """A single file of a log cannot be read: a permission is missing, or the disk is damaged.

    Attributes:
        path: The file.
        reason: The reason.
    """

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path} cannot be read: {error}")
        self.path = path
        self.reason = error.strerror


@dataclass(frozen=True)
class LogFile:
    """One file of a log.

    Attributes:
        path: Path of the file.
        size: Size in bytes when the log was listed; later records are read by the next call.
    """

    path: Path
    size: int

    @property
    def digits(self) -> str:
        """The first digits of the segment's name, from a file name of `LogWriter`; else empty."""
        name = self.path.name
        return name[-DIGITS - len(SUFFIX) : -len(SUFFIX)] if name.endswith(SUFFIX) else ""


def files_of(paths: Iterable[str | PathLike[str]]) -> list[LogFile]:
    """Return all files of these logs; for directories, the segments in them.

    Raises:
        LogError: A path is neither a directory nor a file, or cannot be read.
    """
    files: list[LogFile] = []
    for path in (path_of(path, LogError) for path in paths):
        try:
            if path.is_dir():
                with os.scandir(path) as entries:
                    for name in sorted(entry.name for entry in entries if entry.name.endswith(SUFFIX)):
                        with contextlib.suppress(FileNotFoundError):  # it has been removed
                            files.append(LogFile(path / name, _size_of(path / name)))
                continue
            if path.is_file():
                files.append(LogFile(path, os.stat(path).st_size))
                continue
        except OSError as error:
            raise LogError(f"{path} cannot be read: {error}") from error
        absent = "" if path.exists() else ": it does not exist (a service makes it when it opens its log)"
        raise LogError(f"{path} is neither a log's directory nor a file{absent}")
    return files


def _size_of(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        if error.errno in OF_ONE_FILE:  # reading it will say so of this file alone
            return 0
        raise


def stretch_of(path: Path, start: int, stop: int) -> bytes:
    """Return a file's bytes from `start` to before `stop`.

    Raises:
        FileGone: The file has been removed.
        FileUnreadable: This file cannot be read, but others perhaps can.
        LogError: No file can be read at the moment.
    """
    with _reading(path) as descriptor:
        return _read(descriptor, start, stop)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[int]:
    try:
        with open(path, "rb", buffering=0, opener=_opened) as file:
            yield file.fileno()
    except FileNotFoundError as error:
        raise FileGone(f"{path} cannot be read: {error}") from error
    except OSError as error:
        if error.errno in OF_ONE_FILE:
            raise FileUnreadable(path, error) from error
        raise LogError(f"{path} cannot be read: {error}") from error


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # reading must not wait for a pipe of that name


def _read(descriptor: int, start: int, stop: int) -> bytes:
    os.lseek(descriptor, start, os.SEEK_SET)
    parts: list[bytes] = []
    while start < stop and (part := os.read(descriptor, stop - start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def read_header(file: LogFile) -> tuple[Header | None, str]:
    """Return the header of a segment, or the reason why there is none.

    Returns:
        The header and an empty text; None and the reason for records without a header; None and an empty text if
        nothing is complete yet, and for a file in the raw form.

    Raises:
        FileGone: The file has been removed.
        LogError: The file cannot be read.
    """
    beginning = stretch_of(file.path, 0, min(file.size, HEADERS))
    payloads = scan(beginning).payloads
    if file.path.suffix != SUFFIX and not any(map(is_header, payloads)):
        return None, ""
    if not payloads and file.size > HEADERS:
        payloads = scan(stretch_of(file.path, 0, min(file.size, PIECE))).payloads
        if not payloads:
            return None, "it is completely damaged"
    for payload in payloads:
        if is_header(payload):
            try:
                return Header.decode(payload), ""
            except RecordError as error:
                return None, str(error)
    if payloads:
        return None, ("both headers are damaged, so the model of its records and their use are unknown")
    return None, ""


@dataclass
class SegmentReport:
    """The findings in one file.

    Attributes:
        path: The file.
        segment: Name of the segment; for a file in the raw form, a digest of its contents.
        records: Number of good records that had not been used yet, nor found in another copy.
        damage: (start, end) of the damaged parts.
        unread: Number of bytes at the end that are not a complete record: not yet written, or cut off.
        problem: Reason why the file could not be used; empty if it could.
        size: Size of the file, in bytes.
        made_good: Number of damaged bytes that another copy of the segment has.
        moved: Path of the file after it was moved aside; None if it was not.
    """

    path: Path
    segment: str
    records: int
    damage: list[tuple[int, int]]
    unread: int
    problem: str = ""
    size: int = 0
    made_good: int = 0
    moved: Path | None = None

    @property
    def lost_bytes(self) -> int:
        """Number of damaged bytes that no copy of the segment has."""
        return self.damaged_bytes - self.made_good

    @property
    def damaged_bytes(self) -> int:
        """Number of damaged bytes."""
        return sum(end - start for start, end in self.damage)

    def save_damaged(self) -> Path | None:
        """Write the damaged bytes to `<file>.damaged`; return its path, or None if nothing is damaged.

        Bytes that are already in that file are not added again.
        """
        if not self.damage:
            return None
        target = self.path.with_name(self.path.name + ".damaged")
        kept = target.read_bytes() if target.exists() else b""
        stretches = [stretch_of(self.moved or self.path, start, end) for start, end in self.damage]
        with target.open("ab") as file:
            for stretch in stretches:
                if stretch not in kept:
                    file.write(stretch)
        return target

    def quarantine(self) -> Path | None:
        """Move the file into `quarantine/` beside it; return its new path, which is also in `moved`.

        Return None if the file is not moved, because a writer has it open or the directory is not writable.
        """
        target = self.path.parent / QUARANTINE / self.path.name
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError:
            return None
        try:
            if not try_lock(descriptor):
                return None
            target.parent.mkdir(exist_ok=True)
            while target.exists():
                target = target.with_name(f"again-{target.name}")
            self.path.rename(target)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        self.moved = target
        return target


@dataclass
class Batch:
    """Records of many segments, decoded together.

    Attributes:
        parts: The decoded records.
        refused: Numbers of rejected tokens, by the number of the reason.
        earliest_us: The earliest time in a record; 0 without times.
        latest_us: The latest time; 0 without times.
    """

    parts: list[DecodedRecords] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)
    earliest_us: int = 0
    latest_us: int = 0
    _waiting: list[tuple[bytes, NDArray[np.int64], NDArray[np.int64], int, SegmentReport, int]] = field(
        default_factory=list
    )
    _size: int = 0

    def add(
        self,
        data: bytes,
        starts: Sequence[int] | NDArray[np.int64],
        ends: Sequence[int] | NDArray[np.int64],
        fingerprint: int,
        report: SegmentReport,
        origin: int,
    ) -> None:
        """Add the payloads of a piece of a segment.

        Args:
            data: The piece.
            starts: Index of the first byte of each payload.
            ends: Index after the last byte of each payload.
            fingerprint: Fingerprint of the segment.
            report: Report of the file; payloads that are not records are added to its damage.
            origin: Index of the piece in the file.
        """
        if not len(starts):
            return
        places = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
        self._waiting.append((data, *places, fingerprint, report, origin))
        self._size += len(data)
        if self._size >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Decode the payloads that wait."""
        if not self._waiting:
            return
        offsets = np.cumsum([0, *(len(part[0]) for part in self._waiting)]).tolist()
        content = self._waiting[0][0] if len(self._waiting) == 1 else b"".join(part[0] for part in self._waiting)
        starts = np.concatenate([part[1] + offset for part, offset in zip(self._waiting, offsets, strict=False)])
        ends = np.concatenate([part[2] + offset for part, offset in zip(self._waiting, offsets, strict=False)])
        counts = [len(part[1]) for part in self._waiting]
        prints = np.repeat(np.array([part[3] for part in self._waiting], np.uint32), counts)
        found = decode_spans(content, starts, ends, prints)
        for row in found.unreadable:
            number = int(np.searchsorted(offsets, starts[row], "right")) - 1
            _, _, _, _, report, origin = self._waiting[number]
            place = origin - offsets[number]
            report.records -= 1
            report.problem = "it has a whole frame that is not a record"
            report.damage.append((int(starts[row]) - HEAD.size + place, int(ends[row]) + place))
        self.parts.append(found)
        self.refused.update(found.refused)
        self.earliest_us = min(filter(None, (self.earliest_us, found.earliest_us)), default=0)
        self.latest_us = max(self.latest_us, found.latest_us)
        self._waiting, self._size = [], 0

    def samples(self) -> tuple[Samples, Samples]:
        """Return all rewards and all served samples, and remove them from the batch."""
        self.flush()
        rewarded, served = [part.rewarded for part in self.parts], [part.served for part in self.parts]
        self.parts.clear()
        return _together(rewarded), _together(served)


def _together(parts: list[Samples]) -> Samples:
    """Return all rows, and empty the list: column by column, so that memory holds one column twice, not all."""
    columns = [{**vars(part)} for part in parts if len(part)]
    parts.clear()
    if not columns:
        return Samples.of([], [])
    return Samples(*(np.concatenate([part.pop(name) for part in columns]) for name in Samples.__dataclass_fields__))


def read_segment(
    copies: Sequence[LogFile], header: Header, used: int, batch: Batch, until: int | None = None
) -> tuple[list[SegmentReport], int]:
    """Read the copies of one segment.

    Args:
        copies: One or more files with the same name in their headers.
        header: Their header.
        used: Number of bytes that have been used.
        batch: The batch to which new records are added.
        until: Number of bytes up to which to read. Default: to the end.

    Returns:
        The findings in each file, and the number of bytes of the segment that are used now.
    """
    if len(copies) == 1:
        limit = copies[0].size if until is None else min(copies[0].size, until)
        report = SegmentReport(copies[0].path, header.segment, 0, [], 0, size=copies[0].size)
        end = used
        for data, origin, found in _pieces(copies[0].path, used, limit):
            starts, stops = np.array(found.places, np.int64) + HEAD.size, np.array(found.ends, np.int64)
            records = starts == stops
            content = np.frombuffer(data, np.uint8)
            records[~records] = content[starts[~records]] != FORMAT_TAG  # all others are headers
            report.damage += [(start + origin, stop + origin) for start, stop in found.damage]
            report.records += int(np.count_nonzero(records))
            batch.add(data, starts[records], stops[records], header.fingerprint, report, origin)
            end = origin + found.end
        stop = _end_of_damage(copies[0].path, end, limit)
        report.damage += [(end, stop)] if stop > end else []
        report.unread = max(0, limit - stop)
        return [report], max(used, stop)
    reports: list[SegmentReport] = []
    whole: dict[int, int] = {}  # where good frames begin and end, in any copy
    ends = [used]
    for copy in copies:
        limit = copy.size if until is None else min(copy.size, until)
        if limit <= used:  # nothing new, or an older, shorter copy
            reports.append(SegmentReport(copy.path, header.segment, 0, [], 0))
            continue
        data = stretch_of(copy.path, used, limit)
        found = find_frames(data)
        damage = [(used + start, used + end) for start, end in found.damage]
        report = SegmentReport(copy.path, header.segment, 0, damage, 0, size=copy.size)
        for place, end in zip(found.places, found.ends, strict=True):
            if used + place in whole:
                continue
            whole[used + place] = used + end
            payload = data[place + HEAD.size : end]
            if not is_header(payload):
                report.records += 1
                batch.add(payload, [0], [len(payload)], header.fingerprint, report, used + place + HEAD.size)
        stop = _end_of_damage(copy.path, used + found.end, limit)
        report.damage += [(used + found.end, stop)] if stop > used + found.end else []
        report.unread = limit - stop
        reports.append(report)
        ends.append(stop)
    for report in reports:
        for start, end in report.damage:
            report.made_good += sum(stop - place for place, stop in whole.items() if start <= place < end)
    return reports, max(ends)


def _end_of_damage(path: Path, end: int, limit: int) -> int:
    """Return the end of the damage behind the last good frame, after which a frame may still be written."""
    if end >= limit or not _at_rest(path, inf, without_locks=False):
        return end
    return end + cut_off(stretch_of(path, end, limit))


def _pieces(path: Path, start: int, limit: int) -> Iterator[tuple[bytes, int, Frames]]:
    """Yield pieces of a file with their good frames; a frame that a piece cuts off is in the next one whole."""
    if limit <= start:
        return
    with _reading(path) as descriptor:
        size = PIECE
        while start < limit:
            data = _read(descriptor, start, min(limit, start + size))
            if not data:
                return
            found = find_frames(data)
            last = start + len(data) >= limit
            if found.end or last:
                yield data, start, found
                if last:
                    return
                start, size = start + found.end, PIECE
            else:
                size *= 2  # the block is completely damaged: continue after it


@dataclass
class RetentionReport:
    """The outcome of retention.

    Attributes:
        segments: Files that were removed, or would be.
        size: Total size of these files, in bytes.
        kept: Number of files that were kept.
        archives: Archives that were written.
        records: Number of records in these archives.
    """

    segments: list[Path] = field(default_factory=list)
    size: int = 0
    kept: int = 0
    archives: list[Path] = field(default_factory=list)
    records: int = 0


def used_files(
    paths: Iterable[str | PathLike[str]], ledger: Mapping[str, int], fingerprint: int | None, older_than_days: float
) -> Iterator[tuple[LogFile, Header | None]]:
    """Yield all segments of logs, with the header if the segment can be removed, else with None."""
    latest = time.time() - older_than_days * DAY_S
    for file in files_of(paths):
        try:
            header, _ = read_header(file) if file.path.suffix == SUFFIX else (None, "")
            used = header is not None and _has_no_more(file, ledger.get(header.segment))
            used = used and (fingerprint is None or _is_of(file, header, fingerprint))
        except FileGone:
            continue
        except FileUnreadable:  # updates leave it out as well, until it can be read
            header, used = None, False
        yield file, header if used and _at_rest(file.path, latest, without_locks=older_than_days > 0) else None


def _has_no_more(file: LogFile, end: int | None) -> bool:
    """Return whether a segment that has been used up to here holds no other record.

    A torn or damaged end, which no writer continues, does not keep the file.
    """
    return end is not None and not find_frames(stretch_of(file.path, end, file.size)).places


def _is_of(file: LogFile, header: Header | None, fingerprint: int) -> bool:
    """Return whether all records of a segment are of this model, or do not say of which."""
    batch = Batch()
    if header is not None:
        read_segment([file], header, 0, batch)
    foreign = (~np.isin(part.fingerprints, (0, fingerprint)) for part in batch.samples())
    return not any(rows.any() for rows in foreign)


def prune(
    paths: Iterable[str | PathLike[str]],
    ledger: Mapping[str, int],
    *,
    fingerprint: int | None = None,
    older_than_days: float = 0.0,
    dry_run: bool = False,
) -> RetentionReport:
    """Remove segments of which everything has been used.

    Args:
        paths: Logs.
        ledger: Ledger of the newest solver.
        fingerprint: Fingerprint of that solver; segments with records of another model are kept. Default: the records
            of all models may go.
        older_than_days: Age of segments to remove at least, in days since the last write. On a file system without
            locks, which does not show writers, segments stay unless an age above 0 is given.
        dry_run: Only report the segments that would be removed.

    Raises:
        LogError: A log cannot be read.
        StorageError: A file cannot be removed.
    """
    result = RetentionReport()
    for file, header in used_files(paths, ledger, fingerprint, older_than_days):
        if header is None:
            result.kept += 1
            continue
        result.segments.append(file.path)
        result.size += file.size
        if not dry_run:
            _remove(file.path)
    return result


def compact(
    paths: Iterable[str | PathLike[str]],
    ledger: Mapping[str, int],
    archive: str | PathLike[str],
    *,
    fingerprint: int | None = None,
    older_than_days: float = 0.0,
) -> RetentionReport:
    """Write segments of which everything has been used into few large ones elsewhere, and remove them.

    Args:
        paths: Logs.
        ledger: Ledger of the newest solver.
        archive: A directory that is not one of the logs; it is made if necessary.
        fingerprint: As for `prune`.
        older_than_days: Age of segments to archive at least, in days since the last write.

    Raises:
        LogError: A log cannot be read, or the archive is one of them.
        StorageError: The archive cannot be written, or a file cannot be removed.
    """
    logs = [path_of(path, LogError) for path in paths]
    target = path_of(archive, StorageError)
    if any(os.path.realpath(log) == os.path.realpath(target) for log in logs):
        raise LogError(f"{target} is one of the logs, so its records would count again: choose another directory")
    result, archived = RetentionReport(), _Archived()
    with contextlib.ExitStack() as locks:
        left = [staged for log in logs for staged in sorted(log.glob(f"{STAGED}*"))]
        folders = [staged for staged in left if locks.enter_context(_exclusive(staged))]
        together: dict[tuple[Path, int], list[Path]] = {}
        for file, header in used_files(logs, ledger, fingerprint, older_than_days):
            if header is None:
                result.kept += 1
            else:
                together.setdefault((file.path.parent, header.fingerprint), []).append(file.path)
        try:
            for (log, _), files in together.items():
                staged = log / f"{STAGED}{secrets.token_hex(16)}"
                with _making(staged):
                    staged.mkdir()
                    if locks.enter_context(_exclusive(staged)):
                        folders.append(staged)
                        for path in files:
                            with contextlib.suppress(FileNotFoundError):  # another process was faster
                                path.rename(staged / path.name)
            # First the folders that a killed run has archived: others may have copies of their records.
            folders.sort(key=lambda staged: not os.path.exists(_archive_of(staged, target)))
            for staged in folders:
                _into_archive(staged, _archive_of(staged, target), result, archived)
        except BaseException:
            for staged in folders:
                if not os.path.exists(_archive_of(staged, target)):
                    _give_back(staged)
            raise
        # Files are removed after all are archived, because a run that completes this one must know all archived
        # records.
        for staged in folders:
            _remove_folder(staged, result)
    return result


class _Archived:
    """The records that one run of `compact` has archived, by segment and position, because logs may have copies."""

    def __init__(self) -> None:
        self._places: dict[str, set[int]] = {}

    def others_of(self, files: Iterable[Path]) -> Iterator[bytes]:
        """Yield the payloads of the records that are not archived yet, and count them as archived."""
        for file in files:
            header, _ = read_header(LogFile(file, file.stat().st_size))
            places = self._places.setdefault(header.segment if header else str(file), set())
            data = stretch_of(file, 0, file.stat().st_size)
            found = find_frames(data)
            for place, end in zip(found.places, found.ends, strict=True):
                payload = data[place + HEAD.size : end]
                if place not in places and not is_header(payload):
                    places.add(place)
                    yield payload


@contextlib.contextmanager
def _making(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}") from error


@contextlib.contextmanager
def _exclusive(staged: Path) -> Iterator[bool]:
    """Yield True if no other process is archiving these files, and exclude others until the end."""
    try:
        descriptor = os.open(staged, os.O_RDONLY)
    except OSError:  # it is finished
        yield False
        return
    try:
        try:
            mine = try_lock(descriptor) and staged.exists()
        except OSError:  # a file system without locks
            mine = True
        yield mine
    finally:
        os.close(descriptor)


def _archive_of(staged: Path, target: Path) -> Path:
    return target / f"archive-{staged.name.removeprefix(STAGED)[:DIGITS]}{SUFFIX}"


def _into_archive(staged: Path, path: Path, result: RetentionReport, archived: _Archived) -> None:
    """Write a folder of files into one segment, unless that has been done."""
    files = sorted(staged.iterdir())
    records = archived.others_of(files)
    if os.path.exists(path):
        for _ in records:  # archived already
            pass
    elif files:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for left in path.parent.glob(f".{path.name}.*.tmp"):  # left by a killed run
                left.unlink(missing_ok=True)
            with atomic_write(path) as out:  # even without records, because it shows a later run that all are archived
                result.records += _write_together(out, staged.name.removeprefix(STAGED), files[0], records)
            result.archives.append(path)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error}; no segment was removed") from error


def _give_back(staged: Path) -> None:
    """Move the files of a folder back into the log; a later run finds the rest."""
    with contextlib.suppress(OSError):
        for file in sorted(staged.iterdir()):
            file.rename(staged.parent / file.name)
        staged.rmdir()


def _remove_folder(staged: Path, result: RetentionReport) -> None:
    """Remove a folder of files that are in an archive."""
    for file in sorted(staged.iterdir()):
        size = file.stat().st_size
        _remove(file)
        result.segments.append(staged.parent / file.name)
        result.size += size
    with _making(staged):
        staged.rmdir()


def _write_together(out: IO[bytes], name: str, file: Path, records: Iterable[bytes]) -> int:
    """Write a segment of this name that has these records, with the fingerprint of a file; return their number."""
    header, _ = read_header(LogFile(file, file.stat().st_size))
    head = frame(Header(name, header.fingerprint if header else 0, time_us=time.time_ns() // 1000).encode())
    out.write(head + head)
    count = 0
    for payload in records:
        out.write(frame(payload))
        count += 1
    return count


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)  # two may prune at once
    except OSError as error:
        raise StorageError(f"{path} cannot be removed: {error}") from error


def _at_rest(path: Path, latest: float, *, without_locks: bool) -> bool:
    """Return whether a segment was not written to after that time, and no writer has it open.

    Args:
        path: Of the segment.
        latest: The time, in seconds since 1970.
        without_locks: The result on a file system without locks.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.fstat(descriptor).st_mtime <= latest and try_lock(descriptor)
    except OSError:  # a file system without locks
        return without_locks
    finally:
        os.close(descriptor)
