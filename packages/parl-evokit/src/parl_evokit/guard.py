"""Guard rails: a limit on updates, and a return to the trusted model if the present ones prove worse.

    traffic ─┬─ noise, around the present model          samples for updates
             ├─ control_share: the present model         ┐ rewards of the same hours,
             └─ holdout_share: the trusted model         ┘ compared at each update
                                                              │
    surely worse ─► back to the trusted model         better, or no worse by more than a margin ─► trusted from now on

Both arms are served at the same time, so that hour and season have no effect. Each update adds the difference of the
means of both arms with the weight 1 / (1/n + 1/m). The sum is compared with a boundary that holds at all times at once
(a normal mixture; Howard et al. 2021, "Time-uniform, nonparametric, nonasymptotic confidence sequences", equation 3.7;
Waudby-Smith et al. 2024 for estimated variances), so a check after each update does not raise the rate of false alarms:

    |sum - truth * I| <= sqrt((V + r s^2) * log((V + r s^2) / (r s^2 a^2)))   at all times, with probability 1 - a  (1)
    V = (E + 2 max(s^2 I, Q)) / 3                                                                                   (2)

with I the sum of the weights, s^2 the variance of all rewards so far, Q the sum of the weights
times the variance of each update's own rewards, and E the sum of the squares by which the rewards have moved the sum. Q
tends to s^2 I, and exceeds it while the spread of rewards grows, because s^2 includes the time before and the earlier
comparisons. I and s^2 alone are not enough if arms are unequal and rewards are skewed: if one visitor in 500 clicks, a
single click in the arm of 5 % moves the sum as much as twenty in the other arm, and s^2 hardly changes. With (2) and
the true variance the boundary holds for arms of any one distribution, since exp(x - x^2/6) <= 1 + x + x^2/3 for all x
(Delyon 2009, "Exponential inequalities for sums of weakly dependent variables"). For ordinary rewards E tends to s^2 I,
and V with it. Each comparison with another trusted model, the k-th, has a = level * 6 / (pi * k)^2, so that all of them
together raise a false alarm with a probability of at most `level`.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import fsum, log, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import FlatVector, under, within
from parl_evokit.config import GuardConfig

__all__ = ["Comparison", "Control", "Guard", "Verdict", "shortened"]

PIECE = 2**16
TIGHTEST = 100.0  # twice the r of (1), the number of rewards per arm at which it is narrowest
FORMER_NUMBERS = 8  # states of earlier versions lack `varied`
_PREFIX = "guard."


@dataclass(frozen=True)
class Control:
    """Rewards of one arm, as sums: those of several updates can be added up.

    Attributes:
        count: The number of rewards.
        total: The sum of the rewards.
        spread: The sum of squared differences from their mean; a sum of squares would round it off where the rewards
            have a large part in common.
    """

    count: int = 0
    total: float = 0.0
    spread: float = 0.0

    @classmethod
    def of(cls, rewards: Sequence[float]) -> "Control":
        """Return the sums of these rewards."""
        mean = fsum(rewards) / len(rewards) if rewards else 0.0
        return cls(len(rewards), fsum(rewards), fsum((reward - mean) ** 2 for reward in rewards))

    def __add__(self, other: "Control") -> "Control":
        count = self.count + other.count
        between = (self.mean - other.mean) ** 2 * (self.count * other.count / count) if count else 0.0
        return Control(count, self.total + other.total, self.spread + other.spread + between)

    @property
    def mean(self) -> float:
        """Mean of the rewards; 0 without rewards."""
        return self.total / self.count if self.count else 0.0


class Verdict(Enum):
    """The outcome of the comparison so far."""

    OPEN = "OPEN"
    WORSE = "WORSE"
    TRUSTED = "TRUSTED"


@dataclass(frozen=True)
class Comparison:
    """The comparison of the present models with the trusted one.

    Attributes:
        number: Number of the trusted model, 1 for the first.
        present: Rewards of the present models that wait until both arms have enough for one difference.
        holdout: The same for the trusted model.
        information: I of (1).
        total: The weighted sum of differences.
        squares: E of (2).
        spread: Squared differences from the mean within arms and updates.
        freedom: The degrees of freedom of `spread`.
        seen_present: Rewards of the present models that have been compared.
        seen_holdout: Rewards of the trusted model that have been compared.
        varied: Q of (2).
    """

    number: int = 1
    present: Control = Control()
    holdout: Control = Control()
    information: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    spread: float = 0.0
    freedom: int = 0
    seen_present: int = 0
    seen_holdout: int = 0
    varied: float = 0.0

    def with_rewards(self, present: Sequence[float], holdout: Sequence[float], fewest: int) -> "Comparison":
        """Return this with the rewards of one update, or of those since the last time that both arms had `fewest`."""
        a, b = self.present + Control.of(present), self.holdout + Control.of(holdout)
        waiting = Comparison(**{**vars(self), "present": a, "holdout": b})
        if min(a.count, b.count) < fewest:
            return waiting
        spread, freedom = a.spread + b.spread, a.count + b.count - 2
        weight = 1.0 / (1.0 / a.count + 1.0 / b.count)
        moved = sum(arm.spread / (arm.count * (arm.count - 1)) for arm in (a, b))
        return Comparison(
            self.number,
            information=self.information + weight,
            total=self.total + weight * (a.mean - b.mean),
            squares=self.squares + weight**2 * moved,
            spread=self.spread + spread,
            freedom=self.freedom + freedom,
            seen_present=self.seen_present + a.count,
            seen_holdout=self.seen_holdout + b.count,
            varied=self.varied + weight * spread / freedom,
        )

    @property
    def variance(self) -> float:
        """The variance of one reward, within arms and updates."""
        return self.spread / self.freedom if self.freedom else 0.0

    def interval(self, level: float) -> tuple[float, float]:
        """Return the bounds of (1) for the advantage of the present models."""
        if self.information <= 0.0 or self.variance <= 0.0:
            return -float("inf"), float("inf")
        a, least = level * 6.0 / (pi * self.number) ** 2, TIGHTEST / 2.0 * self.variance
        wide = (self.squares + 2.0 * max(self.variance * self.information, self.varied)) / 3.0 + least
        width = sqrt(wide * log(wide / (least * a * a)))
        return (self.total - width) / self.information, (self.total + width) / self.information

    def next(self) -> "Comparison":
        """Return the comparison with the next trusted model; it keeps the variance of this one."""
        return Comparison(self.number + 1, spread=self.spread, freedom=self.freedom)


class Guard:
    """The trusted model, and the decision whether the present one can be kept.

    Args:
        settings: The limits.
    """

    def __init__(self, settings: GuardConfig) -> None:
        self._settings = settings
        self.comparison = Comparison()
        self._number: int | None = None
        self._parameters: FlatVector | None = None
        self._state: dict[str, NDArray[Any]] = {}

    @property
    def trusted(self) -> tuple[int, FlatVector] | None:
        """Number and parameters of the trusted model; None while it is the present model."""
        return None if self._number is None or self._parameters is None else (self._number, self._parameters)

    def noting(self, present: Sequence[float], holdout: Sequence[float]) -> "Guard":
        """Return a guard that also counts these rewards, of the present models and of the trusted one.

        This guard does not change, because rewards that a failed update has read are read again.
        """
        if not self._settings.rollback or self._parameters is None:  # nothing to compare
            return self
        guard = copy.copy(self)
        guard.comparison = self.comparison.with_rewards(present, holdout, self._settings.min_control)
        return guard

    def verdict(self) -> Verdict:
        """Return whether the present model has to go, or can be trusted."""
        if not self._settings.rollback or self._parameters is None:
            return Verdict.OPEN
        low, high = self.comparison.interval(self._settings.level)
        if high < 0.0:
            return Verdict.WORSE
        margin = self._settings.margin * sqrt(self.comparison.variance)
        return Verdict.TRUSTED if low > -margin and self.comparison.information > 0.0 else Verdict.OPEN

    def reason(self) -> str:
        """Return the comparison in words."""
        low, high = self.comparison.interval(self._settings.level)
        c = self.comparison
        return (
            f"rewards without noise since model {self._number} are {c.total / c.information:.6g} beside it "
            f"({c.seen_present} and {c.seen_holdout} samples of the same hours); the interval that holds at all times, "
            f"from {low:.6g} to {high:.6g}, is below 0"
        )

    def updated(self, number: int, parameters: FlatVector, state: Mapping[str, NDArray[Any]]) -> "Guard":
        """Return a guard for the model that replaces this one, which becomes the trusted model if none exists."""
        if not self._settings.rollback or self._parameters is not None:
            return self
        guard = copy.copy(self)
        guard._number, guard._parameters, guard._state = number, parameters.copy(), dict(state)
        return guard

    def trust_present(self) -> "Guard":
        """Return a guard that trusts the present model."""
        guard = copy.copy(self)
        guard.comparison = self.comparison.next()
        guard._number, guard._parameters, guard._state = None, None, {}
        return guard

    def revert(self) -> tuple[FlatVector, dict[str, NDArray[Any]]]:
        """Return parameters and solver state of the trusted model, which becomes the present one."""
        assert self._parameters is not None
        parameters, state = self._parameters, self._state
        self.comparison = self.comparison.next()
        self._number, self._parameters, self._state = None, None, {}
        return parameters, state

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays for a file; empty if no rule needs it."""
        if not self._settings.rollback:
            return {}
        c = self.comparison
        arms = [[arm.count, arm.total, arm.spread] for arm in (c.present, c.holdout)]
        numbers = [c.number, c.information, c.total, c.squares, c.spread, c.freedom, c.seen_present, c.seen_holdout]
        numbers.append(c.varied)
        arrays: dict[str, NDArray[Any]] = {
            _PREFIX + "arms": np.array(arms, np.float64),
            _PREFIX + "comparison": np.array(numbers, np.float64),
        }
        if self._parameters is not None:
            arrays[_PREFIX + "number"] = np.array(self._number, np.int64)
            arrays[_PREFIX + "parameters"] = self._parameters
            arrays |= under(f"{_PREFIX}state.", self._state)
        return arrays

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Restore the arrays of `state`, and return the other arrays.

        Without `rollback` nothing is restored, as nothing is saved. States of earlier versions are not restored,
        because these compared other times or used other weights.
        """
        own = within(_PREFIX, state)
        if "comparison" in own and self._settings.rollback:
            numbers = own["comparison"].tolist()
            if len(numbers) == FORMER_NUMBERS:
                numbers.append(0.0)
            number, information, total, squares, spread, freedom, present_seen, holdout_seen, varied = numbers
            if "arms" in own:
                present, holdout = (Control(int(count), *sums) for count, *sums in own["arms"].tolist())
            else:
                present, holdout = (_of_squares(int(count), *sums) for count, *sums in own["waiting"].tolist())
            counts = int(freedom), int(present_seen), int(holdout_seen)
            self.comparison = Comparison(
                int(number), present, holdout, information, total, squares, spread, *counts, varied
            )
            self._parameters = own.get("parameters")
            self._number = int(own["number"]) if self._parameters is not None else None
            self._state = within("state.", own)
        return {name: array for name, array in state.items() if not name.startswith(_PREFIX)}


def _of_squares(count: int, total: float, squares: float) -> Control:
    """Return the sums of an arm in state of earlier versions, which has the sum of squares."""
    return Control(count, total, max(0.0, squares - total**2 / count) if count else 0.0)


def shortened(before: FlatVector, after: FlatVector, ratio: float, std: float | FlatVector = 0.0) -> FlatVector:
    """Return `after`, moved towards `before` if it is farther away than `ratio` times the norm of `before`.

    For models that are smaller than their perturbations, the typical norm of a perturbation counts instead.

    Args:
        before: Parameters `[n]`.
        after: The next parameters `[n]`.
        ratio: Limit of the distance relative to the norm of `before`; 0 for no limit.
        std: Deviation of the noise.
    """
    if not ratio:
        return after
    noise = _length(std) if isinstance(std, np.ndarray) else sqrt(len(before)) * float(std)
    length = max(_length(before), noise)
    step = _length(after, before)
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
