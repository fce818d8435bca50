"""Batched distributions of actions: each row of the parameters is one distribution.

All have `sample`, `mode`, `entropy`, `logp` and `kl`; they draw from paddle's generator (`paddle.seed`).
"""

from __future__ import annotations

import math
import sys
from functools import cached_property, partial, update_wrapper

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor

from parl_core.checks import same_shape
from parl_core.contracts import actions as contract
from parl_core.contracts.actions import PolicyDistribution
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
"""Logit of masked actions: paddle's exp() of smaller ones is not quite 0, so that their products could exceed 1."""
SMALLEST = 1e-20
"""Keeps log(-log(u)) finite."""


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

    def logp(self, actions: Tensor, eps: float | None = None) -> Tensor:  # noqa: ARG002 - an argument of PARL 2.x
        """Return the log-probability `[batch]` of actions `[batch]` or `[batch, 1]`, whole numbers of any dtype.

        `eps` of PARL 2.x has no effect, because log-probabilities of logits do not underflow.
        """
        return paddle.index_sample(self.log_probabilities, actions.astype("int64").reshape([-1, 1])).squeeze(-1)

    def kl(self, other: CategoricalDistribution) -> Tensor:
        """Return KL(self || other) in nats, `[batch]`."""
        return (paddle.exp(self.log_probabilities) * (self.log_probabilities - other.log_probabilities)).sum(axis=-1)


class SoftCategoricalDistribution(CategoricalDistribution):
    """A categorical distribution with differentiable draws: softmax(logits + Gumbel noise), rows that add up to 1.

    Jang, Gu & Poole 2017, equation 2, with temperature 1. Actions are vectors `[batch, act_dim]`.
    """

    def sample(self) -> Tensor:
        """Return relaxed one-hot actions `[batch, act_dim]` at temperature 1; gradients flow into the logits."""
        return F.softmax(self.logits + _gumbel_noise_like(self.logits), axis=-1)

    def logp(self, actions: Tensor, eps: float | None = None) -> Tensor:  # noqa: ARG002 - as in the base
        """Return the sum of the log-probabilities, weighted by the soft actions `[batch, act_dim]`; `[batch]`."""
        return (actions * self.log_probabilities).sum(axis=-1)


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


class MultiCategoricalDistribution(contract.MultiCategoricalDistribution):
    _part, _stacked = CategoricalDistribution, staticmethod(partial(paddle.stack, axis=-1))


class SoftMultiCategoricalDistribution(contract.SoftMultiCategoricalDistribution):
    _part, _stacked = SoftCategoricalDistribution, staticmethod(partial(paddle.stack, axis=-1))
    _joined = staticmethod(partial(paddle.concat, axis=-1))


class ChoicesAndNumbersDistribution(contract.ChoicesAndNumbersDistribution):
    def _joined(self, choices: Tensor, numbers: Tensor) -> Tensor:
        return paddle.concat([choices.astype(numbers.dtype), numbers], axis=-1)


policy_distribution = update_wrapper(
    partial(contract.policy_distribution, distributions=sys.modules[__name__]), contract.policy_distribution
)
"""Function that returns the distribution of actions of a kind, as `parl_core.contracts.actions.policy_distribution`
without `distributions`."""


def standard_normal_like(tensor: Tensor) -> Tensor:
    """Return draws from N(0, 1) with the shape and dtype of a tensor; in programs the batch size may be unknown."""
    shape = paddle.shape(tensor) if in_program() else tensor.shape
    return paddle.standard_normal(shape, tensor.dtype)


def log_softmax(logits: Tensor) -> Tensor:
    """Return the logarithm of the softmax over the last axis; paddle's own function ends at -64 on the CPU."""
    logarithms: Tensor = logits - paddle.logsumexp(logits, axis=-1, keepdim=True)
    return logarithms


def _check_finite(logits: Tensor) -> None:
    if not np.isfinite(logits.detach().numpy().max(axis=-1)).all():  # -inf is allowed: such an action is never drawn
        raise DivergedError(
            "the policy's logits are NaN or infinite; go back to the last checkpoint, lower the learning rate, and "
            "look for NaN or huge values in observations and rewards"
        )


def _gumbel_noise_like(logits: Tensor) -> Tensor:
    uniform = paddle.uniform(paddle.shape(logits), dtype=logits.dtype, min=SMALLEST, max=1.0)
    return -paddle.log(-paddle.log(uniform) + SMALLEST)
