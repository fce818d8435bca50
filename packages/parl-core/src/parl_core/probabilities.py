"""Softmax and cross entropy in numpy, for tests and for policies without a framework."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["np_cross_entropy", "np_softmax"]

Floats = NDArray[np.floating[Any]]


def np_softmax(logits: ArrayLike) -> Floats:
    """Softmax over the last axis, for logits of any size."""
    x = _floats(logits)
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def np_cross_entropy(probs: ArrayLike, labels: ArrayLike) -> Floats:
    """Cross entropy -sum_k labels_k log probs_k.

    Args:
        probs: `[..., K]` probabilities; one that is 0 counts as the smallest positive number of its type.
        labels: `[..., K]` probabilities, or `[..., 1]` class numbers.

    Returns:
        `[..., 1]`.

    Raises:
        IndexError: a class number is outside 0 ... K - 1.
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
