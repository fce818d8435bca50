"""A grid with a reward only in its far corner: a task for exploration."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core.checks import check_int

__all__ = ["SparseGrid"]

_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


class SparseGrid(gymnasium.Env[Any, Any]):
    """An open square, in which the corner opposite to the start has to be found.

    Observations are the row and the column, one-hot, side by side, float32 `[2 * size]`. Actions are up, down, left and
    right; walls cannot be crossed. The reward is 1 in the far corner, where the episode ends, and 0 elsewhere. The
    episode is truncated after `4 * size` steps.

    Args:
        size: rows and columns of the grid, at least 2.

    Raises:
        HyperparameterError: it is smaller.
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
