"""What keeps a class from being sent by value: the attribute, global or closed-over variable, and who uses it.

    class --its attributes, its methods--> what their code names --helper functions, other classes--> ... --> culprit

Runs only once sending has failed, so it may try everything again piece by piece.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from parl_remote.data import serialize

__all__ = ["culprit_of"]


def culprit_of(cls: type) -> str:
    """What cannot be sent, in words; empty if nothing by itself is to blame."""
    return _search(cls, set())


def _search(thing: object, seen: set[int]) -> str:
    """The first culprit within a class or function that cannot be sent."""
    seen.add(id(thing))
    for what, value in _parts(thing):
        if id(value) in seen or _can_be_sent(value):
            continue
        if isinstance(value, type | types.FunctionType):
            deeper = _search(value, seen)
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
    """The functions behind an attribute of a class."""
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
    """Names that code looks up, that of functions within it too."""
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
