"""The base of the CMA family and CR_FM_NES: population, rates, step size, convergence, restarts, bounds, warm starts.

    tell --> _step (the algorithm's own update) --> converged? --> start the next run, or report that the search ended

The key of a sample determines its noise.

Bounds. Noise is added to searched coordinates, which stand for points of the box (see `_sampler`); the update uses the
noise as it was drawn. This is a search without bounds of a function that is smooth where the given one is, and has an
image of the optimum in each mirrored box. Mean and samples are points of the box, step sizes and all else that is
learnt are of the searched coordinates. Two rules keep the search to one image:

    a mean that is mirrored takes all that the search has learnt with it:
        coordinate k of paths, axes and directions changes its sign
    no standard deviation exceeds a third of the width of the box:
        samples that reach the images on either side would contain no information about the direction of the optimum

The second is the rule of pycma (Hansen, Akimoto, Baudis, "CMA-ES/pycma on Github", option `maxstd_boundrange`). It does
not apply where a side is missing, since an image on one side only leaves the direction clear.

Restarts. IPOP (Auger and Hansen, "A restart CMA evolution strategy with increasing population size", CEC 2005): each
restart doubles the population. BIPOP (Hansen, "Benchmarking a BI-population CMA-ES on the BBOB-2009 function testbed",
GECCO workshop 2009): each restart belongs to the regime that has used fewer evaluations so far: the large one, whose
populations double, or the small one, with population floor(p * (P / 2p)**(u**2)) and first step size s * 10**(-2v), for
the default population p, the present large one P, the configured step size s, and u and v uniform between 0 and 1. u, v
and the initial points are drawn from the seed and the number of the restart, so a resumed search continues exactly as
it would have done.

Warm starts (Nomura et al. 2021, arXiv 2012.06932, section 4.2). The best solutions of a similar task, each blurred by a
normal distribution of variance spread**2, form a mixture. The normal distribution that is nearest to this mixture has
the mean m of the solutions and

    S = 1/k * sum (x - m)(x - m)^T + spread**2 * I,      sigma = det(S)**(1 / 2n),   C = S / sigma**2

Weights and rates are those of Hansen's tutorial (2016, arXiv 1604.00772), section 4 and table 1, whose equation numbers
are beside the lines.
"""

import functools
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, sqrt
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_evokit._params import FlatVector, ParameterLayout, array_of
from parl_evokit._sampler import FARTHEST, LARGEST_REACH, LARGEST_SPREAD, Advance, Bounds, Sampler, Transform
from parl_evokit._samples import Group, SortedSamples, reward_numbers
from parl_evokit.config import Config, RestartKind
from parl_evokit.errors import ConfigError, InvalidReward, LayoutMismatch
from parl_evokit.noise._spec import UNITS_PER_ONE, quantiles, random_bits
from parl_evokit.optimizers import StepDiverged
from parl_evokit.strategy import Strategy

__all__ = [
    "LEAST_INTEGER_STD",
    "SMALLEST_STEP",
    "CmaFamily",
    "InitialDistribution",
    "Rates",
    "Recombination",
    "Restarts",
    "RunStart",
    "checked_solutions",
    "default_population",
    "expected_norm",
    "log_ranks",
    "promising_region",
    "sorted_log_ranks",
]

RESTART_STREAM = 2**63  # keys are below 2**62, so no sample is drawn from these streams
UNIFORM_BITS = 16
SMALLEST_STEP = 1e-12
LEAST_INTEGER_STD = 0.25  # an integer parameter then differs in one sample of twenty
LARGEST_SHARE = 1 / 3  # maximum standard deviation of a parameter, relative to the width of its box
FLAT = 1e-12  # rewards that differ by no more than this, in the best of many updates, do not differ
ROUNDING = 2.0**-24  # of float32


class CmaFamily(Strategy):
    """Base of CMA_ES, SEP_CMA_ES, LM_MA_ES and CR_FM_NES.

    Args:
        mean0: The initial parameters: a vector `[n]`, or named arrays.
        config: Settings; the search uses `sampling.gaussian_sampling` (std is the initial step size; only CR_FM_NES
            mirrors samples) and `sampling.cma_sampling`.
        layout: Names and shapes of the parts of the vector.

    Attributes:
        population: Number of samples that an update of the present run waits for.
        separable: True if the covariance is diagonal.
        leaps: True if one step may widen the samples by any factor, not only by a small one.

    Raises:
        ConfigError: Bounds or integers do not fit the parameters.
        LayoutMismatch: The initial parameters are not within the bounds.
    """

    separable: bool
    leaps = False
    _mirrors = False

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
        if settings.integers and (min(settings.integers) < 0 or max(settings.integers) >= n):
            raise ConfigError(f"integers must be indices of parameters from 0 to {n - 1}, not {settings.integers}")
        self._bounds = Bounds.of(settings.lower, settings.upper, n, first.std, settings.integers)
        if self._bounds is not None:
            start = np.clip(self.mean, self._bounds.lower, self._bounds.upper, dtype=np.float64).astype(np.float32)
            outside = np.flatnonzero(np.abs(start - self.mean) > np.spacing(np.abs(start)))
            if outside.size:
                k = int(outside[0])
                raise LayoutMismatch(
                    f"the initial parameters must lie within the bounds; parameter {k} is {self.mean[k]}, "
                    f"its bounds are {self._bounds.lower[k]} and {self._bounds.upper[k]}"
                )
            start.flags.writeable = False  # a start on a bound may have been rounded to a value beyond it
            self._sampler = replace(self._sampler, bounds=self._bounds, parameters=start)
            self._origin = start.copy()
            self._largest_std = LARGEST_SHARE * (self._bounds.upper - self._bounds.lower)
        if settings.integers:
            integers = np.array(sorted(set(settings.integers)), np.intp)
            if (box := self._bounds) is not None:
                empty = integers[np.ceil(box.lower[integers]) > np.floor(box.upper[integers])]
                if empty.size:
                    k = int(empty[0])
                    low, high = box.lower[k], box.upper[k]
                    raise ConfigError(
                        f"parameter {k} of integers has no whole number between its bounds {low:.7g}, {high:.7g}"
                    )
            self._sampler = replace(self._sampler, integers=integers)
            if self._bounds is not None:  # the box of a single integer may be this narrow
                self._largest_std[integers] = np.maximum(self._largest_std[integers], LEAST_INTEGER_STD)
        self._restarts = Restarts(settings.restarts, settings.max_restarts, self.population, first.std, first.seed)
        self._bests: deque[float] = deque()
        self._evaluations = 0
        self._begin()
        self._limit_deviations()
        self._sample_with(*self._shape())  # equal to the state after a load, so that samples have the same bits

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
        """Return a search that starts from good solutions of a similar task; see `promising_region`.

        Near the sides of a box, the region is that of the searched coordinates of the solutions.

        Args:
            solutions: Parameters `[k, n]`.
            rewards: Larger is better, `[k]`.
            config: Settings; the initial step size comes from the solutions instead.
            best: Share of the solutions that is used, the best ones, above 0 to 1.
            spread: Expected distance from a solution to others that are as good, as a standard deviation; above 0. Near
                the sides of a box, of the searched coordinates.
            layout: Names and shapes of the parts of the vector.

        Raises:
            LayoutMismatch: `solutions` is not a table of finite numbers.
            InvalidReward: `rewards` does not have one finite number per solution.
            ValueError: `best` or `spread` is out of its range.
        """
        region = functools.partial(promising_region, rewards=rewards, best=best, spread=spread, separable=cls.separable)
        found = region(solutions)
        search = cls(found.mean, config, layout)
        if (box := search._bounds) is not None:
            found = region(box.searched(checked_solutions(solutions, rewards)[0]))
            search = cls(box.moved(search.mean, found.mean - box.searched(search.mean))[0], config, layout)
        search._sigma = found.sigma
        search._begin_with(found.covariance)
        search._limit_deviations()
        search._sample_with(*search._shape())
        return search

    @property
    def sigma(self) -> float:
        """The present step size; near the sides of a box, of the searched coordinates."""
        return self._sigma

    @property
    def restarts(self) -> int:
        """Number of times that the search has begun again."""
        return self._restarts.count

    def should_stop(self) -> str:
        """Return why the search should stop, for example because it has converged and has no restart left."""
        return self._converged() or super().should_stop()

    def _own_state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the step size, the population and the restarts, beside that of the base class."""
        return super()._own_state() | {
            "sigma": np.array(self._sigma),
            "population": np.array(self.population, np.int64),
            "origin": self._origin.copy(),
            "bests": np.array(self._bests, np.float64),
            "evaluations": np.array(self._evaluations, np.int64),
            "restarts": self._restarts.state(),
        }

    def _load_own_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state of the step size, the population and the restarts."""
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

    def _advance(self, intake: SortedSamples, sampler: Sampler) -> Advance:
        (group,) = intake.groups
        state = self._own_state() if self.leaps or self._reach(sampler.parameters) > LARGEST_SPREAD else {}
        step, norm = self._step(group, sampler)
        mean: NDArray[np.floating] = sampler.parameters
        if norm and self._bounds is None:
            mean = mean + step
        elif norm and self._bounds is not None:
            mean, turned = self._bounds.moved(mean, step)
            if turned.any():
                self._mirror(np.where(turned, -1.0, 1.0))
        self._note(group)
        beyond = bool(state) and not self._reach(mean) <= LARGEST_REACH
        if (beyond or self._converged()) and (start := self._restarts.next(self._evaluations)) is not None:
            self.population, self._sigma = start.population, start.sigma
            self._bests.clear()
            self._evaluations = 0
            self._begin()
            mean = self._another_start()
        elif beyond:
            self._load_own_state(state)
            raise StepDiverged("samples would not be finite; rewards grow as far as numbers reach")
        self._limit_deviations()
        std, transform = self._shape()
        return Advance(mean.astype(np.float32), std, norm, transform)

    def _reach(self, mean: NDArray[np.floating]) -> float:
        """Return the largest distance from 0 of samples of this mean."""
        sizes = np.abs(mean)
        return float(sizes[sizes.argmax()]) + FARTHEST * self._widest()

    def _note(self, group: Group) -> None:
        self._evaluations += len(group.rewards)
        rewards, bests, most = group.rewards, self._bests, 1 + self._enough
        bests.append(rewards.item(rewards.argmax()))
        while len(bests) > most:
            del bests[1]

    @property
    def _enough(self) -> int:
        """The number of updates without an improvement that ends a run."""
        return 10 + 30 * self.layout.size // self.population

    def _converged(self) -> str:
        """Return the reason to end this run; empty while it continues."""
        bests = self._bests  # the first of the run, and the last ones
        if len(bests) > self._enough:
            last, improvement = bests[-1], abs(bests[-1] - bests[0])
            # Parameters are float32: below their rounding, differences of rewards are meaningless. Offsets do not
            # matter.
            flat = max(FLAT, ROUNDING * min(abs(last), improvement))
            if abs(last - bests[1]) <= flat:  # most often this is enough
                recent = tuple(bests)[1:]
                if max(recent) - min(recent) <= flat:
                    apart, in_logs = float(np.spacing(abs(last))), float(np.spacing(np.float32(abs(last))))
                    coarse = f"; numbers near {last:.6g} are {apart:.2g} apart, those of a log {in_logs:.2g}"
                    return (
                        f"the search has converged: its best rewards hardly differ over {self._enough} updates "
                        f"(by {flat:.2g} or less){coarse if in_logs > flat else ''}"
                    )
        return self._too_small()

    def _another_start(self) -> NDArray[np.float64]:
        """Return a start anywhere in the box, or about as far from the first start as samples were there."""
        uniforms = self._restarts.uniforms(self.layout.size, start=16)  # the first block has the plan's own numbers
        if self._bounds is not None and self._bounds.finite:
            return self._bounds.lower + uniforms * (self._bounds.upper - self._bounds.lower)
        normals = quantiles()[(uniforms * 2**16).astype(np.int64)] / UNITS_PER_ONE
        step = self.config.solver.sampling.gaussian_sampling.std * normals
        return self._origin + step if self._bounds is None else self._bounds.moved(self._origin, step)[0]

    def _limit_deviations(self) -> None:
        """Limit standard deviations by the box."""
        if self._bounds is None:
            return
        most, deviations = self._largest_std, self._deviations_of_samples()
        wide = deviations > most
        if not wide.any():
            return
        factors = np.ones(len(most))
        factors[wide] = most[wide] / deviations[wide]
        common = float(factors.max())
        self._sigma *= common
        if common > factors.min():
            self._narrow(factors / common)

    @abstractmethod
    def _deviations_of_samples(self) -> NDArray[np.float64]:
        """Return the standard deviation of each parameter of the next samples, `[n]`."""

    @abstractmethod
    def _narrow(self, factors: NDArray[np.float64]) -> None:
        """Multiply the standard deviations by these factors `[n]`, and leave the step size."""

    @abstractmethod
    def _mirror(self, signs: NDArray[np.float64]) -> None:
        """Multiply the coordinates of all that the search has learnt by these signs `[n]`."""

    @abstractmethod
    def _begin(self) -> None:
        """Reset the state of the last run except for population and step size."""

    @abstractmethod
    def _begin_with(self, covariance: NDArray[np.float64]) -> None:
        """Reset the state as `_begin` does, with this covariance; a `separable` search takes its diagonal."""

    @abstractmethod
    def _step(self, group: Group, sampler: Sampler) -> tuple[NDArray[np.float64], float]:
        """Return the step of the mean `[n]`, and its norm in units of the step size; 0 if uninformative."""

    @abstractmethod
    def _shape(self) -> tuple[float | FlatVector, Transform | None]:
        """Return standard deviation and matrix of the next samples."""

    @abstractmethod
    def _widest(self) -> float:
        """Return the largest standard deviation of the next samples."""

    def _too_small(self) -> str:
        """Return the reason why steps no longer matter; empty while they do."""
        largest = self._widest()
        if largest < SMALLEST_STEP:
            return f"the largest standard deviation is {largest:.3g}: the search has converged"
        return ""

    @abstractmethod
    def _load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the algorithm's own state, whose shapes are checked."""


@dataclass(frozen=True)
class RunStart:
    """The beginning of a run."""

    population: int
    sigma: float


class Restarts:
    """The plan of all runs.

    Args:
        kind: IPOP, BIPOP or none.
        most: Maximum number of times that the population doubles; the search ends at the next restart that needs more.
        population: Population of the first run.
        sigma: Initial step size of the first run.
        seed: Seed of the noise.

    Attributes:
        count: Number of restarts so far.
    """

    def __init__(self, kind: RestartKind, most: int, population: int, sigma: float, seed: int) -> None:
        self._kind = kind
        self._most = most
        self._first = RunStart(population, sigma)
        self._seed = seed
        self.count = 0
        self._doublings = 0
        self._evaluations = [0, 0]  # evaluations of the small and of the large regime
        self._large = False

    def next(self, evaluations: int) -> RunStart | None:
        """Return the start of the next run, given the evaluations of the last one; None if there is no next run."""
        if self._kind is RestartKind.NONE:
            return None
        self._evaluations[self._large] += evaluations
        small, large = self._evaluations
        self._large = self._kind is RestartKind.IPOP or self._doublings == 0 or large <= small
        if self._large and self._doublings >= self._most:
            return None
        self.count += 1
        if self._large:
            self._doublings += 1
            return RunStart(self._first.population << self._doublings, self._first.sigma)
        u, v = self.uniforms(2)
        largest = self._first.population << self._doublings
        times = (largest / (2 * self._first.population)) ** (float(u) ** 2)
        return RunStart(max(2, int(self._first.population * times)), self._first.sigma * 10 ** (-2 * float(v)))

    def uniforms(self, count: int, start: int = 0) -> NDArray[np.float64]:
        """Return numbers between 0 and 1 that belong to the present restart, `[count]`."""
        bits = random_bits(self._seed, RESTART_STREAM + self.count, start, count)
        uniforms: NDArray[np.float64] = (bits + 0.5) / 2**UNIFORM_BITS
        return uniforms

    def state(self) -> NDArray[np.int64]:
        """Return everything that changes, for a file."""
        return np.array([self.count, self._doublings, *self._evaluations, self._large], np.int64)

    def load_state(self, state: NDArray[np.int64]) -> None:
        """Restore a state that `state` returned."""
        self.count, self._doublings, small, large, is_large = state.tolist()
        self._evaluations, self._large = [small, large], bool(is_large)


class InitialDistribution(NamedTuple):
    """The initial normal distribution of a search: mean `[n]`, step size, covariance of determinant 1.

    The covariance is `[n, n]`, or its diagonal `[n]` for a separable one.
    """

    mean: NDArray[np.float64]
    sigma: float
    covariance: NDArray[np.float64]


def checked_solutions(
    solutions: ArrayLike, rewards: ArrayLike, n: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return known solutions `[k, n]` and their rewards `[k]`.

    Args:
        solutions: Parameters.
        rewards: Larger is better.
        n: Number of parameters; 0 allows any number.

    Raises:
        LayoutMismatch: `solutions` is not a table of finite float32 numbers with this number of columns.
        InvalidReward: `rewards` does not have one finite float32 number per solution.
    """
    try:  # masked entries are not numbers
        table = np.ma.asarray(array_of(solutions), np.float64).filled(np.nan)
    except (TypeError, ValueError, OverflowError) as error:
        raise LayoutMismatch(f"solutions must be finite numbers: {error}") from error
    if table.ndim != 2 or not table.size:
        raise LayoutMismatch(f"solutions must be finite numbers [k, n], not an array of shape {table.shape}")
    if n and table.shape[1] != n:
        raise LayoutMismatch(f"solutions must have {n} parameters here, not {table.shape[1]}")
    with np.errstate(over="ignore"):  # beyond float32, of which parameters are, becomes infinite
        held = np.isfinite(table.astype(np.float32))
    if not held.all():
        first = int(np.flatnonzero(~held.all(axis=1))[0])
        raise LayoutMismatch(f"solutions must be finite float32 numbers; solution {first} is not")
    try:
        given = array_of(rewards)
    except (TypeError, ValueError) as error:  # such as rows of different lengths
        raise InvalidReward(f"{len(table)} solutions need one finite reward each: {error}") from error
    if given.shape != (len(table),):
        raise InvalidReward(f"{len(table)} solutions need one finite reward each, not an array of shape {given.shape}")
    worth = reward_numbers(given, len(table))
    if not np.isfinite(worth).all():
        first = int(np.flatnonzero(~np.isfinite(worth))[0])
        raise InvalidReward(f"{len(table)} solutions need one finite reward each; number {first} has {worth[first]}")
    return table, worth


def promising_region(
    solutions: ArrayLike, rewards: ArrayLike, *, best: float = 0.1, spread: float = 0.1, separable: bool = False
) -> InitialDistribution:
    """Return the distribution that known solutions suggest.

    Args:
        solutions: Parameters `[k, n]`.
        rewards: Larger is better, `[k]`.
        best: Share of the solutions that is used, the best ones, above 0 to 1; at least one solution is used.
        spread: Expected distance from a solution to others that are as good, as a standard deviation; above 0.
        separable: True for a diagonal covariance, which needs no matrix `[n, n]`.

    Raises:
        LayoutMismatch: `solutions` is not a table of finite numbers.
        InvalidReward: `rewards` does not have one finite number per solution.
        ValueError: `best` or `spread` is out of its range.
    """
    table, worth = checked_solutions(solutions, rewards)
    if not 0.0 < best <= 1.0:
        raise ValueError(f"best must be a share of the solutions, above 0 and at most 1, not {best}")
    if not 0.0 < spread < LARGEST_SPREAD:
        raise ValueError(f"spread must be a standard deviation above 0 and below {LARGEST_SPREAD:g}, not {spread}")
    chosen = table[np.argsort(-worth, kind="stable")[: max(1, int(best * len(table)))]]
    mean = chosen.mean(axis=0)
    deviations = chosen - mean
    if separable:
        variances = np.square(deviations).mean(axis=0) + spread**2
        sigma = float(np.exp(np.log(variances).mean() / 2))
        return InitialDistribution(mean, sigma, variances / sigma**2)
    covariance = deviations.T @ deviations / len(chosen) + spread**2 * np.eye(table.shape[1])
    log_determinant = float(np.linalg.slogdet(covariance)[1])
    sigma = float(np.exp(log_determinant / (2 * table.shape[1])))
    return InitialDistribution(mean, sigma, covariance / sigma**2)


@dataclass(frozen=True)
class Rates:
    """The rates that table 1 derives from the dimension and the effective number of parents.

    Attributes:
        c_sigma: Memory of the path of the step size.
        d_sigma: Damping of the step size.
        c_c: Memory of the path of the covariance.
        c_1: Learning rate of the rank-one update.
        c_mu: Learning rate of the rank-mu update.
    """

    c_sigma: float
    d_sigma: float
    c_c: float
    c_1: float
    c_mu: float

    @classmethod
    def of(cls, n: int, mueff: float, faster: float = 1.0) -> "Rates":
        """Return the rates for `n` parameters; `faster` multiplies those of the covariance."""
        c_sigma = (mueff + 2) / (n + mueff + 5)  # (55)
        d_sigma = 1 + 2 * max(0.0, sqrt((mueff - 1) / (n + 1)) - 1) + c_sigma  # (55)
        c_c = (4 + mueff / n) / (n + 4 + 2 * mueff / n)  # (56)
        c_1 = min(1.0, faster * 2 / ((n + 1.3) ** 2 + mueff))  # (57)
        c_mu = min(1 - c_1, faster * 2 * (mueff - 2 + 1 / mueff) / ((n + 2) ** 2 + mueff))  # (58)
        return cls(c_sigma, d_sigma, c_c, c_1, c_mu)

    def moving(self, norm: float, steps: int, n: int) -> bool:
        """Return h_sigma: whether the path of the step size is short enough to trust that of the covariance."""
        return norm / sqrt(1 - (1 - self.c_sigma) ** (2 * steps)) < (1.4 + 2 / (n + 1)) * expected_norm(n)


def default_population(n: int) -> int:
    """Return 4 + floor(3 ln n)  (48)."""
    return 4 + int(3 * log(max(n, 1)))


def expected_norm(n: int) -> float:
    """Return the expected length of a vector of `n` standard normal numbers."""
    return sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))


@functools.lru_cache(maxsize=64)
def _logs(count: int) -> NDArray[np.float64]:
    logs: NDArray[np.float64] = log((count + 1) / 2) - np.log(np.arange(1, count + 1))
    logs.flags.writeable = False
    return logs


def log_ranks(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln((k + 1) / 2) - ln rank for each of `k` rewards, the best having rank 1  (49).

    Equal rewards share the mean of their ranks, so that order does not matter.
    """
    order = np.argsort(-rewards, kind="stable")
    logs = np.empty(len(rewards))
    logs[order] = sorted_log_ranks(rewards[order])
    return logs


def sorted_log_ranks(descending: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `log_ranks` of rewards in descending order."""
    count = len(descending)
    if not np.count_nonzero(descending[1:] == descending[:-1]):
        return _logs(count)
    first, last = (np.searchsorted(-descending, -descending, side) for side in ("left", "right"))
    logs: NDArray[np.float64] = log((count + 1) / 2) - np.log((first + last + 1) / 2)
    return logs


class Recombination(NamedTuple):
    """Weights of rewards by rank.

    Attributes:
        parents: Weights of the better half, which add up to 1; the others' are 0  (50).
        active: All weights: also those below 0 of the worse half, of the active update  (53).
        positive: The number of these that are 0 or more.
        mueff: The effective number of parents.
        rates: The learning rates that go with it.
        total: The sum of `active`.
        shares: `active` times the learning rate of the rank-mu update.
    """

    parents: NDArray[np.float64]
    active: NDArray[np.float64]
    positive: int
    mueff: float
    rates: Rates
    total: float
    shares: NDArray[np.float64]

    @classmethod
    def of(cls, raw: NDArray[np.float64], n: int) -> "Recombination":
        """Return the weights for `sorted_log_ranks` that are not all 0, and `n` parameters."""
        return _untied(len(raw), n) if raw is _logs(len(raw)) else cls._of(raw, n)

    @classmethod
    def _of(cls, raw: NDArray[np.float64], n: int) -> "Recombination":
        parents = np.maximum(raw, 0.0)
        parents /= parents.sum()
        mueff = 1.0 / float(np.square(parents).sum())
        rates = Rates.of(n, mueff)
        active, positive = parents + _negative(raw, n, mueff, rates), int(np.count_nonzero(raw >= 0))
        return cls(parents, active, positive, mueff, rates, float(active.sum()), active * rates.c_mu)


@functools.lru_cache(maxsize=64)
def _untied(count: int, n: int) -> Recombination:
    return Recombination._of(_logs(count), n)


def _negative(raw: NDArray[np.float64], n: int, mueff: float, rates: Rates) -> NDArray[np.float64]:
    """Return the weights of the worse half (50 to 53), small enough that C stays positive definite."""
    negative = np.minimum(raw, 0.0)
    size = -float(negative.sum())
    if size == 0.0 or rates.c_mu == 0.0:
        return np.zeros_like(raw)
    mueff_negative = size**2 / float(np.square(negative).sum())
    allowed = min(
        1 + rates.c_1 / rates.c_mu,  # (50)
        1 + 2 * mueff_negative / (mueff + 2),  # (51)
        (1 - rates.c_1 - rates.c_mu) / (n * rates.c_mu),  # (52)
    )
    return negative * allowed / size
