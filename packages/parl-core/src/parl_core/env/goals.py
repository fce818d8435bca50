"""Small environments with sparse rewards: two with goals, and a grid to explore.

    BitFlipping     choices: flip one of n bits          2**n states, one of which is rewarded
    PointReach      numbers: move a point in a square    a small disc is rewarded
    SparseGrid      choices: walk through an open grid   the corner opposite to the start is rewarded

The first two are hard without hindsight: `parl_core.replay.HindsightReplayMemory`. Importing this module registers
them as `BitFlipping-v0` and `PointReach-v0`. As in Gymnasium's GoalEnv, an observation is a dictionary, and rewards can
be computed for any goal:

    observation     the state of the task
    achieved_goal   the goal that this state achieves
    desired_goal    the goal to achieve
    env.compute_reward(achieved_goal, desired_goal, info)       for one goal, or for arrays of goals
    env.compute_terminated(achieved_goal, desired_goal, info)   likewise
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core.checks import check_int, check_positive
from parl_core.errors import HyperparameterError

__all__ = ["BitFlipping", "PointReach", "SparseGrid"]


class _GoalEnv(gymnasium.Env[Any, Any]):
    """Base of environments with goals: an episode ends where the goal is reached; each step before that costs 1."""

    _state: NDArray[np.float32]
    _goal: NDArray[np.float32]

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Return 0 where the goal is reached, else -1: a float, or an array of them."""
        return np.where(self.compute_terminated(achieved_goal, desired_goal, info), 0.0, -1.0)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Return whether the goal is reached: a flag, or an array of them."""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
        """Begin an episode at a random state, with a random goal elsewhere."""
        super().reset(seed=seed, options=options)
        self._state = self._drawn()
        self._goal = self._drawn()
        while self.compute_terminated(self._state, self._goal, {}):
            self._goal = self._drawn()
        return self._observed(), {}

    def step(self, action: Any) -> tuple[dict[str, NDArray[np.float32]], float, bool, bool, dict[str, Any]]:
        """Take an action; the episode ends where the goal is reached."""
        self._state = self._moved(action)
        reached = bool(self.compute_terminated(self._state, self._goal, {}))
        return self._observed(), 0.0 if reached else -1.0, reached, False, {"is_success": reached}

    def _observed(self) -> dict[str, NDArray[np.float32]]:
        state, goal = self._state.copy(), self._goal.copy()
        return {"observation": state, "achieved_goal": state.copy(), "desired_goal": goal}

    def _drawn(self) -> NDArray[np.float32]:
        raise NotImplementedError

    def _moved(self, action: Any) -> NDArray[np.float32]:
        raise NotImplementedError

    def _spaces_of(self, low: float, size: int) -> gymnasium.spaces.Dict:
        return gymnasium.spaces.Dict(
            {
                name: gymnasium.spaces.Box(low, 1.0, (size,), np.float32)
                for name in ("achieved_goal", "desired_goal", "observation")
            }
        )


class BitFlipping(_GoalEnv):
    """Bits to match to a goal by flipping one per step (Andrychowicz et al. 2017, section 3.1).

    A step costs 1 until the goal is reached, which ends the episode. In as many steps as bits, the limit of
    `BitFlipping-v0`, the goal can always be reached; the best mean return is about -bits / 2 + 1.

    Args:
        bits: Number of bits, at least 1.
    """

    def __init__(self, bits: int = 10) -> None:
        self.bits = check_int("bits", bits)
        self.observation_space = self._spaces_of(0.0, bits)
        self.action_space = gymnasium.spaces.Discrete(bits)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:  # noqa: ARG002
        """Return whether all bits are equal: a flag, or an array of them."""
        return np.all(np.asarray(achieved_goal) == np.asarray(desired_goal), axis=-1)

    def _drawn(self) -> NDArray[np.float32]:
        return self.np_random.integers(0, 2, self.bits).astype(np.float32)

    def _moved(self, action: Any) -> NDArray[np.float32]:
        state = self._state.copy()
        state[int(action)] = 1.0 - state[int(action)]
        return state


class PointReach(_GoalEnv):
    """A point in the square [-1, 1]^2 that moves to a goal, at most `speed` a step in each direction.

    A step costs 1 until the point is within `radius` of the goal, which ends the episode. `PointReach-v0` has episodes
    of 30 steps, enough for any goal; the best mean return is about -8.

    Args:
        radius: The radius of the disc around the goal, above 0 and below 2, so that there are goals outside it.
        speed: Largest step in each dimension, above 0.

    Raises:
        HyperparameterError: A number is out of its range.
    """

    def __init__(self, radius: float = 0.08, speed: float = 0.1) -> None:
        self.radius, self.speed = check_positive("radius", radius), check_positive("speed", speed)
        if self.radius >= 2.0:
            raise HyperparameterError(f"radius must be below 2, got {radius}: nearly every goal of the square is in it")
        self.observation_space = self._spaces_of(-1.0, 2)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:  # noqa: ARG002
        """Return whether the goal is near enough: a flag, or an array of them."""
        return np.linalg.norm(np.asarray(achieved_goal) - np.asarray(desired_goal), axis=-1) < self.radius

    def _drawn(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def _moved(self, action: Any) -> NDArray[np.float32]:
        step = self.speed * np.clip(np.asarray(action, np.float32), -1.0, 1.0)
        return np.clip(self._state + step, -1.0, 1.0)


_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


class SparseGrid(gymnasium.Env[Any, Any]):
    """An open square grid, in which the agent must find the corner opposite to the start.

    Observations are the row and the column, each one-hot, concatenated, float32 `[2 * size]`. Actions are up, down,
    left and right; walls cannot be crossed. The reward is 1 in the far corner, where the episode ends, and 0 elsewhere.
    The episode is truncated after `4 * size` steps.

    Args:
        size: Rows and columns of the grid, at least 2.

    Raises:
        HyperparameterError: `size` is smaller.
    """

    def __init__(self, size: int = 12) -> None:
        self.size = check_int("size", size, at_least=2)
        self.observation_space: Any = gymnasium.spaces.Box(0.0, 1.0, (2 * size,), np.float32)
        self.action_space: Any = gymnasium.spaces.Discrete(len(_MOVES))
        self._at, self._taken = (0, 0), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin in the near corner."""
        super().reset(seed=seed, options=options)
        self._at, self._taken = (0, 0), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move by one cell."""
        down, right = _MOVES[int(action)]
        last = self.size - 1
        self._at = min(max(self._at[0] + down, 0), last), min(max(self._at[1] + right, 0), last)
        self._taken += 1
        there = self._at == (last, last)
        return self._seen(), float(there), there, not there and self._taken == 4 * self.size, {}

    def _seen(self) -> NDArray[np.float32]:
        row, column = self._at
        seen = np.zeros(2 * self.size, np.float32)
        seen[[row, self.size + column]] = 1.0
        return seen


gymnasium.register("BitFlipping-v0", f"{__name__}:BitFlipping", max_episode_steps=10)
gymnasium.register("PointReach-v0", f"{__name__}:PointReach", max_episode_steps=30)
