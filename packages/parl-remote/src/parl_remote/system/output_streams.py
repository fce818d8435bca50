"""Which parts of an actor's log came by `sys.stderr`: both streams go to one file, in the order in which they came.

    sys.stdout --> fd 1 -----------------> actor-7.log
    sys.stderr --> fd 2 -----------------> actor-7.log          | start u64 | length u32 | for each write
                    `-- where it went ---> .actor-7.log.streams

What programs that an actor starts write to their stderr, and what C code does, is not marked and counts as stdout.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import sys
from pathlib import Path
from typing import Any

from parl_remote.system.facilities import CLOSE_ON_EXEC

__all__ = ["mark_stderr", "marks_of", "read_marks", "write_marks"]

_MARK = struct.Struct("<QI")
_AT_ONCE = 1000 * _MARK.size


class _MarkedStderr(io.FileIO):
    """Descriptor 2, which must have been opened for itself: only then is its position where its last write ended."""

    def __init__(self, marks: Path) -> None:
        super().__init__(2, "w", closefd=False)
        self._path = marks
        self._marks = -1

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        with contextlib.suppress(OSError):  # a full disk, or the user has put a pipe in its place
            end = os.lseek(2, 0, os.SEEK_CUR)
            if self._marks < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | CLOSE_ON_EXEC
                self._marks = os.open(self._path, flags, 0o600)
            os.write(self._marks, _MARK.pack(end - written, written))
        return written


def mark_stderr(log: Path) -> None:
    """Have Python's stderr leave marks beside the log that descriptor 2 was opened for."""
    raw = io.BufferedWriter(_MarkedStderr(marks_of(log)))
    sys.stderr = io.TextIOWrapper(raw, "utf-8", errors="backslashreplace", line_buffering=True)


def marks_of(log: Path) -> Path:
    """Where the marks of a log are; there is no such file before the first one."""
    return log.with_name(f".{log.name}.streams")


def read_marks(log: Path, start: int, stop: int) -> list[tuple[int, int]]:
    """The parts of a range of a log's bytes that came by stderr, as (start, stop), in order."""
    found: list[tuple[int, int]] = []
    try:
        with open(marks_of(log), "rb") as file:
            file.seek(_first_after(file, start) * _MARK.size)
            while data := file.read(_AT_ONCE):
                for at, length in _MARK.iter_unpack(data[: len(data) // _MARK.size * _MARK.size]):
                    if at >= stop:
                        return found
                    if at + length > start:
                        found.append((max(at, start), min(at + length, stop)))
    except OSError:  # it has not written to stderr
        pass
    return found


def write_marks(log: Path, spans: list[tuple[int, int]]) -> None:
    """Write the marks of a log anew; no spans leave no file."""
    if not spans:
        marks_of(log).unlink(missing_ok=True)
        return
    descriptor = os.open(marks_of(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(b"".join(_MARK.pack(start, stop - start) for start, stop in spans))


def _first_after(file: io.BufferedReader, position: int) -> int:
    """The number of the first mark that may reach beyond a position; marks are in order, but for threads' races."""
    low, high = 0, file.seek(0, os.SEEK_END) // _MARK.size
    while low < high:
        middle = (low + high) // 2
        file.seek(middle * _MARK.size)
        at, length = _MARK.unpack(file.read(_MARK.size))
        if at + length <= position:
            low = middle + 1
        else:
            high = middle
    return max(0, low - 1)
