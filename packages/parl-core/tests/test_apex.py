"""The priorities of an actor of Ape-X, and the learner's record of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from parl_core.errors import DivergedError, HyperparameterError
from parl_core.replay import Prioritized, ReplayMemory
from parl_core.training.apex import ApexSettings, _remember, epsilons, first_errors
from parl_core.training.fragment import BatchMemory, FragmentSteps, Task

GAMMA = 0.9


def test_epsilons_fall_geometrically_from_the_first_environment_to_the_last() -> None:
    found = epsilons(0.4, 7.0, 3)
    np.testing.assert_allclose(found, [0.4, 0.4**4.5, 0.4**8])
    np.testing.assert_allclose(epsilons(0.4, 7.0, 1), [0.4])


def errors_by_hand(columns: list[NDArray[Any]], steps: int) -> NDArray[Any]:
    """Walk forward from each step, as the definition of n-step returns says."""
    reward, terminated, truncated, chosen, next_best = columns
    found = np.empty_like(chosen)
    for i in range(reward.shape[0]):
        for t in range(reward.shape[1]):
            total, factor, at = 0.0, 1.0, t
            for _ in range(steps):
                total += factor * reward[i, at]
                factor *= GAMMA
                if terminated[i, at] or truncated[i, at] or at == reward.shape[1] - 1:
                    break
                at += 1
            else:
                at -= 1
            found[i, t] = total + (0.0 if terminated[i, at] else factor * next_best[i, at]) - chosen[i, t]
    return found


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 20])
def test_first_errors_are_those_of_n_step_returns(steps: int) -> None:
    rng = np.random.default_rng(steps)
    reward, chosen, next_best = rng.normal(size=(3, 4, 12))
    terminated, truncated = rng.random((2, 4, 12)) < 0.15
    columns = [reward, terminated, truncated & ~terminated, chosen, next_best]
    found = first_errors(*columns, steps=steps, gamma=GAMMA)
    np.testing.assert_allclose(found, errors_by_hand(columns, steps), atol=1e-12)


def fragment(first: float) -> FragmentSteps:
    """Two environments over three steps; the first one's episode is cut after its second step, which led to 99."""
    obs = first + np.arange(6, dtype=np.float32).reshape(2, 3, 1)
    return FragmentSteps(
        task=Task(0, 0),
        version=0,
        obs=obs,
        action=np.arange(6).reshape(2, 3) % 2,
        reward=np.arange(6, dtype=np.float32).reshape(2, 3),
        terminated=np.array([[False, False, False], [False, False, True]]),
        truncated=np.array([[False, True, False], [False, False, False]]),
        policy={"error": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])},
        last_obs=np.array([[50.0], [60.0]], np.float32),
        final_rows=np.array([1]),
        final_obs=np.array([[99.0]], np.float32),
    )


def test_a_fragment_is_remembered_step_by_step_with_its_priorities() -> None:
    memory = ReplayMemory(
        8, 1, 0, n_envs=2, n_step=2, gamma=GAMMA, sampling=Prioritized(alpha=1.0, epsilon=1e-9), seed=0
    )
    assert _remember(memory, fragment(0.0)) == 6
    obs, _, _, next_obs, terminal = memory.sample_batch_by_index(np.array([0, 1, 4, 5]))
    np.testing.assert_array_equal(obs[:, 0], [0.0, 3.0, 2.0, 5.0])
    np.testing.assert_array_equal(next_obs[:, 0], [99.0, 5.0, 50.0, 60.0])  # two steps, or as many as there are
    np.testing.assert_array_equal(terminal, [False, False, False, True])
    drawn = np.bincount(np.concatenate([memory.sample(64).index for _ in range(200)]), minlength=6)[:6]
    np.testing.assert_allclose(drawn / drawn.sum(), np.array([1, 4, 2, 5, 3, 6]) / 21.0, atol=0.01)


@pytest.mark.parametrize(
    ("name", "number", "said"),
    [
        ("reward", np.inf, "environment 1 of group 0 gave the reward inf at step 2"),
        ("obs", np.nan, r"environment 1 of group 0 observed nan in obs\[0\] before step 2"),
        ("last_obs", np.nan, r"environment 1 of group 0 observed nan in obs\[0\] after step 2"),
    ],
)
def test_what_is_not_finite_is_not_remembered(name: str, number: float, said: str) -> None:
    memory, spoiled = ReplayMemory(8, 1, 0, n_envs=2, sampling=Prioritized(), seed=0), fragment(0.0)
    getattr(spoiled, name).reshape(-1)[-1] = number
    with pytest.raises(DivergedError, match=said):
        _remember(memory, spoiled)
    assert len(memory) == 0


def test_a_part_without_numbers_is_joined_and_remembered_as_others_are() -> None:
    plain = fragment(0.0)
    rows = {"obs": (2, 3), "last_obs": (2,), "final_obs": (1,)}
    parts: dict[str, Any] = {name: {"seen": getattr(plain, name), "none": np.zeros((*rows[name], 0))} for name in rows}
    inside = replace(plain, **parts)
    assert BatchMemory().join([inside, inside]).obs["none"].shape == (12, 0)
    dtype = np.dtype([("seen", np.float32, (1,)), ("none", np.float32, (0,))])
    memory = ReplayMemory(8, (), 0, obs_dtype=dtype, n_envs=2, sampling=Prioritized(), seed=0)
    assert _remember(memory, inside) == 6
    assert memory.obs["seen"][:6, 0].tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]


def test_the_oldest_fragments_make_room() -> None:
    memory = ReplayMemory(8, 1, 0, n_envs=2, sampling=Prioritized(), seed=0)
    for first in (0.0, 100.0):
        _remember(memory, fragment(first))
    assert memory.size() == 8
    np.testing.assert_array_equal(np.sort(memory.obs[:, 0]), [2.0, 5.0, *range(100, 106)])


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", 0.0), ("epsilon", 1.0), ("epsilon_power", -1.0), ("n_actors", 0), ("batch_size", 0), ("max_lag", -1)],
)
def test_settings_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(HyperparameterError, match=name):
        ApexSettings(**{name: value})


def test_uniform_draws_are_refused() -> None:
    with pytest.raises(HyperparameterError, match="draws by priority"):
        ApexSettings(prioritized=None)  # type: ignore[arg-type]
