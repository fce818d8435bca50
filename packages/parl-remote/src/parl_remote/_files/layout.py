r"""The layout of a job's folder, and the working directory and `sys.path` of actors.

    <folder>/work/...      the working directory of actors: the files of distributed_files, at the same relative paths,
                           and code whose root is the program's own directory or lies below it
    <folder>/code/<n>/...  code from elsewhere, one directory per root, in the order of the program's sys.path

So a module finds the data beside it where it found them in the program, and of two modules with one name the same one
is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # programs of one machine import this module, and read no source files
    from parl_remote._files.import_closure import OwnFile

__all__ = ["WORK", "Place", "Plan", "here", "lay_out", "working_dir"]

WORK = "work"
_CODE = "code"


@dataclass(frozen=True, slots=True)
class Plan:
    """The layout of a folder.

    Attributes:
        files: The path of each file on this host, None for a directory, by its path in the folder.
        sys_path: Module paths in the folder, in order.
    """

    files: Mapping[str, str | None]
    sys_path: tuple[str, ...]


def lay_out(
    selected: Mapping[str, str | None],
    code: Sequence[OwnFile],
    *,
    base: str,
    sys_path: Sequence[str],
    inherited: Sequence[str] = (),
) -> Plan:
    """Return the layout of files and code.

    Args:
        selected: Files by their paths in the folder.
        code: The user's own modules.
        base: The program's directory.
        sys_path: The program's own.
        inherited: Paths in the folder that modules are looked for in first, among the selected files.
    """
    taken = [path.split("/")[1] for path in inherited if path.startswith(f"{_CODE}/")]
    first = 1 + max((int(number) for number in taken if number.isdigit()), default=-1)
    order = {os.path.abspath(entry): number for number, entry in reversed(list(enumerate(sys_path)))}
    roots = sorted({own.root for own in code}, key=lambda root: (order.get(root, len(order)), root))
    places = {root: _place(root, number, base) for number, root in enumerate(roots, first)}
    files: dict[str, str | None] = {WORK: None}
    searched = list(inherited)
    for own in code:
        files[f"{places[own.root]}/{own.path}" if own.path else places[own.root]] = own.file
    files.update(selected)
    for place in (*(places[root] for root in roots), WORK):
        if place not in searched:
            searched.append(place)
    return Plan(files, tuple(searched))


def _place(root: str, number: int, base: str) -> str:
    """Return a root's path in the folder."""
    if base and (root == base or root.startswith(base.rstrip(os.sep) + os.sep)):
        below = os.path.relpath(root, base).replace(os.sep, "/")
        return WORK if below == "." else f"{WORK}/{below}"
    return f"{_CODE}/{number}" if os.path.isdir(root) else f"{_CODE}/{number}/{os.path.basename(root)}"


@dataclass(frozen=True, slots=True)
class Place:
    """The directory that an actor runs in, and its `sys.path`.

    Attributes:
        working_dir: The directory; empty for that of its worker.
        sys_path: Its module paths; None stands for those that its process has already.
    """

    working_dir: str
    sys_path: tuple[str | None, ...]


def here() -> Place:
    """Return this program's own directory and module paths."""
    return Place(working_dir(), tuple(sys.path))


def working_dir() -> str:
    """Return the current directory, empty if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
