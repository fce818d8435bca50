"""What a replay memory hands to an algorithm: one named batch of transitions."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ReplayBatch"]


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """`n` transitions (s_t, a_t, r, s_t+m) with what is needed to bootstrap from them.

    With one-step sampling m is 1. With n-step sampling m is n, or less where the episode (or what has been
    recorded of it) ends earlier; `reward` is then the discounted sum and `discount` is gamma**m.

    The arrays are buffers of the memory: they are valid until its next `sample` of the same size.
    """

    obs: NDArray[Any]
    """`[n, *obs]` in the memory's dtype."""
    action: NDArray[Any]
    """`[n]` for discrete actions, `[n, *act]` otherwise."""
    reward: NDArray[np.float32]
    """`[n]`, r_t + gamma r_t+1 + ... over m steps."""
    next_obs: NDArray[Any]
    """`[n, *obs]`, the observation after m steps."""
    terminal: NDArray[np.bool_]
    """`[n]`, the episode ended for good there: the value of `next_obs` is 0."""
    truncated: NDArray[np.bool_]
    """`[n]`, the episode was cut there (time limit): bootstrap from `next_obs` all the same."""
    index: NDArray[np.int64]
    """`[n]` slots of the memory, for `update_priorities` and `sample_batch_by_index`."""
    discount: NDArray[np.float32] | None
    """`[n]`, gamma**m for the value of `next_obs`; None with one-step sampling, where it is the algorithm's gamma."""
    weight: NDArray[np.float32] | None
    """`[n]` in (0, 1], importance-sampling weights; None with uniform sampling."""

    def copy(self) -> "ReplayBatch":
        """Return the batch in arrays of its own, which later sampling leaves alone."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: array.copy() for name, array in arrays.items() if array is not None})
