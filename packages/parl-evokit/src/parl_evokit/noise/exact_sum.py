"""Weighted sums of noise that no order, thread count, BLAS or CPU can change: they are sums of integers.

Units of noise are at most `LARGEST_UNIT` in size. While the weights' sizes add up to no more than `INT32_BUDGET`, a sum
of weighted rows fits into 32 bits, where numpy is fastest; it is flushed to 64 bits before it could overflow. Large
weights would make these runs short, so they are cut into pieces of a few bits first.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit.errors import EvolutionError
from parl_evokit.noise.gaussian import GaussianNoise, chunks
from parl_evokit.noise.keys import CONTROL_KEY, check_keys
from parl_evokit.noise.quantiles import LARGEST_UNIT

__all__ = ["ExactSum", "sum_of_squares"]

INT32_BUDGET = (2**31 - 1) // LARGEST_UNIT
LARGEST_WHOLE = 2**12  # weights up to this are not cut: a run has some 30 rows or more
PIECE_BITS = 7
Keys = Sequence[int] | NDArray[np.uint64]
ENTRIES = 2**19  # of noise held at a time: two megabytes


class ExactSum:
    """The sum of weight times unit over samples, for any stretch of coordinates.

    It depends on nothing but the set of (key, weight).

    Args:
        noise: Whose units.
        keys: `[k]`, in any order; halves of a pair are joined, the control key adds nothing.
        weights: `[k]`; their sizes add up to at most 2**48.

    Raises:
        EvolutionError: The weights are too large, or their number is not that of the keys.
        InvalidKey: See `check_key`.
    """

    def __init__(
        self, noise: GaussianNoise, keys: Sequence[int] | NDArray[np.uint64], weights: NDArray[np.int64]
    ) -> None:
        self._noise = noise
        self._pairs, joined = _joined_pairs(keys, weights)
        self._pieces = list(_pieces(joined))

    def part(self, start: int, count: int) -> NDArray[np.int64]:
        """The sum for the coordinates `start` to `start + count - 1`, an array `[count]`."""
        total = np.zeros(count, np.int64)
        most = max(1, ENTRIES // max(1, min(count, self._noise.row_chunk)))
        runs = [(run, piece[run], shift) for shift, piece in self._pieces for run in _runs(piece, most)]
        for chunk in chunks(count, self._noise.row_chunk, start):
            here = total[chunk.start - start : chunk.stop - start]
            rows_of = self._noise.rows(self._pairs, chunk.start, chunk.stop - chunk.start)
            for run, weights, shift in runs:
                subtotal = np.einsum("k,kn->n", weights, rows_of(run))
                here += subtotal.astype(np.int64) << shift if shift else subtotal
        return total


def _joined_pairs(keys: Keys, weights: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """One weight a pair: that of the even key minus that of the odd one; pairs that cancel out are left away."""
    numbers = check_keys(keys)
    if numbers.shape != np.shape(weights):
        raise EvolutionError(f"{len(numbers)} keys came with weights of shape {np.shape(weights)}")
    if not numbers.size:
        return numbers, np.zeros(0, np.int64)
    if float(np.abs(weights, dtype=np.float64).sum()) > 2.0**48:
        raise EvolutionError("the weights of a sum may add up to 2**48, these are larger: scale them down")
    signed = np.where(numbers & np.uint64(1), -weights, weights)
    pairs = numbers >> np.uint64(1)
    order = np.argsort(pairs)
    pairs = pairs[order]
    first = np.flatnonzero(np.concatenate(([True], pairs[1:] != pairs[:-1])))
    pairs, joined = pairs[first], np.add.reduceat(signed[order], first)
    kept = (joined != 0) & (pairs != CONTROL_KEY)
    return pairs[kept], joined[kept]


def _pieces(weights: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """Cut weights into (shift, int32 weights), such that they are the sum of the pieces times 2**shift.

    Weights up to `LARGEST_WHOLE`, such as the ranks of 2000 pairs, come back in one piece.
    """
    shift = 0
    while weights.size:
        if int(np.abs(weights).max()) <= LARGEST_WHOLE:
            yield shift, weights.astype(np.int32)
            return
        upper = weights >> PIECE_BITS
        yield shift, (weights - (upper << PIECE_BITS)).astype(np.int32)
        weights = upper
        shift += PIECE_BITS


def _runs(weights: NDArray[np.int32], most: int) -> Iterator[slice]:
    """Cut the rows into runs of at most `most`, in each of which a 32-bit sum cannot overflow."""
    start = 0
    while start < len(weights):
        sizes = np.cumsum(np.abs(weights[start : start + most], dtype=np.int64))
        count = max(1, int(np.searchsorted(sizes, INT32_BUDGET, side="right")))
        yield slice(start, start + count)
        start += count


def sum_of_squares(noise: GaussianNoise, keys: Keys, weights: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """The sum of weight times squared unit over samples, `[size]`: exact in any order, then rounded once.

    Args:
        noise: Whose units.
        keys: `[k]`.
        weights: `[k]`; their sizes add up to less than 2**34, so that no sum reaches 2**63.
        size: How many coordinates, from 0 on.

    Raises:
        EvolutionError: The weights are too large.
    """
    budget = int(np.abs(weights).sum())
    if budget >= 2**34:
        raise EvolutionError("the weights of a sum of squares add up to less than 2**34, these do not: scale them down")
    # Up to 2**53 a float64 holds every whole number, and numpy multiplies floats several times faster.
    kind: type[Any] = np.float64 if budget < 2**24 else np.int64
    pairs = np.asarray(keys, np.uint64) >> np.uint64(1)
    scaled = weights.astype(kind)
    total = np.empty(size)
    most = max(1, ENTRIES // 4 // max(1, min(size, noise.row_chunk)))
    for chunk in chunks(size, noise.row_chunk):
        rows_of = noise.rows(pairs, chunk.start, chunk.stop - chunk.start)
        runs = (slice(first, first + most) for first in range(0, len(pairs), most))
        total[chunk] = sum((scaled[run] @ np.square(rows_of(run).astype(kind)) for run in runs), kind(0))
    return total
