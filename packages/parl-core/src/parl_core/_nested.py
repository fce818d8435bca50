"""Observations that are one array or a dictionary of arrays, and functions that apply to each array."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["GOAL_KEYS", "Observations", "holds_tensors", "leaves", "map_nested", "rows_of"]

GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")
"""Keys of an observation of Gymnasium's GoalEnv."""
Observations = Any
"""An array `[n, ...]`, or a (nested) dictionary of such arrays."""


def map_nested(function: Callable[..., Any], *values: Any) -> Any:
    """Apply `function` to arrays, or to the arrays of each key, and return its result or a dictionary of results."""
    first = values[0]
    if isinstance(first, Mapping):
        return {key: map_nested(function, *(value[key] for value in values)) for key in first}
    return function(*values)


def leaves(name: str, values: Observations, of: Callable[[Any], Any] = np.asarray) -> dict[str, Any]:
    """Return the arrays by name: `{"obs": array}`, or of a dictionary `{"obs.camera": array, "obs.speed": array}`.

    Args:
        name: The prefix of all names.
        values: The observations.
        of: The function that converts each part; the default makes arrays of lists and tensors.
    """
    if not isinstance(values, Mapping):
        return {name: of(values)}
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= leaves(f"{name}.{key}" if name else key, value, of)
    return found


def rows_of(values: Observations) -> int:
    """Return the number of rows, that of the first array."""
    while isinstance(values, Mapping):
        values = next(iter(values.values()))
    return len(values)


def holds_tensors(values: Observations) -> bool:
    """Return whether observations are tensors of a framework (any type with DLPack) instead of numpy arrays."""
    if isinstance(values, Mapping):
        return any(map(holds_tensors, values.values()))
    return hasattr(values, "__dlpack__") and not isinstance(values, (np.ndarray, np.generic))
