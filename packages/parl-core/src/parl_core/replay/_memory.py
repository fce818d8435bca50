"""The replay memory of off-policy algorithms: any observation, both ends of each transition stored.

`BootstrapMasks` say which heads of a model learn from which transitions:

    memory.sample(n).index ──> BootstrapMasks.of ──> mask [n, heads] ──> BootstrappedDDPG.learn(..., mask=mask)

A mask belongs to a slot of the memory, so it stays with its transition. A transition that
overwrites the slot gets the same mask, which is as random as a new one: masks do not depend on transitions.

`HindsightReplayMemory` draws transitions with goals that were achieved later:

    steps of one episode   t   t+1   t+2   ...   T
    drawn                  ^
    its goal becomes       the goal achieved by one of these steps, drawn uniformly (the strategy "future")

Rewards are computed again for the new goal, and so are flags of termination if the environment can.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from parl_core._array_files import check_kinds, check_same_rows, read_snapshot, write_snapshot
from parl_core._nested import GOAL_KEYS
from parl_core.checks import check_fraction, check_int, check_positive
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.replay._priorities import Prioritized
from parl_core.replay._ring import check_rewards
from parl_core.replay._sampled_ring import ReplayBatch, SampledRing
from parl_core.seeding import make_generator

__all__ = ["BootstrapMasks", "HindsightReplayMemory", "Outcome", "ReplayMemory", "outcome_of"]


PARL_KEYS = {"obs", "action", "reward", "terminal", "next_obs", "other"}

DISTRIBUTIONS = ("bernoulli", "poisson")


class ReplayMemory(SampledRing):
    """The newest `max_size` transitions, and batches drawn from them.

        memory = ReplayMemory(max_size=100_000, obs_dim=4, act_dim=0, seed=1)
        memory.append(obs, action, reward, next_obs, terminated, truncated)
        batch = memory.sample(256)          # batch.obs [256, 4], batch.action [256], ...

    `FrameReplayMemory` holds stacked images in a fraction of the space. Not thread-safe: one thread appends and
    samples, or the program holds a lock.

    Args:
        max_size: Capacity in transitions.
        obs_dim: Size or shape of one observation; `0` or `()` for a single number.
        act_dim: Size or shape of one action; `0` for a single discrete one.
        obs_dtype: Dtype in which observations are stored and returned, such as `numpy.uint8` for images.
        act_dtype: Dtype of actions; default float32, or int32 when `act_dim` is 0.
        n_envs: Number of environments that take turns: with n-step sampling, every `append_batch` has one transition of
            each, always in the same order.
        n_step: The number of steps whose rewards are summed when sampling (1: one-step transitions).
        gamma: Discount per step, in [0, 1]; needed when `n_step` is above 1.
        sampling: `Prioritized(...)`, or None for uniform sampling.
        seed: The seed of the draws; or a generator to share. None draws the seed from numpy's global generator, so that
            `np.random.seed` before this call fixes all draws.
        directory: A directory whose memory-mapped files keep the arrays, instead of memory. After `close()`, a later
            program with the same arguments continues with the contents.

    Raises:
        HyperparameterError: An argument is out of its range.
        CheckpointError: The directory holds something else, or a memory that was not closed.
    """

    def __init__(
        self,
        max_size: int,
        obs_dim: int | Sequence[int],
        act_dim: int | Sequence[int],
        *,
        obs_dtype: DTypeLike = np.float32,
        act_dtype: DTypeLike | None = None,
        n_envs: int = 1,
        n_step: int = 1,
        gamma: float | None = None,
        sampling: Prioritized | None = None,
        seed: int | np.random.Generator | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            max_size,
            obs_dim,
            act_dim,
            obs_dtype=obs_dtype,
            act_dtype=act_dtype,
            n_envs=n_envs,
            n_step=n_step,
            gamma=gamma,
            sampling=sampling,
            seed=seed,
            directory=directory,
        )
        self.obs = self._folder.array("obs", (max_size, *self._obs_shape), obs_dtype)
        self.next_obs = self._folder.array("next_obs", (max_size, *self._obs_shape), obs_dtype)
        self._attach()

    def append(
        self,
        obs: ArrayLike,
        act: ArrayLike,
        reward: float,
        next_obs: ArrayLike,
        terminal: bool,
        truncated: bool = False,
    ) -> None:
        """Store one transition.

        Args:
            obs: The observation that was acted on.
            act: The action.
            reward: The reward of the action.
            next_obs: The observation after it; at the end of an episode the final one, not that after the reset.
            terminal: Whether the episode ended for good (Gymnasium's `terminated`).
            truncated: Whether the episode was cut short, by a time limit for instance.

        Raises:
            ValueError: Obs, next_obs or act does not have the memory's shape, or has numbers that the memory cannot
                store, or the reward is NaN or infinite. Nothing is stored, but a full memory may have lost its oldest
                transition.
        """
        end = self._end
        slot = end % self.max_size
        try:
            # len() takes a fifth of the time of .shape. numpy would broadcast a single number to two rows, and rejects
            # other numbers of axes itself.
            if (
                not self._flat
                or len(obs) + len(next_obs) != self._two_rows  # type: ignore[arg-type]
                or (self._act_len and len(act) != self._act_len)  # type: ignore[arg-type]
                or not isfinite(reward)
            ):
                self._check_shapes(obs, act, reward, next_obs)
            self.obs[slot] = obs
            self.next_obs[slot] = next_obs
            self.action[slot] = act
            if self._one_choice and self.action[slot] != act:
                raise ValueError("numpy has dropped a fraction, or wrapped")
            self._reward_at[slot] = reward
            self._terminal_at[slot] = terminal
            self._truncated_at[slot] = truncated
        except (OverflowError, TypeError, ValueError) as error:
            self._floor = max(self._floor, end - self.max_size + 1)  # the slot may hold half of each
            raise ValueError(self._misfit(obs, act, reward, next_obs)) from error
        self._end = end + 1

    def append_batch(
        self,
        obs: ArrayLike,
        act: ArrayLike,
        reward: ArrayLike,
        next_obs: ArrayLike,
        terminal: ArrayLike,
        truncated: ArrayLike | None = None,
    ) -> None:
        """Store `n` transitions at once: a step of a vector of environments, or a piece of a dataset.

        Args:
            obs: `[n, *obs]`.
            act: `[n]` or `[n, *act]`.
            reward: `[n]`.
            next_obs: `[n, *obs]`; where an episode ended the final observation, not that after the reset.
            terminal: `[n]` bool.
            truncated: `[n]` bool; None means none was.

        Raises:
            ValueError: The arrays have different lengths, `n_envs` does not divide the length, a shape does not fit,
                the memory cannot store a number, or a reward is NaN or infinite; nothing is stored. If an array holds
                anything but numbers, a full memory may have lost its oldest transitions.
        """
        self._append_columns((obs, next_obs, act, reward, terminal), truncated, {})

    def _append_columns(
        self, columns: Sequence[ArrayLike], truncated: ArrayLike | None, others: Mapping[str, ArrayLike]
    ) -> None:
        """Store `(obs, next_obs, act, reward, terminal)` of `append_batch`, and others in attributes of their names."""
        given = [np.asarray(array) for array in columns]
        given.append(np.zeros(len(given[3]), np.bool_) if truncated is None else np.asarray(truncated))
        check_rewards(given[3])
        stored = [self.obs, self.next_obs, self.action, self.reward, self.terminal, self.truncated]
        stored += [getattr(self, name) for name in others]
        self._append_rows(stored, [*given, *map(np.asarray, others.values())])

    def load_from_d4rl(self, dataset: Mapping[str, ArrayLike]) -> None:
        """Replace the contents by a dataset of D4RL's form.

        Args:
            dataset: Arrays `observations`, `next_observations`, `actions`, `rewards`, `terminals`, and optionally
                `timeouts`, which become the truncation flags. They are copied; appending continues as usual.

        Raises:
            HyperparameterError: The dataset has more rows than `max_size`.
            KeyError: One of the arrays is missing.
            ValueError: A shape does not fit, or a reward is NaN or infinite.

        If this raises, the contents do not change.
        """
        keys = ("observations", "actions", "rewards", "next_observations", "terminals")
        if missing := [key for key in keys if key not in dataset]:
            raise KeyError(f"the dataset has no {missing}; it has {sorted(dataset)}")
        obs, act, reward, next_obs, terminal = (np.asarray(dataset[key]) for key in keys)
        n = len(reward)
        if n > self.max_size:
            raise HyperparameterError(
                f"the dataset has {n} transitions, this memory holds {self.max_size}: create it with max_size={n}"
            )
        timeouts = np.asarray(dataset["timeouts"], np.bool_).reshape(n) if "timeouts" in dataset else None
        # Some datasets have an extra axis for single numbers.
        act = act.reshape(n, *self._act_shape)
        self.append_batch(obs, act, reward.reshape(n), next_obs, terminal.reshape(n).astype(np.bool_), timeouts)
        self._floor = self._end - n

    def save(self, pathname: str | os.PathLike[str]) -> None:
        """Write everything to one `.npz` file, under its name only when it is complete.

        The file has PARL's arrays `obs`, `action`, `reward`, `terminal`, `next_obs` and `other` (size and position),
        and in addition to PARL's `truncated`, the random generator and the priorities.

        Raises:
            OSError: It cannot be written; an older file of that name is untouched.
        """
        used = min(self._end, self.max_size)
        columns = {name: getattr(self, name)[:used] for name in self._column_names()}
        other = np.array([self.size(), self._end % self.max_size], np.int64)
        write_snapshot(pathname, {**columns, "other": other, **self._state_columns(used)})

    def load(self, pathname: str | os.PathLike[str]) -> None:
        """Replace the contents by those of a file that `save`, here or in PARL, wrote.

        With the same `max_size` everything is restored, including the draws to come; a smaller memory takes the newest
        transitions.

        Raises:
            CheckpointError: The file is missing, damaged, or has other shapes or dtypes; the contents do not change.
        """
        names = [name for name in self._column_names() if name != "truncated"]  # files of PARL lack it
        data = read_snapshot(pathname, PARL_KEYS.union(names))
        check_same_rows(pathname, data, names)
        shaped = {name: getattr(self, name) for name in names if name not in ("reward", "terminal")}
        for name in shaped:
            if data[name].shape[1:] != getattr(self, name).shape[1:]:
                raise CheckpointError(
                    f"{pathname} holds {name} of shape {list(data[name].shape[1:])}, this memory stores "
                    f"{list(getattr(self, name).shape[1:])}: create it with the shapes of the file"
                )
        check_kinds(pathname, data, shaped)
        slots = self._restore_columns(data, str(pathname))
        for name in names:
            getattr(self, name)[: len(slots)] = data[name][slots]

    def _column_names(self) -> tuple[str, ...]:
        return (*super()._column_names(), "obs", "next_obs")

    def _obs_buffers(self, n: int) -> tuple[NDArray[Any], NDArray[Any]]:
        shape = (n, *self._obs_shape)
        return np.empty(shape, self.obs.dtype), np.empty(shape, self.obs.dtype)

    def _fill_obs(self, out: ReplayBatch, index: NDArray[np.int64], last: NDArray[np.int64]) -> None:
        self.obs.take(index, 0, out.obs, "clip")
        self.next_obs.take(last, 0, out.next_obs, "clip")


class BootstrapMasks:
    """Weights of each transition for each head (Osband et al. 2016, section 3 and appendix on masks).

    Args:
        max_size: Slots of the memory.
        heads: Number of heads.
        share: The rate of each head's draws: for `"bernoulli"` the probability that a head learns from a transition, in
            (0, 1]; for `"poisson"` the mean number of times, above 0; 1 is the bootstrap (sampling with replacement) of
            a stream.
        distribution: `"bernoulli"` or `"poisson"`.
        seed: The seed of the draws; or a generator to share.

    Raises:
        HyperparameterError: An argument is out of its range.
    """

    def __init__(
        self,
        max_size: int,
        heads: int,
        share: float = 0.5,
        distribution: str = "bernoulli",
        seed: int | np.random.Generator | None = None,
    ) -> None:
        size = (check_int("max_size", max_size), check_int("heads", heads))
        rng = make_generator(seed)
        if distribution == "bernoulli":
            if check_fraction("share", share) == 0.0:
                raise HyperparameterError("share must be above 0, else no head learns; a usual value is 0.5")
            counts: NDArray[np.uint8] = (rng.random(size, np.float32) < share).astype(np.uint8)
        elif distribution == "poisson":
            counts = np.minimum(rng.poisson(check_positive("share", share), size), 255).astype(np.uint8)
        else:
            named = " or ".join(map(repr, DISTRIBUTIONS))
            raise HyperparameterError(f"distribution must be {named}, got {distribution!r}")
        self._counts = counts

    @property
    def heads(self) -> int:
        """The number of heads."""
        return int(self._counts.shape[1])

    def of(self, index: ArrayLike) -> NDArray[np.float32]:
        """Return the masks `[n, heads]` of the slots `[n]`, such as `batch.index`.

        Raises:
            IndexError: There is no such slot.
        """
        slots = np.asarray(index, np.int64)
        if slots.size and slots.min() < 0:
            raise IndexError(f"slots are 0 to {len(self._counts) - 1}, got {slots.min()}: pass the index of a batch")
        return self._counts[slots].astype(np.float32)


Outcome = Callable[[NDArray[Any], NDArray[Any]], tuple[NDArray[Any], NDArray[Any] | None]]
"""Returns rewards `[n]` of achieved and desired goals `[n, *goal]`, and whether episodes terminate there (or None)."""

_RUNNING = -1
_MAY_DIFFER = 0.1  # share of checked rows: goals stored as float32 may lie on the other side of a threshold


def outcome_of(env: Any) -> Outcome:
    """Return a function of an environment's rewards and terminations for goals, by the methods of Gymnasium's GoalEnv.

    These are `compute_reward(achieved_goal, desired_goal, info)` and, if there is one, `compute_terminated(...)`;
    `info` is an empty dictionary. A method that does not take arrays of goals is called for each goal.

    Raises:
        HyperparameterError: The environment has no `compute_reward`.
    """
    reward_of, terminated_of = _method(env, "compute_reward"), _method(env, "compute_terminated")
    if reward_of is None:
        raise HyperparameterError(
            "hindsight needs an environment with compute_reward(achieved_goal, desired_goal, info) (Gymnasium's "
            f"GoalEnv); {type(getattr(env, 'unwrapped', env)).__name__} has none"
        )

    def outcome(achieved: NDArray[Any], desired: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        reward = np.asarray(_of_each(reward_of, achieved, desired), np.float64)
        if terminated_of is None:
            return reward, None
        return reward, np.asarray(_of_each(terminated_of, achieved, desired), np.bool_)

    return outcome


def _method(env: Any, name: str) -> Callable[..., Any] | None:
    """Return the outermost method of this name of an environment or a wrapped one; None if there is none."""
    while env is not None:
        if name in vars(env) or hasattr(type(env), name):
            found: Callable[..., Any] = getattr(env, name)
            return found
        env = vars(env).get("env")
    return None


def _of_each(compute: Callable[..., Any], achieved: NDArray[Any], desired: NDArray[Any]) -> Any:
    """Return the results of a function for goals, called once if it returns one number per row."""
    rows = len(achieved)
    # any exception: the function may take single goals; otherwise the call below raises it again
    with suppress(Exception):
        found = np.asarray(compute(achieved, desired, {}))
        if found.shape in ((rows,), (rows, 1)):
            return found.reshape(rows)
    try:
        each = np.asarray([compute(one, other, {}) for one, other in zip(achieved, desired, strict=True)])
    except Exception as error:
        error.add_note("hindsight calls it with the goals of other steps and an empty info, which no memory holds")
        raise
    if each.size != rows:
        name = getattr(compute, "__name__", "the function")
        raise HyperparameterError(f"{name} must return one number per goal, got shape {each.shape} for {rows} goals")
    return each.reshape(rows)


class HindsightReplayMemory(ReplayMemory):
    """A memory with hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495, section 3).

    Deviations from the paper: the goal of a transition is chosen when it is drawn, not when it is stored, so that one
    transition can have many; running episodes also supply goals.

    Args:
        max_size: As in `ReplayMemory`, like `act_dim`, `n_envs` and `seed`.
        obs_dim: `()`: observations are records.
        act_dim: As in `ReplayMemory`.
        obs_dtype: A record with the fields `observation`, `achieved_goal` and `desired_goal`, as
            `parl_core.training.off_policy.storage_of` makes it of a space.
        outcome: The function that computes rewards for goals, as the environment does.
        share: Fraction of the drawn transitions that get another goal, in [0, 1]; default 0.8 (paper, k = 4 of 5).
        n_envs: As in `ReplayMemory`.
        seed: As in `ReplayMemory`.

    Raises:
        HyperparameterError: An argument is out of its range, or observations have no goals.
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
        self._followed = 0  # transitions before this number have been checked
        self._first = np.arange(n_envs)  # number of the first transition of each environment's running episode
        self._is_checked = False

    def cut_episodes(self) -> dict[str, Any]:
        """Mark the newest transition of every environment as truncated: see `ReplayMemory.cut_episodes`."""
        place = super().cut_episodes()
        self._begin_following()
        return place

    def put_rows(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Write back the result of `rows_since`: see `ReplayMemory.put_rows`."""
        super().put_rows(rows)
        self._begin_following()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `get_state`: see `ReplayMemory.set_state`."""
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
        """Raise an error if computed rewards differ from those of the steps."""
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
        """Record the ends of episodes of all transitions that came since."""
        if self._followed < self._start:
            self._begin_following()
        new = np.arange(self._followed, self._end)
        if not new.size:
            return
        slots, stride = new % self.max_size, self.n_envs
        self._last[slots] = _RUNNING
        for number in new[self.terminal[slots] | self.truncated[slots]]:
            oldest = self._start + (number - self._start) % stride  # older ones have left their slots to newer steps
            first = max(int(self._first[number % stride]), oldest)
            self._last[np.arange(first, number + 1, stride) % self.max_size] = number
            self._first[number % stride] = number + stride
        self._followed = self._end
