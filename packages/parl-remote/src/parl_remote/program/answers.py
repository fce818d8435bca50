"""An actor's answer, read: a value, or the exception to raise, and the names of attributes if they changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from parl_remote.data import serialize
from parl_remote.data.call_errors import Failure, rebuild
from parl_remote.errors import RemoteProtocolError, SerializationError
from parl_remote.links.call_messages import Flag, Kind, header_of, payload_of

__all__ = ["STAYS", "Answer", "read_answer", "unreadable"]

_EMPTY = int(Flag.EMPTY)
_NAMES = int(Flag.NAMES)
_STAYS = int(Flag.STAYS)
_CANCELLED = int(Flag.CANCELLED)
_RESULT = int(Kind.RESULT)


class _Stays:
    """What is given instead of a method, or of the object itself."""


STAYS = _Stays()


class Answer(NamedTuple):
    """What became of a call.

    Attributes:
        value: What the method returned.
        error: What to raise instead.
        names: The actor's attributes, None if they are as before.
        cancelled: Whether the call was dropped before it started.
    """

    value: Any = None
    error: BaseException | None = None
    names: tuple[str, ...] | None = None
    cancelled: bool = False


_NOTHING = Answer()


def read_answer(frames: Sequence[memoryview], method: str) -> Answer:
    """Read CREATED, RESULT or FAILURE.

    Args:
        frames: The message.
        method: What was called, for error messages.

    Raises:
        RemoteProtocolError: It is something else.
    """
    kind, flags, _, _ = header_of(frames[0])
    if kind == _RESULT and flags == _EMPTY:
        return _NOTHING
    try:
        value: Any = None if flags & _EMPTY else serialize.loads(*payload_of(flags, frames))
    except RemoteProtocolError:
        raise
    except Exception as error:
        return Answer(error=unreadable(error, method))
    if kind == _RESULT:
        names = None
        if flags & _NAMES:
            value, names = value
        return Answer(STAYS if flags & _STAYS else value, None, names)
    if kind == Kind.CREATED:
        return Answer(names=value)
    if kind == Kind.FAILURE:
        return Answer(cancelled=True) if flags & _CANCELLED else Answer(error=rebuild(Failure(*value)))
    raise RemoteProtocolError(f"an actor cannot answer with kind {kind}")


def unreadable(error: Exception, method: str) -> SerializationError:
    """The error of a call whose result came and cannot be unpickled."""
    what = f"the result of {method}()"
    failure = SerializationError(f"{what} cannot be read here: {type(error).__name__}: {error}", what=what)
    failure.__cause__ = error
    return failure
