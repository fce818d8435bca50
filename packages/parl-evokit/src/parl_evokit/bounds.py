"""A box that parameters must not leave: samples are mirrored at its sides.

    fold(x) = x within the box; beyond a side, as far inside of it as x is outside, back and forth if need be

Mirroring keeps what evolution strategies rely on: two samples that are close stay close, no side collects samples as
clipping does, and a sample's parameters remain a function of its key.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parl_evokit.errors import ConfigError

__all__ = ["Bounds"]


@dataclass(frozen=True, eq=False)
class Bounds:
    """Lower and upper sides of a box, float64 `[n]` each; an infinite one is no side.

    Raises:
        ConfigError: A lower side is not below its upper one, or is not a number.
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]

    def __post_init__(self) -> None:
        wrong = np.flatnonzero(~(self.lower < self.upper))
        if wrong.size:
            k = int(wrong[0])
            raise ConfigError(f"lower must be below upper; of parameter {k} they are {self.lower[k]}, {self.upper[k]}")

    @classmethod
    def of(cls, lower: Sequence[float], upper: Sequence[float], n: int) -> "Bounds | None":
        """The box for `n` parameters.

        Args:
            lower: One number for all parameters, one for each, or none for no lower sides.
            upper: The same for the upper sides.
            n: How many parameters.

        Returns:
            None if there are no sides at all.

        Raises:
            ConfigError: There are neither none, one nor `n` numbers, or see above.
        """
        if not lower and not upper:
            return None
        return cls(_spread("lower", lower, n, -np.inf), _spread("upper", upper, n, np.inf))

    @property
    def finite(self) -> bool:
        """Whether all sides are."""
        return bool(np.isfinite(self.lower).all() and np.isfinite(self.upper).all())

    def fold(self, x: NDArray[np.floating]) -> None:
        """Mirror `x` `[n]` or `[k, n]` into the box, in place."""
        low, high = self.lower, self.upper
        inside = (x >= low) & (x <= high)
        if inside.all():
            return
        both = np.isfinite(low) & np.isfinite(high)
        with np.errstate(invalid="ignore"):
            width = np.where(both, high - low, 1.0)
            way = np.mod(x - np.where(both, low, 0.0), 2 * width)
            twice = np.where(both, low, 0.0) + np.where(way > width, 2 * width - way, way)
            once = np.where(x < low, 2 * low - x, np.where(x > high, 2 * high - x, x))
        x[...] = np.where(inside, x, np.where(both, twice, once))
        np.clip(x, low, high, out=x, casting="same_kind")  # rounding to float32 may have gone a last digit too far


def _spread(name: str, given: Sequence[float], n: int, none: float) -> NDArray[np.float64]:
    if len(given) not in {0, 1, n}:
        raise ConfigError(f"{name} has one number for all parameters or one for each of the {n}, not {len(given)}")
    if not given:
        return np.full(n, none)
    return np.broadcast_to(np.asarray(given, np.float64), (n,)).copy()
