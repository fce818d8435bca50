"""Patterns that take files away: `*.log`, `cache/`, `data/raw`, `**/tmp*.bin`.

A pattern without a "/" in its middle is a name at any depth; one with it is a path from the top. One that ends in "/"
means directories only. `*` and `?` stay within one part of a path, `**` is any number of parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Exclusions"]

_TOKENS = re.compile(r"\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    of_name: bool
    directories_only: bool


class Exclusions:
    """Tells which paths some patterns take away.

    Args:
        patterns: As above, without any mark before them.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._rules = [_rule(pattern) for pattern in patterns]

    def __call__(self, path: str, is_directory: bool) -> bool:
        """Whether a path is out, by itself or by a directory above it."""
        if not self._rules:
            return False
        parts = path.split("/")
        return any(
            self._names("/".join(parts[:count]), is_directory or count < len(parts))
            for count in range(1, len(parts) + 1)
        )

    def _names(self, path: str, is_directory: bool) -> bool:
        name = path.rpartition("/")[2]
        return any(
            rule.pattern.fullmatch(name if rule.of_name else path) is not None
            for rule in self._rules
            if is_directory or not rule.directories_only
        )


def _rule(pattern: str) -> _Rule:
    directories_only = pattern.endswith("/")
    path = pattern.strip("/").removeprefix("./")
    of_name = "/" not in path and not pattern.startswith("/")
    return _Rule(re.compile(_expression(path), re.DOTALL), of_name, directories_only)


def _expression(path: str) -> str:
    parts = path.split("/")
    expression = ""
    for part in parts[:-1]:
        expression += "(?:[^/]+/)*" if part == "**" else "".join(map(_token, _TOKENS.findall(part))) + "/"
    last = parts[-1]
    return expression + (".+" if last == "**" else "".join(map(_token, _TOKENS.findall(last))))


def _token(token: str) -> str:
    if token.startswith("*"):
        return "[^/]*"
    if token == "?":
        return "[^/]"
    if token.startswith("[") and len(token) > 2:
        inner = token[1:-1].replace("\\", r"\\").replace("^", r"\^").replace("[", r"\[")
        return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
    return re.escape(token)
