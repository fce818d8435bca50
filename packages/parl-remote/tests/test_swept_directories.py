"""Directories that killed nodes have left behind are removed by the next one; those of living ones never."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from parl_remote._transport.unix import sweep_directories

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="unix sockets are swept where there are some")

Make = Callable[..., Path]


@pytest.fixture
def parent() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="sweep-"))  # a test's own directory has too long a name for sockets
    yield path
    shutil.rmtree(path)


@pytest.fixture
def make(parent: Path) -> Iterator[Make]:
    """Makes a node's directory with its sockets by name; those in `alive` are listened at."""
    with ExitStack() as listening:

        def one(name: str, *sockets: str, alive: tuple[str, ...] = ()) -> Path:
            directory = parent / name
            directory.mkdir(mode=0o700)
            (directory / "files").mkdir()
            for each in sockets:
                bound = socket.socket(socket.AF_UNIX)
                bound.bind(os.fspath(directory / each))
                bound.listen()
                if each in alive:
                    listening.enter_context(bound)
                else:
                    bound.close()
            return directory

        yield one


def test_what_a_killed_node_left_is_removed(parent: Path, make: Make) -> None:
    left, alive = make("parl-1", "node.sock", "a1.sock"), make("parl-2", "node.sock", "a1.sock", alive=("node.sock",))
    assert left in sweep_directories(parent)
    assert not left.exists()
    assert alive.exists()


def test_what_is_left_of_a_removal_that_was_cut_short_is_removed(parent: Path, make: Make) -> None:
    left, in_use = make("parl-1", "a7.sock"), make("parl-2", "a7.sock", "a8.sock", alive=("a8.sock",))
    just_made = make("parl-3")
    assert left in sweep_directories(parent)
    assert not left.exists()
    assert in_use.exists()
    assert just_made.exists()
