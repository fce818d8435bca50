"""Frozen dataclasses that cost next to nothing until the first object is made.

    @record
    class Done(Record):     a frozen dataclass with slots; `__init__` is made with the first object
        request_id: int

The standard library makes six functions for each frozen dataclass, a third of a millisecond whether it is ever used or
not: importing all messages takes 28 ms that way and 9 ms this way, in the program and in its node, before the first
actor can be made. Here five of the functions are `Record`'s own, and the constructor is made when it is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, dataclass_transform

__all__ = ["Message", "Record", "record"]

T = TypeVar("T", bound="Record")

_set = object.__setattr__


class Record:
    """Base class of classes decorated with `record`."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return _values(self) == _values(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(_values(self))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in _names(self))
        return f"{type(self).__qualname__}({shown})"

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        return type(self), _values(self)


class Message(Record):
    """Base of the records of the control plane, which `wire.encode` writes and `wire.decode` reads."""

    __slots__ = ()


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[T]) -> type[T]:
    """Turn a subclass of `Record`, written like a dataclass, into a frozen one with slots; without `__post_init__`."""
    made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)

    def first(self: Any, /, *args: Any, **kwargs: Any) -> None:
        constructor = _constructor(made)
        setattr(made, "__init__", constructor)  # noqa: B010  # a type checker rightly minds
        constructor(self, *args, **kwargs)

    setattr(made, "__init__", first)  # noqa: B010
    return made


def _constructor(cls: type[Any]) -> Callable[..., None]:
    """Return the `__init__` of a frozen dataclass, generated like the standard library's."""
    parameters: list[str] = []
    lines = ["pass"]
    names: dict[str, Any] = {"_set": _set, "_MISSING": dataclasses.MISSING}
    for field in dataclasses.fields(cls):
        name = value = field.name
        if field.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = field.default_factory
            parameters.append(f"{name}=_MISSING")
            value = f"_make_{name}() if {name} is _MISSING else {name}"
        else:
            parameters.append(name)
        lines.append(f"_set(self, {name!r}, {value})")
    body = "".join(f"    {line}\n" for line in lines)
    source = f"def __init__({', '.join(['self', *parameters])}):\n{body}"  # names of fields only
    # Compiled, because running source text makes Python forget an earlier Ctrl-C, by which it would end with SIGINT.
    exec(compile(source, __file__, "exec"), names)
    constructor: Callable[..., None] = names["__init__"]
    constructor.__qualname__ = f"{cls.__qualname__}.__init__"
    return constructor


def _names(made: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(made)]


def _values(made: Any) -> tuple[Any, ...]:
    return tuple(getattr(made, name) for name in _names(made))
