"""Reader and writer of protobuf's text format, as far as settings need it, without protobuf.

    text ──tokens──► fields: name, line, value        value: a word or number, a quoted string, or a block of fields

Beside what protobuf reads it takes `//` comments, because the documents' own configuration has them. What names mean
and which values they may have is decided in `config_reader`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from parl_evokit.errors import ConfigError

__all__ = ["Block", "Field", "Quoted", "Value", "Word", "parse_prototxt", "quote"]

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
        line: Where it stands, from 1; 0 when it does not come from text.
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
        ConfigError: The text breaks off or has something out of place; the message has the line.
    """
    return _Parser(text).whole()


def quote(text: str) -> str:
    """The text in double quotes, so that `parse_prototxt` gives it back."""
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
                raise ConfigError(f"line {name.line}: a name or {closing} is wanted, not {name.text}")
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
            raise ConfigError(f"line {token.line}: after {name} a colon or a block is wanted, not {token.text}")
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
