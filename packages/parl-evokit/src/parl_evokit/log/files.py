"""The files of a log, and what a file says of itself: a segment, or the documents' form."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from parl_evokit.errors import LogError, RecordError
from parl_evokit.log.frames import scan
from parl_evokit.log.header import Header, is_header
from parl_evokit.log.writer import SUFFIX

__all__ = ["LogFile", "files_of", "look_into", "stretch_of"]

HEADERS = 1024  # bytes within which a segment's two headers lie


@dataclass(frozen=True)
class LogFile:
    """One file of a log.

    Attributes:
        path: Where it is.
        size: In bytes, when it was looked into; what is appended later is read another time.
        is_segment: Whether it has frames; else it is in the documents' form.
        header: Of a segment; None where not even one header is whole yet.
    """

    path: Path
    size: int
    is_segment: bool
    header: Header | None = None


def files_of(paths: Iterable[str | PathLike[str]]) -> list[Path]:
    """All files of these logs: of directories the segments in them.

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
    """What a file is, from its beginning.

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
    """A file's bytes from `start` to before `stop`.

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
            f"{path}: both headers are damaged, so its records cannot be told from others already used, nor whose they "
            "are: move the file away to use the rest of the log"
        )
    return None
