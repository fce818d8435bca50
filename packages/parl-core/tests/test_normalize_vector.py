"""Normalisation of a vector of environments: numbers by hand, last observations, and what a checkpoint holds."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from parl.env.mujoco_wrappers import wrap_rms
from parl_core.env.autoreset import in_same_step
from parl_core.env.joint import make_joint_env
from parl_core.env.normalize import NormalizeVector
from parl_core.env.vector import make_vector_env
from parl_core.env.wrappers import MonitorEnv
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.training.events import RunningEpisodes


class Ramp(gymnasium.Env[Any, Any]):
    """Observes (10 t, -t); reward 2; truncated after 4 steps."""

    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.array([10.0 * self.t, -self.t], np.float32), 2.0, False, self.t == 4, {}


def normalized(n: int = 2, **options: Any) -> NormalizeVector:
    return NormalizeVector(make_vector_env(Ramp, n), **options)


def step(envs: NormalizeVector) -> Any:
    return envs.step(np.zeros(envs.num_envs, int))


def test_observations_are_normalised_by_all_that_was_seen() -> None:
    envs = normalized()
    envs.reset(seed=0)
    for _ in range(3):
        obs, *_ = step(envs)
    # Seen: t = 0, 1, 2, 3 in both environments; the weight of the start is 1e-4 samples.
    np.testing.assert_allclose(obs[:, 0], (30 - 15) / np.sqrt(125), rtol=1e-3)
    np.testing.assert_allclose(obs[:, 1], (-3 + 1.5) / np.sqrt(1.25), rtol=1e-3)
    assert obs.dtype == np.float32
    assert envs.observation_space.contains(obs)


class WholeNumbers(VectorWrapper):
    """Gives flags as 0 and 1."""

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        return obs, reward, terminated.astype(np.int8), truncated.astype(np.int8), infos


def test_flags_may_be_0_and_1() -> None:
    several = [NormalizeVector(wrap(make_vector_env(Ramp, 3))) for wrap in (lambda envs: envs, WholeNumbers)]
    for envs in several:
        envs.reset(seed=0)
    for _ in range(9):
        (_, expected, *_, infos), (_, found, *_, other) = map(step, several)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_equal(other.get("episode"), infos.get("episode"))


def test_rewards_are_scaled_by_the_spread_of_discounted_sums_which_begin_anew_with_each_episode() -> None:
    envs = normalized(gamma=0.5)
    envs.reset(seed=0)
    sums, total = [], 0.0
    for t in range(10):
        _, reward, *_ = step(envs)
        total = total * 0.5 + 2.0
        sums += [total, total]
        assert envs.ret_rms is not None
        variance: Any = envs.ret_rms.var
        np.testing.assert_allclose(variance, float(np.var(sums)), atol=2e-3)
        np.testing.assert_allclose(reward, np.minimum(2.0 / np.sqrt(variance), 10.0), rtol=1e-6)
        if t % 4 == 3:
            total = 0.0


def test_last_observations_are_normalised_but_not_counted_and_returns_stay_raw() -> None:
    envs = normalized()
    envs.reset(seed=0)
    for _ in range(4):
        *_, infos = step(envs)
    assert envs.ob_rms is not None
    assert round(envs.ob_rms.count) == 2 * 5  # two resets at the end of the episode, not the last observations
    expected = (np.array([40.0, -4.0]) - envs.ob_rms.mean) / np.sqrt(envs.ob_rms.var + 1e-8)
    for last in infos["final_obs"]:
        np.testing.assert_allclose(last, expected, rtol=1e-5)
    np.testing.assert_array_equal(infos["episode"]["r"], [8.0, 8.0])


def test_evaluation_shares_the_statistics_and_does_not_change_them() -> None:
    envs = normalized()
    envs.reset(seed=0)
    step(envs)
    test = wrap_rms(Ramp(), gamma=None, test=True, ob_rms=envs.ob_rms)
    before = envs.get_state()
    test.reset(seed=1)
    seen, reward, *_ = test.step(0)
    np.testing.assert_array_equal(seen, envs.normalize_obs(np.array([10.0, -1.0])))
    assert reward == 2.0
    envs.eval()
    envs.reset(seed=0)
    step(envs)
    np.testing.assert_equal(envs.get_state(), before)


def test_a_saved_state_goes_on_as_before_in_the_very_same_statistics(tmp_path: Path) -> None:
    one, other = normalized(), normalized()
    one.reset(seed=0)
    for _ in range(7):
        step(one)
    shared = other.ob_rms
    other.restore(one.save(tmp_path / "normalization.npz"))
    assert other.ob_rms is shared
    np.testing.assert_equal(other.get_state(), one.get_state())
    for envs in (one, other):
        envs.reset(seed=0)
    np.testing.assert_equal(step(one)[:2], step(other)[:2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ob_mean": None}, "lacks ob_mean"),
        ({"ob_mean": np.zeros(3), "ob_var": np.ones(3)}, "another observation space"),
        ({"ret_var": np.array(np.inf)}, "not finite in ret_var"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change: dict[str, Any], message: str) -> None:
    envs = normalized()
    before = envs.get_state()
    state = {name: value for name, value in {**before, **change}.items() if value is not None}
    state["ob_count"] = np.array(99.0)
    with pytest.raises(CheckpointError, match=message):
        envs.set_state(state)
    np.testing.assert_equal(envs.get_state(), before)


def test_one_environment_is_seen_as_the_vector_sees_it_and_teaches_nothing() -> None:
    envs = normalized(clip_obs=0.5)
    envs.reset(seed=0)
    for _ in range(20):
        step(envs)
    before, alone = envs.get_state(), Ramp()
    seen = envs.as_seen(Ramp())
    plain, _ = alone.reset(seed=3)
    obs, _ = seen.reset(seed=3)
    np.testing.assert_array_equal(obs, envs.normalize_obs(plain))
    assert np.abs(obs).max() == 0.5
    assert seen.step(0)[1] == alone.step(0)[1]
    np.testing.assert_equal(envs.get_state(), before)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"bad\.npz"):
        normalized().restore(tmp_path / "bad.npz")


def test_observations_that_are_no_box_are_refused() -> None:
    with pytest.raises(HyperparameterError, match="FlattenObservation"):
        NormalizeVector(make_vector_env("FrozenLake-v1", 1))


def test_a_team_is_told_to_normalise_inside_of_its_joint_environment() -> None:
    with make_vector_env(lambda: make_joint_env("two_step"), 1) as envs:
        with pytest.raises(HyperparameterError, match="inside the environment that JointEnv is given") as refused:
            NormalizeVector(envs)
        assert "Flatten" not in str(refused.value)
        NormalizeVector(envs, obs=False)


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(HyperparameterError, match="gamma"):
        normalized(gamma=1.5)


def gymnasiums(make: Any = Ramp, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> Any:
    return SyncVectorEnv([make, make], autoreset_mode=mode)


def returns_reported(envs: Any, steps: int = 9) -> list[tuple[float, int]]:
    envs, running = in_same_step(envs), RunningEpisodes(envs.num_envs)
    envs.reset(seed=0)
    episodes = []
    for _ in range(steps):
        _, rewards, terminated, truncated, infos = envs.step(np.zeros(2, int))
        episodes += running.step(rewards, np.flatnonzero(terminated | truncated), infos)
    return [(episode.episode_return, episode.length) for episode in episodes]


@pytest.mark.parametrize(
    "make",
    [
        lambda: NormalizeVector(make_vector_env(Ramp, 2)),
        lambda: NormalizeVector(gymnasiums()),
        lambda: NormalizeVector(gymnasiums(mode=AutoresetMode.NEXT_STEP)),
        lambda: make_vector_env(lambda: wrap_rms(Ramp(), 0.99), 2),
        lambda: make_vector_env(lambda: wrap_rms(Ramp(), 0.99), 2, autoreset_mode="DISABLED"),
        lambda: gymnasiums(lambda: wrap_rms(Ramp(), 0.99)),
    ],
)
def test_returns_of_training_episodes_are_those_of_rewards_that_were_not_scaled(make: Any) -> None:
    assert returns_reported(make()) == [(8.0, 4)] * 4


class EveryOther(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each action twice, so that the wrappers inside count other steps."""

    def step(self, action: Any) -> Any:
        self.env.step(action)
        return self.env.step(action)


def test_an_episode_of_other_steps_inside_of_wrappers_is_not_taken_for_the_one_that_was_seen() -> None:
    for make in (make_vector_env, lambda make, _: gymnasiums(make)):
        assert returns_reported(make(lambda: EveryOther(MonitorEnv(Ramp())), 2), 3) == [(4.0, 2)] * 2


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_statistics_of_gymnasiums_vector_wrapper_are_those_of_whole_episodes(mode: AutoresetMode) -> None:
    """Its reset of some environments begins the statistics of all anew: what it wraps takes `reset_mask` out."""
    lengths = iter([3, 5])
    envs = SyncVectorEnv([lambda: TimeLimit(Ramp(), next(lengths))] * 2, autoreset_mode=mode)
    reported = returns_reported(RecordEpisodeStatistics(envs), steps=12)
    assert sorted(reported) == [(6.0, 3)] * 4 + [(8.0, 4)] * 3


def test_a_checkpoint_goes_on_with_the_returns_of_running_episodes() -> None:
    envs, later = (NormalizeVector(gymnasiums()) for _ in range(2))
    envs.reset(seed=0)
    step(envs)
    later.reset(seed=0)
    later.restore_checkpoint(envs.checkpoint_state())
    for _ in range(4):
        *_, infos = step(later)
    assert infos["episode"]["r"].tolist() == [10.0, 10.0]
    assert infos["episode"]["l"].tolist() == [5, 5]


class Glitch(Ramp):
    """Its third step gives a number that is not finite."""

    def __init__(self, observed: float = 0.0, reward: float = 2.0) -> None:
        self._observed, self._reward = observed, reward

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        glitch = self.t == 3
        observation[0] += self._observed if glitch else 0.0
        return observation, self._reward if glitch else 2.0, *rest


@pytest.mark.parametrize("spoiled", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("what", ["observed", "reward"])
def test_a_number_that_is_not_finite_goes_on_and_leaves_the_statistics_alone(what: str, spoiled: float) -> None:
    makers = [lambda: Ramp(), lambda: Glitch(**{what: spoiled})]
    envs = NormalizeVector(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP))
    single = wrap_rms(Glitch(**{what: spoiled}), 0.99)
    envs.reset(seed=0)
    single.reset(seed=0)
    for _ in range(3):
        obs, rewards, *_ = step(envs)
        own_obs, own_reward, *_ = single.step(0)
    seen, own = (obs[1, 0], own_obs[0]) if what == "observed" else (rewards[1], own_reward)
    np.testing.assert_equal([float(seen), float(own)], [spoiled, spoiled])
    assert np.isfinite([obs[0, 0], rewards[0]]).all()
    assert np.abs(rewards[0]) < 10.0
    for statistics in (envs.get_state(), single.get_state()):
        assert all(np.isfinite(array).all() for array in statistics.values())


def test_the_end_of_a_with_block_closes_the_vector_inside() -> None:
    inside = make_vector_env(Ramp, 1)
    with NormalizeVector(inside) as envs:
        envs.reset(seed=0)
    assert inside.closed
