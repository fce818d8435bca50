"""What an actor that runs in a job's folder passes on to the actors that it makes on other hosts: all of it.

<folder>/.manifest.json   what the folder was made from; found by way of sys.path, which has <folder>/work
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from parl_remote.errors import RemoteProtocolError
from parl_remote.files.manifest import Manifest
from parl_remote.files.plan import WORK

__all__ = ["MANIFEST", "Inherited", "inherited"]

MANIFEST = ".manifest.json"


@dataclass(frozen=True, slots=True)
class Inherited:
    """The folder that this process runs in.

    Attributes:
        folder: Its path.
        files: Where each of its files lies, None for a directory, by its path in the folder.
    """

    folder: str
    files: Mapping[str, str | None]

    def holds(self, path: str) -> bool:
        """Whether a path lies in the folder."""
        return path.startswith(self.folder + os.sep)

    @property
    def sys_path(self) -> tuple[str, ...]:
        """Where this process looks for modules in the folder, relative to that."""
        return tuple(
            os.path.relpath(entry, self.folder).replace(os.sep, "/") for entry in sys.path if self.holds(str(entry))
        )


def inherited() -> Inherited | None:
    """The folder of this process, None if it has none."""
    for entry in map(str, sys.path):
        folder, name = os.path.split(entry)
        if name == WORK and os.path.isfile(os.path.join(folder, MANIFEST)):
            try:
                with open(os.path.join(folder, MANIFEST), "rb") as file:
                    entries = Manifest.parse(file.read()).entries
            except (OSError, RemoteProtocolError):
                continue  # an actor may write there what it likes
            places = {entry.path: None if entry.is_directory else os.path.join(folder, entry.path) for entry in entries}
            there = {path: file for path, file in places.items() if os.path.exists(file or os.path.join(folder, path))}
            return Inherited(folder, there)
    return None
