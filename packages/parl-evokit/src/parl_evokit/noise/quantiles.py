"""The normal distribution of noise specification v1: 65536 integers, in units of 2**-12.

Sixteen random bits pick one of them. They are the normal quantiles of (i + 1/2) / 65536, scaled to variance 1 before
they are rounded: odd-symmetric, variance 1 - 8.8e-7, kurtosis 2.9992, largest 4.325. The upper half ships as a file;
`tools/make_quantiles.py` of this package's source computes it.
"""

import functools
import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parl_evokit.errors import NoiseDataError

__all__ = ["LARGEST_UNIT", "UNITS_PER_ONE", "quantiles"]

UNITS_PER_ONE = 4096
LARGEST_UNIT = 17715

FILE = "quantiles_v1.i2"
SHA256 = "8cbdab857d380e7e60b7b1cb1b278ff6bc248f9d124cd4b89d32f367c155c9da"


@functools.cache
def quantiles() -> NDArray[np.int16]:
    """The whole table `[65536]`, read-only and ascending.

    Raises:
        NoiseDataError: The shipped file is not the one that belongs to this version.
    """
    data = Path(__file__).with_name(FILE).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise NoiseDataError(f"{FILE} is damaged (SHA-256 {found}, not {SHA256}): install parl-evokit again")
    upper = np.frombuffer(data, "<i2").astype(np.int16)
    table = np.concatenate((-upper[::-1], upper))
    table.flags.writeable = False
    return table
