"""The files of a log, and what is new in one segment, of which there may be several copies.

Copies are read together: a record that is damaged or missing in one of them is taken from another, and each counts
once, because its place in the segment says which it is.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from parl_evokit._samples import Decoded, decode
from parl_evokit.errors import LogError, RecordError
from parl_evokit.log._frames import HEAD, SUFFIX, Header, Scan, is_header, scan

__all__ = [
    "LogFile",
    "SegmentReport",
    "files_of",
    "look_into",
    "nameless_segment",
    "read_segment",
    "require_little_damage",
    "stretch_of",
]


HEADERS = 1024  # bytes within which a segment's two headers lie


@dataclass(frozen=True)
class LogFile:
    """One file of a log.

    Attributes:
        path: Where it is.
        size: In bytes, when it was looked into; what is appended later is read another time.
        is_segment: Whether it has frames; else it is in the raw form.
        header: Of a segment; None where not even one header is whole yet.
    """

    path: Path
    size: int
    is_segment: bool
    header: Header | None = None


def files_of(paths: Iterable[str | PathLike[str]]) -> list[Path]:
    """Return all files of these logs: of directories the segments in them.

    Raises:
        LogError: A path is neither a directory nor a file.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += sorted(path.glob(f"*{SUFFIX}"))
        elif path.is_file():
            files.append(path)
        else:
            raise LogError(f"{path} is neither a log's directory nor a file")
    return files


def look_into(path: Path) -> LogFile:
    """Return what a file is, from its beginning.

    Raises:
        LogError: It cannot be read, or is a segment of which both headers are damaged.
    """
    size = _size(path)
    beginning = stretch_of(path, 0, min(size, HEADERS))
    payloads = scan(beginning).payloads
    if path.suffix != SUFFIX and not any(map(is_header, payloads)):
        return LogFile(path, size, is_segment=False)
    header = _header(path, payloads or scan(stretch_of(path, 0, size)).payloads)
    return LogFile(path, size, is_segment=True, header=header)


def stretch_of(path: Path, start: int, stop: int) -> bytes:
    """Return a file's bytes from `start` to before `stop`.

    Raises:
        LogError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(max(0, stop - start))
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error}") from error


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error}") from error


def _header(path: Path, payloads: list[bytes]) -> Header | None:
    for payload in payloads:
        if is_header(payload):
            try:
                return Header.decode(payload)
            except RecordError as error:
                raise LogError(f"{path}: {error}") from error
    if payloads:
        raise LogError(
            f"{path}: both headers are damaged, so it is not known whose its records are, nor which of them are used "
            "already: move the file away to use the rest of the log"
        )
    return None


@dataclass
class SegmentReport:
    """The findings in one file.

    Attributes:
        path: The file.
        segment: The segment's name; of a file in the raw form, one made of its contents.
        records: Good records that had not been used yet, nor found in another copy.
        damage: (start, end) of the stretches that do not hold.
        unread: Bytes at the end that are not a whole record: not yet written, or cut off.
    """

    path: Path
    segment: str
    records: int
    damage: list[tuple[int, int]]
    unread: int

    @property
    def damaged_bytes(self) -> int:
        """The length of all damaged stretches."""
        return sum(end - start for start, end in self.damage)

    def save_damaged(self) -> Path | None:
        """Keep the damaged bytes in `<file>.damaged`; return its path, None where nothing is damaged.

        Bytes that it has already are not added again.
        """
        if not self.damage:
            return None
        target = self.path.with_name(self.path.name + ".damaged")
        kept = target.read_bytes() if target.exists() else b""
        stretches = [stretch_of(self.path, start, end) for start, end in self.damage]
        with target.open("ab") as file:
            for stretch in stretches:
                if stretch not in kept:
                    file.write(stretch)
        return target


def read_segment(
    copies: Sequence[LogFile], used: int, max_damage: float, until: int | None = None
) -> tuple[list[SegmentReport], Decoded, int]:
    """Read the copies of one segment.

    Args:
        copies: One or more files with the same name in their headers.
        used: Up to which byte it has been used.
        max_damage: The part of a copy's bytes that may be damaged, unless another copy has them.
        until: Where to stop. Default: at the end.

    Returns:
        What was found in each file, the new records, and up to which byte the segment is used now.

    Raises:
        LogError: Too much is damaged, or a frame holds what is no record.
    """
    header = copies[0].header
    assert header is not None
    limits = [copy.size if until is None else min(copy.size, until) for copy in copies]
    scans = [_scan(copy.path, used, limit) for copy, limit in zip(copies, limits, strict=True)]
    frames = _united(scans)
    reports: list[SegmentReport] = []
    counted: set[int] = set()
    for copy, limit, found in zip(copies, limits, scans, strict=True):
        new = [place for place, payload in zip(found.places, found.payloads, strict=True) if not is_header(payload)]
        own = new if len(copies) == 1 else [place for place in new if place not in counted]
        if len(copies) > 1:
            counted.update(own)
        report = SegmentReport(copy.path, header.segment, len(own), found.damage, max(0, limit - found.end))
        require_little_damage(report, frames if len(copies) > 1 else {}, copy.size, max_damage)
        reports.append(report)
    payloads = scans[0].payloads if len(copies) == 1 else [frames[place] for place in sorted(frames)]
    try:
        part = decode([payload for payload in payloads if not is_header(payload)], header.fingerprint)
    except RecordError as error:
        names = ", ".join(str(copy.path) for copy in copies)
        raise LogError(f"{names} has a whole frame that is not a record: {error}") from error
    return reports, part, max(used, *(found.end for found in scans))


def nameless_segment(file: LogFile) -> SegmentReport:
    """Report a file in which no frame holds: the beginning of a first write, or damaged from end to end."""
    if file.size <= HEADERS:
        return SegmentReport(file.path, "", 0, [], file.size)
    return SegmentReport(file.path, "", 0, [(0, file.size)], 0)


def _scan(path: Path, used: int, limit: int) -> Scan:
    """Return frames from where the segment has been used; places count from the file's beginning."""
    if limit <= used:  # nothing new, or an older copy that is shorter than what was used
        return Scan([], [], [], limit)
    found = scan(stretch_of(path, used, limit))
    return Scan(
        found.payloads,
        [used + place for place in found.places],
        [(used + start, used + end) for start, end in found.damage],
        used + found.end,
    )


def _united(scans: Sequence[Scan]) -> dict[int, bytes]:
    """Return the frames of several copies by place."""
    frames: dict[int, bytes] = {}
    if len(scans) > 1:
        for found in scans:
            frames.update(zip(found.places, found.payloads, strict=True))
    return frames


def require_little_damage(report: SegmentReport, others: dict[int, bytes], size: int, max_damage: float) -> None:
    """Refuse a file of which too much is damaged.

    Args:
        report: What was found in it.
        others: Frames of all copies by place: what they have is not lost.
        size: Of the file.
        max_damage: The part of it that may be lost.

    Raises:
        LogError: More than that is.
    """
    lost = report.damaged_bytes
    for start, end in report.damage:
        lost -= sum(HEAD.size + len(payload) for place, payload in others.items() if start <= place < end)
    if lost > max_damage * size:
        raise LogError(
            f"{report.path}: {lost} of {size} bytes are damaged, more than max_damage={max_damage:g} allows; "
            f"{report.records} new records are good. Give a larger max_damage to use them, or move the file away"
        )
