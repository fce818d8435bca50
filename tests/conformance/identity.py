"""The identity environment: the right action is what the observation shows; an episode is one step."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from conformance.models import ACT_DIM, OBS_DIM

__all__ = ["IdentityEnv", "continuous_identity", "discrete_identity"]

_SHOWN = np.eye(OBS_DIM, dtype=np.float32)


def discrete_identity(rng: np.random.Generator, batch: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Observations `[batch, OBS_DIM]` and the action `[batch]` that each shows as the position of its 1."""
    state = rng.integers(ACT_DIM, size=batch)
    return _SHOWN[state], state


def continuous_identity(rng: np.random.Generator, batch: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Observations `[batch, OBS_DIM]` in [-1, 1], whose first `ACT_DIM` numbers are the right action."""
    obs = rng.uniform(-1.0, 1.0, size=(batch, OBS_DIM)).astype(np.float32)
    return obs, obs[:, :ACT_DIM]


class IdentityEnv(gymnasium.Env[Any, Any]):
    """One step an episode; each observation shows the right action.

        discrete     a 1 at the place of the action                     actions from 5 on
        multi        a 1 for each part, one after the other             actions from (0, 0) to (1, 1)
        continuous   numbers in [-1, 1]                                 the same stretched to odd bounds
        masked       {"state": a 1 at the place, "action_mask": ...}    the 1 is possible, and one other

    Rewards are 1 for each right part, or minus the squared distance in [-1, 1].

    Args:
        kind: of the above.

    Raises:
        ValueError: an action is not in the action space, or is masked.
    """

    LOW, HIGH = np.array([-3.0, 10.0, 100.0], np.float32), np.array([7.0, 11.0, 300.0], np.float32)

    def __init__(self, kind: str) -> None:
        state = gymnasium.spaces.Box(-1.0, 1.0, (OBS_DIM,), np.float32)
        self.observation_space: Any = state
        self.action_space: Any = gymnasium.spaces.Discrete(ACT_DIM, start=5)
        self._kind = kind
        if kind == "multi":
            self.action_space = gymnasium.spaces.MultiDiscrete([2, 2])
        elif kind == "continuous":
            self.action_space = gymnasium.spaces.Box(self.LOW, self.HIGH)
        elif kind == "masked":
            mask = gymnasium.spaces.MultiBinary(ACT_DIM)
            self.observation_space = gymnasium.spaces.Dict({"state": state, "action_mask": mask})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._seen = self._begin()
        return self._seen, {}

    def _begin(self) -> Any:
        """Choose the right action and return the observation that shows it."""
        if self._kind == "continuous":
            (state,), (right,) = continuous_identity(self.np_random, 1)
            self._right = self.LOW + (right + 1.0) / 2.0 * (self.HIGH - self.LOW)
            return state
        if self._kind == "multi":
            self._right = self.np_random.integers(2, size=2)
            return np.eye(2, dtype=np.float32)[self._right].reshape(OBS_DIM)
        (state,), (right,) = discrete_identity(self.np_random, 1)
        self._right = right + 5
        if self._kind == "masked":
            self._mask = np.zeros(ACT_DIM, np.int8)
            self._mask[[right, self.np_random.integers(ACT_DIM)]] = 1
            return {"state": state, "action_mask": self._mask}
        return state

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action) or (self._kind == "masked" and not self._mask[action - 5]):
            raise ValueError(f"action {action!r} is not possible here")
        if self._kind == "continuous":
            reward = -float((((action - self._right) / (self.HIGH - self.LOW) * 2.0) ** 2).sum())
        else:
            reward = float(np.sum(action == self._right))
        return self._seen, reward, True, False, {}
