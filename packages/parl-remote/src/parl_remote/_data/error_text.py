"""What an exception says, in a text that is short however much data the exception holds."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

__all__ = ["cut", "is_heavy", "text_of"]

_MOST_TEXT = 10_000  # characters: what an exception says is read by people, its data travels with the exception
_HEAVY = 100_000  # characters or bytes among the arguments of an exception, from which on its text is not made whole


def text_of(error: BaseException) -> str:
    """Return what an exception says, cut short; never raises."""
    if is_heavy(error):
        return ", ".join(map(_Brief().repr, error.args))
    try:
        return cut(str(error))
    except Exception as failure:
        return f"(its text could not be made: {type(failure).__name__})"


class _Brief(reprlib.Repr):
    """Makes short texts; the standard library's makes the whole text of bytes first."""

    def repr_bytes(self, value: bytes, level: int) -> str:  # noqa: ARG002  # as the base class calls it
        return f"{value[: self.maxother]!r}... ({len(value)} bytes)" if len(value) > self.maxother else repr(value)

    repr_bytearray = repr_bytes


def cut(text: str) -> str:
    """Return a text without its middle if it is long."""
    if len(text) <= _MOST_TEXT:
        return text
    half = _MOST_TEXT // 2
    return f"{text[:half]} ... ({len(text) - 2 * half} characters are left out) ... {text[-half:]}"


def is_heavy(error: BaseException) -> bool:
    """Return whether making the text of an exception would take long: 100 MB of bytes are 400 MB of text."""
    return _weight(error.args, _HEAVY) > _HEAVY


def _weight(values: Iterable[object], limit: int) -> int:
    """Return how many characters or bytes are among values and in lists and tuples in them, or more than the limit."""
    weight = 0
    for value in values:
        if isinstance(value, str | bytes | bytearray):
            weight += len(value)
        elif isinstance(value, list | tuple | set | frozenset):
            weight += len(value) + _weight(value, limit)
        elif isinstance(value, dict):
            weight += len(value) + _weight(value.keys(), limit) + _weight(value.values(), limit)
        if weight > limit:
            break
    return weight
