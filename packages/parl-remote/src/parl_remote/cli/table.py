"""Tables and amounts for a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

__all__ = ["age", "amount", "clip", "count", "size", "table"]

_MIB = 2**20
_GIB = 2**30


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> list[str]:
    """Lines of a table with a line of headings.

    Args:
        headings: One a column.
        rows: Texts; control characters in them are shown as "?", so that no name moves the cursor.
        right: The headings of columns to write flush right.
    """
    cells = [[_plain(cell) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(headings, *cells, strict=True)]

    def line(texts: Sequence[str]) -> str:
        parts = []
        for heading, text, width in zip(headings, texts, widths, strict=True):
            gap = " " * (width - _width(text))
            parts.append(gap + text if heading in right else text + gap)
        return "  ".join(parts).rstrip()

    return [line(headings), *(line(row) for row in cells)]


def clip(text: str, width: int) -> str:
    """The beginning of a text that fits into so many columns."""
    if len(text) <= width and text.isascii():
        return text
    used = 0
    for at, character in enumerate(text):
        used += _width(character)
        if used > width:
            return text[:at]
    return text


def size(bytes_: float) -> str:
    """Bytes for people: "812 M", "1.3 G"."""
    return f"{bytes_ / _GIB:.1f} G" if bytes_ >= _GIB else f"{bytes_ / _MIB:.0f} M"


def age(seconds: float) -> str:
    """A span for people: "42 s", "5:03 m", "2:10 h", "3 d"."""
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} m"
    if whole < 48 * 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
    return f"{whole // 86400} d"


def amount(number: float) -> str:
    """A number without a useless fraction."""
    return f"{number:g}"


def count(number: int, noun: str) -> str:
    """A number with its noun, "1 actor" or "2 actors"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text) or "-"


def _width(text: str) -> int:
    """Columns on a terminal; Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
