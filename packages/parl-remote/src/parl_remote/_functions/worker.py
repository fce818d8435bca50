"""The worker's side of plain functions: the object in the actor that runs them, and the messages to and from it.

    run(key, code, name, items, how, most_s) -> (seconds, values, failures, apart, left)

Code, items and values are `Packed`, that is, pickled once by their sender. So a single value that cannot be pickled
does not fail the whole call, a worker keeps the functions that it was sent, and results are unpickled in the thread
that reads them. They consist of built-in types, which a message contains at no cost.

A callable that may have a state of its own, such as a bound method, is unpickled again for each message, so that no
call sees changes that an earlier one has made to it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import pickle
import sys
import time
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from parl_remote._data import serialize
from parl_remote._data.answers import describe
from parl_remote._data.class_spec import culprit_of
from parl_remote._streams import can_stream, open_stream
from parl_remote._system.interrupts import is_by_handler
from parl_remote._system.texts import class_name_of, described
from parl_remote._transport import Buffer
from parl_remote.errors import SerializationError

__all__ = [
    "NO_CODE",
    "NO_ITEMS",
    "CallForm",
    "Code",
    "FunctionCache",
    "FunctionWorker",
    "Outcome",
    "Packed",
    "Unreadable",
    "kept",
    "pack",
    "pack_items",
    "size_of",
    "unpack",
]

NO_CODE, NO_ITEMS = -1, -2  # the positions of failures to read the function or the items, none of which was run then
_QUICK_S = 20e-6  # seconds of items between two readings of the clock, which take half a microsecond
_MOST_AT_ONCE = 256  # items, which may turn out to be slow
_FUNCTIONS_KEPT = 32  # by a worker; they may hold large values
T = TypeVar("T")
Packed = list[Any] | tuple[Any]
"""A list of a pickle and the large buffers outside of it, or a tuple of a value that is read with the message."""


class Unreadable:
    """A placeholder for a value that cannot be unpickled."""

    __slots__ = ("error", "traceback")

    def __init__(self, error: BaseException) -> None:
        self.error = error
        # each raise adds to the error's own traceback, which keeps the objects of its frames alive
        self.traceback = error.__traceback__


class _Separate(serialize.Pickled):
    """A value that is unpickled separately from the message that it is a part of; `Unreadable` if it cannot be."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _read, super().__reduce__()[1]


def _read(data: Buffer, buffers: Sequence[Any]) -> Any:
    try:
        return serialize.loads(data, buffers)
    except BaseException as error:  # of a user's class
        if is_by_handler(error):
            raise
        return Unreadable(error)


class CallForm(IntEnum):
    """The ways in which a function takes an item."""

    ITEM = 0
    ITEMS = 1  # a tuple of positional arguments
    CALL = 2  # positional and keyword arguments


def pack(value: object) -> Packed:
    """Return a value pickled; as a part of the message if it contains references, which the message has to record.

    Raises:
        Exception: Any error of pickling.
    """
    references: list[object] = []
    data, *buffers = serialize.dumps(value, references)
    if references:
        return (_Separate([data, *buffers], references, copies=False),)
    return [data, *map(pickle.PickleBuffer, buffers)]


def pack_items(items: Any, how: CallForm) -> Packed:
    """Return items as `pack` does; a reference of `put` that is an argument by itself arrives as its value.

    Raises:
        Exception: Any error of pickling.
    """
    if type(items) is list and serialize.has_stand_ins():
        if how is CallForm.ITEMS:
            items = [serialize.with_stand_ins(args, {})[0] for args in items]
        elif how is CallForm.CALL:
            items = [serialize.with_stand_ins(args, kwargs) for args, kwargs in items]
        else:
            items = list(serialize.with_stand_ins(tuple(items), {})[0])
    return pack(items)


def unpack(packed: Packed) -> Any:
    """Return the value of a `pack`.

    Raises:
        BaseException: Any exception of unpickling.
    """
    if type(packed) is list:
        return serialize.loads(packed[0], packed[1:])
    if type(packed[0]) is Unreadable:
        raise packed[0].error.with_traceback(packed[0].traceback)
    return packed[0]


def size_of(packed: Packed) -> int:
    """Return the number of bytes of a packed value; 0 if it is a part of the message."""
    return sum(memoryview(part).nbytes for part in packed) if type(packed) is list else 0


def kept(packed: Packed) -> Packed:
    """Return a packed value with buffers of its own, which nothing else writes to."""
    if type(packed) is not list:
        return (packed[0].copied(),) if type(packed[0]) is _Separate else packed
    return [packed[0], *(pickle.PickleBuffer(bytearray(buffer)) for buffer in packed[1:])]


class Code(NamedTuple):
    """A function that is sent to workers.

    Attributes:
        key: The function's key in workers; the same for the same function with the same content.
        packed: The function, packed.
        name: Its name for messages.
        is_kept: Whether workers keep it. They cannot if it may have a state of its own and its pickle is a part of a
            message.
    """

    key: bytes
    packed: Packed
    name: str
    is_kept: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Code:
        """Pickle a function.

        Raises:
            SerializationError: It cannot be sent.
        """
        name = name_of(function)
        serialize.look_at_new_modules()
        references: list[object] = []
        try:
            frames = serialize.dumps(function, references)
        except Exception as error:
            culprit = culprit_of(function)
            cause = f". The cause is {culprit}: make it inside the function, or in an initializer" if culprit else ""
            raise SerializationError(
                f"function {name} cannot be sent to a worker: {described(error)}{cause}",
                what=culprit or f"function {name}",
            ) from error
        if _last_code and not references and _is_same((last := _last_code[0]).packed, frames):
            return last
        digest = hashlib.blake2b(digest_size=16)
        for part in frames:
            digest.update(part)
        if references:
            packed = (_Separate(frames, references),)
            return cls(digest.digest(), packed, name, not _may_have_state(function))
        code = cls(digest.digest(), kept([frames[0], *map(pickle.PickleBuffer, frames[1:])]), name, True)
        if size_of(code.packed) <= _REMEMBERED_BYTES:
            _last_code[:] = [code]
        return code


_REMEMBERED_BYTES = 64 * 2**20
# The function that was pickled last, with the globals that it reads: comparing takes less than a digest and a copy.
_last_code: list[Code] = []


def _is_same(packed: Packed, frames: Sequence[Buffer]) -> bool:
    """Return whether frames have the content of a packed value with buffers of its own."""
    if type(packed) is not list or len(packed) != len(frames):
        return False
    return all(memoryview(one).obj == other for one, other in zip(packed, frames, strict=True))


def _may_have_state(function: Callable[..., Any]) -> bool:
    """Return whether a call may change the function itself, not only its module."""
    function = getattr(function, "_parl_function", function)
    return not isinstance(function, types.FunctionType) or function.__closure__ is not None


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function for messages."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


class FunctionCache(OrderedDict[bytes, T]):
    """The functions that a worker knows; worker and program keep the same list, and the program sends the others."""

    def use(self, key: bytes) -> bool:
        """Return whether a function is known, and remember that it was used last."""
        if key not in self:
            return False
        self.move_to_end(key)
        return True

    def add(self, key: bytes, value: T) -> None:
        """Add a function and forget the least recently used one."""
        self[key] = value
        if len(self) > _FUNCTIONS_KEPT:
            self.popitem(last=False)


class Outcome(NamedTuple):
    """A worker's answer for a chunk.

    Attributes:
        seconds: The time it took, including unpickling and pickling of the items and values.
        values: Packed list of values; None at the position of a failure.
        failures: `answers.Failure` by position; the positions `NO_CODE` and `NO_ITEMS` mean a failure of all items.
        apart: The positions of values that are streams, or were pickled separately and may be `Unreadable`.
        left: The number of items at the end that were not begun, because the others took too long.
    """

    seconds: float
    values: Any
    failures: dict[int, tuple[Any, ...]] | None
    apart: list[int]
    left: int = 0


class _LazyFunction:
    """A function as it was sent; it is unpickled at its first use; at each one if it may have a state of its own."""

    def __init__(self, code: Any) -> None:
        self._code = code
        self._function: Callable[..., Any] | None = None

    def read(self) -> Callable[..., Any]:
        """Return the function."""
        if self._function is not None:
            return self._function
        found: Any = unpack(self._code)
        function: Callable[..., Any] = getattr(found, "_parl_function", found)
        if _may_have_state(function):
            self._code = kept(self._code)  # a call may change the arrays in the buffers of this one
        else:
            self._function, self._code = function, None
        return function


class FunctionWorker:
    """Runs functions, one chunk of items at a time.

    Args:
        initializer: The packed initializer and its packed arguments, called first; None for no initializer.
    """

    _parl_sends_at_once = True  # a chunk that ends the process must not take along the answer to the one before

    def __init__(self, initializer: Any = None) -> None:
        self._functions: FunctionCache[_LazyFunction] = FunctionCache()
        if initializer is not None:
            function, ((args, kwargs),) = map(unpack, initializer)
            serialize.call_sharing_globals(function, args, kwargs)

    def run(self, key: bytes, code: Any, name: str, items: Any, how: int, most_s: float) -> tuple[Any, ...]:
        """Run a function on items.

        Args:
            key: The function's key, see `Code`; empty if the worker does not keep it.
            code: The packed function; None if this worker knows it.
            name: The name of the function.
            items: Packed list of items.
            how: The way in which the function takes an item, see `CallForm`.
            most_s: Seconds after which no further item is begun.

        Returns:
            The fields of an `Outcome`.
        """
        began = time.perf_counter()
        failures: dict[int, tuple[Any, ...]] = {}
        values: list[Any] = []
        apart: list[int] = []
        missing = NO_CODE
        try:
            if code is None:
                self._functions.use(key)
                lazy = self._functions[key]
            else:
                lazy = _LazyFunction(code)
                if key:
                    self._functions.add(key, lazy)
            function = lazy.read()
            began = time.perf_counter()  # longer chunks make the items cheaper, not the function
            missing = NO_ITEMS
            items = unpack(items)
        except BaseException as error:
            if missing == NO_ITEMS and isinstance(error, Exception):
                error = serialize.unreadable(f"an argument of {name}()", "worker", error)
            failures[missing] = tuple(describe(error, name))
            return time.perf_counter() - began, None, failures, apart
        rest, total, step = iter(items), len(items), 1
        del items
        now = time.perf_counter()
        until = now + most_s
        while len(values) < total and now < until:
            try:
                _run_on(islice(rest, step), function, how, values, apart)
            except BaseException as error:
                failures[len(values)] = tuple(describe(error, name))
                values.append(None)
            before, now = now, time.perf_counter()
            step = min(2 * step, _MOST_AT_ONCE) if now - before < _QUICK_S else 1
        del rest
        try:
            packed = pack(values)
        except BaseException:
            packed = pack(_without_unsendable(values, failures, apart, name))
        return time.perf_counter() - began, packed, failures or None, apart, total - len(values)


def _run_on(rest: Iterator[Any], function: Callable[..., Any], how: int, values: list[Any], apart: list[int]) -> None:
    plain = _UNCHANGING
    if how == CallForm.ITEM:
        for item in rest:
            value = function(item)
            if value is not None and type(value) not in plain and value is not item and not _is_own(value, _ALONE):
                value = _pickled_now(value)
                apart.append(len(values))
            values.append(value)  # as a method, which the interpreter does without a call
    elif how == CallForm.ITEMS:
        for item in rest:
            value = function(*item)
            if value is not None and type(value) not in plain and not _is_own(value, _ALONE):
                value = _pickled_now(value)
                apart.append(len(values))
            values.append(value)
    else:
        for args, kwargs in rest:
            values.append(function(*args, **kwargs))


_UNCHANGING = frozenset({int, float, complex, str, bytes, bool, type(None)})


def _is_own(value: Any, count: int) -> bool:
    """Return whether the function keeps no reference to the value that it returned, so later items cannot change it.

    Args:
        value: The value.
        count: The reference count of the value if the function keeps no reference.
    """
    kind = type(value)
    within = _WITHIN
    if sys.getrefcount(value) > count:
        if kind is not tuple:
            return False
        within = 0  # the function keeps what is in the tuple, too
    if kind is list or kind is tuple or kind is dict:
        for one in value.values() if kind is dict else value:
            if type(one) not in _UNCHANGING and not _is_own(one, within):
                return False
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and kind is numpy.ndarray and value.base is None and value.dtype.kind != "O"


def _pickled_now(value: Any) -> Any:
    """Return the value pickled in its current state, or itself if it cannot be pickled."""
    references: list[object] = []
    try:
        frames = serialize.dumps(value, references)
    except Exception:  # reported when the chunk is sent
        return value
    return _Separate(frames, references)


def _counts() -> tuple[int, int]:
    """Return the reference counts of a new value in `_is_own`, alone and within another; they depend on the Python."""

    def count(value: Any) -> int:
        return sys.getrefcount(value)

    def new() -> object:
        return object()

    value = new()
    alone = count(value)
    within = 0
    for one in [new()]:
        within = count(one)
    return alone, within


_ALONE, _WITHIN = _counts()


def _without_unsendable(
    values: list[Any], failures: dict[int, tuple[Any, ...]], apart: list[int], name: str
) -> list[Any]:
    """Return the values; replace those that cannot be sent by failures."""
    kept: list[Any] = []
    for place, value in enumerate(values):
        if can_stream(value):
            apart.append(place)
            kept.append(open_stream(value))
            continue
        try:
            pack(value)
        except BaseException as reason:
            what = f"what {name}() returned"
            advice = ""
            if inspect.iscoroutine(value):
                value.close()  # it will not be awaited
                advice = f". Send a function that runs it: lambda: asyncio.run({name}(...))"
            error = SerializationError(
                f"{what} (a {class_name_of(type(value))}) cannot be sent back: {described(reason)}{advice}",
                what=what,
            )
            error.__cause__ = reason
            failures[place] = tuple(describe(error, name))
            kept.append(None)
        else:
            kept.append(value)
    return kept
