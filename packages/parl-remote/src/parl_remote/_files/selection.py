"""Resolution of the patterns of `distributed_files` to files.

    ["data/*.csv", "configs", "!*.log"]  -->  {"data/a.csv": file, "configs": None, "configs/x.yaml": file, ...}

Patterns are relative to the directory that the program runs in when it connects, and actors find the files at the
same relative paths. A directory includes everything beneath it, empty directories too. A pattern that begins with "!"
excludes matches. Without a "/" in its middle it is a name at any depth, with one a path from the program's directory.
One that ends in "/" matches directories only. `*` and `?` stay within one part of a path, `**` is any number of parts.

Symbolic links are followed: actors get their targets, even from outside the directory. Within a directory, a broken
link is left out, and one that leads to a directory above itself is refused. `__pycache__` and the directories of
version control (`.git`, `.hg`, `.svn`) are left out of directories.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PureWindowsPath
from typing import NamedTuple

__all__ = ["Exclusions", "select_files"]


_TOKENS = re.compile(r"\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    of_name: bool
    directories_only: bool


class Exclusions:
    """Tests whether paths are excluded by some patterns.

    Args:
        patterns: As above, without the leading "!".
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._rules = [_rule(pattern) for pattern in patterns]

    def __call__(self, path: str, is_directory: bool) -> bool:
        """Return whether a path is excluded, by itself or by a directory above it."""
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


_log = logging.getLogger("parl.remote")

_LEFT_OUT = frozenset({"__pycache__", ".git", ".hg", ".svn"})


def select_files(patterns: Iterable[str | os.PathLike[str]], base: str) -> dict[str, str | None]:
    """Return all files that the patterns name.

    Args:
        patterns: As for `connect`.
        base: The directory that they are relative to.

    Returns:
        The path of each file on this host, None for a directory, by its path relative to `base` with "/" as separator.

    Raises:
        TypeError: The patterns are not a list of texts.
        ValueError: A pattern is absolute, leads upwards or matches nothing, or all patterns exclude; the message names
            it.
    """
    texts = _checked(patterns)
    is_left_out = Exclusions([text[1:] for text in texts if text.startswith("!")])
    if texts and all(text.startswith("!") for text in texts):
        raise ValueError(f"distributed_files: {texts} only excludes files; name the files to include as well")
    found: dict[str, str | None] = {}
    for pattern in (text for text in texts if not text.startswith("!")):
        matches = _matches(pattern, base)
        if not matches:
            raise ValueError(f"distributed_files: nothing matches {pattern!r} in {base}")
        for match in matches:
            _take(match, os.path.join(base, match), found, is_left_out)
    return dict(sorted(found.items()))


def _checked(patterns: object) -> list[str]:
    if isinstance(patterns, str | bytes | os.PathLike):
        raise TypeError(f"distributed_files is a list of patterns; did you mean {[os.fspath(patterns)]}?")
    if not isinstance(patterns, Iterable):
        raise TypeError(f"distributed_files is a list of patterns, not {patterns!r}")
    texts = []
    for pattern in patterns:
        text = os.fspath(pattern) if isinstance(pattern, os.PathLike) else pattern
        if not isinstance(text, str):
            raise TypeError(f"a pattern of distributed_files must be text, not {pattern!r}")
        texts.append(text)
        path = text.removeprefix("!")
        if not path or "\0" in path:
            raise ValueError(f"distributed_files: {text!r} is not a pattern")
        if os.path.isabs(path) or PureWindowsPath(path).drive:
            raise ValueError(
                f"distributed_files: {text!r} is absolute; give paths relative to the directory that the program "
                "runs in, because actors find the files at the same relative paths"
            )
        if ".." in re.split(r"[/\\]", path):
            raise ValueError(f"distributed_files: {text!r} leads out of the directory that the program runs in")
    return texts


def _matches(pattern: str, base: str) -> list[str]:
    """Return the relative paths that a pattern names; a file's own name may contain pattern characters."""
    if os.path.lexists(os.path.join(base, pattern)):
        return [pattern]
    return [match for match in sorted(glob.glob(pattern, root_dir=base, recursive=True)) if match]


def _take(relative: str, path: str, found: dict[str, str | None], is_left_out: Exclusions) -> None:
    """Add a match and everything below it."""
    name = os.path.normpath(relative).replace(os.sep, "/")
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise ValueError(f"distributed_files: {relative!r} is a broken link") from None
    if stat.S_ISDIR(mode):
        if name == "." or not is_left_out(name, True):
            found.update(_beneath("" if name == "." else name, path, is_left_out))
    elif not stat.S_ISREG(mode):
        raise ValueError(f"distributed_files: {relative!r} is neither a file nor a directory")
    elif not is_left_out(name, False):
        found[_readable(name)] = path


def _beneath(name: str, path: str, is_left_out: Exclusions) -> Iterator[tuple[str, str | None]]:
    """Yield a directory and everything in it; loops of links are detected by the directories above."""
    pending: list[tuple[str, str, frozenset[tuple[int, int]]]] = [(name, path, frozenset())]
    while pending:
        name, path, above = pending.pop()
        status = os.stat(path)
        itself = (status.st_dev, status.st_ino)
        if itself in above:
            raise ValueError(f"distributed_files: {name!r} is a link to a directory that contains it")
        if name:
            yield _readable(name), None
        with os.scandir(path) as inside:
            for item in inside:
                inner = f"{name}/{item.name}" if name else item.name
                if item.is_dir():
                    if item.name not in _LEFT_OUT and not is_left_out(inner, True):
                        pending.append((inner, item.path, above | {itself}))
                elif is_left_out(inner, False):
                    continue
                elif item.is_file():
                    yield _readable(inner), item.path
                else:
                    _log.warning("distributed_files leaves out %s: it is not a file, or it is a broken link", inner)


def _readable(name: str) -> str:
    """Return the name if it can be sent to another host, else raise `ValueError`."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"distributed_files: the file name {name!r} is not Unicode text; rename it") from None
    if "\\" in name:
        raise ValueError(f"distributed_files: {name!r} has a backslash, which other hosts take for a directory")
    return name
