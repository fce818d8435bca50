"""Connect four and matrix games: their rules against a checker that looks at every line of a board."""

import gymnasium
import numpy as np
import pytest

from parl_core.env.two_player import ConnectFour, ConnectFourBoards, MatrixGame, rock_paper_scissors
from parl_core.errors import HyperparameterError, ParlError

LINES = [
    [(row + i * up, column + i * right) for i in range(4)]
    for row in range(6)
    for column in range(7)
    for up, right in ((0, 1), (1, 0), (1, 1), (1, -1))
    if 0 <= row + 3 * up < 6 and 0 <= column + 3 * right < 7
]


def has_line(board: np.ndarray, player: int) -> bool:
    return any(all(board[place] == player for place in line) for line in LINES)


def drop(board: np.ndarray, column: int, player: int) -> None:
    row = int(np.flatnonzero(board[:, column] == 0)[0])
    board[row, column] = player


def result_of(game: ConnectFour) -> float:
    """Return the reward of player 0 of a game that has just ended."""
    return game.rewards["player_0"]


def played(columns: str) -> ConnectFour:
    game = ConnectFour()
    game.reset()
    for column in columns:
        game.step(int(column))
    return game


def test_there_are_69_lines_of_four() -> None:
    assert len(LINES) == 69


@pytest.mark.parametrize("line", LINES)
def test_each_line_of_four_wins_alone_and_three_of_it_do_not(line: list[tuple[int, int]]) -> None:
    bits = [1 << (7 * column + row) for row, column in line]
    four = np.array([sum(bits), *(sum(bits) - bit for bit in bits)], np.uint64)
    boards = ConnectFourBoards(np.zeros(5, np.uint64), four)  # all stones are the other player's
    assert boards.lost().tolist() == [True, False, False, False, False]


@pytest.mark.slow
def test_games_end_and_are_won_as_a_brute_checker_says() -> None:
    rng = np.random.default_rng(1)
    results = {1.0: 0, 0.0: 0, -1.0: 0}
    for _ in range(400):
        game, board = ConnectFour(), np.zeros((6, 7), int)
        boards = ConnectFourBoards.empty(1)
        game.reset()
        for move in range(42):
            seen = game.last()[0]
            legal = np.flatnonzero(board[5] == 0)
            assert np.flatnonzero(seen["action_mask"]).tolist() == legal.tolist()
            assert np.flatnonzero(boards.legal()[0]).tolist() == legal.tolist()
            own, other = board == 1 + move % 2, board == 2 - move % 2
            expected = np.concatenate([own.reshape(-1), other.reshape(-1)]).astype(np.float32)
            assert (seen["observation"] == expected).all()
            assert (boards.observations()[0] == expected).all()
            column = int(rng.choice(legal))
            drop(board, column, 1 + move % 2)
            game.step(column)
            boards = boards.after([column])
            won = has_line(board, 1 + move % 2)
            assert boards.lost()[0] == won
            assert boards.over()[0] == (won or move == 41) == game.terminations["player_0"]
            if game.terminations["player_0"]:
                assert result_of(game) == (0.0 if not won else 1.0 if move % 2 == 0 else -1.0)
                results[result_of(game)] += 1
                break
    assert min(results[1.0], results[-1.0]) > 50  # both ways of winning were seen


def test_a_full_board_without_a_line_is_a_draw() -> None:
    columns = "0101011010102323233232324545455454546666" + "66"
    game = played(columns)
    assert game.terminations == {"player_0": True, "player_1": True}
    assert game.rewards == {"player_0": 0.0, "player_1": 0.0}


def test_players_see_the_end_and_leave_one_after_the_other() -> None:
    game = played("0101010")
    assert (game.last()[1:4], game.agent_selection) == ((-1.0, True, False), "player_1")
    game.step(None)
    assert (game.last()[1:4], game.agents) == ((1.0, True, False), ["player_0"])
    game.step(None)
    assert game.agents == []
    with pytest.raises(ParlError, match="call reset"):
        game.step(0)


def test_a_full_column_is_refused_with_those_that_have_room() -> None:
    game = played("000000")
    with pytest.raises(ValueError, match=r"player_0 may play \[1, 2, 3, 4, 5, 6\] now, got 0"):
        game.step(0)
    assert {"X", "O"} <= set(game.render())


@pytest.mark.filterwarnings("ignore::UserWarning")  # an empty board is all zeros; observations bring a mask
def test_pettingzoo_accepts_the_games() -> None:
    pettingzoo = pytest.importorskip("pettingzoo")
    tests = pytest.importorskip("pettingzoo.test")
    accepted = type("Accepted", (ConnectFour, pettingzoo.AECEnv), {})  # its test wants an instance
    tests.api_test(accepted(), num_cycles=200)


def test_rock_paper_scissors_has_an_equilibrium_in_which_each_action_earns_nothing() -> None:
    payoff, equilibrium = rock_paper_scissors(paper=1.0, rock=3.0, scissors=2.0)
    assert equilibrium == pytest.approx([2 / 6, 3 / 6, 1 / 6])
    assert payoff @ equilibrium == pytest.approx([0.0, 0.0, 0.0])
    with pytest.raises(HyperparameterError, match="prizes must be above 0"):
        rock_paper_scissors(rock=0.0)


def test_a_matrix_game_pays_what_its_matrix_says() -> None:
    payoff, _ = rock_paper_scissors(paper=1.0, rock=3.0, scissors=2.0)
    game = MatrixGame(payoff)
    assert isinstance(game.observation_space("player_0"), gymnasium.spaces.Box)
    for first in range(3):
        for second in range(3):
            game.reset()
            game.step(first)
            assert game.terminations == {"player_0": False, "player_1": False}
            game.step(second)
            assert game.rewards == {"player_0": payoff[first, second], "player_1": -payoff[first, second]}
    with pytest.raises(HyperparameterError, match="square matrix"):
        MatrixGame([[1.0, 2.0]])
