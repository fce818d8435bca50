"""Continuous actions: from what a policy puts out to what the environment takes."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_core.env.wrapping import AnyEnv, AnyWrapper, Step
from parl_core.errors import HyperparameterError
from parl_core.policy_outputs import action_mapping

__all__ = ["ActionMappingWrapper"]


class ActionMappingWrapper(AnyWrapper):
    """Lets a policy act in [-1, 1]; each dimension is mapped in a straight line to its own [low, high].

    For a box of whole numbers the nearest one is taken.

    Args:
        env: its action space is a `Box` with finite bounds.

    Raises:
        HyperparameterError: the action space is something else.
    """

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, gymnasium.spaces.Box) or not space.is_bounded():
            raise HyperparameterError(f"ActionMappingWrapper needs a Box action space with finite bounds, got {space}")
        self.low_bound: NDArray[Any] = space.low
        self.high_bound: NDArray[Any] = space.high
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, space.shape, np.float32)

    def step(self, action: ArrayLike) -> Step:
        """Take a step with an action in [-1, 1], of the action space's shape.

        Raises:
            ValueError: the action is outside by more than rounding, or not a number.
        """
        mapped = action_mapping(action, self.low_bound, self.high_bound)
        obs, reward, terminated, truncated, info = self.env.step(self._in_dtype(mapped))
        return obs, float(reward), terminated, truncated, info

    def _in_dtype(self, mapped: NDArray[Any]) -> NDArray[Any]:
        low, high = self.low_bound, self.high_bound
        if low.dtype.kind == "f":
            return mapped.astype(low.dtype)
        # The largest int64 is none of float64's numbers, and the next one above it would wrap around.
        top = np.nextafter(high, -np.inf, dtype=np.float64)
        whole = np.rint(mapped)
        return np.where(whole > top, high, np.minimum(whole, top).astype(low.dtype))
