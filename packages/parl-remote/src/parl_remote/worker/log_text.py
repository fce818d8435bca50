"""Pieces of a log: whole characters, whole lines, the last so many of them, and what a slow reader leaves out."""

from __future__ import annotations

from parl_remote.worker.log_book import LogEntry

__all__ = ["Lines", "last_lines", "next_lines", "whole_characters"]

_LONGEST_LINE = 2**16  # a line that is longer is passed on in parts
_COUNTED_AT_ONCE = 2**22
_LEAD = 0xC0
_CONTINUES = 0x80
_LENGTHS = ((0xF0, 0xF8, 4), (0xE0, 0xF0, 3), (0xC0, 0xE0, 2))  # of a character in UTF-8, by its first byte


def whole_characters(data: bytes) -> int:
    """How many bytes of `data` are left without a character that is cut off at the end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & _LEAD != _CONTINUES:
            length = next((n for low, high, n in _LENGTHS if low <= byte < high), 1)
            return len(data) - back if length > back else len(data)
    return len(data)


def last_lines(entry: LogEntry, lines: int, most_bytes: int) -> tuple[int, bytes]:
    """The last lines of a log; fewer if they are longer than `most_bytes`.

    Returns:
        Where they begin, and the bytes up to the end.
    """
    size = entry.size()
    start, data = _between(entry, max(entry.start, size - most_bytes), size)
    if lines < 0:
        return start, data
    at = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return start, data
    cut = at + 1 if lines else len(data)
    return start + cut, data[cut:]


class Lines:
    """What `next_lines` found.

    Attributes:
        data: Whole lines; the last one may lack its end if the log has ended or the line is very long.
        start: The position of the first one.
        end: The position after them.
        dropped: How many lines before them were left out.
    """

    __slots__ = ("data", "dropped", "end", "start")

    def __init__(self, data: bytes, start: int, end: int, dropped: int) -> None:
        self.data = data
        self.start = start
        self.end = end
        self.dropped = dropped


def next_lines(entry: LogEntry, start: int, most_bytes: int, backlog: int) -> Lines:
    """The whole lines from a position on.

    Args:
        entry: The log.
        start: The position.
        most_bytes: How much to take.
        backlog: How far behind the end a reader may be; what is older is left out, up to the next line's beginning.
    """
    size = entry.size()
    dropped = 0
    if size - start > backlog:
        dropped, start = _skip(entry, start, size - backlog // 2)
    start, data = _between(entry, start, min(size, start + most_bytes))
    end = data.rfind(b"\n") + 1
    if entry.ended and start + len(data) >= size:
        end = len(data)
    elif end == 0 and len(data) >= _LONGEST_LINE:
        end = whole_characters(data)
    return Lines(data[:end], start, start + end, dropped)


def _between(entry: LogEntry, start: int, stop: int) -> tuple[int, bytes]:
    """The bytes of a range, of which the beginning may be gone."""
    start, data = entry.read(start, max(0, stop - start))
    parts = [data]
    at = start + len(data)
    while data and at < stop:  # it lies in two files
        _, data = entry.read(at, stop - at)
        parts.append(data)
        at += len(data)
    return start, b"".join(parts)


def _skip(entry: LogEntry, start: int, target: int) -> tuple[int, int]:
    """Pass over lines up to the first one that begins at `target` or later.

    Returns:
        How many, and where that line begins. What is no longer there is counted as lines of the same length.
    """
    lines, read, at = 0, 0, max(start, entry.start)
    gone = at - start
    while at < target:
        _, data = entry.read(at, min(_COUNTED_AT_ONCE, target - at))
        if not data:
            break
        lines += data.count(b"\n")
        read += len(data)
        at += len(data)
    at, rest = _between(entry, at, at + _LONGEST_LINE)
    newline = rest.find(b"\n") + 1
    lines += newline > 0
    if gone and read:
        lines += round(gone * lines / read)
    return lines, at + newline
