"""The cross-entropy method (de Boer, Kroese, Mannor, Rubinstein, "A tutorial on the cross-entropy method", 2005).

    elites: the best `elite_share` of the samples x = m + s * z, z made from the sample's key
    m <- a * mean of the elites + (1 - a) * m                                     (smoothing, section 3)
    s <- sqrt(a * (mean of (elite - m)**2 + e_t**2) + (1 - a) * s**2)
    e_t = extra_std * max(0, 1 - t / extra_updates)                               (Szita and Lorincz 2006, equation 3)

The sums over z and z**2 of the elites are whole numbers, so the order of samples does not matter; all other operations
are elementwise. Extra noise, which declines, keeps the search from ending too soon (Szita and Lorincz, "Learning Tetris
using the noisy cross-entropy method", Neural Computation 18).

Differences from the papers: variances are about the mean from which the samples were drawn, not about that of the
elites, as in Hansen's tutorial (2016, arXiv 1604.00772, section 3.1): deviations then shrink far less by chance where
there are few elites, and grow along a slope of one parameter from about ten samples on. Variances, not deviations, are
smoothed; equal rewards are ordered by key; noise is mirrored by default; samples of older models are set aside.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import FlatVector
from parl_evokit._sampler import Sampler
from parl_evokit._samples import Group
from parl_evokit.adaptive_std import AdaptiveStd
from parl_evokit.config import SolverKind
from parl_evokit.errors import LayoutMismatch

__all__ = ["CEM"]


class CEM(AdaptiveStd):
    """CEM: mean and standard deviations move towards those of the best samples.

    Args:
        mean0: The initial parameters: a vector `[n]`, or named arrays.
        config: Settings; the search uses `sampling.gaussian_sampling` (std is the initial deviation), `cem` and
            `update.min_samples`.
        layout: Names and shapes of the parts of the vector.
    """

    kind = SolverKind.CEM
    sampler_name = "cem"
    _updates = 0

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """Return the number of updates, beside the state of the base class."""
        return super()._own_state() | {"updates": np.array(self._updates, np.int64)}

    def _load_own_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the number of updates, and the state of the base class."""
        if "updates" not in state:
            raise LayoutMismatch("the state of CEM lacks updates")
        super()._load_own_state(state)
        self._updates = int(state["updates"])

    def _step(self, group: Group, sampler: Sampler) -> tuple[FlatVector, NDArray[np.float64], float]:
        settings, rewards = self.config.solver.cem, group.rewards
        self._updates += 1
        if rewards.min() == rewards.max():  # they contain no information
            return sampler.parameters.copy(), self._std, 0.0
        count = min(len(rewards), max(2, round(settings.elite_share * len(rewards))))
        weights = np.zeros(len(rewards), np.int64)
        weights[np.argsort(-rewards, kind="stable")[:count]] = 1  # keys ascend, so equal rewards are ordered by them
        z_w = self._first_moment(group, weights, sampler) / count
        squares = self._second_moment(group, weights, sampler) / count
        extra = settings.extra_std * max(0.0, 1.0 - (self._updates - 1) / settings.extra_updates)
        a = settings.smoothing
        step = a * self._std * z_w
        variance = np.square(self._std) * squares + extra**2
        std = np.sqrt(a * variance + (1.0 - a) * np.square(self._std))
        return (sampler.parameters + step).astype(np.float32), std, float(np.linalg.norm(step))
