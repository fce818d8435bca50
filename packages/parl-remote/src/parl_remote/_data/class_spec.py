"""The description of a class, determined without its objects: methods, other attributes, parameters."""

from __future__ import annotations

import base64
import difflib
import functools
import inspect
import operator
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from parl_remote._data import serialize
from parl_remote._data.ownership import importable_elsewhere
from parl_remote._options import ActorOptions
from parl_remote._system.texts import described
from parl_remote.errors import SerializationError

__all__ = [
    "ClassAttribute",
    "ClassSpec",
    "ShippedSpec",
    "culprit_of",
    "description_of",
    "dumps_class",
    "read_description",
]


def dumps_class(cls: type) -> bytes:
    """Return a serialized class: its name if the actor can import it, else the class itself.

    Raises:
        SerializationError: An object that the class needs cannot be sent.
    """
    module = sys.modules.get(cls.__module__)
    if module is not None and cls.__module__ != "__main__" and not importable_elsewhere(module):
        serialize.ship_by_value(module)
    try:
        return serialize.dumps_whole(cls)
    except Exception as error:
        culprit = culprit_of(cls)
        blamed = culprit or f"something that its methods use, in {cls.__module__}"
        raise SerializationError(
            f"class {cls.__qualname__} cannot be sent to an actor: {described(error)}. "
            f"The cause is {blamed}: make it inside the actor, in __init__ for example.",
            what=culprit or f"class {cls.__qualname__}",
        ) from error


def culprit_of(thing: object, seen: set[int] | None = None) -> str:
    """Return the object that keeps a class or function from being sent; empty if there is no single one.

    Args:
        thing: The class or function; other callables are not looked into.
        seen: The identities of objects that were examined already.
    """
    seen = set() if seen is None else seen
    seen.add(id(thing))
    for what, value in _parts(thing):
        if id(value) in seen or _can_be_sent(value):
            continue
        if isinstance(value, type | types.FunctionType):
            deeper = culprit_of(value, seen)
            if deeper:
                return deeper
        return f"{what} (a {type(value).__qualname__})"
    return ""


def _parts(thing: object) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, type):
        yield from _parts_of_class(thing)
    elif isinstance(thing, types.FunctionType):
        yield from _parts_of_function(thing)


def _parts_of_class(cls: type) -> Iterator[tuple[str, Any]]:
    for base in (cls, *(base for base in cls.__mro__[1:] if not _can_be_sent(base))):
        for name, attribute in list(base.__dict__.items()):
            if name in {"__dict__", "__weakref__", "__new__"}:
                continue
            functions = list(_functions_of(attribute))
            for function in functions:
                yield from _parts_of_function(function)
            if not functions:
                yield f"the attribute {name!r} of {base.__qualname__}", attribute


def _functions_of(attribute: object) -> Iterator[types.FunctionType]:
    """Yield the functions behind an attribute of a class."""
    if isinstance(attribute, property):
        accessors = (attribute.fget, attribute.fset, attribute.fdel)
        yield from (accessor for accessor in accessors if isinstance(accessor, types.FunctionType))
        return
    if isinstance(attribute, staticmethod | classmethod):
        attribute = attribute.__func__
    elif isinstance(attribute, functools.cached_property):
        attribute = attribute.func
    if isinstance(attribute, types.FunctionType):
        yield attribute


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    user = function.__qualname__
    for name in sorted(_names_in(function.__code__)):
        if name in function.__globals__:
            yield f"the global {name!r} of {function.__module__}, which {user} uses", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"the variable {name!r} around {user}", cell.cell_contents
        except ValueError:
            continue  # it has no value yet
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty:
            yield f"the default of {parameter.name!r} of {user}", parameter.default


def _names_in(code: types.CodeType) -> set[str]:
    """Return the names that code looks up, including functions within it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names


def _can_be_sent(value: object) -> bool:
    try:
        serialize.dumps(value)
    except Exception:
        return False
    return True


# Python looks these up on an object's type, so the proxy's class must have them.
FORWARDED = [
    "__call__",
    "__len__",
    "__bool__",
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__contains__",
    "__iter__",
    "__next__",
    "__enter__",
    "__exit__",
    "__reversed__",
    "__aenter__",
    "__aexit__",
    "__aiter__",
    "__anext__",
    *(
        f"__{side}{name}__"
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
        for side in ("", "r", "i")
    ),
    *(f"__{side}{name}__" for name in ("and", "or", "xor", "lshift", "rshift") for side in ("", "r", "i")),
    "__divmod__",
    "__rdivmod__",
    "__neg__",
    "__pos__",
    "__abs__",
    "__invert__",
    "__round__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__int__",
    "__float__",
    "__complex__",
    "__index__",
    "__trunc__",
    "__floor__",
    "__ceil__",
    "__bytes__",
    "__fspath__",
    "__length_hint__",
    "__format__",
]

# Descriptors that are not callable themselves, but whose values are.
_METHODS = staticmethod, classmethod, functools.partialmethod, functools.singledispatchmethod


class ClassAttribute:
    """Base of the descriptors that the decorator adds to a class, which are not part of the user's objects."""

    def __get__(self, instance: object, owner: type) -> Any:
        """Return the attribute's value for an object or the class."""
        raise NotImplementedError


class ShippedSpec(NamedTuple):
    """A class as sent with a handle: its description, needed at once, and the class itself, read on demand.

    Attributes:
        cls: The result of `class_spec.dumps_class`.
        name: Its name in messages.
        names: Its methods in the order of their numbers.
        values: Its other attributes.
        dynamic: Whether it generates attributes.
    """

    cls: bytes
    name: str
    names: tuple[str, ...]
    values: tuple[str, ...]
    dynamic: bool


class ClassSpec:
    """The description of one decorated class.

    Args:
        cls: The class.
        as_remote: The method of this name for a class that has none, because the decorator has left it as it is.

    Attributes:
        name: Its name in messages.
        methods: The numbers of all callables by name, special methods included.
        values: Other attributes of the class: constants and properties, read from the actor.
        dynamic: Whether the class generates attributes (`__getattr__`), so that any name may exist.
    """

    def __init__(self, cls: type, as_remote: ClassAttribute | None = None) -> None:
        self.cls = cls
        self._as_remote = as_remote
        self._shipped: ShippedSpec | None = None
        self.name = cls.__qualname__.rpartition("<locals>.")[2]
        callables: list[str] = []
        values: list[str] = []
        for name in dir(cls):
            if name.startswith("__") and name.endswith("__") and name not in FORWARDED:
                continue
            attribute = inspect.getattr_static(cls, name)
            if isinstance(attribute, ClassAttribute):
                continue
            is_method = isinstance(attribute, _METHODS) or (inspect.isroutine(attribute) and callable(attribute))
            if name in FORWARDED and (not is_method or _is_inherited_from_object(cls, name)):
                continue
            (callables if is_method else values).append(name)
        self.names = tuple(callables)
        self.methods = {name: number for number, name in enumerate(callables)}
        self.values = frozenset(values)
        self.dynamic = "__getattr__" in dir(cls) or not _is_inherited_from_object(cls, "__getattribute__")

    @classmethod
    def of_shipped(cls, shipped: ShippedSpec) -> ClassSpec:
        """Make the specification of a class that came with a handle from another process."""
        spec = cls.__new__(cls)
        spec._as_remote = None
        spec._shipped = shipped
        spec.name = shipped.name
        spec.names = shipped.names
        spec.methods = {name: number for number, name in enumerate(shipped.names)}
        spec.values = frozenset(shipped.values)
        spec.dynamic = shipped.dynamic
        return spec

    def shipped(self) -> ShippedSpec:
        """Return the part of the specification that goes with a handle to another process.

        Raises:
            SerializationError: An object that the class needs cannot be sent.
        """
        if self._shipped is None:
            values = tuple(sorted(self.values))
            self._shipped = ShippedSpec(dumps_class(self.cls), self.name, self.names, values, self.dynamic)
        return self._shipped

    @functools.cached_property
    def cls(self) -> type:
        """The class; one received with a handle is unpickled on first use, and is `object` if that fails here."""
        assert self._shipped is not None  # else `__init__` has set the class
        return _read(self._shipped.cls)

    @property
    def special_methods(self) -> list[str]:
        """The special methods that the proxy's class must forward."""
        return [name for name in self.names if name in FORWARDED]

    @property
    def as_remote(self) -> ClassAttribute | None:
        """The decorator's method of this name; None if the class has its own."""
        found = inspect.getattr_static(self.cls, "as_remote", self._as_remote)
        return found if isinstance(found, ClassAttribute) else None

    def parameters(self, method: str) -> list[str]:
        """Return the names of a method's positional parameters, without `self`; for error messages."""
        try:
            attribute = inspect.getattr_static(self.cls, method)
            signature = inspect.signature(getattr(attribute, "__func__", attribute))
        except (TypeError, ValueError, AttributeError):
            return []
        found = [p.name for p in signature.parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD]
        return found if isinstance(attribute, staticmethod) else found[1:]

    def unknown(self, name: str, attributes: Iterable[str]) -> str:
        """Return the message for a name that does not exist, with similar ones."""
        near = difflib.get_close_matches(name, [*self.names, *self.values, *attributes], n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        return f"{self.name!r} actor has no attribute {name!r}{hint}"


class Description(NamedTuple):
    """The description of an actor for a process that looks it up by name.

    Attributes:
        shipped: Its class.
        wait: Whether its methods wait for their results.
        limit: The maximum number of unanswered calls of each process; 0 for no limit.
        waits: Whether a call above the limit waits.
    """

    shipped: ShippedSpec
    wait: bool
    limit: int
    waits: bool


def description_of(spec: ClassSpec, options: ActorOptions) -> str:
    """Return the serialized description of an actor, stored by the worker.

    Raises:
        SerializationError: An object that the class needs cannot be sent.
    """
    parts = tuple(spec.shipped()), options.wait, options.max_pending_calls or 0, options.when_full == "wait"
    return base64.b64encode(bytes(serialize.dumps(parts)[0])).decode()


def read_description(description: str) -> Description:
    """Return the contents of a description."""
    shipped, *rest = serialize.loads(base64.b64decode(description))
    return Description(ShippedSpec(*shipped), *rest)


def _read(cls: bytes) -> type:
    try:
        found: Any = serialize.loads(cls)
    except Exception:  # a module that this process does not have: calls work without the class, isinstance cannot
        return object
    return _own(found) if isinstance(found, type) else object


# The program's own module, as it and the children that `multiprocessing` starts as fresh interpreters name it.
_PROGRAMS = {"__main__": "__mp_main__", "__mp_main__": "__main__"}


def _own(cls: type) -> type:
    """Return the class of this program that the sender, its parent or child, knows by the other name."""
    program = sys.modules.get(_PROGRAMS.get(cls.__module__, ""))
    try:
        found = operator.attrgetter(cls.__qualname__)(program)
    except AttributeError:
        return cls
    return found if isinstance(found, type) else cls


def _is_inherited_from_object(cls: type, name: str) -> bool:
    """Return whether the class has a special method only because every object, or every class, has it."""
    owner = next((base for base in cls.__mro__ if name in base.__dict__), object)
    return owner is object
