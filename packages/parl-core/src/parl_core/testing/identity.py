"""The identity environment: the right action is what the observation shows; an episode is one step."""

import numpy as np
from numpy.typing import NDArray

from parl_core.testing.models import ACT_DIM, OBS_DIM

__all__ = ["continuous_identity", "discrete_identity"]


def discrete_identity(rng: np.random.Generator, batch: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Observations `[batch, OBS_DIM]` and the action `[batch]` that each shows as the position of its 1."""
    state = rng.integers(ACT_DIM, size=batch)
    return np.eye(OBS_DIM, dtype=np.float32)[state], state


def continuous_identity(rng: np.random.Generator, batch: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Observations `[batch, OBS_DIM]` in [-1, 1], whose first `ACT_DIM` numbers are the right action."""
    obs = rng.uniform(-1.0, 1.0, size=(batch, OBS_DIM)).astype(np.float32)
    return obs, obs[:, :ACT_DIM]
