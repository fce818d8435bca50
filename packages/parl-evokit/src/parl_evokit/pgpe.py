"""Policy gradients with parameter-based exploration (Sehnke et al. 2010, Neural Networks 23), symmetric samples.

    g_m = 1/n * sum over samples of u * std * z                         the mean's gradient              (equation 9)
    g_s = 1/n * sum over samples of u * std * (z**2 - 1)                the deviations' gradient         (equation 10)
    m <- optimizer(m, -g_m),  std <- std + rate * g_s                   no deviation changes by more than max_change

u is the reward's utility, which stands for the reward minus a baseline: utilities add up to zero, so none is kept.
Mirrored halves have the same z**2, so what they say of the deviations is their mean reward, as in the paper's (12).

The sums are exact and all that follows is elementwise, so equal samples give equal bits on any machine.

Differences from the paper: rewards are shaped (centred ranks unless the settings say otherwise); the step of the mean
goes through an optimizer; a limit on the deviations' change per update, by default a fifth, as in evotorch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit.adaptive_std import AdaptiveStd
from parl_evokit.arrays import under, within
from parl_evokit.config import Config
from parl_evokit.intake import Group
from parl_evokit.openai_es import make_optimizer, utilities_of
from parl_evokit.params import FlatVector, ParameterLayout
from parl_evokit.sampler import Sampler

__all__ = ["PGPE"]

DEFAULT_RATE = 0.1


class PGPE(AdaptiveStd):
    """PGPE: gradient ascent on mean and standard deviations, with SGD, momentum or Adam for the mean.

    Args:
        mean0: Where to start: a vector `[n]`, or named arrays.
        config: Settings; used are `optimizer`, `sampling.gaussian_sampling`, `update` and `adaptive_std`
            (learning_rate 0: 0.1).
        layout: Names and shapes of the vector's parts.
    """

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
        """See `Strategy._own_state`."""
        return super()._own_state() | under("optimizer.", self._optimizer.state())

    def _load_own_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See `Strategy._load_own_state`."""
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
        parameters = self._optimizer.step(sampler.parameters, gradient)
        most = settings.max_change * self._std
        std = self._std + np.clip((settings.learning_rate or DEFAULT_RATE) * g_s, -most, most)
        return parameters, std, float(np.linalg.norm(g_m))
