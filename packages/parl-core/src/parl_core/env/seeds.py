"""Seeds of a vector's environments, out of what `reset` was given."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from parl_core.checks import check_int
from parl_core.errors import HyperparameterError

__all__ = ["Seeds", "seeds_of"]

Seeds = int | Sequence[int | None] | None
"""Environment i gets `seed + i`; or one seed an environment; None goes on with an environment's own generator."""


def seeds_of(seed: Seeds, count: int) -> list[int | None]:
    """One seed for each of `count` environments, as plain ints.

    Raises:
        HyperparameterError: another number of seeds, or one that is no whole number of at least 0.
    """
    given: Any = seed
    if given is None:
        return [None] * count
    if np.ndim(given) == 0:
        first = check_int("seed", given, at_least=0)
        return [first + index for index in range(count)]
    seeds = [None if one is None else check_int("seed", one, at_least=0) for one in given]
    if len(seeds) != count:
        raise HyperparameterError(f"{len(seeds)} seeds were given for {count} environments")
    return seeds
