"""Distributions over actions, batched: each row of the parameters is one distribution.

All have `sample`, `entropy`, `logp` and `kl`; they draw from paddle's generator (`paddle.seed`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import paddle
import paddle.nn.functional as F

from parl_core.errors import HyperparameterError

__all__ = ["Categorical", "DiagGaussian", "SoftCategorical", "SoftMultiCategorical"]

_LOG_SQRT_2_PI = 0.5 * math.log(2.0 * math.pi)
_SMALLEST = 1e-20  # keeps log(-log(u)) finite


class Categorical:
    """One of `act_dim` actions.

    Args:
        logits: unnormalised log-probabilities `[batch, act_dim]`.
    """

    def __init__(self, logits: Any) -> None:
        self.logits = logits

    @cached_property
    def log_probs(self) -> Any:
        """Log-probabilities `[batch, act_dim]`."""
        return F.log_softmax(self.logits, axis=-1)

    def sample(self) -> Any:
        """Actions, int64 `[batch]`."""
        # Gumbel-max: the argument of the maximum is distributed as the softmax (Maddison et al. 2014).
        return paddle.argmax(self.logits + _gumbel_noise_like(self.logits), axis=-1)

    def mode(self) -> Any:
        """The most probable actions, int64 `[batch]`."""
        return paddle.argmax(self.logits, axis=-1)

    def entropy(self) -> Any:
        """In nats, `[batch]`."""
        return -(paddle.exp(self.log_probs) * self.log_probs).sum(axis=-1)

    def logp(self, action: Any) -> Any:
        """Log-probability of the actions `[batch]` or `[batch, 1]`; `[batch]`."""
        return paddle.index_sample(self.log_probs, action.reshape([-1, 1])).squeeze(-1)

    def kl(self, other: Categorical) -> Any:
        """KL(self || other) in nats, `[batch]`."""
        return (paddle.exp(self.log_probs) * (self.log_probs - other.log_probs)).sum(axis=-1)


class SoftCategorical(Categorical):
    """Like `Categorical`, with samples that gradients pass through: vectors on the simplex (Jang et al. 2017)."""

    def sample(self) -> Any:
        """Relaxed one-hot actions `[batch, act_dim]` at temperature 1."""
        return F.softmax(self.logits + _gumbel_noise_like(self.logits), axis=-1)

    def logp(self, action: Any) -> Any:
        """Log-probability of one-hot actions `[batch, act_dim]`; of relaxed ones the mixture of the logarithms."""
        return (action * self.log_probs).sum(axis=-1)


class SoftMultiCategorical:
    """Several independent `SoftCategorical` actions, concatenated: a `MultiDiscrete` space.

    Args:
        logits: `[batch, sum(high - low + 1)]`.
        low: smallest value of each action.
        high: largest value of each action.
    """

    def __init__(self, logits: Any, low: Sequence[int], high: Sequence[int]) -> None:
        sizes = [int(top) - int(bottom) + 1 for bottom, top in zip(low, high, strict=True)]
        if min(sizes) < 1 or sum(sizes) != logits.shape[-1]:
            raise HyperparameterError(
                f"low {list(low)} and high {list(high)} need {sum(sizes)} logits in parts of at least 1, "
                f"got {logits.shape[-1]}"
            )
        self._sizes = sizes
        self._parts = [SoftCategorical(part) for part in paddle.split(logits, sizes, axis=-1)]

    def sample(self) -> Any:
        """Relaxed one-hot actions side by side, as wide as the logits."""
        return paddle.concat([part.sample() for part in self._parts], axis=-1)

    def entropy(self) -> Any:
        """Sum over the actions in nats, `[batch]`."""
        return paddle.add_n([part.entropy() for part in self._parts])

    def logp(self, action: Any) -> Any:
        """Log-probability of one-hot actions, as wide as the logits; `[batch]`."""
        columns = paddle.split(action, self._sizes, axis=-1)
        return paddle.add_n([part.logp(column) for part, column in zip(self._parts, columns, strict=True)])

    def kl(self, other: SoftMultiCategorical) -> Any:
        """KL(self || other), summed over the actions, `[batch]`."""
        return paddle.add_n([mine.kl(theirs) for mine, theirs in zip(self._parts, other._parts, strict=True)])


class DiagGaussian:
    """Independent normal distributions, one a dimension of the action.

    Args:
        mean: `[batch, act_dim]`.
        log_std: logarithm of the standard deviation, broadcastable to `mean`.
    """

    def __init__(self, mean: Any, log_std: Any) -> None:
        self.mean = mean
        self.log_std = log_std + paddle.zeros_like(mean)

    @cached_property
    def std(self) -> Any:
        """Standard deviation `[batch, act_dim]`."""
        return paddle.exp(self.log_std)

    def sample(self) -> Any:
        """Actions `[batch, act_dim]`; gradients pass through."""
        return self.mean + self.std * paddle.randn(paddle.shape(self.mean), dtype=self.mean.dtype)

    def mode(self) -> Any:
        """The means `[batch, act_dim]`."""
        return self.mean

    def entropy(self) -> Any:
        """Sum over the dimensions in nats, `[batch]`."""
        return (self.log_std + (0.5 + _LOG_SQRT_2_PI)).sum(axis=-1)

    def logp(self, action: Any) -> Any:
        """Log-density of the actions `[batch, act_dim]`; `[batch]`."""
        z = (action - self.mean) / self.std
        return -(0.5 * paddle.square(z) + self.log_std + _LOG_SQRT_2_PI).sum(axis=-1)

    def kl(self, other: DiagGaussian) -> Any:
        """KL(self || other) in nats, summed over the dimensions, `[batch]`."""
        ratio = paddle.square(self.std / other.std)
        distance = paddle.square((self.mean - other.mean) / other.std)
        return 0.5 * (ratio + distance - 1.0 - 2.0 * (self.log_std - other.log_std)).sum(axis=-1)


def _gumbel_noise_like(logits: Any) -> Any:
    uniform = paddle.uniform(paddle.shape(logits), dtype=logits.dtype, min=_SMALLEST, max=1.0)
    return -paddle.log(-paddle.log(uniform) + _SMALLEST)
