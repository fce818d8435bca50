"""Masks of actions: which of the discrete actions are possible in each state.

A mask is True (or 1) where an action is possible, `[batch, act_dim]`. It is given as `action_mask=`, or comes with
observations that are a dictionary under the key `action_mask`, as PettingZoo's environments have it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["check_mask", "check_possible", "mask_of"]

_KEY = "action_mask"


def mask_of(obs: Any, given: Any = None) -> Any:
    """The mask that was given, else the one among the observations, else None; of arrays or tensors."""
    if given is None and isinstance(obs, Mapping):
        return obs.get(_KEY)
    return given


def check_mask(
    mask: Any, sizes: tuple[int, ...] | None = None, *, unless: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """A mask as booleans `[batch, act_dim]`.

    Args:
        mask: bool, or numbers 0 and 1.
        sizes: of multi-discrete actions: number of choices of each part, whose masks lie side by side.
        unless: bool `[batch]`, rows that may have no action.

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
    if unless is not None and len(unless) != len(array):
        raise ValueError(f"action_mask must have {len(unless)} rows, one for each of the batch, got {array.shape}")
    for part in np.split(array, np.cumsum(sizes)[:-1], axis=1):
        none = ~part.any(axis=1)
        impossible = np.flatnonzero(none if unless is None else none & ~unless)
        if impossible.size:
            raise ValueError(
                f"action_mask leaves no action in row {impossible[0]} ({impossible.size} such rows of {len(array)}); "
                "at least one action must be possible in every state that is acted in"
            )
    return array


def check_possible(action: NDArray[np.int64], mask: NDArray[np.bool_], sizes: tuple[int, ...] | None = None) -> None:
    """Refuse actions that could not be taken: their probability is 0, and its logarithm spoils all weights.

    Args:
        action: `[batch]`, or of multi-discrete actions `[batch, len(sizes)]`.
        mask: as `check_mask` returns it, of as many rows.
        sizes: as for `check_mask`.

    Raises:
        ValueError: the mask has other rows or too few columns, or does not allow an action.
    """
    if len(mask) != len(action):
        raise ValueError(f"action_mask must have {len(action)} rows, one for each action, got {mask.shape}")
    columns = action.reshape(len(action), -1) + np.cumsum((0, *(sizes or ())[:-1]))
    if columns.size and columns.max() >= mask.shape[1]:
        raise ValueError(f"actions up to {action.max()} do not fit an action_mask of {mask.shape[1]} columns")
    forbidden = np.flatnonzero(~np.take_along_axis(mask, columns, axis=1).all(axis=1))
    if forbidden.size:
        row = forbidden[0]
        raise ValueError(
            f"action {action[row]} in row {row} is one that action_mask does not allow ({forbidden.size} such rows of "
            f"{len(action)}): the mask has to be that of the state in which the action was chosen"
        )
