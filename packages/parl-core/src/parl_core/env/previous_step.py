"""Observations that tell a policy what it did last and what came of it, as the published agent of IMPALA sees them."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from parl_core.errors import HyperparameterError
from parl_core.spaces import has_goals

__all__ = ["PreviousStep"]


class PreviousStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the previous action and reward to observations (Espeholt et al. 2018, figure 3).

        env = PreviousStep(gymnasium.make("CartPole-v1"))
        env.reset()[0]    # {"observation": ..., "previous_action": zeros(2), "previous_reward": zeros(1)}

    The entries of a dictionary stay beside the new ones; any other observation becomes the entry `observation`.

        previous_action     float32 vector, as `gymnasium.spaces.flatten` gives it: of a choice the one-hot code
        previous_reward     float32 `[1]`, cut to [-1, 1]

    Both are zeros in the first step of an episode.

    Args:
        env: with actions that can be flattened to a vector.

    Raises:
        HyperparameterError: actions are of no fixed length, observations have goals, with which hindsight would have to
            change the rewards as well, or an entry has the name of a new one.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        seen, action = env.observation_space, spaces.flatten_space(env.action_space)
        if not isinstance(action, spaces.Box):
            raise HyperparameterError(f"PreviousStep needs actions of a fixed length, got {env.action_space}")
        if has_goals(seen):
            raise HyperparameterError(
                "PreviousStep is not for observations with goals: a goal of hindsight changes the previous reward"
            )
        self._actions: Any = env.action_space
        self._is_dict = isinstance(seen, spaces.Dict)
        self._none: NDArray[np.float32] = np.zeros(action.shape, np.float32)
        added = {
            "previous_action": spaces.Box(action.low.astype(np.float32), action.high.astype(np.float32)),
            "previous_reward": spaces.Box(-1.0, 1.0, (1,), np.float32),
        }
        if self._is_dict and (taken := added.keys() & seen.keys()):
            raise HyperparameterError(f"observations have an entry {min(taken)!r} already; PreviousStep adds its own")
        self.observation_space = spaces.Dict({**(dict(seen) if self._is_dict else {"observation": seen}), **added})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the first observation of an episode, before which nothing was done."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with(observation, self._none.copy(), 0.0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action, and return it and its reward with the observation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        done = np.asarray(spaces.flatten(self._actions, action), np.float32)
        return self._with(observation, done, float(reward)), reward, terminated, truncated, info

    def _with(self, observation: Any, action: NDArray[np.float32], reward: float) -> dict[str, Any]:
        seen: Mapping[str, Any] = observation if self._is_dict else {"observation": observation}
        cut = np.array([min(max(reward, -1.0), 1.0)], np.float32)
        return {**seen, "previous_action": action, "previous_reward": cut}
