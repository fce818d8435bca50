"""Learning from logged data: transitions in the order in which they happened, read from files, drawn as batches.

`read_npz` reads `.npz` files, `read_minari` Minari's datasets, the successor of D4RL. A file has either set of names:

    column       PARL's name    D4RL's name
    obs          obs            observations
    action       action         actions
    reward       reward         rewards
    next_obs     next_obs       next_observations
    terminal     terminal       terminals
    truncated    truncated      timeouts             optional

D4RL's raw files lack `next_observations`. There the following row's observation is taken, and rows that ended at a time
limit or with the file are left out, because their next observation was not written. Files that a `ReplayMemory` saved
are put into the order of their steps. `SequenceSampler` draws the windows of episodes that a sequence model such as the
Decision Transformer learns from.
"""

import os
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core._array_files import read_snapshot, write_snapshot
from parl_core.checks import check_int, check_positive, first_not_finite
from parl_core.contracts.actions import unit_line
from parl_core.contracts.batches import floats_column
from parl_core.errors import CheckpointError, DatasetError, HyperparameterError

__all__ = ["OfflineDataset", "SequenceSampler", "Window", "padded_window", "read_minari", "read_npz"]

NEEDED = ("obs", "action", "reward", "next_obs", "terminal")

D4RL_NAMES = {
    "obs": "observations",
    "action": "actions",
    "reward": "rewards",
    "next_obs": "next_observations",
    "terminal": "terminals",
    "truncated": "timeouts",
}


@dataclass(frozen=True)
class OfflineDataset:
    """`n` transitions of consecutive episodes, each in the order of its steps.

        columns = {
            "obs": np.zeros((100, 4), np.float32),
            "action": np.zeros(100, np.int64),
            "reward": np.ones(100),
            "next_obs": np.zeros((100, 4), np.float32),
            "terminal": np.arange(100) % 20 == 19,
        }
        dataset = OfflineDataset.from_arrays(columns)

    Attributes:
        obs: `[n, *obs]`.
        action: Actions as agents choose them: `[n]` int64 counted from 0 for discrete actions, `[n, *act]` float32 for
            continuous ones, which algorithms take in [-1, 1].
        reward: `[n]` float32.
        next_obs: `[n, *obs]`, the observation after the action; at the end of an episode its last one.
        terminal: `[n]` bool: the episode terminated (no return follows).
        truncated: `[n]` bool: the episode was cut there (it bootstraps).
        source: The name of the data's source, for messages.
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
                may also be `[n, 1]`), and optionally `truncated`.
            source: The name of the source, for messages.

        Raises:
            DatasetError: A key is missing, lengths or shapes differ, there are no rows, or a number is not real, not
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

        An episode ends at a flag, and where the next row does not continue this one, because some logs do not mark
        time limits.
        """
        ends = self.terminal | self.truncated
        other = self.next_obs[:-1] != self.obs[1:]
        jumps = other.any(axis=tuple(range(1, other.ndim)))
        ends = np.append(ends[:-1] | jumps, True)
        stops = (np.flatnonzero(ends) + 1).tolist()
        return tuple(zip([0, *stops[:-1]], stops, strict=True))

    @property
    def episode_returns(self) -> NDArray[np.float64]:
        """Undiscounted return of each episode: the performance of the policy that made the data."""
        return np.array([self.reward[start:stop].sum(dtype=np.float64) for start, stop in self.episodes])

    def draw(self, n: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """Draw `n` transitions uniformly with replacement: the columns of an algorithm's `learn`, by name."""
        rows = rng.integers(len(self), size=n)
        return {key: column[rows] for key, column in self.whole().items()}

    def whole(self) -> dict[str, NDArray[Any]]:
        """Return the columns of all transitions as `draw` names them."""
        return {key: getattr(self, key) for key in NEEDED}

    def scaled_rewards(self, scale: float, shift: float = 0.0) -> "OfflineDataset":
        """Return the same data with `scale * reward + shift`."""
        return self._with(reward=self.reward.astype(np.float64) * scale + shift)

    def chosen_in(self, space: Any) -> "OfflineDataset":
        """Convert logged actions from the environment's form to the form of agents.

        The numbers of a box are mapped from its bounds to [-1, 1]; in dimensions without bounds they do not change.
        Choices are counted from 0. `read_minari` does this automatically.

        Args:
            space: A Gymnasium space, that of the environment's actions.

        Raises:
            DatasetError: The actions have another shape than the space's.
        """
        return self._with(action=_as_chosen(self.source, self.action, space))

    def with_one_hot_actions(self, choices: int) -> "OfflineDataset":
        """Return the same data with choices as one-hot rows, from which a `DecisionTransformer` learns.

        Args:
            choices: The number of choices, the width of a row.

        Raises:
            DatasetError: The actions are not choices, or one is not among them.
        """
        if self.action.ndim != 1:
            raise DatasetError(f"{self.source} has actions of shape {list(self.action.shape[1:])}, not choices")
        if self.action.max() >= choices:
            raise DatasetError(f"{self.source} has the action {self.action.max()}, and there are {choices} choices")
        return self._with(action=np.eye(choices, dtype=np.float32)[self.action])

    def _with(self, **changed: NDArray[Any]) -> "OfflineDataset":
        return OfflineDataset.from_arrays({**self.whole(), "truncated": self.truncated, **changed}, self.source)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write an `.npz` file that `read_npz` reads, under its name only when it is complete, and return its path."""
        return write_snapshot(path, {**self.whole(), "truncated": self.truncated})

    def __iter__(self) -> Iterator["OfflineDataset"]:
        """Yield each episode as a separate dataset (views)."""
        for start, stop in self.episodes:
            parts = {key: getattr(self, key)[start:stop] for key in (*NEEDED, "truncated")}
            yield OfflineDataset(**parts, source=self.source)


def _as_chosen(source: str, actions: NDArray[Any], space: Any) -> NDArray[Any]:
    """Return actions `[n, *act]` of a space as a policy chooses them, the way back from `into_space` of the loops."""
    size = prod(actions.shape[1:])
    if space.shape is None or size != prod(space.shape):
        raise DatasetError(f"{source} has actions of shape {list(actions.shape[1:])}, which are none of {space}")
    rows = actions.reshape(len(actions), size)
    if not hasattr(space, "low"):
        counted: NDArray[Any] = rows - np.reshape(getattr(space, "start", 0), -1)
        return counted if space.shape else counted[:, 0]
    if not np.issubdtype(space.dtype, np.floating):
        return rows
    scale, shift = (line.reshape(-1) for line in unit_line(space.low, space.high))
    return np.asarray((rows - shift) / np.where(scale == 0.0, 1.0, scale), np.float32)


def _actions(source: str, array: NDArray[Any]) -> NDArray[Any]:
    if not array.size:
        raise DatasetError(f"{source} has actions of shape {list(array.shape)}: an action has at least one number")
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
    """Return the column with floats of at most 32 bits."""
    if array.dtype.kind not in "fiub":
        ways = {
            "c": "; split complex numbers into real and imaginary parts",
            "O": "; of dictionaries and tuples, gymnasium.wrappers.FlattenObservation makes arrays of numbers",
        }
        raise DatasetError(
            f"{source} has {key} of dtype {array.dtype}, in row 0 {reprlib.repr(array.reshape(-1)[:1].tolist())}: they "
            f"must be real numbers{ways.get(array.dtype.kind, '')}"
        )
    if array.dtype.kind != "f":
        return array
    _check_finite(source, key, array, array, "it would make all weights NaN; drop the row, or correct its source")
    if array.dtype.itemsize <= np.dtype(np.float32).itemsize:
        return array
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    limit = np.finfo(np.float32).max
    _check_finite(source, key, array, single, f"beyond float32, which ends at {limit:.1e}; scale or clip the column")
    return single


def _check_finite(source: str, key: str, array: NDArray[Any], seen: NDArray[Any], remedy: str) -> None:
    """Reject the first number of `array` that is not finite in `seen`."""
    if (at := first_not_finite(seen)) is not None:
        raise DatasetError(f"{source} has {key} {array[at]} in row {at[0]}: {remedy}")


def read_npz(path: str | os.PathLike[str]) -> OfflineDataset:
    """Read a dataset from an `.npz` file; nothing is ever unpickled.

    Args:
        path: The path of a file with the keys above: a dataset's, a replay memory's, or one of D4RL's form.

    Raises:
        DatasetError: The file is missing or damaged, a key is missing, lengths differ, or a number is not finite.
    """
    try:
        arrays: dict[str, NDArray[Any]] = dict(read_snapshot(path, set()))
    except CheckpointError as error:
        raise DatasetError(str(error)) from error
    if "observations" in arrays:
        arrays = _from_d4rl(str(Path(path)), arrays)
    elif "other" in arrays:
        arrays = _unrolled(str(path), arrays)
    return OfflineDataset.from_arrays(arrays, str(Path(path)))


def read_minari(dataset: Any, *, download: bool = False) -> OfflineDataset:
    """Read a Minari dataset.

    Its actions are in the environment's form, and it contains the action space. They are converted to the form in which
    agents choose them by `OfflineDataset.chosen_in`.

    Args:
        dataset: The id of the dataset, such as `"mujoco/hopper/medium-v0"`, or an object of `minari.load_dataset`.
        download: Whether to fetch a dataset that is not on this machine.

    Raises:
        ImportError: minari is not installed; the message has the command.
        DatasetError: The dataset is not available, it has no episodes, its observations or actions are not arrays,
            or an episode's columns do not fit together.
    """
    if isinstance(dataset, str):
        try:
            minari: Any = import_module("minari")
        except ImportError as error:
            raise ImportError('Minari is not installed:\n    pip install "parl-core[minari]"', name="minari") from error
        name = dataset
        try:
            dataset = minari.load_dataset(name, download=download)
        except (FileNotFoundError, ValueError, KeyError) as error:
            raise DatasetError(
                f"Minari cannot load {name!r}: {str(error).rstrip('.')}; see `minari list local`, or pass download=True"
            ) from error
    else:
        name = str(getattr(getattr(dataset, "spec", None), "dataset_id", "a Minari dataset"))
    columns: dict[str, list[NDArray[Any]]] = {key: [] for key in D4RL_NAMES}
    for episode in dataset.iterate_episodes():
        for what in ("observations", "actions"):
            if isinstance(getattr(episode, what), Mapping | tuple):
                raise DatasetError(
                    f"{name} has {what} with parts ({type(getattr(episode, what)).__name__}); flatten them first, with "
                    "gymnasium.spaces.flatten for instance, and use OfflineDataset.from_arrays"
                )
        observations = np.asarray(episode.observations)
        steps = len(episode.rewards)
        if len(observations) != steps + 1:
            raise DatasetError(
                f"{name}, episode {episode.id}: {len(observations)} observations for {steps} steps; one more is needed"
            )
        for key, values in (
            ("obs", observations[:-1]),
            ("action", episode.actions),
            ("reward", episode.rewards),
            ("next_obs", observations[1:]),
            ("terminal", episode.terminations),
            ("truncated", episode.truncations),
        ):
            column = np.asarray(values)
            if column.shape[:1] != (steps,):
                raise DatasetError(
                    f"{name}, episode {episode.id}: {key} has the shape {list(column.shape)} for {steps} rewards; it "
                    "needs one row per step"
                )
            if columns[key] and column.shape[1:] != columns[key][0].shape[1:]:
                raise DatasetError(
                    f"{name}, episode {episode.id}: rows of {key} have the shape {list(column.shape[1:])}, those of "
                    f"episodes before it {list(columns[key][0].shape[1:])}; they must be the same"
                )
            columns[key].append(column)
    if not columns["obs"]:
        raise DatasetError(f"{name} has no episodes")
    joined = {key: np.concatenate(parts) for key, parts in columns.items()}
    if (space := getattr(dataset, "action_space", None)) is not None:
        joined["action"] = _as_chosen(name, joined["action"], space)
    return OfflineDataset.from_arrays(joined, name)


def _from_d4rl(source: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the columns under PARL's names; missing next observations are taken from the following rows."""
    given = {name: arrays[theirs] for name, theirs in D4RL_NAMES.items() if theirs in arrays}
    if missing := [D4RL_NAMES[name] for name in NEEDED if name not in given and name != "next_obs"]:
        raise DatasetError(
            f"{source} lacks {', '.join(missing)}; it has {', '.join(sorted(arrays))}. Needed are "
            f"{', '.join(D4RL_NAMES[name] for name in NEEDED)}, and timeouts where episodes were cut"
        )
    if "next_obs" in given:
        return given
    if "truncated" not in given:
        raise DatasetError(
            f"{source} lacks next_observations, and timeouts, without which following rows cannot stand for them; add "
            "either (timeouts: 1 where a time limit ended an episode, else 0)"
        )
    rows = {key: len(column) if column.ndim else 0 for key, column in given.items()}
    if len(set(rows.values())) > 1 or not rows["obs"]:
        return given | {"next_obs": given["obs"]}  # the check of lengths raises an error
    ended: NDArray[np.bool_] = np.asarray(given["terminal"].reshape(rows["obs"], -1).astype(np.bool_).any(axis=1))
    limits = np.asarray(given["truncated"].reshape(rows["obs"], -1).astype(np.bool_).any(axis=1))
    cut = np.append(limits[:-1], True)
    known = np.logical_or(ended, ~cut)
    after = np.concatenate([given["obs"][1:], given["obs"][-1:]])
    after[ended] = given["obs"][ended]  # after a termination, the next observation has no effect on learning
    # An episode without its last row is truncated at the previous row, if that belongs to it.
    begun = np.append(True, ended[:-1] | cut[:-1])
    given["truncated"] = ~ended & np.append(~known[1:] & ~begun[1:], False)
    return {key: column[known] for key, column in given.items()} | {"next_obs": after[known]}


def _unrolled(source: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the rows of a saved ring in the order of their steps, one environment after the other."""
    size, position = (int(number) for number in arrays["other"])
    rows = arrays["reward"].shape[0] if "reward" in arrays and arrays["reward"].ndim else 0
    if not 0 <= size <= rows:
        raise DatasetError(f"{source} says it holds {size} transitions and has {rows} rows: it is damaged")
    environments = int(arrays["place"][3]) if "place" in arrays else 1
    oldest_first = (np.arange(size) + (position - size)) % rows if rows else np.arange(0)
    order = np.concatenate([oldest_first[first::environments] for first in range(environments)])
    unequal = {key: len(column) for key, column in arrays.items() if key in D4RL_NAMES and len(column) != rows}
    if unequal:
        # the check of lengths raises an error
        return {key: column for key, column in arrays.items() if key in D4RL_NAMES}
    return {key: column[order] for key, column in arrays.items() if key in D4RL_NAMES}


@dataclass(frozen=True)
class Window:
    """`n` windows of `K` steps; short ones are padded at the front.

    Attributes:
        obs: `[n, K, *obs]`, zeros where padded.
        action: `[n, K, act_dim]` float, zeros where padded.
        return_to_go: `[n, K, 1]`: sum of the remaining rewards of the episode, divided by the scale.
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
        dataset: A dataset with actions that are vectors.
        context: Steps of a window.
        return_scale: The number by which returns-to-go are divided, so that networks get numbers of about unit size.

    Raises:
        HyperparameterError: The actions are discrete, or a number is out of range.
    """

    def __init__(self, dataset: OfflineDataset, context: int, return_scale: float = 1.0) -> None:
        check_int("context", context)
        check_positive("return_scale", return_scale)
        if dataset.action.ndim != 2:
            raise HyperparameterError(
                f"sequences need actions that are vectors, got shape {list(dataset.action.shape)}: make one-hot rows "
                "of discrete ones by dataset.with_one_hot_actions(choices)"
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
    """Return the last `context` steps of episodes that are being played, padded at the front.

    Args:
        obs: `[n, t, *obs]`, of all steps so far, the one to act on last.
        action: `[n, t, act_dim]`; the last one, which is not known yet, is zeros.
        return_to_go: `[n, t, 1]`, already scaled.
        context: Steps of a window.
        first_step: Number of the first of these steps in its episode.
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
