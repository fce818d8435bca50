"""The place of actors on Ray, and the program's files on their way there.

"ray"    actors run where the program does, or, with distributed_files, in a copy of these files
ray://   everything is copied into one folder, which Ray packs and unpacks on its nodes
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parl_remote._files.layout import WORK, Plan, here, lay_out, working_dir
from parl_remote._files.program import own_code
from parl_remote._files.selection import select_files

__all__ = ["Folder", "copied", "visible"]


@dataclass(frozen=True)
class Folder:
    """The settings of an actor's process.

    Attributes:
        working_dir: The working directory, absolute or relative to the program's files as unpacked by Ray.
        first: The first module paths, relative to the same.
        sys_path: The module paths, as in `actor.host.Creation`.
    """

    working_dir: str
    first: tuple[str, ...]
    sys_path: tuple[str | None, ...]

    @property
    def is_unpacked(self) -> bool:
        """Return whether Ray unpacks the folder, at a different path on each node."""
        return not os.path.isabs(self.working_dir)


def visible() -> Folder:
    """Return this process's own directory and module paths."""
    place = here()
    return Folder(place.working_dir, (), place.sys_path)


def copied(patterns: Sequence[str], *, with_code: bool) -> tuple[Folder, tempfile.TemporaryDirectory[str]]:
    """Return a copy of the files of `distributed_files`, which is removed with the directory object.

    Args:
        patterns: See `files.selection`.
        with_code: Whether the program's own modules are copied, too, because actors cannot see them.

    Raises:
        TypeError: The patterns are no list of texts.
        ValueError: A pattern is absolute, leads upwards or matches nothing.
        OSError: A file cannot be copied.
    """
    base = working_dir()
    selected = {f"{WORK}/{path}": file for path, file in select_files(patterns, base).items()}
    code = own_code("__main__") if with_code else []
    plan = lay_out(selected, code, base=base, sys_path=sys.path)
    directory = tempfile.TemporaryDirectory(prefix="parl-ray-", ignore_cleanup_errors=True)
    _copy(plan, Path(directory.name))
    if with_code:
        return Folder(WORK, plan.sys_path, (None,)), directory
    work = f"{directory.name}/{WORK}"
    return Folder(work, (), (*(os.path.join(base, entry) for entry in sys.path), work)), directory


def _copy(plan: Plan, top: Path) -> None:
    for path, file in plan.files.items():
        place = top / path
        if file is None:
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)
