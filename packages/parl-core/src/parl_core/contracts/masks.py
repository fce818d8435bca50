"""Masks of actions: which of the discrete actions are possible in each state.

A mask is True (or 1) where an action is possible, `[batch, act_dim]`. It is given as `action_mask=`, or comes with
observations that are a dictionary under the key `action_mask`, as PettingZoo's environments have it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["check_mask", "mask_of"]

_KEY = "action_mask"


def mask_of(obs: Any, given: Any = None) -> Any:
    """The mask that was given, else the one among the observations, else None; of arrays or tensors."""
    if given is None and isinstance(obs, Mapping):
        return obs.get(_KEY)
    return given


def check_mask(mask: Any, sizes: tuple[int, ...] | None = None) -> NDArray[np.bool_]:
    """A mask as booleans `[batch, act_dim]`.

    Args:
        mask: bool, or numbers 0 and 1.
        sizes: of multi-discrete actions: number of choices of each part, whose masks lie side by side.

    Raises:
        ValueError: another shape or other numbers, or a row that leaves no action.
    """
    array = np.asarray(mask)
    if array.ndim != 2:
        raise ValueError(f"action_mask must have shape [batch, act_dim], got {array.shape}")
    if array.dtype != np.bool_:
        if not np.isin(array, (0, 1)).all():
            raise ValueError(f"action_mask must hold booleans or 0 and 1, got dtype {array.dtype} with other numbers")
        array = array.astype(np.bool_)
    sizes = (array.shape[1],) if sizes is None else sizes
    if sum(sizes) != array.shape[1]:
        raise ValueError(f"action_mask must have {sum(sizes)} columns for actions of sizes {sizes}, got {array.shape}")
    for part in np.split(array, np.cumsum(sizes)[:-1], axis=1):
        impossible = np.flatnonzero(~part.any(axis=1))
        if impossible.size:
            raise ValueError(
                f"action_mask leaves no action in row {impossible[0]} ({impossible.size} such rows of {len(array)}); "
                "at least one action must be possible in every state that is acted in"
            )
    return array
