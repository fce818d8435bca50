"""SGD, momentum and Adam on one flat vector, with the same bits on every machine.

Each step uses only elementwise float32 operations that IEEE 754 rounds in one way (+, -, *, /, square root), without
sums over elements or functions of a mathematics library. Scalars are computed in float64 and rounded to float32 once;
powers of the decay rates are products, because `pow` differs between libraries.

Gradients are those of a loss, so that a step goes against them.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_evokit._params import FlatVector
from parl_evokit.config import OptimizerConfig, OptimizerKind, ScheduleConfig
from parl_evokit.errors import EvolutionError, LayoutMismatch

__all__ = ["SGD", "Adam", "Momentum", "Optimizer", "StepDiverged", "make_optimizer"]

CHUNK = 2**15  # elements processed at a time, so that intermediate results stay in the cache


SAFE_NORM = 1e15  # range of a gradient whose squares, decayed or not, fit float32
SAFE_CHANGE = 1e37  # range of a parameter whose square fits float32


class StepDiverged(EvolutionError):
    """The next parameters, or samples around them, would not be finite numbers."""


class Optimizer(ABC):
    """The base of update rules, with the state for a vector of `size` parameters.

    Args:
        size: Length of the vector.
        base_lr: Learning rate, above 0.

    Attributes:
        schedule: The factor of the learning rate, which depends on the number of steps.

    Raises:
        EvolutionError: A setting is out of its range.
    """

    moments: tuple[str, ...] = ()
    schedule = ScheduleConfig()

    def __init__(self, size: int, base_lr: float) -> None:
        if not base_lr > 0.0:
            raise EvolutionError(f"base_lr must be above 0, not {base_lr}")
        self.base_lr = base_lr
        self.steps = 0
        self._state: dict[str, FlatVector] = {name: np.zeros(size, np.float32) for name in self.moments}
        self._size = size
        self._longest = 0.0  # the largest gradient so far, which bounds all moments

    def step(self, parameters: FlatVector, gradient: FlatVector, out: FlatVector | None = None) -> FlatVector:
        """Take one step.

        Args:
            parameters: `[size]`.
            gradient: Gradient of the loss, `[size]`; unchanged, unless it is `out`.
            out: The array for the new parameters, `[size]`; may be `parameters` or `gradient`. Default: a new array.

        Returns:
            `out`.
        """
        out = np.empty_like(parameters) if out is None else out
        self.steps += 1
        rate = self._rate()
        if self._size <= CHUNK:
            np.subtract(parameters, self._change(rate, gradient, self._state), out=out)
            return out
        for start in range(0, self._size, CHUNK):
            part = slice(start, start + CHUNK)
            moments = {name: moment[part] for name, moment in self._state.items()}
            change = self._change(rate, gradient[part], moments)
            np.subtract(parameters[part], change, out=out[part])
        return out

    def finite_step(
        self, parameters: FlatVector, gradient: FlatVector, norm: float, out: FlatVector | None = None
    ) -> FlatVector:
        """Return the result of `step`, if all of it is finite.

        Args:
            parameters: The present parameters, `[size]`.
            gradient: Gradient of the loss, `[size]`.
            norm: Euclidean norm of the gradient.
            out: As for `step`.

        Raises:
            StepDiverged: A parameter or a moment would not be finite; steps and moments are unchanged.
        """
        longest = max(self._longest, norm)
        # If nothing can overflow, no copy before and no check afterwards is needed.
        safe = longest < SAFE_NORM and self._largest_change(max(1.0, longest)) < SAFE_CHANGE
        least, most = parameters.item(parameters.argmin()), parameters.item(parameters.argmax())  # NaN is either
        if safe and -SAFE_CHANGE < least <= most < SAFE_CHANGE:
            self._longest = longest
            return self.step(parameters, gradient, out)
        before = self.state()
        with np.errstate(over="ignore", invalid="ignore"):
            after = self.step(parameters, gradient, out)
        if not all(np.isfinite(part).all() for part in (after, *self._state.values())):
            self.load_state(before)
            raise StepDiverged(
                f"a gradient of length {norm:.3g} leads to parameters or moments that are not finite: the learning "
                "rate is too large"
            )
        self._longest = longest
        return after

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the number of steps and the moments, as copies, for a file."""
        steps: dict[str, NDArray[Any]] = {"steps": np.array(self.steps, np.int64)}
        return steps | {name: moment.copy() for name, moment in self._state.items()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` of an optimizer of the same kind and size returned.

        Raises:
            LayoutMismatch: An array is missing, unknown or of another shape or type; nothing is restored.
        """
        if set(state) != {"steps", *self.moments}:
            raise LayoutMismatch(f"{type(self).__name__}'s state is steps, {self.moments}; found {sorted(state)}")
        for name in self.moments:
            if state[name].shape != (self._size,) or state[name].dtype != np.float32:
                raise LayoutMismatch(
                    f"{name} must be float32 of shape ({self._size},), not {state[name].dtype} {state[name].shape}"
                )
        self.steps = int(state["steps"])
        for name in self.moments:
            self._state[name] = state[name].copy()
        self._longest = max((float(np.abs(moment).max()) for moment in self._state.values()), default=0.0)

    def _rate(self) -> np.float32:
        """Return the learning rate of the step that `steps` counts."""
        return np.float32(self._base_rate())

    def _base_rate(self) -> float:
        return self.base_lr * self.schedule.factor(self.steps - 1)

    def _largest_change(self, longest: float) -> float:
        """Return the largest change of a parameter by a step, if no gradient has been longer than this."""
        return self.base_lr * max(1.0, self.schedule.final) * longest

    @abstractmethod
    def _change(self, rate: np.float32, gradient: FlatVector, moments: Mapping[str, FlatVector]) -> FlatVector:
        """Return the vector to subtract from the parameters, a new array; updates the moments in place."""


class SGD(Optimizer):
    """Gradient descent: theta <- theta - base_lr * g."""

    def _change(self, rate: np.float32, gradient: FlatVector, moments: Mapping[str, FlatVector]) -> FlatVector:  # noqa: ARG002  it has none
        return rate * gradient


class Momentum(Optimizer):
    """Gradient descent with momentum: m <- b * m + (1 - b) * g; theta <- theta - base_lr * m.

    Args:
        size: Length of the vector.
        base_lr: Learning rate, above 0.
        momentum: b, 0 to below 1.
    """

    moments = ("m",)

    def __init__(self, size: int, base_lr: float, momentum: float = 0.9) -> None:
        super().__init__(size, base_lr)
        self.momentum = _decay("momentum", momentum)

    def _change(self, rate: np.float32, gradient: FlatVector, moments: Mapping[str, FlatVector]) -> FlatVector:
        m, scratch = moments["m"], np.empty_like(gradient)
        _decay_towards(m, _shares(self.momentum), gradient, scratch)
        return np.multiply(m, rate, scratch)


class Adam(Optimizer):
    """Adam: Kingma and Ba 2015, algorithm 1, with the bias correction in the learning rate (section 2).

    m <- b1 * m + (1 - b1) * g; v <- b2 * v + (1 - b2) * g * g;
    theta <- theta - base_lr * sqrt(1 - b2**t) / (1 - b1**t) * (m / (sqrt(v) + epsilon)), t counting steps.

    Args:
        size: Length of the vector.
        base_lr: Learning rate, above 0.
        beta1: b1, 0 to below 1.
        beta2: b2, 0 to below 1.
        epsilon: Number that is added to the denominator, above 0.
    """

    moments = ("m", "v")

    def __init__(
        self, size: int, base_lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        super().__init__(size, base_lr)
        if not epsilon > 0.0:
            raise EvolutionError(f"epsilon must be above 0, not {epsilon}")
        self.beta1 = _decay("beta1", beta1)
        self.beta2 = _decay("beta2", beta2)
        self.epsilon = epsilon

    def _largest_change(self, longest: float) -> float:
        return super()._largest_change(longest) / ((1.0 - self.beta1) * min(1.0, self.epsilon))

    def _rate(self) -> np.float32:
        correction = sqrt(1.0 - _power(self.beta2, self.steps)) / (1.0 - _power(self.beta1, self.steps))
        return np.float32(self._base_rate() * correction)

    def _change(self, rate: np.float32, gradient: FlatVector, moments: Mapping[str, FlatVector]) -> FlatVector:
        m, v, scratch = moments["m"], moments["v"], np.empty_like(gradient)  # one array for all intermediate results
        _decay_towards(m, _shares(self.beta1), gradient, scratch)
        _decay_towards(v, _shares(self.beta2), np.multiply(gradient, gradient, scratch), scratch)
        np.sqrt(v, scratch)
        np.add(scratch, np.float32(self.epsilon), scratch)
        np.divide(m, scratch, scratch)
        return np.multiply(scratch, rate, scratch)


# Numbers are arrays without dimensions, which numpy takes faster than scalars; results are given by position, too.
_Shares = tuple[NDArray[np.float32], NDArray[np.float32]]


@functools.lru_cache(maxsize=64)
def _shares(decay: float) -> _Shares:
    """Return the shares of a moment and of a new target, `decay` and `1 - decay`."""
    return np.array(decay, np.float32), np.array(1.0 - decay, np.float32)


def _decay_towards(moment: FlatVector, shares: _Shares, target: FlatVector, scratch: FlatVector) -> None:
    """Move `moment` to `target`, which may be `scratch`, by its share of the way; `scratch` is overwritten."""
    of_moment, of_target = shares
    np.multiply(target, of_target, scratch)
    np.multiply(moment, of_moment, moment)
    np.add(moment, scratch, moment)


def _decay(name: str, value: float) -> float:
    if not 0.0 <= value < 1.0:
        raise EvolutionError(f"{name} must be at least 0 and below 1, not {value}")
    return value


@functools.lru_cache(maxsize=256)
def _power(base: float, exponent: int) -> float:
    """Return base ** exponent by squaring: products only, in one order."""
    if exponent == 0:
        return 1.0
    root = _power(base, exponent // 2)  # shared by consecutive steps
    return root * root * base if exponent % 2 else root * root


def make_optimizer(settings: OptimizerConfig, size: int) -> Optimizer:
    """Return the optimizer that the settings name, for a vector of `size` parameters."""
    optimizer = _unscheduled(settings, size)
    optimizer.schedule = settings.schedule
    return optimizer


def _unscheduled(settings: OptimizerConfig, size: int) -> Optimizer:
    match settings.type:
        case OptimizerKind.SGD:
            return SGD(size, settings.base_lr)
        case OptimizerKind.MOMENTUM:
            return Momentum(size, settings.base_lr, settings.momentum.momentum)
        case OptimizerKind.ADAM:
            adam = settings.adam
            return Adam(size, settings.base_lr, adam.beta1, adam.beta2, adam.epsilon)
