"""Batches drawn from a ring: uniformly or by priority, one step or several, into buffers that are reused.

n-step returns are computed from one-step transitions when a batch is drawn:

    R = r_t + gamma r_t+1 + ... + gamma^(m-1) r_t+m-1,   bootstrap with gamma^m V(s_t+m),   m <= n

m is n, or the number of steps until the episode ends (terminated or truncated) or until the newest transition of that
environment. Drawing costs one small gather; storing costs nothing, and n can differ from one memory to the next over
the same data.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from parl_core._nested import map_nested
from parl_core.checks import check_fraction, check_int
from parl_core.errors import CheckpointError, HyperparameterError
from parl_core.replay._priorities import Prioritized, PrioritySampler
from parl_core.replay._ring import Ring, number_lost, shape_of
from parl_core.seeding import generator_from_json, generator_to_json, make_generator

__all__ = ["NStep", "ReplayBatch", "SampledRing", "n_step_windows"]

KEPT_BUFFERS = 8  # batch sizes; a program that draws ever different ones must not fill the memory with buffers


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
        steps: The n of n-step, at least 1.
        gamma: Discount per step.
        stride: Slots from one step of an environment to its next: the number of environments that take turns.
        end: The number of transitions ever written; the newest is in slot `(end - 1) % capacity`.
    """
    capacity = len(reward)
    offsets = np.arange(steps) * stride
    windows = (slots[:, None] + offsets) % capacity
    newer = (end - 1 - slots) % capacity  # number of transitions after each slot
    goes_on = offsets <= newer[:, None]
    ended = terminal.take(windows) | truncated.take(windows)
    goes_on[:, 1:] &= ~np.logical_or.accumulate(ended[:, :-1], axis=1)
    powers = np.power(gamma, np.arange(steps + 1), dtype=np.float64)
    length = goes_on.sum(axis=1)
    summed = (reward.take(windows) * goes_on) @ powers[:-1]
    last = windows[np.arange(len(slots)), length - 1]
    return NStep(summed.astype(np.float32), last, powers[length].astype(np.float32))


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """`n` transitions (s_t, a_t, r, s_t+m) with the data for bootstrapping.

    With one-step sampling m is 1. With n-step sampling m is n, or less if the episode (or its recorded part) ends
    earlier; `reward` is then the discounted sum and `discount` is gamma**m.

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
    """`[n]`, gamma**m for the value of `next_obs`; None with one-step sampling, for the algorithm's gamma."""
    weight: NDArray[np.float32] | None
    """`[n]` in (0, 1], importance-sampling weights; None with uniform sampling."""
    extra: Mapping[str, Any] | None = None
    """Further columns `[n, ...]` by name, which a memory of the program's own adds in `sample`; loops pass them on."""

    def copy(self) -> "ReplayBatch":
        """Return a copy of the batch, which later sampling does not change."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        columns = {name: array for name, array in arrays.items() if array is not None}
        return replace(self, **{name: map_nested(np.copy, column) for name, column in columns.items()})


class SampledRing(Ring):
    """A ring to draw batches from; `ReplayMemory` documents the arguments."""

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
        check_int("n_step", n_step)
        if n_step > 1:
            check_fraction("gamma (which n_step > 1 needs)", gamma)
        super().__init__(max_size, act_dim, act_dtype=act_dtype, n_envs=n_envs, directory=directory)
        self.obs_dim = obs_dim
        self.n_step = n_step
        self.gamma = gamma
        self.sampling = sampling
        self._obs_shape = shape_of(obs_dim)
        self._obs_dtype = np.dtype(obs_dtype)
        self._flat = len(self._obs_shape) == 1 != self._obs_shape[0] and len(self._act_shape) <= 1
        whole = self.action.dtype.kind in "biu"
        self._one_choice = whole and not self._act_len
        self._flat = self._flat and self._obs_dtype.kind == "f" and not (whole and self._act_len)
        self._two_rows = 2 * self._obs_shape[0] if self._flat else 0  # numbers in obs and next_obs
        if seed is None:  # programs of PARL 2.x call np.random.seed
            seed = int.from_bytes(np.random.bytes(16), "little")
        self._rng = make_generator(seed)
        self._sampler = None if sampling is None else PrioritySampler(sampling, max_size)
        self._buffers: dict[int, ReplayBatch] = {}

    def make_index(self, batch_size: int) -> NDArray[np.int64]:
        """Draw slots `[batch_size]`, with replacement, for `sample_batch_by_index`.

        Raises:
            ValueError: The memory is empty.
        """
        start = self._start
        size = self._end - start
        if size == 0:
            raise ValueError("cannot sample from an empty replay memory: append transitions first")
        if self._sampler is not None:
            self._sampler.follow(start, self._end)
            return self._sampler.draw(batch_size, self._rng)
        index = self._rng.integers(size, size=batch_size)
        if size < self.max_size and start:  # all slots of a full ring are valid
            index = (index + start) % self.max_size
        return index

    def sample(self, batch_size: int, *, beta: float | None = None) -> ReplayBatch:
        """Draw a batch into buffers that the next call with the same `batch_size` overwrites.

        Large arrays are allocated by the first call only, so later ones cause no page faults; `.copy()` a batch that
        you keep.

        Args:
            batch_size: Number of transitions, drawn with replacement.
            beta: Exponent of the importance-sampling weights for this call; default: that of the settings.

        Raises:
            HyperparameterError: The number is not a whole number of at least 0.
            ValueError: The memory is empty.
        """
        buffers = self._buffers.get(batch_size)
        if buffers is None:
            check_int("batch_size", batch_size, at_least=0)
        index = self.make_index(batch_size)
        weight = None if self._sampler is None else self._sampler.weights(index, beta)
        if buffers is None:
            if len(self._buffers) == KEPT_BUFFERS:
                self._buffers.clear()
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
            IndexError: A slot holds no transition.
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
        """Set the priorities of drawn transitions from their new TD errors; slots without a transition have none.

        Args:
            index: `batch.index`, `[n]`.
            td_error: `[n]`, of any sign.

        Raises:
            HyperparameterError: The memory samples uniformly.
            IndexError: There is no such slot.
            ValueError: An error is not finite, or the shapes differ.
        """
        if self._sampler is None:
            raise HyperparameterError("this memory samples uniformly: create it with sampling=Prioritized()")
        self._sampler.follow(self._start, self._end)
        self._sampler.update(np.asarray(index, np.int64), np.asarray(td_error))

    def get_state(self) -> dict[str, Any]:
        """Return the state without the rows: counters, generator, priorities."""
        state = {**super().get_state(), "rng": generator_to_json(self._rng)}
        if self._sampler is not None:
            self._sampler.follow(self._start, self._end)
            state |= self._sampler.state()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `get_state`, of a memory with the same arguments.

        Raises:
            CheckpointError: It had other arguments.
        """
        if (self._sampler is None) is ("priority" in state):
            raise CheckpointError(
                f"the saved replay memory drew {'by priority' if 'priority' in state else 'uniformly'}, this one does "
                "not: create it with the same sampling"
            )
        super().set_state(state)
        # Into the existing generator, because a loop may share it.
        self._rng.bit_generator.state = json.loads(state["rng"])
        if self._sampler is not None:
            largest = float(state["largest_priority"])
            self._sampler.restore(state["priority"], largest, self._start, self._end)

    def _check_shapes(self, obs: ArrayLike, act: ArrayLike, reward: float, next_obs: ArrayLike) -> None:
        # If the shape is a single number or record, or a row of one, numpy itself rejects other shapes.
        obs_fit = self._obs_shape in {(), (1,)} or np.shape(obs) == np.shape(next_obs) == self._obs_shape
        if not obs_fit or (self._act_len and np.shape(act) != self._act_shape) or not isfinite(reward):
            raise ValueError("numpy would repeat numbers to fill the shape, or the reward is not finite")
        if self._lost(obs, act, next_obs):
            raise ValueError("numpy would drop fractions, or wrap")

    def _lost(self, obs: Any, act: Any, next_obs: Any) -> str:
        """Return the first number that the memory cannot store, with its place, for a message; empty if it can all."""
        stored = self._obs_dtype, self._obs_dtype, self.action.dtype
        for name, numbers, dtype in zip(("obs", "next_obs", "act"), (obs, next_obs, act), stored, strict=True):
            if (lost := number_lost(np.asarray(numbers), dtype)) is not None:
                return f" with {lost} in {name}, which {dtype} cannot hold"
        return ""

    def _misfit(self, obs: Any, act: Any, reward: Any, next_obs: Any) -> str:
        """Return the message of `append` for a transition that is not of this memory's form."""
        shapes, lost = [list(np.asarray(part, object).shape) for part in (obs, next_obs, act)], ""
        with suppress(ValueError):  # rows of different lengths
            lost = self._lost(obs, act, next_obs)
        return (
            f"append got obs {shapes[0]}, next_obs {shapes[1]}, act {shapes[2]} and the reward {reward!r}"
            f"{lost}; this memory stores observations {list(self._obs_shape)} of "
            f"{self._obs_dtype}, actions {list(self._act_shape)} of "
            f"{self.action.dtype} and finite rewards: pass such numbers of exactly these shapes, or create it with "
            "other obs_dim, act_dim, obs_dtype and act_dtype"
        )

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
        windows = self._windows(index)
        if windows is None:
            reward, last, discount = out.reward, index, None
            self.reward.take(index, 0, reward, "clip")
        else:
            reward, last, discount = windows
        self.action.take(index, 0, out.action, "clip")
        self.terminal.take(last, 0, out.terminal, "clip")
        self.truncated.take(last, 0, out.truncated, "clip")
        self._fill_obs(out, index, last)
        return ReplayBatch(
            out.obs, out.action, reward, out.next_obs, out.terminal, out.truncated, index, discount, weight
        )

    def _windows(self, index: NDArray[np.int64]) -> NStep | None:
        """Return the n-step returns of slots; None with one-step sampling."""
        if self.n_step == 1:
            return None
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

    def _obs_buffers(self, n: int) -> tuple[NDArray[Any], NDArray[Any]]:
        raise NotImplementedError

    def _fill_obs(self, out: ReplayBatch, index: NDArray[np.int64], last: NDArray[np.int64]) -> None:
        raise NotImplementedError

    def _state_columns(self, used: int) -> dict[str, NDArray[Any]]:
        columns = {**super()._state_columns(used), "rng": np.array(generator_to_json(self._rng))}
        if self._sampler is not None:
            self._sampler.follow(self._start, self._end)
            columns |= self._sampler.state()
        return columns

    def _restore_columns(self, data: dict[str, NDArray[Any]], source: str) -> NDArray[np.int64]:
        try:
            rng = generator_from_json(str(data["rng"])) if "rng" in data else self._rng
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{source} has a random generator that cannot be read: {error}") from error
        if "priority" in data and data["priority"].shape[:1] < data["reward"].shape:
            raise CheckpointError(
                f"{source} does not fit together: {len(data['reward'])} rows, priorities {list(data['priority'].shape)}"
            )
        slots = super()._restore_columns(data, source)
        self._rng = rng
        if self._sampler is not None:
            priority = data["priority"][slots] if "priority" in data else np.ones(len(slots))
            self._sampler.restore(priority, float(data.get("largest_priority", 1.0)), self._start, self._end)
        return slots

    def _place(self) -> dict[str, Any]:
        return {**super()._place(), "rng": generator_to_json(self._rng)}

    def _restore_place(self, state: dict[str, Any]) -> None:
        super()._restore_place(state)
        self._rng = generator_from_json(state["rng"])
