"""Datasets of others: `.npz` files, and Minari's datasets, the successor of D4RL.

    column       PARL's name    D4RL's name
    obs          obs            observations
    action       action         actions
    reward       reward         rewards
    next_obs     next_obs       next_observations
    terminal     terminal       terminals
    truncated    truncated      timeouts             optional

A file has either set of names. D4RL's raw files lack `next_observations`: there the following row's observation is
taken, and rows that ended at a time limit or with the file, whose next observation nobody wrote, are left out. Files
that a `ReplayMemory` saved are put into the order of their steps.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.errors import CheckpointError, DatasetError
from parl_core.offline.dataset import NEEDED, OfflineDataset
from parl_core.replay.files import read_snapshot

__all__ = ["read_minari", "read_npz"]

D4RL_NAMES = {
    "obs": "observations",
    "action": "actions",
    "reward": "rewards",
    "next_obs": "next_observations",
    "terminal": "terminals",
    "truncated": "timeouts",
}


def read_npz(path: str | os.PathLike[str]) -> OfflineDataset:
    """Read a dataset from an `.npz` file; nothing is ever unpickled.

    Args:
        path: of a file with the keys above: a dataset's, a replay memory's, or one of D4RL's form.

    Raises:
        DatasetError: the file is missing or damaged, a key is missing, lengths differ, or a number is not finite.
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

    Args:
        dataset: its id, such as `"mujoco/hopper/medium-v0"`, or an object of `minari.load_dataset`.
        download: whether to fetch a dataset that is not on this machine.

    Raises:
        ImportError: minari is not installed; the message has the command.
        DatasetError: there is no such dataset here, it has no episodes, its observations are no arrays, or an episode's
            columns do not fit together.
    """
    if isinstance(dataset, str):
        try:
            minari: Any = import_module("minari")
        except ImportError as error:
            raise ImportError('Minari is not installed:\n    pip install "minari[hdf5]"', name="minari") from error
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
        if isinstance(episode.observations, Mapping | tuple):
            raise DatasetError(
                f"{name} has observations with parts ({type(episode.observations).__name__}); flatten them first, with "
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
                    "needs one row a step"
                )
            if columns[key] and column.shape[1:] != columns[key][0].shape[1:]:
                raise DatasetError(
                    f"{name}, episode {episode.id}: rows of {key} have the shape {list(column.shape[1:])}, those of "
                    f"episodes before it {list(columns[key][0].shape[1:])}; they must be the same"
                )
            columns[key].append(column)
    if not columns["obs"]:
        raise DatasetError(f"{name} has no episodes")
    return OfflineDataset.from_arrays({key: np.concatenate(parts) for key, parts in columns.items()}, name)


def _from_d4rl(source: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The columns under PARL's names, with the next observations of following rows where the file has none."""
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
        return given | {"next_obs": given["obs"]}  # refused where lengths are checked
    ended: NDArray[np.bool_] = np.asarray(given["terminal"].reshape(rows["obs"], -1).astype(np.bool_).any(axis=1))
    limits = np.asarray(given["truncated"].reshape(rows["obs"], -1).astype(np.bool_).any(axis=1))
    cut = np.append(limits[:-1], True)
    known = np.logical_or(ended, ~cut)
    after = np.concatenate([given["obs"][1:], given["obs"][-1:]])
    after[ended] = given["obs"][ended]  # of what terminated nothing follows, and nothing is learned from it
    # An episode whose last row is left out was cut one row earlier, if that row belongs to it.
    begun = np.append(True, ended[:-1] | cut[:-1])
    given["truncated"] = ~ended & np.append(~known[1:] & ~begun[1:], False)
    return {key: column[known] for key, column in given.items()} | {"next_obs": after[known]}


def _unrolled(source: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Rows of a saved ring in the order of their steps, one environment after the other."""
    size, position = (int(number) for number in arrays["other"])
    rows = arrays["reward"].shape[0] if "reward" in arrays and arrays["reward"].ndim else 0
    if not 0 <= size <= rows:
        raise DatasetError(f"{source} says it holds {size} transitions and has {rows} rows: it is damaged")
    environments = int(arrays["place"][3]) if "place" in arrays else 1
    oldest_first = (np.arange(size) + (position - size)) % rows if rows else np.arange(0)
    order = np.concatenate([oldest_first[first::environments] for first in range(environments)])
    unequal = {key: len(column) for key, column in arrays.items() if key in D4RL_NAMES and len(column) != rows}
    if unequal:
        return {key: column for key, column in arrays.items() if key in D4RL_NAMES}  # refused where lengths are checked
    return {key: column[order] for key, column in arrays.items() if key in D4RL_NAMES}
