"""Who writes into a run's folder: one program at a time, for as long as it lives, however it ends."""

import os
from pathlib import Path

from parl_core.errors import RunInUseError

__all__ = ["RunLock"]


class RunLock:
    """A lock on a folder that the system gives back when its program is gone; Windows has none, and none is taken."""

    def __init__(self) -> None:
        self._handle: int | None = None

    def take(self, folder: Path) -> None:
        """Lock the folder.

        Raises:
            RunInUseError: another program has it.
        """
        try:
            import fcntl
        except ImportError:
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise RunInUseError(
                f"another program is writing into {folder}: wait for its end, or end it first "
                f"(`fuser {folder}` names its process)"
            ) from None
        self._handle = handle

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.release()
