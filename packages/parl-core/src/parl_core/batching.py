"""One observation as a batch of one, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["batched", "unbatched"]


def batched(obs: Any, ndim: Any) -> tuple[Any, bool]:
    """The observations as a batch, and whether it was a single one.

    Args:
        obs: one observation or a batch: an array, or a dictionary of such.
        ndim: as `parl.Agent`'s `obs_ndim`.

    Raises:
        ValueError: the number of dimensions fits neither.
    """
    if isinstance(obs, Mapping):
        if not obs:
            raise ValueError("an observation that is a dictionary needs at least one entry, got {}")
        parts = {
            key: batched(value, ndim.get(key) if isinstance(ndim, Mapping) else ndim) for key, value in obs.items()
        }
        singles = {single for _, single in parts.values()}
        if len(singles) > 1:
            raise ValueError(
                "some entries of the observation look like one, some like a batch: "
                f"{ {key: np.shape(value) for key, value in obs.items()} }; "
                "set agent.obs_ndim to a dictionary of the number of dimensions of each"
            )
        return {key: batch for key, (batch, _) in parts.items()}, singles.pop()
    array = np.asarray(obs)
    if ndim is None:
        if array.ndim in (1, 3):
            return array[None], True
        if array.ndim in (2, 4):
            return array, False
    elif array.ndim == ndim + 1:
        return array, False
    elif array.ndim == ndim:
        return array[None], True
    expected = "1 or 3 dimensions (one) or 2 or 4 (a batch)" if ndim is None else f"{ndim} or {ndim + 1} dimensions"
    raise ValueError(
        f"cannot tell one observation from a batch: got shape {array.shape}, expected {expected}; "
        "set agent.obs_ndim to the number of dimensions of one observation"
    )


def unbatched(actions: Any, single: bool) -> Any:
    """The rows of a batch, or the only row where it was one observation: a number as Python's, a tuple by its parts."""
    if not single:
        return actions
    if isinstance(actions, tuple):
        return tuple(unbatched(part, single) for part in actions)
    row = actions[0]
    return row.item() if np.ndim(row) == 0 else row
