"""Normal noise as a pure function of (specification, key, coordinate).

    key ──► pair = key >> 1, sign = key & 1
    without a table:  unit[c] = quantiles[16 bits of stream `pair` at coordinate c]
    with a table:     unit[c] = table[window(pair, c // block) + c % block]
                      table[i] = quantiles[16 bits of stream 0 at i]
                      window(pair, b) = splitmix64(pair, b) % (cache_size - block + 1)
    noise[c] = std * unit[c] / 4096, negated when sign is 1

Units are integers, so sums over samples are exact; only the addition of noise to parameters uses floats.
"""

from __future__ import annotations  # so that nested functions are cheap to define

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import FlatVector
from parl_evokit.noise._keys import CONTROL_KEY, SIGN_BIT, check_key, check_keys
from parl_evokit.noise._spec import (
    UNITS_PER_ONE,
    NoiseSpec,
    quantiles,
    random_bits,
    random_bits_of,
    splitmix64,
    splitmix64_array,
)

__all__ = ["GaussianNoise", "are_pairs", "chunks"]

TABLE_STREAM = 0  # pair 0 is the control key, so no sample has this stream
CHUNK = 2**16  # coordinates processed at a time, which fit the second-level cache
ROW_CHUNK = 2**15  # the same for rows of computed noise, of which several are in work together
MOST_KEPT = 2**20  # units that are kept for the next call: two megabytes
MOST_AT_HAND = 2**15  # size of windows that are kept as float32: 128 kilobytes
MOST_COMPUTED = 2**22  # the same of computed ones, in rows: eight megabytes
ROW_OVERHEAD = 2**7  # units that take as much memory as a row's array and its place in a dictionary
LARGEST_COMPUTED = 2**18  # size of a row
LARGEST_GATHERED = 2**12  # number of parameters up to which gathering many windows at once is faster
FEW = 4  # samples from which pairs are gathered together
FEW_WINDOWS = 16  # up to which integers find them sooner than arrays
GATHER = 2**16  # entries gathered at a time, which fit the second-level cache

_Unit = TypeVar("_Unit", np.int16, np.float32)


class NoiseRows(Protocol):
    """A function that returns the noise of pairs as rows of whole numbers, from `GaussianNoise.rows`."""

    def __call__(
        self, run: slice, start: int, count: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]: ...


class Pairs:
    """Mirrored pairs of one draw, and where their noise begins in the table.

    Args:
        keys: Keys of the samples, the even half of each pair just before the odd one, `[2 * k]`.

    Attributes:
        numbers: Keys of the pairs without lowest bit, `[k]`.
        starts: Their windows of the first block; None until they are needed.
        units: Their noise of the first coordinates, if it was made for all of them at once.
    """

    __slots__ = ("keys", "numbers", "starts", "units")

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self.keys = keys
        self.numbers = keys[::2] >> SIGN_BIT
        self.starts: NDArray[np.int64] | None = None
        self.units: NDArray[np.float32] | None = None


class PreparedPerturbation(Protocol):
    """A function that returns the parameters of one of several samples, from `GaussianNoise.prepared`."""

    def __call__(self, place: int, out: FlatVector | None, /) -> FlatVector: ...


class PairPerturbation(Protocol):
    """A function that returns the parameters of both halves of several pairs, from `GaussianNoise.halves`."""

    def __call__(
        self, run: slice, out: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...


class GaussianNoise:
    """The noise of one specification; immutable, safe to share among threads, and small when pickled.

    Args:
        spec: Seed and table of the noise.
    """

    def __init__(self, spec: NoiseSpec) -> None:
        self.spec = spec
        self._block, self._window_count = spec.block, spec.windows
        self._windows_64 = np.array(spec.windows, np.uint64)
        self._scaled: tuple[float, FlatVector] = (0.0, np.empty(0, np.float32))
        self._last: tuple[int, float, FlatVector] = (0, 0.0, np.empty(0, np.float32))  # pair, std, noise
        self._computed: tuple[int, dict[int, NDArray[np.int16]]] = (0, {})  # size of rows, and units by pair: no table
        self._whole: tuple[FlatVector, NDArray[np.void]] = (np.empty(0, np.float32), np.empty(0, np.void))
        self._pairs: Pairs | None = None  # pairs of the last immutable keys
        self._kept: tuple[NDArray[np.uint64], NDArray[np.int16]] = (np.empty(0, np.uint64), np.empty((0, 0), np.int16))

    def __reduce__(self) -> tuple[type[GaussianNoise], tuple[NoiseSpec]]:
        return GaussianNoise, (self.spec,)

    def pairs(self, keys: NDArray[np.uint64]) -> Pairs | None:
        """Return the mirrored pairs of these keys, cached for immutable arrays; None if the keys are not pairs.

        Args:
            keys: Keys of samples, `[n]`.
        """
        if (found := self.known_pairs(keys)) is not None:
            return found
        if not are_pairs(keys):
            return None
        found = Pairs(keys)
        if _is_fixed(keys):
            self._pairs = found
        return found

    def known_pairs(self, keys: Sequence[int] | NDArray[np.uint64]) -> Pairs | None:
        """Return the cached result of `pairs` for this array object, else None."""
        found = self._pairs
        return found if found is not None and found.keys is keys else None

    def units(self, key: int, start: int, count: int) -> NDArray[np.int16]:
        """Return the noise of coordinates `start` to `start + count - 1`, in units of std / 4096.

        Args:
            key: Key of a sample.
            start: First coordinate, 0 or more.
            count: Number of coordinates.

        Returns:
            Integers `[count]`, all zero for the control key.

        Raises:
            InvalidKey: See `check_key`.
        """
        if check_key(key) == CONTROL_KEY:
            return np.zeros(count, np.int16)
        pair = key >> 1
        if self.spec.cached:
            units = np.empty(count, np.int16)
            for part, window in self._windows(pair, start, count):
                units[part] = self._table[window]
        else:
            units = np.empty(count, np.int16)
            for part in chunks(count):
                bits = random_bits(self.spec.seed, pair, start + part.start, part.stop - part.start)
                quantiles().take(bits, out=units[part], mode="wrap")
        return np.negative(units, out=units) if key & 1 else units

    def units_of(self, keys: NDArray[np.uint64], count: int) -> NDArray[np.int16]:
        """Return `units` of the first `count` coordinates for several keys, read-only `[k, count]`.

        The last result is kept, because an update uses the noise of its candidates again.

        Raises:
            InvalidKey: See `check_key`.
        """
        kept_keys, kept = self._kept
        if keys is kept_keys and kept.shape[1] == count:
            return kept
        numbers = check_keys(keys)
        enough = 0 < len(numbers) <= len(kept_keys) and kept.shape[1] == count
        if enough and np.count_nonzero(kept_keys == numbers[0]):  # a new draw ends here
            if len(kept_keys) == len(numbers) and (kept_keys == numbers).all():
                return kept
            order = kept_keys.argsort()
            rows = order.take(kept_keys.searchsorted(numbers, sorter=order), mode="clip")
            if (kept_keys[rows] == numbers).all():
                return kept[rows]
        units = self._units_of(numbers, count)
        units.setflags(write=False)
        if units.size <= MOST_KEPT:
            self._kept = (numbers if _is_fixed(numbers) else numbers.copy(), units)
        return units

    def _units_of(self, numbers: NDArray[np.uint64], count: int) -> NDArray[np.int16]:
        if len(numbers) * count > GATHER or count > self._block:
            units = np.empty((len(numbers), count), np.int16)
            for row, key in zip(units, numbers.tolist(), strict=True):
                row[...] = self.units(key, 0, count)
            return units
        pairs = numbers >> np.uint64(1)
        if self.spec.cached:
            units = _windows_at(self._table, self._window_starts(pairs, 0), count)
        else:
            units = quantiles().take(random_bits_of(self.spec.seed, pairs.tolist(), count), mode="wrap")
        odd = numbers & SIGN_BIT
        if np.count_nonzero(odd):
            np.negative(units, out=units, where=odd.astype(np.bool_)[:, None])
        if np.count_nonzero(numbers) < len(numbers):
            units[numbers == CONTROL_KEY] = 0
        return units

    def perturb(
        self,
        parameters: FlatVector,
        key: int,
        std: float | FlatVector,
        out: FlatVector | None = None,
        *,
        keep: bool = False,
    ) -> FlatVector:
        """Return parameters plus noise, in one pass over memory.

        Args:
            parameters: Parameters of the model, float32 `[n]`.
            key: Key of the sample.
            std: Standard deviation, one for all parameters or `[n]`.
            out: Array for the result, `[n]`; it may be `parameters` itself. Default: a new array.
            keep: True to keep computed noise for an update in this process, which takes some time.

        Returns:
            `out`. Each element is float32(parameters + float32(unit * float32(std / 4096))), as IEEE 754 rounds it.

        Raises:
            InvalidKey: See `check_key`.
        """
        if out is None:
            out = np.empty_like(parameters)
        if check_key(key) == CONTROL_KEY:
            np.copyto(out, parameters)
            return out
        pair, size = key >> 1, len(parameters)
        combine = np.subtract if key & 1 else np.add
        if isinstance(std, np.ndarray):
            step = std * np.float32(1 / UNITS_PER_ONE)
            for part in chunks(size):
                units = self.units(2 * pair, part.start, part.stop - part.start)
                combine(parameters[part], units * step[part], out=out[part])
            return out
        if not self.spec.cached:
            last_pair, last_std, noise = self._last
            if last_pair == pair and last_std == std and len(noise) == size:
                combine(parameters, noise, out=out)
                return out
            scaled = self._scaled_by(float(std))
            if size <= MOST_KEPT and not key & 1:  # the other half of the pair usually comes next
                noise = np.empty(size, np.float32)
                if keep and size <= LARGEST_COMPUTED:
                    np.multiply(self._computed_units(pair, size), _step(float(std)), out=noise)
                    combine(parameters, noise, out=out)
                else:
                    for part in chunks(size):
                        bits = random_bits(self.spec.seed, pair, part.start, part.stop - part.start)
                        scaled.take(bits, out=noise[part], mode="wrap")
                        combine(parameters[part], noise[part], out=out[part])
                self._last = (pair, float(std), noise)
                return out
            for part in chunks(size):
                bits = random_bits(self.spec.seed, pair, part.start, part.stop - part.start)
                combine(parameters[part], scaled.take(bits, mode="wrap"), out=out[part])
        else:
            starts = self._block_starts(pair, range(-(-size // self._block)))
            self._combine_windows(combine, parameters, self._scaled_by(float(std)), starts, out)
        return out

    def prepared(self, parameters: FlatVector, keys: NDArray[np.uint64], std: float) -> PreparedPerturbation:
        """Return a function that does `perturb` for one of several samples, with precomputed windows of the table.

        Args:
            parameters: Parameters of the model, float32 `[n]`.
            keys: Keys of the samples, `[k]`, without the control key.
            std: Standard deviation, one for all parameters.

        Returns:
            A function of the index of a sample in `keys` and of `out` as for `perturb`.
        """
        size, block, scaled = len(parameters), self._block, self._scaled_by(std)
        blocks = np.arange(-(-size // block), dtype=np.uint64)
        starts: list[list[int]] = self._window_starts((keys >> np.uint64(1))[:, None], blocks).tolist()
        combine = [np.subtract if odd else np.add for odd in (keys & np.uint64(1)).tolist()]
        if size > block:
            return lambda place, out: self._combine_windows(combine[place], parameters, scaled, starts[place], out)
        windows = _all_windows(scaled, size)
        return lambda place, out: combine[place](parameters, windows[starts[place][0]], out)

    def _combine_windows(
        self,
        combine: np.ufunc,
        parameters: FlatVector,
        scaled: FlatVector,
        starts: Sequence[int],
        out: FlatVector | None,
    ) -> FlatVector:
        """Return parameters plus or minus the scaled table's windows from these places on, one a block of them."""
        size, block = len(parameters), self._block
        out = np.empty_like(parameters) if out is None else out
        whole = size // block
        shape = (whole, block)
        rows = parameters[: whole * block].reshape(shape), out[: whole * block].reshape(shape)
        window_at = _all_windows(scaled, block).__getitem__
        deque(map(combine, rows[0], map(window_at, starts), rows[1]), maxlen=0)  # a loop in C
        if left := size - whole * block:
            start = starts[whole]
            combine(parameters[-left:], scaled[start : start + left], out[-left:])
        return out

    def perturb_many(
        self,
        parameters: FlatVector,
        keys: Sequence[int] | NDArray[np.uint64],
        std: float | FlatVector,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Return the results of `perturb` for several keys, with the same bits and much faster for small models.

        Args:
            parameters: Parameters of the model, float32 `[n]`.
            keys: Keys of the samples, `[k]`.
            std: Standard deviation, one for all parameters or `[n]`.
            out: Array for the results, `[k, n]`. Default: a new array.

        Returns:
            `out`.

        Raises:
            InvalidKey: See `check_key`.
        """
        size, numbers = len(parameters), check_keys(keys)
        out = np.empty((len(numbers), size), np.float32) if out is None else out
        if isinstance(std, np.ndarray) and out.size <= MOST_KEPT:
            units, step = self.units_of(numbers, size), std * np.float32(1 / UNITS_PER_ONE)
            for run in chunks(len(units), max(1, GATHER // max(1, size))):
                np.multiply(units[run], step, out=out[run])
                out[run] += parameters
            return out
        if self.spec.cached and not isinstance(std, np.ndarray):
            halves = self.halves(parameters, numbers, std) if len(numbers) >= FEW else None
            if halves is None:
                self._perturb_block_by_block(parameters, numbers, std, out)
                return out
            for run in chunks(len(numbers) // 2, GATHER // size):
                halves(run, out[2 * run.start : 2 * run.stop])
            return out
        for row, key in zip(out, numbers.tolist(), strict=True):
            self.perturb(parameters, key, std, out=row, keep=True)
        return out

    def halves(self, parameters: FlatVector, keys: NDArray[np.uint64], std: float) -> PairPerturbation | None:
        """Return a function that applies `perturb` to a run of pairs by gathering their windows; None if impossible.

        Args:
            parameters: Parameters of the model, `[n]`; n is at most `LARGEST_GATHERED`, and within one window.
            keys: Keys of mirrored pairs, one half after the other, `[2 * k]`.
            std: Standard deviation, one for all parameters.
        """
        size = len(parameters)
        pairs = None if size > min(LARGEST_GATHERED, self._block) else self.pairs(keys)
        if pairs is None:
            return None
        starts, step = self._starts_of(pairs), _step(std)
        at_once = len(starts) <= MOST_AT_HAND // size
        windows = self._windows_of(self._wide_table if at_once else self._scaled_by(std), size)

        def halves(
            run: slice, out: NDArray[np.float32] | None = None
        ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            noise = windows[starts[run]].view(np.float32).reshape(-1, size)
            if at_once:
                if len(noise) == len(starts):
                    noise.setflags(write=False)
                    pairs.units = noise
                noise = noise * step
            even, odd = (None, noise) if out is None else (out[::2], out[1::2])
            return np.add(parameters, noise, even), np.subtract(parameters, noise, odd)

        return halves

    def _windows_of(self, table: FlatVector, size: int) -> NDArray[np.void]:
        """Return the result of `_whole_windows`; the last one is kept."""
        kept, windows = self._whole
        if kept is not table or windows.itemsize != size * table.itemsize:
            windows = _whole_windows(table, size)
            self._whole = (table, windows)
        return windows

    def _starts_of(self, pairs: Pairs) -> NDArray[np.int64]:
        """Return the places in the table at which the pairs' windows of the first block begin."""
        if pairs.starts is None:
            pairs.starts = self._window_starts(pairs.numbers, 0)
        return pairs.starts

    def _perturb_block_by_block(
        self, parameters: FlatVector, numbers: NDArray[np.uint64], std: float, out: NDArray[np.float32]
    ) -> None:
        """Write one block of coordinates of all samples after the other, while the parameters' is in the cache."""
        size, block, scaled = len(parameters), self._block, self._scaled_by(std)
        combine = [np.subtract if odd else np.add for odd in (numbers & np.uint64(1)).tolist()]
        starts = self._starts_by_block(numbers >> np.uint64(1), -(-size // block))
        for part, firsts in zip(chunks(size, block), starts, strict=True):
            here, count = parameters[part], part.stop - part.start
            for row, add_or_subtract, first in zip(out[:, part], combine, firsts, strict=True):
                add_or_subtract(here, scaled[first : first + count], row)
        out[numbers == CONTROL_KEY] = parameters

    @property
    def row_chunk(self) -> int:
        """Largest number of coordinates that the function of `rows` returns; its ranges end at multiples of this."""
        return self._block if self.spec.cached else ROW_CHUNK

    def rows(self, pairs: NDArray[np.uint64]) -> NoiseRows:
        """Return the noise of pairs (keys without lowest bit) as rows of whole numbers in float32, for exact sums.

        Args:
            pairs: Numbers of the pairs, `[k]`.

        Returns:
            A function of a slice of the pairs, the first coordinate, the number of coordinates, and optionally an
            array in row order for the result. It returns an array `[pairs of the slice, coordinates]`. The coordinates
            must not cross a multiple of `row_chunk`.
        """
        if not self.spec.cached:

            def computed(
                run: slice, start: int, count: int, out: NDArray[np.float32] | None = None
            ) -> NDArray[np.float32]:
                wide, streams, (_, computed_units) = _wide_quantiles(), pairs[run].tolist(), self._computed
                rows = np.empty((len(streams), count), np.float32) if out is None else out
                for row, stream in zip(rows, streams, strict=True):
                    kept = computed_units.get(stream)
                    if kept is not None and start + count <= len(kept):
                        row[...] = kept[start : start + count]
                    else:
                        wide.take(random_bits(self.spec.seed, stream, start, count), out=row, mode="wrap")
                return rows

            return computed
        table, present, starts = self._wide_table, -1, np.empty(0, np.int64)
        known = self._pairs
        units = None
        if known is not None and known.numbers is pairs:
            present, starts, units = 0, self._starts_of(known), known.units

        def from_table(
            run: slice, start: int, count: int, out: NDArray[np.float32] | None = None
        ) -> NDArray[np.float32]:
            nonlocal present, starts
            if units is not None and start + count <= units.shape[1]:
                return units[run, start : start + count]
            number, offset = divmod(start, self._block)
            if number != present:  # many calls have the same block
                present, starts = number, self._window_starts(pairs, number)
            places = starts[run] + offset
            if out is None:
                return _windows_at(table, places, count)
            _copy_windows(table, places, out)
            return out

        return from_table

    def _computed_units(self, pair: int, size: int) -> NDArray[np.int16]:
        """Return `units` of the even half of a pair, and cache them for `rows`."""
        size_kept, computed = self._computed
        units = computed.get(pair) if size_kept == size else None
        if units is not None:
            return units
        units = self.units(2 * pair, 0, size)
        if size_kept != size or (len(computed) + 1) * (size + ROW_OVERHEAD) > MOST_COMPUTED:
            computed = {}
            self._computed = (size, computed)
        computed[pair] = units
        return units

    def _windows(self, pair: int, start: int, count: int) -> Iterator[tuple[slice, slice]]:
        """Yield slices of the wanted coordinates, counted from `start`, each with its slice of the table."""
        block = self._block
        blocks = range(start // block, -(-(start + count) // block))
        for number, first in zip(blocks, self._block_starts(pair, blocks), strict=True):
            low = max(start, number * block)
            high = min(start + count, (number + 1) * block)
            shift = first - number * block
            yield slice(low - start, high - start), slice(low + shift, high + shift)

    def _starts_by_block(self, pairs: NDArray[np.uint64], blocks: int) -> list[list[int]]:
        """Return the beginnings of the pairs' windows in the table, `[block][pair]`."""
        if len(pairs) * blocks <= FEW_WINDOWS:
            streams = pairs.tolist()
            return [[splitmix64(pair, number) % self._window_count for pair in streams] for number in range(blocks)]
        numbers = np.arange(blocks, dtype=np.uint64)[:, None]
        return cast("list[list[int]]", self._window_starts(pairs, numbers).tolist())

    def _block_starts(self, pair: int, blocks: range) -> list[int]:
        if len(blocks) <= FEW_WINDOWS:
            return [splitmix64(pair, number) % self._window_count for number in blocks]
        numbers = np.arange(blocks.start, blocks.stop, dtype=np.uint64)
        return cast("list[int]", self._window_starts(np.array([pair], np.uint64), numbers).tolist())

    def _window_starts(self, pairs: NDArray[np.uint64], blocks: NDArray[np.uint64] | int) -> NDArray[np.int64]:
        starts = splitmix64_array(pairs, blocks)
        return np.remainder(starts, self._windows_64, starts).view(np.int64)

    @functools.cached_property
    def _table(self) -> NDArray[np.int16]:
        table = np.empty(self.spec.cache_size, np.int16)
        for part in chunks(self.spec.cache_size):
            bits = random_bits(self.spec.seed, TABLE_STREAM, part.start, part.stop - part.start)
            quantiles().take(bits, out=table[part], mode="wrap")
        table.flags.writeable = False
        return table

    @functools.cached_property
    def _wide_table(self) -> NDArray[np.float32]:
        return self._table.astype(np.float32)

    def _scaled_by(self, std: float) -> FlatVector:
        """Return the table, or the quantiles, times std: kept for the next call, which mostly has the same std."""
        kept, scaled = self._scaled
        if kept != std or not scaled.size:
            units = self._table if self.spec.cached else quantiles()
            scaled = units * _step(std)
            self._scaled = (std, scaled)
        return scaled


@functools.lru_cache(maxsize=64)
def _step(std: float) -> np.float32:
    """Return the value of one unit."""
    return np.float32(std) * np.float32(1 / UNITS_PER_ONE)


def _all_windows(table: FlatVector, size: int) -> NDArray[np.float32]:
    """Return a view whose rows are all stretches of `size` entries of the table."""
    return np.ndarray((len(table) - size + 1, size), table.dtype, table, 0, (table.itemsize, table.itemsize))


def _windows_at(table: NDArray[_Unit], places: NDArray[np.int64], count: int) -> NDArray[_Unit]:
    """Return the windows of `count` entries from these places of the table on, a new array `[places, count]`."""
    return _whole_windows(table, count)[places].view(table.dtype).reshape(len(places), count)


def _whole_windows(table: NDArray[Any], size: int) -> NDArray[np.void]:
    """Return all stretches of `size` entries of the table, each as one item, `[places]`.

    So numpy copies them at the speed of memory and not number by number.
    """
    window = np.dtype((np.void, size * table.itemsize))
    return np.ndarray((len(table) - size + 1,), window, table, 0, (table.itemsize,))


def _copy_windows(table: NDArray[np.float32], places: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Fill rows of `out` from these places of the table; as bytes, since assigning arrays takes half as long again."""
    source, target, size = table.data.cast("B"), out.data.cast("B"), out.strides[0]
    for low, place in zip(range(0, len(target), size), (places * table.itemsize).tolist(), strict=True):
        target[low : low + size] = source[place : place + size]


def _is_fixed(keys: NDArray[np.uint64]) -> bool:
    """Return whether the array is read-only and not a view, whose memory another array could change."""
    return not keys.flags.writeable and keys.base is None


def are_pairs(numbers: NDArray[np.uint64]) -> bool:
    """Return whether the keys are mirrored pairs, the even half of each just before the odd one."""
    even, odd = numbers[::2], numbers[1::2]
    if len(even) != len(odd):
        return False
    return not np.count_nonzero((even | SIGN_BIT) ^ odd | even & SIGN_BIT)


@functools.cache
def _wide_quantiles() -> NDArray[np.float32]:
    return quantiles().astype(np.float32)


def chunks(count: int, size: int = CHUNK, start: int = 0) -> Iterator[slice]:
    """Yield slices that cover `count` coordinates from `start` on, each up to the next multiple of `size`."""
    stop = start + count
    while start < stop:
        end = min(stop, (start // size + 1) * size)
        yield slice(start, end)
        start = end
