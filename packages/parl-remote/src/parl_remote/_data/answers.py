"""Answers of an actor: results and exceptions that are sent to the caller.

    in the actor   describe(error, method) -> Failure, plain data with the exception pickled inside
    at the caller  read_answer(frames)     -> Answer: the value, or the error that `rebuild` makes of a Failure

The caller gets an exception that is of its own type and a RemoteCallError: its class is a subclass of both, and its
cause is a RemoteCallError with the traceback. Parts that cannot be pickled are left out. If the exception cannot be
rebuilt, the caller gets the RemoteCallError; if its class cannot have a subclass, the caller gets the plain exception.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import MemberDescriptorType, TracebackType
from typing import Any, NamedTuple

from parl_remote._data import serialize
from parl_remote._links.call_messages import Flag, Kind, header_of, payload_of
from parl_remote._system.interrupts import is_by_handler
from parl_remote._system.texts import class_name_of, cut, described, full_class_name_of, is_heavy, text_of
from parl_remote.errors import (
    RemoteAttributeError,
    RemoteCallError,
    RemoteProtocolError,
    SerializationError,
)

__all__ = [
    "STAYS",
    "Answer",
    "Failure",
    "combine",
    "describe",
    "read_answer",
    "rebuild",
    "slots_of",
    "traceback_of",
    "unreadable",
    "without_traceback",
]


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
        traceback: The traceback, formatted in the actor, without the frames of parl_remote.
        pickled: Frames of the exception, or of its `(class, args, attributes)` if its class does not customize
            pickling, or that fails; empty if not even its class can be pickled.
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
    try:
        if isinstance(error, ValueError) and text_of(error).endswith("is read-only"):  # numpy's message
            error.add_note(_READ_ONLY)
        return Failure(
            method=method,
            type_name=full_class_name_of(type(error)),
            text=text_of(error),
            traceback=traceback_of(error),
            pickled=_pickled(error, references),
        )
    except BaseException as failure:  # the code of its class may raise anything, even SystemExit
        text = f"(it could not be described: {class_name_of(type(failure))})"
        return Failure(method, "an exception", text, "", ())


def rebuild(failure: Failure, where: str = "actor") -> BaseException:
    """Return the exception to raise at the caller."""
    remote = RemoteCallError(
        f"{failure.method}() raised {failure.type_name} in the {where}: {failure.text}",
        method=failure.method,
        remote_traceback=failure.traceback,
        type_name=failure.type_name,
    )
    if not failure.pickled:
        return remote
    try:
        error = serialize.loads(failure.pickled[0], failure.pickled[1:])
        error = _reassembled(error)
    except Exception as reason:  # its class is unknown here
        remote.add_note(f"(the exception itself could not be rebuilt here: {described(reason)})")
        return remote
    if not isinstance(error, BaseException):
        return remote
    error = combine(error, remote)
    if not isinstance(error, Exception):  # it would end the internal threads that deliver it
        return remote
    _assign(error, "__cause__", remote)
    return error


class _RemoteErrorMixin(RemoteCallError):
    """The part of an exception's class that makes it a RemoteCallError as well."""

    def __init_subclass__(cls, **_: object) -> None:
        """Do nothing: a hook of the user's class is for classes that users write."""


class _RemoteAttributeErrorMixin(_RemoteErrorMixin, RemoteAttributeError):
    """The part of the class of a missing attribute's error that makes it a RemoteAttributeError as well."""


_OWN = (
    "__init__",
    "__str__",
    "__repr__",
    "__reduce__",
    "__setstate__",
    "__getstate__",
    "__eq__",
    "__hash__",
    "__copy__",
)


@functools.lru_cache(maxsize=512)  # of the users' exception classes, which a program may define in its functions
def _combined_class(kind: type[BaseException]) -> type[BaseException]:
    """Return the class of exceptions that are of this kind and RemoteCallErrors; the kind itself if it allows none."""
    if issubclass(kind, RemoteCallError):
        return kind
    base = _RemoteAttributeErrorMixin if issubclass(kind, AttributeError) else _RemoteErrorMixin
    try:
        namespace: dict[str, Any] = {name: getattr(kind, name) for name in _OWN if hasattr(kind, name)}
        for name in ("__module__", "__qualname__", "__doc__"):
            namespace[name] = getattr(kind, name)
        namespace |= {"__slots__": (), "__reduce_ex__": _reduce_combined, "_parl_kind": kind}
        metaclass: Any = type(kind)
        made: type[BaseException] = metaclass(kind.__name__, (base, kind), namespace)
    except Exception:  # it is final, or its metaclass is in the way
        return kind
    return made or kind


def combine(error: BaseException, remote: RemoteCallError) -> BaseException:
    """Return an exception as one that is a RemoteCallError as well.

    Args:
        error: The exception; it may be changed.
        remote: The error with the details of the call.
    """
    kind = type(error)
    cls = _combined_class(kind)  # type: ignore[arg-type]  # its type is hashable
    if cls is kind:
        return error
    try:
        made = _as_class(error, cls)
    except Exception:
        return error
    for name in ("method", "remote_traceback", "type_name"):
        if name not in error.__dict__ and not hasattr(kind, name):
            made.__dict__[name] = getattr(remote, name)
    return made


class _Group(BaseExceptionGroup[BaseException]):
    """A group whose class can be changed to one that is an `Exception`, which may then hold any exceptions."""


def _as_class(error: BaseException, cls: type[BaseException]) -> BaseException:
    if type(error) is BaseExceptionGroup:
        group = _Group(error.message, error.exceptions)
        group.__dict__.update(error.__dict__)
        _assign(group, "args", error.args)
        _assign(group, "__suppress_context__", error.__suppress_context__)
        error = group
    try:
        _assign(error, "__class__", cls)  # a subclass without slots of its own
    except TypeError:  # of a built-in class, or one with slots
        kind = type(error)
        reduced: Any = error.__reduce__()
        args, state = error.args, {}
        if isinstance(reduced, tuple) and reduced[0] is kind:
            args = reduced[1]
            state = reduced[2] if len(reduced) > 2 and isinstance(reduced[2], dict) else {}
        made = _from_parts(cls, args, {**state, **error.__dict__})
        _assign(made, "args", error.args)
        kept = _outside_dict(error, kind)
        # The constructor may have set more, such as a third argument of BlockingIOError taken for a file's name.
        for name in _outside_dict(made, kind).keys() - kept:
            object.__delattr__(made, name)
        for name, value in kept.items():
            _assign(made, name, value)
        _assign(made, "__suppress_context__", error.__suppress_context__)
        return made
    return error


def _reduce_combined(self: Any, protocol: Any) -> Any:
    """Pickle a combined exception as its own kind; `_rebuild_combined` combines it again."""
    kind = self._parl_kind
    reduced = kind.__reduce_ex__(self, protocol)
    if not isinstance(reduced, tuple):
        return reduced
    make, args, *rest = reduced
    if make is type(self):
        make = kind
    args = tuple(kind if one is type(self) else one for one in args)
    details = [getattr(self, name, "") for name in ("method", "remote_traceback", "type_name")]
    kept = {**_outside_dict(self, kind), "args": self.args}
    if rest and isinstance(rest[0], dict) and kind.__setstate__ is BaseException.__setstate__:
        kept |= rest[0]  # what that sets with `setattr`, which the class may refuse
        rest[0] = None
    return _rebuild_combined, (make, args, kept, tuple(map(str, details))), *rest


def _rebuild_combined(
    make: Any, args: tuple[Any, ...], kept: dict[str, Any], details: tuple[str, str, str]
) -> BaseException:
    if isinstance(make, type) and issubclass(make, BaseException):
        error = _from_parts(make, args, kept)
    else:
        error = make(*args)
    method, remote_traceback, type_name = details
    return combine(error, RemoteCallError("", method=method, remote_traceback=remote_traceback, type_name=type_name))


def slots_of(kind: type) -> dict[str, MemberDescriptorType]:
    """Return the descriptors of the slots of a class's objects, by their names in the class."""
    with_slots = [vars(base) for base in kind.__mro__ if "__slots__" in vars(base)]
    return {
        name: member
        for names in with_slots
        for name, member in names.items()
        if isinstance(member, MemberDescriptorType)
    }


# Attributes that built-in exceptions keep neither in `__dict__` nor, with a constructor of the user, in `args`.
_MEMBERS: dict[type[BaseException], tuple[str, ...]] = {
    OSError: ("errno", "strerror", "filename", "filename2"),
    BlockingIOError: ("characters_written",),
    ImportError: ("msg", "name", "path"),
    AttributeError: ("name",),
    NameError: ("name",),
}
# The built-in ways to pickle an exception, of which its parts are known.
_REDUCES: list[object] = [kind.__reduce__ for kind in (BaseException, *_MEMBERS)]


def _outside_dict(error: BaseException, kind: type[BaseException]) -> dict[str, object]:
    """Return the values in the slots of an exception of a kind, its own and those of built-in exceptions."""
    kept = {name: getattr(error, name) for name in slots_of(kind) if hasattr(error, name)}
    for built_in, names in _MEMBERS.items():
        if issubclass(kind, built_in):
            for name in names:
                with contextlib.suppress(AttributeError):  # raised by `characters_written` if it is unset
                    if (value := getattr(built_in, name).__get__(error)) is not None:
                        kept[name] = value
    return kept


_Parts = tuple[type[BaseException], tuple[Any, ...], dict[str, Any]]


def _parts(error: BaseException) -> _Parts:
    """Return class, arguments and attributes of an exception."""
    kind = getattr(type(error), "_parl_kind", type(error))
    return kind, error.args, {**error.__dict__, **_outside_dict(error, kind)}


def _to_pickle(error: BaseException) -> object:
    """Return the value to pickle: the exception if its class customizes pickling, else its `_parts`."""
    if type(error).__reduce__ not in _REDUCES:
        return error
    kind, args, attributes = _parts(error)
    if isinstance(error, BaseExceptionGroup):
        args = (error.message, [_to_pickle(inner) for inner in error.exceptions])
    return kind, args, attributes


def _picklable_parts(error: BaseException) -> _Parts:
    """Return the class, arguments and attributes of an exception without the values that cannot be pickled.

    Texts replace such arguments, and a note names the attributes left out. So the exception keeps its own type.
    """
    kind, args, attributes = _parts(error)
    args = tuple(one if _can_be_sent(one) else _text_in_place_of(one) for one in args)
    if isinstance(error, BaseExceptionGroup):
        args = (error.message, [_picklable_parts(inner) for inner in error.exceptions])
    missing = [name for name, value in attributes.items() if not _can_be_sent(value)]
    for name in missing:
        del attributes[name]
    if missing:
        note = f"(without {', '.join(missing)}, which cannot be sent)"
        attributes["__notes__"] = [*attributes.get("__notes__", ()), note]
    return kind, args, attributes


def _can_be_sent(value: object) -> bool:
    try:
        serialize.dumps(value)
    except BaseException:
        return False
    return True


def _text_in_place_of(value: object) -> str:
    try:
        return cut(repr(value))
    except BaseException:
        return f"<{class_name_of(type(value))}>"


def _reassembled(parts: object) -> object:
    """Make the exception that `_to_pickle` took apart."""
    if not isinstance(parts, tuple):
        return parts
    kind, args, attributes = parts
    if issubclass(kind, BaseExceptionGroup):
        message, inner = args
        args = (message, [_reassembled(one) for one in inner])
    error = _from_parts(kind, args, attributes)
    _assign(error, "args", args)
    urllib = sys.modules.get("urllib.error")
    if urllib is not None and isinstance(error, urllib.HTTPError) and error.__dict__.get("fp") is None:
        # The file stays in the actor. The error passes missing attributes on to its file, so it gets an empty one.
        urllib.HTTPError.__init__(error, error.filename, error.code, error.msg, error.hdrs, io.BytesIO())
    return error


def _pickled(error: BaseException, references: list[object] | None) -> tuple[bytes, ...]:
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and isinstance(error, asyncio.CancelledError):
        return ()  # at the caller it would say that the caller's own task is cancelled
    for take_apart in (_to_pickle, _picklable_parts):
        with contextlib.suppress(BaseException):  # pickling runs the user's code
            return tuple(bytes(frame) for frame in serialize.dumps(take_apart(error), references))
    return ()


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception as text, from the user's first frame on; never raises."""
    try:
        trace = error.__traceback__
        while trace is not None and _is_ours(trace.tb_frame.f_globals.get("__package__")):
            trace = trace.tb_next
        if any(map(is_heavy, _chain(error))):
            return "".join(_short_lines(error, trace))
        return "".join(map(cut, traceback.format_exception(type(error), error, trace)))
    except BaseException:
        return f"{full_class_name_of(type(error))}: {text_of(error)}\n"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, its cause or context, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _short_lines(error: BaseException, trace: TracebackType | None) -> list[str]:
    """Return the lines of a traceback as the standard library formats them, with shortened texts."""
    lines: list[str] = []
    for one in reversed(list(_chain(error))):
        if lines:
            lines.append("\nThe exception above led to this one:\n\n")
        lines.append("Traceback (most recent call last):\n")
        lines += traceback.format_tb(trace if one is error else one.__traceback__)
        lines.append(f"{full_class_name_of(type(one))}: {text_of(one)}\n")
    return lines


def _is_ours(package: str | None) -> bool:
    return package is not None and package.partition(".")[0] == __package__.partition(".")[0]


_EMPTY = int(Flag.EMPTY)
_NAMES = int(Flag.NAMES)
_STAYS = int(Flag.STAYS)
_CANCELLED = int(Flag.CANCELLED)
_RESULT = int(Kind.RESULT)


class _LocalOnly:
    """The type of the value returned instead of a method or of the object itself."""


STAYS = _LocalOnly()


class Answer(NamedTuple):
    """The outcome of a call.

    Attributes:
        value: The value that the method returned.
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
    """Decode a RESULT or FAILURE message.

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
        if is_by_handler(error):
            raise
        return Answer(error=unreadable(error, method))
    if kind == _RESULT:
        names = None
        if flags & _NAMES:
            value, names = value
        return Answer(STAYS if flags & _STAYS else value, None, names)
    if kind == Kind.FAILURE:
        return Answer(cancelled=True) if flags & _CANCELLED else Answer(error=rebuild(Failure(*value)))
    raise RemoteProtocolError(f"an actor cannot answer with kind {kind}")


def unreadable(error: BaseException, method: str) -> SerializationError:
    """Return the error of a call whose result arrived and cannot be unpickled."""
    what = f"the result of {method}()"
    failure = SerializationError(f"{what} cannot be read here: {described(error)}", what=what)
    failure.__cause__ = error
    return failure


def _from_parts(kind: type[BaseException], args: tuple[object, ...], attributes: dict[str, object]) -> BaseException:
    """Return an exception built from its parts, even if its constructor takes other arguments than it stores.

    Args:
        kind: Its class.
        args: Its stored arguments; for a class that customizes pickling, the arguments of its constructor.
        attributes: Its other attributes.
    """
    try:
        error = kind(*args)
        if kind.__reduce__ is BaseException.__reduce__:
            _assign(error, "args", args)
    except Exception:
        error = _uninitialized(kind, args)
        _assign(error, "args", args)
    for name, value in attributes.items():
        if name in error.__dict__ or not hasattr(kind, name):
            error.__dict__[name] = value
        else:  # a slot
            with contextlib.suppress(Exception):
                _assign(error, name, value)
    return error


def _uninitialized(kind: type[BaseException], args: tuple[object, ...]) -> BaseException:
    """Return an exception whose constructor has not run."""
    try:
        return kind.__new__(kind, *args)
    except Exception:  # a `__new__` of the user's, which takes other arguments as well
        bases = (base for base in kind.__mro__ if issubclass(base, BaseException))
        built_in = next(base for base in bases if base.__module__ == "builtins")
        return built_in.__new__(kind, *args)


def _assign(error: BaseException, name: str, value: object) -> None:
    """Set an attribute of an exception, even if its class forbids that, such as a frozen dataclass."""
    object.__setattr__(error, name, value)


def without_traceback(error: BaseException) -> BaseException:
    """Return a copy of the exception without traceback and context, or itself if its class cannot be copied."""
    try:
        other: BaseException = copy.copy(error)
    except Exception:
        if not isinstance(error, Exception):
            return error
        try:
            other = _from_parts(type(error), error.args, error.__dict__)
        except Exception:
            return error
    if type(other) is not type(error):
        return error
    _assign(other, "__cause__", error.__cause__)
    _assign(other, "__suppress_context__", error.__suppress_context__)
    return other
