"""The samples that updates have used: a reward that comes again finds its sample here, and changes nothing.

    update N ─► used-N.npy: keys, sorted within each model ─► a link in later directories, until its models are too old

A sample is forgotten together with its model's `max_age`: from then on its rewards are set aside as too old. Keys of
the present model need not be looked for, since no earlier update can have had them. So what is held is mapped from
files, and an update costs nothing but the look-up of its stale samples.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._samples import NO_KEY, Samples, distinct
from parl_evokit.errors import SolverError
from parl_evokit.noise._keys import CONTROL_KEY

__all__ = ["UsedSamples"]


@dataclass(frozen=True, eq=False)
class _Batch:
    """The samples that one update has used.

    Attributes:
        update: The number of the model that it made.
        ranges: {model: (first row, row after the last)}.
        keys: Ascending within each model.
    """

    update: int
    ranges: Mapping[int, tuple[int, int]]
    keys: NDArray[np.uint64]

    @property
    def name(self) -> str:
        return f"used-{self.update}.npy"


class UsedSamples:
    """The samples that updates have used, as far back as their models may still be rewarded; immutable.

    Args:
        batches: Of the updates.
    """

    def __init__(self, batches: Iterable[_Batch] = ()) -> None:
        self._batches = tuple(batches)

    def __len__(self) -> int:
        return sum(stop - start for batch in self._batches for start, stop in batch.ranges.values())

    def has(self, samples: Samples) -> NDArray[np.bool_]:
        """Return which of these samples have been used, `[n]`."""
        found = np.zeros(len(samples), np.bool_)
        if not self._batches:
            return found
        for model in distinct(samples.models):
            rows = np.flatnonzero(samples.models == model)
            keys = samples.keys[rows]
            for batch in self._batches:
                if model not in batch.ranges:
                    continue
                known = batch.keys[slice(*batch.ranges[model])]
                places = np.searchsorted(known, keys)
                places[places == len(known)] = 0
                found[rows] |= known[places] == keys
        return found

    def adding(
        self, keys: NDArray[np.uint64], models: NDArray[np.int64], update: int, oldest: int, trusted: int | None = None
    ) -> "UsedSamples":
        """Return these and those that an update has used.

        Args:
            keys: Of what it has used; those that cannot be told apart are left out.
            models: Of each.
            update: The number of the model that it made.
            oldest: Models before this one are forgotten.
            trusted: But not this one.
        """
        kept = [
            batch
            for batch in self._batches
            if (max(batch.ranges) >= oldest or trusted in batch.ranges) and batch.update != update
        ]
        rows = (keys != CONTROL_KEY) & (keys != NO_KEY) & ((models >= oldest) | (models == trusted))
        if not rows.all():
            keys, models = keys[rows], models[rows]
        ranges: dict[int, tuple[int, int]] = {}
        parts: list[NDArray[np.uint64]] = []
        size = 0
        for model in distinct(models):
            part = np.sort(keys[models == model])
            part = part[np.append(True, part[1:] != part[:-1])]
            parts.append(part)
            ranges[model] = (size, size + len(part))
            size += len(part)
        if parts:
            kept.append(_Batch(update, ranges, np.concatenate(parts)))
        return UsedSamples(kept)

    def write(self, directory: Path) -> dict[str, dict[str, list[int]]]:
        """Write into a directory what is not there yet, and remove what is forgotten.

        Returns:
            For `read`: the ranges of each file.
        """
        names = {batch.name for batch in self._batches}
        for path in directory.glob("used-*.npy"):
            if path.name not in names:
                path.unlink()
        for batch in self._batches:
            path = directory / batch.name
            if not path.exists() or path.stat().st_size != _size(batch.keys):
                path.unlink(missing_ok=True)
                with path.open("xb") as file:
                    np.save(file, batch.keys, allow_pickle=False)
        return {batch.name: {str(model): list(rows) for model, rows in batch.ranges.items()} for batch in self._batches}

    @classmethod
    def read(cls, directory: Path, ranges: Mapping[str, Mapping[str, Any]]) -> "UsedSamples":
        """Return what `write` wrote.

        Raises:
            SolverError: A file is missing, or not what `ranges` says.
        """
        batches = []
        for name, models in ranges.items():
            path = directory / name
            try:
                keys = np.load(path, mmap_mode="r", allow_pickle=False)
                rows = {int(model): (int(first), int(last)) for model, (first, last) in models.items()}
                update = int(name.removeprefix("used-").removesuffix(".npy"))
            except (OSError, ValueError) as error:
                raise SolverError(f"{path} cannot be read: {error}") from error
            if keys.dtype != np.uint64 or not rows or max(last for _, last in rows.values()) != len(keys):
                raise SolverError(f"{path} does not hold the keys of {dict(models)}")
            batches.append(_Batch(update, rows, keys))
        return cls(batches)


def _size(keys: NDArray[np.uint64]) -> int:
    """Return the size of numpy's file of these keys: a header of 128 bytes and the numbers."""
    return 128 + keys.nbytes
