"""Hindsight: which goals drawn transitions get, and what their rewards become."""

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from parl_core.env.goals import BitFlipping, PointReach
from parl_core.env.vector import make_vector_env
from parl_core.errors import HyperparameterError
from parl_core.replay import HindsightReplayMemory, Prioritized, outcome_of
from parl_core.spaces import has_goals
from parl_core.training.off_policy import OffPolicySettings, make_memory

RECORD = np.dtype([("observation", np.float32, (1,)), ("achieved_goal", np.float32), ("desired_goal", np.float32)])
FAR = 1000.0


def outcome(achieved: NDArray[Any], desired: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    reached = achieved == desired
    return np.where(reached, 0.0, -1.0), reached


def memory_of(lengths: list[list[int]], max_size: int = 1000, share: float = 1.0, **settings: Any) -> Any:
    """A memory with episodes of these lengths in each environment; an achieved goal is the step's own number.

    Environment e counts from 100 * e on, and the last episode of each goes on.
    """
    n = len(lengths)
    made = {"obs_dtype": RECORD, "outcome": outcome, "n_envs": n, "seed": 1, **settings}
    memory = HindsightReplayMemory(max_size, (), 0, share=share, **made)
    ends = [set(np.cumsum(each[:-1]) - 1) for each in lengths]
    for step in range(sum(lengths[0])):
        obs, following = np.zeros(n, RECORD), np.zeros(n, RECORD)
        obs["achieved_goal"] = 100.0 * np.arange(n) + step
        following["achieved_goal"] = obs["achieved_goal"] + 1.0
        obs["desired_goal"] = following["desired_goal"] = FAR
        over = [step in end for end in ends]
        memory.append_batch(obs, np.zeros(n), np.full(n, -1.0), following, np.zeros(n, np.bool_), over)
    return memory


def reached_later(memory: Any, n: int = 4000) -> dict[int, set[int]]:
    """Return the goals that each step was drawn with, by the number of the step."""
    batch = memory.sample(n)
    np.testing.assert_array_equal(batch.obs["desired_goal"], batch.next_obs["desired_goal"])
    found: dict[int, set[int]] = {}
    for step, goal in zip(batch.obs["achieved_goal"], batch.obs["desired_goal"], strict=True):
        found.setdefault(int(step), set()).add(int(goal))
    return found


def test_goals_are_those_achieved_later_in_the_same_episode_of_the_same_environment() -> None:
    found = reached_later(memory_of([[3, 4, 2], [5, 3, 1]]))
    ends = {0: 3, 3: 7, 7: 9, 100: 105, 105: 108, 108: 109}
    expected = {}
    starts = sorted(ends)
    for step in (*range(9), *range(100, 109)):
        begin = max(start for start in starts if start <= step)
        expected[step] = set(range(step + 1, ends[begin] + 1))
    assert found == expected


def test_each_of_the_later_steps_is_as_likely_as_the_others() -> None:
    memory = memory_of([[5]])
    batch = memory.sample(20_000)
    goals = batch.obs["desired_goal"][batch.obs["achieved_goal"] == 0.0]
    counts = np.bincount(goals.astype(int), minlength=6)[1:] / len(goals)
    np.testing.assert_allclose(counts, 0.2, atol=0.03)


def test_rewards_and_terminations_are_those_of_the_new_goal() -> None:
    batch = memory_of([[6]]).sample(500)
    reached = batch.next_obs["achieved_goal"] == batch.next_obs["desired_goal"]
    assert 0 < reached.sum() < 500
    np.testing.assert_array_equal(batch.reward, np.where(reached, 0.0, -1.0))
    np.testing.assert_array_equal(batch.terminal, reached)


def test_a_share_of_the_transitions_keeps_its_goal() -> None:
    batch = memory_of([[5]], share=0.75).sample(20_000)
    assert (batch.obs["desired_goal"] == FAR).mean() == pytest.approx(0.25, abs=0.02)
    nothing = memory_of([[5]], share=0.0).sample(100)
    assert (nothing.obs["desired_goal"] == FAR).all()


def test_what_is_stored_stays_as_it_was() -> None:
    memory = memory_of([[5]])
    memory.sample(50)
    assert (memory.obs["desired_goal"][:5] == FAR).all()
    assert (memory.reward[:5] == -1.0).all()


def test_a_ring_that_has_gone_round_knows_its_episodes() -> None:
    memory = memory_of([[4, 5, 6, 5], [5, 5, 5, 5]], max_size=20)
    found = reached_later(memory)
    assert found.keys() == {*range(10, 20), *range(110, 120)}
    assert found[10] == {11, 12, 13, 14, 15}
    assert found[114] == {115}
    assert found[15] == {16, 17, 18, 19, 20}


def test_an_episode_whose_first_steps_were_overwritten_leaves_those_that_took_their_place_alone() -> None:
    memory = HindsightReplayMemory(4, (), 0, share=1.0, obs_dtype=RECORD, outcome=outcome, seed=1)
    for step in range(7):  # an episode of five steps, and the next one's first two
        obs, following = np.zeros(1, RECORD), np.zeros(1, RECORD)
        obs["achieved_goal"], following["achieved_goal"] = step, step + 1
        memory.append_batch(obs, np.zeros(1), np.full(1, -1.0), following, np.zeros(1, np.bool_), [step == 4])
        if step == 2:
            memory.sample(1)
    assert reached_later(memory) == {3: {4, 5}, 4: {5}, 5: {6, 7}, 6: {7}}


def test_drawing_between_appends_finds_the_same_ends_as_drawing_once() -> None:
    memory = HindsightReplayMemory(8, (), 0, obs_dtype=RECORD, outcome=outcome, share=1.0, seed=2)
    for step in range(50):
        obs, following = np.zeros(1, RECORD), np.zeros(1, RECORD)
        obs["achieved_goal"], following["achieved_goal"] = step, step + 1
        obs["desired_goal"] = following["desired_goal"] = FAR
        memory.append_batch(obs, [0], [-1.0], following, [False], [step % 3 == 2])
        batch = memory.sample(64)
        first, goal = batch.obs["achieved_goal"], batch.obs["desired_goal"]
        last = np.minimum(first - first % 3 + 2, step)
        assert ((first < goal) & (goal <= last + 1)).all()
        assert goal.max() == step + 1


def test_an_episode_that_was_cut_by_a_resumed_run_ends_there() -> None:
    memory = memory_of([[4]])
    memory.sample(10)
    memory.cut_episodes()
    record = np.zeros(1, RECORD)
    record["achieved_goal"] = 50.0
    record["desired_goal"] = FAR
    memory.append_batch(record, [0], [-1.0], record, [False])
    assert max(goal for step, goals in reached_later(memory).items() if step < 4 for goal in goals) == 4


def test_a_memory_that_is_restored_draws_what_the_saved_one_draws(tmp_path: Any) -> None:
    saved = memory_of([[3, 4, 2], [5, 3, 1]])
    saved.sample(7)
    state, rows = saved.get_state(), saved.rows_since(None)
    rows = {name: np.array(column) for name, column in rows.items()}
    saved.save(tmp_path / "memory.npz")
    expected = saved.sample(64).copy()
    restored = HindsightReplayMemory(1000, (), 0, obs_dtype=RECORD, outcome=outcome, share=1.0, n_envs=2)
    restored.set_state(state)
    restored.put_rows(rows)
    np.testing.assert_array_equal(restored.sample(64).obs, expected.obs)
    loaded = HindsightReplayMemory(1000, (), 0, obs_dtype=RECORD, outcome=outcome, share=1.0, n_envs=2)
    loaded.load(tmp_path / "memory.npz")
    np.testing.assert_array_equal(loaded.sample(64).obs, expected.obs)


def test_rewards_that_the_environment_computes_otherwise_are_refused() -> None:
    memory = memory_of([[5]], outcome=lambda achieved, _: (np.full(len(achieved), -0.1), None))
    with pytest.raises(HyperparameterError, match=r"compute_reward gives -0.1 for a step whose reward was -1.0 \(9 of"):
        memory.sample(9)


def test_observations_without_goals_are_refused() -> None:
    with pytest.raises(HyperparameterError, match="observation, achieved_goal is missing"):
        HindsightReplayMemory(9, (), 0, obs_dtype=[("desired_goal", float)], outcome=outcome)
    unequal = [("observation", float), ("achieved_goal", float, (3,)), ("desired_goal", float, (2,))]
    with pytest.raises(HyperparameterError, match="they must be alike"):
        HindsightReplayMemory(9, (), 0, obs_dtype=unequal, outcome=outcome)
    with pytest.raises(HyperparameterError, match="share"):
        HindsightReplayMemory(9, (), 0, obs_dtype=RECORD, outcome=outcome, share=1.5)


class OneGoalAtATime(gymnasium.Env[Any, Any]):
    """Computes rewards of single goals, and says nothing of terminations."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> float:
        return -1.0 if sum(abs(achieved_goal - desired_goal)) > info.get("near", 0.5) else 0.0


def test_an_environment_is_asked_at_once_or_one_by_one() -> None:
    goals = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.2]])
    reward, terminal = outcome_of(gymnasium.wrappers.TimeLimit(OneGoalAtATime(), 5))(goals, np.zeros((3, 2)))
    np.testing.assert_array_equal(reward, [0.0, -1.0, 0.0])
    assert terminal is None
    reward, terminal = outcome_of(BitFlipping(2))(goals, np.zeros((3, 2)))
    np.testing.assert_array_equal(reward, [0.0, -1.0, -1.0])
    np.testing.assert_array_equal(terminal, [True, False, False])
    with pytest.raises(HyperparameterError, match=r"compute_reward.*CartPoleEnv has none"):
        outcome_of(gymnasium.make("CartPole-v1"))


class InAColumn(gymnasium.Env[Any, Any]):
    """Computes as many numbers for each goal as a goal has, with an axis for them."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> Any:
        return -np.abs(achieved_goal - desired_goal)


def test_rewards_in_a_column_are_taken_and_several_numbers_a_goal_refused() -> None:
    goals = np.array([[0.0], [2.0]])
    np.testing.assert_array_equal(outcome_of(InAColumn())(goals, np.zeros((2, 1)))[0], [0.0, -2.0])
    with pytest.raises(HyperparameterError, match=r"compute_reward must return one number per goal, got .*\(2, 3\)"):
        outcome_of(InAColumn())(np.zeros((2, 3)), np.zeros((2, 3)))


class _Agent:
    """The part of an agent that `make_memory` uses."""

    class alg:  # noqa: N801 - an attribute of agents
        gamma = 0.9


@pytest.mark.parametrize("own", [True, False], ids=["ours", "gymnasium's"])
def test_the_loop_makes_the_memory_of_an_environment_with_goals(own: bool) -> None:
    settings = OffPolicySettings(hindsight=1.0, memory_size=64, batch_size=16)
    make: Any = lambda: gymnasium.wrappers.TimeLimit(PointReach(), 10)  # noqa: E731
    made = make_vector_env(make, 2) if own else gymnasium.vector.SyncVectorEnv([make, make])
    with closing(made) as envs:
        agent: Any = _Agent()
        memory = make_memory(agent, envs, settings, np.random.default_rng(0))
        assert isinstance(memory, HindsightReplayMemory)
        obs, _ = envs.reset(seed=3)
        for _ in range(6):
            action = envs.action_space.sample()
            following, reward, terminated, truncated, _ = envs.step(action)
            rows = [np.zeros(2, memory.obs.dtype) for _ in range(2)]
            for name in ("observation", "achieved_goal", "desired_goal"):
                rows[0][name], rows[1][name] = obs[name], following[name]
            memory.append_batch(rows[0], action, reward, rows[1], terminated, truncated)
            obs = following
        batch = memory.sample(400)
        reached = outcome_of(PointReach())(batch.next_obs["achieved_goal"], batch.next_obs["desired_goal"])[1]
        assert reached is not None
        np.testing.assert_array_equal(batch.terminal, reached)
        assert 0.1 < reached.mean() < 1.0


def test_a_radius_that_leaves_no_goals_outside_is_refused() -> None:
    with pytest.raises(HyperparameterError, match=r"radius must be below 2, got 3"):
        PointReach(radius=3)
    PointReach(radius=1.9).reset(seed=0)


def test_hindsight_where_it_makes_no_sense_is_refused() -> None:
    with pytest.raises(HyperparameterError, match="n_step=3"):
        OffPolicySettings(hindsight=0.8, n_step=3)
    with pytest.raises(HyperparameterError, match="prioritized"):
        OffPolicySettings(hindsight=0.8, prioritized=Prioritized())
    with pytest.raises(HyperparameterError, match="hindsight"):
        OffPolicySettings(hindsight=2.0)
    agent: Any = _Agent()
    rng = np.random.default_rng(0)
    with make_vector_env("CartPole-v1", 1) as envs, pytest.raises(HyperparameterError, match="GoalEnv"):
        make_memory(agent, envs, OffPolicySettings(hindsight=0.8), rng)


@pytest.mark.parametrize("env", [BitFlipping(4), PointReach()])
def test_the_environments_keep_gymnasiums_convention(env: Any) -> None:
    assert has_goals(env.observation_space)
    obs, _ = env.reset(seed=1)
    rng = np.random.default_rng(1)
    for _ in range(200):
        assert env.observation_space.contains(obs)
        env.action_space.seed(int(rng.integers(1000)))
        obs, reward, terminated, _, info = env.step(env.action_space.sample())
        assert reward == env.compute_reward(obs["achieved_goal"], obs["desired_goal"], info)
        assert terminated == bool(env.compute_terminated(obs["achieved_goal"], obs["desired_goal"], info))
        if terminated:
            obs, _ = env.reset()
            assert not env.compute_terminated(obs["achieved_goal"], obs["desired_goal"], {})


def test_a_reward_that_needs_the_info_is_an_error_that_says_that_there_is_none() -> None:
    class NeedsInfo:
        def compute_reward(self, achieved: Any, desired: Any, info: Any) -> float:
            return -float(info["distance"])

    goals = np.zeros((2, 1))
    with pytest.raises(KeyError, match="distance") as raised:
        outcome_of(NeedsInfo())(goals, goals)
    assert "an empty info" in raised.value.__notes__[0]
