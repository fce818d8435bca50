"""The ring that every replay memory is: slots written in turn, the oldest overwritten, batches drawn from the rest.

    slot   0    1    2    3    4    5    ...
    env    0    1    0    1    0    1            n_envs = 2: environments take turns, a step fills two slots
           └─ start % max_size ... end % max_size ─┘

Here live actions, rewards and flags, drawing, n-step windows, saving and loading. How observations are kept is the
subclasses' business: `memory` keeps both ends of each transition, `frames` keeps single frames.
"""

import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from parl_core.checks import check_fraction, check_int
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.replay.batch import ReplayBatch
from parl_core.replay.files import ArrayFolder
from parl_core.replay.n_step import NStep, n_step_windows
from parl_core.replay.priorities import Prioritized, PrioritySampler
from parl_core.seeding import generator_from_json, generator_to_json, make_generator

__all__ = ["Ring", "shape_of"]


def shape_of(dim: int | Sequence[int]) -> tuple[int, ...]:
    """Return the shape that `obs_dim` or `act_dim` means: 4 is `(4,)`, 0 is a single number."""
    if isinstance(dim, (int, np.integer)):
        return (int(dim),) if dim else ()
    return tuple(int(size) for size in dim)


class Ring:
    """See `ReplayMemory` and `FrameReplayMemory`, which document the arguments."""

    def __init__(
        self,
        max_size: int,
        obs_dim: int | Sequence[int],
        act_dim: int | Sequence[int],
        *,
        obs_dtype: DTypeLike,
        act_dtype: DTypeLike | None,
        n_envs: int,
        n_step: int,
        gamma: float | None,
        sampling: Prioritized | None,
        seed: int | np.random.Generator | None,
        directory: str | os.PathLike[str] | None,
    ) -> None:
        check_int("max_size", max_size)
        check_int("n_envs", n_envs)
        check_int("n_step", n_step)
        if max_size % n_envs:
            raise HyperparameterError(
                f"max_size must be a multiple of n_envs={n_envs}, got {max_size}: use {max_size + -max_size % n_envs}"
            )
        if n_step > 1:
            check_fraction("gamma (which n_step > 1 needs)", gamma)
        self.max_size = max_size
        self.obs_dim = obs_dim
        self.act_dim = act_dim
        self.n_envs = n_envs
        self.n_step = n_step
        self.gamma = gamma
        self._obs_shape = shape_of(obs_dim)
        self._obs_dtype = np.dtype(obs_dtype)
        self._act_shape = shape_of(act_dim)
        if act_dtype is None:
            act_dtype = np.float32 if self._act_shape else np.int32
        self._folder = ArrayFolder(directory)
        self.action = self._folder.array("action", (max_size, *self._act_shape), act_dtype)
        self.reward = self._folder.array("reward", (max_size,), np.float32)
        self.terminal = self._folder.array("terminal", (max_size,), np.bool_)
        self.truncated = self._folder.array("truncated", (max_size,), np.bool_)
        # Setting one number through a memoryview takes half as long as through the array.
        self._reward_at = cast("memoryview[float]", self.reward.data)
        self._terminal_at = cast("memoryview[bool]", self.terminal.data)
        self._truncated_at = cast("memoryview[bool]", self.truncated.data)
        self._end = (
            0  # number of the next transition, counted from the first ever appended; its slot is _end % max_size
        )
        self._floor = 0  # transitions before this number were dropped, though their slots may not be written again yet
        self._rng = make_generator(seed)
        self._sampler = None if sampling is None else PrioritySampler(sampling, max_size)
        self._buffers: dict[int, ReplayBatch] = {}

    # -- how much there is ---------------------------------------------------------------------------------------------

    @property
    def _start(self) -> int:
        """The number of the oldest transition held; computed when asked, so that `append` need not care."""
        return max(self._floor, self._end - self.max_size)

    def size(self) -> int:
        """Return how many transitions can be drawn."""
        return self._end - self._start

    def __len__(self) -> int:
        return self._end - self._start

    # -- drawing -------------------------------------------------------------------------------------------------------

    def make_index(self, batch_size: int) -> NDArray[np.int64]:
        """Draw slots `[batch_size]`, with replacement, for `sample_batch_by_index`.

        Raises:
            ValueError: the memory is empty.
        """
        start = self._start
        size = self._end - start
        if size == 0:
            raise ValueError("cannot sample from an empty replay memory: append transitions first")
        if self._sampler is not None:
            self._sampler.follow(start, self._end)
            return self._sampler.draw(batch_size, self._rng)
        index = self._rng.integers(size, size=batch_size)
        if size < self.max_size and start:  # a full ring is valid everywhere
            index = (index + start) % self.max_size
        return index

    def sample(self, batch_size: int, *, beta: float | None = None) -> ReplayBatch:
        """Draw a batch into buffers that the next call with the same `batch_size` overwrites.

        Nothing is allocated after the first call, so large batches cause no page faults; `.copy()` what must last.

        Args:
            batch_size: number of transitions, drawn with replacement.
            beta: exponent of the importance-sampling weights for this call; default: that of the settings.

        Raises:
            ValueError: the memory is empty.
        """
        index = self.make_index(batch_size)
        weight = None if self._sampler is None else self._sampler.weights(index, beta)
        buffers = self._buffers.get(batch_size)
        if buffers is None:
            buffers = self._buffers[batch_size] = self._new_buffers(batch_size)
        return self._fill(buffers, index, weight)

    def sample_batch(self, batch_size: int) -> tuple[NDArray[Any], ...]:
        """Draw `(obs, action, reward, next_obs, terminal)` into new arrays, as PARL 2.x does.

        `sample` is faster and also returns truncation, discounts, weights and indices.
        """
        return self.sample_batch_by_index(self.make_index(batch_size))

    def sample_batch_by_index(self, batch_idx: ArrayLike) -> tuple[NDArray[Any], ...]:
        """Return `(obs, action, reward, next_obs, terminal)` of given slots `[n]`, in new arrays.

        Raises:
            IndexError: a slot holds no transition.
        """
        index = np.asarray(batch_idx, np.int64).reshape(-1)
        age = (index - self._start) % self.max_size
        if index.size and (index.min() < 0 or index.max() >= self.max_size or age.max() >= self.size()):
            raise IndexError(
                f"batch_idx has slots from {index.min()} to {index.max()}; this memory holds {self.size()} transitions "
                f"from slot {self._start % self.max_size} on: draw with make_index()"
            )
        batch = self._fill(self._new_buffers(len(index)), index, None)
        return batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminal

    def update_priorities(self, index: NDArray[np.int64], td_error: ArrayLike) -> None:
        """Set the priorities of drawn transitions from their new TD errors.

        Args:
            index: `batch.index`, `[n]`.
            td_error: `[n]`, of any sign.

        Raises:
            HyperparameterError: the memory samples uniformly.
            ValueError: an error is not finite, or the shapes differ.
        """
        if self._sampler is None:
            raise HyperparameterError("this memory samples uniformly: create it with sampling=Prioritized()")
        self._sampler.follow(self._start, self._end)
        self._sampler.update(index, np.asarray(td_error))

    def _new_buffers(self, n: int) -> ReplayBatch:
        obs, next_obs = self._obs_buffers(n)
        return ReplayBatch(
            obs=obs,
            action=np.empty((n, *self._act_shape), self.action.dtype),
            reward=np.empty(n, np.float32),
            next_obs=next_obs,
            terminal=np.empty(n, np.bool_),
            truncated=np.empty(n, np.bool_),
            index=np.empty(0, np.int64),
            discount=None,
            weight=None,
        )

    def _fill(self, out: ReplayBatch, index: NDArray[np.int64], weight: NDArray[np.float32] | None) -> ReplayBatch:
        # The slots were drawn or checked by us; mode "clip" spares take() a second look and a temporary copy.
        if self.n_step == 1:
            reward, last, discount = out.reward, index, None
            self.reward.take(index, 0, reward, "clip")
        else:
            reward, last, discount = self._windows(index)
        self.action.take(index, 0, out.action, "clip")
        self.terminal.take(last, 0, out.terminal, "clip")
        self.truncated.take(last, 0, out.truncated, "clip")
        self._fill_obs(out, index, last)
        return ReplayBatch(
            out.obs, out.action, reward, out.next_obs, out.terminal, out.truncated, index, discount, weight
        )

    def _windows(self, index: NDArray[np.int64]) -> NStep:
        assert self.gamma is not None  # checked by the constructor
        return n_step_windows(
            index,
            self.reward,
            self.terminal,
            self.truncated,
            steps=self.n_step,
            gamma=self.gamma,
            stride=self.n_envs,
            end=self._end,
        )

    # -- what subclasses add -------------------------------------------------------------------------------------------

    def _obs_buffers(self, n: int) -> tuple[NDArray[Any], NDArray[Any]]:
        raise NotImplementedError

    def _fill_obs(self, out: ReplayBatch, index: NDArray[np.int64], last: NDArray[np.int64]) -> None:
        raise NotImplementedError

    # -- writing and saving, shared by subclasses ----------------------------------------------------------------------

    def _append_rows(self, stored: list[NDArray[Any]], given: list[NDArray[Any]]) -> None:
        """Write `given` `[n, ...]` to the next n slots of `stored` `[max_size, ...]`; at most `max_size` rows last."""
        n = len(given[-1])
        for column, rows in zip(stored, given, strict=True):
            if rows.shape != (n, *column.shape[1:]):
                raise ValueError(
                    f"got an array of shape {list(rows.shape)} where {[n, *column.shape[1:]]} is needed: "
                    "all arrays of a batch have one row for each transition"
                )
        skipped = max(n - self.max_size, 0)
        begin = (self._end + skipped) % self.max_size
        middle = min(n, skipped + self.max_size - begin)  # where the ring's end is reached
        for column, rows in zip(stored, given, strict=True):
            column[begin : begin + middle - skipped] = rows[skipped:middle]
            if middle < n:
                column[: n - middle] = rows[middle:]
        self._end += n

    def _extra_columns(self, used: int) -> dict[str, NDArray[Any]]:
        """Return what `_restore_extra` needs, as arrays of a snapshot whose columns have `used` rows."""
        extra: dict[str, NDArray[Any]] = {
            "truncated": self.truncated[:used],
            "place": np.array([self._start, self._end, self.max_size, self.n_envs]),
            "rng": np.array(generator_to_json(self._rng)),
        }
        if self._sampler is not None:
            self._sampler.follow(self._start, self._end)
            extra |= self._sampler.state()
        return extra

    def _restore_extra(self, data: dict[str, NDArray[Any]], source: str) -> NDArray[np.int64]:
        """Take over counters, flags, generator and priorities, and return which rows of the columns come first here."""
        if "place" in data:
            start, end, capacity, n_envs = (int(number) for number in data["place"])
            if n_envs != self.n_envs:
                raise CheckpointError(
                    f"{source} was written with n_envs={n_envs}, this memory has n_envs={self.n_envs}: "
                    "create it with the same number"
                )
            self._rng = generator_from_json(str(data["rng"]))
        else:  # PARL's own file: whole columns, and [size, position]
            size, position = (int(number) for number in data["other"])
            capacity = len(data["reward"])
            start, end = (position, position + size) if size == capacity else (0, size)
        if capacity == self.max_size:
            slots = np.arange(min(end, capacity))
        else:
            start = max(start, end - self.max_size)
            start += -start % self.n_envs  # the first slot belongs to the first environment
            slots = np.arange(start, end) % capacity
            start, end = 0, end - start
        self._floor, self._end = start, end
        if "truncated" in data:
            self.truncated[: len(slots)] = data["truncated"][slots]
        else:
            self.truncated[:] = False
        if self._sampler is not None:
            priority = data["priority"][slots] if "priority" in data else np.ones(len(slots))
            self._sampler.restore(priority, float(data.get("largest_priority", 1.0)), start, end)
        return slots

    def _attach(self) -> None:
        """Go on with what a closed memory left in the directory, and mark it as in use."""
        state = self._folder.state
        if state is not None:
            self._restore_place(state)
        self._folder.begin()

    def flush(self) -> None:
        """Have the system write a memory with a `directory` to disk; without one, do nothing."""
        self._folder.flush()

    def close(self) -> None:
        """Leave a memory with a `directory` for a later program to go on with; without one, do nothing.

        Priorities are not part of it: there every transition starts again with the largest. Do not append afterwards.
        """
        self._folder.end(self._place())

    def _place(self) -> dict[str, Any]:
        return {"start": self._start, "end": self._end, "rng": generator_to_json(self._rng)}

    def _restore_place(self, state: dict[str, Any]) -> None:
        self._floor, self._end = state["start"], state["end"]
        self._rng = generator_from_json(state["rng"])
