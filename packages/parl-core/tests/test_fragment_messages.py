"""Fragments and weights on their way between actors and a learner."""

import pickle
from typing import Any

import numpy as np
import pytest

from parl_core.training._fragment_source import ActorFragmentSource
from parl_core.training._group_actor import CollectingActor
from parl_core.training.events import Episode
from parl_core.training.fragment import ActorSeconds, FlatWeights, FragmentSteps, Task


def fragment(obs: Any, **changes: Any) -> FragmentSteps:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "action": rng.integers(0, 2, (2, 3)),
        "reward": rng.normal(size=(2, 3)).astype(np.float32),
        "terminated": np.array([[False, True, False], [False, False, False]]),
        "truncated": np.array([[False, False, False], [False, True, False]]),
        "policy": {"logits": rng.normal(size=(2, 3, 2)).astype(np.float32)},
        "last_obs": None,
        "final_rows": np.array([4]),
        "final_obs": None,
        "episodes": (Episode(2.0, 2), Episode(7.5, 9, (3.0, 4.5))),
        "seconds": ActorSeconds(1.0, 2.0, 3.0),
    }
    return FragmentSteps(Task(1, 7), 5, obs, **{**columns, **changes})


def sent(value: Any) -> tuple[Any, int]:
    """Return a value as it arrives, and the number of its arrays that travel apart."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=buffers), len(buffers)


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, part in expected.items():
            assert_equal(found[name], part)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    else:
        assert type(found) is type(expected)
        assert found == expected


@pytest.mark.parametrize(
    ("changes", "apart"),
    [
        ({"obs": np.ones((2, 3, 4), np.float32), "last_obs": np.zeros((2, 4), np.float32)}, 0),
        ({"obs": np.ones((2, 3, 4, 84, 84), np.uint8), "last_obs": np.zeros((2, 4, 84, 84), np.uint8)}, 2),
        ({"obs": np.ones((2, 3, 1), np.float32), "final_obs": np.full((1, 1), 2.5, np.float32)}, 0),
        ({"obs": np.ones((2, 3, 1), np.float32), "final_rows": np.zeros(0, np.int64)}, 0),
    ],
    ids=["vectors", "frames", "final", "none final"],
)
def test_small_arrays_of_a_fragment_travel_in_its_message_and_large_ones_apart(
    changes: dict[str, Any], apart: int
) -> None:
    expected = fragment(**changes)
    found, count = sent(expected)
    assert count == apart
    assert_equal(vars(found), vars(expected))
    assert found.reward.flags.writeable


def test_observations_by_name_and_states_travel_too() -> None:
    obs: dict[str, Any] = {"seen": np.ones((2, 3, 4), np.float32), "action_mask": np.ones((2, 3, 2), np.int8)}
    last = {name: array[:, 0] for name, array in obs.items()}
    state = {"hidden": np.ones((2, 8), np.float32)}
    expected = fragment(obs, last_obs=last, final_obs=last, state=state, last_state=state, final_state=state)
    found, _ = sent(expected)
    assert_equal(vars(found), vars(expected))


def test_weights_travel_as_one_array_and_arrive_by_name() -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(3, 2)).astype(np.float32),
        "b": np.ones(2, np.float32),
        "s": np.array([3.0], np.float32),
    }
    weights["scale"] = np.array(2.0, np.float32)
    stored: list[Any] = []

    class Order:
        def due(self, version: int) -> list[Task]:
            assert version == 3
            return []

    def store(value: Any) -> Any:
        stored.append(value)
        return value

    source: Any = ActorFragmentSource
    source(None, Order(), lambda: weights, store).publish(3)
    found, count = sent(stored[0])
    assert (type(found), count) == (FlatWeights, 1)
    assert_equal(found.by_name(), weights)


@pytest.mark.parametrize(
    "weights",
    [
        [np.ones(2), np.ones(3)],
        {"a": np.ones(2, np.float32), "count": np.array(3)},
        {"large": np.ones(2**19, np.float32)},
        {},
    ],
    ids=["list", "kinds", "large", "none"],
)
def test_other_weights_travel_as_they_are(weights: Any) -> None:
    assert FlatWeights.of(weights) is weights


def test_actors_take_weights_in_either_form() -> None:
    taken: list[Any] = []

    class Agent:
        alg = None

        def set_weights(self, weights: Any) -> None:
            taken.append(weights)
            raise InterruptedError  # what follows is of no matter here

    weights = {"w": np.ones((2, 2), np.float32)}
    for given in (weights, FlatWeights.of(weights)):
        actor = CollectingActor(Agent, 1, 0.9, 0.9, env="CartPole-v1", env_kwargs={}, lives={0: 0}, size=1, seed=0)
        actor._agent = Agent()
        with pytest.raises(InterruptedError):
            actor.collect(Task(0, 0), 0, given)
    for found in taken:
        assert_equal(found, weights)
