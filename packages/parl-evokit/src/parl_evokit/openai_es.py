"""OpenAI's evolution strategy (Salimans et al. 2017, "Evolution strategies as a scalable alternative", algorithm 2).

    g = -1/w * sum over samples of stale_decay**age * utility * std * unit / 4096 + weight_decay * theta        (1)
    theta <- optimizer(theta, g)                                                                                (2)

with w the sum of stale_decay**age over all samples: their number, when all of them are of the present model.

The sum in (1) is over integers and exact; everything after it is elementwise. So equal samples give equal bits, in any
order and on any machine.

With `shaping: TOP_K` only the best directions count, which is augmented random search (Mania et al. 2018, V1-t).

Differences from the paper: utilities of stale samples are ranked within their own model and count less the older they
are, but late rewards do not make the step shorter; equal rewards share their mean rank; the step is scaled by std, not
by 1/std, as the original EvoKit does, so that its documented learning rates keep their meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit import shaping
from parl_evokit.arrays import under, within
from parl_evokit.config import Config, OptimizerConfig, OptimizerKind, ShapingKind, StaleKind, UpdateConfig
from parl_evokit.errors import ConfigError
from parl_evokit.intake import Group, Intake
from parl_evokit.noise import ExactSum
from parl_evokit.noise.quantiles import UNITS_PER_ONE
from parl_evokit.optimizers import SGD, Adam, Momentum, Optimizer
from parl_evokit.params import FlatVector, ParameterLayout
from parl_evokit.sampler import Advance, Sampler
from parl_evokit.strategy import Strategy

if TYPE_CHECKING:
    from parl_evokit.importance import Centres

__all__ = ["ES", "make_optimizer", "utilities_of"]

PART = 2**14  # coordinates summed at a time, so that 64-bit sums take little memory
SHAPINGS: dict[ShapingKind, shaping.Shaping] = {
    ShapingKind.CENTERED_RANK: shaping.centered_rank,
    ShapingKind.CENTERED: shaping.centered,
    ShapingKind.NORMALIZED: shaping.normalized,
    ShapingKind.SIGN: shaping.sign,
}


class ES(Strategy):
    """BASIC_ES: mirrored normal noise, shaped rewards, SGD, momentum or Adam.

    Args:
        mean0: Where to start: a vector `[n]`, or named arrays.
        config: Settings; used are `optimizer`, `sampling` and `update`.
        layout: Names and shapes of the vector's parts.
    """

    def __init__(
        self,
        mean0: NDArray[Any] | Sequence[float] | Mapping[str, NDArray[Any]],
        config: Config | Mapping[str, Any] | str | None = None,
        layout: ParameterLayout | None = None,
    ) -> None:
        super().__init__(mean0, config, layout)
        self._optimizer = make_optimizer(self.config.solver.optimizer, self.layout.size)
        self._centres: Centres | None = None
        if self.config.solver.update.stale is StaleKind.IMPORTANCE:
            from parl_evokit.importance import MOST_PARAMETERS, Centres  # here, because few need it

            if self.layout.size > MOST_PARAMETERS:
                raise ConfigError(
                    f"stale: IMPORTANCE is for up to {MOST_PARAMETERS} parameters, not {self.layout.size}: ratios of "
                    "densities say nothing beyond; use GROUPED"
                )
            self._centres = Centres(self.layout.size, self.max_age)

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """See `Strategy._own_state`."""
        centres = {} if self._centres is None else self._centres.state()
        return super()._own_state() | under("optimizer.", self._optimizer.state()) | centres

    def _load_own_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See `Strategy._load_own_state`."""
        self._optimizer.load_state(within("optimizer.", state))
        if self._centres is not None:
            self._centres.load_state(state)
        super()._load_own_state(state)

    def _advance(self, intake: Intake, sampler: Sampler) -> Advance:
        gradient = self._gradient(intake, sampler)
        if self._centres is not None:
            self._centres.remember(sampler)
        norm = sqrt(float(np.dot(gradient, gradient)))
        parameters = self._optimizer.step(sampler.parameters, gradient, out=gradient)  # a vector less in memory
        return Advance(parameters, sampler.std, norm)

    def _gradient(self, intake: Intake, sampler: Sampler) -> FlatVector:
        """Equation (1), or that of `importance`."""
        update = self.config.solver.update
        if self._centres is not None:
            gradient = self._centres.gradient(intake.groups, sampler, self._utilities).astype(np.float32)
        else:
            gradient = self._grouped(intake, sampler)
        if update.weight_decay:
            gradient += np.float32(update.weight_decay) * sampler.parameters
        return gradient

    def _grouped(self, intake: Intake, sampler: Sampler) -> FlatVector:
        """Each model's samples ranked among themselves."""
        update = self.config.solver.update
        terms: list[tuple[ExactSum, float]] = []
        for group in intake.groups:
            utilities = self._utilities(group)
            factor = self._scale(group, intake) * utilities.unit * _weight(group, update)
            terms.append((ExactSum(sampler.noise, group.keys, utilities.weights), factor))
        gradient = np.empty_like(sampler.parameters)
        size = min(PART, len(gradient))
        term, total = np.empty(size), np.empty(size)
        for start in range(0, len(gradient), PART):
            count = min(PART, len(gradient) - start)
            if count < size:
                term, total = term[:count], total[:count]
            total.fill(0.0)
            for exact, factor in terms:  # youngest first: the order of these float64 sums is fixed
                exact.part(start, count, term)
                term *= factor
                total += term
            gradient[start : start + count] = total
        return gradient

    def _scale(self, group: Group, intake: Intake) -> float:  # noqa: ARG002
        """What one unit of noise with utility 1 and weight 1 adds to the gradient."""
        weights = sum(_weight(each, self.config.solver.update) * len(each.keys) for each in intake.groups)
        std = float(np.float32(self.config.solver.sampling.gaussian_sampling.std))
        return -std / UNITS_PER_ONE / weights if weights else 0.0  # no weight at all: stale samples and a decay of 0

    def _utilities(self, group: Group) -> shaping.Utilities:
        return utilities_of(group, self.config.solver.update)


def utilities_of(group: Group, update: UpdateConfig) -> shaping.Utilities:
    """The utilities of a model's samples, as the settings say."""
    if update.shaping is ShapingKind.TOP_K:
        return shaping.top_directions(group.rewards, group.keys, update.top_k)
    return SHAPINGS[update.shaping](group.rewards)


def make_optimizer(settings: OptimizerConfig, size: int) -> Optimizer:
    """The optimizer that the settings name, for a vector of `size` parameters."""
    match settings.type:
        case OptimizerKind.SGD:
            return SGD(size, settings.base_lr)
        case OptimizerKind.MOMENTUM:
            return Momentum(size, settings.base_lr, settings.momentum.momentum)
        case OptimizerKind.ADAM:
            adam = settings.adam
            return Adam(size, settings.base_lr, adam.beta1, adam.beta2, adam.epsilon)


def _weight(group: Group, update: UpdateConfig) -> float:
    """`stale_decay` to the power of the age, by products, so that it has the same bits everywhere."""
    weight = 1.0
    for _ in range(group.age):
        weight *= update.stale_decay
    return weight
