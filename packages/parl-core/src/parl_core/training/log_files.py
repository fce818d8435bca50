"""Log files of a run that can be taken back to what they were at a checkpoint.

What a killed program wrote after its last checkpoint is written once more by the resumed run, so it is cut off first.
"""

import os
from pathlib import Path

from parl_core.atomic_write import sync

__all__ = ["cut_back", "size_on_disk"]


def size_on_disk(path: Path) -> int:
    """The size of a file, all of which is on the disk when this returns; its writer has flushed it before."""
    sync(path)
    return path.stat().st_size


def cut_back(path: Path, size: int | None) -> None:
    """Cut a file to an earlier size; None: it was not there yet, and goes. A shorter one stays as it is."""
    if size is None:
        path.unlink(missing_ok=True)
    elif path.exists() and path.stat().st_size > size:
        os.truncate(path, size)
