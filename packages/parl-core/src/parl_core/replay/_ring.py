"""The ring buffer of every replay memory: slots are written in turn, and the oldest is overwritten.

    slot   0    1    2    3    4    5    ...
    env    0    1    0    1    0    1            n_envs = 2: environments take turns, a step fills two slots
           └─ start % max_size ... end % max_size ─┘

This module has actions, rewards, flags and counters, and their storage. Batches are drawn in `sampled_ring`;
how observations are kept is in `memory` (both ends of each transition) and `frames` (single frames).
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from parl_core._array_files import ArrayFolder
from parl_core.checks import check_int
from parl_core.errors import CheckpointError, HyperparameterError

__all__ = ["Ring", "check_rewards", "number_lost", "shape_of"]

LARGEST_REWARD = float(np.finfo(np.float32).max)  # rewards are stored as float32


def shape_of(dim: int | Sequence[int]) -> tuple[int, ...]:
    """Return the shape that `obs_dim` or `act_dim` means: 4 is `(4,)`, 0 is a single number."""
    if isinstance(dim, (int, np.integer)):
        return (int(dim),) if dim else ()
    return tuple(int(size) for size in dim)


def check_rewards(reward: NDArray[Any]) -> None:
    """Reject a batch with rewards that would be stored as NaN or infinity.

    Raises:
        ValueError: There are such rewards; the message has their number, and the position of the first one.
    """
    if reward.ndim == 1 and reward.dot(reward) < 1e30:  # all below 1e15; a third of the time of a check of each
        return
    fine = np.abs(reward.reshape(-1)) <= LARGEST_REWARD
    if not fine.all():
        first = int(fine.argmin())
        raise ValueError(
            f"{np.count_nonzero(~fine)} of {fine.size} rewards are NaN, infinite or too large for float32, the first "
            f"is {reward.reshape(-1)[first]} in row {first}: correct the environment or the dataset"
        )


def number_lost(given: NDArray[Any], dtype: np.dtype[Any]) -> Any:
    """Return the first number that would change when stored in an integer dtype; None if no number would."""
    if given.dtype.kind not in "iuf" or dtype.kind not in "biu" or np.can_cast(given.dtype, dtype):
        return None
    with np.errstate(invalid="ignore"):  # NaN, which is not an integer either
        lost = given[given != given.astype(dtype)]
    return lost.flat[0] if lost.size else None


class Ring:
    """Columns of `max_size` slots; `ReplayMemory` documents the arguments."""

    def __init__(
        self,
        max_size: int,
        act_dim: int | Sequence[int],
        *,
        act_dtype: DTypeLike | None,
        n_envs: int,
        directory: str | os.PathLike[str] | None,
    ) -> None:
        check_int("max_size", max_size)
        check_int("n_envs", n_envs)
        if max_size % n_envs:
            raise HyperparameterError(
                f"max_size must be a multiple of n_envs={n_envs}, got {max_size}: use {max_size + -max_size % n_envs}"
            )
        self.max_size = max_size
        self.act_dim = act_dim
        self.n_envs = n_envs
        self._act_shape = shape_of(act_dim)
        self._act_len = self._act_shape[0] if self._act_shape not in {(), (1,)} else 0  # 0: one number, as PARL has it
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
        self._end = 0  # number of the next transition, counted from the first one; its slot is _end % max_size
        self._floor = 0  # transitions before this number were dropped, though their slots may not be written again yet

    @property
    def _start(self) -> int:
        """The number of the oldest stored transition; computed on access, so that `append` need not update it."""
        return max(self._floor, self._end - self.max_size)

    def size(self) -> int:
        """Return the number of transitions that can be drawn."""
        return self._end - self._start

    def __len__(self) -> int:
        return self._end - self._start

    def cut_episodes(self) -> dict[str, Any]:
        """Mark the newest transition of every environment as truncated, where its episode is not over.

        For programs that reset environments in the middle of an episode: the next transitions belong to another one.

        Returns:
            a `place()` for `rows_since` that has the marked transitions after it.
        """
        first = max(self._end - self.n_envs, self._start)
        newest = np.arange(first, self._end) % self.max_size
        self.truncated[newest] |= ~self.terminal[newest]
        return {**self.place(), "end": first}

    def place(self) -> dict[str, Any]:
        """Return counters of written transitions: `start` (the oldest one held) and `end`, from the first one."""
        return {"start": self._start, "end": self._end}

    def rows_since(self, place: Mapping[str, Any] | None) -> dict[str, NDArray[Any]]:
        """Return the stored rows since an earlier `place()`, or all for None. Appends change them.

        Returns:
            columns `[n, ...]` by name, and `span`, the numbers of the first of them and of the one after the last.
        """
        first = self._start if place is None else max(int(place["end"]), self._start)
        (begin, end), (_, rest) = self._spans(first, self._end)
        columns = {name: getattr(self, name)[begin:end] for name in self._column_names()}
        if rest:
            columns = {name: np.concatenate([rows, getattr(self, name)[:rest]]) for name, rows in columns.items()}
        return {"span": np.array([first, self._end]), **columns}

    def put_rows(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Write back the result of `rows_since`; call it for the oldest rows first, after `set_state`.

        Raises:
            CheckpointError: The rows do not fit this memory's columns.
        """
        first, stop = (int(number) for number in rows["span"])
        count = stop - first
        for name in self._column_names():
            column = getattr(self, name)
            if name not in rows or rows[name].shape != (count, *column.shape[1:]):
                found = list(rows[name].shape) if name in rows else "nothing"
                raise CheckpointError(
                    f"the saved rows have {found} for {name}, this memory stores {[count, *column.shape[1:]]}: "
                    "create it with the arguments of the saved one"
                )
            taken = 0
            for begin, end in self._spans(first, stop):
                column[begin:end] = rows[name][taken : taken + end - begin]
                taken += end - begin

    def get_state(self) -> dict[str, Any]:
        """Return the state without the rows: counters, generator, priorities."""
        return {**self.place(), "max_size": self.max_size, "n_envs": self.n_envs}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `get_state`, of a memory with the same arguments.

        Raises:
            CheckpointError: It had other arguments.
        """
        for name in ("max_size", "n_envs"):
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"the saved replay memory had {name}={state[name]}, this one has {getattr(self, name)}: "
                    "create it with the same number"
                )
        self._floor, self._end = int(state["start"]), int(state["end"])

    def _spans(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the slots of the transitions `first ... stop - 1`, at most `max_size`, as one or two slices."""
        begin = first % self.max_size
        end = begin + stop - first
        return [(begin, min(end, self.max_size)), (0, max(end - self.max_size, 0))]

    def _column_names(self) -> tuple[str, ...]:
        return ("action", "reward", "terminal", "truncated")

    def flush(self) -> None:
        """Write a memory with a `directory` to disk; without one, do nothing."""
        self._folder.flush()

    def close(self) -> None:
        """Close a memory with a `directory`, so that a later program can continue with it; without one, do nothing.

        Priorities are not kept: in the later program, every transition starts with the largest. Do not append
        afterwards.
        """
        self._folder.end(self._place())

    def _append_rows(self, stored: list[NDArray[Any]], given: list[NDArray[Any]]) -> None:
        """Write `given` `[n, ...]` to the next n slots of `stored` `[max_size, ...]`; at most `max_size` rows last."""
        n = len(given[-1])
        for column, rows in zip(stored, given, strict=True):
            if rows.shape != (n, *column.shape[1:]):
                raise ValueError(
                    f"got an array of shape {list(rows.shape)} where {[n, *column.shape[1:]]} is needed: "
                    "all arrays of a batch have one row for each transition"
                )
            if rows.dtype is not column.dtype and (lost := number_lost(rows, column.dtype)) is not None:
                raise ValueError(
                    f"got {lost} among {rows.dtype} numbers where {column.dtype} is stored: create the memory with "
                    "obs_dtype and act_dtype that hold them, such as numpy.float32"
                )
        if n % self.n_envs:
            raise ValueError(
                f"got {n} transitions; this memory has n_envs={self.n_envs}: pass one transition of each environment, "
                "or several times as many"
            )
        skipped = max(n - self.max_size, 0)
        begin = (self._end + skipped) % self.max_size
        middle = min(n, skipped + self.max_size - begin)  # where the ring's end is reached
        try:
            for column, rows in zip(stored, given, strict=True):
                column[begin : begin + middle - skipped] = rows[skipped:middle]
                if middle < n:
                    column[: n - middle] = rows[middle:]
        except (TypeError, ValueError):
            self._floor = min(max(self._floor, self._end + n - self.max_size), self._end)  # slots may hold half of each
            raise
        self._end += n

    def _state_columns(self, used: int) -> dict[str, NDArray[Any]]:
        """Return the columns for `_restore_columns`, for a snapshot with `used` rows."""
        return {
            "truncated": self.truncated[:used],
            "place": np.array([self._start, self._end, self.max_size, self.n_envs]),
        }

    def _restore_columns(self, data: dict[str, NDArray[Any]], source: str) -> NDArray[np.int64]:
        """Restore counters and flags, and return the rows of the other columns in order."""
        if "place" in data:
            start, end, capacity, n_envs = _checked_place(data, source)
            if n_envs != self.n_envs:
                raise CheckpointError(
                    f"{source} was written with n_envs={n_envs}, this memory has n_envs={self.n_envs}: "
                    "create it with the same number"
                )
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
            first = self.max_size if start else 0  # in slot 0, and not the first one if older ones were dropped
            start, end = first, first + end - start
        self._floor, self._end = start, end
        self.truncated[: len(slots)] = data["truncated"][slots] if "truncated" in data else False
        return slots

    def _attach(self) -> None:
        """Continue with the contents that a closed memory left in the directory, and mark it as in use."""
        state = self._folder.state
        if state is not None:
            if state.get("n_envs", self.n_envs) != self.n_envs:
                raise CheckpointError(
                    f"the replay memory in {self._folder.directory} was made with n_envs={state['n_envs']}, this one "
                    f"with n_envs={self.n_envs}: use the same number, or another directory"
                )
            try:
                self._restore_place(state)
            except (KeyError, TypeError, ValueError) as error:
                raise self._folder.refuse(f"lacks something of a replay memory's state: {error!r}") from error
        self._folder.begin()

    def _place(self) -> dict[str, Any]:
        return {"start": self._start, "end": self._end, "n_envs": self.n_envs}

    def _restore_place(self, state: dict[str, Any]) -> None:
        if not 0 <= state["start"] <= state["end"] <= state["start"] + self.max_size:
            raise ValueError(f"start {state['start']}, end {state['end']}")
        self._floor, self._end = state["start"], state["end"]


def _checked_place(data: Mapping[str, NDArray[Any]], source: str) -> list[int]:
    """Return the counters of a snapshot: start, end, max_size, n_envs."""
    truncated = data.get("truncated", ())
    place, rows = data["place"], len(data["reward"])
    counters: list[int] = place.tolist() if place.shape == (4,) and place.dtype.kind in "iu" else [-1, 0, 0, 0]
    start, end, capacity, _ = counters
    if not 0 <= start <= end <= start + capacity or rows != min(end, capacity) or len(truncated) != rows:
        raise CheckpointError(
            f"{source} does not fit together: {rows} rows; place {place.tolist()} (start, end, max_size, n_envs)"
        )
    return counters
