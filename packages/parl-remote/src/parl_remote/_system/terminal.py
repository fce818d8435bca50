"""Text of other people on this user's terminal: control characters are shown, so that no terminal obeys them."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

__all__ = ["visible", "visible_output"]

# All of C0 and C1 but tabulator and line feed, and what turns the direction of text around.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""Return a text with its control characters as Python writes them, such as `\x1b`; lines stay lines."""
    return _OBEYED.sub(_as_written, text.replace("\r\n", "\n"))


def _as_written(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


class _VisibleOutput:
    """A text stream that shows control characters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text."""
        self._stream.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def visible_output() -> Iterator[None]:
    """Show control characters in all that is written to `sys.stdout` and `sys.stderr` within the block."""
    before: Any = sys.stdout, sys.stderr
    now: Any = [None if stream is None else _VisibleOutput(stream) for stream in before]
    sys.stdout, sys.stderr = now
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
