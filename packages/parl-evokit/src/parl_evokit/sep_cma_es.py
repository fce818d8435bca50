"""Separable CMA-ES (Ros and Hansen, "A simple modification in CMA-ES achieving linear time …", PPSN 2008).

Formulas and defaults are those of Hansen's tutorial (2016, arXiv 1604.00772), whose numbers are beside the lines,
with a diagonal covariance C and its learning rates times (n + 2) / 3, as Ros and Hansen propose.

Samples: x = m + sigma * sqrt(C) * z, z normal and made from the key of the sample, so an update needs only a log of
keys. The sums over z are exact; the rest is float64 and repeats to the last bit on one platform.

Differences from the paper: recombination weights are rounded to multiples of 2**-15; they are computed for all samples
of an update, if these are no fewer than the population; samples of older models are set aside.
"""

from collections.abc import Mapping
from math import exp, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._cma_family import LEAST_INTEGER_STD, CmaFamily, Rates, expected_norm, log_ranks
from parl_evokit._params import FlatVector
from parl_evokit._sampler import Sampler
from parl_evokit._samples import Group
from parl_evokit.config import SolverKind
from parl_evokit.noise._exact_sum import weighted_moments
from parl_evokit.noise._spec import UNITS_PER_ONE

__all__ = ["SepCMAES"]

FIXED_POINT = 2**15


class SepCMAES(CmaFamily):
    """SEP_CMA_ES: adapts a standard deviation for each parameter, and one step size for all.

    Args:
        mean0: The initial parameters: a vector `[n]`, or named arrays.
        config: Settings; the search uses `sampling.gaussian_sampling` (std is the initial step size; samples are never
            mirrored) and `sampling.cma_sampling`.
        layout: Names and shapes of the parts of the vector.
    """

    kind = SolverKind.SEP_CMA_ES
    sampler_name = "sep-cma"
    separable = True

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """Return the variances and the evolution paths, beside the state of the base class."""
        return super()._own_state() | {
            "variances": self._variances.copy(),
            "path_sigma": self._path_sigma.copy(),
            "path_c": self._path_c.copy(),
            "steps": np.array(self._steps, np.int64),
        }

    def _load(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._steps = int(state["steps"])
        names = ("variances", "path_sigma", "path_c")
        self._variances, self._path_sigma, self._path_c = (state[name].copy() for name in names)

    def _begin(self) -> None:
        n = self.layout.size
        self._variances = np.ones(n)  # C
        self._path_sigma = np.zeros(n)  # p_sigma
        self._path_c = np.zeros(n)  # p_c
        self._steps = 0

    def _begin_with(self, covariance: NDArray[np.float64]) -> None:
        self._begin()
        self._variances = covariance.copy()

    def _widest(self) -> float:
        return self._sigma * sqrt(float(self._variances.max()))

    def _deviations_of_samples(self) -> NDArray[np.float64]:
        deviations: NDArray[np.float64] = self._sigma * np.sqrt(self._variances)
        return deviations

    def _narrow(self, factors: NDArray[np.float64]) -> None:
        self._variances *= np.square(factors)
        self._path_c *= factors

    def _mirror(self, signs: NDArray[np.float64]) -> None:
        self._path_sigma *= signs
        self._path_c *= signs

    def _step(self, group: Group, sampler: Sampler) -> tuple[NDArray[np.float64], float]:
        if group.rewards.min() == group.rewards.max():  # they contain no information
            return np.zeros(self.layout.size), 0.0
        n, weights = self.layout.size, _recombination_weights(group.rewards)
        total = float(weights.sum())
        mueff = total**2 / float(np.square(weights.astype(np.float64)).sum())
        rates = Rates.of(n, mueff, faster=(n + 2) / 3)

        z_w, squares = weighted_moments(sampler.noise, group.keys, weights, n)
        z_w /= total * UNITS_PER_ONE
        squares /= total * UNITS_PER_ONE**2
        deviations = np.sqrt(self._variances)
        y_w = deviations * z_w  # (41)
        step = self._sigma * y_w  # (42)

        self._steps += 1
        self._path_sigma *= 1 - rates.c_sigma
        self._path_sigma += sqrt(rates.c_sigma * (2 - rates.c_sigma) * mueff) * z_w  # (43)
        norm = sqrt(float(np.square(self._path_sigma).sum()))
        moving = rates.moving(norm, self._steps, n)
        self._path_c *= 1 - rates.c_c
        if moving:
            self._path_c += sqrt(rates.c_c * (2 - rates.c_c) * mueff) * y_w  # (45)
        forget = 1 - rates.c_1 - rates.c_mu + (0.0 if moving else rates.c_1 * rates.c_c * (2 - rates.c_c))
        self._variances = (  # (47)
            forget * self._variances + rates.c_1 * self._path_c**2 + rates.c_mu * self._variances * squares
        )
        self._sigma *= exp(min(1.0, rates.c_sigma / rates.d_sigma * (norm / expected_norm(n) - 1)))  # (44)
        if (integers := sampler.integers) is not None:
            self._variances[integers] = np.maximum(self._variances[integers], (LEAST_INTEGER_STD / self._sigma) ** 2)
        return step, float(np.linalg.norm(y_w))

    def _shape(self) -> tuple[FlatVector, None]:
        return (self._sigma * np.sqrt(self._variances)).astype(np.float32), None


def _recombination_weights(rewards: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return weights of the better half by `log_ranks`, the largest 2**15, the others 0  (49 to 53)."""
    raw = np.maximum(0.0, log_ranks(rewards))
    weights: NDArray[np.int64] = np.rint(raw / raw.max() * FIXED_POINT).astype(np.int64)
    return weights
