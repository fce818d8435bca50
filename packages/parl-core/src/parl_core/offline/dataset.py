"""Logged transitions in the order in which they happened, checked once when they come in.

Where from is the affair of `reading`; what is made of them for a sequence model that of `sequences`.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.checks import first_not_finite
from parl_core.contracts.columns import floats_column
from parl_core.errors import DatasetError
from parl_core.replay.files import write_snapshot

__all__ = ["OfflineDataset"]

NEEDED = ("obs", "action", "reward", "next_obs", "terminal")


@dataclass(frozen=True)
class OfflineDataset:
    """`n` transitions; episodes lie one after the other, each in the order of its steps.

    Attributes:
        obs: `[n, *obs]`.
        action: `[n]` int64 for discrete actions, `[n, *act]` float32 for continuous ones.
        reward: `[n]` float32.
        next_obs: `[n, *obs]`, the observation after the action; at the end of an episode its last one.
        terminal: `[n]` bool: the episode ended by itself (its continuation is worth 0).
        truncated: `[n]` bool: the episode was cut there (it bootstraps).
        source: where the data come from, for messages.
    """

    obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    next_obs: NDArray[Any]
    terminal: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    source: str = "arrays"

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], source: str = "arrays") -> "OfflineDataset":
        """Check and convert arrays.

        Args:
            arrays: `obs`, `action`, `reward`, `next_obs` and `terminal`, as the class describes them (numbers a row
                may also be `[n, 1]`); where it is there, `truncated`.
            source: for messages.

        Raises:
            DatasetError: a key is missing, lengths or shapes differ, there are no rows, or a number is not real, not
                finite or beyond float32.
        """
        if missing := [key for key in NEEDED if key not in arrays]:
            raise DatasetError(
                f"{source} lacks {', '.join(missing)}; it has {', '.join(sorted(arrays)) or 'nothing'}. Needed are "
                f"{', '.join(NEEDED)}, and truncated where episodes were cut"
            )
        columns = {key: np.asarray(arrays[key]) for key in (*NEEDED, "truncated") if key in arrays}
        lengths = {key: len(column) if column.ndim else 0 for key, column in columns.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{key} {length}" for key, length in lengths.items())
            raise DatasetError(f"{source} has columns of different lengths: {listed}; each needs one row a transition")
        if not lengths["obs"]:
            raise DatasetError(f"{source} has no transitions")
        if columns["obs"].shape != columns["next_obs"].shape:
            raise DatasetError(
                f"{source} has obs of shape {list(columns['obs'].shape)} and next_obs of shape "
                f"{list(columns['next_obs'].shape)}; they must be the same"
            )
        for key in ("obs", "action", "reward", "next_obs"):
            columns[key] = _real(source, key, columns[key])
        terminal = _flags(source, "terminal", columns["terminal"])
        truncated = columns.get("truncated")
        return cls(
            columns["obs"],
            _actions(source, columns["action"]),
            _column(source, "reward", columns["reward"]).astype(np.float32),
            columns["next_obs"],
            terminal,
            np.zeros(len(terminal), np.bool_) if truncated is None else _flags(source, "truncated", truncated),
            source,
        )

    def __len__(self) -> int:
        return len(self.reward)

    @cached_property
    def episodes(self) -> tuple[tuple[int, int], ...]:
        """First row and row after the last one of each episode.

        An episode ends where a flag says so, and where the next row does not go on from this one: not every log marks
        the time limit.
        """
        ends = self.terminal | self.truncated
        other = self.next_obs[:-1] != self.obs[1:]
        jumps = other.any(axis=tuple(range(1, other.ndim)))
        ends = np.append(ends[:-1] | jumps, True)
        stops = (np.flatnonzero(ends) + 1).tolist()
        return tuple(zip([0, *stops[:-1]], stops, strict=True))

    @property
    def episode_returns(self) -> NDArray[np.float64]:
        """Undiscounted return of each episode: what the policy that made the data reached."""
        return np.array([self.reward[start:stop].sum(dtype=np.float64) for start, stop in self.episodes])

    def draw(self, n: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """Draw `n` transitions uniformly with replacement: the columns of an algorithm's `learn`, by name."""
        rows = rng.integers(len(self), size=n)
        return {key: getattr(self, key)[rows] for key in NEEDED}

    def scaled_rewards(self, scale: float, shift: float = 0.0) -> "OfflineDataset":
        """The same data with `scale * reward + shift`."""
        arrays = {key: getattr(self, key) for key in (*NEEDED, "truncated")}
        reward = self.reward.astype(np.float64) * scale + shift
        return OfflineDataset.from_arrays(arrays | {"reward": reward}, self.source)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write an `.npz` file that `read_npz` reads, under its name only when it is complete, and return its path."""
        return write_snapshot(path, {key: getattr(self, key) for key in (*NEEDED, "truncated")})

    def __iter__(self) -> Iterator["OfflineDataset"]:
        """Each episode as a dataset of its own (views)."""
        for start, stop in self.episodes:
            parts = {key: getattr(self, key)[start:stop] for key in (*NEEDED, "truncated")}
            yield OfflineDataset(**parts, source=self.source)


def _actions(source: str, array: NDArray[Any]) -> NDArray[Any]:
    if not array.size:
        raise DatasetError(f"{source} has actions of shape {list(array.shape)}: an action has one number at least")
    if array.dtype.kind in "iu":
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.min() < 0:
            raise DatasetError(f"{source} has the action {array.min()}: discrete actions count from 0")
        if array.max() > np.iinfo(np.int64).max:
            raise DatasetError(f"{source} has the action {array.max()}, which is beyond int64: count actions from 0")
        return array.astype(np.int64)
    if array.dtype.kind != "f":
        raise DatasetError(f"{source} has actions of dtype {array.dtype}: they must be numbers")
    return np.asarray(array.reshape(len(array), -1) if array.ndim == 1 else array, np.float32)


def _column(source: str, key: str, array: NDArray[Any]) -> NDArray[Any]:
    try:
        return floats_column(key, array)
    except ValueError as error:
        raise DatasetError(f"{source}: {error}") from error


def _flags(source: str, key: str, array: NDArray[Any]) -> NDArray[np.bool_]:
    column = _column(source, key, array)
    if not np.isin(column, (0, 1)).all():
        row = int(np.flatnonzero(~np.isin(column, (0, 1)))[0])
        raise DatasetError(f"{source} has {key} {column[row]} in row {row}: flags are 0 or 1")
    return column.astype(np.bool_)


def _real(source: str, key: str, array: NDArray[Any]) -> NDArray[Any]:
    """The column with floats of at most 32 bits."""
    if array.dtype.kind not in "fiub":
        first = array.reshape(-1)[:1].tolist()
        split = "; split complex numbers into real and imaginary parts" if array.dtype.kind == "c" else ""
        raise DatasetError(
            f"{source} has {key} of dtype {array.dtype}, in row 0 {first}: they must be real numbers{split}"
        )
    if array.dtype.kind != "f":
        return array
    _check_finite(source, key, array, array, "one such number spoils all weights; drop the row or mend what wrote it")
    if array.dtype.itemsize <= np.dtype(np.float32).itemsize:
        return array
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    limit = np.finfo(np.float32).max
    _check_finite(source, key, array, single, f"beyond float32, which ends at {limit:.1e}; scale or clip the column")
    return single


def _check_finite(source: str, key: str, array: NDArray[Any], seen: NDArray[Any], remedy: str) -> None:
    """Refuse the first number of `array` that is not finite in `seen`."""
    if (at := first_not_finite(seen)) is not None:
        raise DatasetError(f"{source} has {key} {array[at]} in row {at[0]}: {remedy}")
