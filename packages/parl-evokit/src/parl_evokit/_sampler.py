"""One model and the distribution of its samples; clones share it, and a step of an algorithm replaces it.

A model may have bounds, a box that samples must not leave. Noise is then added to searched coordinates y, each of which
stands for a parameter x (the form is that of `BoxConstraintsLinQuadTransformation` of pycma: Hansen, Akimoto, Baudis,
"CMA-ES/pycma on Github"):

    x = y                                      from lower + margin to upper - margin
    x = lower + (y - low)**2 / (4 margin)      from low = lower - margin to lower + margin
    x = upper - (high - y)**2 / (4 margin)     from upper - margin to high = upper + margin
    beyond low or high, y is mirrored there first, repeatedly if necessary

A parabola joins the line with slope 1 and its mirror image with slope 0, so where a function falls towards a side of
the box, it has a smooth optimum in y. Samples that are close stay close, and the parameters of a sample remain a
function of its key. The margin is a twentieth of the width of the box, or half the first standard deviation if that is
less, which suits a search at any scale; pycma takes (1 + |side|) / 20, or half the width if that is less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import FlatVector
from parl_evokit._records import SamplingInfo
from parl_evokit.errors import ConfigError, EvolutionError
from parl_evokit.noise._gaussian import GaussianNoise, PairPerturbation, PreparedPerturbation
from parl_evokit.noise._keys import ARM_BIT, CONTROL_KEY, Arm, identity_in
from parl_evokit.noise._spec import UNITS_PER_ONE, splitmix64

__all__ = [
    "FARTHEST",
    "LARGEST_REACH",
    "LARGEST_SPREAD",
    "Advance",
    "BestSample",
    "Bounds",
    "Directions",
    "RankOneTransform",
    "Sampler",
    "Transform",
]

PARENT_INDEX = 2**32
CONTROL_INDEX = 2**32 + 1
FARTHEST = 10.0  # standard deviations: no sample is farther from its model
LARGEST_SPREAD = 1e30  # standard deviation beyond which samples of finite parameters may not be finite
LARGEST_REACH = float(np.finfo(np.float32).max)
MARGIN_OF_WIDTH = 20  # the margin is the width of the box divided by this
MARGIN_OF_STD = 2  # or the first standard deviation by this, if that is less


@dataclass(frozen=True, eq=False)
class Bounds:
    """Lower and upper bounds of parameters, float64 `[n]` each; they may be infinite.

    Attributes:
        lower: The lower bounds.
        upper: The upper bounds.
        margin: The distance from a side at which a searched coordinate begins to differ from the parameter; 0 for
            none, so that samples are mirrored at the sides themselves.

    Raises:
        ConfigError: A lower bound is not below its upper bound, or a bound is NaN.
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    margin: NDArray[np.float64]

    def __post_init__(self) -> None:
        wrong = np.flatnonzero(~(self.lower < self.upper))
        if wrong.size:
            k = int(wrong[0])
            raise ConfigError(f"lower must be below upper; for parameter {k} they are {self.lower[k]}, {self.upper[k]}")

    @classmethod
    def of(
        cls, lower: Sequence[float], upper: Sequence[float], n: int, std: float, integers: Sequence[int] = ()
    ) -> "Bounds | None":
        """Return the box for `n` parameters.

        Args:
            lower: One number for all parameters, one for each, or an empty sequence for no lower bounds.
            upper: The upper bounds in the same form.
            n: Number of parameters.
            std: The first standard deviation of the search, by which margins are chosen.
            integers: Indices of parameters that are whole numbers; they have no margin.

        Returns:
            The bounds, rounded to float32 so that they lie within the given ones; None if there are none.

        Raises:
            ConfigError: The number of bounds is not 0, 1 or `n`, or as in the constructor.
        """
        if not lower and not upper:
            return None
        box = cls(_spread("lower", lower, n, -np.inf), _spread("upper", upper, n, np.inf), np.zeros(n))
        low, high = _inwards(box.lower, np.inf), _inwards(box.upper, -np.inf)
        if not np.isfinite([low, high]).any():
            return None
        narrow = np.flatnonzero(~(low < high))
        if narrow.size:
            k = int(narrow[0])
            raise ConfigError(
                f"the bounds of parameter {k}: from {box.lower[k]} to {box.upper[k]} there are not two different "
                "numbers of float32, to which bounds are rounded: choose bounds that are farther apart"
            )
        margin = np.minimum((high - low) / MARGIN_OF_WIDTH, std / MARGIN_OF_STD)
        margin[list(integers)] = 0.0  # a step function has no slope
        return cls(low, high, margin)

    @property
    def finite(self) -> bool:
        """True if all bounds are finite."""
        return bool(np.isfinite(self.lower).all() and np.isfinite(self.upper).all())

    def searched(self, x: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the searched coordinates of points `[n]` or `[k, n]`, or of those at the sides if they are outside."""
        y = x.astype(np.float64)
        near = self._near_sides(y)
        if near[0].size:
            k = near[-1]
            lower, upper, margin = self.lower[k], self.upper[k], self.margin[k]
            point = np.clip(y[near], lower, upper)
            with np.errstate(invalid="ignore"):  # without a bound
                below = lower - margin + 2 * np.sqrt(margin * (point - lower))
                above = upper + margin - 2 * np.sqrt(margin * (upper - point))
            y[near] = np.where(point < lower + margin, below, np.where(point > upper - margin, above, point))
        return y

    def moved(
        self, x: NDArray[np.floating], steps: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the points of the box to which steps in searched coordinates lead.

        Args:
            x: The point of the box that they start from, `[n]`.
            steps: One step `[n]` or several `[k, n]`.

        Returns:
            The points, of which numbers without a step are those of `x`; and which coordinates were mirrored an odd
            number of times, so that their sign is flipped.
        """
        y = self.searched(x) + steps
        turned = np.zeros(y.shape, np.bool_)
        near = self._near_sides(y)
        if near[0].size:
            k = near[-1]
            lower, upper, margin = self.lower[k], self.upper[k], self.margin[k]
            bent, turned[near] = _folded(y[near], lower - margin, upper + margin)
            with np.errstate(invalid="ignore", divide="ignore"):  # without a bound or a margin
                below = lower + np.square(bent - (lower - margin)) / (4 * margin)
                above = upper - np.square(upper + margin - bent) / (4 * margin)
            points = np.where(bent < lower + margin, below, np.where(bent > upper - margin, above, bent))
            y[near] = np.where(steps[near] == 0.0, x[k], np.clip(points, lower, upper))
        return y, turned

    def _near_sides(self, x: NDArray[np.float64]) -> tuple[NDArray[np.intp], ...]:
        """Return the indices of numbers within a margin or beyond a side; they are few, most often."""
        return np.nonzero(~((x >= self.lower + self.margin) & (x <= self.upper - self.margin)))


def _folded(
    y: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return `y` `[m]` mirrored at the bounds, and a mask of the numbers with a flipped sign."""
    both = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        width = np.where(both, high - low, 1.0)
        way = np.mod(y - np.where(both, low, 0.0), 2 * width)
        twice = np.where(both, low, 0.0) + np.where(way > width, 2 * width - way, way)
        once = np.where(y < low, 2 * low - y, np.where(y > high, 2 * high - y, y))
    inside = (y >= low) & (y <= high)
    turned: NDArray[np.bool_] = ~inside & (~both | (way > width))
    return np.where(inside, y, np.where(both, twice, once)), turned


def _inwards(side: NDArray[np.float64], inside: float) -> NDArray[np.float64]:
    """Return the float32 numbers nearest to a side that do not lie beyond it."""
    with np.errstate(over="ignore"):
        nearest = side.astype(np.float32)
    beyond = nearest < side if inside > 0 else nearest > side
    return np.where(beyond, np.nextafter(nearest, np.float32(inside)), nearest).astype(np.float64)


def _spread(name: str, given: Sequence[float], n: int, none: float) -> NDArray[np.float64]:
    if len(given) not in {0, 1, n}:
        raise ConfigError(
            f"{name} must have one number for all parameters or one for each of the {n}, not {len(given)}"
        )
    if not given:
        return np.full(n, none)
    return np.broadcast_to(np.asarray(given, np.float64), (n,)).copy()


@dataclass(frozen=True, eq=False)
class Directions:
    """A matrix for the noise of LM_MA_ES: the product of one factor (1 - rate) I + rate * v v^T per direction.

    Attributes:
        rates: The rate of each direction, `[k]`.
        vectors: The vector v of each direction, float64 `[k, n]`.
    """

    rates: NDArray[np.float64]
    vectors: NDArray[np.float64]

    @property
    def widest(self) -> float:
        """Upper bound of the factor by which a direction is stretched."""
        squares = np.einsum("kn,kn->k", self.vectors, self.vectors)
        return float(np.prod(1.0 - self.rates + self.rates * np.maximum(1.0, squares)))

    def shaped(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return normal numbers `[m, n]` in the shape of the search."""
        for rate, vector in zip(self.rates.tolist(), self.vectors, strict=True):
            z = (1.0 - rate) * z + np.outer(z @ vector, rate * vector)
        return z


@dataclass(frozen=True, eq=False)
class RankOneTransform:
    """A matrix for the noise of CR_FM_NES: diag(deviations) (I + factor * direction direction^T).

    Attributes:
        deviations: One per parameter, float64 `[n]`.
        direction: Of length 1, float64 `[n]`.
        factor: Relative increase of the noise along it.
    """

    deviations: NDArray[np.float64]
    direction: NDArray[np.float64]
    factor: float

    def along(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return normal numbers `[m, n]`, stretched along the direction."""
        return z + np.outer(z @ self.direction, self.factor * self.direction)

    def shaped(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return normal numbers `[m, n]` in the shape of the search."""
        return self.along(z) * self.deviations


Transform = NDArray[np.float64] | Directions | RankOneTransform


@dataclass(frozen=True, eq=False)
class Sampler:
    """One model and how to perturb it; immutable.

    Attributes:
        noise: The source of the noise.
        std: Standard deviation of the noise, one for all parameters or `[n]`.
        parameters: Parameters of the model, `[n]`, read-only.
        model_iter_id: Number of updates of the model.
        fingerprint: Checksum of noise and model.
        transform: For full CMA, float64 `[n, n]`: the noise is `std` times this matrix times normal numbers. For
            LM_MA_ES a product of few directions, for CR_FM_NES deviations and one direction.
        parents: For the genetic algorithm, float32 `[k, n]`: the key of a sample selects one of them instead of
            `parameters`.
        bounds: The box of all samples, or None.
        integers: Indices of parameters that are whole numbers; they are rounded in samples, not in the model.
        control_share: Share of the keys that clones turn into control traffic, 0 to below 1.
        holdout_share: Share of the keys for which clones serve the trusted model, 0 to below 1.
        trusted: Number and parameters of the trusted model; None while it is this one.
        origin: Number and fingerprint, which all records of its samples share.
    """

    noise: GaussianNoise
    std: float | FlatVector
    parameters: FlatVector
    model_iter_id: int
    fingerprint: int
    transform: Transform | None = None
    parents: NDArray[np.float32] | None = None
    bounds: Bounds | None = None
    integers: NDArray[np.intp] | None = None
    control_share: float = 0.0
    holdout_share: float = 0.0
    trusted: tuple[int, FlatVector] | None = None
    origin: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", (self.model_iter_id, self.fingerprint))

    def after(self, parameters: FlatVector, step: "Advance", trusted: tuple[int, FlatVector] | None) -> "Sampler":
        """Return the model that follows this one.

        Args:
            parameters: Its parameters.
            step: The step that leads to it, with the other changes.
            trusted: Number and parameters of the trusted model, as above.
        """
        number = self.model_iter_id + 1
        sampler = object.__new__(Sampler)  # `replace` takes several times as long
        vars(sampler).update(
            vars(self),
            parameters=parameters,
            std=step.std,
            transform=step.transform,
            parents=step.parents,
            model_iter_id=number,
            trusted=trusted,
            origin=(number, self.fingerprint),
        )
        return sampler

    @property
    def quiet_share(self) -> float:
        """Share of the keys without noise."""
        return self.control_share + self.holdout_share

    def identity_of(self, drawn: int) -> int:
        """Return the identity of the sample that a clone serves which drew this key; 0 if that has noise.

        Both halves of a pair are served alike.
        """
        place = splitmix64(drawn >> 1, CONTROL_INDEX)
        if drawn == CONTROL_KEY or place >= self.quiet_share * 2**64:
            return 0
        held_out = self.trusted is not None and place >= self.control_share * 2**64
        return identity_in(Arm.TRUSTED if held_out else Arm.PRESENT, drawn)

    def serve(self, drawn: int, info: SamplingInfo, out: FlatVector) -> None:
        """Write the data of a clone that drew this key: the record into `info`, the parameters into `out` `[n]`."""
        identity = self.identity_of(drawn) if self.quiet_share else 0
        info.fill(CONTROL_KEY if identity else drawn, self.model_iter_id, self.fingerprint)
        info.identity = identity
        self.apply(info, out)

    def apply(self, info: SamplingInfo, out: FlatVector) -> None:
        """Write the parameters of a sample of this model into `out` `[n]`."""
        if self.trusted is not None and info.identity >> ARM_BIT == Arm.TRUSTED:
            np.copyto(out, self.trusted[1])
            self.confine(out)
        else:
            self.perturb(info.noise_key, out)

    def parent_of(self, key: int) -> int:
        """Return the index of the parent of a sample: splitmix64(key >> 1, 2**32) modulo the number of parents.

        The index of a block of noise stays below 2**32, so parents and windows of a table are drawn independently.
        """
        assert self.parents is not None
        return splitmix64(key >> 1, PARENT_INDEX) % len(self.parents)

    def prepared(self, keys: NDArray[np.uint64]) -> PreparedPerturbation | None:
        """Return `GaussianNoise.prepared`, if a sample only consists of the parameters plus windows of the table."""
        std = self._std_of_table
        return None if std is None else self.noise.prepared(self.parameters, keys, std)

    def halves(self, keys: NDArray[np.uint64]) -> PairPerturbation | None:
        """Return `GaussianNoise.halves`, under the same condition."""
        std = self._std_of_table
        return None if std is None else self.noise.halves(self.parameters, keys, std)

    @property
    def _std_of_table(self) -> float | None:
        std = self.std
        plain = self.transform is None and self.parents is None and self.bounds is None and self.integers is None
        return std if plain and self.noise.spec.cached and not isinstance(std, np.ndarray) else None

    def perturb(self, key: int, out: FlatVector, *, keep: bool = False) -> None:
        """Write the parameters with this key's noise into `out` `[n]`; `keep` as in `GaussianNoise.perturb`."""
        if self.parents is not None and key != CONTROL_KEY:
            self.noise.perturb(self.parents[self.parent_of(key)], key, self.std, out=out)
        elif self.transform is None and self.bounds is None:
            self.noise.perturb(self.parameters, key, self.std, out=out, keep=keep)
        else:
            units = self.noise.units(key, 0, len(out)).astype(np.float64)
            if isinstance(self.transform, Directions | RankOneTransform):
                units = self.transform.shaped(units[np.newaxis])[0]
            elif self.transform is not None:
                units = self.transform @ units
            self._move(units * (self.std / UNITS_PER_ONE), out)
        self.confine(out)

    def _move(self, steps: NDArray[np.float64], out: NDArray[np.float32]) -> None:
        """Write the points that are these steps `[n]` or `[k, n]` away from the model into `out`."""
        if self.bounds is None:
            np.add(self.parameters, steps, out=out, casting="same_kind")
        else:
            out[...], _ = self.bounds.moved(self.parameters, steps)

    def steps_to(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the steps that noise would have to make from the model to points `[k, n]`."""
        if self.bounds is None:
            return points - self.parameters
        return self.bounds.searched(points) - self.bounds.searched(self.parameters)

    def confine(self, out: NDArray[np.float32]) -> None:
        """Limit samples `[n]` or `[k, n]` to the box, and round whole numbers to values in it, in place."""
        bounds, places = self.bounds, self.integers
        if bounds is not None:
            np.clip(out, bounds.lower, bounds.upper, out=out, casting="same_kind")
        if places is not None:
            whole = np.rint(out[..., places])
            if bounds is not None:
                whole = np.clip(whole, np.ceil(bounds.lower[places]), np.floor(bounds.upper[places]))
            out[..., places] = whole

    def perturb_many(self, keys: NDArray[np.uint64], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return the parameters with each key's noise, `[k, n]`."""
        if self.parents is not None:
            out = np.empty((len(keys), len(self.parameters)), np.float32) if out is None else out
            for key, row in zip(keys.tolist(), out, strict=True):
                self.perturb(key, row)
            return out
        if self.transform is None and self.bounds is None:
            out = self.noise.perturb_many(self.parameters, keys, self.std, out)
        else:
            out = np.empty((len(keys), len(self.parameters)), np.float32) if out is None else out
            steps = self.shaped(self.normals(keys))
            steps *= self.std
            self._move(steps, out)
        self.confine(out)
        return out

    def shaped(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return normal numbers `[k, n]` times the matrix of the model, if it has one."""
        if self.transform is None:
            return z
        if isinstance(self.transform, Directions | RankOneTransform):
            return self.transform.shaped(z)
        shaped: NDArray[np.float64] = z @ self.transform.T
        return shaped

    def normals(self, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return the exact normal numbers of each key, `[k, n]`."""
        return self.noise.units_of(keys, len(self.parameters)) / UNITS_PER_ONE

    def require_own(self, info: SamplingInfo) -> None:
        """Raise an error for a sample of another model.

        Raises:
            EvolutionError: The sample has another fingerprint or model number.
        """
        if info.fingerprint != self.fingerprint and info.fingerprint != 0:
            raise EvolutionError(
                f"{info} is of another model, seed or table (fingerprint {self.fingerprint:#010x} here)"
            )
        if info.model_iter_id != self.model_iter_id:
            raise EvolutionError(
                f"{info} is of model {info.model_iter_id}, not of the present model {self.model_iter_id}"
            )


@dataclass(frozen=True, eq=False)
class Advance:
    """The changes that one step of an algorithm makes to the sampler.

    Attributes:
        parameters: The next parameters, a new array `[n]`.
        std: The next standard deviation.
        gradient_norm: Euclidean norm of the estimated gradient, or of its equivalent in the algorithm.
        transform: The next matrix, or None.
        parents: The next parents, if there are any.
    """

    parameters: FlatVector
    std: float | FlatVector
    gradient_norm: float
    transform: Transform | None = None
    parents: NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False)
class BestSample:
    """The best sample so far.

    Attributes:
        reward: Reward of the sample.
        info: Record of the sample; an empty one if it was injected.
        sampler: The model that the sample perturbed; the present model if the parameters are known.
        known: Parameters of the sample if it was injected or loaded, else None.
    """

    reward: float
    info: SamplingInfo
    sampler: Sampler
    known: FlatVector | None = None

    @property
    def parameters(self) -> FlatVector:
        """Parameters of the sample `[n]`, a new array."""
        if self.known is not None:
            return self.known.copy()
        out = np.empty_like(self.sampler.parameters)
        self.sampler.perturb(self.info.noise_key, out)
        return out
