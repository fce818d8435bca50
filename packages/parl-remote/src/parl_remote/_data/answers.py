"""Answers of an actor: results, and exceptions on their way to the caller.

    in the actor   describe(error, method) -> Failure, plain data with the exception pickled inside
    at the caller  read_answer(frames)     -> Answer: the value, or the error that `rebuild` makes of a Failure

An exception comes with its own type where that type can be rebuilt, its cause a RemoteCallError with the traceback;
otherwise the caller gets the RemoteCallError.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

from parl_remote._data import serialize
from parl_remote._links.call_messages import Flag, Kind, header_of, payload_of
from parl_remote.errors import RemoteCallError, RemoteProtocolError, SerializationError, from_parts

__all__ = ["STAYS", "Answer", "Failure", "describe", "read_answer", "rebuild", "unreadable"]


_READ_ONLY = (
    "(an array that came through parl.put lies in memory that others read as well, so it cannot be written to; "
    "make it your own first: array = array.copy())"
)


class Failure(NamedTuple):
    """The description of an exception, sent to the caller.

    Attributes:
        method: Class and method, "Actor.add".
        type_name: The exception's qualified class name.
        text: Its text.
        traceback: As the actor formatted it, without the frames of parl_remote.
        pickled: Frames of the exception, or of its `(class, args, attributes)` if its class does not customize
            pickling;
            empty if it could not be pickled.
    """

    method: str
    type_name: str
    text: str
    traceback: str
    pickled: tuple[bytes, ...]


def describe(error: BaseException, method: str, references: list[object] | None = None) -> Failure:
    """Return the description of an exception; never raises.

    Args:
        error: The exception.
        method: Class and method that raised it.
        references: Filled as by `serialize.dumps`.
    """
    if isinstance(error, ValueError) and _text(error).endswith("is read-only"):  # numpy's words
        error.add_note(_READ_ONLY)
    return Failure(
        method=method,
        type_name=_name(type(error)),
        text=_text(error),
        traceback=_traceback(error),
        pickled=_pickled(error, references),
    )


def rebuild(failure: Failure) -> BaseException:
    """Return the exception to raise at the caller."""
    remote = RemoteCallError(
        f"{failure.method}() raised {failure.type_name} in the actor: {failure.text}",
        method=failure.method,
        remote_traceback=failure.traceback,
        type_name=failure.type_name,
    )
    if not failure.pickled:
        return remote
    try:
        error = serialize.loads(failure.pickled[0], failure.pickled[1:])
        error = _put_together(error)
    except Exception as reason:  # its class is unknown here
        remote.add_note(f"(the exception itself could not be rebuilt here: {type(reason).__name__}: {reason})")
        return remote
    if not isinstance(error, BaseException):
        return remote
    error.__cause__ = remote
    return error


def _taken_apart(error: BaseException) -> object:
    """Return what to pickle: the exception if its class customizes pickling, else class, arguments, attributes."""
    if type(error).__reduce__ is not BaseException.__reduce__:
        return error
    args = error.args
    if isinstance(error, BaseExceptionGroup):
        args = (error.message, [_taken_apart(inner) for inner in error.exceptions])
    return type(error), args, error.__dict__


def _put_together(parts: object) -> object:
    """Make the exception that `_taken_apart` took apart."""
    if not isinstance(parts, tuple):
        return parts
    kind, args, attributes = parts
    if issubclass(kind, BaseExceptionGroup):
        message, inner = args
        args = (message, [_put_together(one) for one in inner])
    return from_parts(kind, args, attributes)


def _pickled(error: BaseException, references: list[object] | None) -> tuple[bytes, ...]:
    if not isinstance(error, Exception):
        return ()  # SystemExit and its kind would end the caller's program; it gets a RemoteCallError instead
    try:
        return tuple(bytes(frame) for frame in serialize.dumps(_taken_apart(error), references))
    except Exception:
        return ()


def _name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"(its text could not be made: {type(failure).__name__})"


def _traceback(error: BaseException) -> str:
    """Return the traceback from the user's first frame on."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_globals.get("__package__")):
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except Exception:
        return f"{_name(type(error))}: {_text(error)}\n"


def _is_ours(package: str | None) -> bool:
    return package is not None and package.partition(".")[0] == __package__.partition(".")[0]


_EMPTY = int(Flag.EMPTY)
_NAMES = int(Flag.NAMES)
_STAYS = int(Flag.STAYS)
_CANCELLED = int(Flag.CANCELLED)
_RESULT = int(Kind.RESULT)


class _Stays:
    """The type of the value returned in place of a method or of the object itself."""


STAYS = _Stays()


class Answer(NamedTuple):
    """The outcome of a call.

    Attributes:
        value: What the method returned.
        error: The exception to raise instead.
        names: The names of the actor's attributes; None if they have not changed.
        cancelled: Whether the call was dropped before it started.
    """

    value: Any = None
    error: BaseException | None = None
    names: tuple[str, ...] | None = None
    cancelled: bool = False


_NOTHING = Answer()


def read_answer(frames: Sequence[memoryview], method: str) -> Answer:
    """Decode a CREATED, RESULT or FAILURE message.

    Args:
        frames: The message.
        method: The name of the called method, for error messages.

    Raises:
        RemoteProtocolError: The message is of another kind.
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
    """Return the error of a call whose result arrived and cannot be unpickled."""
    what = f"the result of {method}()"
    failure = SerializationError(f"{what} cannot be read here: {type(error).__name__}: {error}", what=what)
    failure.__cause__ = error
    return failure
