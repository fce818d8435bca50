"""Separable natural evolution strategy (Wierstra et al. 2014, "Natural evolution strategies", JMLR 15, algorithm 6).

    utilities:  u_k = max(0, ln(n/2 + 1) - ln k) / sum of these - 1/n,  k the rank, 1 for the best       (section 3.1)
    gradients:  g_m = sum u z,  g_s = sum u (z**2 - 1)                                                    (line 7)
    step:       m <- m + eta_m * std * g_m,  std <- std * exp(eta_s / 2 * g_s)                            (line 8)

with eta_m = 1 and eta_s = (3 + ln d) / (5 sqrt d) for d parameters (table 1).

The sums over samples are exact; `exp` is the platform's, so deviations agree between platforms to rounding and repeat
to the last bit on one.

Differences from the paper: ranks of equal rewards share the mean of their logarithms' ranks; utilities are computed for
as many samples as came, rounded to multiples of 2**-15 of the largest; noise may be mirrored (the default).
"""

from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from parl_evokit.adaptive_std import AdaptiveStd
from parl_evokit.cma_rates import log_ranks
from parl_evokit.intake import Group
from parl_evokit.params import FlatVector
from parl_evokit.sampler import Sampler

__all__ = ["SNES"]

FIXED_POINT = 2**15


class SNES(AdaptiveStd):
    """SNES: follows the natural gradient of mean and standard deviations; it has no optimizer and no learning rate.

    Args:
        mean0: Where to start: a vector `[n]`, or named arrays.
        config: Settings; used are `sampling.gaussian_sampling`, `update.min_samples` and
            `adaptive_std.learning_rate` (0: eta_s as above).
        layout: Names and shapes of the vector's parts.
    """

    sampler_name = "snes"

    def _step(self, group: Group, sampler: Sampler) -> tuple[FlatVector, NDArray[np.float64], float]:
        d, n = self.layout.size, len(group.rewards)
        weights = _utility_weights(group.rewards)
        total = int(weights.sum())
        rate = self.config.solver.adaptive_std.learning_rate or (3 + log(d)) / (5 * sqrt(d))
        g_m = self._first_moment(group, n * weights - total, sampler) / (n * total)
        ones = np.ones(n, np.int64)
        g_s = self._second_moment(group, weights, sampler) / total - self._second_moment(group, ones, sampler) / n
        step = self._std * g_m
        return (
            (sampler.parameters + step).astype(np.float32),
            self._std * np.exp(rate / 2 * g_s),
            float(np.linalg.norm(step)),
        )


def _utility_weights(rewards: NDArray[np.float64]) -> NDArray[np.int64]:
    """max(0, ln(n/2 + 1) - ln rank) as whole numbers, the largest 2**15; all 1 where rewards do not differ."""
    n = len(rewards)
    raw = np.maximum(0.0, log_ranks(rewards) + log((n / 2 + 1) / ((n + 1) / 2)))
    if rewards.min() == rewards.max():
        return np.ones(n, np.int64)
    weights: NDArray[np.int64] = np.rint(raw / raw.max() * FIXED_POINT).astype(np.int64)
    return weights
