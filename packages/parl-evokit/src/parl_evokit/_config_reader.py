"""Reading typed settings from text or a dictionary, and writing them as text.

    prototxt ─┐
    TOML      ├─► tree of fields ─► flat form moved to its nested place ─► typed settings
    JSON/dict ┘

Types, defaults and ranges are those of the dataclasses in `config`; this module uses only the names of their fields.
The reader and writer support the part of protobuf's text format that settings need, without protobuf. They also accept
`//` comments, because the configuration in the PARL 1.x manual has them.

    text ──tokens──► fields: name, line, value        value: a word or number, a quoted string, or a block of fields
"""

import dataclasses
import json
import re
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from os import PathLike
from typing import Any, TypeVar

import numpy as np

from parl_evokit._directories import path_of
from parl_evokit.errors import ConfigError, _shown

__all__ = ["Block", "Field", "Quoted", "Value", "Word", "load_settings", "parse_prototxt", "quote", "to_prototxt"]


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

# Compiled when a text is first read: dictionaries are settings, too, and do not need them.
TOKEN = r"""(?P<space>[ \t\r\f\v]+|\#[^\n]*|//[^\n]*)
      | (?P<line>\n)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[-+]?[A-Za-z0-9_.][A-Za-z0-9_.+-]*)
      | (?P<mark>[:{}<>\[\],;])"""
ESCAPE = r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)"
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
CLOSING = {"{": "}", "<": ">"}


@dataclass(frozen=True)
class Word:
    """A number, `true`, or the name of an enumeration's value, as written."""

    text: str


@dataclass(frozen=True)
class Quoted:
    """A string in quotes, its escapes resolved."""

    text: str


@dataclass(frozen=True)
class Block:
    """Fields between braces, in the order written."""

    fields: tuple["Field", ...]


Value = Word | Quoted | Block


@dataclass(frozen=True)
class Field:
    """One `name: value`.

    Attributes:
        name: As written.
        value: Word, string or block.
        line: The line's number, from 1; 0 if it does not come from text.
    """

    name: str
    value: Value
    line: int


@dataclass(frozen=True)
class _Token:
    kind: str  # "word", "string", "mark" or "end"
    text: str
    line: int


def parse_prototxt(text: str) -> Block:
    """Read a whole text.

    Args:
        text: Fields, each `name: value`, `name { fields }` or `name: [values]`, with or without `,` or `;` between.

    Returns:
        The fields; a list becomes repeated fields of one name.

    Raises:
        ConfigError: The text is incomplete or not valid; the message has the line.
    """
    return _Parser(text).whole()


def quote(text: str) -> str:
    """Return the text in double quotes, in a form from which `parse_prototxt` returns it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _tokens(text: str) -> Iterator[_Token]:
    line, place, token = 1, 0, re.compile(TOKEN, re.VERBOSE)
    while place < len(text):
        match = token.match(text, place)
        if match is None:
            raise ConfigError(f"line {line}: {text[place]!r} does not belong here")
        place = match.end()
        if match.lastgroup == "line":
            line += 1
        elif match.lastgroup != "space":
            yield _Token(str(match.lastgroup), match.group(), line)
    yield _Token("end", "the end of the text", line)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def whole(self) -> Block:
        return self._fields_until("the end of the text")

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def _at(self, *marks: str) -> bool:
        return self._next.kind == "mark" and self._next.text in marks

    def _fields_until(self, closing: str) -> Block:
        fields: list[Field] = []
        while self._next.text != closing or self._next.kind == "string":
            name = self._take()
            if name.kind != "word":
                raise ConfigError(f"line {name.line}: a name or {closing} is expected, not {name.text}")
            colon = self._at(":")
            if colon:
                self._take()
            fields += [Field(name.text, value, name.line) for value in self._values(name.text, colon)]
            while self._at(",", ";"):
                self._take()
        self._take()
        return Block(tuple(fields))

    def _values(self, name: str, colon: bool) -> list[Value]:
        if not (colon and self._at("[")):
            return [self._value(name, colon)]
        self._take()
        values: list[Value] = []
        while not self._at("]"):
            values.append(self._value(name, colon))
            if self._at(","):
                self._take()
        self._take()
        return values

    def _value(self, name: str, colon: bool) -> Value:
        token = self._take()
        if token.kind == "mark" and token.text in CLOSING:
            return self._fields_until(CLOSING[token.text])
        if not colon:
            raise ConfigError(f"line {token.line}: after {name} a colon or a block is expected, not {token.text}")
        if token.kind == "word":
            return Word(token.text)
        if token.kind == "string":
            parts = [_unescaped(token.text)]
            while self._next.kind == "string":
                parts.append(_unescaped(self._take().text))
            return Quoted("".join(parts))
        raise ConfigError(f"line {token.line}: {name} has no value: {token.text} follows")


def _unescaped(literal: str) -> str:
    def resolve(match: re.Match[str]) -> str:
        code = match.group(1)
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code[0] in "01234567":
            return chr(int(code, 8))
        return ESCAPES.get(code, code)

    return re.sub(ESCAPE, resolve, literal[1:-1], flags=re.DOTALL)


def load_settings(
    kind: type[T],
    source: T | Mapping[str, Any] | str | PathLike[str],
    implied: Mapping[tuple[str, ...], str] | None = None,
) -> T:
    """Return settings from a file, a dictionary, or settings of this kind; see `Config.load`.

    Args:
        kind: A dataclass whose fields are numbers, strings, enumerations, tuples, or such dataclasses.
        source: The path of a file, a nested dictionary, or an instance of `kind`.
        implied: Values of settings that a file or a dictionary leaves out, by nested names.

    Raises:
        ConfigError: The file cannot be read, or `kind` does not have a field.
    """
    if isinstance(source, kind):
        return source
    if isinstance(source, Mapping):
        return _build(kind, _nested(_block_of(source.items()), implied), "the dictionary", at_top=True)
    if not isinstance(source, str | PathLike):
        raise ConfigError(
            f"settings must be a path, a dictionary or a {kind.__name__}, not of type {type(source).__name__}"
        )
    path = path_of(source, ConfigError)
    readers = {".prototxt": parse_prototxt, ".toml": _parse_toml, ".json": _parse_json}
    if path.suffix not in readers:
        raise ConfigError(f"{path}: the name of a configuration must end in {', '.join(readers)}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        return _build(kind, _nested(readers[path.suffix](text), implied), "the configuration", at_top=True)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: blocks are nested too deeply") from error


def to_prototxt(settings: Any) -> str:
    """Return settings in the nested form; `load_settings` of a file with this text returns equal settings."""
    return "\n".join(_lines(settings, "")) + "\n"


def _parse_toml(text: str) -> Block:
    try:
        return _block_of(tomllib.loads(text).items())
    except ValueError as error:  # no TOML, or an integer of thousands of digits
        raise ConfigError(str(error)) from error


def _parse_json(text: str) -> Block:
    try:
        tree = json.loads(text, object_pairs_hook=_block_of)  # a list, which keeps repeated names
    except ValueError as error:  # no JSON, or an integer of thousands of digits
        raise ConfigError(str(error)) from error
    if not isinstance(tree, Block):
        raise ConfigError(f"an object is expected, not {type(tree).__name__}")
    return tree


def _block_of(pairs: Iterable[tuple[str, Any]]) -> Block:
    fields: list[Field] = []
    for name, value in pairs:
        items = value if isinstance(value, list | tuple) else [value]
        fields += [Field(str(name), _value_of(name, item), 0) for item in items]
    return Block(tuple(fields))


def _value_of(name: str, value: object) -> Value:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Block):
        return value
    if isinstance(value, Mapping):
        return _block_of(value.items())
    if isinstance(value, Enum):
        return Word(value.name)
    if isinstance(value, str):
        return Quoted(value)
    if isinstance(value, bool):
        return Word(str(value).lower())
    if isinstance(value, int | float):
        try:
            return Word(repr(value))
        except ValueError as error:
            raise ConfigError(f"{name} cannot be {_shown(value)}") from error
    raise ConfigError(f"{name} cannot be a {type(value).__name__}")


def _nested(block: Block, implied: Mapping[tuple[str, ...], str] | None = None) -> Block:
    """Return the same settings with those of the flat form at their nested places, and implied ones it leaves out."""
    leaves = list(_move(block, ()))
    given = {path for path, _ in leaves}
    leaves += [(path, Field(path[-1], Word(text), 0)) for path, text in (implied or {}).items() if path not in given]
    return _gather(leaves)


def _move(block: Block, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Field]]:
    """Return all fields that hold a value, each with its nested place."""
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


def _build(kind: type[T], block: Block, where: str, *, at_top: bool = False) -> T:
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in block.fields:
        if field.name not in hints:
            flat = [name for name, *rest in FLAT if not rest] if at_top else []
            raise ConfigError(_at(field) + _unknown(field.name, [*hints, *flat], where))
        hint = hints[field.name]
        if typing.get_origin(hint) is tuple:
            values[field.name] = (*values.get(field.name, ()), _scalar(field, typing.get_args(hint)[0]))
        elif field.name in values:
            raise ConfigError(f"{_at(field)}{field.name} is given twice in {where}")
        elif dataclasses.is_dataclass(hint):
            if not isinstance(field.value, Block):
                raise ConfigError(f"{_at(field)}{field.name} must be a block of settings, not {field.value.text}")
            values[field.name] = _build(typing.cast("type[Any]", hint), field.value, field.name)
        else:
            values[field.name] = _scalar(field, hint)
    return kind(**values)


def _scalar(field: Field, hint: Any) -> object:
    value, kind = field.value, getattr(hint, "__name__", str(hint))
    if isinstance(value, Block):
        raise ConfigError(f"{_at(field)}{field.name} must be one value ({kind}), not a block")
    text = value.text
    if isinstance(hint, type) and issubclass(hint, Enum):
        names = [member.name for member in hint]
        if text.upper() in names:
            return hint[text.upper()]
        raise ConfigError(f"{_at(field)}{field.name} must be one of {', '.join(names)}, not {text}")
    if hint is str and isinstance(value, Quoted):
        return text
    if hint is not str and isinstance(value, Word):
        try:
            return _number(text, hint)
        except ValueError:
            pass
    shown = repr(text) if isinstance(value, Quoted) else text
    raise ConfigError(f"{_at(field)}{field.name} must be of type {kind}, not {shown}")


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
