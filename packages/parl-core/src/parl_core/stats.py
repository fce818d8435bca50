"""Statistics: of the latest numbers, of the time of a block, of all samples so far, and over seeds.

Wrappers that normalise observations and rewards keep running statistics, which `SavedStatistics` saves.
The statistics over few seeds are those of Agarwal et al. 2021 (arXiv:2108.13264): `interquartile_mean`,
`bootstrap_interval`, `probability_of_improvement` and `performance_profile`. A mean over few seeds follows its
outliers, a median wastes half of them; the mean of the middle half does neither.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_core._array_files import read_snapshot, write_snapshot
from parl_core.checks import check_fraction, check_int
from parl_core.errors import CheckpointError, HyperparameterError

__all__ = [
    "Improvement",
    "Interval",
    "PerformanceProfile",
    "RunningMeanStd",
    "SavedStatistics",
    "TimeStat",
    "WindowStat",
    "bootstrap_difference",
    "bootstrap_interval",
    "interquartile_mean",
    "performance_profile",
    "probability_of_improvement",
    "statistics_of",
]

_NAMES = ("mean", "var", "count")


class WindowStat:
    """Mean, minimum and maximum of the last `window_size` numbers; None without numbers.

    Raises:
        HyperparameterError: `window_size` is not a whole number of at least 1.
    """

    def __init__(self, window_size: int) -> None:
        self._items: deque[float] = deque(maxlen=check_int("window_size", window_size))
        self.count = 0

    @property
    def items(self) -> list[float]:
        """The numbers of the window, oldest first."""
        return list(self._items)

    def add(self, obj: float | NDArray[Any]) -> None:
        """Add a number, or an array of one; the oldest drops out of a full window. `count` counts all ever added.

        Raises:
            ValueError: The array has another size.
        """
        self._items.append(float(obj.item() if isinstance(obj, np.ndarray) else obj))
        self.count += 1

    @property
    def mean(self) -> float | None:
        """Mean of the window."""
        return sum(self._items) / len(self._items) if self._items else None

    @property
    def min(self) -> float | None:
        """Smallest of the window."""
        return min(self._items, default=None)

    @property
    def max(self) -> float | None:
        """Largest of the window."""
        return max(self._items, default=None)


class TimeStat:
    """Seconds that a block of code takes, over the last `window_size` times.

        time_stat = TimeStat(window_size=100)
        with time_stat:
            learn()
        print(time_stat.mean)

    A block that raises counts as well. Not for nested or concurrent blocks: use one object for each.

    Args:
        window_size: Number of times that are remembered, at least 1.
        clock: The function that returns seconds from an arbitrary zero; the default never goes backwards.
    """

    def __init__(self, window_size: int = 1, clock: Callable[[], float] = time.perf_counter) -> None:
        self.time_samples = WindowStat(window_size)
        self._clock = clock
        self._started = 0.0

    def __enter__(self) -> "TimeStat":
        self._started = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.time_samples.add(self._clock() - self._started)

    @property
    def mean(self) -> float | None:
        """Mean seconds; None before the first time."""
        return self.time_samples.mean

    @property
    def min(self) -> float | None:
        """Shortest seconds; None before the first time."""
        return self.time_samples.min

    @property
    def max(self) -> float | None:
        """Longest seconds; None before the first time."""
        return self.time_samples.max


class RunningMeanStd:
    """Mean and variance of all samples so far, in float64; the samples are not kept.

    T. F. Chan, G. H. Golub, R. J. LeVeque: Updating Formulae and a Pairwise Algorithm for Computing Sample Variances
    (1979), equation 2.1; for one sample at a time it is Welford's method. Objects of several actors can be merged.

    Args:
        shape: The shape of one sample.
        epsilon: Weight of the initial values (mean 0, variance 1) in samples, which keeps the first variances away from
            0.

    Attributes:
        mean: `[*shape]`.
        var: `[*shape]`, the population variance.
        count: Samples seen, and epsilon.
    """

    def __init__(self, shape: tuple[int, ...] = (), epsilon: float = 1e-4) -> None:
        self.mean: NDArray[np.float64] = np.zeros(shape)
        self.var: NDArray[np.float64] = np.ones(shape)
        self.count = epsilon

    def update(self, x: ArrayLike) -> None:
        """Add samples `[n, *shape]`; an empty array changes nothing.

        Raises:
            ValueError: The samples have another shape.
        """
        samples = np.asarray(x, np.float64)
        if samples.shape[1:] != self.mean.shape or samples.ndim != self.mean.ndim + 1:
            raise ValueError(
                f"got samples of shape {list(samples.shape)} for statistics of shape {list(self.mean.shape)}: "
                "pass them as [n, *shape]"
            )
        if len(samples) == 1:  # a single sample is the common case, and much cheaper so
            self._combine(samples[0], 0.0, 1)
        elif len(samples):
            self._combine(samples.mean(axis=0), samples.var(axis=0), len(samples))

    def merge(self, other: "RunningMeanStd") -> None:
        """Add the samples of another object. The starts of both objects, of weight epsilon, count."""
        self._combine(other.mean, other.var, other.count)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of mean, variance and count, for a checkpoint."""
        return {"mean": self.mean.copy(), "var": self.var.copy(), "count": np.float64(self.count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`.

        Raises:
            ValueError: It has another shape.
        """
        mean, var = np.array(state["mean"], np.float64), np.array(state["var"], np.float64)
        if mean.shape != self.mean.shape or var.shape != self.var.shape:
            raise ValueError(
                f"the saved statistics have the shape {list(mean.shape)}, these {list(self.mean.shape)}: "
                "they belong to another observation space"
            )
        self.mean, self.var, self.count = mean, var, float(state["count"])

    def _combine(self, mean: NDArray[np.float64], var: NDArray[np.float64] | float, count: float) -> None:
        total = self.count + count
        delta = mean - self.mean
        self.mean = self.mean + delta * (count / total)
        squares = self.var * self.count + var * count + delta**2 * (self.count * count / total)
        self.var = squares / total
        self.count = total


class SavedStatistics:
    """Base of wrappers with running statistics.

    Attributes:
        ob_rms: Statistics of observations; None if they are not normalised.
        ret_rms: Statistics of the discounted sums of rewards; None if rewards are not scaled.
    """

    ob_rms: RunningMeanStd | None
    ret_rms: RunningMeanStd | None

    def _statistics(self) -> dict[str, RunningMeanStd]:
        """Return the running statistics of each part."""
        both = {"ob": self.ob_rms, "ret": self.ret_rms}
        return {part: rms for part, rms in both.items() if rms is not None}

    def get_state(self) -> dict[str, NDArray[np.float64]]:
        """Return copies of all statistics, by name."""
        return {
            f"{part}_{name}": np.array(value, np.float64)
            for part, rms in self._statistics().items()
            for name, value in rms.state_dict().items()
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned, of environments with the same observations.

        A wrapper that does not normalise rewards restores only the statistics of observations.

        Raises:
            CheckpointError: Statistics are missing, of another shape, or not finite; nothing was changed.
        """
        loaded: dict[str, RunningMeanStd] = {}
        for part, rms in self._statistics().items():
            names = {name: f"{part}_{name}" for name in _NAMES}
            if missing := [name for name in names.values() if name not in state]:
                raise CheckpointError(f"the saved normalisation lacks {', '.join(missing)}; it has {sorted(state)}")
            if spoiled := [name for name in names.values() if not np.isfinite(state[name]).all()]:
                raise CheckpointError(f"the saved normalisation is not finite in {', '.join(spoiled)}")
            loaded[part] = RunningMeanStd(rms.mean.shape)
            try:
                loaded[part].load_state_dict({name: state[key] for name, key in names.items()})
            except ValueError as error:
                raise CheckpointError(str(error)) from error
        for part, rms in self._statistics().items():  # into the existing objects, because others may share them
            rms.load_state_dict(loaded[part].state_dict())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the statistics to an `.npz` file, under its name only when it is complete, and return its path."""
        return write_snapshot(path, self.get_state())

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file of `save`, of this or of another wrapper.

        Raises:
            CheckpointError: It is missing, damaged, or belongs to other observations.
        """
        state = read_snapshot(path, set())
        try:
            self.set_state(state)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error


def statistics_of(env: Any) -> SavedStatistics:
    """Return the outermost wrapper with statistics around an environment or a vector of them.

    Raises:
        TypeError: There is none.
    """
    inner = env
    while inner is not None:
        if isinstance(inner, SavedStatistics):
            return inner
        inner = getattr(inner, "env", None)
    raise TypeError(
        f"normalization= takes an environment with running statistics, such as NormalizeVector(envs) or wrap_rms(env, "
        f"gamma), got {env!r}"
    )


class Interval(NamedTuple):
    """Lower and upper bound."""

    low: float
    high: float


def interquartile_mean(values: ArrayLike, axis: int = -1) -> NDArray[np.float64]:
    """Return the mean of the middle half along an axis.

    Values that lie across a quartile count by their share inside: of five values the outer ones count 0, the second and
    fourth 0.75, the middle one 1. (Rounding to whole values would make it a plain mean below four.)

    Args:
        values: The values, at least one along the axis.
        axis: The axis over which to average.

    Raises:
        HyperparameterError: There are none, or one is not finite.
    """
    array = np.sort(np.moveaxis(np.asarray(values, np.float64), axis, -1), axis=-1)
    n = array.shape[-1]
    if not n:
        raise HyperparameterError("the interquartile mean needs at least one value, got none")
    _require_finite(array, "values")
    edges = np.linspace(0.0, 1.0, n + 1)
    shares = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    mean: NDArray[np.float64] = (array * (shares / shares.sum())).sum(axis=-1)
    return mean


Scores = ArrayLike | Mapping[str, ArrayLike]
"""Final scores of one algorithm: `[seeds]` of one task, `[seeds, tasks]`, or the scores `[seeds]` of each task by name.

Over several tasks they have to be normalised, for instance so that a random policy has 0 and the best known one 1.
"""


def bootstrap_interval(values: Scores, confidence: float = 0.95, resamples: int = 20_000, seed: int = 0) -> Interval:
    """Return the percentile bootstrap interval of the interquartile mean over seeds, of one task or of several.

    The bootstrap is stratified: each task's seeds are resampled separately, and the interquartile mean is that of
    all scores together (Agarwal et al. 2021, section 4.1).

    Args:
        values: Final scores.
        confidence: The share of resamples inside.
        resamples: The number of resamples.
        seed: The seed of the draws, so that a table can be made again.

    Raises:
        HyperparameterError: There are no values, one is not finite, or a number is out of range.
    """
    rng, count = np.random.default_rng(seed), check_int("resamples", resamples)
    tasks = _by_task(values).values()
    drawn = [scores[rng.integers(scores.size, size=(count, scores.size))] for scores in tasks]
    low, high = _percentiles(interquartile_mean(np.concatenate(drawn, axis=1)), confidence)
    return Interval(float(low), float(high))


def bootstrap_difference(
    ours: ArrayLike, theirs: ArrayLike, confidence: float = 0.95, resamples: int = 20_000, seed: int = 0
) -> Interval:
    """Return the percentile bootstrap interval of the difference of two interquartile means, ours minus theirs.

    Both are resampled independently of each other, so that more variance makes the interval wider. For a one-sided test
    of "not below by more than a margin" at 95 %, check whether the lower bound of the 90 % interval reaches -margin.

    Args:
        ours: `[seeds]`.
        theirs: `[their seeds]`.
        confidence: The share of resamples inside.
        resamples: The number of resamples.
        seed: The seed of the draws, so that a table can be made again.

    Raises:
        HyperparameterError: There are no values, one is not finite, or a number is out of range.
    """
    rng = np.random.default_rng(seed)
    means = []
    for name, values in (("ours", ours), ("theirs", theirs)):
        array = np.asarray(values, np.float64)
        if array.ndim != 1 or not array.size:
            raise HyperparameterError(f"a bootstrap needs one value per seed, got shape {list(array.shape)}")
        _require_finite(array, name)
        rows = rng.integers(array.size, size=(check_int("resamples", resamples), array.size))
        means.append(interquartile_mean(array[rows]))
    low, high = _percentiles(means[0] - means[1], confidence)
    return Interval(float(low), float(high))


class Improvement(NamedTuple):
    """The probability that one algorithm is better than another, with its interval."""

    probability: float
    """The probability that a run of the first scores above one of the second, a tie counting half; mean over tasks."""
    interval: Interval


def probability_of_improvement(
    ours: Scores, theirs: Scores, confidence: float = 0.95, resamples: int = 2_000, seed: int = 0
) -> Improvement:
    """Return the probability that a run scores above a run of another algorithm (Agarwal et al. 2021, section 4.3).

    It measures how certain an improvement is, not how large: 0.5 is no difference. For each task it is the Mann-Whitney
    statistic of both algorithms' seeds, divided by the number of pairs.

    Args:
        ours: Final scores of the first algorithm; higher is better.
        theirs: Final scores of the second algorithm on the same tasks; the number of seeds may differ.
        confidence: The share of resamples inside the interval.
        resamples: The number of resamples, of both algorithms, stratified by task.
        seed: The seed of the draws.

    Raises:
        HyperparameterError: The tasks differ, there are no values, one is not finite, or a number is out of range.
    """
    mine, others = _by_task(ours), _by_task(theirs)
    if mine.keys() != others.keys():
        raise HyperparameterError(f"both need scores of the same tasks, got {sorted(mine)} and {sorted(others)}")
    rng = np.random.default_rng(seed)
    found, drawn = [], []
    for task, scores in mine.items():
        wins = 0.5 + 0.5 * np.sign(scores[:, None] - others[task])
        found.append(wins.mean())
        drawn.append(((_shares(rng, scores.size, resamples) @ wins) * _shares(rng, len(wins.T), resamples)).sum(axis=1))
    low, high = _percentiles(np.mean(drawn, axis=0), confidence)
    return Improvement(float(np.mean(found)), Interval(float(low), float(high)))


class PerformanceProfile(NamedTuple):
    """Shares of runs above thresholds, each `[thresholds]`."""

    thresholds: NDArray[np.float64]
    share: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def performance_profile(
    values: Scores, thresholds: ArrayLike, confidence: float = 0.95, resamples: int = 2_000, seed: int = 0
) -> PerformanceProfile:
    """Return the share of runs whose score is above each threshold (Agarwal et al. 2021, section 4.2).

    Tasks have equal weights, whatever their numbers of seeds. An algorithm whose curve lies above another's everywhere
    is better at every quantile; the area under the curve of scores of at least 0 is their mean.

    Args:
        values: Final scores.
        thresholds: `[thresholds]`, scores to compare with.
        confidence: The share of resamples inside the band at each threshold.
        resamples: The number of resamples, stratified by task.
        seed: The seed of the draws.

    Raises:
        HyperparameterError: There are no values or thresholds, one is not finite, or a number is out of range.
    """
    limits = np.asarray(thresholds, np.float64)
    if limits.ndim != 1 or not limits.size or not np.isfinite(limits).all():
        raise HyperparameterError(f"thresholds must be at least one finite number in a row, got {thresholds!r}")
    rng = np.random.default_rng(seed)
    above = [scores[:, None] > limits for scores in _by_task(values).values()]
    share = np.mean([task.mean(axis=0) for task in above], axis=0)
    drawn = [_shares(rng, len(task), resamples) @ task for task in above]
    return PerformanceProfile(limits, share, *_percentiles(np.mean(drawn, axis=0), confidence))


def _by_task(values: Scores) -> dict[str, NDArray[np.float64]]:
    if isinstance(values, Mapping):
        named = {task: np.asarray(scores, np.float64) for task, scores in values.items()}
    else:
        array = np.asarray(values, np.float64)
        if array.ndim not in (1, 2):
            raise HyperparameterError(f"a bootstrap needs one value per seed, got shape {list(array.shape)}")
        columns = array[:, None] if array.ndim == 1 else array
        named = {f"task {i}": column for i, column in enumerate(columns.T)}
    for task, scores in named.items():
        if scores.ndim != 1 or not scores.size:
            raise HyperparameterError(f"a bootstrap needs one value per seed; {task} has shape {list(scores.shape)}")
        _require_finite(scores, f"the scores of {task}")
    if not named:
        raise HyperparameterError("a bootstrap needs one value per seed, got no tasks")
    return named


def _require_finite(values: NDArray[np.float64], name: str) -> None:
    if not np.isfinite(values).all():
        raise HyperparameterError(f"{name} must be finite, got {values[~np.isfinite(values)][0]}")


def _shares(rng: np.random.Generator, size: int, resamples: int) -> NDArray[np.float64]:
    """Return the weight of each of `size` seeds in each resample with replacement, `[resamples, size]`."""
    counts = rng.multinomial(size, np.full(size, 1.0 / size), check_int("resamples", resamples))
    shares: NDArray[np.float64] = counts / size
    return shares


def _percentiles(resampled: NDArray[np.float64], confidence: float) -> NDArray[np.float64]:
    """Return the bounds `[2, ...]` of resampled statistics `[resamples, ...]`."""
    outside = (1.0 - check_fraction("confidence", confidence)) / 2.0
    bounds: NDArray[np.float64] = np.quantile(resampled, [outside, 1.0 - outside], axis=0)
    return bounds
