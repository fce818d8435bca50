"""Python objects to bytes and back; the only user of cloudpickle.

    dumps(value) -> [pickle, buffer, buffer, ...]   large arrays stay where they are, outside the pickle stream
    loads(pickle, buffers) -> value                 arrays are views of the buffers, writable as those are

Plain pickle comes first, because it is ten times faster. cloudpickle takes over where plain pickle fails (lambdas,
classes in functions) and where it would only send a name that means nothing in another process: everything defined in
`__main__`, and modules for which `ship_by_value` was called.
"""

from __future__ import annotations

import functools
import io
import pickle
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from parl_remote.errors import SerializationError
from parl_remote.transport import Buffer

__all__ = ["dumps", "dumps_arguments", "loads", "ship_by_value"]

# Below this a copy into the pickle stream is cheaper than one more frame.
_OUT_OF_BAND_BYTES = 8192

# Marks of modules whose names mean nothing in another process. It only grows, like cloudpickle's own registry,
# which it mirrors in the form that can be searched for in a pickle.
_by_value: list[bytes] = [b"__main__"]

_PLAIN_ERRORS = (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError, BufferError)

_plain_dumps = pickle.dumps
_plain_loads = pickle.loads


def dumps(value: object) -> list[Buffer]:
    """The value as frames: its pickle and the buffers that stay outside of it.

    Raises:
        Exception: Whatever pickling raised; callers know what the value was and raise `SerializationError`.
    """
    frames: list[Buffer] = [b""]

    def keep_outside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if len(raw) < _OUT_OF_BAND_BYTES:
            return True
        frames.append(raw)
        return False

    try:
        data = _plain_dumps(value, 5, buffer_callback=keep_outside)
        for mark in _by_value:
            if mark in data:
                break
        else:
            frames[0] = data
            return frames
    except _PLAIN_ERRORS:
        pass  # cloudpickle may know how; if not, its error is the one to show
    del frames[1:]
    stream = io.BytesIO()
    _by_value_pickler()(stream, 5, buffer_callback=keep_outside).dump(value)
    frames[0] = stream.getvalue()
    return frames


def loads(data: Buffer, buffers: Iterable[Buffer] = ()) -> Any:
    """The value that `dumps` took apart.

    Raises:
        Exception: Whatever unpickling raised.
    """
    return _plain_loads(data, buffers=buffers)


def dumps_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], call: str, names: Callable[[], list[str]]
) -> list[Buffer]:
    """Arguments of a call as frames: `args` alone, or `(args, kwargs)` if there are keyword arguments.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.
        call: What is called, for the message: "Actor.add".
        names: Gives the names of the positional parameters; asked only when something goes wrong.

    Raises:
        SerializationError: It names the argument that cannot be sent.
    """
    try:
        return dumps((args, kwargs) if kwargs else args)
    except Exception as error:
        what = _culprit(args, kwargs, names)
        raise SerializationError(
            f"{what} of {call}() cannot be sent to the actor: {type(error).__name__}: {error}. "
            "Send plain data, or make it inside the actor.",
            what=f"{what} of {call}",
        ) from error


def _culprit(args: tuple[Any, ...], kwargs: Mapping[str, Any], names: Callable[[], list[str]]) -> str:
    """Which argument cannot be pickled, in words."""
    known = names()
    named = {known[i] if i < len(known) else f"number {i + 1}": value for i, value in enumerate(args)}
    for name, value in {**named, **kwargs}.items():
        try:
            dumps(value)
        except Exception:
            return f"argument {name!r} (a {type(value).__name__})"
    return "the arguments together"


def ship_by_value(module: ModuleType) -> None:
    """From now on send what is defined in `module` itself instead of its name."""
    import cloudpickle

    mark = module.__name__.encode()
    if mark not in _by_value:
        cloudpickle.register_pickle_by_value(module)
        _by_value.append(mark)


@functools.cache
def _by_value_pickler() -> type[Any]:
    """Cloudpickle's pickler, whose classes do not overwrite the ones that they come back to."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        def reducer_override(self, value: Any) -> Any:
            if type(value) is functools.cached_property:  # up to Python 3.11 it has a lock
                state = {name: part for name, part in value.__dict__.items() if name != "lock"}
                return functools.cached_property, (value.func,), state
            reduced = super().reducer_override(value)
            if isinstance(value, type) and isinstance(reduced, tuple) and len(reduced) == 6:
                _complete.add(value)
                make, arguments, content, _, _, fill = reduced
                return make, arguments, (fill, content), None, None, _fill_once
            return reduced

    return Pickler


# Classes that are whole in this process: they came from here, or have been received before.
_complete: weakref.WeakSet[type] = weakref.WeakSet()


def _fill_once(cls: type, how: tuple[Callable[[type, Any], None], Any]) -> None:
    """Give a class that was sent by value its methods, unless it has them: then those are the right ones."""
    if cls not in _complete:
        _complete.add(cls)
        fill, state = how
        fill(cls, state)
