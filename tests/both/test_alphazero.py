"""`examples/alphazero` plays all games of a match, and goes on where an actor is lost."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from parl_core.actors import InProcessActors
from parl_core.errors import LostActor

EXAMPLE = Path(__file__).parents[2] / "examples" / "alphazero"
SMALL = {"total_games": 4, "games": 2, "simulations": 2, "updates": 1, "batch_size": 8, "rollouts": 1}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which the program sets
    yield import_module("train")
    for name in ("train", "search"):
        del sys.modules[name]


class _Lost:
    """A handle of an actor that ends in its second game of self-play."""

    def __init__(self, handle: Any) -> None:
        self._handle, self._left = handle, 2

    def submit(self, method: str, *args: Any) -> Any:
        self._left -= method == "self_play"
        if self._left:
            return self._handle.submit(method, *args)
        lost: Future[Any] = Future()
        lost.set_exception(LostActor("its host is gone"))
        return lost

    def close(self) -> None:
        self._handle.close()

    kill = close


class Losing(InProcessActors):
    """Actors of which the first one is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def create(self, cls: type[object], /, *args: Any, **kwargs: Any) -> Any:
        self.made += 1
        handle = super().create(cls, *args, **kwargs)
        return _Lost(handle) if self.made == 1 else handle


def run(program: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, system: Any, **settings: Any) -> Path:
    monkeypatch.setattr("parl_core.training.choose_actors", lambda count, address: system)
    program.main(program.Settings(runs=str(folder), match_every=1e6, **{**SMALL, "match_games": 2, **settings}))
    (path,) = folder.iterdir()
    return path


def test_games_of_a_lost_actor_are_played_again_by_another_one(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing = Losing()
    found = run(program, tmp_path / "lost", monkeypatch, losing)
    whole = run(program, tmp_path / "whole", monkeypatch, InProcessActors())
    assert losing.made == 2
    assert (found / "agent.ckpt").read_bytes() == (whole / "agent.ckpt").read_bytes()


@pytest.mark.parametrize(("games", "actors"), [(6, 2), (2, 3)])
def test_a_match_has_as_many_games_as_it_should_for_any_number_of_actors(
    games: int, actors: int, program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run(program, tmp_path / "runs", monkeypatch, InProcessActors(), match_games=games, actors=actors)
    for row in json.loads((path / "strength.json").read_text())["rows"]:
        for other in ("against_fixed_search", "against_predecessor"):
            assert sum(row[other][result] for result in ("wins", "draws", "losses")) == games


@pytest.mark.parametrize("games", [0, 5])
def test_a_match_of_an_odd_number_of_games_is_refused(games: int, program: Any) -> None:
    with pytest.raises(SystemExit, match=f"--match-games must be even.*got {games}"):
        program.main(program.Settings(match_games=games, minutes=0.0))
