"""Weighted sums of integers that no order, thread count, BLAS or CPU can change.

Rows of noise are at most `LARGEST_UNIT` in size. While the weights' sizes add up to no more than `INT32_BUDGET`, a sum
of weighted rows fits into 32 bits, where numpy is fastest; it is flushed to 64 bits before it could overflow. Larger
weights are cut into pieces of `PIECE_BITS` bits first.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from parl_evokit.noise.quantiles import LARGEST_UNIT

__all__ = ["add_weighted_rows", "batches", "pieces"]

INT32_BUDGET = (2**31 - 1) // LARGEST_UNIT
PIECE_BITS = 16


def pieces(weights: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """Cut weights into (shift, int32 weights), such that they are the sum of the pieces times 2**shift.

    Weights that fit the budget alone, as ranks of up to 60 000 samples do, come back in one piece.
    """
    shift = 0
    while weights.size:
        if int(np.abs(weights).max()) <= INT32_BUDGET:
            yield shift, weights.astype(np.int32)
            return
        upper = weights >> PIECE_BITS
        yield shift, (weights - (upper << PIECE_BITS)).astype(np.int32)
        weights = upper
        shift += PIECE_BITS


def batches(weights: NDArray[np.int32], most: int) -> Iterator[slice]:
    """Cut the rows into runs of at most `most`, in each of which a 32-bit sum cannot overflow."""
    start = 0
    while start < len(weights):
        sizes = np.cumsum(np.abs(weights[start : start + most], dtype=np.int64))
        count = max(1, int(np.searchsorted(sizes, INT32_BUDGET, side="right")))
        yield slice(start, start + count)
        start += count


def add_weighted_rows(
    total: NDArray[np.int64], weights: NDArray[np.int32], rows: NDArray[np.int32], shift: int = 0
) -> None:
    """Add the weighted sum of rows to `total`, in place.

    Args:
        total: `[n]`.
        weights: `[k]`, one of the runs that `batches` gave.
        rows: `[k, n]`.
        shift: The sum counts 2**shift times.
    """
    subtotal = np.einsum("k,kn->n", weights, rows)
    if shift:
        total += subtotal.astype(np.int64) << shift
    else:
        total += subtotal
