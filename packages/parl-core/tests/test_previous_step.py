"""Observations with the previous action and reward."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from parl_core.env.goals import BitFlipping
from parl_core.env.wrappers import PreviousStep
from parl_core.errors import HyperparameterError
from parl_core.training.trained import make_standard_env


class Seen(gymnasium.Env[Any, Any]):
    """Gives its actions' sum as a reward, and what it is told to observe."""

    def __init__(self, observed: Any, space: Any, actions: Any) -> None:
        self._observed = observed
        self.observation_space, self.action_space = space, actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observed, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observed, float(np.sum(action)), False, False, {}


NUMBERS = spaces.Box(-1.0, 1.0, (2,), np.float32)
ZEROS = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("actions", "action", "flat", "reward"),
    [
        (spaces.Discrete(3), 2, [0, 0, 1], 1.0),
        (spaces.Discrete(3, start=-1), -1, [1, 0, 0], -1.0),
        (spaces.MultiDiscrete([2, 3]), np.array([0, 1]), [1, 0, 0, 1, 0], 1.0),
        (spaces.MultiBinary(2), np.array([1, 0]), [1, 0], 1.0),
        (spaces.Box(-2.0, 2.0, (2,), np.float64), np.array([0.25, 0.5]), [0.25, 0.5], 0.75),
    ],
)
def test_the_action_is_a_vector_and_the_reward_is_cut(actions: Any, action: Any, flat: Any, reward: float) -> None:
    env = PreviousStep(Seen(ZEROS, NUMBERS, actions))
    first, _ = env.reset(seed=0)
    assert first in env.observation_space
    assert not first["previous_action"].any()
    assert not first["previous_reward"].any()
    after, given, *_ = env.step(action)
    assert after in env.observation_space
    np.testing.assert_array_equal(after["previous_action"], flat)
    assert after["previous_reward"] == [reward]
    assert given == np.sum(action)  # what is learned from is not cut
    again, _ = env.reset()
    assert not again["previous_action"].any()
    np.testing.assert_array_equal(after["previous_action"], flat)  # an observation is a value: later ones leave it


def test_an_action_that_the_environment_changes_is_the_one_that_it_got() -> None:
    class Centred(Seen):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            action -= 1
            return super().step(action)

    env = PreviousStep(Centred(ZEROS, NUMBERS, spaces.MultiDiscrete([2, 3])))
    env.reset(seed=0)
    assert env.step(np.array([1, 2]))[0]["previous_action"].tolist() == [0, 1, 0, 0, 1]


def test_entries_of_a_dictionary_stay() -> None:
    space = spaces.Dict(seen=NUMBERS, action_mask=spaces.MultiBinary(3))
    observed = {"seen": ZEROS, "action_mask": np.ones(3, np.int8)}
    env = PreviousStep(Seen(observed, space, spaces.Discrete(3)))
    assert sorted(env.reset()[0]) == ["action_mask", "previous_action", "previous_reward", "seen"]


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(HyperparameterError, match="goals"):
        PreviousStep(BitFlipping())
    with pytest.raises(HyperparameterError, match="fixed length"):
        PreviousStep(Seen(ZEROS, NUMBERS, spaces.Sequence(NUMBERS)))
    with pytest.raises(HyperparameterError, match="previous_reward"):
        PreviousStep(Seen({"previous_reward": ZEROS}, spaces.Dict(previous_reward=NUMBERS), spaces.Discrete(2)))
    with pytest.raises(HyperparameterError, match="several"):
        make_standard_env("climbing", options={"previous_step": True})
    with pytest.raises(HyperparameterError, match="true or false"):
        make_standard_env("CartPole-v1", options={"previous_step": "yes"})


def test_the_command_s_environments_have_one_vector_or_an_image_beside_it() -> None:
    env = make_standard_env("CartPole-v1", options={"previous_step": True})
    obs, _ = env.reset(seed=0)
    assert obs.shape == (4 + 2 + 1,)
    np.testing.assert_array_equal(env.step(1)[0][4:], [0, 1, 1])
    pong = make_standard_env("ALE/Pong-v5", options={"previous_step": True})
    assert pong.observation_space["observation"].shape == (4, 84, 84)
    assert pong.reset(seed=0)[0] in pong.observation_space
    pong.close()


def test_what_an_environment_says_of_an_invalid_action_is_raised() -> None:
    class Strict(Seen):
        def step(self, action: Any) -> Any:
            raise ValueError(f"bad action {action}")

    env = PreviousStep(Strict(ZEROS, NUMBERS, spaces.Discrete(2)))
    env.reset()
    with pytest.raises(ValueError, match="bad action 5"):
        env.step(5)
