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

from parl_remote._transport.unix import listening_socket, sweep_directories

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


def test_a_directory_of_a_program_that_is_slow_to_listen_is_left_alone(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = parent / "parl-1"
    directory.mkdir(mode=0o700)
    listen, seen = socket.socket.listen, []

    def slowly(one: socket.socket, *backlog: int) -> None:
        seen.append(sweep_directories(parent))  # whoever starts a node at this moment
        listen(one, *backlog)
        seen.append(sweep_directories(parent))

    monkeypatch.setattr(socket.socket, "listen", slowly)
    listening = [listening_socket(str(directory / name)) for name in ("node.sock", "a1.sock")]
    for name in ("node.sock", "a1.sock"):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(directory / name))
    for each in listening:
        each.close()
    assert not any(directory in swept for swept in seen)
    assert len(seen) == 4
    assert sorted(path.name for path in directory.iterdir()) == ["a1.sock", "node.sock"]


def test_a_name_that_is_taken_is_not_taken_away(parent: Path) -> None:
    first = listening_socket(str(parent / "node.sock"))
    with pytest.raises(OSError, match="exists"):
        listening_socket(str(parent / "node.sock"))
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(parent / "node.sock"))
    first.close()
