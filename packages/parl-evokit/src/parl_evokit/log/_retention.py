"""Retention: what of a log may go, and its archive.

A segment may go once all of it has been used and no writer has it open. Those that go are removed, or first written
into an archive: one segment for each fingerprint and run, instead of thousands of small ones. The ledger forgets what
is gone by itself.
"""

import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from parl_core.atomic_write import atomic_write
from parl_evokit._locking import try_lock
from parl_evokit.errors import LogError, StorageError
from parl_evokit.log._frames import SUFFIX, Header, frame, is_header, scan
from parl_evokit.log._segments import LogFile, files_of, read_header, stretch_of

__all__ = ["Removed", "compact", "prune", "used_files"]

DAY_S = 86400.0


@dataclass
class Removed:
    """The outcome of retention.

    Attributes:
        segments: Files that are gone, or would be.
        size: Their bytes.
        kept: Files that stay.
        archives: Segments that were written.
        records: How many records are in these.
    """

    segments: list[Path] = field(default_factory=list)
    size: int = 0
    kept: int = 0
    archives: list[Path] = field(default_factory=list)
    records: int = 0


def used_files(
    paths: Iterable[str | PathLike[str]], ledger: Mapping[str, int], older_than_days: float
) -> Iterator[tuple[LogFile, Header | None]]:
    """Yield all segments of logs; with its header one that may go, with None one that has to stay."""
    latest = time.time() - older_than_days * DAY_S
    for file in files_of(paths):
        header, _ = read_header(file) if file.path.suffix == SUFFIX else (None, "")
        used = header is not None and ledger.get(header.segment, -1) >= file.size
        yield file, header if used and os.stat(file.path).st_mtime <= latest and not _in_use(file.path) else None


def prune(
    paths: Iterable[str | PathLike[str]],
    ledger: Mapping[str, int],
    *,
    older_than_days: float = 0.0,
    dry_run: bool = False,
) -> Removed:
    """Remove segments of which everything has been used.

    Args:
        paths: Logs.
        ledger: Of the newest solver.
        older_than_days: Those that were written to since stay.
        dry_run: Only say what would go.

    Raises:
        LogError: A log cannot be read.
        StorageError: A file cannot be removed.
    """
    result = Removed()
    for file, header in used_files(paths, ledger, older_than_days):
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
    older_than_days: float = 0.0,
) -> Removed:
    """Write segments of which everything has been used into few large ones elsewhere, and remove them.

    Args:
        paths: Logs.
        ledger: Of the newest solver.
        archive: A directory that is none of the logs; it is made if need be.
        older_than_days: Those that were written to since stay.

    Raises:
        LogError: A log cannot be read, or the archive is one of them.
        StorageError: The archive cannot be written, or a file cannot be removed.
    """
    logs = list(paths)
    target = Path(archive)
    if any(os.path.realpath(log) == os.path.realpath(target) for log in logs):
        raise LogError(f"{target} is the log itself: its records would be new again; choose another directory")
    result = Removed()
    by_print: dict[int, list[LogFile]] = {}
    for file, header in used_files(logs, ledger, older_than_days):
        if header is None:
            result.kept += 1
        else:
            by_print.setdefault(header.fingerprint, []).append(file)
    for fingerprint, files in by_print.items():
        name = secrets.token_hex(16)
        path = target / f"archive-{time.strftime('%Y%m%d', time.gmtime())}-{name[:12]}{SUFFIX}"
        try:
            target.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as out:
                head = frame(Header(name, fingerprint, time_us=time.time_ns() // 1000).encode())
                out.write(head + head)
                for file in files:
                    payloads = scan(stretch_of(file.path, 0, file.size)).payloads
                    records = [frame(payload) for payload in payloads if not is_header(payload)]
                    out.write(b"".join(records))
                    result.records += len(records)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error}; nothing has been removed for it") from error
        result.archives.append(path)
        for file in files:
            _remove(file.path)
            result.segments.append(file.path)
            result.size += file.size
    return result


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise StorageError(f"{path} cannot be removed: {error}") from error


def _in_use(path: Path) -> bool:
    """Return whether a writer has the segment open; one that cannot be opened counts as in use."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return True
    try:
        return not try_lock(descriptor)
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
