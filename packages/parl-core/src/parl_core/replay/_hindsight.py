"""The replay memory of goals: drawn transitions are told that they were meant to reach what was reached later.

    steps of one episode   t   t+1   t+2   ...   T
    drawn                  ^
    its goal becomes       what one of these steps has achieved, drawn uniformly (the strategy "future")

Rewards are computed anew for the new goal, and flags of termination where the environment says how.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from parl_core._nested import GOAL_KEYS
from parl_core.checks import check_fraction
from parl_core.errors import HyperparameterError
from parl_core.replay._memory import ReplayMemory
from parl_core.replay._sampled_ring import ReplayBatch

__all__ = ["HindsightReplayMemory", "Outcome", "outcome_of"]

Outcome = Callable[[NDArray[Any], NDArray[Any]], tuple[NDArray[Any], NDArray[Any] | None]]
"""Returns rewards `[n]` of achieved and desired goals `[n, *goal]`, and whether episodes terminate there (or None)."""

_RUNNING = -1
_MAY_DIFFER = 0.1  # of the rows looked at: goals stored as float32 may lie on the other side of a threshold


def outcome_of(env: Any) -> Outcome:
    """Return what computes an environment's rewards and terminations for goals, by the methods of Gymnasium's GoalEnv.

    These are `compute_reward(achieved_goal, desired_goal, info)` and, if it has it, `compute_terminated(...)` likewise;
    `info` is an empty dictionary. One that does not take arrays of goals is asked for each goal.

    Raises:
        HyperparameterError: the environment has no `compute_reward`.
    """
    reward_of, terminated_of = _method(env, "compute_reward"), _method(env, "compute_terminated")
    if reward_of is None:
        raise HyperparameterError(
            "hindsight needs an environment with compute_reward(achieved_goal, desired_goal, info), which "
            f"{type(getattr(env, 'unwrapped', env)).__name__} has not (Gymnasium's GoalEnv)"
        )

    def outcome(achieved: NDArray[Any], desired: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        reward = np.asarray(_of_each(reward_of, achieved, desired), np.float64)
        if terminated_of is None:
            return reward, None
        return reward, np.asarray(_of_each(terminated_of, achieved, desired), np.bool_)

    return outcome


def _method(env: Any, name: str) -> Callable[..., Any] | None:
    """Return a method of an environment or of one that it wraps, the outermost; None if there is none."""
    while env is not None:
        if name in vars(env) or hasattr(type(env), name):
            found: Callable[..., Any] = getattr(env, name)
            return found
        env = vars(env).get("env")
    return None


def _of_each(compute: Callable[..., Any], achieved: NDArray[Any], desired: NDArray[Any]) -> Any:
    """Return what a function says of goals, asked at once where it answers with one number per row."""
    with suppress(Exception):  # any: of one that takes single goals; of another one the same is raised below
        found = np.asarray(compute(achieved, desired, {}))
        if found.shape == (len(achieved),):
            return found
    return [compute(one, other, {}) for one, other in zip(achieved, desired, strict=True)]


class HindsightReplayMemory(ReplayMemory):
    """A memory with hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495, section 3).

    Deviations from the paper: which goal a transition gets is decided when it is drawn, not when it is stored, so that
    one transition gets many; episodes that still run give goals, too.

    Args:
        max_size: as in `ReplayMemory`, like `act_dim`, `n_envs` and `seed`.
        obs_dim: `()`: observations are records.
        act_dim: likewise.
        obs_dtype: a record with the fields `observation`, `achieved_goal` and `desired_goal`, as
            `parl_core.training.off_policy.storage_of` makes it of a space.
        outcome: computes rewards of goals, as the environment does.
        share: of the drawn transitions that get another goal, in [0, 1]; default 0.8 (paper, k = 4 of 5).
        n_envs: likewise.
        seed: likewise.

    Raises:
        HyperparameterError: an argument is out of its range, or observations have no goals.
    """

    def __init__(
        self,
        max_size: int,
        obs_dim: int | Sequence[int],
        act_dim: int | Sequence[int],
        *,
        obs_dtype: DTypeLike,
        outcome: Outcome,
        share: float = 0.8,
        n_envs: int = 1,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        fields: Mapping[str, Any] = np.dtype(obs_dtype).fields or {}
        lacking = [name for name in GOAL_KEYS if name not in fields]
        if lacking:
            raise HyperparameterError(
                f"hindsight needs observations with the parts {', '.join(GOAL_KEYS)} (Gymnasium's GoalEnv); "
                f"{', '.join(lacking)} is missing in {np.dtype(obs_dtype)}"
            )
        if fields["achieved_goal"][0] != fields["desired_goal"][0]:
            raise HyperparameterError(
                f"achieved_goal is {fields['achieved_goal'][0]} and desired_goal {fields['desired_goal'][0]}: a goal "
                "that was achieved takes the place of the desired one, so they must be alike"
            )
        super().__init__(max_size, obs_dim, act_dim, obs_dtype=obs_dtype, n_envs=n_envs, seed=seed)
        self.share = check_fraction("share", share)
        self._outcome = outcome
        self._last = np.full(max_size, _RUNNING, np.int64)  # number of the last transition of each one's episode
        self._followed = 0  # transitions before this number have been looked at
        self._first = np.arange(n_envs)  # number of the first transition of each environment's running episode
        self._is_checked = False

    def cut_episodes(self) -> dict[str, Any]:
        """Mark the newest transition of every environment as truncated: see `ReplayMemory.cut_episodes`."""
        place = super().cut_episodes()
        self._begin_following()
        return place

    def put_rows(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Write back what `rows_since` returned: see `ReplayMemory.put_rows`."""
        super().put_rows(rows)
        self._begin_following()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` returned: see `ReplayMemory.set_state`."""
        super().set_state(state)
        self._begin_following()

    def load_from_d4rl(self, dataset: Mapping[str, ArrayLike]) -> None:
        """Replace the contents by a dataset: see `ReplayMemory.load_from_d4rl`."""
        super().load_from_d4rl(dataset)
        self._begin_following()

    def _restore_columns(self, data: dict[str, NDArray[Any]], source: str) -> NDArray[np.int64]:
        slots = super()._restore_columns(data, source)
        self._begin_following()
        return slots

    def _fill(self, out: ReplayBatch, index: NDArray[np.int64], weight: NDArray[np.float32] | None) -> ReplayBatch:
        batch = super()._fill(out, index, weight)
        if not self._is_checked:
            self._check_outcome(batch)
        self._relabel(batch)
        return batch

    def _relabel(self, batch: ReplayBatch) -> None:
        self._follow()
        rows = np.flatnonzero(self._rng.random(len(batch.index)) < self.share)
        if not rows.size:
            return
        slots, stride, start = batch.index[rows], self.n_envs, self._start
        number = start + (slots - start) % self.max_size
        newest = self._end - 1 - (self._end - 1 - number) % stride
        last = np.where(self._last[slots] == _RUNNING, newest, self._last[slots])
        steps = (last - number) // stride + 1
        later = number + stride * np.floor(self._rng.random(len(rows)) * steps).astype(np.int64)
        goal = self.next_obs["achieved_goal"][later % self.max_size]
        batch.obs["desired_goal"][rows] = goal
        batch.next_obs["desired_goal"][rows] = goal
        reward, terminal = self._outcome(batch.next_obs["achieved_goal"][rows], goal)
        batch.reward[rows] = reward
        if terminal is not None:
            batch.terminal[rows] = terminal

    def _check_outcome(self, batch: ReplayBatch) -> None:
        """Refuse rewards that are computed otherwise than those of the steps were."""
        self._is_checked = True
        found, _ = self._outcome(batch.next_obs["achieved_goal"], batch.next_obs["desired_goal"])
        differ = np.abs(found - batch.reward) > 1e-3 * (1.0 + np.abs(batch.reward))
        if differ.mean() > _MAY_DIFFER:
            row = int(np.flatnonzero(differ)[0])
            raise HyperparameterError(
                f"compute_reward gives {found[row]} for a step whose reward was {batch.reward[row]} "
                f"({differ.sum()} of {len(differ)} steps differ): hindsight computes rewards anew, so the "
                "environment's step has to give those of compute_reward(achieved_goal, desired_goal, info), without a "
                "wrapper that changes them and without anything in info"
            )

    def _begin_following(self) -> None:
        self._last[:] = _RUNNING
        self._followed = self._start
        self._first = self._start + (np.arange(self.n_envs) - self._start) % self.n_envs

    def _follow(self) -> None:
        """Note of all transitions that came since where their episodes end."""
        if self._followed < self._start:
            self._begin_following()
        new = np.arange(self._followed, self._end)
        if not new.size:
            return
        slots, stride = new % self.max_size, self.n_envs
        self._last[slots] = _RUNNING
        for number in new[self.terminal[slots] | self.truncated[slots]]:
            first = max(int(self._first[number % stride]), number - (self.max_size - stride))
            self._last[np.arange(first, number + 1, stride) % self.max_size] = number
            self._first[number % stride] = number + stride
        self._followed = self._end
