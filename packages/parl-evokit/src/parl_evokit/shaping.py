"""Fitness shaping: functions from rewards to the weights of the samples' noise.

Every function returns `Utilities`: one integer per sample, and the utility of the integer 1. Integers make updates
exact, because their sums do not depend on order. Means and deviations use correctly rounded sums, which do not depend
on order either. Rewards are maximised: a larger reward has a larger utility.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum, inf, sqrt

import numpy as np
from numpy.typing import NDArray

from parl_evokit.errors import InvalidReward

__all__ = ["Shaping", "Utilities", "centered", "centered_rank", "normalized", "sign", "top_directions"]

FIXED_POINT = 2**15


@dataclass(frozen=True)
class Utilities:
    """Utilities of `n` samples: `weights * unit`.

    Attributes:
        weights: Integers `[n]`.
        unit: The utility of weight 1, 0 or more.
    """

    weights: NDArray[np.int64]
    unit: float

    @property
    def values(self) -> NDArray[np.float64]:
        """The utilities as floats `[n]`."""
        return self.weights.astype(np.float64) * self.unit


Shaping = Callable[[NDArray[np.float64]], Utilities]
"""A function from rewards to utilities, both of shape `[samples]`."""


def centered_rank(rewards: NDArray[np.float64]) -> Utilities:
    """Return ranks, spread evenly over -0.5 to 0.5; equal rewards share their mean (Salimans et al. 2017).

    Args:
        rewards: Finite, `[n]`.

    Returns:
        Weights 2 * rank - (n - 1), they add up to 0.

    Raises:
        InvalidReward: A reward is not finite.
    """
    n = len(rewards)
    order = rewards.argsort()
    ascending = rewards[order]
    if n and not -inf < ascending.item(0) <= ascending.item(-1) < inf:  # any NaN is last
        _require_finite(rewards)
    if not np.count_nonzero(ascending[1:] == ascending[:-1]):
        weights = np.empty(n, np.int64)
        weights[order] = _ranks(n)
        return Utilities(weights, 0.5 / max(1, n - 1))
    # Equal rewards have the ranks from `first` to `last` - 1, so twice their mean rank is first + last - 1.
    first = np.flatnonzero(np.append(True, ascending[1:] != ascending[:-1]))
    last = np.append(first[1:], n)
    weights = np.empty(n, np.int64)
    weights[order] = np.repeat(first + last - n, last - first)
    return Utilities(weights, 0.5 / max(1, n - 1))


def centered(rewards: NDArray[np.float64]) -> Utilities:
    """Return rewards minus their mean, in steps of 2**-15 of the largest difference.

    Args:
        rewards: Finite, `[n]`.

    Raises:
        InvalidReward: A reward is not finite.
    """
    return _fixed_point(_deviations(rewards), 1.0)


def normalized(rewards: NDArray[np.float64]) -> Utilities:
    """Return rewards minus their mean, divided by their standard deviation (0 when all are equal).

    Args:
        rewards: Finite, `[n]`.

    Raises:
        InvalidReward: A reward is not finite.
    """
    deviations = _deviations(rewards)
    return _fixed_point(deviations, _inverse_spread(deviations))


def sign(rewards: NDArray[np.float64]) -> Utilities:
    """Return 1 above the median, -1 below it, 0 at it.

    Args:
        rewards: Finite, `[n]`.

    Raises:
        InvalidReward: A reward is not finite.
    """
    _require_finite(rewards)
    if not len(rewards):
        return Utilities(np.zeros(0, np.int64), 1.0)
    return Utilities(np.sign(rewards - np.median(rewards)).astype(np.int64), 1.0)


def top_directions(rewards: NDArray[np.float64], keys: Sequence[int] | NDArray[np.uint64], k: int) -> Utilities:
    """Return utilities by the rule of augmented random search (Mania et al. 2018, algorithm 2).

    A direction is a mirrored pair of keys and is as good as its better half. The rewards of the chosen directions are
    normalised among themselves; all others get 0.

    Args:
        rewards: Finite, `[n]`.
        keys: The samples' keys, `[n]`; halves of a pair differ in the lowest bit only, and a half may be missing.
        k: The number of directions to use, 1 or more; all if there are fewer.

    Raises:
        InvalidReward: A reward is not finite, or keys and rewards differ in number.
        ValueError: `k` is below 1.
    """
    _require_finite(rewards)
    if len(keys) != len(rewards):
        raise InvalidReward(f"{len(rewards)} rewards came with {len(keys)} keys")
    if k < 1:
        raise ValueError(f"k counts directions and must be 1 or more, not {k}")
    used = _of_best_directions(rewards, keys, k)
    deviations = np.zeros(len(rewards))
    deviations[used] = _deviations(rewards[used])
    return _fixed_point(deviations, _inverse_spread(deviations[used]))


def _of_best_directions(
    rewards: NDArray[np.float64], keys: Sequence[int] | NDArray[np.uint64], k: int
) -> NDArray[np.bool_]:
    """Return the mask `[n]` of the samples of the `k` best directions; see `top_directions`."""
    pairs, place = np.unique(np.asarray(keys, np.uint64) >> np.uint64(1), return_inverse=True)
    best = np.full(len(pairs), -np.inf)
    np.maximum.at(best, place, rewards)
    # Equal directions are chosen by their keys, which do not depend on the order of the samples as positions would.
    return np.isin(place, np.lexsort((pairs, -best))[:k])


@functools.lru_cache(maxsize=16)
def _ranks(n: int) -> NDArray[np.int64]:
    """Return 2 * rank - (n - 1) for the ranks from 0 on, read-only."""
    ranks = np.arange(1 - n, n, 2)
    ranks.flags.writeable = False
    return ranks


def _require_finite(rewards: NDArray[np.float64]) -> None:
    finite = np.isfinite(rewards)
    if np.count_nonzero(finite) < len(finite):
        bad = np.flatnonzero(~finite)
        raise InvalidReward(
            f"rewards must be finite; {bad.size} are not, the first is number {bad[0]}: {rewards[bad[0]]}"
        )


def _deviations(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    _require_finite(rewards)
    # The mean of equal rewards, divided after their sum was rounded, may miss them by a last digit.
    if not len(rewards) or rewards.min() == rewards.max():
        return np.zeros(len(rewards))
    return rewards - fsum(rewards) / len(rewards)


def _inverse_spread(deviations: NDArray[np.float64]) -> float:
    variance = fsum(np.square(deviations)) / max(1, len(deviations))
    return 1.0 / sqrt(variance) if variance > 0.0 else 0.0


def _fixed_point(deviations: NDArray[np.float64], scale: float) -> Utilities:
    largest = float(np.abs(deviations).max(initial=0.0))
    if largest == 0.0:
        return Utilities(np.zeros(len(deviations), np.int64), 0.0)
    return Utilities(np.rint(deviations / largest * FIXED_POINT).astype(np.int64), largest * scale / FIXED_POINT)
