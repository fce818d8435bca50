"""The loop of the QuickStart: one episode, one update, with the log lines that its documents show."""

import logging
from typing import Any

import gymnasium
import numpy as np
import pytest

from parl_core.errors import DivergedError
from parl_core.training import run_episode, train_by_episodes


class ThreeSteps(gymnasium.Env[Any, Any]):
    """Three steps with rewards 1, 2, 4; the second episode is cut instead of ending."""

    observation_space: Any = gymnasium.spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.seeds: list[int | None] = []
        self._count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self._count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._count += 1
        over, cut = self._count == 3, len(self.seeds) == 2
        return np.full(1, self._count, np.float32), 2.0 ** (self._count - 1), over and not cut, over and cut, {}


class Recording:
    def __init__(self) -> None:
        self.learned: list[tuple[Any, Any, Any]] = []

    def sample(self, obs: Any) -> int:
        return 0

    def predict(self, obs: Any) -> int:
        return 1

    def learn(self, obs: Any, action: Any, reward: Any) -> float:
        self.learned.append((obs, action, reward))
        return 0.0


def test_an_episode_is_what_was_seen_done_and_got() -> None:
    played = run_episode(ThreeSteps(), Recording().predict)
    np.testing.assert_array_equal(played.obs, [[0.0], [1.0], [2.0]])
    np.testing.assert_array_equal(played.actions, [1, 1, 1])
    assert list(played.rewards) == [1.0, 2.0, 4.0]
    assert played.episode_return == 7.0


def test_the_agent_learns_from_normalised_discounted_returns() -> None:
    # Discounted by 0.5 the returns are 1 + 2/2 + 4/4 = 3, 2 + 4/2 = 4, 4; their mean 11/3, deviation sqrt(2)/3.
    agent = Recording()
    train_by_episodes(agent, ThreeSteps(), 1, gamma=0.5)
    obs, action, reward = agent.learned[0]
    assert obs.shape == (3, 1)
    np.testing.assert_array_equal(action, [0, 0, 0])
    np.testing.assert_allclose(reward, np.array([-2.0, 1.0, 1.0]) / np.sqrt(2.0), rtol=1e-5)


def test_every_tenth_episode_is_logged_and_every_hundredth_tested(caplog: pytest.LogCaptureFixture) -> None:
    env, agent = ThreeSteps(), Recording()
    with caplog.at_level(logging.INFO, "parl"):
        tested = train_by_episodes(agent, env, 200, seed=4)
    messages = [record.getMessage() for record in caplog.records]
    assert messages[:2] == ["Episode 0, Reward Sum 7.0.", "Episode 10, Reward Sum 7.0."]
    assert sum(message.startswith("Episode") for message in messages) == 20
    assert [message for message in messages if message.startswith("Test")] == ["Test reward: 7.0"] * 2
    assert tested == [7.0, 7.0]
    assert len(agent.learned) == 200
    assert env.seeds == [4] + [None] * 201


class Bounded(ThreeSteps):
    """Observes a dictionary; takes numbers between 10 and 20."""

    observation_space = gymnasium.spaces.Dict({"count": ThreeSteps.observation_space})
    action_space = gymnasium.spaces.Box(10.0, 20.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.taken: list[float] = []
        observation, info = super().reset(seed=seed)
        return {"count": observation}, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken.append(float(action[0]))
        observation, reward, terminated, truncated, info = super().step(action)
        return {"count": observation}, reward, terminated, truncated, info


class InUnitBox(Recording):
    alg = type("Gaussian", (), {"ACTS_IN_UNIT_BOX": True})()

    def sample(self, obs: Any) -> Any:
        return np.array([{0: -1.0, 1: 0.0}.get(int(obs["count"][0]), 5.0)], np.float32)


def test_actions_are_mapped_to_the_bounds_and_learned_as_they_were_drawn() -> None:
    env, agent = Bounded(), InUnitBox()
    train_by_episodes(agent, env, 1, test_every=5)
    assert env.taken == [10.0, 15.0, 20.0]
    obs, action, _ = agent.learned[0]
    np.testing.assert_array_equal(obs["count"], [[0.0], [1.0], [2.0]])
    np.testing.assert_array_equal(action, [[-1.0], [0.0], [5.0]])


class Reusing(ThreeSteps):
    """Writes every observation into the same array."""

    def __init__(self) -> None:
        super().__init__()
        self._obs = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._obs[:], info = super().reset(seed=seed, options=options)
        return self._obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._obs[:], reward, terminated, truncated, info = super().step(action)
        return self._obs, reward, terminated, truncated, info


def test_observations_of_an_environment_that_reuses_its_array_are_what_was_seen() -> None:
    assert run_episode(Reusing(), lambda obs: 0).obs.tolist() == [[0.0], [1.0], [2.0]]


def test_actions_that_an_environment_changes_are_what_was_chosen() -> None:
    class Centred(ThreeSteps):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            action -= 1
            return super().step(action)

    assert run_episode(Centred(), lambda _: np.array([2, 0])).actions.tolist() == [[2, 0]] * 3


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["reward", "observed"])
def test_nothing_is_learned_from_an_episode_with_numbers_that_are_not_finite(bad: float, where: str) -> None:
    class Spoiled(ThreeSteps):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, reward, *ends = super().step(action)
            if self._count == 2:
                obs, reward = (obs, bad) if where == "reward" else (obs * bad, reward)
            return (obs, reward, *ends)

    agent = Recording()
    with pytest.raises(DivergedError, match=rf"{where} {bad}.* at step \d of episode 0"):
        train_by_episodes(agent, Spoiled(), episodes=2)
    assert not agent.learned


class InParts(ThreeSteps):
    """Observes a tuple of arrays of unequal shapes."""

    observation_space = gymnasium.spaces.Tuple([gymnasium.spaces.Box(0, 9, (1,)), gymnasium.spaces.Box(0, 9, (2, 2))])

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return self._both(super().reset(**options)[0]), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, *others = super().step(action)
        return self._both(obs), *others

    @staticmethod
    def _both(obs: Any) -> Any:
        return obs, np.full((2, 2), obs[0])


def test_parts_of_a_tuple_are_named_by_their_place() -> None:
    played = run_episode(InParts(), lambda obs: int(obs["0"][0] > 1.0))
    assert {key: part.shape for key, part in played.obs.items()} == {"0": (3, 1), "1": (3, 2, 2)}
