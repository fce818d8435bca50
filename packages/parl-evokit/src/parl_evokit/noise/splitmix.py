"""splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), as a hash.

`splitmix64(key, n)` is the (n + 1)-th number of the sequence that starts at `key`. The cached noise uses it to find a
sample's window for block n. One form is for plain integers, the other for arrays of keys or of blocks.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["splitmix64", "splitmix64_array"]

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


def splitmix64(key: int, n: int) -> int:
    """The (n + 1)-th number after `key`, 0 to 2**64 - 1."""
    z = (key + (n + 1) * GAMMA) & MASK
    z = ((z ^ (z >> 30)) * MIX_1) & MASK
    z = ((z ^ (z >> 27)) * MIX_2) & MASK
    return z ^ (z >> 31)


def splitmix64_array(keys: NDArray[np.uint64], n: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The same for arrays, which broadcast against each other."""
    z = keys + (n + np.uint64(1)) * np.uint64(GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed
