"""Outputs of a policy in numpy: softmax and cross entropy of logits, actions mapped from [-1, 1] to their bounds."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["action_mapping", "np_cross_entropy", "np_softmax"]

Floats = NDArray[np.floating[Any]]

TOLERANCE = 1e-3  # tanh in half precision can round to values slightly outside


def np_softmax(logits: ArrayLike) -> Floats:
    """Return the softmax over the last axis, for logits of any size."""
    x = _floats(logits)
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def np_cross_entropy(probs: ArrayLike, labels: ArrayLike) -> Floats:
    """Return the cross entropy -sum_k labels_k log probs_k.

    Args:
        probs: `[..., K]` probabilities; 0 counts as the smallest positive number of the dtype.
        labels: `[..., K]` probabilities, or `[..., 1]` class numbers.

    Returns:
        `[..., 1]`.

    Raises:
        IndexError: A class number is outside 0 ... K - 1.
    """
    p = _floats(probs)
    wanted = np.asarray(labels)
    log_p = np.log(np.maximum(p, np.finfo(p.dtype).tiny))
    if wanted.shape[-1] == 1 and p.shape[-1] != 1:
        return -np.take_along_axis(log_p, wanted.astype(np.int64), axis=-1)
    return np.asarray(-(wanted * log_p).sum(axis=-1, keepdims=True))


def _floats(array: ArrayLike) -> Floats:
    given = np.asarray(array)
    return given if np.issubdtype(given.dtype, np.floating) else given.astype(np.float64)


def action_mapping(model_output_act: ArrayLike, low_bound: ArrayLike, high_bound: ArrayLike) -> NDArray[Any]:
    """Map actions from [-1, 1] to [low_bound, high_bound].

    Args:
        model_output_act: `[..., *act]` in [-1, 1].
        low_bound: The action for -1; a number, or one for each dimension.
        high_bound: The action for 1.

    Returns:
        Actions of the same shape, never outside of the bounds.

    Raises:
        ValueError: An action is outside [-1, 1] by more than rounding, or NaN; or a low bound exceeds its high bound.
    """
    action, low, high = np.asarray(model_output_act), np.asarray(low_bound), np.asarray(high_bound)
    if not (np.abs(action) <= 1.0 + TOLERANCE).all():
        raise ValueError(f"actions must be in [-1, 1] (use tanh, or clip them), got {action}")
    if not (low <= high).all():
        raise ValueError(f"low_bound must not be above high_bound, got {low} and {high}")
    # In float64, and without the difference of the bounds, which may overflow their dtype.
    weight = np.clip(0.5 * (action.astype(np.float64) + 1.0), 0.0, 1.0)
    mapped = np.clip((1.0 - weight) * low + weight * high, low, high)
    return np.asarray(mapped, np.result_type(action, low, high))
