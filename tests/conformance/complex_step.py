"""Gradients of numpy functions by complex steps: exact to rounding, and derived from nothing but the loss itself.

    f'(x) = Im f(x + i h) / h,  h = 1e-30

There is no difference of nearby numbers that could lose digits (Squire & Trapp 1998, SIAM Review 40(1)). Functions that
are not analytic (minimum, absolute value, clipping) branch by the real part here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.model import Weights

__all__ = ["absolute", "clip", "gradient", "layers", "logsumexp", "minimum", "squashed_log_prob"]

Numbers = NDArray[Any]
_STEP = 1e-30


def gradient(loss: Callable[[Weights], Any], weights: Weights, names: Sequence[str]) -> Weights:
    """Derivatives of `loss(weights)` by every number of the weights whose names begin with one of `names`."""
    found: Weights = {}
    for name, array in weights.items():
        if not name.startswith(tuple(names)):
            continue
        slope = np.empty(array.size)
        for index in range(array.size):
            moved = array.astype(np.complex128)
            moved.flat[index] += 1j * _STEP
            slope[index] = np.imag(loss(weights | {name: moved})) / _STEP
        found[name] = slope.reshape(array.shape)
    return found


def layers(weights: Weights, names: Sequence[str], inputs: Numbers) -> Numbers:
    """Dense layers one after the other, tanh after each but the last."""
    for name in names:
        linear = inputs @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        inputs = linear if name == names[-1] else np.tanh(linear)
    return inputs


def minimum(one: Numbers, other: Numbers) -> Numbers:
    """The smaller one of each pair."""
    return np.where(one.real <= other.real, one, other)


def absolute(values: Numbers) -> Numbers:
    """Absolute values."""
    return np.where(values.real < 0.0, -values, values)


def clip(values: Numbers, low: float, high: float) -> Numbers:
    """Values kept in [low, high]."""
    return np.where(values.real < low, low, np.where(values.real > high, high, values))


def logsumexp(values: Numbers, axis: int = 0) -> Numbers:
    """log(sum(exp(values))) along an axis."""
    largest = values.real.max(axis=axis, keepdims=True)
    total: Numbers = np.log(np.exp(values - largest).sum(axis=axis)) + np.squeeze(largest, axis)
    return total


def squashed_log_prob(u: Numbers, mean: Numbers, log_std: Numbers) -> Numbers:
    """Log-density of tanh(u), u drawn from N(mean, exp(log_std)), summed over dimensions."""
    normal = -0.5 * ((u - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2.0 * np.pi)
    log_prob: Numbers = (normal - np.log(1.0 - np.tanh(u) ** 2)).sum(axis=-1)
    return log_prob
