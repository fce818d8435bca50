"""Target speeds that change in the middle of an episode, and the curriculum that they follow during training.

share of the training   0 ........ fast ................ fast + widen ........ 1
speeds that are asked   the highest      widening down         all of them
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parl_core.checks import check_fraction, check_positive
from parl_core.errors import HyperparameterError

__all__ = ["SPEEDS", "Curriculum", "Speeds", "TargetSpeed"]


class Speeds(NamedTuple):
    """Target speeds that may be asked for, from `low` to `high`, in metres per second."""

    low: float
    high: float


SPEEDS = Speeds(0.5, 2.0)
"""The target of the walker."""


class TargetSpeed:
    """A target that stays for a random number of steps, and is then drawn anew.

    Args:
        speeds: what is asked for.
        mean_steps: how long a target stays, on average (exponentially distributed), above 0.
        rng: draws both.

    Raises:
        HyperparameterError: the speeds are out of order, or a number is out of its range.
    """

    def __init__(self, speeds: Speeds, mean_steps: float, rng: np.random.Generator) -> None:
        check_positive("the lowest target speed", speeds.low)
        if check_positive("the highest target speed", speeds.high) < speeds.low:
            raise HyperparameterError(f"target speeds must be (low, high), got {tuple(speeds)}")
        self._speeds, self._mean, self._rng = speeds, check_positive("mean_steps", mean_steps), rng
        self._draw()

    def step(self) -> float:
        """Let one step pass, and return the target that holds from now on."""
        self._left -= 1
        if self._left <= 0:
            self._draw()
        return self.value

    def _draw(self) -> None:
        self.value = float(self._rng.uniform(*self._speeds))
        self._left = 1 + int(self._rng.exponential(self._mean))


@dataclass(frozen=True)
class Curriculum:
    """First as fast as is ever asked for, then ever slower ones too, and at last all.

    Attributes:
        speeds: what is asked for at last.
        fast: share of the training with the highest alone.
        widen: share over which the lowest speed then sinks.
    """

    speeds: Speeds = SPEEDS
    fast: float = 0.2
    widen: float = 0.2

    def __post_init__(self) -> None:
        if check_fraction("fast", self.fast) + check_fraction("widen", self.widen) > 1.0:
            raise HyperparameterError(f"fast={self.fast} and widen={self.widen} are more than the whole training")

    def at(self, progress: float) -> Speeds:
        """Return the speeds asked for when this share of the training has passed, in [0, 1]."""
        low, high = self.speeds
        if progress <= self.fast:
            return Speeds(high, high)
        sunk = 1.0 if self.widen == 0.0 else min(1.0, (progress - self.fast) / self.widen)
        return Speeds(high - sunk * (high - low), high)
