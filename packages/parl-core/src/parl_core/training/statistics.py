"""Figures over seeds: the interquartile mean and its bootstrap interval.

Agarwal et al. 2021 (arXiv:2108.13264), sections 4.1 and 4.3: a mean over few seeds follows its outliers, a median
wastes half of them; the mean of the middle half does neither.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_core.checks import check_fraction, check_int
from parl_core.errors import HyperparameterError

__all__ = ["Interval", "bootstrap_interval", "interquartile_mean"]


class Interval(NamedTuple):
    """Lower and upper bound."""

    low: float
    high: float


def interquartile_mean(values: ArrayLike, axis: int = -1) -> NDArray[np.float64]:
    """Mean of the middle half along an axis.

    Values that lie across a quartile count by their share inside: of five values the outer ones count 0, the second and
    fourth 0.75, the middle one 1. (Rounding to whole values would make it a plain mean below four.)

    Args:
        values: at least one along the axis.
        axis: over which to average.

    Raises:
        HyperparameterError: there are none.
    """
    array = np.sort(np.moveaxis(np.asarray(values, np.float64), axis, -1), axis=-1)
    n = array.shape[-1]
    if not n:
        raise HyperparameterError("the interquartile mean needs at least one value, got none")
    edges = np.linspace(0.0, 1.0, n + 1)
    shares = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    mean: NDArray[np.float64] = (array * (shares / shares.sum())).sum(axis=-1)
    return mean


def bootstrap_interval(values: ArrayLike, confidence: float = 0.95, resamples: int = 20_000, seed: int = 0) -> Interval:
    """Percentile bootstrap interval of the interquartile mean of `values`, one a seed.

    Args:
        values: `[seeds]`.
        confidence: share of resamples inside.
        resamples: how many are drawn.
        seed: of the draws, so that a table stays the same.

    Raises:
        HyperparameterError: there are no values, or a number is out of range.
    """
    array = np.asarray(values, np.float64)
    check_fraction("confidence", confidence)
    if array.ndim != 1 or not array.size:
        raise HyperparameterError(f"a bootstrap needs one value a seed, got shape {list(array.shape)}")
    rows = np.random.default_rng(seed).integers(array.size, size=(check_int("resamples", resamples), array.size))
    means = interquartile_mean(array[rows])
    outside = (1.0 - confidence) / 2.0
    low, high = np.quantile(means, [outside, 1.0 - outside])
    return Interval(float(low), float(high))
