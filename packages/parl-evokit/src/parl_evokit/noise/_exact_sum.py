"""Exact weighted sums of noise: sums of whole numbers, which do not depend on order, threads, BLAS or CPU.

float32 represents every whole number up to 2**24, and products and sums of such numbers are exact as long as they stay
below that. Units of noise are at most `LARGEST_UNIT` in size. So weights are split into digits of a few bits, and
numpy's matrix product multiplies digits with a few rows at a time. These exact products are added in 64 bits, or in
Python's integers if 64 bits may not suffice. A power of two that all weights share is applied last (ranks of pairs are
all even):

    weight = 2**zeros * (d0 + 64 * d1 + 4096 * d2 ...)         digits from -32 to 31, or small weights unchanged
    sum    = 2**zeros * sum over runs and digits of  64**i * (digits of the run @ rows of the run)
"""

from __future__ import annotations  # so that nested functions are cheap to define

import functools
import operator
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from parl_evokit.errors import EvolutionError
from parl_evokit.noise._gaussian import MOST_KEPT, GaussianNoise, NoiseRows, chunks
from parl_evokit.noise._keys import CONTROL_KEY, check_keys
from parl_evokit.noise._spec import LARGEST_UNIT

__all__ = ["ExactSum", "sum_of_squares", "weighted_moments"]

BUDGET = 2**24 // LARGEST_UNIT  # maximum sum of the absolute digits of one run
DIGIT_BITS = 6
HALF_DIGIT = 2 ** (DIGIT_BITS - 1)
RUNS = (32, 16, 8)  # rows of a run; digits of up to 29 rows are always within the budget
LONGEST = RUNS[0]
LARGEST_SIZE = 2.0**48  # maximum sum of all weights times `LARGEST_UNIT`, which fits 64 bits
UPPER_SHIFT = 24  # the sum of weights below 2**24 of all possible records is smaller
MOST_RUNS = 2**6  # their sums fit 32 bits, and each is below 2**24 in size
COLUMNS = 2**14  # coordinates summed at a time
ENTRIES = 2**18  # size of noise held at a time: about a second-level cache
LONG_ROW = 2**12  # coordinates from which noise is copied into memory that is kept
AT_ONCE_ENTRIES = 2**19  # size of the noise of the single run of a sum
SHORT_ENTRIES = 2**17  # size of rows below that, up to which the allocator reuses memory
SQUARES_BUDGET = 2**34  # limit of absolute weights, so that no sum of squares reaches 2**63
FLOAT64_SUM, FLOAT64_BUDGET = 2**53 // LARGEST_UNIT, 2**53 // LARGEST_UNIT**2  # the same in float64, and for squares
Keys = Sequence[int] | NDArray[np.uint64]
_Number = TypeVar("_Number", np.int64, np.float64)


class ExactSum:
    """The sum of weight times unit over samples, for any range of coordinates.

    It depends only on the set of (key, weight).

    Args:
        noise: The noise.
        keys: Keys of the samples, `[k]`, in any order; halves of a pair are joined, and the control key adds nothing.
        weights: Weights of the samples, `[k]`, any integers.

    Raises:
        EvolutionError: Weights and keys differ in number.
        InvalidKey: See `check_key`.
    """

    _upper: ExactSum | None = None
    _units: NDArray[np.float32] | None = None
    _scratch: NDArray[np.float32] = np.empty(0, np.float32)

    def __init__(
        self, noise: GaussianNoise, keys: Sequence[int] | NDArray[np.uint64], weights: NDArray[np.int64]
    ) -> None:
        pairs, joined, units = _joined_pairs(noise, keys, weights)
        self._noise = noise
        if len(pairs) <= LONGEST and _fits_float32(joined.tolist()):  # the usual case of few samples
            row = joined.astype(np.float32)
            self._digits: list[tuple[int, NDArray[np.float32]]] = [(0, row.reshape(1, 1, len(row)))]
            self._pairs, self._units, self._row, self._run, self._zeros = pairs, units, row, len(row), 0
            self._runs = min(self._run, 1)
            self._at_once, self._fits_float64 = bool(self._runs), True
            return
        sizes = np.abs(joined, dtype=np.float64)
        size = float(np.add.reduce(sizes))
        if size > LARGEST_SIZE:
            upper = joined >> UPPER_SHIFT
            joined = joined - (upper << UPPER_SHIFT)
            self._upper = ExactSum(noise, pairs << np.uint64(1), upper)
            sizes = np.abs(joined, dtype=np.float64)
            size = float(sizes.sum())
        self._fits_float64 = size <= FLOAT64_SUM
        self._zeros = _common_zeros(joined)
        if self._zeros:
            joined = joined >> self._zeros
            sizes *= 0.5**self._zeros
        digits: list[tuple[int, NDArray[np.integer]]] = [(0, joined)]
        self._run = _run_length([sizes])
        if not self._run:  # one product of short runs is cheaper than two of long ones
            digits = _digits(joined)
            self._run = _run_length([np.abs(digit) for _, digit in digits])
        self._runs = -(-len(pairs) // max(1, self._run))
        if surplus := self._runs * self._run - len(pairs):  # rows of weight 0 fill up the last run
            pairs = np.append(pairs, np.full(surplus, pairs[0]))
            digits = [(shift, np.append(digit, np.zeros(surplus, digit.dtype))) for shift, digit in digits]
        self._at_once = self._runs == len(digits) == 1 and not self._zeros
        shape = (self._runs, 1, self._run)
        self._digits = [(shift, digit.astype(np.float32).reshape(shape)) for shift, digit in digits]
        self._pairs, self._row = pairs, self._digits[0][1][0, 0] if self._at_once else np.empty(0, np.float32)

    def part(self, start: int, count: int, out: NDArray[_Number] | None = None) -> NDArray[_Number]:
        """Return the sum for the coordinates `start` to `start + count - 1`.

        Args:
            start: First coordinate.
            count: Number of coordinates.
            out: Array for the result, int64 or float64 `[count]`; float64 has the exact sum, rounded once. Default: a
                new array of int64.

        Returns:
            `out`.

        Raises:
            EvolutionError: `out` is int64, and the absolute weights add up to more than 2**48.
        """
        total: NDArray[Any]
        if self._units is not None and start + count <= self._units.shape[1]:
            total = np.empty(count, np.int64) if out is None else out
            total[...] = np.dot(self._row, self._units[:, start : start + count])
            return total
        if self._upper is not None:
            if out is None or out.dtype != np.float64:
                raise EvolutionError("the weights add up to more than 2**48: use a float64 array for their sum")
            out[...] = [float(number) for number in self._integers(start, count)]
            return out
        if out is not None and out.dtype == np.float64 and not self._fits_float64:
            out[...] = self.part(start, count)
            return out
        total = np.empty(count, np.int64) if out is None else out
        columns = min(self._noise.row_chunk, COLUMNS)
        if self._at_once and start % columns + count <= columns and self._run * count <= AT_ONCE_ENTRIES:
            total[...] = np.dot(self._row, self._rows_of(slice(0, self._run), start, count, None))
            return total
        for chunk in chunks(count, columns, start):
            size, here = chunk.stop - chunk.start, total[chunk.start - start : chunk.stop - start]
            at_once = min(MOST_RUNS, max(1, _entries(size) // max(1, self._run * size)))
            sums: list[NDArray[Any]] = []
            begun, waiting = False, 0
            for first in range(0, self._runs, at_once):
                run_count = min(at_once, self._runs - first)
                found = self._products(first, run_count, chunk.start, size)
                if run_count < self._runs:
                    found = [new.astype(np.int32, copy=False) for new in found]
                sums = [np.add(sum_, new, out=sum_) for sum_, new in zip(sums, found, strict=True)] if sums else found
                waiting += run_count
                if waiting + at_once > MOST_RUNS or first + run_count == self._runs:
                    for (shift, _), sum_ in zip(self._digits, sums, strict=True):
                        if begun:
                            here += sum_.astype(here.dtype) * 2**shift
                        else:
                            here[...], begun = sum_, True  # the lowest digits, with shift 0, come first
                    sums, waiting = [], 0
            if not begun:
                here.fill(0)
            elif self._zeros:
                here *= 2**self._zeros
        return total

    @functools.cached_property
    def _rows_of(self) -> NoiseRows:
        return self._noise.rows(self._pairs)

    def _integers(self, start: int, count: int) -> list[int]:
        """Return the sum as integers of any size."""
        upper, self._upper = self._upper, None
        try:
            lower: list[int] = self.part(start, count).tolist()
        finally:
            self._upper = upper
        if upper is None:
            return lower
        return [(high << UPPER_SHIFT) + low for high, low in zip(upper._integers(start, count), lower, strict=True)]

    def _products(self, first: int, run_count: int, start: int, size: int) -> list[NDArray[Any]]:
        """Return for each digit the sum over these runs, `[size]`: float32 for one run, int32 for more."""
        line, count = first * self._run, run_count * self._run
        fitting = max(1, _entries(size) // size)
        if count <= fitting:
            rows = self._rows_of(slice(line, line + count), start, size, self._scratch_for(count, size))
            rows = rows.reshape(run_count, self._run, size)
            return [_product(digits[first : first + run_count], rows) for _, digits in self._digits]
        sums = [np.zeros(size, np.float32) for _ in self._digits]  # of one run, which float32 represents exactly
        for part in chunks(self._run, fitting):
            rows = self._rows_of(
                slice(line + part.start, line + part.stop), start, size, self._scratch_for(part.stop - part.start, size)
            )
            for sum_, (_, digits) in zip(sums, self._digits, strict=True):
                sum_ += digits[first, 0, part] @ rows
        return sums

    def _scratch_for(self, lines: int, size: int) -> NDArray[np.float32] | None:
        """Return memory for long rows: the same each time, because new memory costs more than filling it."""
        if size < LONG_ROW:
            return None
        if self._scratch.size < lines * size:
            self._scratch = np.empty(lines * size, np.float32)
        return self._scratch[: lines * size].reshape(lines, size)


def _entries(size: int) -> int:
    """Return the number of entries of noise to hold at a time, in rows of this size."""
    return ENTRIES if size >= LONG_ROW else SHORT_ENTRIES


def _product(digits: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[Any]:
    """Return the sum over runs of digits `[runs, 1, rows a run]` times rows `[runs, rows a run, size]`, `[size]`."""
    products = np.matmul(digits, rows)[:, 0]
    total: NDArray[Any] = products[0]
    return total if len(products) == 1 else np.add.reduce(products.astype(np.int32), 0, np.int32)


def _joined_pairs(
    noise: GaussianNoise, keys: Keys, weights: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.float32] | None]:
    """Return one weight a pair: that of the even key minus that of the odd one; of many, those of 0 are left out.

    The result includes the pairs' noise of the first coordinates, if it is cached.
    """
    known = noise.known_pairs(keys)
    numbers = check_keys(keys) if known is None else known.keys
    if numbers.shape != np.shape(weights):
        raise EvolutionError(f"{len(numbers)} keys came with weights of shape {np.shape(weights)}")
    if not numbers.size:
        return numbers, np.zeros(0, np.int64), None
    known = noise.pairs(numbers) if known is None else known
    if known is not None:  # the usual case of updates; no control key is among them
        pairs, joined, units = known.numbers, weights[::2] - weights[1::2], known.units
    else:
        signed = np.where(numbers & np.uint64(1), -weights, weights)
        pairs, units = numbers >> np.uint64(1), None
        order = pairs.argsort()
        pairs = pairs[order]
        first = np.flatnonzero(np.concatenate(([True], pairs[1:] != pairs[:-1])))
        pairs, joined = pairs[first], np.add.reduceat(signed[order], first)
        joined[pairs == CONTROL_KEY] = 0
    if len(joined) <= LONGEST or np.count_nonzero(joined) == len(joined):
        return pairs, joined, units
    kept = joined != 0
    return pairs[kept], joined[kept], None


def _fits_float32(weights: list[int]) -> bool:
    """Return whether float32 holds all sums of units with these weights, but for a power of two in all of them."""
    size = sum(map(abs, weights))
    if size <= BUDGET:
        return True
    bits = functools.reduce(operator.or_, weights)
    return size <= LARGEST_SIZE and size // (bits & -bits) <= BUDGET


def _common_zeros(weights: NDArray[np.int64]) -> int:
    """Return the number of lowest bits that are 0 in all weights; 0 if all weights are 0."""
    bits = int(np.bitwise_or.reduce(weights))
    return max(0, (bits & -bits).bit_length() - 1)


def _digits(weights: NDArray[np.int64]) -> list[tuple[int, NDArray[np.integer]]]:
    """Cut weights into (shift, digits), such that they are the sum of the digits times 2**shift."""
    digits: list[tuple[int, NDArray[np.integer]]] = []
    shift = 0
    while np.count_nonzero(weights):
        lowest = ((weights + HALF_DIGIT) & (2 * HALF_DIGIT - 1)) - HALF_DIGIT
        digits.append((shift, lowest.astype(np.int8)))  # a million weights have four digits each
        weights = (weights - lowest) >> DIGIT_BITS
        shift += DIGIT_BITS
    return digits


def _run_length(sizes: Sequence[NDArray[Any]]) -> int:
    """Return the number of rows of a run, for float32 to hold all products exactly; 0 if no run is short enough.

    Args:
        sizes: Sizes of the rows' weights, or of their digits: one array for each of these, `[rows]`.
    """
    rows = len(sizes[0]) if sizes else 0
    largest = max([int(np.add.reduce(size, dtype=np.float64)) for size in sizes], default=0)
    for most in RUNS:
        length = -(-rows // max(1, -(-rows // most)))
        if largest * length > BUDGET * rows:
            continue
        starts = np.arange(0, rows, length)
        sums = [np.add.reduceat(size, starts, dtype=np.float64) for size in sizes]
        if all(each[each.argmax()] <= BUDGET for each in sums):
            return length
    return 0


def sum_of_squares(noise: GaussianNoise, keys: Keys, weights: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """Return the sum of weight times squared unit over samples, `[size]`: exact in any order, then rounded once.

    Args:
        noise: The noise.
        keys: Keys of the samples, `[k]`.
        weights: Weights of the samples, `[k]`, each below 2**33 in size.
        size: Number of coordinates, from 0 on.
    """
    numbers = np.asarray(keys, np.uint64)
    sizes = np.abs(weights)
    if int(sizes.sum()) < SQUARES_BUDGET:
        return _sum_of_squares(noise, numbers, weights, size).astype(np.float64)
    totals = [0] * size
    pieces = np.cumsum(sizes) // (SQUARES_BUDGET // 2)
    for piece in np.unique(pieces).tolist():
        rows = pieces == piece
        found = _sum_of_squares(noise, numbers[rows], weights[rows], size).astype(np.int64).tolist()
        totals = [total + number for total, number in zip(totals, found, strict=True)]
    return np.array([float(total) for total in totals])


def _sum_of_squares(
    noise: GaussianNoise, keys: NDArray[np.uint64], weights: NDArray[np.int64], size: int
) -> NDArray[Any]:
    """Return the sum in float64 or int64, whichever is faster and exact."""
    # Up to 2**53 a float64 holds every whole number, and numpy multiplies floats several times faster.
    kind: type[Any] = np.float64 if int(np.abs(weights).sum()) < 2**24 else np.int64
    pairs = keys >> np.uint64(1)
    scaled = weights.astype(kind)
    total = np.empty(size, kind)
    most = max(1, ENTRIES // 4 // max(1, min(size, noise.row_chunk)))
    rows_of = noise.rows(pairs)
    for chunk in chunks(size, noise.row_chunk):
        here = (chunk.start, chunk.stop - chunk.start)
        runs = (slice(first, first + most) for first in range(0, len(pairs), most))
        total[chunk] = sum((scaled[run] @ np.square(rows_of(run, *here).astype(kind)) for run in runs), kind(0))
    return total


def weighted_moments(
    noise: GaussianNoise, keys: Keys, weights: NDArray[np.int64], size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sums of weight times unit, and of weight times squared unit, `[size]` each: exact in any order.

    It is fast if the candidates were just made with the same noise, see `GaussianNoise.units_of`.

    Args:
        noise: The noise.
        keys: Keys of the samples, `[k]`.
        weights: Weights of the samples, `[k]`; their absolute values add up to less than 2**24.
        size: Number of coordinates, from 0 on.

    Raises:
        EvolutionError: The weights are too large.
    """
    numbers, counting = check_keys(keys), weights != 0
    numbers, weights = numbers[counting], weights[counting]
    if len(numbers) * size > MOST_KEPT or int(np.abs(weights).sum()) > FLOAT64_BUDGET:
        first = ExactSum(noise, numbers, weights).part(0, size).astype(np.float64)
        return first, sum_of_squares(noise, numbers, weights, size)
    units, scaled = noise.units_of(numbers, size), weights.astype(np.float64)
    first, second = np.empty(size), np.empty(size)
    for part in chunks(size, COLUMNS // 2):
        rows = units[:, part].astype(np.float64)
        np.matmul(scaled, rows, out=first[part])
        np.square(rows, out=rows)
        np.matmul(scaled, rows, out=second[part])
    return first, second
