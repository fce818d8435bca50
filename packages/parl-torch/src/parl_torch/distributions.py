"""Batched distributions of actions: each row of the parameters is one distribution.

All have `sample`, `mode`, `entropy`, `logp` and `kl`; they draw from PyTorch's generator (`torch.manual_seed`).
"""

import math
import sys
from functools import partial, update_wrapper

import torch
from torch import Tensor

from parl_core.checks import same_shape
from parl_core.contracts import actions as contract
from parl_core.contracts.actions import PolicyDistribution
from parl_core.errors import DivergedError

__all__ = [
    "CategoricalDistribution",
    "ChoicesAndNumbersDistribution",
    "DiagGaussianDistribution",
    "MultiCategoricalDistribution",
    "PolicyDistribution",
    "SoftCategoricalDistribution",
    "SoftMultiCategoricalDistribution",
    "policy_distribution",
]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def _log_softmax(logits: Tensor) -> Tensor:
    """Return log-probabilities of logits `[..., act_dim]`."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state():
        return torch.log_softmax(logits, dim=-1)
    if logits.dim() != 2 or logits.device.type != "cpu" or len(logits) < 1024 or logits.shape[1] > 8:
        return torch.log_softmax(logits, dim=-1)
    # PyTorch's kernels process one row, but eight columns at a time: the transposed form takes less than half the time
    # for thousands of short rows.
    return torch.log_softmax(logits.t().contiguous(), dim=0).t().contiguous()


class CategoricalDistribution:
    """A categorical distribution of one of `act_dim` actions.

    Args:
        logits: Unnormalised log-probabilities, `[batch, act_dim]`.
        mask: `[batch, act_dim]`, True (or not 0) where an action is possible; others get probability 0 and no gradient.
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        if mask is not None:
            same_shape(logits=logits, mask=mask)
            logits = logits.masked_fill(mask == 0, torch.finfo(logits.dtype).min)
        self.logits = logits
        self.log_probabilities = _log_softmax(logits)

    def sample(self) -> Tensor:
        """Return actions, int64 `[batch]`.

        Raises:
            DivergedError: A logit is NaN or plus infinity, or all logits of a row are minus infinity; only on the CPU.
        """
        try:
            return torch.multinomial(self.log_probabilities.exp(), 1).squeeze(-1)
        except RuntimeError as error:
            if not self.log_probabilities.isnan().any():
                raise
            raise DivergedError(
                "the policy's logits are NaN or infinite; go back to the last checkpoint, lower the learning rate, and "
                "look for NaN or huge values in observations and rewards"
            ) from error

    def mode(self) -> Tensor:
        """Return the most probable actions, int64 `[batch]`."""
        return self.logits.argmax(dim=-1)

    def entropy(self) -> Tensor:
        """Return the entropy in nats, `[batch]`."""
        return -(self.log_probabilities.exp() * self.log_probabilities).sum(dim=-1)

    def logp(self, actions: Tensor, eps: float | None = None) -> Tensor:  # noqa: ARG002 - an argument of PARL 2.x
        """Return the log-probability `[batch]` of actions `[batch]` or `[batch, 1]`, whole numbers of any dtype.

        `eps` of PARL 2.x has no effect, because log-probabilities of logits do not underflow.
        """
        chosen = actions.long().reshape(*self.log_probabilities.shape[:-1], 1)
        return self.log_probabilities.gather(-1, chosen).squeeze(-1)

    def slope(self, action: Tensor, by_logp: Tensor, by_entropy: float) -> Tensor:
        """Return the gradient of a loss by the logits, `[batch, act_dim]`, for distributions without a mask.

        With probabilities p: d log p[a] / d logits = onehot(a) - p, and d entropy / d logits = -p * (log p + entropy).

        Args:
            action: The actions, whole numbers of any dtype, `[batch]`.
            by_logp: Derivative of the loss by the log-probability of each action, `[batch]`.
            by_entropy: Derivative of the loss by the entropy of each row.
        """
        each, probabilities = by_logp.unsqueeze(1), self.log_probabilities.exp()
        entropy = (probabilities * self.log_probabilities).sum(1, keepdim=True)
        by_share = (self.log_probabilities - entropy).mul_(by_entropy).add_(each)
        return by_share.mul_(probabilities).neg_().scatter_add_(1, action.long().unsqueeze(1), each)

    def kl(self, other: "CategoricalDistribution") -> Tensor:
        """Return KL(self || other) in nats, `[batch]`."""
        difference = self.log_probabilities - other.log_probabilities
        return (self.log_probabilities.exp() * difference).sum(dim=-1)


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
        self.logstd = logstd.expand_as(mean)
        self.std = self.logstd.exp()

    @classmethod
    def from_std(cls, mean: Tensor, std: Tensor, used: Tensor | None = None) -> "DiagGaussianDistribution":
        """Return the distribution with standard deviations `std`, above 0."""
        return cls((mean, std.log()), used)

    def sample(self) -> Tensor:
        """Return actions `[batch, act_dim]`; no gradient flows through them."""
        return (self.mean + self._counted(self.std * torch.randn_like(self.mean))).detach()

    def mode(self) -> Tensor:
        """Return means over the batch `[batch, act_dim]`."""
        return self.mean

    def entropy(self) -> Tensor:
        """Return the sum of the dimensions' entropies in nats, `[batch]`."""
        return self._counted(self.logstd + (0.5 + _HALF_LOG_2PI)).sum(dim=-1)

    def logp(self, actions: Tensor) -> Tensor:
        """Return the log-density `[batch]` of actions `[batch, act_dim]`."""
        same_shape(action=actions, mean=self.mean)
        scaled = (actions - self.mean) / self.std
        return -self._counted(0.5 * scaled.square() + self.logstd + _HALF_LOG_2PI).sum(dim=-1)

    def kl(self, other: "DiagGaussianDistribution") -> Tensor:
        """Return KL(self || other) in nats, summed over the dimensions, `[batch]`."""
        shift = (self.std.square() + (self.mean - other.mean).square()) / (2.0 * other.std.square())
        return self._counted(other.logstd - self.logstd + shift - 0.5).sum(dim=-1)

    def _counted(self, numbers: Tensor) -> Tensor:
        return numbers if self._used is None else numbers * self._used


class SoftCategoricalDistribution(CategoricalDistribution):
    """A categorical distribution with differentiable draws: softmax(logits + Gumbel noise), rows that add up to 1.

    Jang, Gu & Poole 2017, equation 2, with temperature 1. Actions are vectors `[batch, act_dim]`.
    """

    def sample(self) -> Tensor:
        """Return relaxed one-hot actions `[batch, act_dim]` at temperature 1; gradients flow into the logits."""
        noise = -torch.empty_like(self.logits).exponential_().log()
        return torch.softmax(self.logits + noise, dim=-1)

    def logp(self, actions: Tensor, eps: float | None = None) -> Tensor:  # noqa: ARG002 - as in the base
        """Return the sum of the log-probabilities, weighted by the soft actions `[batch, act_dim]`; `[batch]`."""
        return (actions * self.log_probabilities).sum(dim=-1)


class MultiCategoricalDistribution(contract.MultiCategoricalDistribution):
    _part, _stacked = CategoricalDistribution, staticmethod(partial(torch.stack, dim=-1))


class SoftMultiCategoricalDistribution(contract.SoftMultiCategoricalDistribution):
    _part, _stacked = SoftCategoricalDistribution, staticmethod(partial(torch.stack, dim=-1))
    _joined = staticmethod(partial(torch.cat, dim=-1))


class ChoicesAndNumbersDistribution(contract.ChoicesAndNumbersDistribution):
    def _joined(self, choices: Tensor, numbers: Tensor) -> Tensor:
        return torch.cat([choices.to(numbers.dtype), numbers], dim=-1)


policy_distribution = update_wrapper(
    partial(contract.policy_distribution, distributions=sys.modules[__name__]), contract.policy_distribution
)
"""Function that returns the distribution of actions of a kind, as `parl_core.contracts.actions.policy_distribution`
without `distributions`."""
