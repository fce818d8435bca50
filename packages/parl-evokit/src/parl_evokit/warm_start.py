"""Where CMA-ES should begin, given solutions of a similar task (Nomura et al. 2021, arXiv 2012.06932, section 4.2).

The best part of them, each blurred by a normal distribution of variance spread**2, is a mixture; the normal
distribution that is nearest to it has their mean m and

    S = 1/k * sum (x - m)(x - m)^T + spread**2 * I,      sigma = det(S)**(1 / 2n),   C = S / sigma**2
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_evokit.errors import InvalidReward, LayoutMismatch

__all__ = ["Promising", "promising_region"]


LARGEST_SPREAD = 1e30  # beyond, float32 parameters have no room


class Promising(NamedTuple):
    """A normal distribution to begin with: mean `[n]`, step size, covariance of determinant 1.

    The covariance is `[n, n]`, or its diagonal `[n]` where it is separable.
    """

    mean: NDArray[np.float64]
    sigma: float
    covariance: NDArray[np.float64]


def promising_region(
    solutions: ArrayLike, rewards: ArrayLike, *, best: float = 0.1, spread: float = 0.1, separable: bool = False
) -> Promising:
    """The distribution that known solutions suggest.

    Args:
        solutions: Parameters `[k, n]`.
        rewards: Larger is better, `[k]`.
        best: The part of them that counts, above 0 to 1; at least one does.
        spread: How far from each solution others as good are expected, as a standard deviation; above 0.
        separable: Whether the covariance shall be diagonal; then `[n, n]` numbers are never made.

    Raises:
        LayoutMismatch: `solutions` is no table of finite numbers.
        InvalidReward: There is not one finite reward a solution.
        ValueError: `best` or `spread` is out of its range.
    """
    table, worth = np.asarray(solutions, np.float64), np.asarray(rewards, np.float64)
    if table.ndim != 2 or not table.size:
        raise LayoutMismatch(f"solutions are finite numbers [k, n], not an array of shape {table.shape}")
    if not np.isfinite(table).all():
        first = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
        raise LayoutMismatch(f"solutions are finite numbers; number {first} has others")
    if worth.shape != (len(table),):
        raise InvalidReward(f"{len(table)} solutions need one finite reward each, not an array of shape {worth.shape}")
    if not np.isfinite(worth).all():
        first = int(np.flatnonzero(~np.isfinite(worth))[0])
        raise InvalidReward(f"{len(table)} solutions need one finite reward each; number {first} has {worth[first]}")
    if not 0.0 < best <= 1.0:
        raise ValueError(f"best is a part of the solutions, above 0 to 1, not {best}")
    if not 0.0 < spread < LARGEST_SPREAD:
        raise ValueError(f"spread is a standard deviation above 0 and below {LARGEST_SPREAD:g}, not {spread}")
    chosen = table[np.argsort(-worth, kind="stable")[: max(1, int(best * len(table)))]]
    mean = chosen.mean(axis=0)
    deviations = chosen - mean
    if separable:
        variances = np.square(deviations).mean(axis=0) + spread**2
        sigma = float(np.exp(np.log(variances).mean() / 2))
        return Promising(mean, sigma, variances / sigma**2)
    covariance = deviations.T @ deviations / len(chosen) + spread**2 * np.eye(table.shape[1])
    log_determinant = float(np.linalg.slogdet(covariance)[1])
    sigma = float(np.exp(log_determinant / (2 * table.shape[1])))
    return Promising(mean, sigma, covariance / sigma**2)
