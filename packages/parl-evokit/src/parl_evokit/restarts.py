"""When CMA-ES has converged, where to begin again: with larger populations (IPOP), or with large and small in turn.

IPOP: Auger and Hansen, "A restart CMA evolution strategy with increasing population size", CEC 2005. Each restart
doubles the population.

BIPOP: Hansen, "Benchmarking a BI-population CMA-ES on the BBOB-2009 function testbed", GECCO workshop 2009. A restart
belongs to the regime that has used fewer evaluations so far: the large one, whose populations double, or the small one,
with population floor(p * (P / 2p)**(u**2)) and first step size s * 10**(-2v), for the default population p, the present
large one P, the configured step size s, and u and v uniform between 0 and 1.

u, v and the points to start from are drawn from the seed and the number of the restart, so a search that is resumed
goes on as it would have.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parl_evokit.config import RestartKind
from parl_evokit.noise.philox import random_bits

__all__ = ["Restarts", "Start"]

_STREAM = 2**63  # keys are below 2**62, so no sample is drawn from these streams
_UNIFORM_BITS = 16


@dataclass(frozen=True)
class Start:
    """Where a run begins."""

    population: int
    sigma: float


class Restarts:
    """The plan of all runs.

    Args:
        kind: IPOP, BIPOP, or none at all.
        most: How often to double the population at most; the search ends where it would have to be doubled again.
        population: Of the first run.
        sigma: First step size of the first run.
        seed: Of the noise.

    Attributes:
        count: How often it has begun again.
    """

    def __init__(self, kind: RestartKind, most: int, population: int, sigma: float, seed: int) -> None:
        self._kind = kind
        self._most = most
        self._first = Start(population, sigma)
        self._seed = seed
        self.count = 0
        self._doublings = 0
        self._evaluations = [0, 0]  # of the small and of the large regime
        self._large = False

    def next(self, evaluations: int) -> Start | None:
        """The start of the next run, after one that took so many evaluations; None if there shall be none."""
        if self._kind is RestartKind.NONE:
            return None
        self._evaluations[self._large] += evaluations
        small, large = self._evaluations
        self._large = self._kind is RestartKind.IPOP or self._doublings == 0 or large <= small
        if self._large and self._doublings >= self._most:
            return None
        self.count += 1
        if self._large:
            self._doublings += 1
            return Start(self._first.population << self._doublings, self._first.sigma)
        u, v = self.uniforms(2)
        largest = self._first.population << self._doublings
        times = (largest / (2 * self._first.population)) ** (float(u) ** 2)
        return Start(max(2, int(self._first.population * times)), self._first.sigma * 10 ** (-2 * float(v)))

    def uniforms(self, count: int, start: int = 0) -> NDArray[np.float64]:
        """Numbers between 0 and 1 that belong to the present restart, `[count]`."""
        bits = random_bits(self._seed, _STREAM + self.count, start, count)
        uniforms: NDArray[np.float64] = (bits + 0.5) / 2**_UNIFORM_BITS
        return uniforms

    def state(self) -> NDArray[np.int64]:
        """Everything that changes, for a file."""
        return np.array([self.count, self._doublings, *self._evaluations, self._large], np.int64)

    def load_state(self, state: NDArray[np.int64]) -> None:
        """Take over what `state` gave."""
        self.count, self._doublings, small, large, is_large = state.tolist()
        self._evaluations, self._large = [small, large], bool(is_large)
