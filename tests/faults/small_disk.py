"""A file system that is soon full, as a fixture that a conftest imports, and files that may not grow."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["limited_files", "small_disk"]


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


@contextlib.contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes; skips the test where a system has no such limit."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
