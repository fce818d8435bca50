"""The place of each actor: the program's own directories where its worker sees them, else a folder.

`upload` is imported by programs that need it: it costs 14 ms of a program's start.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parl_remote._files.manifest import ActorDirectory, here

if TYPE_CHECKING:
    from parl_remote._files.upload import ProgramFiles, Worker
    from parl_remote._messages import LeaseGranted

__all__ = ["ActorDirectories"]


class ActorDirectories:
    """Provides the working directory and module paths of each actor of a program.

    Args:
        patterns: Those of `distributed_files`, relative to the current directory; resolved now.
        same_host_shortcut: Whether workers of this host may use the program's own directories.

    Raises:
        TypeError: The patterns are not a list of texts.
        ValueError: A pattern is absolute, leads upwards or matches nothing.
        OSError: A file cannot be read.
    """

    def __init__(self, patterns: Sequence[str] = (), *, same_host_shortcut: bool = True) -> None:
        self._shortcut = same_host_shortcut
        self._lock = threading.Lock()
        self._files: ProgramFiles | None = None
        if not isinstance(patterns, tuple | list) or patterns:
            self._files = self._make(patterns)

    def of(self, granted: LeaseGranted, worker: Worker, class_module: str) -> ActorDirectory:
        """Provide all files at an actor's worker and return its working directory and module paths.

        Args:
            granted: Its lease.
            worker: Sends requests to workers.
            class_module: Name of the module of its class.

        Raises:
            RemoteError: Files cannot be sent, or the worker cannot store them.
        """
        if self._files is None:
            if not granted.node_addresses:  # a private cluster's worker is this program's child and sees what it sees
                return here()
            with self._lock:
                self._files = self._files or self._make(())
        return self._files.place(granted, worker, class_module)

    def _make(self, patterns: Sequence[str]) -> ProgramFiles:
        from parl_remote._files.upload import ProgramFiles  # 10 ms; a private cluster without files does without

        return ProgramFiles(patterns, same_host_shortcut=self._shortcut)
