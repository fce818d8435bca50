"""Weights and learning rates of the CMA family, from Hansen's tutorial (2016, arXiv 1604.00772), section 4 and table 1.

Numbers beside the lines are those of the tutorial's equations.
"""

import functools
from dataclasses import dataclass
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rates", "Recombination", "default_population", "expected_norm", "log_ranks", "sorted_log_ranks"]


@dataclass(frozen=True)
class Rates:
    """The rates that table 1 derives from the dimension and the effective number of parents.

    Attributes:
        c_sigma: Memory of the path of the step size.
        d_sigma: Damping of the step size.
        c_c: Memory of the path of the covariance.
        c_1: Learning rate of the rank-one update.
        c_mu: Learning rate of the rank-mu update.
    """

    c_sigma: float
    d_sigma: float
    c_c: float
    c_1: float
    c_mu: float

    @classmethod
    def of(cls, n: int, mueff: float, faster: float = 1.0) -> "Rates":
        """Return the rates for `n` parameters; `faster` multiplies those of the covariance."""
        c_sigma = (mueff + 2) / (n + mueff + 5)  # (55)
        d_sigma = 1 + 2 * max(0.0, sqrt((mueff - 1) / (n + 1)) - 1) + c_sigma  # (55)
        c_c = (4 + mueff / n) / (n + 4 + 2 * mueff / n)  # (56)
        c_1 = min(1.0, faster * 2 / ((n + 1.3) ** 2 + mueff))  # (57)
        c_mu = min(1 - c_1, faster * 2 * (mueff - 2 + 1 / mueff) / ((n + 2) ** 2 + mueff))  # (58)
        return cls(c_sigma, d_sigma, c_c, c_1, c_mu)

    def moving(self, norm: float, steps: int, n: int) -> bool:
        """Return h_sigma: whether the path of the step size is short enough to trust that of the covariance."""
        return norm / sqrt(1 - (1 - self.c_sigma) ** (2 * steps)) < (1.4 + 2 / (n + 1)) * expected_norm(n)


def default_population(n: int) -> int:
    """Return 4 + floor(3 ln n)  (48)."""
    return 4 + int(3 * log(max(n, 1)))


def expected_norm(n: int) -> float:
    """Return the expected length of a vector of `n` standard normal numbers."""
    return sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))


@functools.lru_cache(maxsize=64)
def _logs(count: int) -> NDArray[np.float64]:
    logs: NDArray[np.float64] = log((count + 1) / 2) - np.log(np.arange(1, count + 1))
    logs.flags.writeable = False
    return logs


def log_ranks(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln((k + 1) / 2) - ln rank for each of `k` rewards, the best having rank 1  (49).

    Equal rewards share the mean of their ranks, so that order does not matter.
    """
    order = np.argsort(-rewards, kind="stable")
    logs = np.empty(len(rewards))
    logs[order] = sorted_log_ranks(rewards[order])
    return logs


def sorted_log_ranks(descending: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `log_ranks` of rewards of which the largest comes first."""
    count = len(descending)
    if not np.count_nonzero(descending[1:] == descending[:-1]):
        return _logs(count)
    first, last = (np.searchsorted(-descending, -descending, side) for side in ("left", "right"))
    logs: NDArray[np.float64] = log((count + 1) / 2) - np.log((first + last + 1) / 2)
    return logs


class Recombination(NamedTuple):
    """Weights of rewards by rank.

    Attributes:
        parents: Weights of the better half, which add up to 1; the others' are 0  (50).
        active: All weights: also those below 0 of the worse half, of the active update  (53).
        positive: How many of these are 0 or more.
        mueff: The effective number of parents.
        rates: The learning rates that go with it.
    """

    parents: NDArray[np.float64]
    active: NDArray[np.float64]
    positive: int
    mueff: float
    rates: Rates

    @classmethod
    def of(cls, raw: NDArray[np.float64], n: int) -> "Recombination":
        """Return the weights for `sorted_log_ranks` that are not all 0, and `n` parameters."""
        return _untied(len(raw), n) if raw is _logs(len(raw)) else cls._of(raw, n)

    @classmethod
    def _of(cls, raw: NDArray[np.float64], n: int) -> "Recombination":
        parents = np.maximum(raw, 0.0)
        parents /= parents.sum()
        mueff = 1.0 / float(np.square(parents).sum())
        rates = Rates.of(n, mueff)
        return cls(parents, parents + _negative(raw, n, mueff, rates), int(np.count_nonzero(raw >= 0)), mueff, rates)


@functools.lru_cache(maxsize=64)
def _untied(count: int, n: int) -> Recombination:
    return Recombination._of(_logs(count), n)


def _negative(raw: NDArray[np.float64], n: int, mueff: float, rates: Rates) -> NDArray[np.float64]:
    """Return the weights of the worse half (50 to 53), as small as keeps C positive definite."""
    negative = np.minimum(raw, 0.0)
    size = -float(negative.sum())
    if size == 0.0 or rates.c_mu == 0.0:
        return np.zeros_like(raw)
    mueff_negative = size**2 / float(np.square(negative).sum())
    allowed = min(
        1 + rates.c_1 / rates.c_mu,  # (50)
        1 + 2 * mueff_negative / (mueff + 2),  # (51)
        (1 - rates.c_1 - rates.c_mu) / (n * rates.c_mu),  # (52)
    )
    return negative * allowed / size
