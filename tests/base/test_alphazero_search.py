"""The search of examples/alphazero: it finds forced wins, and its statistics are those of trees built one by one."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_core.env.two_player import ConnectFourBoards

PATH = Path(__file__).parents[2] / "examples" / "alphazero" / "search.py"
_spec = importlib.util.spec_from_file_location("alphazero_search", PATH)
assert _spec is not None and _spec.loader is not None  # noqa: PT018
search: Any = importlib.util.module_from_spec(_spec)
sys.modules["alphazero_search"] = search
_spec.loader.exec_module(search)


def position(columns: str) -> ConnectFourBoards:
    boards = ConnectFourBoards.empty(1)
    for column in columns:
        boards = boards.after([int(column)])
    return boards


def together(*positions: ConnectFourBoards) -> ConnectFourBoards:
    return ConnectFourBoards(
        np.concatenate([each.own for each in positions]), np.concatenate([each.taken for each in positions])
    )


def solved(boards: ConnectFourBoards, depth: int) -> int:
    """The value for the player whose turn it is, by looking at all moves so deep."""
    if boards.lost()[0]:
        return -1
    if depth == 0 or boards.full()[0]:
        return 0
    return max(-solved(boards.after([column]), depth - 1) for column in np.flatnonzero(boards.legal()[0]))


def by_hash(boards: ConnectFourBoards, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Priors and values that depend on the position alone, so that trees can be compared."""
    weights = (boards.own[:, None] * np.arange(3, 10, dtype=np.uint64) + boards.taken[:, None]) % np.uint64(101)
    weights = weights.astype(float) + 1
    value = ((boards.own + np.uint64(7) * boards.taken) % np.uint64(41)).astype(float) / 20 - 1
    return weights / weights.sum(axis=1, keepdims=True), value


def test_a_win_in_one_and_the_only_defence_are_found_in_one_search() -> None:
    positions = together(position("010101"), position("01010"))  # the player wins in 0; the other would
    for evaluate in (search.by_random_games, by_hash):
        visits = search.Search(evaluate, 200).visits(positions, np.random.default_rng(0))
        assert visits.argmax(axis=1).tolist() == [0, 0]
        assert visits.sum(axis=1).tolist() == [200, 200]


def test_a_forced_win_of_three_moves_is_found() -> None:
    boards = position("2233")  # three in a row with two open ends are one move away
    winning = [column for column in range(7) if solved(boards.after([column]), 2) == -1]
    assert winning == [1, 4]
    visits = search.Search(search.by_random_games, 800).visits(boards, np.random.default_rng(1))
    assert int(visits[0].argmax()) in winning


def test_trees_searched_together_are_those_searched_alone() -> None:
    positions = [position(columns) for columns in ("", "3", "0123", "33333", "010101", "6543210")]
    finder = search.Search(by_hash, 60)
    both = finder.visits(together(*positions), np.random.default_rng(0))
    for row, alone in enumerate(positions):
        assert (finder.visits(alone, np.random.default_rng(0))[0] == both[row]).all()


def test_full_columns_are_never_tried() -> None:
    boards = position("000000")
    visits = search.Search(by_hash, 50).visits(boards, np.random.default_rng(0))
    assert visits[0, 0] == 0


def test_random_games_count_for_the_player_whose_turn_it_is() -> None:
    rng = np.random.default_rng(0)
    ahead = together(*[position("223346")] * 1000)  # three in a row, both ends open
    value = search.by_random_games(ahead, rng)[1]
    assert value.mean() > 0.1
    assert -search.by_random_games(ahead.after(np.full(1000, 1)), rng)[1].mean() > value.mean()
    lost = [search.by_random_games(position("0101010"), rng)[1][0] for _ in range(3)]
    assert lost == [-1.0] * 3


def test_more_simulations_win_the_match() -> None:
    rng = np.random.default_rng(2)
    strong, weak = search.Search(search.by_random_games, 60, 1.4), search.Search(search.by_random_games, 4, 1.4)
    wins, draws, losses = search.play_match(strong, weak, 20, rng)
    assert wins + draws + losses == 20
    assert wins > losses + 6


@pytest.mark.parametrize("explores", [True, False])
def test_moves_are_drawn_by_visits_or_are_the_most_visited(explores: bool) -> None:
    visits = np.tile([0, 30, 0, 10, 0, 0, 0], (2000, 1))
    moves = search.drawn_moves(visits, np.random.default_rng(0), explores)
    share = float((moves == 1).mean())
    assert set(moves.tolist()) == ({1, 3} if explores else {1})
    assert share == (pytest.approx(0.75, abs=0.05) if explores else 1.0)
