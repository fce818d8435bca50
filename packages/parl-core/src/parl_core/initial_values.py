"""Initial values of a parameter that a model makes by itself: what `layers.create_parameter` takes, checked."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_core.checks import check_int, check_real
from parl_core.errors import HyperparameterError

__all__ = ["Initializer", "TrainedDtype", "checked_dtype", "checked_shape", "given_values", "glorot_limit"]

Initializer = float | Callable[[tuple[int, ...]], ArrayLike]
"""A number for all entries, or a function of the shape."""


TrainedDtype = Literal["float16", "float32", "float64"]
_DTYPES: tuple[TrainedDtype, ...] = ("float16", "float32", "float64")


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape as a tuple; `()` is that of a single number.

    Raises:
        HyperparameterError: a size is no whole number of at least 1, or `shape` is no sequence.
    """
    if isinstance(shape, (str, int)):
        raise HyperparameterError(f"shape must list the sizes of all dimensions, such as [3] or [8, 4], got {shape!r}")
    return tuple(check_int(f"shape[{i}]", size) for i, size in enumerate(shape))


def checked_dtype(dtype: str) -> TrainedDtype:
    """The name of a dtype that can be trained.

    Raises:
        HyperparameterError: it is another one.
    """
    for known in _DTYPES:
        if dtype == known:
            return known
    raise HyperparameterError(f"a parameter's dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")


def given_values(initializer: Initializer, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """What the caller gave, as an array of the shape.

    Raises:
        HyperparameterError: numbers that are not finite, or of another shape.
    """
    if not callable(initializer):
        return np.full(shape, check_real("default_initializer", initializer))
    values = np.asarray(initializer(shape), np.float64)
    if values.shape != shape or not np.isfinite(values).all():
        wrong = f"shape {values.shape}" if values.shape != shape else "numbers that are not finite"
        raise HyperparameterError(f"default_initializer must return finite numbers of shape {shape}, got {wrong}")
    return values


def glorot_limit(shape: tuple[int, ...]) -> float:
    """sqrt(6 / (fan in + fan out)), the range of Glorot & Bengio 2010, equation 16; a vector's fans are its length."""
    fans = shape[:2] if len(shape) > 1 else (math.prod(shape),) * 2
    window = math.prod(shape[2:])
    return math.sqrt(6.0 / (sum(fans) * window))
