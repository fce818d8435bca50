"""Windows of episodes for sequence models: what the Decision Transformer sees of a dataset."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.checks import check_int, check_positive
from parl_core.errors import HyperparameterError
from parl_core.offline.dataset import OfflineDataset

__all__ = ["SequenceSampler", "Window", "padded_window"]


@dataclass(frozen=True)
class Window:
    """`n` windows of `K` steps; short ones are padded at the front.

    Attributes:
        obs: `[n, K, *obs]`, zeros where padded.
        action: `[n, K, act_dim]` float, zeros where padded.
        return_to_go: `[n, K, 1]`: rewards still to come in the episode, divided by the scale.
        timestep: int64 `[n, K]`: steps since the episode began, 0 where padded.
        mask: float `[n, K]`: 1 for a step, 0 for padding.
    """

    obs: NDArray[Any]
    action: NDArray[np.float32]
    return_to_go: NDArray[np.float32]
    timestep: NDArray[np.int64]
    mask: NDArray[np.float32]


class SequenceSampler:
    """Draws windows: an episode with a probability in proportion to its length, then its last step uniformly.

    Args:
        dataset: with actions that are vectors.
        context: steps of a window.
        return_scale: divides returns-to-go, so that networks see numbers of about unit size.

    Raises:
        HyperparameterError: the actions are discrete, or a number is out of range.
    """

    def __init__(self, dataset: OfflineDataset, context: int, return_scale: float = 1.0) -> None:
        check_int("context", context)
        check_positive("return_scale", return_scale)
        if dataset.action.ndim != 2:
            raise HyperparameterError(
                f"sequences need actions that are vectors, got shape {list(dataset.action.shape)}: store discrete ones "
                "as one-hot rows of float32"
            )
        self._dataset, self._context = dataset, context
        self._start = np.empty(len(dataset), np.int64)
        self._to_go = np.empty(len(dataset), np.float32)
        for start, stop in dataset.episodes:
            self._start[start:stop] = start
            rewards = dataset.reward[start:stop].astype(np.float64)
            self._to_go[start:stop] = np.cumsum(rewards[::-1])[::-1] / return_scale

    def draw(self, n: int, rng: np.random.Generator) -> Window:
        """Draw `n` windows."""
        last = rng.integers(len(self._dataset), size=n)
        rows = last[:, None] + np.arange(1 - self._context, 1)
        there = rows >= self._start[last][:, None]
        rows = np.where(there, rows, self._start[last][:, None])
        steps = np.where(there, rows - self._start[rows], 0)

        def seen(column: NDArray[Any]) -> NDArray[Any]:
            mask = there.reshape(*there.shape, *(1,) * (column.ndim - 1))
            return np.where(mask, column[rows], np.zeros((), column.dtype))

        return Window(
            seen(self._dataset.obs),
            seen(self._dataset.action),
            seen(self._to_go[:, None]),
            steps,
            there.astype(np.float32),
        )


def padded_window(
    obs: NDArray[Any], action: NDArray[Any], return_to_go: NDArray[Any], context: int, first_step: int = 0
) -> Window:
    """The last `context` steps of episodes that are being played, padded at the front.

    Args:
        obs: `[n, t, *obs]`, of all steps so far, the one to act on last.
        action: `[n, t, act_dim]`, the last one not yet known: zeros.
        return_to_go: `[n, t, 1]`, already scaled.
        context: steps of a window.
        first_step: number of the first of these steps in its episode.
    """
    n, t = obs.shape[:2]
    kept = min(t, context)

    def padded(column: NDArray[Any]) -> NDArray[Any]:
        out = np.zeros((n, context, *column.shape[2:]), column.dtype)
        out[:, context - kept :] = column[:, t - kept :]
        return out

    steps = np.broadcast_to(np.arange(first_step, first_step + t), (n, t))
    return Window(
        padded(obs),
        padded(action.astype(np.float32)),
        padded(return_to_go.astype(np.float32)),
        padded(steps.astype(np.int64)),
        padded(np.ones((n, t), np.float32)),
    )
