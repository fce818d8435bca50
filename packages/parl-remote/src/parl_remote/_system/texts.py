"""Texts for display: output of others with visible control characters, and texts of exceptions.

`text_of` and `described` are short however much data the exception holds.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import reprlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO

__all__ = [
    "class_name_of",
    "cut",
    "described",
    "full_class_name_of",
    "in_seconds",
    "is_heavy",
    "text_of",
    "visible",
    "visible_output",
]

_MOST_TEXT = 10_000  # characters: messages are read by people, data travels with the exception
_HEAVY = 100_000  # characters or bytes among the arguments of an exception, from which on its text is not made whole
# All of C0 and C1 but tabulator and line feed, and what turns the direction of text around.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def in_seconds(duration_s: float | None) -> str:
    """Return a duration as text, "1000 s"; rounded, because it may be the rest of another one."""
    return "0 s" if duration_s is None else f"{round(duration_s, 3):.15g} s"


def visible(text: str) -> str:
    r"""Return a text with its control characters as Python writes them, such as `\x1b`; lines stay lines."""
    return _CONTROL.sub(_as_written, text.replace("\r\n", "\n"))


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


def text_of(error: BaseException) -> str:
    """Return the text of an exception, cut short; never raises."""
    try:
        if not is_heavy(error):
            return cut(str(error))
        args = _args_of(error)
        brief = _Brief()
        return ", ".join([*map(brief.repr, args[: brief.maxtuple]), *(["..."] if len(args) > brief.maxtuple else [])])
    except BaseException as failure:  # its class may raise any exception
        return f"(its text could not be made: {type(failure).__name__})"


def described(error: BaseException) -> str:
    """Return the type of an exception and its text, if it has one; never raises."""
    text, name = text_of(error), class_name_of(type(error))
    return f"{name}: {text}" if text else name


_NAME, _QUALNAME, _MODULE = (vars(type)[name].__get__ for name in ("__name__", "__qualname__", "__module__"))


def class_name_of(kind: type) -> str:
    """Return the name of a class, even if its metaclass hides it."""
    return str(_NAME(kind))


def full_class_name_of(kind: type) -> str:
    """Return the qualified name of a class, with its module unless it is built in, even if its metaclass hides it."""
    module = _MODULE(kind)
    return str(_QUALNAME(kind)) if module == "builtins" else f"{module}.{_QUALNAME(kind)}"


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
    weight = 0
    pending: list[object] = [_args_of(error)]
    while pending and weight <= _HEAVY:
        value = pending.pop()
        weight += 1
        if isinstance(value, str | bytes | bytearray):
            weight += len(value)
        elif isinstance(value, list | tuple | set | frozenset):
            pending.extend(itertools.islice(value, _HEAVY))
        elif isinstance(value, dict):
            pending.extend(itertools.islice(value.keys(), _HEAVY))
            pending.extend(itertools.islice(value.values(), _HEAVY))
    return weight > _HEAVY


def _args_of(error: BaseException) -> tuple[object, ...]:
    """Return the arguments of an exception, even if its class hides them."""
    args: tuple[object, ...] = BaseException.args.__get__(error)  # type: ignore[attr-defined]
    return args
