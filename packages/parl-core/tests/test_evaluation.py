"""Evaluation plays the asked-for episodes, each with its own seed, however many run side by side."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import pytest

from parl_core.env.joint import JointEnv
from parl_core.errors import DivergedError, EnvironmentContractError, HyperparameterError, ParlError
from parl_core.training import Episode, Evaluation, evaluate, record_episodes, run_episode


class SeededLength(gymnasium.Env[Any, Any]):
    """An episode's length and reward come from its seed alone; it is angry when stepped after its end."""

    observation_space = gymnasium.spaces.Box(0.0, 1000.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None, "every evaluated episode has a seed"
        self._left = int(self.np_random.integers(1, 30))
        self._reward = float(self.np_random.integers(1, 9))
        return np.full(1, self._left, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._left > 0, "stepped after the end"
        self._left -= 1
        return np.full(1, self._left, np.float32), self._reward * action, self._left == 0, False, {}


class AlwaysOne:
    def __init__(self) -> None:
        self.batch_sizes: set[int] = set()
        self.training = True

    def train(self) -> None:
        self.training = True

    def eval(self) -> None:
        self.training = False

    def predict(self, obs: Any) -> Any:
        assert not self.training
        self.batch_sizes.add(len(obs))
        return np.ones(len(obs), np.int64)


@pytest.mark.parametrize("at_once", [1, 3, 8, 50])
def test_episodes_do_not_depend_on_how_many_are_played_at_once(at_once: int) -> None:
    reference = evaluate(AlwaysOne(), SeededLength, 11, seed=5, at_once=2)
    assert evaluate(AlwaysOne(), SeededLength, 11, seed=5, at_once=at_once) == reference
    assert len(reference.episodes) == 11
    assert len({episode.length for episode in reference.episodes}) > 3


def test_another_seed_plays_other_episodes_and_more_episodes_begin_with_the_same() -> None:
    few = evaluate(AlwaysOne(), SeededLength, 4, seed=1)
    many = evaluate(AlwaysOne(), SeededLength, 9, seed=1)
    assert few.episodes == many.episodes[:4]
    assert few.episodes != evaluate(AlwaysOne(), SeededLength, 4, seed=2).episodes


def test_the_agent_always_sees_a_batch_of_the_same_size() -> None:
    agent = AlwaysOne()
    evaluate(agent, SeededLength, 10, at_once=4)
    assert agent.batch_sizes == {4}


def test_the_agent_is_evaluated_in_evaluation_mode_and_left_as_it_was() -> None:
    for training in (True, False):
        agent = AlwaysOne()
        agent.training = training
        evaluate(agent, SeededLength, 3)
        assert agent.training is training


def test_a_constant_policy_on_cartpole_gets_the_returns_that_a_plain_loop_counts() -> None:
    from parl_core.seeding import spawn_seeds

    expected = []
    env = gymnasium.make("CartPole-v1")
    for seed in spawn_seeds(3, 6):
        env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(1)
            total += float(reward)
            over = terminated or truncated
        expected.append(total)
    assert evaluate(AlwaysOne(), "CartPole-v1", 6, seed=3).returns == expected


def test_mean_and_deviation_are_over_episodes() -> None:
    evaluation = Evaluation([Episode(1.0, 1), Episode(3.0, 2)])
    assert (evaluation.mean, evaluation.std) == (2.0, 1.0)


def test_an_evaluated_team_has_the_return_of_each_agent() -> None:
    class Adversaries:
        """The second agent loses what the first one wins: 1 a step, twice that in the second step, its last."""

        possible_agents = ("a", "b")

        def observation_space(self, agent: str) -> Any:
            return gymnasium.spaces.Box(0.0, 9.0, (1,), np.float32)

        def action_space(self, agent: str) -> Any:
            return gymnasium.spaces.Discrete(2)

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.agents, self.t = ["a", "b"], 0
            return {name: np.zeros(1, np.float32) for name in "ab"}, {}

        def step(self, actions: Any) -> Any:
            self.t += 1
            self.agents = [] if self.t == 2 else ["a", "b"]
            seen = {name: np.zeros(1, np.float32) for name in "ab"}
            ends = dict.fromkeys("ab", self.t == 2)
            return seen, {"a": 1.0 * self.t, "b": -2.0 * self.t}, ends, dict.fromkeys("ab", False), {}

        def close(self) -> None: ...

    class Nothing(AlwaysOne):
        def predict(self, obs: Any) -> Any:
            return np.zeros((len(obs["obs"]), 2), np.int64)

    evaluation = evaluate(Nothing(), lambda: JointEnv(Adversaries()), 3, at_once=2)
    assert evaluation.returns == [-1.5] * 3
    assert [one.agent_returns for one in evaluation.episodes] == [(3.0, -6.0)] * 3
    assert evaluation.agent_means == [3.0, -6.0]
    assert Evaluation.from_state(evaluation.get_state()) == evaluation
    assert Evaluation([Episode(1.0, 2)]).agent_means == []


def test_the_agent_never_acts_on_the_last_observation_of_an_episode() -> None:
    class NothingAtTheEnd(SeededLength):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, reward, terminated, truncated, info = super().step(action)
            return np.full_like(obs, np.nan) if terminated else obs, reward, terminated, truncated, info

    agent = AlwaysOne()
    assert evaluate(agent, NothingAtTheEnd, 7, at_once=3) == evaluate(AlwaysOne(), SeededLength, 7, at_once=3)
    assert agent.batch_sizes == {3}


def test_no_episodes_is_refused() -> None:
    with pytest.raises(HyperparameterError, match="episodes must be at least 1"):
        evaluate(AlwaysOne(), SeededLength, 0)


class Endless(SeededLength):
    """Episodes with an odd seed never end; each step gives 1."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        self._ends = seed is not None and seed % 2 == 0
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0, self._ends, False, {}


def test_an_episode_without_end_is_cut_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "parl"):
        played = evaluate(AlwaysOne(), Endless, 12, at_once=5, max_steps=40)
    cut = [number for number, episode in enumerate(played.episodes) if episode.length == 40]
    assert 0 < len(cut) < 12
    assert {(episode.length, episode.episode_return) for episode in played.episodes} == {(1, 1.0), (40, 40.0)}
    told = sorted(record.getMessage() for record in caplog.records)
    assert told == sorted(
        f"evaluation: episode {number} had not ended after 40 steps and counts with its return so far; raise "
        "max_steps, or give the environment a time limit (gymnasium.wrappers.TimeLimit)"
        for number in cut
    )
    with pytest.raises(HyperparameterError, match="max_steps must be at least 1, got 0"):
        evaluate(AlwaysOne(), Endless, 1, max_steps=0)


def test_a_reward_that_is_no_number_is_refused_with_what_to_do() -> None:
    class Generous(Endless):
        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            return np.zeros(1, np.float32), [1.0], False, False, {}

    with pytest.raises(ParlError, match=r"step of Generous gave the reward \[1\.0\] of list: .*return float"):
        evaluate(AlwaysOne(), Generous, 1)


def test_an_end_that_is_no_flag_is_refused_by_what_plays_whole_episodes() -> None:
    class Unsure(Endless):
        def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
            return np.zeros(1, np.float32), 1.0, None, False, {}

    for play in (
        lambda: evaluate(AlwaysOne(), Unsure, 1),
        lambda: run_episode(Unsure(), lambda _: 1, 0),
        lambda: record_episodes(Unsure, lambda _: lambda _: 1, 1),
    ):
        with pytest.raises(EnvironmentContractError, match="step of Unsure gave terminated=None of NoneType"):
            play()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_return_that_is_not_finite_ends_the_evaluation(bad: float) -> None:
    class Spoiled(Endless):
        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            return np.zeros(1, np.float32), bad, True, False, {}

    with pytest.raises(DivergedError, match=rf"episode 0 has the return {bad} after the reward {bad} of step 0; clip"):
        evaluate(AlwaysOne(), Spoiled, 1)


def test_an_agent_is_not_asked_about_observations_that_are_not_finite() -> None:
    class Blind(Endless):
        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            return np.full(1, np.nan, np.float32), 1.0, False, False, {}

    with pytest.raises(DivergedError, match=r"environment 0 observed nan in obs\[0\] after 0 evaluated episodes"):
        evaluate(AlwaysOne(), Blind, 1)


def test_where_one_environment_cannot_be_made_those_before_it_are_closed() -> None:
    made: list[Endless] = []
    closed: list[Any] = []

    class Licensed(Endless):
        def __init__(self) -> None:
            if len(made) == 2:
                raise OSError("no licence left")
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    with pytest.raises(OSError, match="no licence left"):
        evaluate(AlwaysOne(), Licensed, 3)
    assert closed == made


class Drawing(AlwaysOne):
    """Draws its actions, alone or with something beside them, such as values."""

    def __init__(self, parts: str) -> None:
        super().__init__()
        self.rng, self.parts = np.random.default_rng(), parts

    def predict(self, obs: Any) -> Any:
        raise AssertionError(obs)

    def sample(self, obs: Any) -> Any:
        assert not self.training
        drawn = self.rng.integers(2, size=len(obs))
        beside = np.full(len(obs), 7.0)
        if self.parts == "action":
            return drawn
        return tuple(drawn if name == "action" else beside for name in self.parts.split())

    @contextmanager
    def drawing_from(self, seed: int) -> Iterator[None]:
        before, self.rng = self.rng, np.random.default_rng(seed)
        yield
        self.rng = before


@pytest.mark.parametrize("parts", ["action", "action value", "value action log_prob", "value action log_prob entropy"])
def test_a_stochastic_evaluation_draws_the_same_actions_from_the_same_seed(parts: str) -> None:
    found = [evaluate(Drawing(parts), SeededLength, 4, seed=3, stochastic=True) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0] != evaluate(Drawing(parts), SeededLength, 4, seed=4, stochastic=True)


class Tensor:
    """A flag as frameworks have it: numpy converts it, and `size` is a method."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(True)

    def size(self) -> tuple[int, ...]:
        return ()


def test_an_end_may_be_a_tensor() -> None:
    class OfTensors(Endless):
        def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
            return np.zeros(1, np.float32), 1.0, Tensor(), False, {}

    assert [one.length for one in evaluate(AlwaysOne(), OfTensors, 2).episodes] == [1, 1]
