"""Statistics of observations and rewards as arrays and files: what all normalising wrappers save and restore alike."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.errors import CheckpointError
from parl_core.replay.files import read_snapshot, write_snapshot
from parl_core.stats import RunningMeanStd

__all__ = ["SavedStatistics", "statistics_of"]

_NAMES = ("mean", "var", "count")


class SavedStatistics:
    """Base of wrappers with running statistics, of which `ob` are those of observations, `ret` those of rewards."""

    def _statistics(self) -> dict[str, RunningMeanStd]:
        """What is normalised here, by part."""
        raise NotImplementedError

    def get_state(self) -> dict[str, NDArray[np.float64]]:
        """Copies of all statistics, by name."""
        return {
            f"{part}_{name}": np.array(value, np.float64)
            for part, rms in self._statistics().items()
            for name, value in rms.state_dict().items()
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned, of environments with the same observations.

        A wrapper that leaves rewards alone takes the statistics of observations alone.

        Raises:
            CheckpointError: statistics are missing, of another shape, or not finite; nothing was changed.
        """
        loaded: dict[str, RunningMeanStd] = {}
        for part, rms in self._statistics().items():
            names = {name: f"{part}_{name}" for name in _NAMES}
            if missing := [name for name in names.values() if name not in state]:
                raise CheckpointError(f"the saved normalisation lacks {', '.join(missing)}; it has {sorted(state)}")
            if spoiled := [name for name in names.values() if not np.isfinite(state[name]).all()]:
                raise CheckpointError(f"the saved normalisation is not finite in {', '.join(spoiled)}")
            loaded[part] = RunningMeanStd(rms.mean.shape)
            try:
                loaded[part].load_state_dict({name: state[key] for name, key in names.items()})
            except ValueError as error:
                raise CheckpointError(str(error)) from error
        for part, rms in self._statistics().items():  # into the objects that are there: others may share them
            rms.load_state_dict(loaded[part].state_dict())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the statistics to an `.npz` file, under its name only when it is complete, and return its path."""
        return write_snapshot(path, self.get_state())

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file of `save`, of this or of another wrapper.

        Raises:
            CheckpointError: it is missing, damaged, or of other observations.
        """
        state = read_snapshot(path, set())
        try:
            self.set_state(state)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error


def statistics_of(env: Any) -> SavedStatistics:
    """The outermost wrapper with statistics around an environment or a vector of them.

    Raises:
        TypeError: there is none.
    """
    inner = env
    while inner is not None:
        if isinstance(inner, SavedStatistics):
            return inner
        inner = getattr(inner, "env", None)
    raise TypeError(
        f"normalization= takes an environment with running statistics, such as NormalizeVector(envs) or wrap_rms(env, "
        f"gamma), got {env!r}"
    )
