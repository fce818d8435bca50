"""Noise specification v1: its settings, its normal distribution, and the generators of its bits.

The distribution is a table of 65536 integers in units of 2**-12; sixteen random bits select one. They are the normal
quantiles of (i + 1/2) / 65536, scaled to variance 1 before they are rounded: odd-symmetric, variance 1 - 8.8e-7,
kurtosis 2.9992, largest 4.325. The upper half ships as a file; `tools/make_quantiles.py` of this package's source
computes it.

Bits come from Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a stream is named
by two 64-bit words, (seed, stream). Its n-th block of four 64-bit words is Philox of the counter n + 1, and coordinate
c takes the c % 16-th 16 bits of block c // 16, little-endian. So any range of any stream can be computed alone. numpy's
generator computes the same blocks much faster than Python. It is used if it passes the known-answer test, which runs
once, at first use; otherwise `philox_block` computes with plain integers.

splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): `splitmix64(key, n)` is
the (n + 1)-th number of the sequence that starts at `key`. The cached noise uses it to find a sample's window for block
n. One form is for plain integers, the other for arrays of keys or of blocks.
"""

import functools
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import ParameterLayout
from parl_evokit.errors import EvolutionError, NoiseDataError

__all__ = [
    "COORDINATES_PER_BLOCK",
    "LARGEST_UNIT",
    "SPEC_VERSION",
    "UNITS_PER_ONE",
    "NoiseSpec",
    "numpy_is_exact",
    "philox_block",
    "quantiles",
    "random_bits",
    "random_bits_of",
    "splitmix64",
    "splitmix64_array",
]

UNITS_PER_ONE = 4096
LARGEST_UNIT = 17715

QUANTILES_FILE = "quantiles_v1.i2"
QUANTILES_SHA256 = "8cbdab857d380e7e60b7b1cb1b278ff6bc248f9d124cd4b89d32f367c155c9da"
COORDINATES_PER_BLOCK = 16
WORDS_PER_BLOCK = 4
MASK = 2**64 - 1

# Counter, key and result of Random123's published known-answer test for ten rounds.
KNOWN_ANSWERS = (
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
    ),
    (
        (MASK, MASK, MASK, MASK),
        (MASK, MASK),
        (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
    ),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
)


SPEC_VERSION = 1
"""Version of the noise specification, which logs and models record."""
SMALLEST_TABLE = 64
LARGEST_TABLE = 2**31
LARGEST_BLOCK = 2**16


@dataclass(frozen=True)
class NoiseSpec:
    """The settings of noise specification v1.

    Attributes:
        seed: 0 to 2**64 - 1; 18 is the original's default.
        cached: Take noise from one shared table instead of computing it for each sample.
        cache_size: Entries of that table, 64 to 2**31; it may be smaller than the model.

    Raises:
        EvolutionError: A value is out of its range.
    """

    seed: int = 18
    cached: bool = False
    cache_size: int = 100_000

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise EvolutionError(f"a noise seed must be from 0 to 2**64 - 1, not {self.seed}")
        if not SMALLEST_TABLE <= self.cache_size <= LARGEST_TABLE:
            raise EvolutionError(f"cache_size must be from {SMALLEST_TABLE} to 2**31, not {self.cache_size}")

    @property
    def block(self) -> int:
        """Coordinates per window of the table: the largest power of two up to a quarter of it and up to 2**16."""
        return min(LARGEST_BLOCK, 1 << ((self.cache_size // 4).bit_length() - 1))

    @property
    def windows(self) -> int:
        """Number of windows of `block` entries in the table."""
        return self.cache_size - self.block + 1

    def fingerprint(self, layout: ParameterLayout, sampler: str = "gaussian") -> int:
        """Return the 32 bits that each record contains, so that an update never uses a sample with other noise.

        Args:
            layout: Names, shapes and order of the perturbed parameters.
            sampler: Name of the algorithm's use of the noise.

        Returns:
            1 to 2**32 - 1: the first four bytes, little-endian, of the SHA-256 of specification version, seed, sampler,
            table size (0 without a table) and layout; 1 instead of 0, which means "unknown".
        """
        table = self.cache_size if self.cached else 0
        head = f"evokit noise {SPEC_VERSION}\nseed {self.seed}\nsampler {sampler}\ntable {table}\n"
        return int.from_bytes(hashlib.sha256(head.encode() + layout.digest()).digest()[:4], "little") or 1


@functools.cache
def quantiles() -> NDArray[np.int16]:
    """Return the whole table `[65536]`, read-only and ascending.

    Raises:
        NoiseDataError: The shipped file does not belong to this version.
    """
    data = Path(__file__).with_name(QUANTILES_FILE).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != QUANTILES_SHA256:
        raise NoiseDataError(
            f"{QUANTILES_FILE} is damaged (SHA-256 {found}, not {QUANTILES_SHA256}): install parl-evokit again"
        )
    upper = np.frombuffer(data, "<i2").astype(np.int16)
    table = np.concatenate((-upper[::-1], upper))
    table.flags.writeable = False
    return table


def philox_block(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return four 64-bit words for a counter of four words and a key of two, in plain integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (b >> 64) ^ c1 ^ k0, b & MASK, (a >> 64) ^ c3 ^ k1, a & MASK
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return c0, c1, c2, c3


class _NumpyPhilox(threading.local):
    """numpy's generator, one per thread; every use sets its whole state, so calls are independent."""

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        self._position: dict[str, tuple[int, ...]] = {"counter": (0, 0, 0, 0), "key": (0, 0)}
        # Numbers in tuples: numpy reads them one by one, which takes three times as long from arrays.
        self._state: Any = {  # numpy's type for this dictionary is private
            "bit_generator": "Philox",
            "state": self._position,
            "buffer": (0,) * WORDS_PER_BLOCK,
            "buffer_pos": WORDS_PER_BLOCK,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def words(self, key: tuple[int, ...], counter: tuple[int, ...], count: int) -> NDArray[np.uint64]:
        """Return the words that follow `counter`: numpy counts up before it makes a block."""
        self._position["key"], self._position["counter"] = key, counter
        self._bits.state = self._state
        words: NDArray[np.uint64] = self._bits.random_raw(count)
        return words

    def first_words(self, seed: int, streams: Sequence[int], count: int) -> list[NDArray[np.uint64]]:
        """Return the first words of many streams, `[count]` each: `words` without a call for each."""
        bits, state, position = self._bits, self._state, self._position
        draw, found = bits.random_raw, []
        position["counter"] = (0, 0, 0, 0)
        for stream in streams:
            position["key"] = (seed, stream)
            bits.state = state
            found.append(draw(count))
        return found


@functools.cache
def _generator() -> _NumpyPhilox:
    return _NumpyPhilox()


@functools.cache
def numpy_is_exact() -> bool:
    """Return whether numpy's Philox returns the published answers on this machine (tested once)."""
    for counter, key, answer in KNOWN_ANSWERS:
        total = sum(word << (64 * i) for i, word in enumerate(counter)) - 1
        before = tuple((total >> (64 * i)) & MASK for i in range(4))
        if tuple(int(word) for word in _generator().words(key, before, WORDS_PER_BLOCK)) != answer:
            return False
    return True


def random_bits(seed: int, stream: int, start: int, count: int) -> NDArray[np.uint16]:
    """Return 16 random bits for each of the coordinates `start` to `start + count - 1`.

    Args:
        seed: First word of the key, 0 to 2**64 - 1.
        stream: Second word of the key, 0 to 2**64 - 1.
        start: First coordinate, 0 or more.
        count: Number of coordinates, 0 or more.

    Returns:
        An array `[count]`.
    """
    first, offset = divmod(start, COORDINATES_PER_BLOCK)
    blocks = -(-(offset + count) // COORDINATES_PER_BLOCK)
    if numpy_is_exact():
        words = _generator().words((seed, stream), (first, 0, 0, 0), WORDS_PER_BLOCK * blocks)
    else:
        words = _plain_words(seed, stream, first, blocks)
    return words.astype("<u8", copy=False).view("<u2")[offset : offset + count]


def random_bits_of(seed: int, streams: Sequence[int], count: int) -> NDArray[np.uint16]:
    """Return the random bits of the first `count` coordinates of several streams, `[streams, count]`."""
    blocks = -(-count // COORDINATES_PER_BLOCK)
    if numpy_is_exact():
        rows = _generator().first_words(seed, streams, WORDS_PER_BLOCK * blocks)
    else:
        rows = [_plain_words(seed, stream, 0, blocks) for stream in streams]
    words = np.array(rows, np.uint64).reshape(len(streams), WORDS_PER_BLOCK * blocks)
    return words.astype("<u8", copy=False).view("<u2")[:, :count]


def _plain_words(seed: int, stream: int, first: int, blocks: int) -> NDArray[np.uint64]:
    key = (seed, stream)
    words = [word for block in range(first + 1, first + 1 + blocks) for word in philox_block((block, 0, 0, 0), key)]
    return np.array(words, np.uint64)


GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
# The same for arrays. numpy takes arrays without dimensions faster than scalars: a third of a short array's product.
ONE_64, GAMMA_64, MIX_1_64, MIX_2_64 = (np.array(number, np.uint64) for number in (1, GAMMA, MIX_1, MIX_2))
SHIFT_30, SHIFT_27, SHIFT_31 = (np.array(bits, np.uint64) for bits in (30, 27, 31))


def splitmix64(key: int, n: int) -> int:
    """Return the (n + 1)-th number after `key`, 0 to 2**64 - 1."""
    z = (key + (n + 1) * GAMMA) & MASK
    z = ((z ^ (z >> 30)) * MIX_1) & MASK
    z = ((z ^ (z >> 27)) * MIX_2) & MASK
    return z ^ (z >> 31)


def splitmix64_array(keys: NDArray[np.uint64], n: NDArray[np.uint64] | int) -> NDArray[np.uint64]:
    """Return `splitmix64` of arrays, which broadcast against each other."""
    steps = np.array((n + 1) * GAMMA & MASK, np.uint64) if isinstance(n, int) else (n + ONE_64) * GAMMA_64
    z: NDArray[np.uint64] = keys + steps
    shifted = z >> SHIFT_30
    np.bitwise_xor(z, shifted, z)
    np.multiply(z, MIX_1_64, z)
    np.bitwise_xor(z, np.right_shift(z, SHIFT_27, shifted), z)
    np.multiply(z, MIX_2_64, z)
    np.bitwise_xor(z, np.right_shift(z, SHIFT_31, shifted), z)
    return z
