"""Conversion of frozen dataclasses to JSON objects and back, checked against their annotations.

It supports the types that the control plane needs: None, bool, int, float, str, enums by value, tuples of one type,
string-keyed mappings, other dataclasses, and unions with None. Decoding never runs code of a peer.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Any, cast

from parl_remote.errors import RemoteProtocolError

__all__ = ["from_json", "to_json", "writer_of"]

_Reader = Callable[[object, str], Any]
_Writer = Callable[[Any], Any]

_SAFE_LEAST, _SAFE_MOST = -(2**62), 2**62  # no whole number or float between them is too large


def to_json(value: Any) -> Any:
    """Return a dataclass instance, or a field's value, in the form that `json.dumps` takes."""
    return writer_of(cast(Hashable, type(value)))(value)


@cache
def writer_of(hashable: Hashable) -> _Writer:
    """Return `to_json` for the values of one type; cached, because a master writes some thousands a second."""
    kind = cast(type[Any], hashable)
    if issubclass(kind, Enum):
        return attrgetter("_value_")
    if issubclass(kind, str | int | float | NoneType):
        return _identity
    if issubclass(kind, tuple):
        return lambda value: [to_json(item) for item in value]
    if issubclass(kind, Mapping):
        return lambda value: {key: to_json(item) for key, item in value.items()}
    return _dataclass_writer(kind)


def _identity(value: Any) -> Any:
    return value


def _dataclass_writer(kind: type[Any]) -> _Writer:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    others = [(name, writer) for name in names if (writer := _field_writer(hints[name])) is not None]
    if len(names) == 1:
        return lambda value: {names[0]: to_json(getattr(value, names[0]))}
    fields = attrgetter(*names)

    def write(value: Any) -> dict[str, Any]:
        written = dict(zip(names, fields(value), strict=True))
        for name, writer in others:
            written[name] = writer(written[name])
        return written

    return write


def _field_writer(hint: Any) -> _Writer | None:
    """Return the writer of a field's values by its annotation; None where `json.dumps` takes them as they are."""
    origin = typing.get_origin(hint)
    arguments = [argument for argument in typing.get_args(hint) if argument not in {NoneType, Ellipsis}]
    if arguments[-1:] and arguments[-1] in _PLAIN_READERS:
        if origin in {types.UnionType, typing.Union}:
            return None
        if origin is tuple:
            return list
        return dict
    if isinstance(hint, type) and (issubclass(hint, Enum) or dataclasses.is_dataclass(hint)):
        return writer_of(cast(Hashable, hint))
    return None if hint in _PLAIN_READERS else to_json


def from_json(kind: type[Any], value: object, path: str) -> Any:
    """Return a `kind` built from decoded JSON.

    Args:
        kind: A frozen dataclass.
        value: The result of `json.loads`.
        path: The name of the value in error messages, for example "Hello".

    Raises:
        RemoteProtocolError: A field is missing, unknown, or not of its type; the message names field and value.
    """
    return _reader(cast(Hashable, kind))(value, path)


@cache
def _reader(hint: Hashable) -> _Reader:
    """Return the reader of one annotation; cached."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in {types.UnionType, typing.Union}:
        return _optional_reader(next(a for a in arguments if a is not type(None)))
    if origin is tuple:
        return _tuple_reader(arguments[0])
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_reader(arguments[1])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_reader(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _dataclass_reader(hint)
    return _PLAIN_READERS[hint]


def _read_bool(value: object, path: str) -> bool:
    if isinstance(value, bool):
        return value
    raise _wrong(path, "true or false", value)


def _read_int(value: object, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    raise _wrong(path, "a whole number", value)


def _read_float(value: object, path: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value):
        return float(value)
    raise _wrong(path, "a number", value)


def _read_str(value: object, path: str) -> str:
    if isinstance(value, str):
        return value
    raise _wrong(path, "text", value)


_PLAIN_READERS: dict[Any, _Reader] = {bool: _read_bool, int: _read_int, float: _read_float, str: _read_str}


def _optional_reader(inner: Any) -> _Reader:
    read = _reader(inner)
    return lambda value, path: None if value is None else read(value, path)


def _tuple_reader(inner: Any) -> _Reader:
    read = _reader(inner)

    def read_tuple(value: object, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wrong(path, "a list", value)
        return tuple(read(item, f"{path}[{index}]") for index, item in enumerate(value))

    return read_tuple


def _mapping_reader(inner: Any) -> _Reader:
    read = _reader(inner)

    def read_mapping(value: object, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        return {key: read(item, f"{path}[{key!r}]") for key, item in value.items()}

    return read_mapping


def _enum_reader(kind: type[Enum]) -> _Reader:
    by_value = {member.value: member for member in kind}

    def read_enum(value: object, path: str) -> Enum:
        if isinstance(value, str) and value in by_value:
            return by_value[value]
        raise _wrong(path, f"one of {', '.join(by_value)}", value)

    return read_enum


def _dataclass_reader(kind: type[Any]) -> _Reader:
    hints = typing.get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in dataclasses.fields(kind)}
    plain = {name: hint for name, hint in hints.items() if name in readers and hint in _PLAIN_READERS}
    required = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def read_dataclass(value: object, path: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        if missing := required - value.keys():
            raise RemoteProtocolError(f"{path} lacks the field {min(missing)!r}")
        arguments = {}
        for name, item in value.items():
            if plain.get(name) is type(item) and (type(item) is str or _SAFE_LEAST < item < _SAFE_MOST):
                arguments[name] = item  # the fast path for most fields; the slow one reports what is wrong
                continue
            read = readers.get(name)
            if read is None:
                raise RemoteProtocolError(f"{path} has an unknown field {name!r}")
            arguments[name] = read(item, f"{path}.{name}")
        try:
            return kind(**arguments)
        except ValueError as error:
            raise RemoteProtocolError(f"{path}: {error}") from error

    return read_dataclass


def _wrong(path: str, expected: str, value: object) -> RemoteProtocolError:
    text = repr(value)
    if len(text) > 80:
        text = text[:77] + "..."
    return RemoteProtocolError(f"{path} must be {expected}, not {text}")
