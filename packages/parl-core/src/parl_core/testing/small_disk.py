"""A disk that is soon full, for tests of what programs do then."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["mounted_disk"]


@contextmanager
def mounted_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of that size in `folder / "disk"`; the test is skipped where none can be mounted."""
    place = folder / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
