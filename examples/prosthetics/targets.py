"""Target speeds that change during an episode, and their curriculum.

share of the training   0 ........ fast ................ fast + widen ........ 1
target speeds           the highest      widening down         all of them
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parl_core.checks import check_fraction, check_positive
from parl_core.errors import HyperparameterError

__all__ = ["SPEEDS", "Curriculum", "Speeds", "TargetSpeed"]


class Speeds(NamedTuple):
    """Range of target speeds, in metres per second."""

    low: float
    high: float


SPEEDS = Speeds(0.5, 2.0)
"""Target speeds of the walker."""


class TargetSpeed:
    """A target that is drawn again after random numbers of steps.

    Args:
        speeds: Range of target speeds.
        mean_steps: Mean number of steps of a target (exponentially distributed), above 0.
        rng: Generator of both.

    Raises:
        HyperparameterError: The speeds are out of order, or a number is out of its range.
    """

    def __init__(self, speeds: Speeds, mean_steps: float, rng: np.random.Generator) -> None:
        check_positive("the lowest target speed", speeds.low)
        if check_positive("the highest target speed", speeds.high) < speeds.low:
            raise HyperparameterError(f"target speeds must be (low, high), got {tuple(speeds)}")
        self._speeds, self._mean, self._rng = speeds, check_positive("mean_steps", mean_steps), rng
        self._draw()

    def step(self) -> float:
        """Advance by one step, and return the present target."""
        self._left -= 1
        if self._left <= 0:
            self._draw()
        return self.value

    def _draw(self) -> None:
        self.value = float(self._rng.uniform(*self._speeds))
        self._left = 1 + int(self._rng.exponential(self._mean))


@dataclass(frozen=True)
class Curriculum:
    """A curriculum of target speeds: first the highest, then a growing range, and finally all.

    Attributes:
        speeds: Final range of target speeds.
        fast: Share of the training with the highest speed only.
        widen: Share of the training over which the lowest speed then decreases.
    """

    speeds: Speeds = SPEEDS
    fast: float = 0.2
    widen: float = 0.2

    def __post_init__(self) -> None:
        if check_fraction("fast", self.fast) + check_fraction("widen", self.widen) > 1.0:
            raise HyperparameterError(f"fast={self.fast} and widen={self.widen} are more than the whole training")

    def at(self, progress: float) -> Speeds:
        """Return the range of target speeds after a share of the training, in [0, 1]."""
        low, high = self.speeds
        if progress <= self.fast:
            return Speeds(high, high)
        sunk = 1.0 if self.widen == 0.0 else min(1.0, (progress - self.fast) / self.widen)
        return Speeds(high - sunk * (high - low), high)
