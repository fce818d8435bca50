"""Fragments joined to a batch, in memory that is used again for every batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from parl_core.errors import DivergedError
from parl_core.nested import Observations, map_nested
from parl_core.training.events import Episode
from parl_core.training.fragment import Fragment

__all__ = ["BatchMemory", "FragmentBatch"]


@dataclass(frozen=True)
class FragmentBatch:
    """`N` environments' fragments of `T` steps, each environment's rows one after another.

    The arrays are overwritten by the next batch of the same memory.

    Attributes:
        n_steps: T.
        obs: `[N * T, *obs]`, or a dictionary of such.
        action: `[N * T, *act]`.
        reward: `[N * T]`.
        terminated: `[N * T]`.
        truncated: `[N * T]`.
        policy: `[N * T, ...]`, by name.
        last_obs: `[N, *obs]`, or None.
        final_rows: int64 `[k]`, rows of truncated steps.
        final_obs: `[k, *obs]`, or None.
        versions: int64 `[fragments]`, of the weights that acted.
        episodes: those that ended.
    """

    n_steps: int
    obs: Observations
    action: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    policy: dict[str, NDArray[Any]]
    last_obs: Observations
    final_rows: NDArray[np.int64]
    final_obs: Observations
    versions: NDArray[np.int64]
    episodes: tuple[Episode, ...]

    def __len__(self) -> int:
        return len(self.reward)


class BatchMemory:
    """Joins fragments; large arrays that are made anew for each batch would cost as many page faults each time."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, tuple[int, ...], Any], NDArray[Any]] = {}
        self._used = 0

    def join(self, fragments: Sequence[Fragment]) -> FragmentBatch:
        """The fragments as one batch, in the order given.

        Raises:
            DivergedError: a reward is infinite or NaN.
        """
        self._used = 0
        first = fragments[0]
        n_steps = first.reward.shape[1]
        offsets = np.cumsum([0, *(fragment.reward.size for fragment in fragments)])
        finals = [fragment.final_obs for fragment in fragments if fragment.final_obs is not None]
        batch = FragmentBatch(
            n_steps,
            obs=map_nested(self._rows, *(fragment.obs for fragment in fragments)),
            action=self._rows(*(fragment.action for fragment in fragments)),
            reward=self._rows(*(fragment.reward for fragment in fragments)),
            terminated=self._rows(*(fragment.terminated for fragment in fragments)),
            truncated=self._rows(*(fragment.truncated for fragment in fragments)),
            policy={name: self._rows(*(fragment.policy[name] for fragment in fragments)) for name in first.policy},
            last_obs=None if first.last_obs is None else map_nested(self._joined, *(f.last_obs for f in fragments)),
            final_rows=np.concatenate([f.final_rows + start for f, start in zip(fragments, offsets, strict=False)]),
            final_obs=map_nested(lambda *parts: np.concatenate(parts), *finals) if finals else None,
            versions=np.array([fragment.version for fragment in fragments], np.int64),
            episodes=tuple(episode for fragment in fragments for episode in fragment.episodes),
        )
        if not np.isfinite(batch.reward).all():
            _refuse_rewards(fragments)
        return batch

    def _rows(self, *parts: NDArray[Any]) -> NDArray[Any]:
        joined = self._joined(*parts)
        return joined.reshape(-1, *joined.shape[2:])

    def _joined(self, *parts: NDArray[Any]) -> NDArray[Any]:
        if len(parts) == 1 and parts[0].flags.writeable:
            return parts[0]
        first = parts[0]
        out = self._memory((sum(map(len, parts)), *first.shape[1:]), first.dtype)
        return np.concatenate(parts, out=out)

    def _memory(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """The array that the same place of earlier batches had."""
        self._used += 1
        key = self._used, shape, dtype
        if key not in self._arrays:
            self._arrays[key] = np.empty(shape, dtype)
        return self._arrays[key]


def _refuse_rewards(fragments: Sequence[Fragment]) -> None:
    for fragment in fragments:
        for i, t in np.argwhere(~np.isfinite(fragment.reward)):
            raise DivergedError(
                f"environment {i} of group {fragment.task.group} gave the reward {fragment.reward[i, t]} at step {t} "
                f"of its fragment {fragment.task.round}; nothing was learned from it: clip or repair rewards in the "
                "environment, and go on from the last checkpoint"
            )
