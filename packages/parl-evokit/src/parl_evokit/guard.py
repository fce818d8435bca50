"""Guard rails: how far an update may go, and back to the last model when the present one turns out to be worse.

    control traffic (no noise) --> mean reward of each model --> present one below the last one's interval? --> revert
    update --> longer than max_update_ratio allows? --> shortened

Control rewards are collected over any number of updates until a model has `min_control` of them; before that nothing is
concluded. A model that is reverted is not come back to: the next one has the last one's parameters and a number of its
own, so that samples of the bad one are known as such.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import FlatVector, under, within
from parl_evokit.config import GuardConfig

__all__ = ["Control", "Guard", "shortened"]

NORMAL_975 = 1.959963984540054  # between minus and plus this lie 95 % of a normal distribution
PIECE = 2**16
_PREFIX = "guard."


@dataclass(frozen=True)
class Control:
    """Control rewards of one model, as sums: those of several updates can be added up.

    Attributes:
        count: How many.
        total: Their sum.
        squares: The sum of their squares.
    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, rewards: Sequence[float]) -> "Control":
        """Return the sums of these rewards."""
        return cls(len(rewards), fsum(rewards), fsum(reward * reward for reward in rewards))

    def __add__(self, other: "Control") -> "Control":
        return Control(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def mean(self) -> float:
        """Mean of the rewards; 0 for none."""
        return self.total / self.count if self.count else 0.0

    @property
    def lower(self) -> float:
        """The lower end of the 95 % interval of the mean."""
        if self.count < 2:
            return -float("inf")
        variance = max(0.0, self.squares - self.count * self.mean**2) / (self.count - 1)
        return self.mean - NORMAL_975 * sqrt(variance / self.count)


class Guard:
    """Remembers the last model, and decides whether the present one may stay.

    Args:
        settings: What is allowed.
    """

    def __init__(self, settings: GuardConfig) -> None:
        self._settings = settings
        self._present = Control()
        self._last = Control()
        self._parameters: FlatVector | None = None
        self._state: dict[str, NDArray[Any]] = {}

    def noting(self, present: Sequence[float], last: Sequence[float]) -> "Guard":
        """Return a guard that also knows these control rewards of the present model and of the one before it.

        This one stays as it is: what an update that fails has read will be read again.
        """
        if not self._settings.rollback:  # then nothing is ever concluded from them
            return self
        guard = copy.copy(self)
        guard._present = self._present + Control.of(present)
        if self._parameters is not None:
            guard._last = self._last + Control.of(last)
        return guard

    def verdict(self) -> str:
        """Return why the present model has to go; empty while it may stay."""
        few = min(self._present.count, self._last.count) < self._settings.min_control
        if not self._settings.rollback or self._parameters is None or few:
            return ""
        if self._present.mean >= self._last.lower:
            return ""
        return (
            f"its mean control reward is {self._present.mean:.6g} ({self._present.count} samples), below the 95 % "
            f"interval of the model before it, which begins at {self._last.lower:.6g} ({self._last.count} samples)"
        )

    def updated(self, parameters: FlatVector, state: Mapping[str, NDArray[Any]]) -> None:
        """Note that a new model takes the place of one with these parameters and this solver state."""
        self._last, self._present = self._present, Control()
        if self._settings.rollback:
            self._parameters, self._state = parameters.copy(), dict(state)

    def revert(self) -> tuple[FlatVector, dict[str, NDArray[Any]]]:
        """Return parameters and solver state of the last model, which becomes the present one, with none before it."""
        assert self._parameters is not None
        parameters, state = self._parameters, self._state
        self._present, self._last = self._last, Control()
        self._parameters, self._state = None, {}
        return parameters, state

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays for a file; nothing where no rule needs it."""
        if not self._settings.rollback:
            return {}
        arrays: dict[str, NDArray[Any]] = {
            _PREFIX + "control": np.array([[c.count, c.total, c.squares] for c in (self._present, self._last)])
        }
        if self._parameters is not None:
            arrays[_PREFIX + "parameters"] = self._parameters
            arrays |= under(f"{_PREFIX}state.", self._state)
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Take over what `state` gave, and return the rest of the arrays."""
        own = within(_PREFIX, state)
        if "control" in own:
            present, last = own["control"].tolist()
            self._present = Control(int(present[0]), present[1], present[2])
            self._last = Control(int(last[0]), last[1], last[2])
        self._parameters = own.get("parameters")
        self._state = within("state.", own)
        return {name: array for name, array in state.items() if not name.startswith(_PREFIX)}


def shortened(before: FlatVector, after: FlatVector, ratio: float) -> FlatVector:
    """Return `after`, or as far in its direction as `ratio` times the length of `before` reaches.

    Args:
        before: Parameters `[n]`.
        after: The next ones `[n]`.
        ratio: 0 for no limit; a model that is all zero is not limited, for it has no length to go by.
    """
    if not ratio:
        return after
    length, step = _length(before), _length(after, before)
    if not length or step <= ratio * length:
        return after
    factor = ratio * length / step
    return (before + factor * (after.astype(np.float64) - before)).astype(np.float32)


def _length(vector: FlatVector, origin: FlatVector | None = None) -> float:
    """Return the Euclidean length, the same bits on any machine: squares are exact, their sum is rounded once."""
    total: list[float] = []
    for start in range(0, len(vector), PIECE):
        piece = vector[start : start + PIECE].astype(np.float64)
        if origin is not None:
            piece -= origin[start : start + PIECE]
        total.append(fsum(np.square(piece).tolist()))
    return sqrt(fsum(total))
