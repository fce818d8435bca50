"""What CMA_ES and SEP_CMA_ES share: population, step size, convergence, restarts, bounds, warm starts.

    tell --> _step (the algorithm's own update) --> converged? --> the next run begins, or the search says that it has

The random part of a sample is its key's, so bounds are applied where a sample's parameters are made; the update itself
uses the noise as it was drawn.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_evokit.bounds import Bounds
from parl_evokit.cma_rates import default_population
from parl_evokit.config import Config
from parl_evokit.errors import LayoutMismatch
from parl_evokit.intake import Group, Intake
from parl_evokit.noise.quantiles import UNITS_PER_ONE, quantiles
from parl_evokit.params import FlatVector, ParameterLayout
from parl_evokit.restarts import Restarts
from parl_evokit.sampler import Advance, Sampler
from parl_evokit.strategy import Strategy
from parl_evokit.warm_start import promising_region

__all__ = ["SMALLEST_STEP", "CmaFamily"]

SMALLEST_STEP = 1e-12
FLAT = 1e-12  # rewards that differ by no more than this, in the best of many updates, do not differ


class CmaFamily(Strategy):
    """Base of both.

    Args:
        mean0: Where to start: a vector `[n]`, or named arrays.
        config: Settings; used are `sampling.gaussian_sampling` (std is the first step size; never mirrored) and
            `sampling.cma_sampling`.
        layout: Names and shapes of the vector's parts.

    Attributes:
        population: How many samples the present run's updates wait for.
        separable: Whether the covariance is diagonal.

    Raises:
        ConfigError: Bounds do not fit the parameters.
        LayoutMismatch: The start is not within the bounds.
    """

    separable: bool

    def __init__(
        self,
        mean0: NDArray[Any] | Sequence[float] | Mapping[str, NDArray[Any]],
        config: Config | Mapping[str, Any] | str | None = None,
        layout: ParameterLayout | None = None,
    ) -> None:
        super().__init__(mean0, config, layout)
        settings, n = self.config.solver.sampling.cma_sampling, self.layout.size
        first = self.config.solver.sampling.gaussian_sampling
        self.population = settings.population or default_population(n)
        self._sigma = first.std
        self._origin = self.mean.copy()
        self._bounds = Bounds.of(settings.lower, settings.upper, n)
        if self._bounds is not None:
            outside = np.flatnonzero((self.mean < self._bounds.lower) | (self.mean > self._bounds.upper))
            if outside.size:
                k = int(outside[0])
                raise LayoutMismatch(
                    f"the start must lie within the bounds; parameter {k} is {self.mean[k]}, "
                    f"its bounds are {self._bounds.lower[k]} and {self._bounds.upper[k]}"
                )
            self._sampler = replace(self._sampler, bounds=self._bounds)
        self._restarts = Restarts(settings.restarts, settings.max_restarts, self.population, first.std, first.seed)
        self._bests: deque[float] = deque()
        self._evaluations = 0
        self._begin()

    @classmethod
    def warm_start(
        cls,
        solutions: ArrayLike,
        rewards: ArrayLike,
        config: Config | Mapping[str, Any] | str | None = None,
        *,
        best: float = 0.1,
        spread: float = 0.1,
        layout: ParameterLayout | None = None,
    ) -> Self:
        """A search that begins where solutions of a similar task were good; see `warm_start.promising_region`.

        Args:
            solutions: Parameters `[k, n]`.
            rewards: Larger is better, `[k]`.
            config: Settings; the first step size comes from the solutions, not from here.
            best: The part of the solutions that counts, above 0 to 1.
            spread: How far from each of them others as good are expected; above 0.
            layout: Names and shapes of the vector's parts.

        Raises:
            LayoutMismatch: `solutions` is no table of finite numbers.
            InvalidReward: There is not one finite reward a solution.
            ValueError: `best` or `spread` is out of its range.
        """
        found = promising_region(solutions, rewards, best=best, spread=spread, separable=cls.separable)
        search = cls(found.mean, config, layout)
        search._sigma = found.sigma
        search._begin_with(found.covariance)
        search._sample_with(*search._shape())
        return search

    @property
    def sigma(self) -> float:
        """The present step size."""
        return self._sigma

    @property
    def restarts(self) -> int:
        """How often the search has begun again."""
        return self._restarts.count

    def should_stop(self) -> str:
        """See `Strategy.should_stop`; also when the search has converged and will not begin again."""
        return self._converged() or super().should_stop()

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """See `Strategy._own_state`."""
        return super()._own_state() | {
            "sigma": np.array(self._sigma),
            "population": np.array(self.population, np.int64),
            "origin": self._origin.copy(),
            "bests": np.array(self._bests, np.float64),
            "evaluations": np.array(self._evaluations, np.int64),
            "restarts": self._restarts.state(),
        }

    def _load_own_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See `Strategy._load_own_state`."""
        any_length = {"bests"}
        wanted = {name: array.shape for name, array in self._own_state().items() if name not in any_length}
        found = {name: array.shape for name, array in state.items() if name not in any_length}
        if wanted != found or not any_length <= state.keys():
            raise LayoutMismatch(f"the state of {self.config.solver.type.name} has arrays {wanted}, not {found}")
        super()._load_own_state(state)
        self._sigma, self.population = float(state["sigma"]), int(state["population"])
        self._origin = state["origin"].copy()
        self._bests = deque(state["bests"].tolist())
        self._evaluations = int(state["evaluations"])
        self._restarts.load_state(state["restarts"])
        self._load(state)
        self._sample_with(*self._shape())

    @property
    def _min_samples(self) -> int:
        return self.population

    @property
    def _max_age(self) -> int:
        return 0

    @property
    def _mirrored(self) -> bool:
        return False

    def _advance(self, intake: Intake, sampler: Sampler) -> Advance:
        (group,) = intake.groups
        mean, norm = self._step(group, sampler)
        if self._bounds is not None:
            self._bounds.fold(mean)
        self._note(group)
        if self._converged() and (start := self._restarts.next(self._evaluations)) is not None:
            self.population, self._sigma = start.population, start.sigma
            self._bests.clear()
            self._evaluations = 0
            self._begin()
            mean = self._another_start()
        std, transform = self._shape()
        return Advance(mean.astype(np.float32), std, norm, transform)

    def _note(self, group: Group) -> None:
        self._evaluations += len(group.rewards)
        self._bests.append(float(group.rewards.max()))
        while len(self._bests) > 10 + 30 * self.layout.size // self.population:
            self._bests.popleft()

    def _converged(self) -> str:
        """Why this run can be given up; empty while it goes on."""
        enough = 10 + 30 * self.layout.size // self.population
        bests = self._bests
        full = len(bests) >= enough and abs(bests[-1] - bests[0]) <= FLAT  # most often the last looks are enough
        if full and max(bests) - min(bests) <= FLAT:
            return (
                f"the search has converged: its best rewards hardly differ over {enough} updates (by {FLAT:g} or less)"
            )
        return self._too_small()

    def _another_start(self) -> NDArray[np.float64]:
        """Anywhere in the box, or about as far from the first start as samples were there."""
        uniforms = self._restarts.uniforms(self.layout.size, start=16)  # the first block has the plan's own numbers
        if self._bounds is not None and self._bounds.finite:
            return self._bounds.lower + uniforms * (self._bounds.upper - self._bounds.lower)
        normals = quantiles()[(uniforms * 2**16).astype(np.int64)] / UNITS_PER_ONE
        mean = self._origin + self.config.solver.sampling.gaussian_sampling.std * normals
        if self._bounds is not None:
            self._bounds.fold(mean)
        return mean

    @abstractmethod
    def _begin(self) -> None:
        """Forget what the last run has learnt but for population and step size."""

    @abstractmethod
    def _begin_with(self, covariance: NDArray[np.float64]) -> None:
        """The same, and take this for the covariance, or for its diagonal where it is `separable`."""

    @abstractmethod
    def _step(self, group: Group, sampler: Sampler) -> tuple[NDArray[np.float64], float]:
        """One update: the next mean and the norm of what moved it, in units of the step size."""

    @abstractmethod
    def _shape(self) -> tuple[float | FlatVector, NDArray[np.float64] | None]:
        """Standard deviation and matrix of the samples to come."""

    @abstractmethod
    def _too_small(self) -> str:
        """Why steps do not matter any more; empty while they do."""

    @abstractmethod
    def _load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what is the algorithm's own; the shapes are right."""
