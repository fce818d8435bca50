"""Self-play: ratings, matchmaking, matches in actors, and an environment against frozen opponents."""

import copy
import logging
import os
import pickle
import signal
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import ArrayLike

from parl_core.actors import open_actors
from parl_core.agent import Agent
from parl_core.env.matrix_games import TwoStepGame
from parl_core.env.two_player import ConnectFour, MatrixGame, rock_paper_scissors
from parl_core.env.vector import make_vector_env
from parl_core.errors import EnvironmentContractError, HyperparameterError, LostActor
from parl_core.training.acting import first_reset
from parl_core.training.self_play import (
    AgainstOpponents,
    Arena,
    Match,
    OpponentPool,
    Results,
    expected_score,
    updated_ratings,
)


class Mixed:
    """A mixed strategy of a matrix game."""

    def __init__(self, probabilities: ArrayLike) -> None:
        self.probabilities = np.asarray(probabilities, float)

    def sample(self, observation: object, rng: np.random.Generator) -> int:
        return int(rng.choice(len(self.probabilities), p=self.probabilities))


class Columns:
    """Plays connect four at random, and wins at once where it looks for that."""

    def __init__(self, sees_wins: bool = False) -> None:
        self.sees_wins = sees_wins

    def sample(self, observation: dict[str, np.ndarray], rng: np.random.Generator) -> int:
        legal = np.flatnonzero(observation["action_mask"])
        if self.sees_wins:
            own, other = observation["observation"].reshape(2, 6, 7)
            for column in legal:
                row = int((own + other)[:, column].sum())
                if wins(own, row, int(column)):
                    return int(column)
        return int(rng.choice(legal))


def wins(own: np.ndarray, row: int, column: int) -> bool:
    board = np.zeros((12, 13))
    board[3:9, 3:10] = own
    board[row + 3, column + 3] = 1
    lines = (
        [board[row + 3 + i * up, column + 3 + i * right] for i in range(-3, 4)]
        for up, right in ((0, 1), (1, 0), (1, 1), (1, -1))
    )
    return any(all(line[i : i + 4]) for line in lines for i in range(4))


class Along:
    """Plays the columns of connect four from left to right, and remembers how many of a game it has played."""

    def initial_state(self, rows: int | None = None) -> dict[str, np.ndarray]:
        return {"played": np.zeros(1 if rows is None else (rows, 1))}

    def sample(
        self, observation: object, rng: np.random.Generator, *, state: dict[str, np.ndarray] | None = None
    ) -> tuple[int, dict[str, np.ndarray]]:
        assert state is not None
        return int(state["played"][0]), {"played": state["played"] + 1}


class Killer(Mixed):
    """Ends the process that it is in, unless that is the one that made it."""

    def __init__(self) -> None:
        super().__init__([1, 0, 0])
        self.home = os.getpid()

    def sample(self, observation: object, rng: np.random.Generator) -> int:
        if os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().sample(observation, rng)


class Blocked(Mixed):
    """Waits until something is written to a pipe."""

    def __init__(self, pipe: str) -> None:
        super().__init__([1, 0, 0])
        self.pipe = pipe

    def sample(self, observation: object, rng: np.random.Generator) -> int:
        Path(self.pipe).read_bytes()
        return super().sample(observation, rng)


def matrix_game() -> MatrixGame:
    return MatrixGame(rock_paper_scissors(paper=1.0, rock=3.0, scissors=2.0)[0])


def test_players_with_a_memory_keep_its_state_for_one_game() -> None:
    """The first player fills the bottom row, because the second one follows on the row above."""
    with Arena(ConnectFour) as arena:
        results = arena.play([Match(Along(), Along(), games=6)], seed=0)
    assert results == [Results(wins=3, losses=3)]
    env = AgainstOpponents(ConnectFour, [Along()], seat=1)
    for episode in range(2):
        env.reset(seed=episode)
        rewards = [env.step(6) for _ in range(3)]
        assert [reward for _, reward, *_ in rewards] == [0.0, 0.0, -1.0]
        assert rewards[-1][2]


def test_a_copy_of_the_environment_remembers_on_its_own() -> None:
    env = AgainstOpponents(ConnectFour, [Along()], seat=1)
    env.reset(seed=0)
    for _ in range(2):  # as a search does, from the same position
        copied = copy.deepcopy(env)
        assert [copied.step(6)[1] for _ in range(3)] == [0.0, 0.0, -1.0]


def test_ratings_follow_elos_formula() -> None:
    assert expected_score(1400, 1000) == pytest.approx(10 / 11)
    assert updated_ratings(1000, 1000, Results(wins=1), k=16) == (1008.0, 992.0)
    # a draw against one who is 400 points weaker costs 16 * (10/11 - 1/2)
    assert updated_ratings(1400, 1000, Results(draws=1), k=16) == pytest.approx((1393.4545, 1006.5455), abs=1e-4)


def test_many_games_bring_ratings_to_the_expected_score_and_not_beyond() -> None:
    one, two = updated_ratings(1000, 1000, Results(wins=7_500, losses=2_500), k=32)
    assert one + two == pytest.approx(2000)
    assert expected_score(one, two) == pytest.approx(0.75, abs=1e-6)


def test_matchmaking_prefers_whom_it_says() -> None:
    pool = OpponentPool("rating", spread=100)
    pool.add("weak", None, 800)
    pool.add("middle", None, 1000)
    pool.add("newest", None, 1100)
    weights = np.exp([-4.5, -0.5, 0.0])
    assert pool.chances() == pytest.approx(weights / weights.sum())
    assert pool.chances(800).argmax() == 0
    pool.matchmaking = "uniform"
    assert pool.chances() == pytest.approx([1 / 3] * 3)
    pool.matchmaking = "hardest"
    expected = np.array([expected_score(rating, 1100) for rating in (800, 1000, 1100)])
    assert pool.chances() == pytest.approx(expected / expected.sum())
    drawn = [pool.draw(np.random.default_rng(i)).name for i in range(300)]
    assert drawn.count("newest") > drawn.count("weak") > 0


def test_a_full_pool_lets_the_weakest_go_but_never_the_newest() -> None:
    pool = OpponentPool(capacity=2)
    for name, rating in (("a", 1200), ("b", 900), ("c", 100)):
        pool.add(name, name, rating)
    assert [player.name for player in pool.players] == ["a", "c"]
    with pytest.raises(HyperparameterError, match="has a player 'a' already"):
        pool.add("a", None)


def test_wrong_settings_are_refused_in_words() -> None:
    with pytest.raises(HyperparameterError, match="matchmaking must be one of uniform, rating, hardest, got 'elo'"):
        OpponentPool("elo")
    with pytest.raises(HyperparameterError, match="the pool has no players yet"):
        OpponentPool().chances()
    with Arena(matrix_game) as arena, pytest.raises(HyperparameterError, match="games must be even"):
        arena.play([Match(Mixed([1, 0, 0]), Mixed([1, 0, 0]), 3)])
    with pytest.raises(HyperparameterError, match="chances must be 1 numbers"):
        AgainstOpponents(matrix_game, [Mixed([1, 0, 0])], [0.5])
    with pytest.raises(HyperparameterError, match="there must be at least one opponent"):
        AgainstOpponents(matrix_game, [])
    with pytest.raises(HyperparameterError, match="opponents must be a list of policies, got a Mixed"):
        AgainstOpponents(matrix_game, Mixed([1, 0, 0]))  # type: ignore[arg-type]
    with pytest.raises(HyperparameterError, match=r"seat must be in 0\.\.1, got 2"):
        AgainstOpponents(matrix_game, [Mixed([1, 0, 0])], seat=2)


def test_what_cannot_play_is_named() -> None:
    player, agent = Mixed([1, 0, 0]), Agent.__new__(Agent)
    wrong: list[tuple[Any, str]] = [(agent, "Agent"), (lambda _observation, _rng: 0, "function")]
    for other, name in wrong:
        with pytest.raises(HyperparameterError, match=rf"sample\(observation, rng\), got a {name}: give .*frozen"):
            AgainstOpponents(matrix_game, [player, other])
        with Arena(matrix_game) as arena, pytest.raises(HyperparameterError, match=f"got a {name}"):
            arena.play([Match(player, other, 2)])
    for make in (AgainstOpponents, Arena):
        others: Any = ([player],) if make is AgainstOpponents else ()
        with pytest.raises(HyperparameterError, match="function that returns a game, got a MatrixGame"):
            make(matrix_game(), *others)  # type: ignore[arg-type]
        with pytest.raises(HyperparameterError, match=r"TwoStepGame has no last: .*AEC API; use its env\(\)"):
            make(TwoStepGame, *others)


class Unlike(MatrixGame):
    """The first player has two of four actions."""

    def __init__(self) -> None:
        super().__init__(np.eye(4))

    def action_space(self, agent: str) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(2 if agent == "player_0" else 4)


def test_a_seat_must_be_chosen_where_their_spaces_differ() -> None:
    with pytest.raises(HyperparameterError, match=r"seats of Unlike .*Discrete\(2\), player_1 .*choose .* seat="):
        AgainstOpponents(Unlike, [Mixed([0.5, 0.5])])
    env = AgainstOpponents(Unlike, [Mixed([0.5, 0.5])], seat=1)
    env.reset(seed=0)
    assert env.action_space == gymnasium.spaces.Discrete(4)


def test_the_learner_gets_the_infos_of_its_seat(caplog: pytest.LogCaptureFixture) -> None:
    class Masked(MatrixGame):
        """The possible actions are in the infos, not in the observations."""

        def last(self, observe: bool = True) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            *found, _ = super().last(observe)
            return (*found, {"action_mask": np.ones(3, np.int8), "seat": self.agent_selection})  # type: ignore[return-value]

    make = partial(AgainstOpponents, lambda: Masked(np.eye(3)), [Mixed([1, 0, 0])], seat=1)
    env = make()
    assert env.reset(seed=0)[1]["seat"] == env.step(0)[4]["seat"] == "player_1"
    with make_vector_env(make, 1) as envs, caplog.at_level(logging.WARNING, "parl"):
        first_reset(envs, 0)
    assert "info['action_mask'], which is not looked at" in caplog.text


def test_a_pool_goes_on_from_its_state() -> None:
    pool = OpponentPool()
    pool.add("one", Mixed([1, 0, 0]))
    pool.add("two", Mixed([0, 1, 0]))
    pool.record("two", "one", Results(wins=3, draws=1))
    other = OpponentPool()
    other.set_state(pickle.loads(pickle.dumps(pool.get_state())))
    assert [(p.name, p.rating, p.games) for p in other.players] == [(p.name, p.rating, p.games) for p in pool.players]
    assert other["two"].games == 4


def test_matches_are_of_both_seats_and_count_from_the_first_players_side() -> None:
    rock, scissors = Mixed([1, 0, 0]), Mixed([0, 0, 1])
    with Arena(matrix_game) as arena:
        assert arena.play([Match(rock, scissors, 10), Match(scissors, rock, 10), Match(rock, rock, 4)]) == [
            Results(wins=10, reward=30.0),
            Results(losses=10, reward=-30.0),
            Results(draws=4),
        ]


@pytest.mark.slow
@pytest.mark.parametrize("system", ["in-process", "threads", "subprocess", "remote"])
def test_matches_have_the_same_results_in_all_actors(system: str) -> None:
    matches = [Match(Columns(sees_wins=True), Columns(), 60), Match(Columns(), Columns(), 20)]
    with Arena(ConnectFour, games_per_call=7) as alone:
        expected = alone.play(matches, seed=5)
    options = {"remote": {"cpu_num": 2}, "subprocess": {"processes": 2}}.get(system, {})
    with (
        open_actors(system, **options) as actors,
        Arena(ConnectFour, actors=actors, workers=2, games_per_call=7) as arena,
    ):
        assert arena.play(matches, seed=5) == expected
    assert expected[0].games == 60
    assert expected[0].score > 0.7
    assert expected[1].score != expected[0].score


@pytest.mark.slow
def test_lost_actors_are_replaced_until_there_were_too_many() -> None:
    match = Match(Killer(), Mixed([0, 0, 1]), 4)
    with open_actors("subprocess", processes=1) as actors:
        arena = Arena(matrix_game, actors=actors, workers=1, max_losses=2)
        with arena, pytest.raises(LostActor):
            arena.play([match])


@pytest.mark.slow
def test_games_of_a_match_that_ended_with_an_error_are_not_counted_in_the_next_one(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    unfinished = Match(Blocked(str(gate)), Mixed([0, 0, 1]), 2)  # busy in two actors, when the third one is lost
    with (
        open_actors("subprocess", processes=3) as actors,
        Arena(matrix_game, actors=actors, workers=3, max_losses=0) as arena,
    ):
        with pytest.raises(LostActor):
            arena.play([unfinished, Match(Killer(), Mixed([0, 0, 1]), 2)])
        assert arena.play([Match(Mixed([1, 0, 0]), Mixed([0, 0, 1]), 4)]) == [Results(wins=4, reward=12.0)]


def test_what_a_policy_raises_ends_the_match_and_the_arena_lives_on() -> None:
    class Broken(Mixed):
        def sample(self, observation: object, rng: np.random.Generator) -> int:
            raise ArithmeticError("broken policy")

    with Arena(matrix_game, workers=2) as arena:  # both find it broken at the same time
        with pytest.raises(ArithmeticError, match="broken policy"):
            arena.play([Match(Mixed([1, 0, 0]), Broken([1, 0, 0]), 4)])
        assert arena.play([Match(Mixed([1, 0, 0]), Mixed([0, 0, 1]), 4)]) == [Results(wins=4, reward=12.0)]


def test_a_challenger_is_rated_against_everyone() -> None:
    pool = OpponentPool("uniform")
    with Arena(ConnectFour) as arena:
        pool.add("random", Columns())
        found = pool.challenge("sees wins", Columns(sees_wins=True), arena, games=40, seed=1)
    assert set(found) == {"random"}
    assert found["random"].games == 40 == pool["random"].games
    assert pool["sees wins"].rating > 1000 > pool["random"].rating


def test_the_average_of_fictitious_self_play_reaches_the_equilibrium_of_rock_paper_scissors() -> None:
    payoff, equilibrium = rock_paper_scissors(paper=1.0, rock=3.0, scissors=2.0)
    pool = OpponentPool("uniform")
    pool.add("0", Mixed([1, 0, 0]))
    for generation in range(1, 700):
        policies, chances = pool.opponents()
        average = np.array(chances) @ np.array([policy.probabilities for policy in policies])
        pool.add(str(generation), Mixed(np.eye(3)[(payoff @ average).argmax()]))  # the best response
        if generation in (9, 699):
            exploitability = float((payoff @ average).max())
            assert exploitability > 0.1 if generation == 9 else exploitability < 0.1
    assert average == pytest.approx(equilibrium, abs=0.05)
    with Arena(matrix_game) as arena:  # and what was played so earns about nothing against each action
        found = arena.play([Match(Mixed(average), Mixed(action), 2000) for action in np.eye(3)], seed=1)
    assert [each.reward / each.games for each in found] == pytest.approx([0, 0, 0], abs=0.2)


def test_an_environment_against_opponents_pays_the_learners_rewards_in_either_seat() -> None:
    env = AgainstOpponents(matrix_game, [Mixed([0, 0, 1])])
    for seed in range(10):
        observation, _ = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        assert env.step(0)[1:4] == (3.0, True, False)  # rock beats scissors, whoever begins


def test_a_seat_that_never_gets_a_turn_is_named() -> None:
    class OneMove(MatrixGame):
        """Over after the first player's move."""

        def step(self, action: int | None) -> None:
            super().step(action)
            self.terminations = dict.fromkeys(self.agents, True)

    env = AgainstOpponents(lambda: OneMove(np.eye(3)), [Mixed([1, 0, 0])], seat=1)
    with pytest.raises(EnvironmentContractError, match=r"100 games of OneMove in a row .* first turn of player_1"):
        env.reset(seed=0)


def test_opponents_are_drawn_with_their_chances_at_every_reset() -> None:
    env = AgainstOpponents(matrix_game, [Mixed([0, 0, 1]), Mixed([0, 1, 0])], [0.8, 0.2])
    env.reset(seed=3)
    rewards = []
    for _ in range(500):
        rewards.append(env.step(0)[1])
        env.reset()
    assert set(rewards) == {3.0, -1.0}
    assert rewards.count(3.0) / 500 == pytest.approx(0.8, abs=0.08)


def test_connect_four_against_opponents_is_a_gymnasium_environment() -> None:
    make = partial(AgainstOpponents, ConnectFour, [Columns(), Columns(sees_wins=True)])
    env = make()
    assert isinstance(env, gymnasium.Env)
    seats = set()
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        seats.add(int(observation["observation"].sum()))
        done = False
        rng = np.random.default_rng(seed)
        while not done:
            action = int(rng.choice(np.flatnonzero(observation["action_mask"])))
            observation, reward, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
        assert reward in (-1.0, 0.0, 1.0)
    assert seats == {0, 1}  # no stone is there, or the opponent's first


def test_the_same_seed_gives_the_same_games() -> None:
    def episode(env: gymnasium.Env) -> list[float]:
        observation, _ = env.reset(seed=7)
        seen = []
        for _ in range(30):
            observation, reward, terminated, _, _ = env.step(int(np.flatnonzero(observation["action_mask"])[0]))
            seen += [*observation["observation"], reward]
            if terminated:
                observation, _ = env.reset()
        return seen

    make = partial(AgainstOpponents, ConnectFour, [Columns()])
    assert episode(make()) == episode(make())
