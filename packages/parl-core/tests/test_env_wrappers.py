"""Wrappers for any task, on small environments whose every number is known."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from parl.env import ActionMappingWrapper, VectorEnv
from parl.env.mujoco_wrappers import MonitorEnv, get_ob_rms, get_wrapper_by_cls, wrap_rms
from parl.utils.rl_utils import action_mapping
from parl_core.env.normalize import NormalizeVector, VecNormalizeEnv
from parl_core.env.vector import make_vector_env
from parl_core.errors import CheckpointError, HyperparameterError


class Counter(gymnasium.Env[np.ndarray, Any]):
    """Counts its steps: observation [t, episode], reward t; ends at `length`, one way or the other."""

    def __init__(self, length: int = 3, truncates: bool = False, action_space: Any = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = action_space or gymnasium.spaces.Discrete(2)
        self.length, self.truncates = length, truncates
        self.t, self.episode = 0, 0
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t, self.episode = 0, self.episode + 1
        return np.array([0.0, self.episode]), {"first": True}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self.t += 1
        over = self.t >= self.length
        obs = np.array([float(self.t), self.episode])
        return obs, float(self.t), over and not self.truncates, over and self.truncates, {"t": self.t}

    def close(self) -> None:
        self.closed = True


def box(low: Any, high: Any) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))


def test_actions_are_mapped_in_every_dimension_to_its_own_bounds() -> None:
    inner = Counter(action_space=box([-2.0, 0.0], [2.0, 10.0]))
    env = ActionMappingWrapper(inner)
    env.reset()
    for action in ([-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [1.0005, -1.0005]):
        env.step(np.array(action, np.float32))
    assert np.array(inner.actions).tolist() == [[-2.0, 0.0], [0.0, 5.0], [2.0, 10.0], [2.0, 0.0]]
    assert all(action.dtype == np.float32 for action in inner.actions)
    assert env.action_space == gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize("action", [[1.1], [-2.0], [np.nan]])
def test_actions_outside_of_minus_one_to_one_are_refused(action: list[float]) -> None:
    env = ActionMappingWrapper(Counter(action_space=box([-2.0], [2.0])))
    env.reset()
    with pytest.raises(ValueError, match=r"\[-1, 1\]"):
        env.step(action)


@pytest.mark.parametrize("space", [gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(-np.inf, np.inf, (1,))])
def test_only_bounded_boxes_can_be_mapped_to(space: Any) -> None:
    with pytest.raises(HyperparameterError, match="finite bounds"):
        ActionMappingWrapper(Counter(action_space=space))


def test_action_mapping_takes_numbers_as_bounds() -> None:
    assert action_mapping(np.array([[-1.0], [0.5]]), -2.0, 6.0).tolist() == [[-2.0], [4.0]]
    assert action_mapping(np.array([-1.0, 0.3]), np.array([1.0, 0.0]), np.array([1.0, 2.0])).tolist() == [1.0, 1.3]
    with pytest.raises(ValueError, match="above high_bound"):
        action_mapping(np.zeros(1), 1.0, 0.5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.float32, np.float64])
def test_actions_are_mapped_to_bounds_as_far_apart_as_a_dtype_has_them(dtype: Any) -> None:
    info = np.finfo(dtype) if np.issubdtype(dtype, np.floating) else np.iinfo(dtype)
    inner = Counter(action_space=gymnasium.spaces.Box(info.min, info.max, (1,), dtype))
    env = ActionMappingWrapper(inner)
    env.reset()
    for action in (-1.0, -0.5, 0.5, 1.0):
        env.step(np.array([action], np.float32))
    lowest, *between, highest = (action.item() for action in inner.actions)
    assert (lowest, highest) == (info.min, info.max)
    quarters = [0.75 * float(info.min) + 0.25 * float(info.max), 0.25 * float(info.min) + 0.75 * float(info.max)]
    assert between == pytest.approx(quarters, rel=1e-6, abs=0.5)


def test_a_list_of_environments_begins_new_episodes_by_itself() -> None:
    env = VectorEnv([Counter(length=2), Counter(length=3, truncates=True)])
    assert env.envs_num == 2
    obs, _ = env.reset()
    assert [o.tolist() for o in obs] == [[0.0, 1.0], [0.0, 1.0]]
    env.step([0, 0])
    obs, rewards, terminated, truncated, infos = env.step([0, 0])
    assert [o.tolist() for o in obs] == [[0.0, 2.0], [2.0, 1.0]]
    assert (rewards, terminated, truncated) == ([2.0, 2.0], [True, False], [False, False])
    assert infos[0]["final_obs"].tolist() == [2.0, 1.0]
    assert infos[0]["final_info"] == {"t": 2}
    assert "final_obs" not in infos[1]
    obs, _, terminated, truncated, infos = env.step([0, 0])
    assert (terminated, truncated) == ([False, False], [False, True])
    assert infos[1]["final_obs"].tolist() == [3.0, 1.0]


def test_environments_of_a_list_get_different_seeds_from_one() -> None:
    first, second = VectorEnv([Counter(), Counter()]), VectorEnv([Counter(), Counter()])
    for env in (first, second):
        env.reset(seed=3)
    counters: list[Any] = first.envs
    seeds = [env.seeds for env in counters]
    others: list[Any] = second.envs
    assert seeds == [env.seeds for env in others]
    assert seeds[0] != seeds[1]
    first.step([0, 0])
    first.reset()
    assert [env.seeds[1] for env in counters] == [None, None]


def test_a_list_wants_one_action_for_each_environment() -> None:
    env = VectorEnv([Counter(), Counter()])
    env.reset()
    with pytest.raises(ValueError, match="1 actions for 2"):
        env.step([0])
    with pytest.raises(ValueError, match=r"one action for 2 environments.* of which \[0\], which programs of PARL 2.x"):
        env.step(np.array([0, 1])[0])
    with pytest.raises(ValueError, match="at least one"):
        VectorEnv([])
    env.close()
    closed: list[Any] = env.envs
    assert all(inner.closed for inner in closed)


def test_the_monitor_keeps_returns_of_whole_episodes() -> None:
    env = MonitorEnv(Counter(length=3))
    for _ in range(2):
        env.reset()
        infos = [env.step(0)[4] for _ in range(3)]
    assert "episode" not in infos[1]
    assert (infos[2]["episode"]["r"], infos[2]["episode"]["l"]) == (6.0, 3)
    env.reset()
    env.step(0)
    env.reset()  # abandons an episode
    assert env.get_episode_rewards() == [6.0, 6.0]
    assert env.get_episode_lengths() == [3, 3]
    assert env.get_total_steps() == 7
    assert list(env.next_episode_results()) == [(6.0, 3), (6.0, 3)]
    assert list(env.next_episode_results()) == []


def play(env: Any, episodes: int) -> list[np.ndarray]:
    seen = []
    for _ in range(episodes):
        seen.append(env.reset()[0])
        over = False
        while not over:
            obs, _, terminated, truncated, _ = env.step(0)
            seen.append(obs)
            over = terminated or truncated
    return seen


def test_observations_come_out_with_about_unit_size() -> None:
    env = wrap_rms(Counter(length=50), gamma=0.99)
    play(env, 200)
    late = np.array([obs[0] for obs in play(env, 1)])
    raw = np.arange(51.0)
    assert np.allclose(late, (raw - 25) / raw.std(), atol=0.02)
    assert late.dtype == np.float32
    assert env.observation_space.contains(play(env, 1)[0])


def test_outliers_are_cut_at_ten() -> None:
    env = wrap_rms(Counter(length=500), gamma=0.99)
    wrapper = get_wrapper_by_cls(env, VecNormalizeEnv)
    assert wrapper is not None
    assert wrapper.ob_rms is not None
    wrapper.eval()
    wrapper.ob_rms.mean, wrapper.ob_rms.var = np.zeros(2), np.full(2, 1e-6)
    assert np.abs(play(env, 1)).max() == 10.0


def test_rewards_are_scaled_by_the_spread_of_discounted_sums_and_not_shifted() -> None:
    env = wrap_rms(Counter(length=4), gamma=0.5)
    sums: list[float] = []
    for _ in range(3):
        env.reset()
        total = 0.0
        for t in range(1, 5):
            total = 0.5 * total + t
            sums.append(total)
            reward = env.step(0)[1]
            # The statistics begin with one ten-thousandth of a sample of mean 0 and variance 1.
            weighted = np.append(np.array(sums), [1.0, -1.0])
            weight = np.append(np.ones(len(sums)), [0.5e-4, 0.5e-4])
            mean = np.average(weighted, weights=weight)
            deviation = np.sqrt(np.average((weighted - mean) ** 2, weights=weight) + 1e-8)
            assert reward == pytest.approx(min(t / deviation, 10.0), rel=1e-6)


def test_raw_returns_and_truncation_are_in_the_info() -> None:
    env = wrap_rms(Counter(length=2, truncates=True), gamma=0.99)
    env.reset()
    assert "bad_transition" not in env.step(0)[4]
    *_, info = env.step(0)
    assert info["bad_transition"] is True
    assert info["episode"]["r"] == 3.0


def test_saved_statistics_normalise_as_before() -> None:
    trained, fresh = (wrap_rms(Counter(length=20), gamma=0.9) for _ in range(2))
    play(trained, 3)
    fresh.load_state_dict(trained.state_dict())
    for env in (trained, fresh):
        env.unwrapped.episode = 0  # type: ignore[attr-defined]  # so that both see the same
    assert np.array_equal(play(trained, 2), play(fresh, 2))


def test_statistics_in_a_file_are_those_of_a_vector_and_of_one_environment_alike(tmp_path: Path) -> None:
    envs = NormalizeVector(make_vector_env(lambda: Counter(length=20), 2), gamma=0.9)
    envs.reset(seed=0)
    for _ in range(30):
        envs.step(np.zeros(2, np.int64))
    path = envs.save(tmp_path / "observations.npz")
    tested = wrap_rms(Counter(length=20), gamma=None, test=True)  # in a program that has no vector
    before, _ = tested.reset()
    tested.restore(path)
    tested.unwrapped.episode = 0  # type: ignore[attr-defined]  # so that it shows the same again
    after, _ = tested.reset()
    np.testing.assert_array_equal(after, envs.normalize_obs(before))
    trained = wrap_rms(Counter(length=20), gamma=0.9)
    trained.restore(path)
    np.testing.assert_equal(trained.get_state(), envs.get_state())
    envs.restore(trained.save(tmp_path / "again"))


def test_a_file_that_does_not_fit_one_environment_changes_nothing(tmp_path: Path) -> None:
    trained, tested = wrap_rms(Counter(length=20), gamma=0.9), wrap_rms(Counter(length=20), gamma=None, test=True)
    np.savez(tmp_path / "small.npz", ob_mean=np.zeros(2))
    for env in (trained, tested):
        before = env.get_state()
        with pytest.raises(CheckpointError, match=r"small\.npz: the saved normalisation lacks ob_var, ob_count"):
            env.restore(tmp_path / "small.npz")
        np.testing.assert_equal(env.get_state(), before)
    assert tested.ob_rms is None


def test_a_test_environment_uses_the_statistics_of_training_and_leaves_them_alone() -> None:
    trained = wrap_rms(Counter(length=20), gamma=0.9)
    play(trained, 3)
    rms = get_ob_rms(trained)
    assert rms is not None
    before = rms.state_dict()
    tested = wrap_rms(Counter(length=20), gamma=None, test=True, ob_rms=rms)
    obs, _ = tested.reset()
    assert np.allclose(obs, np.clip((np.array([0.0, 1.0]) - before["mean"]) / np.sqrt(before["var"] + 1e-8), -10, 10))
    assert [tested.step(0)[1] for _ in range(3)] == [1.0, 2.0, 3.0]  # rewards as they are
    assert all(np.array_equal(before[name], value) for name, value in rms.state_dict().items())
    assert get_ob_rms(Counter()) is None


def test_scaling_rewards_needs_gamma() -> None:
    with pytest.raises(HyperparameterError, match="gamma"):
        wrap_rms(Counter(), gamma=None)


def test_the_final_observation_stays_where_the_environment_reuses_its_array() -> None:
    class Reusing(gymnasium.Env[Any, Any]):
        def __init__(self) -> None:
            self.obs = np.zeros(1)

        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            self.obs[:] = 0.0
            return self.obs, {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.obs += 1.0
            return self.obs, 1.0, True, False, {}

    envs = VectorEnv([Reusing()])
    envs.reset()
    assert envs.step([0])[-1][0]["final_obs"].tolist() == [1.0]
