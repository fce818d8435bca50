"""Vector environments of other libraries behave behind our interface as our own do."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parl_core.env.autoreset import in_same_step
from parl_core.env.native import make_native_vector_env
from parl_core.errors import HyperparameterError

# ALE casts the bounds of its spaces, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")


def pong(num_envs: int = 2, **options: Any) -> Any:
    pytest.importorskip("ale_py")
    return make_native_vector_env("ALE/Pong-v5", num_envs, "ale", num_threads=1, **options)


def cart_pole(num_envs: int = 3, **options: Any) -> Any:
    pytest.importorskip("envpool")
    return make_native_vector_env("CartPole-v1", num_envs, "envpool", num_threads=1, **options)


@pytest.fixture(scope="module")
def two_games() -> Iterator[Any]:
    """Games that have begun, for tests that take no step."""
    envs = pong()
    envs.reset(seed=0)
    yield envs
    envs.close()


@pytest.mark.slow
@pytest.mark.parametrize("make", [pong, cart_pole])
def test_the_same_seed_gives_the_same_steps(make: Any) -> None:
    runs = []
    for _ in range(2):
        envs = make()
        steps = [envs.reset(seed=list(range(5, 5 + envs.num_envs)))[0].copy()]
        steps += [envs.step(np.ones(envs.num_envs, int))[0].copy() for _ in range(20)]
        runs.append(steps)
        envs.close()
    np.testing.assert_array_equal(runs[0], runs[1])


def test_ale_truncates_where_it_was_told_and_resets_in_the_same_step() -> None:
    envs = pong(max_num_frames_per_episode=200)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert envs.single_observation_space.shape == (4, 84, 84)
    obs, _ = envs.reset(seed=3)
    ends = 0
    for _ in range(110):
        newest = obs
        obs, reward, terminated, truncated, infos = envs.step(np.zeros(2, np.int32))
        assert reward.dtype == np.float64
        assert not terminated.any()
        for i in np.flatnonzero(truncated):
            ends += 1
            assert infos["episode"]["l"][i] == 200 // 4
            # The last observation goes on from the one before it; the first of the next episode does not.
            np.testing.assert_array_equal(infos["final_obs"][i][:3], newest[i][1:])
            assert (obs[i][:3] == 0).all() or (obs[i][:3] == obs[i][3]).all()
    envs.close()
    assert ends == 4


def test_envpool_keeps_the_last_observation_and_begins_the_next_episode_in_the_same_step() -> None:
    envs = cart_pole()
    obs, _ = envs.reset(seed=1)
    lengths, ends = np.zeros(3, int), 0
    for _ in range(200):
        obs, reward, terminated, truncated, infos = envs.step(np.array([0, 1, 1]))
        lengths += 1
        np.testing.assert_array_equal(reward, 1.0)
        for i in np.flatnonzero(terminated | truncated):
            ends += 1
            assert abs(infos["final_obs"][i][2]) > 0.2095  # CartPole ends at an angle of 12 degrees
            assert np.abs(obs[i]).max() <= 0.05  # and begins this near to upright
            assert infos["episode"]["l"][i] == infos["episode"]["r"][i] == lengths[i]
            lengths[i] = 0
    envs.close()
    assert ends > 20


@pytest.mark.parametrize("make", [pong, cart_pole])
def test_with_next_step_the_step_after_an_end_only_resets(make: Any) -> None:
    options = {"max_num_frames_per_episode": 200} if make is pong else {}
    envs = make(2, autoreset_mode="NextStep" if make is pong else "NEXT_STEP", **options)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    envs.reset(seed=1)
    over, lengths, returns, ends = np.zeros(2, bool), np.zeros(2, int), np.zeros(2), 0
    for _ in range(120):
        _, rewards, terminated, truncated, infos = envs.step(np.zeros(2, int))
        assert (rewards[over] == 0).all()
        lengths, returns = np.where(over, 0, lengths + 1), np.where(over, 0.0, returns + rewards)
        over = terminated | truncated
        assert "final_obs" not in infos
        for i in np.flatnonzero(over):
            ends += 1
            assert (infos["episode"]["l"][i], infos["episode"]["r"][i]) == (lengths[i], returns[i])
    envs.close()
    assert ends >= 4


def test_envpools_next_step_environments_serve_loops_that_want_same_step() -> None:
    envs = in_same_step(cart_pole(autoreset_mode=AutoresetMode.NEXT_STEP))
    obs, _ = envs.reset(seed=1)
    ends = 0
    for _ in range(60):
        obs, _, terminated, truncated, infos = envs.step(np.array([0, 1, 1]))
        for i in np.flatnonzero(terminated | truncated):
            ends += 1
            assert abs(infos["final_obs"][i][2]) > 0.2095
            assert np.abs(obs[i]).max() <= 0.05
    envs.close()
    assert ends > 6


def test_a_pool_resets_those_that_a_mask_chooses() -> None:
    envs = cart_pole()
    with pytest.raises(HyperparameterError, match="reset all first"):
        envs.reset(options={"reset_mask": np.array([True, False, False])})
    envs.reset(seed=1)
    before = envs.step(np.array([0, 1, 1]))[0]
    after, _ = envs.reset(options={"reset_mask": np.array([False, True, False])})
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    assert np.abs(after[1]).max() <= 0.05 < np.abs(before[1]).max()
    envs.close()


def test_environments_that_always_reset_cannot_be_told_not_to() -> None:
    with pytest.raises(HyperparameterError, match="cannot be DISABLED"):
        cart_pole(autoreset_mode="DISABLED")


def test_actions_of_a_wrong_shape_are_refused() -> None:
    envs = cart_pole()
    envs.reset(seed=1)
    with pytest.raises(HyperparameterError, match=r"must have the shape \[3\].* got \[2\]"):
        envs.step(np.zeros(2, int))
    envs.close()


def test_an_unknown_engine_or_task_is_refused() -> None:
    with pytest.raises(HyperparameterError, match="'ale' or 'envpool', got 'mine'"):
        make_native_vector_env("CartPole-v1", 2, "mine")
    pytest.importorskip("envpool")
    with pytest.raises(HyperparameterError, match="no task 'CartPoll-v1'"):
        make_native_vector_env("CartPoll-v1", 2, "envpool")


@pytest.mark.parametrize(
    ("engine", "module", "command"),
    [("ale", "ale_py.vector_env", r"parl-core\[atari\]"), ("envpool", "envpool", "pip install envpool")],
)
def test_a_library_that_is_missing_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, engine: str, module: str, command: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=command):
        make_native_vector_env("pong", 2, engine)


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        ([99, 0], r"in Discrete\(6\), got \[99, 0\]"),
        ([0, -1], r"in Discrete\(6\), got \[0, -1\]"),
        ([0.9, 2.7], "must be int64, got float64"),
        ([0], r"shape \[2\].*got \[1\]"),
    ],
)
def test_ale_is_not_given_an_action_that_it_lacks(two_games: Any, actions: Any, said: str) -> None:
    with pytest.raises(HyperparameterError, match=said):
        two_games.step(np.array(actions))


def test_ale_is_not_given_an_action_that_is_no_number() -> None:
    envs = pong(continuous=True)
    envs.reset(seed=0)
    with pytest.raises(HyperparameterError, match="nan"):
        envs.step(np.full((2, 3), np.nan))
    envs.close()


def test_seeds_of_numpy_are_whole_numbers_for_ale_as_well() -> None:
    envs = pong()
    first, _ = envs.reset(seed=np.int64(3))
    np.testing.assert_array_equal(first, envs.reset(seed=[3, 4])[0])
    for seed, said in ((-5, "at least 0"), (2**40, "up to 2147483647"), (1.5, "whole number"), ([1], "1 seeds")):
        with pytest.raises(HyperparameterError, match=said):
            envs.reset(seed=seed)
    envs.close()
