"""What all vector environments understand of Gymnasium's autoreset: its modes by name, and masks of whom to reset."""

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from parl_core.errors import HyperparameterError

__all__ = ["chosen_by", "mode_of"]


def mode_of(given: str | AutoresetMode) -> AutoresetMode:
    """The mode that a user gave, by its name, its value or itself.

    Raises:
        HyperparameterError: there is no such mode.
    """
    for mode in AutoresetMode:
        if given in (mode, mode.value, mode.name):
            return mode
    known = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
    raise HyperparameterError(f"autoreset_mode must be one of {known}, got {given!r}")


def chosen_by(mask: Any, count: int) -> npt.NDArray[np.bool_] | None:
    """Which environments the option `reset_mask` chooses; None where it was not given.

    Raises:
        HyperparameterError: it is not a bool array `[count]`.
    """
    if mask is None:
        return None
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != (count,):
        raise HyperparameterError(
            f"reset_mask must be a bool array of shape [{count}], got {array.dtype} of shape {list(array.shape)}"
        )
    return array
