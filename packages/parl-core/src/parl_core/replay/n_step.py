"""n-step returns out of one-step transitions, computed when a batch is drawn.

    R = r_t + gamma r_t+1 + ... + gamma^(m-1) r_t+m-1,   bootstrap with gamma^m V(s_t+m),   m <= n

m is n, or as many steps as there are until the episode ends (terminated or truncated) or until the newest
transition of that environment. Drawing costs one small gather; storing costs nothing, and n can differ from one
memory to the next over the same data.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["NStep", "n_step_windows"]


class NStep(NamedTuple):
    """For each drawn slot: the discounted reward, the slot of its last step, and gamma**m; all `[n]`."""

    reward: NDArray[np.float32]
    last: NDArray[np.int64]
    discount: NDArray[np.float32]


def n_step_windows(
    slots: NDArray[np.int64],
    reward: NDArray[np.float32],
    terminal: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    *,
    steps: int,
    gamma: float,
    stride: int,
    end: int,
) -> NStep:
    """Sum up to `steps` rewards from each slot on.

    Args:
        slots: `[n]` slots of the ring where the windows start.
        reward: `[capacity]` one-step rewards of the ring.
        terminal: `[capacity]` flags of the ring.
        truncated: `[capacity]` flags of the ring.
        steps: the n of n-step, at least 1.
        gamma: discount per step.
        stride: slots from one step of an environment to its next: the number of environments that take turns.
        end: how many transitions were ever written; the newest is in slot `(end - 1) % capacity`.
    """
    capacity = len(reward)
    offsets = np.arange(steps) * stride
    windows = (slots[:, None] + offsets) % capacity
    newer = (end - 1 - slots) % capacity  # how many transitions were written after each slot
    goes_on = offsets <= newer[:, None]
    ended = terminal.take(windows) | truncated.take(windows)
    goes_on[:, 1:] &= ~np.logical_or.accumulate(ended[:, :-1], axis=1)
    powers = np.power(gamma, np.arange(steps + 1), dtype=np.float64)
    length = goes_on.sum(axis=1)
    summed = (reward.take(windows) * goes_on) @ powers[:-1]
    last = windows[np.arange(len(slots)), length - 1]
    return NStep(summed.astype(np.float32), last, powers[length].astype(np.float32))
