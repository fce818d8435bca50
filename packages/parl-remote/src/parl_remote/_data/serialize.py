"""Serialization of Python objects; the only user of cloudpickle.

    dumps(value) -> [pickle, buffer, buffer, ...]   large arrays stay where they are, outside the pickle stream
    loads(pickle, buffers) -> value                 arrays are views of the buffers, writable as those are

Plain pickle comes first, because it is ten times faster. cloudpickle takes over where plain pickle fails (lambdas,
classes in functions) and where it would only send a name that is meaningless in another process: everything defined in
`__main__`, and modules for which `ship_by_value` was called.

The pickler of a message collects the references in it (handles of actors, values of `put`), so that the sender keeps
alive what they refer to until it has arrived. A pickle that a user makes by hand collects none. Of a value that cannot
be pickled, `culprit_in` finds the part and the name under which it is found: `config['logs'][2].file`.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import hashlib
import importlib
import inspect
import io
import itertools
import operator
import pickle
import sys
import threading
import time
import types
import typing
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, Self

import cloudpickle

from parl_remote._data.ownership import new_unshared_modules
from parl_remote._data.tensors import OUT_OF_BAND_BYTES, Reducers, reducers
from parl_remote._system.texts import class_name_of, described
from parl_remote._transport import Buffer
from parl_remote.errors import SerializationError

__all__ = [
    "FuturePickled",
    "Pickled",
    "Reference",
    "call_sharing_globals",
    "culprit_in",
    "dumps",
    "dumps_arguments",
    "dumps_whole",
    "has_name_elsewhere",
    "has_stand_ins",
    "inside",
    "is_open_file",
    "loads",
    "look_at_new_modules",
    "modules_being_loaded",
    "pickled",
    "reduce_by_value",
    "refusal",
    "ship_by_value",
    "stand_in",
    "unreadable",
    "with_stand_ins",
]


_by_value: list[bytes] = []
_MAIN = b"__main__"  # its names are meaningless in another process
_CONNECTIONS = b"multiprocessing.connection"  # nor do its objects

# In every pickle of a reference: it is read by a function of this package.
_PACKAGE = __package__.partition(".")[0].encode()

# Classes whose objects are pickled in another way when they are arguments by themselves; see `stand_in`.
_stand_ins: dict[type[Any], Callable[[Any], object]] = {}

# The number of modules that were loaded at the last check for those that other processes cannot import.
_counted = [0]

_PLAIN_ERRORS = (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError, BufferError)

_modules = sys.modules
# Whether the last value had arrays, which the pickler of arrays does faster; others it begins slower.
_arrays_expected = [False]
_registered = [-1]  # the number of reducers in `copyreg` when the pickler of arrays got its own
_plain_dumps = pickle.dumps
_plain_loads = pickle.loads


class FuturePickled(SerializationError):
    """A future was pickled; as a call's own argument it is awaited instead, anywhere else this is an error."""


class Reference:
    """Base of objects whose referent has to stay alive while a message that contains them is in flight."""

    __slots__ = ()

    def _parl_referents(self) -> Sequence[object]:
        """Return the objects that keep it alive."""
        raise NotImplementedError


class Pickled(Reference):
    """A value that was pickled earlier, and is sent in its state of that time.

    Args:
        frames: The result of `dumps`.
        referents: The referents of the references contained in it.
        copies: Whether to copy the frames; not needed for what is sent before anything writes to them.
    """

    __slots__ = ("_buffers", "_data", "_referents")

    def __init__(self, frames: Sequence[Buffer], referents: Sequence[object] = (), *, copies: bool = True) -> None:
        self._data = bytes(frames[0])
        self._buffers: list[Buffer] = [bytearray(buffer) if copies else buffer for buffer in frames[1:]]
        self._referents = referents

    def _parl_referents(self) -> Sequence[object]:
        return self._referents

    def copied(self) -> Self:
        """Return the same with copies of the frames."""
        return type(self)([self._data, *self._buffers], self._referents)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return loads, (self._data, [pickle.PickleBuffer(buffer) for buffer in self._buffers])


def dumps(value: object, references: list[object] | None = None) -> list[Buffer]:
    """Return the value as frames: its pickle and the buffers that stay outside of it.

    Args:
        value: The value to pickle.
        references: Filled with the referents of the references contained in the value.

    Raises:
        Exception: Any error of pickling; callers know what the value was and raise `SerializationError`.
    """
    by_value = False
    if not _arrays_expected[0] and "torch" not in _modules and "paddle" not in _modules:
        try:
            data = _plain_dumps(value, 5, buffer_callback=_stop)
        except _HasArrays:
            _arrays_expected[0] = True
        except _PLAIN_ERRORS:  # cloudpickle may be able to; if not, its error is the better one to show
            by_value = True
        else:
            by_value = _MAIN in data or _CONNECTIONS in data or bool(_by_value and _names_shipped(data))
            if not by_value and (references is None or _PACKAGE not in data):
                return [data]  # the usual case
    return _dumps_with_buffers(value, references, by_value=by_value)


def dumps_whole(value: object) -> bytes:
    """Return the value as one pickle, with the memory of its arrays; for definitions, which mostly have none.

    Raises:
        Exception: Any error of pickling, as for `dumps`.
    """
    if len(_modules) != _counted[0]:  # a definition may use some that cannot be imported elsewhere
        look_at_new_modules()
    try:
        data = _plain_dumps(value, 5)
        if not _names_shipped(data):
            return data
    except _PLAIN_ERRORS:
        pass
    return _cloudpickled(value, None, reducers() if "torch" in _modules or "paddle" in _modules else None, None)


class _HasArrays(Exception):
    """A value has buffers that may go outside the pickle stream."""


def _stop(_: pickle.PickleBuffer) -> bool:
    raise _HasArrays


def _dumps_with_buffers(value: object, references: list[object] | None, *, by_value: bool) -> list[Buffer]:
    """Return the frames of a value for which plain pickle alone is not enough; `by_value` if that is known already."""
    frames: list[Buffer] = [b""]

    def keep_outside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if len(raw) < OUT_OF_BAND_BYTES:
            return True
        frames.append(raw)
        return False

    if "torch" in _modules or "paddle" in _modules:
        frames[0] = pickled(value, keep_outside, reducers(), frames, references)
        return frames
    data = b""
    if not by_value:
        try:
            data = _plainly_pickled(value, keep_outside)
        except _PLAIN_ERRORS:
            by_value = True
    if by_value or _names_shipped(data):
        del frames[1:]
        data = _cloudpickled(value, keep_outside, None, references)
    # a pickler with a hook for every object costs one call per object more
    elif references is not None and _PACKAGE in data:
        del frames[1:]
        stream = io.BytesIO()
        pickler = _CollectingPickler(stream, keep_outside, references)
        pickler.dispatch_table = reducers()
        pickler.dump(value)
        data = stream.getvalue()
    frames[0] = data
    _arrays_expected[0] = b"numpy" in data
    return frames


class _ArrayPickler(pickle.Pickler):
    """The plain pickler, with a faster way for arrays."""

    dispatch_table: Mapping[Any, Any] = {}


def _plainly_pickled(value: object, keep_outside: Callable[[pickle.PickleBuffer], bool]) -> bytes:
    if len(copyreg.dispatch_table) != _registered[0]:
        _registered[0] = len(copyreg.dispatch_table)
        _ArrayPickler.dispatch_table = reducers()
    stream = io.BytesIO()
    _ArrayPickler(stream, 5, buffer_callback=keep_outside).dump(value)
    return stream.getvalue()


def pickled(
    value: object,
    keep_outside: Callable[[pickle.PickleBuffer], bool],
    table: Reducers,
    kept: list[Any],
    references: list[object] | None = None,
) -> bytes:
    """Return the pickle, without the buffers.

    Args:
        value: The value to pickle.
        keep_outside: Called with each buffer; returns False if it has kept it, True to put it into the pickle.
        table: The reducers of some classes.
        kept: The list to which `keep_outside` adds buffers, after a first entry; truncated to that if plain pickle
            failed.
        references: See `dumps`.

    Raises:
        Exception: Any error of pickling.
    """
    stream = io.BytesIO()
    found: list[object] = []
    pickler = _CollectingPickler(stream, keep_outside, found)
    pickler.dispatch_table = table
    try:
        pickler.dump(value)
        data = stream.getvalue()
    except _PLAIN_ERRORS:
        data = _MAIN
    if _names_shipped(data):
        del kept[1:]
        return _cloudpickled(value, keep_outside, table, references)
    if references is not None:
        references.extend(found)
    return data


class _CollectingPickler(pickle.Pickler):
    """A pickler that collects the references that it meets."""

    dispatch_table: Mapping[Any, Any]

    def __init__(
        self, stream: io.BytesIO, keep_outside: Callable[[pickle.PickleBuffer], bool], references: list[object]
    ) -> None:
        super().__init__(stream, 5, buffer_callback=keep_outside)
        self._references = references

    def reducer_override(self, value: Any) -> Any:
        if issubclass(type(value), Reference):
            self._references.extend(value._parl_referents())
        return NotImplemented


def _names_shipped(data: bytes) -> bool:
    """Return whether a pickle names a module whose names mean nothing in another process."""
    return _MAIN in data or _CONNECTIONS in data or any(mark in data for mark in _by_value)


def _cloudpickled(
    value: object,
    keep_outside: Callable[[pickle.PickleBuffer], bool] | None,
    table: Reducers | None,
    references: list[object] | None,
) -> bytes:
    stream = io.BytesIO()
    pickler = _ByValuePickler(stream, 5, buffer_callback=keep_outside)
    pickler.references = [] if references is None else references
    if table is not None:
        pickler.dispatch_table = {**pickler.dispatch_table, **table}
    pickler.dump(value)
    return stream.getvalue()


def loads(data: Buffer, buffers: Iterable[Buffer] = ()) -> Any:
    """Return the value of a `dumps`.

    Raises:
        Exception: Any error of unpickling.
    """
    return _plain_loads(data, buffers=buffers)


def modules_being_loaded() -> list[str]:
    """Return the names of the modules whose imports, which `loads` needs, run the calling code; the innermost first."""
    modules = []
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not loads.__code__:
        if frame.f_code.co_name == "<module>":
            modules.append(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    return [] if frame is None else modules


def dumps_arguments(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    call: str,
    names: Callable[[], list[str]],
    references: list[object] | None = None,
) -> list[Buffer]:
    """Return arguments of a call as frames: `args` alone, or `(args, kwargs)` if there are keyword arguments.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.
        call: The name of the call, for the message: "Actor.add".
        names: Returns the names of the positional parameters; called only on errors.
        references: See `dumps`.

    Raises:
        SerializationError: An argument cannot be sent; the message names it.
        FuturePickled: The arguments are or contain a future.
    """
    if len(_modules) != _counted[0]:  # checked here because every call passes this point
        look_at_new_modules()
    if _stand_ins:
        args, kwargs = with_stand_ins(args, kwargs)
    try:
        return dumps((args, kwargs) if kwargs else args, references)
    except FuturePickled:
        raise
    except Exception as error:
        raise refusal(error, args, kwargs, call, names) from error


def has_stand_ins() -> bool:
    """Return whether `with_stand_ins` may replace anything."""
    return bool(_stand_ins)


def with_stand_ins(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments of a call with those replaced that have a stand-in."""
    if not _stand_ins.keys().isdisjoint(map(type, args)):
        args = tuple(_stand_ins[type(one)](one) if type(one) in _stand_ins else one for one in args)
    if kwargs and not _stand_ins.keys().isdisjoint(map(type, kwargs.values())):
        kwargs = {key: _stand_ins[type(one)](one) if type(one) in _stand_ins else one for key, one in kwargs.items()}
    return args, kwargs


def stand_in(kind: type[Any], replace: Callable[[Any], object]) -> None:
    """Register a replacement, made before pickling, for objects of a class that are arguments by themselves."""
    _stand_ins[kind] = replace


def refusal(
    error: Exception,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    call: str,
    names: Callable[[], list[str]],
    to: str = "actor",
) -> SerializationError:
    """Return the error for arguments that cannot be sent, see `dumps_arguments`; never raises."""
    what, inside = _culprit(args, kwargs, names)
    if isinstance(error, FuturePickled):
        return SerializationError(f"{what} of {call}(): {error}", what=f"{what} of {call}")
    return SerializationError(
        f"{what} of {call}() cannot be sent to the {to}: {inside}{described(error)}. "
        f"Send plain data, or make it inside the {to}.",
        what=f"{what} of {call}",
    )


def _culprit(args: tuple[Any, ...], kwargs: Mapping[str, Any], names: Callable[[], list[str]]) -> tuple[str, str]:
    """Return the description of the argument that cannot be pickled, and of the part of it that is the cause."""
    known = names()
    named = [
        (repr(known[i]), known[i]) if i < len(known) else (f"{i + 1}", f"argument {i + 1}") for i in range(len(args))
    ]
    named += [(repr(name), name) for name in kwargs]
    for (shown, name), value in zip(named, (*args, *kwargs.values()), strict=True):
        try:
            dumps(value)
        except Exception:
            return f"argument {shown} (a {class_name_of(type(value))})", inside(value, name)
    return "the arguments together", ""


def unreadable(what: str, where: str, error: BaseException) -> SerializationError:
    """Return the error for a value that cannot be unpickled at its receiver."""
    hint = ""
    if class_name_of(type(error)) == "AuthenticationError":
        hint = (
            ". A proxy of a multiprocessing manager is for the actors and workers that the program made after its "
            "key was set; an actor, or a parl.Queue, can be sent to any"
        )
    return SerializationError(f"{what} cannot be read in the {where}: {described(error)}{hint}", what=what)


def inside(value: object, name: str) -> str:
    """Return the part of a value that cannot be pickled, for a message; empty for the value itself; never raises."""
    try:
        found = culprit_in(value, name, dumps)
    except Exception:  # of the value's own code: its items or attributes cannot be read, or a key has no text
        return ""
    return f"{found}; " if found else ""


def ship_by_value(module: ModuleType) -> None:
    """Pickle the definitions in `module` by value, not by name, from now on."""
    mark = module.__name__.encode()
    if mark not in _by_value:
        cloudpickle.register_pickle_by_value(module)
        _by_value.append(mark)


def look_at_new_modules() -> None:
    """Call `ship_by_value` for own modules that other processes cannot import; cheap if no module is new."""
    if len(_modules) != _counted[0]:
        for module in new_unshared_modules():
            ship_by_value(module)
        _counted[0] = len(_modules)


def reduce_by_value(kind: type, reduce: Callable[[Any], Any]) -> None:
    """Register how objects of a class are reduced where functions go by value; plain pickle keeps its own way."""
    _ByValuePickler.dispatch_table[kind] = reduce


class _ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """A pickler of cloudpickle whose classes overwrite no newer ones, and none on their return."""

    references: list[object]

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is FunctionType and value in _MAKERS:
            return NotImplemented
        if issubclass(kind, Reference):
            self.references.extend(value._parl_referents())
        if isinstance(value, io.IOBase) and is_open_file(value):  # cloudpickle would send the unread remainder
            raise pickle.PicklingError(f"cannot pickle the open file {getattr(value, 'name', value)!r}")
        if kind.__module__ == _CONNECTIONS.decode() and hasattr(value, "fileno"):  # plain pickle sends its number
            raise pickle.PicklingError("the ends of a pipe are for processes that multiprocessing starts")
        if kind is CodeType:  # cloudpickle 3.1.3 leaves out the file, by which tracebacks show the source
            make, fields = self.dispatch_table[CodeType](value)
            at = list(map(type, fields)).index(str)  # `-bb` forbids to look for a text among bytes
            if fields[at] == _NO_FILE:
                fields = (*fields[:at], value.co_filename, *fields[at + 1 :])
            return make, fields
        if kind is functools.cached_property:  # up to Python 3.11 it has a lock
            state = {name: part for name, part in value.__dict__.items() if name != "lock"}
            return functools.cached_property, (value.func,), state
        if kind is functools.partialmethod:  # from Python 3.14 on, plain pickle cannot make it again
            return _partialmethod, (value.func, value.args, value.keywords)
        if kind is functools.singledispatchmethod and hasattr(value, "_method_cache"):  # Python 3.13; None is no cache
            return _empty, (kind,), value.__dict__ | {"_method_cache": None}
        if kind is _Cached and not has_name_elsewhere(value):
            return _cached, (value.__wrapped__, value.cache_parameters())
        if kind is FunctionType and value.__code__ is _DISPATCHES and not has_name_elsewhere(value):
            registry: Any = value.registry
            return _dispatcher, (value.__name__,), dict(registry), None, None, _fill_dispatcher
        if kind is typing.NewType and not has_name_elsewhere(value):
            return typing.NewType, (value.__name__, value.__supertype__), value.__dict__
        reduced = super().reducer_override(value)
        if not isinstance(reduced, tuple) or len(reduced) != _REDUCED_BY_VALUE:
            return reduced
        make, arguments, content, _, _, fill = reduced
        if kind is FunctionType:
            _add_globals_of_class_bodies(value, content)
            return make, arguments, (fill, content), None, None, _fill_function
        if isinstance(value, type):
            version = _version_of(value, content, self.dispatch_table)
            if "__slots__" in value.__dict__:
                arguments = _with_slots(value.__dict__["__slots__"], arguments)
            if kind.__name__ == "_TypedDictMeta":
                arguments = _with_bases(kind, arguments)
            return make, arguments, (fill, content, version), None, None, _fill_class
        return reduced


_NO_FILE = "<dynamic-code>"
_REDUCED_BY_VALUE = 6  # how many parts cloudpickle's reduction of a class or function has that goes by value


def _add_globals_of_class_bodies(function: FunctionType, state: Any) -> None:
    """Add the globals that class bodies within a function, and annotations, use; cloudpickle misses them."""
    sent = state[1].get("__globals__") if isinstance(state, tuple) and isinstance(state[1], dict) else None
    if not isinstance(sent, dict):
        return
    todo: list[object] = [function.__code__]
    while todo:
        code = todo.pop()
        if not isinstance(code, CodeType):
            continue
        todo += code.co_consts
        # A class's body, or the function that Python 3.14 makes of the annotations in one.
        if not code.co_flags & inspect.CO_OPTIMIZED or code.co_name == "__annotate__":
            for name in code.co_names:
                if name in function.__globals__ and not name.startswith("__"):
                    sent.setdefault(name, function.__globals__[name])


# Among the arguments of cloudpickle's `_make_skeleton_class`: bases as written, and what the class has at first.
_BASES, _NAMESPACE = 2, 3


def _with_slots(slots: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments that make a class, with its slots: given later, they would be an attribute."""
    if not isinstance(slots, str | tuple | list | dict) or not isinstance(arguments[_NAMESPACE], dict):
        return arguments  # an iterator that was used up when the class was made; or an enumeration
    if typing.NamedTuple in arguments[_BASES]:
        return arguments  # NamedTuple makes the slots itself, and takes none
    namespace = {**arguments[_NAMESPACE], "__slots__": slots}
    return *arguments[:_NAMESPACE], namespace, *arguments[_NAMESPACE + 1 :]


def _with_bases(kind: type, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments that make a typed dictionary, of that metaclass, with `TypedDict` as its base."""
    typed = getattr(_modules[kind.__module__], "TypedDict", typing.TypedDict)  # typing's, or typing_extensions'
    generic = [base for base in arguments[_BASES] if typing.get_origin(base) is typing.Generic]
    return *arguments[:_BASES], (typed, *generic), *arguments[_NAMESPACE:]


_Cached = type(functools.cache(repr))  # the type that `functools.lru_cache` returns; pickle sends it by name only


def _empty(kind: Any) -> Any:
    """Return an object that has not been initialized."""
    return kind.__new__(kind)


def _partialmethod(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> functools.partialmethod[Any]:
    return functools.partialmethod(function, *args, **keywords)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    cached: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return cached


# What `functools.singledispatch` makes; it has a cache of weak references, which cannot be pickled.
_DISPATCHES = functools.singledispatch(repr).__code__  # type: ignore[attr-defined]  # it is a function


def _dispatcher(name: str) -> Callable[..., Any]:
    def function(_: object) -> None:
        """Do nothing: a placeholder for the function, which may refer to its dispatcher."""

    function.__name__ = name
    return functools.singledispatch(function)


def _fill_dispatcher(dispatcher: Any, registry: dict[type, Callable[..., Any]]) -> None:
    for kind, function in registry.items():
        dispatcher.register(kind, function)
    functools.update_wrapper(dispatcher, registry[object])


def has_name_elsewhere(function: Any) -> bool:
    """Return whether other processes find a function by its module and name."""
    name = function.__module__
    if name == _MAIN.decode() or any(f"{name}.".startswith(f"{mark.decode()}.") for mark in _by_value):
        return False
    try:
        return operator.attrgetter(function.__qualname__)(_modules.get(name)) is function
    except AttributeError:
        return False


# Classes of this process that were sent by value: a digest of their content when it was last sent, and its version.
_sent: weakref.WeakKeyDictionary[type, tuple[bytes, int]] = weakref.WeakKeyDictionary()
# Classes that came from other processes, with the version of the content that arrived last.
_received: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()


# Attributes that Python adds when they are first needed, or that follow from the definition and take long to pickle.
_DERIVED = "__slotnames__", "__annotations_cache__", "__dataclass_"


def _version_of(cls: type, content: Any, table: Reducers) -> int:
    """Return the version of a class's content, which increases when the process that defined it has changed it."""
    if cls in _received:
        return _received[cls]
    before, version = _sent.get(cls, (b"", 0))
    attributes = {name: value for name, value in content[0].items() if not name.startswith(_DERIVED)}
    digest = _digest_of(attributes, table)
    if digest != before:
        version = max(version + 1, time.monotonic_ns())  # a forked child has separate versions
        _sent[cls] = digest, version
    return version


def _digest_of(attributes: dict[str, Any], table: Reducers) -> bytes:
    """Return a digest of a class's attributes; empty if they cannot be sent."""
    digest = hashlib.blake2b(digest_size=16)
    stream = io.BytesIO()
    pickler = _DigestPickler(stream, 5, buffer_callback=lambda buffer: digest.update(buffer.raw()))
    pickler.dispatch_table = table
    try:
        pickler.dump(attributes)
    except Exception:  # sending it fails in the same way, which is reported
        return b""
    digest.update(stream.getbuffer())
    return digest.digest()


class _DigestPickler(_ByValuePickler):
    """A pickler for digests: the content of classes and of code is left out, as it is known by its identity."""

    def reducer_override(self, value: Any) -> Any:
        if issubclass(type(value), type | Reference):
            return id, (id(value),)
        if type(value) is not FunctionType or value.__code__ is _DISPATCHES or has_name_elsewhere(value):
            return super().reducer_override(value)
        names = cloudpickle.cloudpickle._extract_code_globals(value.__code__)
        used = {name: value.__globals__[name] for name in names if name in value.__globals__}
        parts = used, value.__defaults__, value.__kwdefaults__, value.__closure__, value.__dict__
        return id, (_number_of(value.__code__),), parts


_numbers = itertools.count()


@functools.lru_cache(maxsize=4096)
def _number_of(_: CodeType) -> int:
    """Return the number of a code object; the same for equal ones."""
    return next(_numbers)


def _fill_class(cls: type, how: tuple[Callable[[type, Any], None], Any, int]) -> None:
    """Fill a class that was sent by value with its attributes, unless it is of this process or they are not newer."""
    fill, content, version = how
    if cls not in _sent and version > _received.get(cls, -1):
        _received[cls] = version
        fill(cls, content)


def _fill_function(function: FunctionType, how: tuple[Callable[[FunctionType, Any], None], Any]) -> None:
    """Fill a function that was sent by value; globals that are kept for its module replace those sent with it."""
    fill, state = how
    fill(function, state)
    kept = _kept_globals.get(function.__globals__.get("__name__", ""))
    if kept is not None and kept is not function.__globals__:
        function.__globals__.update((name, value) for name, value in kept.items() if name[:2] != "__")


def call_sharing_globals(function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Call a function; functions of its module in this process see from then on the globals that it assigns.

    A function that is sent by value, one of `__main__` or one within another for example, has globals of its own, with
    the values that they had when it was sent. Functions of its module that are sent by value later get these globals;
    if the module can be imported here, so does the module.
    """
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(getattr(inner, "__func__", inner))
    if not isinstance(inner, FunctionType):
        inner = getattr(type(inner), "__call__", inner)  # noqa: B004  # looked up as a call does
    sent = inner.__globals__ if isinstance(inner, FunctionType) else {}
    name = sent.get("__name__", "")
    if name:
        _kept_globals[name] = sent
    module = _imported(name) if name not in ("", "__main__") else None
    if module is None or vars(module) is sent:
        function(*args, **kwargs)
        return
    before = {key: value for key, value in sent.items() if key[:2] != "__"}
    vars(module).update(before)
    function(*args, **kwargs)
    changed = (item for item in sent.items() if item[0][:2] != "__" and before.get(item[0], sent) is not item[1])
    vars(module).update(changed)


def _imported(name: str) -> ModuleType | None:
    with contextlib.suppress(Exception):  # those that need the module are told
        return importlib.import_module(name)
    return None


_kept_globals: dict[str, dict[str, Any]] = {}  # by module

_OF_CLOUDPICKLE = vars(cloudpickle.cloudpickle)
# Functions that a pickle by value makes its content with. They go by their names, whatever cloudpickle would decide,
# which it takes half of the time of a small function to do.
_MAKERS = {
    _fill_class,
    _fill_function,
    *(one for one in _OF_CLOUDPICKLE.values() if type(one) is FunctionType and one.__globals__ is _OF_CLOUDPICKLE),
}

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_DEEPEST = 20
_LOCKS = {type(threading.Lock()): "a lock", type(threading.RLock()): "a lock"}


def is_open_file(value: object) -> bool:
    """Return whether a value is a file of this process; its standard streams have a counterpart in every process."""
    memory = io.StringIO | io.BytesIO
    return isinstance(value, io.IOBase) and not isinstance(value, memory) and value not in (sys.stdout, sys.stderr)


def culprit_in(value: object, name: str, check: Callable[[object], object]) -> str:
    """Return the part of a value that cannot be pickled, with its place: "config['log'] is an open file ('/tmp/x')".

    Args:
        value: A value that cannot be pickled.
        name: Its name.
        check: Pickles a value; raises what pickling raises.

    Returns:
        The text; empty if it is the value itself, and its type says all there is to say.
    """
    path, seen = name, {id(value)}
    for _ in range(_DEEPEST):
        for inner_path, inner in _parts(value, path):
            if type(inner) in _PLAIN or id(inner) in seen:
                continue
            try:
                check(inner)
            except Exception:
                seen.add(id(inner))
                value, path = inner, inner_path
                break
        else:
            break
    kind = _kind_of(value)
    return f"{path} is {kind}" if path != name or kind != _type_of(value) else ""


def _parts(value: Any, path: str) -> Iterator[tuple[str, object]]:
    """Yield the parts of a value with their names."""
    if isinstance(value, Mapping):
        for key, part in list(value.items()):
            yield f"{path}[{key!r:.80}]", part
            yield f"the key {key!r:.80} of {path}", key
    elif isinstance(value, list | tuple):
        names = getattr(value, "_fields", ())
        for index, part in enumerate(value):
            yield f"{path}.{names[index]}" if names else f"{path}[{index}]", part
    elif isinstance(value, set | frozenset):
        for part in list(value):
            yield f"an item of {path}", part
    elif isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # it has no value yet
                yield f"{variable} in {path}", cell.cell_contents
    elif isinstance(value, functools.partial):
        for index, part in enumerate(value.args):
            yield f"{path}.args[{index}]", part
        for key, part in value.keywords.items():
            yield f"{path}.keywords[{key!r}]", part
    if _refuses(value):
        return
    for attribute, part in list(getattr(value, "__dict__", {}).items()):
        yield f"{path}.{attribute}", part
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if not slot.startswith("__") and hasattr(value, slot):
                yield f"{path}.{slot}", getattr(value, slot)


def _refuses(value: Any) -> bool:
    """Return whether an object itself refuses to be pickled, whatever it holds."""
    kind: Any = type(value)
    if kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__:
        return False
    try:
        value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:
        return True
    return False


def _kind_of(value: object) -> str:
    if is_open_file(value):
        file = getattr(value, "name", None)
        return f"an open file ({file!r})" if file is not None else "an open file"
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return f"a generator ({value.__qualname__})"
    if type(value) in _LOCKS:
        return _LOCKS[type(value)]
    return _type_of(value)


def _type_of(value: object) -> str:
    return f"a {class_name_of(type(value))}"


# Marks of modules whose names mean nothing in another process. It only grows, like cloudpickle's own registry,
# which it mirrors in the form that can be searched for in a pickle.
