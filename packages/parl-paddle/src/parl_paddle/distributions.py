"""Batched distributions of actions: each row of the parameters is one distribution.

All have `sample`, `mode`, `entropy`, `logp` and `kl`; they draw from paddle's generator (`paddle.seed`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor

from parl_core.checks import same_shape
from parl_core.contracts.actions import ActionKind
from parl_core.errors import DivergedError
from parl_paddle._static_graphs import in_program

__all__ = [
    "CategoricalDistribution",
    "ChoicesAndNumbersDistribution",
    "DiagGaussianDistribution",
    "MultiCategoricalDistribution",
    "PolicyDistribution",
    "SoftCategoricalDistribution",
    "SoftMultiCategoricalDistribution",
    "log_softmax",
    "policy_distribution",
    "standard_normal_like",
]

_LOG_SQRT_2_PI = 0.5 * math.log(2.0 * math.pi)
IMPOSSIBLE = -1e9
"""Logit of what a mask excludes: Paddle's exp() of less is not quite 0, times the smallest number there more than 1."""
SMALLEST = 1e-20
"""Keeps log(-log(u)) finite."""


class PolicyDistribution(Protocol):
    """A distribution of actions; entropies and log-probabilities are `[batch]`."""

    def sample(self) -> Tensor: ...
    def mode(self) -> Tensor: ...
    def entropy(self) -> Tensor: ...
    def logp(self, actions: Tensor) -> Tensor: ...


def policy_distribution(output: Any, kind: ActionKind, mask: Tensor | None = None) -> PolicyDistribution:
    """Return the distribution of actions of a kind, from the output of the model's `policy(obs)`.

    Args:
        output: As described in `ActionKind`; for numbers without choices, `used` of the distribution may follow.
        kind: The kind of the actions.
        mask: The mask of the distribution; None without one.
    """
    if kind.continuous and kind.nvec is not None:
        logits, mean, std = output
        choices = MultiCategoricalDistribution(logits, kind.nvec, mask)
        return ChoicesAndNumbersDistribution(choices, DiagGaussianDistribution.from_std(mean, std))
    if kind.continuous:
        return DiagGaussianDistribution.from_std(*output)
    if kind.nvec is not None:
        return MultiCategoricalDistribution(output, kind.nvec, mask)
    return CategoricalDistribution(output, mask)


class CategoricalDistribution:
    """A categorical distribution of one of `act_dim` actions.

    Args:
        logits: Unnormalised log-probabilities, `[batch, act_dim]`.
        mask: `[batch, act_dim]`, True (or not 0) where an action is possible; others get probability 0 and no gradient.
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        if mask is not None:
            same_shape(logits=logits, mask=mask)
            impossible = paddle.full_like(logits, max(IMPOSSIBLE, float(paddle.finfo(logits.dtype).min)))
            logits = paddle.where(mask.astype("bool"), logits, impossible)
        self.logits = logits

    @cached_property
    def log_probabilities(self) -> Tensor:
        """Log-probabilities of all actions, `[batch, act_dim]`."""
        return log_softmax(self.logits)

    def sample(self) -> Tensor:
        """Return actions, int64 `[batch]`.

        Raises:
            DivergedError: A logit is NaN or plus infinity, or all logits of a row are minus infinity; only on the CPU.
        """
        if not in_program() and self.logits.place.is_cpu_place():
            _check_finite(self.logits)
        # Gumbel-max: the argument of the maximum is distributed as the softmax (Maddison et al. 2014).
        return paddle.argmax(self.logits + _gumbel_noise_like(self.logits), axis=-1)

    def mode(self) -> Tensor:
        """Return the most probable actions, int64 `[batch]`."""
        return paddle.argmax(self.logits, axis=-1)

    def entropy(self) -> Tensor:
        """Return the entropy in nats, `[batch]`."""
        return -(paddle.exp(self.log_probabilities) * self.log_probabilities).sum(axis=-1)

    def logp(self, actions: Tensor) -> Tensor:
        """Return the log-probability `[batch]` of actions `[batch]` or `[batch, 1]`, whole numbers of any dtype."""
        return paddle.index_sample(self.log_probabilities, actions.astype("int64").reshape([-1, 1])).squeeze(-1)

    def kl(self, other: CategoricalDistribution) -> Tensor:
        """Return KL(self || other) in nats, `[batch]`."""
        return (paddle.exp(self.log_probabilities) * (self.log_probabilities - other.log_probabilities)).sum(axis=-1)


class MultiCategoricalDistribution:
    """Independent categorical distributions, one for each part of a multi-discrete action.

    Args:
        logits: Unnormalised log-probabilities of all parts side by side, `[batch, sum(sizes)]`.
        sizes: Number of choices of each part.
        mask: `[batch, sum(sizes)]`, as in `CategoricalDistribution`.
    """

    def __init__(self, logits: Tensor, sizes: Sequence[int], mask: Tensor | None = None) -> None:
        if logits.shape[-1] != sum(sizes):
            raise ValueError(f"actions of sizes {list(sizes)} need {sum(sizes)} logits, got {logits.shape[-1]}")
        masks = [None] * len(sizes) if mask is None else paddle.split(mask, list(sizes), axis=-1)
        parts = paddle.split(logits, list(sizes), axis=-1)
        self.parts = [CategoricalDistribution(part, allowed) for part, allowed in zip(parts, masks, strict=True)]

    def sample(self) -> Tensor:
        """Return actions, int64 `[batch, number of parts]`, each counted from 0."""
        return paddle.stack([part.sample() for part in self.parts], axis=-1)

    def mode(self) -> Tensor:
        """Return the most probable choices, int64 `[batch, number of parts]`."""
        return paddle.stack([part.mode() for part in self.parts], axis=-1)

    def entropy(self) -> Tensor:
        """Return the sum of the parts' entropies in nats, `[batch]`."""
        return paddle.add_n([part.entropy() for part in self.parts])

    def logp(self, actions: Tensor) -> Tensor:
        """Return the log-probability `[batch]` of actions, int64 `[batch, number of parts]`."""
        choices = zip(self.parts, paddle.unbind(actions, axis=-1), strict=True)
        return paddle.add_n([part.logp(choice) for part, choice in choices])

    def kl(self, other: MultiCategoricalDistribution) -> Tensor:
        """Return KL(self || other) in nats, summed over the parts, `[batch]`."""
        return paddle.add_n([mine.kl(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True)])


class ChoicesAndNumbersDistribution:
    """A distribution of independent choices and numbers, side by side in one row.

    Args:
        choices: The distribution of the choices.
        numbers: The distribution of the numbers.
    """

    def __init__(self, choices: MultiCategoricalDistribution, numbers: DiagGaussianDistribution) -> None:
        self.choices, self.numbers = choices, numbers

    def sample(self) -> Tensor:
        """Return actions, floats `[batch, parts + act_dim]`, choices first."""
        return self._joined(self.choices.sample(), self.numbers.sample())

    def mode(self) -> Tensor:
        """Return the most probable choices and the means, floats `[batch, parts + act_dim]`."""
        return self._joined(self.choices.mode(), self.numbers.mode())

    def entropy(self) -> Tensor:
        """Return the sum of both entropies in nats, `[batch]`."""
        return self.choices.entropy() + self.numbers.entropy()

    def logp(self, actions: Tensor) -> Tensor:
        """Return the log-density `[batch]` of actions `[batch, parts + act_dim]`."""
        count = len(self.choices.parts)
        return self.choices.logp(actions[..., :count].astype("int64")) + self.numbers.logp(actions[..., count:])

    def kl(self, other: ChoicesAndNumbersDistribution) -> Tensor:
        """Return KL(self || other) in nats, summed over both parts, `[batch]`."""
        return self.choices.kl(other.choices) + self.numbers.kl(other.numbers)

    @staticmethod
    def _joined(choices: Tensor, numbers: Tensor) -> Tensor:
        return paddle.concat([choices.astype(numbers.dtype), numbers], axis=-1)


class SoftCategoricalDistribution(CategoricalDistribution):
    """A categorical distribution with differentiable draws: softmax(logits + Gumbel noise), rows that add up to 1.

    Jang, Gu & Poole 2017, equation 2, with temperature 1. Actions are vectors `[batch, act_dim]`.
    """

    def sample(self) -> Tensor:
        """Return relaxed one-hot actions `[batch, act_dim]` at temperature 1; gradients flow into the logits."""
        return F.softmax(self.logits + _gumbel_noise_like(self.logits), axis=-1)

    def logp(self, actions: Tensor) -> Tensor:
        """Return the sum of the log-probabilities, weighted by the soft actions `[batch, act_dim]`; `[batch]`."""
        return (actions * self.log_probabilities).sum(axis=-1)


class SoftMultiCategoricalDistribution:
    """Several soft categorical distributions side by side, as MADDPG uses for multi-discrete actions.

    Args:
        logits: Unnormalised log-probabilities of all actions side by side, `[batch, sum(high - low + 1)]`.
        low: Smallest value of each action.
        high: Largest value of each action.

    Raises:
        ValueError: The number of logits is another.
    """

    def __init__(self, logits: Tensor, low: Sequence[int], high: Sequence[int]) -> None:
        sizes = [int(top) - int(bottom) + 1 for bottom, top in zip(low, high, strict=True)]
        if min(sizes) < 1 or sum(sizes) != logits.shape[-1]:
            raise ValueError(f"actions of sizes {sizes} need {sum(sizes)} logits, got {logits.shape[-1]}")
        self.sizes = sizes
        self.parts = [SoftCategoricalDistribution(part) for part in paddle.split(logits, sizes, axis=-1)]

    def sample(self) -> Tensor:
        """Return relaxed one-hot actions side by side, as wide as the logits; gradients flow into the logits."""
        return paddle.concat([part.sample() for part in self.parts], axis=-1)

    def mode(self) -> Tensor:
        """Return the most probable values, int64 `[batch, number of actions]`, counted from 0."""
        return paddle.stack([part.mode() for part in self.parts], axis=-1)

    def entropy(self) -> Tensor:
        """Return the sum of the actions' entropies in nats, `[batch]`."""
        return paddle.add_n([part.entropy() for part in self.parts])

    def logp(self, actions: Tensor) -> Tensor:
        """Return the sum over the actions of `SoftCategoricalDistribution.logp`, `[batch]`; actions as drawn."""
        columns = paddle.split(actions, self.sizes, axis=-1)
        return paddle.add_n([part.logp(column) for part, column in zip(self.parts, columns, strict=True)])

    def kl(self, other: SoftMultiCategoricalDistribution) -> Tensor:
        """Return KL(self || other) in nats, summed over the actions, `[batch]`."""
        return paddle.add_n([mine.kl(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True)])


class DiagGaussianDistribution:
    """Independent normal distributions, one for each dimension of the action.

    Args:
        logits: The pair (mean `[batch, act_dim]`, logarithm of the standard deviation, broadcastable to it).
        used: `[batch, act_dim]`, 1 where a dimension belongs to the action and 0 where it is padding. Padding is 0 and
            adds nothing to any result. Default: all dimensions belong to the action.
    """

    def __init__(self, logits: tuple[Tensor, Tensor], used: Tensor | None = None) -> None:
        mean, logstd = logits
        self.mean = mean if used is None else mean * used
        self._used = used
        self.logstd = logstd if list(logstd.shape) == list(mean.shape) else logstd + paddle.zeros_like(mean)
        self.std = self.logstd.exp()

    @classmethod
    def from_std(cls, mean: Tensor, std: Tensor, used: Tensor | None = None) -> DiagGaussianDistribution:
        """Return the distribution with standard deviations `std`, above 0."""
        return cls((mean, std.log()), used)

    def sample(self) -> Tensor:
        """Return actions `[batch, act_dim]`; no gradient flows through them."""
        noise = paddle.randn(paddle.shape(self.mean), dtype=self.mean.dtype)
        return (self.mean + self._counted(self.std * noise)).detach()

    def mode(self) -> Tensor:
        """Return the means `[batch, act_dim]`."""
        return self.mean

    def entropy(self) -> Tensor:
        """Return the sum of the dimensions' entropies in nats, `[batch]`."""
        return self._counted(self.logstd + (0.5 + _LOG_SQRT_2_PI)).sum(axis=-1)

    def logp(self, actions: Tensor) -> Tensor:
        """Return the log-density `[batch]` of actions `[batch, act_dim]`."""
        same_shape(action=actions, mean=self.mean)
        z = (actions - self.mean) / self.std
        return -self._counted(0.5 * paddle.square(z) + self.logstd + _LOG_SQRT_2_PI).sum(axis=-1)

    def kl(self, other: DiagGaussianDistribution) -> Tensor:
        """Return KL(self || other) in nats, summed over the dimensions, `[batch]`."""
        ratio = paddle.square(self.std / other.std)
        distance = paddle.square((self.mean - other.mean) / other.std)
        return 0.5 * self._counted(ratio + distance - 1.0 - 2.0 * (self.logstd - other.logstd)).sum(axis=-1)

    def _counted(self, numbers: Tensor) -> Tensor:
        return numbers if self._used is None else numbers * self._used


def standard_normal_like(tensor: Tensor) -> Tensor:
    """Return draws from N(0, 1) with the shape and dtype of a tensor; in programs the batch size may be unknown."""
    shape = paddle.shape(tensor) if in_program() else tensor.shape
    return paddle.standard_normal(shape, tensor.dtype)


def log_softmax(logits: Tensor) -> Tensor:
    """Return the logarithm of the softmax over the last axis; paddle's own function ends at -64 on the CPU."""
    logarithms: Tensor = logits - paddle.logsumexp(logits, axis=-1, keepdim=True)
    return logarithms


def _check_finite(logits: Tensor) -> None:
    if not np.isfinite(logits.detach().numpy().max(axis=-1)).all():  # some may be -inf: never to be drawn
        raise DivergedError(
            "the policy's logits are NaN or infinite; go back to the last checkpoint, lower the learning rate, and "
            "look for NaN or huge values in observations and rewards"
        )


def _gumbel_noise_like(logits: Tensor) -> Tensor:
    uniform = paddle.uniform(paddle.shape(logits), dtype=logits.dtype, min=SMALLEST, max=1.0)
    return -paddle.log(-paddle.log(uniform) + SMALLEST)
