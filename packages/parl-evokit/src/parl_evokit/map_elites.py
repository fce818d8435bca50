"""MAP-Elites (Mouret and Clune, "Illuminating search spaces by mapping elites", 2015, arXiv 1504.04909).

    ask(n) ──► candidates ──► (evaluate: reward and descriptor) ──► tell ──► each cell keeps its best

A descriptor describes the behaviour of a candidate, not its quality. The box of descriptors is divided into a grid, and
each cell keeps its best candidate. New candidates are varied elites (Vassiliades and Mouret, "Discovering the elite
hypervolume by leveraging interspecies correlation", GECCO 2018, equation 1):

    x = a + std * z + line_std * u * (b - a)       a, b elites of two cells drawn uniformly, z and u normal

Candidates are plain arrays, evaluated by any means: by a pool of threads or processes, or by actors. `tell`
accepts any candidates, also those that do not come from `ask`. Normal numbers are those of the noise specification, so
equal calls return equal candidates on every machine; equal rewards leave a cell unchanged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from parl_evokit._params import float32_array, float64_array
from parl_evokit._samples import float_numbers
from parl_evokit.errors import EvolutionError, InvalidReward, LayoutMismatch
from parl_evokit.noise._spec import UNITS_PER_ONE, quantiles, random_bits

__all__ = ["MapElites", "MapReport"]

STREAM = 2**63 + 2**62  # beyond the streams of keys and of restarts


@dataclass(frozen=True)
class MapReport:
    """The outcome of one `tell`.

    Attributes:
        added: Number of candidates that are the first of their cell.
        improved: Number of candidates that replace a worse one.
        outside: Number of candidates whose descriptor is outside the box, or whose reward or descriptor is not finite.
    """

    added: int
    improved: int
    outside: int


class MapElites:
    """A map of the best candidates by their descriptors.

    Args:
        mean0: The initial parameters, `[n]`.
        lower: Lower bounds of the descriptors, `[k]`.
        upper: Upper bounds of the descriptors, `[k]`.
        cells: Number of cells in each dimension of the descriptor, `[k]`.
        std: Deviation of the noise of every new candidate; 0.01 in the paper on variation.
        line_std: Deviation of the step along the line to another elite; 0.2 in that paper.
        initial: The number of candidates that are drawn around `mean0` first.
        initial_std: The deviation of these candidates.
        seed: The seed of all normal numbers, from 0 to 2**64 - 1.

    Raises:
        EvolutionError: A setting is out of its range.
        LayoutMismatch: `mean0` is not a vector of finite numbers.
    """

    def __init__(
        self,
        mean0: ArrayLike,
        lower: Sequence[float],
        upper: Sequence[float],
        cells: Sequence[int],
        *,
        std: float = 0.01,
        line_std: float = 0.2,
        initial: int = 100,
        initial_std: float = 1.0,
        seed: int = 0,
    ) -> None:
        self._mean0 = float32_array("mean0", mean0)
        if self._mean0.ndim != 1 or not self._mean0.size or not np.isfinite(self._mean0).all():
            raise LayoutMismatch("mean0 must be a vector of finite numbers")
        self._lower, self._upper = float64_array("lower", lower), float64_array("upper", upper)
        try:
            self._cells = tuple(index(count) for count in cells)
        except TypeError as error:
            raise EvolutionError(f"cells must be whole numbers: {error}") from error
        k = (len(self._cells),)
        if not self._cells or not self._lower.shape == self._upper.shape == k or min(self._cells) < 1:
            raise EvolutionError(
                "lower, upper and cells must have one number for each descriptor, and cells must be 1 or more"
            )
        if prod(self._cells) >= 2**63:
            raise EvolutionError(f"a map has up to 2**63 - 1 cells, not {prod(self._cells)}")
        if not 0 <= seed < 2**64:
            raise EvolutionError(f"seed must be from 0 to 2**64 - 1, not {seed}")
        if not (np.isfinite(self._upper - self._lower).all() and (self._lower < self._upper).all()):
            raise EvolutionError(f"lower must be below upper, and both finite, not {lower} and {upper}")
        finite = all(map(isfinite, (std, line_std, initial_std)))
        if not finite or min(std, line_std) < 0 or initial_std <= 0 or initial < 1:
            raise EvolutionError("std and line_std must be 0 or more, initial_std above 0, and initial 1 or more")
        self._std, self._line_std, self._initial_std = std, line_std, initial_std
        self._initial, self._seed = initial, seed
        self._drawn = self._told = 0
        self._places = np.empty(0, np.int64)  # numbers of the cells that have an elite
        self._elites = np.empty((0, self._mean0.size), np.float32)
        self._rewards = np.empty(0)
        self._descriptors = np.empty((0, len(self._cells)))

    def ask(self, n: int) -> NDArray[np.float32]:
        """Return new candidates `[n, parameters]`."""
        size = self._mean0.size
        out = np.empty((n, size), np.float32)
        for row in out:
            bits = random_bits(self._seed, STREAM + self._drawn, 0, size + 1 + 4 * 2)
            self._drawn += 1
            normals = quantiles()[bits[: size + 1]] / UNITS_PER_ONE
            if self._told < self._initial or not len(self._elites):
                row[...] = self._mean0 + self._initial_std * normals[:size]
                continue
            # Numbers of 64 bits, so that no map is too large to draw from evenly.
            a, b = (int.from_bytes(part.astype("<u2").tobytes(), "little") for part in (bits[-8:-4], bits[-4:]))
            first, other = (self._elites[number % len(self._elites)].astype(np.float64) for number in (a, b))
            row[...] = first + self._std * normals[:size] + self._line_std * normals[size] * (other - first)
        return out

    def tell(self, candidates: ArrayLike, rewards: ArrayLike, descriptors: ArrayLike) -> MapReport:
        """Put candidates into the map.

        Args:
            candidates: Candidates of `ask` or others, `[m, parameters]`.
            rewards: Larger is better, `[m]`.
            descriptors: The descriptor of each candidate, `[m, k]`.

        Raises:
            LayoutMismatch: An array has another shape or is not of numbers, or a candidate is not finite.
            InvalidReward: Rewards and candidates differ in number, or a reward is not a number.
        """
        x, like = float32_array("candidates", candidates), float64_array("descriptors", descriptors)
        worth = float_numbers(rewards)
        if x.ndim != 2 or x.shape[1] != self._mean0.size or not np.isfinite(x).all():
            raise LayoutMismatch(f"candidates must be finite numbers [m, {self._mean0.size}], not {x.shape}")
        if like.shape != (len(x), len(self._cells)):
            raise LayoutMismatch(f"descriptors must be ({len(x)}, {len(self._cells)}) numbers, not {like.shape}")
        if worth.shape != (len(x),):
            raise InvalidReward(f"{len(x)} candidates came with rewards of shape {worth.shape}")
        self._told += len(x)
        inside = np.isfinite(worth) & ((like >= self._lower) & (like <= self._upper)).all(axis=1)
        added = improved = 0
        kept = zip(self._elites, self._rewards.tolist(), self._descriptors, strict=True)
        found = dict(zip(self._places.tolist(), kept, strict=True))
        for row in np.flatnonzero(inside).tolist():
            place = self._place(like[row])
            if place in found and worth[row] <= found[place][1]:
                continue
            added, improved = added + (place not in found), improved + (place in found)
            found[place] = (x[row], float(worth[row]), like[row])
        if found:
            self._places = np.array(list(found), np.int64)
            self._elites = np.array([each[0] for each in found.values()], np.float32)
            self._rewards = np.array([each[1] for each in found.values()])
            self._descriptors = np.array([each[2] for each in found.values()])
        return MapReport(added, improved, int(len(x) - np.count_nonzero(inside)))

    def _place(self, descriptor: NDArray[np.float64]) -> int:
        part = (descriptor - self._lower) / (self._upper - self._lower)
        cell = np.minimum((part * self._cells).astype(np.int64), np.array(self._cells) - 1)
        return int(np.ravel_multi_index(tuple(cell.tolist()), self._cells))

    def __len__(self) -> int:
        return len(self._places)

    @property
    def coverage(self) -> float:
        """Share of the cells that have an elite, 0 to 1."""
        return len(self) / prod(self._cells)

    @property
    def elites(self) -> NDArray[np.float32]:
        """The elites, a copy `[filled cells, parameters]`, in the order in which cells were filled."""
        return self._elites.copy()

    @property
    def rewards(self) -> NDArray[np.float64]:
        """Rewards of the elites, a copy `[cells filled]`."""
        return self._rewards.copy()

    @property
    def descriptors(self) -> NDArray[np.float64]:
        """Descriptors of the elites, a copy `[cells filled, k]`."""
        return self._descriptors.copy()

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the map, as arrays for a file."""
        return {
            "counts": np.array([self._drawn, self._told], np.int64),
            "places": self._places.copy(),
            "elites": self._elites.copy(),
            "rewards": self._rewards.copy(),
            "descriptors": self._descriptors.copy(),
        }

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` of a map with the same settings returned.

        Raises:
            LayoutMismatch: An array is missing or has another shape, or the cells or the box of the map were others.
        """
        filled = len(state.get("places", ()))
        wanted = {
            "counts": (2,),
            "places": (filled,),
            "elites": (filled, self._mean0.size),
            "rewards": (filled,),
            "descriptors": (filled, len(self._cells)),
        }
        found = {name: array.shape for name, array in state.items()}
        if found != wanted:
            raise LayoutMismatch(f"the state of a map has arrays {wanted}, not {found}")
        like = state["descriptors"]
        inside = ((like >= self._lower) & (like <= self._upper)).all()
        if not inside or [self._place(each) for each in like] != state["places"].tolist():
            raise LayoutMismatch("the state is that of a map with other cells or another box")
        self._drawn, self._told = state["counts"].tolist()
        self._places, self._elites = state["places"].copy(), state["elites"].copy()
        self._rewards, self._descriptors = state["rewards"].copy(), state["descriptors"].copy()
