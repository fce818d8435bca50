"""CR-FM-NES (Nomura and Ono, "Fast moving natural evolution strategy for high-dimensional problems", CEC 2022,
arXiv 2201.11422).

    y = z + (sqrt(1 + |v|**2) - 1) u (u . z),  u = v / |v|;      x = m + sigma * D * y                   (1)

so the covariance is sigma**2 D (I + v v^T) D: a deviation for each parameter and one direction, time and memory linear
in their number. An update follows the natural gradient of v and D (Akimoto, Auger and Hansen, "Comparison-based natural
gradient optimization in high dimension", GECCO 2014, section 3) and of sigma, and tells three phases apart by the
length of the path of the step size, p, beside the expected length chi of normal noise:

    moving      |p| >= chi        samples far from the mean count more, sigma does not shrink, and p_c takes part
    stagnating  0.1 chi <= |p|    ranks alone; a lower rate of sigma
    converging  below that        ranks alone; a higher rate of sigma

    weights by rank        w_i ~ max(0, ln(k/2 + 1) - ln i), less 1/k
    weights by distance    w_i ~ max(0, ln(k/2 + 1) - ln i) exp(a |z_i|), less 1/k                        (2)
    p   <- (1 - c_s) p + sqrt(c_s (2 - c_s) mueff) sum w_i z_i            (always by rank)                (3)
    p_c <- (1 - c_c) p_c + sqrt(c_c (2 - c_c) mueff) sum w_i D y_i                                        (4)
    m   <- m + sigma sum w_i D y_i                                                                        (5)
    v   <- v + (sum eta_B w_i t_i + c_1 t_c) / |v|,  D <- D (1 + sum eta_B w_i s_i + c_1 s_c)             (6)
    sigma <- sigma exp(eta_s / 2 * G),  G = sum w_i (|z_i|**2 - n) / n                                    (7)

with (t, s) the natural gradient at y_i, and at p_c / D for the terms with c_1. D is scaled so that (1) has determinant
sigma**n.

An update needs only a log of keys, since z is made from the key of the sample, and v and D are in the solver. z is
exact; the rest uses BLAS, so results agree between machines up to rounding.

Differences from the paper: weights are computed for all samples of an update, if these are at least a population; the
paper's rates for infeasible samples are left out, because all samples have a reward; equal rewards share the mean of
their ranks; c_1, which would be negative for fewer than 5 parameters, is 0 there; the initial v is drawn from the seed.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import exp, log, sqrt, tanh
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._cma_family import CmaFamily, Rates, expected_norm, log_ranks
from parl_evokit._params import ParameterLayout
from parl_evokit._sampler import RankOneTransform, Sampler
from parl_evokit._samples import Group
from parl_evokit.config import Config, SolverKind
from parl_evokit.noise._spec import UNITS_PER_ONE, quantiles

__all__ = ["CRFMNES"]

LONGEST = 1e4  # maximum length of v: beyond it, rounding makes (6) divide by zero
SMALLEST_FACTOR = 1e-3  # maximum factor by which one update shrinks a deviation, so that deviations stay above 0


class CRFMNES(CmaFamily):
    """CR_FM_NES: adapts a deviation for each parameter, one direction and one step size.

    Args:
        mean0: The initial parameters: a vector `[n]`, or named arrays.
        config: Settings; the search uses `sampling.gaussian_sampling` (std is the initial step size) and
            `sampling.cma_sampling`; a population of the default size is even, since samples are mirrored.
        layout: Names and shapes of the parts of the vector.
    """

    kind = SolverKind.CR_FM_NES
    sampler_name = "cr-fm-nes"
    separable = True  # for a warm start, which has the deviations; the direction is drawn
    leaps = True  # where the direction is long, its natural gradient has no bound
    _mirrors = True

    def __init__(
        self,
        mean0: NDArray[Any] | Sequence[float] | Mapping[str, NDArray[Any]],
        config: Config | Mapping[str, Any] | str | None = None,
        layout: ParameterLayout | None = None,
    ) -> None:
        super().__init__(mean0, config, layout)
        self._sample_with(*self._shape())  # the first samples are stretched, too

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """Return the direction, the deviations and the evolution paths, beside the state of the base class."""
        return super()._own_state() | {
            "direction": self._v.copy(),
            "deviations": self._deviations.copy(),
            "path_sigma": self._path_sigma.copy(),
            "path_c": self._path_c.copy(),
        }

    def _load(self, state: Mapping[str, NDArray[Any]]) -> None:
        names = ("direction", "deviations", "path_sigma", "path_c")
        self._v, self._deviations, self._path_sigma, self._path_c = (state[name].copy() for name in names)

    def _begin(self) -> None:
        n = self.layout.size
        if not self.config.solver.sampling.cma_sampling.population:
            self.population += self.population % 2
        uniforms = self._restarts.uniforms(n, start=16 + n)  # behind those of another start
        self._v = quantiles()[(uniforms * 2**16).astype(np.int64)] / (UNITS_PER_ONE * sqrt(n))
        self._deviations = np.ones(n)  # D
        self._path_sigma = np.zeros(n)  # p
        self._path_c = np.zeros(n)  # p_c

    def _begin_with(self, covariance: NDArray[np.float64]) -> None:
        self._begin()
        self._deviations = np.sqrt(covariance)

    def _widest(self) -> float:
        return self._sigma * float((self._deviations * np.sqrt(1.0 + np.square(self._v))).max())

    def _deviations_of_samples(self) -> NDArray[np.float64]:
        deviations: NDArray[np.float64] = self._sigma * self._deviations * np.sqrt(1.0 + np.square(self._v))
        return deviations

    def _narrow(self, factors: NDArray[np.float64]) -> None:
        self._deviations *= factors
        self._path_c *= factors
        scale = self._determinant()
        self._deviations /= scale
        self._sigma *= scale

    def _mirror(self, signs: NDArray[np.float64]) -> None:
        self._v *= signs
        self._path_sigma *= signs
        self._path_c *= signs

    def _step(self, group: Group, sampler: Sampler) -> tuple[NDArray[np.float64], float]:
        n, k = self.layout.size, len(group.rewards)
        if group.rewards.min() == group.rewards.max():  # they contain no information
            return np.zeros(n), 0.0
        z = sampler.normals(group.keys)
        lengths = np.sqrt(np.einsum("kn,kn->k", z, z))
        raw = np.maximum(0.0, log_ranks(group.rewards) + log((k + 2) / (k + 1)))
        shares = raw / raw.sum()
        mueff = 1.0 / float(np.square(shares).sum())
        rates, chi = Rates.of(n, mueff), expected_norm(n)

        self._path_sigma *= 1 - rates.c_sigma
        self._path_sigma += sqrt(rates.c_sigma * (2 - rates.c_sigma) * mueff) * ((shares - 1.0 / k) @ z)  # (3)
        norm = sqrt(float(self._path_sigma @ self._path_sigma))
        moving = norm >= chi
        if moving:
            shares = raw * np.exp(_distance_rate(n) * min(1.0, sqrt(k / n)) * (lengths - lengths.max()))
            shares /= shares.sum()
        weights = shares - 1.0 / k  # (2)

        stretch = self._stretch()
        y = stretch.along(z)
        step = self._deviations * (weights @ y)
        self._path_c *= 1 - rates.c_c
        self._path_c += sqrt(rates.c_c * (2 - rates.c_c) * mueff) * step  # (4)
        shift = self._sigma * step  # (5)

        c_1 = rates.c_1 * max(0.0, (n - 5) / 6) if moving else 0.0
        eta = tanh((min(0.02 * k, 3 * log(n)) + 5) / (0.23 * n + 25))
        before = self._determinant()
        self._follow(np.vstack((y, self._path_c / self._deviations)), np.append(eta * weights, c_1))  # (6)
        self._deviations /= self._determinant()
        growth = float(weights @ (np.square(lengths) - n)) / n
        if moving:
            rate = 0.0 if growth < 0 else 1.0
        elif norm >= 0.1 * chi:
            rate = tanh((0.024 * k + 0.7 * n + 20) / (n + 12))
        else:
            rate = 2 * tanh((0.025 * k + 0.75 * n + 10) / (n + 4))
        self._sigma *= before * exp(min(1.0, rate / 2 * growth))  # (7)
        return shift, sqrt(float(step @ step))

    def _follow(self, y: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        """Move v and D along their natural gradients at the rows of `y` `[m, n]`, by so much each."""
        v_norm2 = float(self._v @ self._v)
        u = self._v / sqrt(v_norm2)
        squares, gamma = np.square(u), 1.0 + v_norm2
        a = min(1.0, sqrt(v_norm2**2 + (2 * gamma - sqrt(gamma)) / float(squares.max())) / (2 + v_norm2))
        b = 2 * a**2 - (1 - a**2) * v_norm2**2 / gamma
        along = (y @ u)[:, np.newaxis]
        t = along * y - (np.square(along) + gamma) / 2 * u
        s = np.square(y) - v_norm2 / gamma * along * (y * u) + 1.0
        s -= a / gamma * ((2 + v_norm2) * (t * u) - v_norm2 * (t @ u)[:, np.newaxis] * squares)
        inverse = 1.0 / (2.0 - (b + 2 * a**2) * squares)
        pulled = inverse * squares
        s = s * inverse - b / (1.0 + b * float(squares @ pulled)) * (s @ pulled)[:, np.newaxis] * pulled
        t -= a * ((2 + v_norm2) * (s * u) - (s @ squares)[:, np.newaxis] * u)
        self._v += weights @ t / sqrt(v_norm2)
        self._v *= min(1.0, LONGEST / sqrt(float(self._v @ self._v)))
        self._deviations *= np.maximum(SMALLEST_FACTOR, 1.0 + weights @ s)

    def _determinant(self) -> float:
        """Return the n-th root of the determinant of the matrix in (1) that makes noise, without sigma."""
        stretched = log(1.0 + float(self._v @ self._v)) / (2 * self.layout.size)
        return exp(float(np.log(self._deviations).mean()) + stretched)

    def _stretch(self) -> RankOneTransform:
        norm2 = float(self._v @ self._v)
        return RankOneTransform(self._deviations.copy(), self._v / sqrt(norm2), sqrt(1.0 + norm2) - 1.0)

    def _shape(self) -> tuple[float, RankOneTransform]:
        return self._sigma, self._stretch()


@lru_cache(maxsize=16)
def _distance_rate(n: int) -> float:
    """Return the a > 0 of (1 + a**2) exp(a**2 / 2) / 0.24 - 10 = n, found by bisection."""
    low, high = 0.0, 1.0
    while (1 + high**2) * exp(high**2 / 2) / 0.24 - 10 < n:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + middle**2) * exp(middle**2 / 2) / 0.24 - 10 < n else (low, middle)
    return high
