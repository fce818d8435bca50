"""From text or dictionary to `Config`, and back to text.

    prototxt ─┐
    TOML      ├─► tree of fields ─► flat form moved to its nested place ─► typed Config
    JSON/dict ┘

Types, defaults and ranges are those of the classes in `config`; nothing here knows a setting but by its name there.
"""

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from parl_evokit.config import Config
from parl_evokit.errors import ConfigError
from parl_evokit.prototxt import Block, Field, Quoted, Value, Word, parse_prototxt, quote

__all__ = ["load_config", "to_prototxt"]

T = TypeVar("T")

GAUSSIAN = ("solver", "sampling", "gaussian_sampling")
OPTIMIZER = ("solver", "optimizer")
# The flat form of the original's public code: where each of its fields belongs in the nested one.
FLAT = {
    ("seed",): (*GAUSSIAN, "seed"),
    ("gaussian_sampling",): GAUSSIAN,
    ("optimizer",): OPTIMIZER,
    (*OPTIMIZER, "beta1"): (*OPTIMIZER, "adam", "beta1"),
    (*OPTIMIZER, "beta2"): (*OPTIMIZER, "adam", "beta2"),
    (*OPTIMIZER, "epsilon"): (*OPTIMIZER, "adam", "epsilon"),
}
MOMENTUM = (*OPTIMIZER, "momentum")
TRUE, FALSE = ("true", "t", "1"), ("false", "f", "0")


def load_config(source: "Config | Mapping[str, Any] | str | PathLike[str]") -> Config:
    """See `Config.load`."""
    if isinstance(source, Config):
        return source
    if isinstance(source, Mapping):
        return _build(Config, _nested(_block_of(source)), "the dictionary")
    if not isinstance(source, str | PathLike):
        raise ConfigError(f"settings are a path, a dictionary or a Config, not of type {type(source).__name__}")
    path = Path(fspath(source))
    readers = {".prototxt": parse_prototxt, ".toml": _parse_toml, ".json": _parse_json}
    if path.suffix not in readers:
        raise ConfigError(f"{path}: a configuration's name ends in {', '.join(readers)}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        return _build(Config, _nested(readers[path.suffix](text)), "the configuration")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def to_prototxt(config: Config) -> str:
    """See `Config.to_prototxt`."""
    return "\n".join(_lines(config, "")) + "\n"


def _parse_toml(text: str) -> Block:
    import tomllib  # here, and so on below, because a clone's first noise should not wait for what it does not need

    try:
        return _block_of(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(error)) from error


def _parse_json(text: str) -> Block:
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(str(error)) from error
    if not isinstance(tree, dict):
        raise ConfigError(f"an object is wanted, not {type(tree).__name__}")
    return _block_of(tree)


def _block_of(tree: Mapping[str, Any]) -> Block:
    fields: list[Field] = []
    for name, value in tree.items():
        items = value if isinstance(value, list | tuple) else [value]
        fields += [Field(str(name), _value_of(name, item), 0) for item in items]
    return Block(tuple(fields))


def _value_of(name: str, value: object) -> Value:
    if isinstance(value, Mapping):
        return _block_of(value)
    if isinstance(value, Enum):
        return Word(value.name)
    if isinstance(value, str):
        return Quoted(value)
    if isinstance(value, bool):
        return Word(str(value).lower())
    if isinstance(value, int | float):
        return Word(repr(value))
    raise ConfigError(f"{name} cannot be a {type(value).__name__}")


def _nested(block: Block) -> Block:
    """The same settings with those of the flat form at their nested places."""
    return _gather(list(_move(block, ())))


def _move(block: Block, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Field]]:
    """All fields that hold a value, each with its nested place."""
    for field in block.fields:
        here = (*path, field.name)
        here = FLAT.get(here, here)
        if isinstance(field.value, Block):
            yield here, dataclasses.replace(field, value=Block(()))
            yield from _move(field.value, here)
        else:
            yield ((*MOMENTUM, "momentum") if here == MOMENTUM else here), field


def _gather(leaves: list[tuple[tuple[str, ...], Field]]) -> Block:
    fields: dict[str, list[Field]] = {}
    inner: dict[str, list[tuple[tuple[str, ...], Field]]] = {}
    lines: dict[str, int] = {}
    for path, field in leaves:
        if len(path) > 1:
            inner.setdefault(path[0], []).append((path[1:], field))
        elif isinstance(field.value, Block):
            inner.setdefault(path[0], [])
            lines.setdefault(path[0], field.line)
        else:
            fields.setdefault(path[0], []).append(dataclasses.replace(field, name=path[0]))
    blocks = [Field(name, _gather(below), lines.get(name, 0)) for name, below in inner.items()]
    return Block((*(field for same in fields.values() for field in same), *blocks))


def _build(kind: type[T], block: Block, where: str) -> T:
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in block.fields:
        if field.name not in hints:
            flat = [name for name, *rest in FLAT if not rest] if kind is Config else []
            raise ConfigError(_at(field) + _unknown(field.name, [*hints, *flat], where))
        hint = hints[field.name]
        if typing.get_origin(hint) is tuple:
            values[field.name] = (*values.get(field.name, ()), _scalar(field, typing.get_args(hint)[0]))
        elif field.name in values:
            raise ConfigError(f"{_at(field)}{field.name} is given twice in {where}")
        elif dataclasses.is_dataclass(hint):
            if not isinstance(field.value, Block):
                raise ConfigError(f"{_at(field)}{field.name} is a block of settings, not {field.value.text}")
            values[field.name] = _build(typing.cast("type[Any]", hint), field.value, field.name)
        else:
            values[field.name] = _scalar(field, hint)
    return kind(**values)


def _scalar(field: Field, hint: Any) -> object:
    value, kind = field.value, getattr(hint, "__name__", str(hint))
    if isinstance(value, Block):
        raise ConfigError(f"{_at(field)}{field.name} is one value ({kind}), not a block")
    text = value.text
    if isinstance(hint, type) and issubclass(hint, Enum):
        names = [member.name for member in hint]
        if text.upper() in names:
            return hint[text.upper()]
        raise ConfigError(f"{_at(field)}{field.name} is one of {', '.join(names)}, not {text}")
    if hint is str and isinstance(value, Quoted):
        return text
    if hint is not str and isinstance(value, Word):
        try:
            return _number(text, hint)
        except ValueError:
            pass
    raise ConfigError(f"{_at(field)}{field.name} is of type {kind}, which {text!r} is not")


def _number(text: str, hint: type) -> bool | int | float:
    if hint is bool:
        if text.lower() in TRUE + FALSE:
            return text.lower() in TRUE
        raise ValueError(text)
    if "_" in text:  # Python reads these as numbers, protobuf does not
        raise ValueError(text)
    if hint is int:
        return int(text, 8 if text.lstrip("+-").isdigit() and text.lstrip("+-")[0] == "0" else 0)
    return float(text[:-1] if text[-1] in "fF" and text.lower().lstrip("+-") != "inf" else text)


def _unknown(name: str, names: list[str], where: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, names, n=1)
    return f"{where} has no field {name}" + (f"; did you mean {near[0]}?" if near else f", only {', '.join(names)}")


def _at(field: Field) -> str:
    return f"line {field.line}: " if field.line else ""


def _lines(settings: Any, indent: str) -> Iterator[str]:
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield f"{indent}{field.name} {{"
            yield from _lines(value, indent + "  ")
            yield indent + "}"
        else:
            for item in value if isinstance(value, tuple) else (value,):
                yield f"{indent}{field.name}: {_text(item)}"


def _text(value: bool | int | float | str | Enum) -> str:
    match value:
        case Enum():
            return value.name
        case bool():
            return str(value).lower()
        case str():
            return quote(value)
        case _:
            return repr(value)
