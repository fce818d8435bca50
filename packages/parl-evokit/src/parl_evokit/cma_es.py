"""CMA-ES with active covariance (Hansen, "The CMA evolution strategy: a tutorial", 2016, arXiv 1604.00772).

The tutorial's equation numbers stand beside the lines; all defaults are its own.

Samples: x = m + sigma * B * D * z, z normal and made from the sample's key; C = B * D**2 * B^T. Since z comes from the
key and B, D and sigma are in the solver, a log of keys is all that an update needs. z is exact; what follows goes
through BLAS and LAPACK, so results agree between machines to rounding, not to the bit.

Differences from the tutorial: weights are computed for as many samples as came, if these are no fewer than the
population; equal rewards share the mean of their ranks; samples of older models are set aside. B and D are computed
anew only when C has had time to change (the tutorial's section B.2).
"""

from collections.abc import Mapping
from math import exp, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit.cma_family import SMALLEST_STEP, CmaFamily
from parl_evokit.cma_rates import Rates, expected_norm, log_ranks
from parl_evokit.intake import Group
from parl_evokit.sampler import Sampler

__all__ = ["CMAES"]

Matrix = NDArray[np.float64]
LARGEST_CONDITION = 1e14  # of C: beyond it, float64 cannot tell its axes apart


class CMAES(CmaFamily):
    """CMA_ES: adapts the whole covariance of the search; for up to some thousand parameters.

    Args:
        mean0: Where to start: a vector `[n]`, or named arrays.
        config: Settings; used are `sampling.gaussian_sampling` (std is the first step size; never mirrored) and
            `sampling.cma_sampling`.
        layout: Names and shapes of the vector's parts.
    """

    sampler_name = "cma"

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """See `Strategy._own_state`."""
        return super()._own_state() | {
            "steps": np.array(self._steps, np.int64),
            "decomposed_at": np.array(self._decomposed_at, np.int64),
            "covariance": self._covariance.copy(),
            "axes": self._axes.copy(),
            "lengths": self._lengths.copy(),
            "path_sigma": self._path_sigma.copy(),
            "path_c": self._path_c.copy(),
        }

    def _begin(self) -> None:
        n = self.layout.size
        self._covariance: Matrix = np.eye(n)  # C
        self._axes: Matrix = np.eye(n)  # B
        self._lengths = np.ones(n)  # D
        self._path_sigma = np.zeros(n)  # p_sigma
        self._path_c = np.zeros(n)  # p_c
        self._steps = self._decomposed_at = 0

    def _load(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._steps, self._decomposed_at = int(state["steps"]), int(state["decomposed_at"])
        self._covariance, self._axes = state["covariance"].copy(), state["axes"].copy()
        self._lengths = state["lengths"].copy()
        self._path_sigma, self._path_c = state["path_sigma"].copy(), state["path_c"].copy()

    def _begin_with(self, covariance: Matrix) -> None:
        self._begin()
        self._covariance = covariance.copy()
        self._decompose()

    def _too_small(self) -> str:
        largest, smallest = float(self._lengths.max()), float(self._lengths.min())
        if self._sigma * largest < SMALLEST_STEP:
            return f"the largest standard deviation is {self._sigma * largest:.3g}: the search has converged"
        if largest**2 > LARGEST_CONDITION * smallest**2:
            return f"the condition of the covariance is {(largest / smallest) ** 2:.3g}, above {LARGEST_CONDITION:g}"
        return ""

    def _step(self, group: Group, sampler: Sampler) -> tuple[NDArray[np.float64], float]:
        n = self.layout.size
        raw = log_ranks(group.rewards)  # (49)
        parents = np.maximum(raw, 0.0)
        total = float(parents.sum())
        if total == 0.0:  # all rewards are equal: nothing can be learnt from them
            return sampler.parameters.astype(np.float64), 0.0
        parents /= total  # (50)
        mueff = 1.0 / float(np.square(parents).sum())
        rates = Rates.of(n, mueff)
        weights = parents + _negative_weights(raw, n, mueff, rates)  # (53)

        z = sampler.normals(group.keys)  # (38)
        y = z * self._lengths @ self._axes.T  # (39)
        y_w = parents @ y  # (41)
        mean = sampler.parameters + self._sigma * y_w  # (42)

        self._steps += 1
        self._path_sigma *= 1 - rates.c_sigma
        self._path_sigma += sqrt(rates.c_sigma * (2 - rates.c_sigma) * mueff) * (self._axes @ (parents @ z))  # (43)
        norm = float(np.linalg.norm(self._path_sigma))
        moving = rates.moving(norm, self._steps, n)
        self._path_c *= 1 - rates.c_c
        if moving:
            self._path_c += sqrt(rates.c_c * (2 - rates.c_c) * mueff) * y_w  # (45)

        squared = np.maximum(np.square(z).sum(axis=1), 1e-12)
        adjusted = np.where(weights < 0, weights * n / squared, weights)  # (46)
        variance_lost = 0.0 if moving else rates.c_1 * rates.c_c * (2 - rates.c_c)
        self._covariance *= 1 + variance_lost - rates.c_1 - rates.c_mu * float(weights.sum())  # (47)
        self._covariance += rates.c_1 * np.outer(self._path_c, self._path_c)
        self._covariance += rates.c_mu * (y.T * adjusted) @ y
        self._sigma *= exp(min(1.0, rates.c_sigma / rates.d_sigma * (norm / expected_norm(n) - 1)))  # (44)
        if self._steps - self._decomposed_at > 1 / (10 * n * (rates.c_1 + rates.c_mu)):
            self._decompose()
        return mean, float(np.linalg.norm(y_w))

    def _decompose(self) -> None:
        self._covariance = (self._covariance + self._covariance.T) / 2
        squares, self._axes = np.linalg.eigh(self._covariance)
        self._lengths = np.sqrt(np.maximum(squares, squares.max() / LARGEST_CONDITION / 10))
        self._decomposed_at = self._steps

    def _shape(self) -> tuple[float, Matrix]:
        transform: Matrix = self._sigma * self._axes * self._lengths
        transform.flags.writeable = False
        return self._sigma, transform


def _negative_weights(raw: NDArray[np.float64], n: int, mueff: float, rates: Rates) -> NDArray[np.float64]:
    """The weights of the worse half (50 to 53), as small as keeps C positive definite."""
    negative = np.minimum(raw, 0.0)
    size = -float(negative.sum())
    if size == 0.0 or rates.c_mu == 0.0:
        return np.zeros_like(raw)
    mueff_negative = size**2 / float(np.square(negative).sum())
    allowed = min(
        1 + rates.c_1 / rates.c_mu,  # (50)
        1 + 2 * mueff_negative / (mueff + 2),  # (51)
        (1 - rates.c_1 - rates.c_mu) / (n * rates.c_mu),  # (52)
    )
    return negative * allowed / size
