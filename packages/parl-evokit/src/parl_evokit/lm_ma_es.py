"""LM-MA-ES (Loshchilov, Glasmachers, Beyer, "Large scale black-box optimization by limited-memory matrix adaptation",
IEEE Transactions on Evolutionary Computation 23, 2019), algorithm 1; numbers beside the lines are its own.

    d_i = z_i;  for j = 1 ... min(t, k):  d_i <- (1 - c_j) d_i + c_j m_j (m_j . d_i)          (lines 5 to 8)
    x_i = m + sigma * d_i                                                                      (line 9)
    m   <- m + sigma * sum w_i d_i                                                             (line 11)
    p   <- (1 - c_s) p + sqrt(mueff c_s (2 - c_s)) sum w_i z_i                                 (line 12)
    m_j <- (1 - e_j) m_j + sqrt(mueff e_j (2 - e_j)) sum w_i z_i                               (line 14)
    sigma <- sigma * exp(c_s / 2 * (|p|**2 / n - 1))                                           (line 15)

with k = 4 + floor(3 ln n) directions, c_s = 2 lambda / n, c_j = 1 / (1.5**(j - 1) n), e_j = lambda / (4**(j - 1) n). So
memory and time grow with n ln n where those of CMA_ES grow with n**2: for ill-conditioned problems of many parameters.

An update needs only a log of keys, since z is made from the key of the sample and the directions are in the solver. z
is exact; the rest uses BLAS, so results agree between machines up to rounding.

Differences from the paper: rates are at most 1/2, and with fewer than 5 parameters at most n / 10; weights are computed
for all samples of an update, if these are no fewer than the population; equal rewards share the mean of their ranks;
samples of older models are set aside.
"""

from collections.abc import Mapping
from math import exp, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._cma_family import SMALLEST_STEP, CmaFamily, log_ranks
from parl_evokit._sampler import Directions, Sampler
from parl_evokit._samples import Group
from parl_evokit.config import SolverKind

__all__ = ["LMMAES"]

LARGEST_RATE = 0.5  # limit of all rates, which would exceed 1 with few parameters
LARGEST_RATE_FOR_ONE = 0.1  # with 1 or 2 parameters, products of quickly changing directions are sometimes huge


class LMMAES(CmaFamily):
    """LM_MA_ES: adapts a few directions of the search and one step size.

    Args:
        mean0: The initial parameters: a vector `[n]`, or named arrays.
        config: Settings; the search uses `sampling.gaussian_sampling` (std is the initial step size; samples are never
            mirrored) and `sampling.cma_sampling`.
        layout: Names and shapes of the parts of the vector.
    """

    kind = SolverKind.LM_MA_ES
    sampler_name = "lm-ma"
    separable = True  # for a warm start, which has the step size; there are no directions yet

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """Return the directions, the evolution path and the number of steps, beside the state of the base class."""
        return super()._own_state() | {
            "directions": self._directions.copy(),
            "path_sigma": self._path_sigma.copy(),
            "steps": np.array(self._steps, np.int64),
        }

    def _load(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._steps = int(state["steps"])
        self._directions, self._path_sigma = state["directions"].copy(), state["path_sigma"].copy()

    def _begin(self) -> None:
        n = self.layout.size
        self._directions = np.zeros((4 + int(3 * log(n)), n))  # m_j
        self._path_sigma = np.zeros(n)  # p
        self._steps = 0

    def _begin_with(self, covariance: NDArray[np.float64]) -> None:  # noqa: ARG002  its size is in the step size
        self._begin()

    def _widest(self) -> float:
        _, directions = self._shape()
        return self._sigma * (1.0 if directions is None else directions.widest)

    def _deviations_of_samples(self) -> NDArray[np.float64]:
        return np.full(self.layout.size, self._sigma)  # without the directions, which stretch a few of n axes

    def _narrow(self, factors: NDArray[np.float64]) -> None:  # noqa: ARG002  it has no deviation for each parameter
        return

    def _mirror(self, signs: NDArray[np.float64]) -> None:
        self._path_sigma *= signs
        self._directions *= signs

    def _too_small(self) -> str:
        if self._sigma < SMALLEST_STEP:
            return f"the step size is {self._sigma:.3g}: the search has converged"
        return ""

    def _step(self, group: Group, sampler: Sampler) -> tuple[NDArray[np.float64], float]:
        n, count = self.layout.size, len(group.rewards)
        if group.rewards.min() == group.rewards.max():  # they contain no information
            return np.zeros(n), 0.0
        weights = np.maximum(0.0, log_ranks(group.rewards))
        weights /= weights.sum()
        mueff = 1.0 / float(np.square(weights).sum())

        better = weights > 0.0
        z = sampler.normals(group.keys[better])
        z_w = weights[better] @ z
        d_w = weights[better] @ (z if sampler.transform is None else sampler.shaped(z))
        step = self._sigma * d_w  # (11)
        c_sigma = min(self._largest_rate, 2 * count / n)
        self._path_sigma *= 1 - c_sigma
        self._path_sigma += sqrt(mueff * c_sigma * (2 - c_sigma)) * z_w  # (12)
        rates = np.minimum(self._largest_rate, count / n / 4.0 ** np.arange(len(self._directions)))[:, np.newaxis]
        self._directions *= 1 - rates
        self._directions += np.sqrt(mueff * rates * (2 - rates)) * z_w  # (14)
        self._steps += 1
        self._sigma *= exp(min(1.0, c_sigma / 2 * (float(self._path_sigma @ self._path_sigma) / n - 1)))  # (15)
        return step, float(np.linalg.norm(d_w))

    @property
    def _largest_rate(self) -> float:
        return min(LARGEST_RATE, LARGEST_RATE_FOR_ONE * self.layout.size)

    def _shape(self) -> tuple[float, Directions | None]:
        used = min(self._steps, len(self._directions))
        if not used:
            return self._sigma, None
        rates = np.minimum(self._largest_rate, 1.0 / self.layout.size / 1.5 ** np.arange(used))
        return self._sigma, Directions(rates, self._directions[:used].copy())
