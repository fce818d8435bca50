"""What the noise of a model's samples is a function of, besides their keys."""

import hashlib
from dataclasses import dataclass

from parl_evokit.errors import EvolutionError
from parl_evokit.params import ParameterLayout

__all__ = ["SPEC_VERSION", "NoiseSpec"]

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
        """How many windows of `block` entries the table has."""
        return self.cache_size - self.block + 1

    def fingerprint(self, layout: ParameterLayout, sampler: str = "gaussian") -> int:
        """32 bits that each sample carries, so that it is never read with foreign noise.

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
