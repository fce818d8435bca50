"""Noise specification v1: its settings, and its normal distribution.

The distribution is a table of 65536 integers in units of 2**-12, of which sixteen random bits pick one. They are the
normal quantiles of (i + 1/2) / 65536, scaled to variance 1 before they are rounded: odd-symmetric, variance
1 - 8.8e-7, kurtosis 2.9992, largest 4.325. The upper half ships as a file; `tools/make_quantiles.py` of this package's
source computes it.
"""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import ParameterLayout
from parl_evokit.errors import EvolutionError, NoiseDataError

__all__ = ["LARGEST_UNIT", "SPEC_VERSION", "UNITS_PER_ONE", "NoiseSpec", "quantiles"]


SPEC_VERSION = 1
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
            raise EvolutionError(f"a noise seed is 0 to 2**64 - 1, not {self.seed}")
        if not SMALLEST_TABLE <= self.cache_size <= LARGEST_TABLE:
            raise EvolutionError(f"cache_size is {SMALLEST_TABLE} to 2**31, not {self.cache_size}")

    @property
    def block(self) -> int:
        """Coordinates that share one window of the table: the largest power of two up to a quarter of it, and 2**16."""
        return min(LARGEST_BLOCK, 1 << ((self.cache_size // 4).bit_length() - 1))

    @property
    def windows(self) -> int:
        """Number of windows of `block` entries in the table."""
        return self.cache_size - self.block + 1

    def fingerprint(self, layout: ParameterLayout, sampler: str = "gaussian") -> int:
        """Return the 32 bits that each sample carries, so that it is never read with foreign noise.

        Args:
            layout: Names, shapes and order of the perturbed parameters.
            sampler: What the algorithm makes of the noise.

        Returns:
            1 to 2**32 - 1: the first four bytes, little end first, of a SHA-256 over specification version, seed,
            sampler, table size (0 without a table) and layout; 1 where that would be 0, which means "not known".
        """
        table = self.cache_size if self.cached else 0
        head = f"evokit noise {SPEC_VERSION}\nseed {self.seed}\nsampler {sampler}\ntable {table}\n"
        return int.from_bytes(hashlib.sha256(head.encode() + layout.digest()).digest()[:4], "little") or 1


UNITS_PER_ONE = 4096
LARGEST_UNIT = 17715

QUANTILES_FILE = "quantiles_v1.i2"
QUANTILES_SHA256 = "8cbdab857d380e7e60b7b1cb1b278ff6bc248f9d124cd4b89d32f367c155c9da"


@functools.cache
def quantiles() -> NDArray[np.int16]:
    """Return the whole table `[65536]`, read-only and ascending.

    Raises:
        NoiseDataError: The shipped file is not the one that belongs to this version.
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
