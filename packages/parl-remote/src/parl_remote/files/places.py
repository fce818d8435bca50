"""Where an actor runs and what it can import: the program's own directories where they can be seen, else a folder.

What it takes to send files is imported only by programs that need it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parl_remote.files.sending import ProgramFiles, Worker
    from parl_remote.messages import LeaseGranted

__all__ = ["Place", "Places", "here", "working_dir"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor runs.

    Attributes:
        working_dir: The directory; empty for that of its worker.
        sys_path: Where it looks for modules; None stands for the paths that its process has already.
    """

    working_dir: str
    sys_path: tuple[str | None, ...]


class Places:
    """Finds the place of each actor of a program.

    Args:
        patterns: What `distributed_files` names, relative to the current directory; read now.
        same_host_shortcut: Whether workers of this host may use the program's own directories.

    Raises:
        TypeError: The patterns are no list of texts.
        ValueError: A pattern is absolute, leads upwards or matches nothing.
        OSError: A file cannot be read.
    """

    def __init__(self, patterns: Sequence[str] = (), *, same_host_shortcut: bool = True) -> None:
        self._shortcut = same_host_shortcut
        self._lock = threading.Lock()
        self._files: ProgramFiles | None = None
        if not isinstance(patterns, tuple | list) or patterns:
            self._files = self._make(patterns)

    def of(self, granted: LeaseGranted, worker: Worker, class_module: str) -> Place:
        """Have everything where an actor will run.

        Args:
            granted: Its lease.
            worker: How to ask workers.
            class_module: Name of the module of its class.

        Raises:
            RemoteError: Files cannot be sent, or the worker cannot keep them.
        """
        if self._files is None:
            if not granted.node_addresses:  # a private cluster's worker is this program's child and sees what it sees
                return here()
            with self._lock:
                self._files = self._files or self._make(())
        return self._files.place(granted, worker, class_module)

    def _make(self, patterns: Sequence[str]) -> ProgramFiles:
        from parl_remote.files.sending import ProgramFiles

        return ProgramFiles(patterns, same_host_shortcut=self._shortcut)


def here() -> Place:
    """This program's own directory and modules."""
    return Place(working_dir(), tuple(sys.path))


def working_dir() -> str:
    """The current directory, empty if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
