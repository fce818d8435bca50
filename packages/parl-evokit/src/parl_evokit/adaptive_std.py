"""Strategies with one adaptive standard deviation per parameter: their base, SNES, and PGPE.

    samples: x = m + std * z                      z normal, made from the sample's key
    sums:    sum w z  and  sum w (z**2 - 1)       w integers, so both are exact and no order matters

Samples of older models are set aside, because they were drawn with other standard deviations.

SNES, separable natural evolution strategies (Wierstra et al. 2014, "Natural evolution strategies", JMLR 15,
algorithm 6):

    utilities:  u_k = max(0, ln(n/2 + 1) - ln k) / sum of these - 1/n,  k the rank, 1 for the best       (section 3.1)
    gradients:  g_m = sum u z,  g_s = sum u (z**2 - 1)                                                    (line 7)
    step:       m <- m + eta_m * std * g_m,  std <- std * exp(eta_s / 2 * g_s)                            (line 8)

with eta_m = 1 and eta_s = (3 + ln d) / (5 sqrt d) for d parameters (table 1). `exp` is the platform's, so deviations
agree between platforms to rounding and repeat to the last bit on one. Differences from the paper: ranks of equal
rewards share the mean of their logarithms' ranks; utilities are computed for all samples of an update, rounded to
multiples of 2**-15 of the largest; noise may be mirrored (the default).

PGPE, policy gradients with parameter-based exploration (Sehnke et al. 2010, Neural Networks 23), symmetric samples:

    g_m = 1/n * sum over samples of u * std * z                         the mean's gradient              (equation 9)
    g_s = 1/n * sum over samples of u * std * (z**2 - 1)                the deviations' gradient         (equation 10)
    m <- optimizer(m, -g_m),  std <- std + rate * g_s                   no deviation changes by more than max_change

u is the utility of the reward. It replaces the reward minus a baseline; no baseline is needed, because utilities add up
to zero. Mirrored halves have the same z**2, so only their mean reward enters the gradient of the deviations, as in
equation 12 of the paper. All operations after the sums are elementwise, so equal samples give equal bits on any
machine. Differences from the paper: rewards are shaped (by default to centred ranks); the step of the mean goes through
an optimizer; a limit on the deviations' change per update, by default a fifth, as in evotorch.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._cma_family import log_ranks
from parl_evokit._params import FlatVector, ParameterLayout, under, within
from parl_evokit._sampler import FARTHEST, Advance, Sampler
from parl_evokit._samples import Group, SortedSamples
from parl_evokit.config import Config, SolverKind
from parl_evokit.errors import LayoutMismatch
from parl_evokit.noise._exact_sum import ExactSum, sum_of_squares
from parl_evokit.noise._spec import UNITS_PER_ONE
from parl_evokit.openai_es import utilities_of
from parl_evokit.optimizers import StepDiverged, make_optimizer
from parl_evokit.strategy import Strategy, length_of

__all__ = ["PGPE", "SNES", "AdaptiveStd"]


SMALLEST_STD = 1e-12
FIXED_POINT = 2**15  # for the weights of SNES
DEFAULT_RATE = 0.1  # for the deviations of PGPE


class AdaptiveStd(Strategy):
    """Base of algorithms that adapt one standard deviation per parameter.

    Args:
        mean0: The initial parameters: a vector `[n]`, or named arrays.
        config: Settings; `sampling.gaussian_sampling.std` is the initial deviation of all parameters.
        layout: Names and shapes of the parts of the vector.
    """

    def __init__(
        self,
        mean0: NDArray[Any] | Sequence[float] | Mapping[str, NDArray[Any]],
        config: Config | Mapping[str, Any] | str | None = None,
        layout: ParameterLayout | None = None,
    ) -> None:
        super().__init__(mean0, config, layout)
        self._std = np.full(self.layout.size, self.config.solver.sampling.gaussian_sampling.std)
        self._sample_with(self._std.astype(np.float32))

    @property
    def std(self) -> NDArray[np.float64]:
        """The present standard deviations, a copy `[n]`."""
        return self._std.copy()

    def should_stop(self) -> str:
        """Return why the search should stop, for example because no deviation is large enough to change a parameter."""
        largest = float(self._std.max())
        if largest < SMALLEST_STD:
            return f"the largest standard deviation is {largest:.3g}: the search has converged"
        return super().should_stop()

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """Return the standard deviations, beside the state of the base class."""
        return super()._own_state() | {"std": self._std.copy()}

    def _load_own_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the standard deviations, and the state of the base class."""
        shape = np.shape(state["std"]) if "std" in state else None
        if shape != (self.layout.size,):
            raise LayoutMismatch(f"the state has standard deviations of shape {shape}, not ({self.layout.size},)")
        super()._load_own_state(state)
        self._std = np.array(state["std"], np.float64)
        self._sample_with(self._std.astype(np.float32))

    @property
    def _max_age(self) -> int:
        return 0

    def _advance(self, intake: SortedSamples, sampler: Sampler) -> Advance:
        (group,) = intake.groups
        state = self._own_state()
        try:
            parameters, std, gradient_norm = self._step(group, sampler)
            narrow = std.astype(np.float32)
            farthest = np.abs(parameters) + np.float32(FARTHEST) * narrow
            if not np.isfinite(farthest).all():
                raise StepDiverged("samples would not be finite; rewards grow as far as numbers reach")
        except StepDiverged:
            self._load_own_state(state)
            raise
        self._std = std
        return Advance(parameters, narrow, gradient_norm)

    @abstractmethod
    def _step(self, group: Group, sampler: Sampler) -> tuple[FlatVector, NDArray[np.float64], float]:
        """Return the next parameters and deviations, and the norm of the parameters' step."""

    def _first_moment(self, group: Group, weights: NDArray[np.int64], sampler: Sampler) -> NDArray[np.float64]:
        """Return the sum of weight * z over the samples, `[n]`."""
        exact = ExactSum(sampler.noise, group.keys, weights)
        return exact.part(0, self.layout.size, np.empty(self.layout.size)) / UNITS_PER_ONE

    def _second_moment(self, group: Group, weights: NDArray[np.int64], sampler: Sampler) -> NDArray[np.float64]:
        """Return the sum of weight * z**2 over the samples, `[n]`."""
        return sum_of_squares(sampler.noise, group.keys, weights, self.layout.size) / UNITS_PER_ONE**2


class SNES(AdaptiveStd):
    """SNES: natural gradient ascent on mean and standard deviations, without an optimizer.

    Args:
        mean0: The initial parameters: a vector `[n]`, or named arrays.
        config: Settings; the search uses `sampling.gaussian_sampling`, `update.min_samples` and
            `adaptive_std.learning_rate` (0 stands for eta_s as above).
        layout: Names and shapes of the parts of the vector.
    """

    kind = SolverKind.SNES
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
    """Return max(0, ln(n/2 + 1) - ln rank) as whole numbers, the largest 2**15; all 1 for equal rewards."""
    n = len(rewards)
    raw = np.maximum(0.0, log_ranks(rewards) + log((n / 2 + 1) / ((n + 1) / 2)))
    if rewards.min() == rewards.max():
        return np.ones(n, np.int64)
    weights: NDArray[np.int64] = np.rint(raw / raw.max() * FIXED_POINT).astype(np.int64)
    return weights


class PGPE(AdaptiveStd):
    """PGPE: gradient ascent on mean and standard deviations, with SGD, momentum or Adam for the mean.

    Args:
        mean0: The initial parameters: a vector `[n]`, or named arrays.
        config: Settings; the search uses `optimizer`, `sampling.gaussian_sampling`, `update` and `adaptive_std`
            (`learning_rate` 0 stands for 0.1).
        layout: Names and shapes of the parts of the vector.
    """

    kind = SolverKind.PGPE
    sampler_name = "pgpe"

    def __init__(
        self,
        mean0: NDArray[Any] | Sequence[float] | Mapping[str, NDArray[Any]],
        config: Config | Mapping[str, Any] | str | None = None,
        layout: ParameterLayout | None = None,
    ) -> None:
        super().__init__(mean0, config, layout)
        self._optimizer = make_optimizer(self.config.solver.optimizer, self.layout.size)

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the optimizer, beside that of the base class."""
        return super()._own_state() | under("optimizer.", self._optimizer.state())

    def _load_own_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state of the optimizer, and that of the base class."""
        self._optimizer.load_state(within("optimizer.", state))
        super()._load_own_state(state)

    def _step(self, group: Group, sampler: Sampler) -> tuple[FlatVector, NDArray[np.float64], float]:
        update, settings = self.config.solver.update, self.config.solver.adaptive_std
        utilities = utilities_of(group, update)
        scale = utilities.unit / len(group.rewards)
        g_m = self._std * self._first_moment(group, utilities.weights, sampler) * scale  # (9)
        second = self._second_moment(group, utilities.weights, sampler) - int(utilities.weights.sum())
        g_s = self._std * second * scale  # (10)
        gradient = (-g_m).astype(np.float32)
        if update.weight_decay:
            gradient += np.float32(update.weight_decay) * sampler.parameters
        parameters = self._optimizer.finite_step(sampler.parameters, gradient, length_of(gradient))
        most = settings.max_change * self._std
        std = self._std + np.clip((settings.learning_rate or DEFAULT_RATE) * g_s, -most, most)
        return parameters, std, float(np.linalg.norm(g_m))
