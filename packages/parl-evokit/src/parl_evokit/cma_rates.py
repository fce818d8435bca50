"""Weights and learning rates of the CMA family, from Hansen's tutorial (2016, arXiv 1604.00772), section 4 and table 1.

Numbers beside the lines are those of the tutorial's equations.
"""

from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rates", "default_population", "expected_norm", "log_ranks"]


@dataclass(frozen=True)
class Rates:
    """What table 1 derives from the dimension and the effective number of parents.

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
        """The rates for `n` parameters; `faster` multiplies those of the covariance."""
        c_sigma = (mueff + 2) / (n + mueff + 5)  # (55)
        d_sigma = 1 + 2 * max(0.0, sqrt((mueff - 1) / (n + 1)) - 1) + c_sigma  # (55)
        c_c = (4 + mueff / n) / (n + 4 + 2 * mueff / n)  # (56)
        c_1 = min(1.0, faster * 2 / ((n + 1.3) ** 2 + mueff))  # (57)
        c_mu = min(1 - c_1, faster * 2 * (mueff - 2 + 1 / mueff) / ((n + 2) ** 2 + mueff))  # (58)
        return cls(c_sigma, d_sigma, c_c, c_1, c_mu)

    def moving(self, norm: float, steps: int, n: int) -> bool:
        """h_sigma: whether the path of the step size is short enough to trust the path of the covariance."""
        return norm / sqrt(1 - (1 - self.c_sigma) ** (2 * steps)) < (1.4 + 2 / (n + 1)) * expected_norm(n)


def default_population(n: int) -> int:
    """4 + floor(3 ln n)  (48)."""
    return 4 + int(3 * log(max(n, 1)))


def expected_norm(n: int) -> float:
    """The expected length of a vector of `n` standard normal numbers."""
    return sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))


def log_ranks(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """ln((k + 1) / 2) - ln rank for each of `k` samples, the best having rank 1  (49).

    Equal rewards share the mean of their ranks, so that order does not matter.
    """
    ascending = np.sort(-rewards)
    first, last = (np.searchsorted(ascending, -rewards, side) for side in ("left", "right"))
    logs: NDArray[np.float64] = log((len(rewards) + 1) / 2) - np.log((first + last + 1) / 2)
    return logs
