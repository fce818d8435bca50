"""Logs of a behaviour: complete, and equal with the same seed."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from parl_core.errors import DatasetError, HyperparameterError, ParlError
from parl_core.offline import read_npz
from parl_core.training.offline import record_episodes


class Counter(gymnasium.Env[Any, Any]):
    """Observes how many steps it took, in one array that it writes into again and again; ends after three."""

    observation_space = gymnasium.spaces.Box(0, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 6.0, (1,), np.float32)

    def __init__(self, reward: Any = None) -> None:
        self.obs = np.zeros(1, np.float32)
        self.reward = reward
        self.closed = False
        self.taken: list[float] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.obs[0] = 0.0
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.taken.append(float(action[0]))
        self.obs[0] += 1.0
        reward = float(self.obs[0]) if self.reward is None else self.reward
        return self.obs, reward, bool(self.obs[0] == 3.0), False, {}

    def close(self) -> None:
        self.closed = True


def half(_rng: np.random.Generator) -> Any:
    return lambda _obs: np.array([0.5], np.float32)


def drawn(rng: np.random.Generator) -> Any:
    return lambda _obs: int(rng.integers(2))


def test_actions_outside_of_the_unit_box_are_not_logged() -> None:
    outside = lambda _rng: lambda _obs: np.array([5.0])  # noqa: E731
    with pytest.raises(HyperparameterError, match=r"gave the action \[5.\].*in \[-1, 1\].*unit_box=False"):
        record_episodes(Counter, outside, 1)
    assert record_episodes(Counter, outside, 1, unit_box=False).action[0] == 5.0


def test_rows_are_what_happened_although_the_environment_uses_one_array() -> None:
    env = Counter()
    data = record_episodes(lambda: env, half, 2)
    np.testing.assert_array_equal(data.obs[:, 0], [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(data.next_obs[:, 0], [1, 2, 3, 1, 2, 3])
    np.testing.assert_array_equal(data.reward, [1, 2, 3, 1, 2, 3])
    np.testing.assert_array_equal(data.terminal, [0, 0, 1, 0, 0, 1])
    assert not data.truncated.any()
    assert env.closed


def test_actions_are_logged_as_given_and_mapped_to_the_bounds() -> None:
    env = Counter()
    data = record_episodes(lambda: env, half, 1)
    np.testing.assert_array_equal(data.action, [[0.5]] * 3)
    assert env.taken == [4.0] * 3  # halfway between the middle, 2, and the upper bound, 6
    env.taken.clear()
    record_episodes(lambda: env, half, 1, unit_box=False)
    assert env.taken == [0.5] * 3


def test_actions_in_parts_are_given_as_their_row_and_reach_the_environment_in_parts() -> None:
    class Parts(Counter):
        action_space: Any = gymnasium.spaces.Tuple(
            [gymnasium.spaces.Discrete(3, start=1), gymnasium.spaces.Box(-4.0, 4.0, (2,))]
        )

        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            assert self.action_space.contains(action)
            return super().step(action[1])

    env, row = Parts(), np.array([2.0, 0.5, -1.0], np.float32)
    data = record_episodes(lambda: env, lambda _: lambda _: row, 1)
    np.testing.assert_array_equal(data.action, [row] * 3)
    assert env.taken == [2.0] * 3


def test_an_episode_that_is_too_long_is_cut() -> None:
    data = record_episodes(Counter, half, 2, max_steps=2)
    np.testing.assert_array_equal(data.truncated, [0, 1, 0, 1])
    assert not data.terminal.any()
    ends_there = record_episodes(Counter, half, 1, max_steps=3)
    np.testing.assert_array_equal(ends_there.truncated, [0, 0, 0])


def test_the_first_episodes_stay_when_there_are_more(tmp_path: Path) -> None:
    few, many = (record_episodes("CartPole-v1", drawn, episodes, seed=3) for episodes in (2, 5))
    for name in ("obs", "action", "reward", "next_obs", "terminal"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[: len(few)])
    assert len(many.episodes) == 5
    assert few.action.dtype == np.int64
    another = record_episodes("CartPole-v1", drawn, 2, seed=4)
    assert not np.array_equal(another.obs[0], few.obs[0])
    again = read_npz(few.save(tmp_path / "log.npz"))
    np.testing.assert_array_equal(again.obs, few.obs)
    np.testing.assert_array_equal(again.truncated, few.truncated)


def test_what_cannot_be_logged_is_refused_with_what_to_do() -> None:
    env = Counter(reward=np.zeros(2))
    with pytest.raises(ParlError, match="it has to be one number"):
        record_episodes(lambda: env, half, 1)
    assert env.closed
    with pytest.raises(DatasetError, match="reward nan in row 0"):
        record_episodes(lambda: Counter(reward=float("nan")), half, 1)
    with pytest.raises(HyperparameterError, match="episodes"):
        record_episodes(Counter, half, 0)
    with pytest.raises(HyperparameterError):
        record_episodes("CartPole-v1", lambda _rng: lambda _obs: 7, 1)
