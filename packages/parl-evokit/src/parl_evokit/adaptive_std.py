"""What SNES and PGPE share: a standard deviation for each parameter, and the sums that move it.

    samples: x = m + std * z                      z normal, made from the sample's key
    sums:    sum w z  and  sum w (z**2 - 1)       w integers, so both are exact and no order matters

A sample says something about the standard deviations that it was drawn with, so samples of older models are set aside.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit.config import Config
from parl_evokit.errors import LayoutMismatch
from parl_evokit.intake import Group, Intake
from parl_evokit.noise import ExactSum
from parl_evokit.noise.exact_sum import sum_of_squares
from parl_evokit.noise.quantiles import UNITS_PER_ONE
from parl_evokit.params import FlatVector, ParameterLayout
from parl_evokit.sampler import Advance, Sampler
from parl_evokit.strategy import Strategy

__all__ = ["AdaptiveStd"]

SMALLEST_STD = 1e-12


class AdaptiveStd(Strategy):
    """Base of algorithms that adapt one standard deviation a parameter.

    Args:
        mean0: Where to start: a vector `[n]`, or named arrays.
        config: Settings; `sampling.gaussian_sampling.std` is the first deviation of all parameters.
        layout: Names and shapes of the vector's parts.
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
        """See `Strategy.should_stop`; also when no deviation is large enough to matter."""
        largest = float(self._std.max())
        if largest < SMALLEST_STD:
            return f"the largest standard deviation is {largest:.3g}: the search has converged"
        return super().should_stop()

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """See `Strategy._own_state`."""
        return super()._own_state() | {"std": self._std.copy()}

    def _load_own_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See `Strategy._load_own_state`."""
        shape = np.shape(state["std"]) if "std" in state else None
        if shape != (self.layout.size,):
            raise LayoutMismatch(f"the state has standard deviations of shape {shape}, not ({self.layout.size},)")
        super()._load_own_state(state)
        self._std = np.array(state["std"], np.float64)
        self._sample_with(self._std.astype(np.float32))

    @property
    def _max_age(self) -> int:
        return 0

    def _advance(self, intake: Intake, sampler: Sampler) -> Advance:
        (group,) = intake.groups
        parameters, std, gradient_norm = self._step(group, sampler)
        self._std = std
        return Advance(parameters, std.astype(np.float32), gradient_norm)

    @abstractmethod
    def _step(self, group: Group, sampler: Sampler) -> tuple[FlatVector, NDArray[np.float64], float]:
        """The next parameters and deviations, and the norm of what moved the parameters."""

    def _first_moment(self, group: Group, weights: NDArray[np.int64], sampler: Sampler) -> NDArray[np.float64]:
        """Sum of weight * z over the samples, `[n]`."""
        return ExactSum(sampler.noise, group.keys, weights).part(0, self.layout.size) / UNITS_PER_ONE

    def _second_moment(self, group: Group, weights: NDArray[np.int64], sampler: Sampler) -> NDArray[np.float64]:
        """Sum of weight * z**2 over the samples, `[n]`."""
        return sum_of_squares(sampler.noise, group.keys, weights, self.layout.size) / UNITS_PER_ONE**2
