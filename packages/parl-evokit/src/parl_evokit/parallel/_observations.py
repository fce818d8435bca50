"""Normalised observations: each sample records its observations, and the next round uses the statistics of all.

    worker:  predict(x) ── x counted in this sample's sums ── (x - mean) / std ──► model
    caller:  sums of all samples, in the order in which they were drawn ──► mean and std of the next round

Within a round mean and deviation are constant, so that all its samples are evaluated alike (Salimans et al. 2017,
section 2.1 and appendix; ARS V2, Mania et al. 2018). Each sample has its own sums, which are added in the order of the
samples, so the result does not depend on which worker evaluated a sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_evokit.errors import LayoutMismatch
from parl_evokit.models.adapter import Predictor

__all__ = ["NormalizedAgent", "Normalizer", "ObservationStatistics", "ObservationSums"]

SMALLEST_STD = 1e-2  # observations that never change are divided by this, as OpenAI's code does


@dataclass(frozen=True, eq=False)
class ObservationSums:
    """Sums of the observations of one sample.

    Attributes:
        total: Sum of the observations, float64 `[*shape]`.
        squares: Sum of their squares, float64 `[*shape]`.
        count: Number of observations.
    """

    total: NDArray[np.float64]
    squares: NDArray[np.float64]
    count: int


class Normalizer:
    """Mean and standard deviation of observations at one time; immutable.

    Args:
        mean: `[*shape]`.
        std: `[*shape]`.
        clip: Bound of normalised observations, which are clipped to `[-clip, clip]`.
    """

    def __init__(self, mean: NDArray[np.float64], std: NDArray[np.float64], clip: float) -> None:
        self.mean, self.std, self.clip = mean, std, clip

    def __call__(self, x: ArrayLike) -> NDArray[np.float32]:
        """Return observations `[*shape]` or `[batch, *shape]`, normalised."""
        scaled = (np.asarray(x, np.float64) - self.mean) / self.std
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)


class NormalizedAgent:
    """An agent whose `predict` normalises its inputs, and optionally adds them to sums.

    Args:
        agent: The agent that predicts.
        normalizer: The normalizer of the inputs.
        counts: True to add the inputs to the sums.
    """

    def __init__(self, agent: Predictor, normalizer: Normalizer, *, counts: bool = False) -> None:
        self.agent = agent
        self._normalizer = normalizer
        self._counts = counts
        self._total = np.zeros_like(normalizer.mean)
        self._squares = np.zeros_like(normalizer.mean)
        self._count = 0

    def predict(self, x: ArrayLike) -> Any:
        """Return the agent's output for the normalised input.

        Raises:
            LayoutMismatch: The input has another shape than the statistics.
        """
        array = np.asarray(x, np.float64)
        shape = self._normalizer.mean.shape
        if array.shape[array.ndim - len(shape) :] != shape:
            raise LayoutMismatch(f"the statistics are of observations {list(shape)}, this one is {list(array.shape)}")
        if self._counts:
            rows = array.reshape(-1, *shape)
            self._total += rows.sum(axis=0)
            self._squares += np.square(rows).sum(axis=0)
            self._count += len(rows)
        return self.agent.predict(self._normalizer(array))

    def take_sums(self) -> ObservationSums:
        """Return the sums since the last call."""
        sums = ObservationSums(self._total, self._squares, self._count)
        self._total, self._squares, self._count = np.zeros_like(sums.total), np.zeros_like(sums.squares), 0
        return sums


class ObservationStatistics:
    """Mean and standard deviation of the observations of all samples.

    Before the first observation, the mean is 0 and the deviation 1, so that inputs are unchanged up to clipping.

    Args:
        shape: Shape of one observation; an integer stands for a vector.
        clip: Bound of normalised observations, which are clipped to `[-clip, clip]`; 10 as in OpenAI's baselines.
    """

    def __init__(self, shape: int | Sequence[int], *, clip: float = 10.0) -> None:
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        if clip <= 0:
            raise ValueError(f"clip must be above 0, not {clip}")
        self._total: NDArray[np.float64] = np.zeros(sizes)
        self._squares: NDArray[np.float64] = np.zeros(sizes)
        self._count = self._skipped = 0
        self.clip = clip

    @property
    def count(self) -> int:
        """Number of observations so far."""
        return self._count

    @property
    def skipped(self) -> int:
        """Number of samples so far that were skipped because an observation was not finite or too large."""
        return self._skipped

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of all observations `[*shape]`."""
        return self._total / max(self._count, 1)

    @property
    def std(self) -> NDArray[np.float64]:
        """Standard deviation of all observations `[*shape]`, 0.01 or more."""
        if not self._count:
            return np.ones_like(self._total)
        variance = self._squares / self._count - np.square(self.mean)
        deviation: NDArray[np.float64] = np.sqrt(np.maximum(variance, SMALLEST_STD**2))
        return deviation

    def add(self, sums: ObservationSums) -> None:
        """Add the observations of one sample; they are skipped if the sums would not be finite."""
        total, squares = self._total + sums.total, self._squares + sums.squares
        if not (np.isfinite(total).all() and np.isfinite(squares).all()):
            self._skipped += 1
            return
        self._total, self._squares = total, squares
        self._count += sums.count

    def normalizer(self) -> Normalizer:
        """Return a normalizer with the present mean and deviation, which later observations do not change."""
        return Normalizer(self.mean, self.std, self.clip)

    def normalized(self, agent: Predictor) -> NormalizedAgent:
        """Return the agent with inputs normalised by the present mean and deviation, for evaluation and for serving."""
        return NormalizedAgent(agent, self.normalizer())

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the statistics as arrays, for a file (`numpy.savez`)."""
        return {
            "total": self._total,
            "squares": self._squares,
            "count": np.array(self._count, np.int64),
            "skipped": np.array(self._skipped, np.int64),
        }

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` returned.

        Raises:
            LayoutMismatch: The state is of observations of another shape, or an array is missing.
        """
        missing = {"total", "squares", "count"} - set(state)
        if missing or state["total"].shape != self._total.shape or state["squares"].shape != self._total.shape:
            found = {name: list(array.shape) for name, array in state.items()}
            raise LayoutMismatch(f"statistics of observations {list(self._total.shape)} cannot take over {found}")
        self._total = np.array(state["total"], np.float64)
        self._squares = np.array(state["squares"], np.float64)
        self._count, self._skipped = (int(state["count"]), int(state.get("skipped", 0)))  # older states lack it
