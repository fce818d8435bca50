"""OpenAI's evolution strategy (Salimans et al. 2017, "Evolution strategies as a scalable alternative", algorithm 2).

    g = -1/w * sum over samples of stale_decay**age * utility * std * unit / 4096 + weight_decay * theta        (1)
    theta <- optimizer(theta, g)                                                                                (2)

with w the sum of stale_decay**age over all samples: their number, when all of them are of the present model.

The sum in (1) is over integers and exact; all operations after it are elementwise. So equal samples give equal bits, in
any order and on any machine.

With `stale: IMPORTANCE`, samples of older models count by importance weights (Campos et al. 2018, "Importance weighted
evolution strategies", arXiv 1811.04624). A sample x = c + std*e that was drawn around an older centre c is taken for
one around the present centre m, of noise e' = e + (c - m)/std, and counts by how likely it is there:

    w  = min(CLIP, N(x; m, std) / N(x; c, std)) = min(CLIP, exp((|e|^2 - |e'|^2) / 2))                          (3)
    g  = -std * sum(w * (u - u_w) * e') / sum(w),    u_w = sum(w * u) / sum(w)                                  (4)

where u are the utilities, ranked over all samples together. For present samples w is 1 and (4) is the usual estimate.
Ratios of densities grow or vanish with the number of parameters, so this rule is for few parameters. Equal samples give
equal bits here as well: sums are rounded once or run in the order of the keys, and exp is correctly rounded.

With `stale: POOLED`, all samples of an update are ranked together, and (1) is used unchanged. This is right if late
rewards differ from early ones: for instance, visitors who stay long are often content. If the early and the late
samples of a model were ranked separately, both would have as many winners, and a batch of late samples would add
little, or nothing if it is one sample. `stale: AUTO`, the default, chooses at each update that has stale samples, and
reports its choice:

    up to 100 parameters: IMPORTANCE if the weights (3) leave at least half of the samples, by sum(w)^2 / sum(w^2); else
                          POOLED
    more parameters,
    or a schedule of std: POOLED if there are fewer than 4 samples a model, or if the models differ more than their
                          samples do (more than half of the variance of all ranks lies between them); else GROUPED

Augmented random search (Mania, Guy, Recht 2018, arXiv 1803.07055), algorithm 1 in its version V1-t, is the same with
other utilities:

    theta <- theta + rate / (b * deviation of their rewards) * sum over the b best directions of (r+ - r-) * z  (5)

A direction is a mirrored pair, and is as good as its better half (line 6). The normalisation of observations of version
V2 belongs to the policy; see `ObservationStatistics` of `parl_evokit.parallel`.

Differences from the papers: with `stale: GROUPED`, stale samples are ranked within their own model and count less the
older they are, but late rewards do not make the step shorter; equal rewards share their mean rank; the step is scaled
by std, not by 1/std, as the original EvoKit does, so that its documented learning rates keep their meaning. Importance
weights are clipped, and utilities are centred by their weighted mean, so that the shift of the centre, which all
samples of one model have in common, adds nothing if their utilities do not differ. ARS steps go through the optimizer
of the settings (SGD is the paper's); halves of a pair count alone when their twins did not come; stale samples are
chosen and normalised within their own model, with `stale: POOLED` among the samples of all models, and weighted by
stale_decay**age, and b is the sum of these weights over all chosen directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit import shaping
from parl_evokit._params import FlatVector, ParameterLayout, under, within
from parl_evokit._sampler import Advance, Sampler
from parl_evokit._samples import Group, SortedSamples
from parl_evokit.config import Config, ScheduleKind, ShapingKind, SolverKind, StaleKind, UpdateConfig
from parl_evokit.errors import ConfigError, LayoutMismatch
from parl_evokit.noise._exact_sum import ExactSum
from parl_evokit.noise._spec import UNITS_PER_ONE
from parl_evokit.optimizers import make_optimizer
from parl_evokit.shaping import _of_best_directions
from parl_evokit.strategy import Strategy, length_of

__all__ = ["ARS", "ES", "MOST_PARAMETERS", "Centres", "importance_weights", "utilities_of"]


MOST_PARAMETERS = 100
"""Largest number of parameters that `stale: IMPORTANCE` accepts."""

# above 1, because samples nearer to the present centre are more informative; without a limit, few samples dominate
CLIP = 2.0
FEWEST_EACH = 4  # samples of a model, for their ranks among themselves to say something
EXP = Context(prec=20)
MODELS, CENTRES = "stale.models", "stale.centres"
STD = "std"  # std of the present model with a schedule, for services, which do not count updates
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
        mean0: The initial parameters: a vector `[n]`, or named arrays.
        config: Settings; the search uses `optimizer`, `sampling` and `update`. Default: `ES.defaults`: Adam and a
            standard deviation of 0.02 as in the paper, and a learning rate of 0.03, with which four samples per update
            are enough on a sphere (the paper's 0.01 is for thousands of samples).
        layout: Names and shapes of the parts of the vector.
    """

    kind = SolverKind.BASIC_ES
    defaults: Mapping[str, Any] = {
        "solver": {
            "optimizer": {"type": "ADAM", "base_lr": 0.03},
            "sampling": {"gaussian_sampling": {"std": 0.02}},
        }
    }

    def __init__(
        self,
        mean0: NDArray[Any] | Sequence[float] | Mapping[str, NDArray[Any]],
        config: Config | Mapping[str, Any] | str | None = None,
        layout: ParameterLayout | None = None,
    ) -> None:
        super().__init__(mean0, config, layout)
        self._optimizer = make_optimizer(self.config.solver.optimizer, self.layout.size)
        self._centres: Centres | None = None
        stale = self.config.solver.update.stale
        few = self.layout.size <= MOST_PARAMETERS
        chosen = stale is StaleKind.AUTO and few and not self._scheduled  # the densities are those of one std
        if stale is StaleKind.IMPORTANCE or (chosen and type(self) is ES):
            if not few:
                raise ConfigError(
                    f"stale: IMPORTANCE is for up to {MOST_PARAMETERS} parameters, not {self.layout.size}: use "
                    "GROUPED, because ratios of densities have no meaning for more"
                )
            self._centres = Centres(self.layout.size, self.max_age)

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the optimizer, the kept centres and a scheduled std, beside that of the base class."""
        centres = {} if self._centres is None else self._centres.state()
        std = {STD: np.array(self._sampler.std)} if self._scheduled else {}
        return super()._own_state() | under("optimizer.", self._optimizer.state()) | centres | std

    def _load_own_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state of the optimizer, the kept centres and a scheduled std."""
        self._optimizer.load_state(within("optimizer.", state))
        if self._scheduled:
            self._sample_with(self._std_after(self._optimizer.steps))
        if self._centres is not None:
            self._centres.load_state(state)
        super()._load_own_state(state)

    def _revert(self) -> None:
        """Return to the trusted model, and keep the centres of later models, whose samples still count."""
        if self._centres is None:
            super()._revert()
            return
        self._centres.remember(self._sampler)
        since = self._centres.state()
        super()._revert()
        self._centres.load_state(since)

    def _advance(self, intake: SortedSamples, sampler: Sampler) -> Advance:
        gradient = self._gradient(intake, sampler)
        norm = length_of(gradient)
        if self._centres is not None:  # also without a step, because the next model has another number
            self._centres.remember(sampler)
        # The gradient's memory takes the parameters: a vector less.
        parameters = self._optimizer.finite_step(sampler.parameters, gradient, norm, out=gradient)
        return Advance(parameters, self._std_after(self._optimizer.steps), norm)

    @property
    def _scheduled(self) -> bool:
        return self.config.solver.sampling.gaussian_sampling.schedule.type is not ScheduleKind.CONSTANT

    def _std_after(self, updates: int) -> float:
        """Return the standard deviation of the samples after a number of updates."""
        settings = self.config.solver.sampling.gaussian_sampling
        return settings.std * settings.schedule.factor(updates)

    def _gradient(self, intake: SortedSamples, sampler: Sampler) -> FlatVector:
        """Return the gradient of equation (1), or of equation (4)."""
        update = self.config.solver.update
        gradient = None
        groups = intake.groups
        if groups and groups[-1].age:  # the oldest
            self._note_stale(intake, "", _effective(intake, update))
            gradient = self._late(intake, sampler)
        if gradient is None:
            gradient = self._summed(intake, sampler, [self._utilities(group) for group in intake.groups])
        if update.weight_decay:
            gradient += np.float32(update.weight_decay) * sampler.parameters
        return gradient

    def _late(self, intake: SortedSamples, sampler: Sampler) -> FlatVector | None:
        """Return the gradient of partly stale samples; None for that of ranks within each model."""
        rule = self.config.solver.update.stale
        if self._centres is not None:
            weighted, effective = self._centres.gradient(intake.groups, sampler, self._utilities)
            if rule is StaleKind.IMPORTANCE or effective >= intake.used / 2:
                self._note_stale(intake, StaleKind.IMPORTANCE.name, effective)
                return weighted.astype(np.float32)
            rule = StaleKind.POOLED
        elif rule is StaleKind.AUTO and type(self) is ES:
            rule = StaleKind.POOLED if _models_differ(intake.groups) else StaleKind.GROUPED
        self._note_stale(intake, StaleKind.POOLED.name if rule is StaleKind.POOLED else StaleKind.GROUPED.name)
        if rule is not StaleKind.POOLED:
            return None
        utilities = self._utilities(_together(intake.groups))
        stops = np.cumsum([len(group.keys) for group in intake.groups])[:-1]
        shares = [shaping.Utilities(weights, utilities.unit) for weights in np.split(utilities.weights, stops)]
        return self._summed(intake, sampler, shares)

    def _note_stale(self, intake: SortedSamples, rule: str, effective: float | None = None) -> None:
        """Record in the report the way in which stale samples counted."""
        intake.stale_rule = rule
        intake.effective = intake.effective if effective is None else effective

    def _summed(self, intake: SortedSamples, sampler: Sampler, utilities: Sequence[shaping.Utilities]) -> FlatVector:
        """Return the gradient of equation (1)."""
        update, scale = self.config.solver.update, self._scale(intake)
        terms = [
            (ExactSum(sampler.noise, group.keys, own.weights), scale * own.unit * _weight(group, update))
            for group, own in zip(intake.groups, utilities, strict=True)
        ]
        gradient = np.empty_like(sampler.parameters)
        total, term = np.empty(min(PART, len(gradient))), np.empty(min(PART, len(gradient)))
        for start in range(0, len(gradient), PART):
            here = gradient[start : start + PART]
            total, term = total[: len(here)], term[: len(here)]
            total.fill(0.0)
            for exact, factor in terms:  # youngest first: the order of these float64 sums is fixed
                exact.part(start, len(here), term)
                term *= factor
                total += term
            here[...] = total
        return gradient

    def _scale(self, intake: SortedSamples) -> float:
        """Return the contribution to the gradient of one unit of noise with utility 1 and weight 1."""
        update = self.config.solver.update
        weights = sum([_weight(each, update) * len(each.keys) for each in intake.groups])
        std = float(np.float32(self._sampler.std))
        return -std / UNITS_PER_ONE / weights if weights else 0.0  # no weight at all: stale samples and a decay of 0

    def _utilities(self, group: Group) -> shaping.Utilities:
        return utilities_of(group, self.config.solver.update)


class ARS(ES):
    """ARS: random directions, of which the best `update.top_k` count; the step does not depend on the std of the noise.

    Args:
        mean0: The initial parameters: a vector `[n]`, or named arrays.
        config: Settings; the search uses `optimizer`, `sampling.gaussian_sampling` and `update` except for its
            `shaping`.
        layout: Names and shapes of the parts of the vector.
    """

    kind = SolverKind.ARS

    def _utilities(self, group: Group) -> shaping.Utilities:
        return shaping.top_directions(group.rewards, group.keys, self.config.solver.update.top_k)

    def _scale(self, intake: SortedSamples) -> float:
        """Return the part of one unit of noise with utility 1: the deviation is in the utilities already."""
        update, groups = self.config.solver.update, intake.groups
        pooled = intake.stale_rule == StaleKind.POOLED.name
        counts = _pooled_directions(groups, update) if pooled else [_directions(group, update) for group in groups]
        weights = sum([_weight(group, update) * count for group, count in zip(groups, counts, strict=True)])
        return -1.0 / UNITS_PER_ONE / weights if weights else 0.0


def utilities_of(group: Group, update: UpdateConfig) -> shaping.Utilities:
    """Return the utilities of the samples of one model by the rule of the settings."""
    if update.shaping is ShapingKind.TOP_K:
        return shaping.top_directions(group.rewards, group.keys, update.top_k)
    return SHAPINGS[update.shaping](group.rewards)


def _weight(group: Group, update: UpdateConfig) -> float:
    """Return `stale_decay` to the power of the age, by products, so that it has the same bits everywhere."""
    weight = 1.0
    for _ in range(group.age):
        weight *= update.stale_decay
    return weight


def _directions(group: Group, update: UpdateConfig) -> int:
    """Return the number of directions that count of one model."""
    return min(update.top_k, len(np.unique(group.keys >> np.uint64(1))))


def _pooled_directions(groups: Sequence[Group], update: UpdateConfig) -> list[float]:
    """Return the number of each model's directions among all that count; halves of two models share one."""
    together = _together(groups)
    used = _of_best_directions(together.rewards, together.keys, update.top_k)
    _, place, sizes = np.unique(together.keys >> np.uint64(1), return_inverse=True, return_counts=True)
    shares = used / sizes[place]
    stops = np.cumsum([len(group.keys) for group in groups])[:-1]
    return [float(own.sum()) for own in np.split(shares, stops)]


def _together(groups: Sequence[Group]) -> Group:
    """Return all samples as if they were of one model."""
    return Group(
        0,
        np.concatenate([group.keys for group in groups] or [np.zeros(0, np.uint64)]),
        np.concatenate([group.rewards for group in groups] or [np.zeros(0)]),
    )


def _effective(intake: SortedSamples, update: UpdateConfig) -> float:
    """Return the number of equally weighted samples that those of an update are worth."""
    sizes = [(_weight(group, update), len(group.keys)) for group in intake.groups]
    total, squares = sum(weight * size for weight, size in sizes), sum(weight**2 * size for weight, size in sizes)
    return total**2 / squares if squares else 0.0


def _models_differ(groups: Sequence[Group]) -> bool:
    """Return whether rewards are to be compared across models, in whole numbers, so that all machines agree."""
    sizes = [len(group.keys) for group in groups]
    if sum(sizes) < FEWEST_EACH * len(sizes):
        return True
    ranks = shaping.centered_rank(_together(groups).rewards).weights  # they add up to 0
    within = np.split(ranks, np.cumsum(sizes)[:-1])
    between = sum(Fraction(int(own.sum()) ** 2, size) for own, size in zip(within, sizes, strict=True))
    return bool(2 * between > sum(rank * rank for rank in ranks.tolist()))


def importance_weights(noise: NDArray[np.float64], shift: NDArray[np.float64]) -> list[float]:
    """Return the weights of equation (3).

    Args:
        noise: Noise of the samples around their own centre, in standard deviations, `[n, d]`.
        shift: The centre of the samples minus the present one, in standard deviations, `[d]`.
    """
    half = fsum((shift * shift).tolist()) / 2.0
    exponents = [-(fsum((row * shift).tolist()) + half) for row in noise]
    return [min(CLIP, float(EXP.exp(Decimal(min(1.0, exponent))))) for exponent in exponents]


class Centres:
    """The centres of the last models, and the gradient from samples around them.

    Args:
        size: Number of parameters, up to `MOST_PARAMETERS`.
        max_age: Number of centres to keep.
    """

    def __init__(self, size: int, max_age: int) -> None:
        self._size = size
        self._max_age = max_age
        self._centres: dict[int, FlatVector] = {}

    def remember(self, sampler: Sampler) -> None:
        """Keep the centre of this model; call it before the model changes."""
        self._centres[sampler.model_iter_id] = sampler.parameters
        self._centres = {
            number: centre
            for number, centre in self._centres.items()
            if sampler.model_iter_id - number < self._max_age and number <= sampler.model_iter_id
        }

    def gradient(
        self, groups: Sequence[Group], sampler: Sampler, shape: Callable[[Group], shaping.Utilities]
    ) -> tuple[NDArray[np.float64], float]:
        """Return the gradient of equation (4), and the equivalent number of samples of equal weight.

        Samples around an unknown centre are ignored.

        Args:
            groups: The samples by model.
            sampler: The present model.
            shape: Function that returns the utilities of samples.
        """
        std = float(np.float32(sampler.std))
        known = [group for group in groups if group.age == 0 or sampler.model_iter_id - group.age in self._centres]
        together = _together(known)
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
        total, squares = fsum(weights), fsum(weight * weight for weight in weights)
        gradient = np.zeros(self._size)
        if not squares:  # all are so far away that the squares of their weights underflow
            return gradient, 0.0
        mean = fsum(w * u for w, u in zip(weights, utilities, strict=True)) / total
        rows = (row for noise in noises for row in noise)
        for weight, utility, row in zip(weights, utilities, rows, strict=True):
            gradient += (-std * weight * (utility - mean) / total) * row
        return gradient, total**2 / squares

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the centres, as arrays for a file."""
        rows = np.array(list(self._centres.values()), np.float32).reshape(len(self._centres), self._size)
        return {MODELS: np.array(list(self._centres), np.int64), CENTRES: rows}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` returned; a state of another rule restores nothing."""
        models, rows = state.get(MODELS, np.zeros(0, np.int64)), state.get(CENTRES, np.zeros((0, self._size)))
        if rows.shape != (len(models), self._size):
            raise LayoutMismatch(f"{len(models)} centres of {self._size} parameters are needed, not {rows.shape}")
        self._centres = dict(zip(models.tolist(), rows.astype(np.float32), strict=True))
