"""Observations that are dictionaries, in a memory that stores one array: a record a row.

    {"camera": [n, 3, 84, 84] uint8, "speed": [n] float32}  <──>  [n] records with the fields camera and speed

A memory made with `obs_dim=()` and the dtype of `storage_of(space)` holds, draws and saves such records like numbers.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core.errors import HyperparameterError
from parl_core.nested import Observations

__all__ = ["from_records", "storage_of", "to_records"]


def storage_of(space: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype in which observations of a space are stored; floating-point numbers as float32.

    Raises:
        HyperparameterError: they are neither an array nor a dictionary of arrays.
    """
    if isinstance(space, gymnasium.spaces.Dict) and space.spaces:
        fields = []
        for name, part in space.spaces.items():
            shape, dtype = storage_of(part)
            fields.append((name, dtype, shape))
        return (), np.dtype(fields, align=True)
    if space.shape is None or space.dtype is None or isinstance(space, gymnasium.spaces.Dict):
        raise HyperparameterError(
            f"a replay memory holds observations that are an array or a dictionary of arrays, got {space}; wrap the "
            "environment in gymnasium.wrappers.FlattenObservation"
        )
    dtype = np.dtype(space.dtype)
    return tuple(space.shape), np.dtype(np.float32) if dtype.kind == "f" else dtype


def to_records(obs: Observations, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Observations `[n, ...]` as a memory of this dtype stores them: arrays as they are, dictionaries as `[n]` records.

    Raises:
        KeyError: a field is not among the observations.
    """
    if dtype.names is None or not isinstance(obs, Mapping):
        return np.asarray(obs)
    parts = {name: to_records(obs[name], dtype[name].base) for name in dtype.names}
    records = np.empty(len(next(iter(parts.values()))), dtype)
    for name, part in parts.items():
        records[name] = part
    return records


def from_records(array: NDArray[Any]) -> Observations:
    """The opposite of `to_records`; the arrays of a dictionary look into the records."""
    if array.dtype.names is None:
        return array
    return {name: from_records(array[name]) for name in array.dtype.names}
