"""A file system that is soon full, as a fixture that a conftest imports."""

from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["small_disk"]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """An empty file system of three megabytes; skips the test where none can be mounted."""
    from parl_remote.testing import FaultUnavailable, SmallDisk  # here: most tests beside its users need no such import

    try:
        disk = SmallDisk(3)
    except FaultUnavailable as error:
        pytest.skip(str(error))
    with disk:
        yield disk.path
