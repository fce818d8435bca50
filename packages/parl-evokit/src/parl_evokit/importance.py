"""Samples of older models by importance weights (Campos et al. 2018, "Importance weighted evolution strategies",
arXiv 1811.04624): what `stale: IMPORTANCE` means.

A sample x = c + std*e that was drawn around an older centre c is taken for one around the present centre m, of noise
e' = e + (c - m)/std, and counts by how likely it is there:

    w  = min(CLIP, N(x; m, std) / N(x; c, std)) = min(CLIP, exp((|e|^2 - |e'|^2) / 2))          (1)
    g  = -std * sum(w * (u - u_w) * e') / sum(w),    u_w = sum(w * u) / sum(w)                    (2)

u being the utilities, ranked over all samples together. For present samples w is 1 and (2) is the usual estimate.
Ratios of densities grow and vanish with the number of parameters, so this is for few of them. Equal samples give equal
bits here as well: sums are rounded once or run in the order of the keys, and exp is the correctly rounded one.

Differences from the paper: weights are clipped, and utilities are centred by their weighted mean, so that the shift of
the centre, which all samples of one model have in common, adds nothing where their utilities do not differ.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit.errors import LayoutMismatch
from parl_evokit.intake import Group
from parl_evokit.params import FlatVector
from parl_evokit.sampler import Sampler
from parl_evokit.shaping import Utilities

__all__ = ["MOST_PARAMETERS", "Centres", "importance_weights"]

MOST_PARAMETERS = 100
CLIP = 2.0  # above 1, since what lies nearer to the present centre tells more of it; without a limit few samples rule
EXP = Context(prec=20)
MODELS, CENTRES = "stale.models", "stale.centres"


def importance_weights(noise: NDArray[np.float64], shift: NDArray[np.float64]) -> list[float]:
    """Equation (1).

    Args:
        noise: Of the samples around their own centre, in standard deviations, `[n, d]`.
        shift: Their centre minus the present one, in standard deviations, `[d]`.
    """
    half = fsum((shift * shift).tolist()) / 2.0
    exponents = [-(fsum((row * shift).tolist()) + half) for row in noise]
    return [min(CLIP, float(EXP.exp(Decimal(min(1.0, exponent))))) for exponent in exponents]


class Centres:
    """The centres of the last models, and the gradient from samples around them.

    Args:
        size: How many parameters there are, up to `MOST_PARAMETERS`.
        max_age: How many centres to remember.
    """

    def __init__(self, size: int, max_age: int) -> None:
        self._size = size
        self._max_age = max_age
        self._centres: dict[int, FlatVector] = {}

    def remember(self, sampler: Sampler) -> None:
        """This model is about to become the one before."""
        self._centres[sampler.model_iter_id] = sampler.parameters
        self._centres = {
            number: centre
            for number, centre in self._centres.items()
            if sampler.model_iter_id - number < self._max_age and number <= sampler.model_iter_id
        }

    def gradient(
        self, groups: Sequence[Group], sampler: Sampler, shape: Callable[[Group], Utilities]
    ) -> NDArray[np.float64]:
        """Equation (2); samples around a centre that is not known count nothing.

        Args:
            groups: The samples by model.
            sampler: The present model.
            shape: Utilities of samples.
        """
        std = float(np.float32(sampler.std))
        known = [group for group in groups if group.age == 0 or sampler.model_iter_id - group.age in self._centres]
        together = Group(
            0,
            np.concatenate([group.keys for group in known] or [np.zeros(0, np.uint64)]),
            np.concatenate([group.rewards for group in known] or [np.zeros(0)]),
        )
        utilities = shape(together).values.tolist()
        weights: list[float] = []
        noises: list[NDArray[np.float64]] = []
        for group in known:
            noise = sampler.normals(group.keys)
            if group.age == 0:
                weights += [1.0] * len(noise)
            else:
                centre = self._centres[sampler.model_iter_id - group.age]
                shift = (centre.astype(np.float64) - sampler.parameters) / std
                weights += importance_weights(noise, shift)
                noise = noise + shift
            noises.append(noise)
        total = fsum(weights)
        gradient = np.zeros(self._size)
        if total <= 0.0:
            return gradient
        mean = fsum(w * u for w, u in zip(weights, utilities, strict=True)) / total
        rows = (row for noise in noises for row in noise)
        for weight, utility, row in zip(weights, utilities, rows, strict=True):
            gradient += (-std * weight * (utility - mean) / total) * row
        return gradient

    def state(self) -> dict[str, NDArray[Any]]:
        """The centres, as arrays for a file."""
        rows = np.array(list(self._centres.values()), np.float32).reshape(len(self._centres), self._size)
        return {MODELS: np.array(list(self._centres), np.int64), CENTRES: rows}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state` gave; nothing where another rule was in force then."""
        models, rows = state.get(MODELS, np.zeros(0, np.int64)), state.get(CENTRES, np.zeros((0, self._size)))
        if rows.shape != (len(models), self._size):
            raise LayoutMismatch(f"{len(models)} centres of {self._size} parameters are wanted, not {rows.shape}")
        self._centres = dict(zip(models.tolist(), rows.astype(np.float32), strict=True))
