"""Normal distributions squashed into [-1, 1] by tanh: Haarnoja et al. 2018 (arXiv:1812.05905), appendix C."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from parl_core.checks import same_shape

__all__ = ["squashed_gaussian", "squashed_log_prob"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)
_ALMOST_1 = 1.0 - 1e-6  # whose inverse tanh float32 can still tell from that of 1


def squashed_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return tanh(u) with u = mean + std * noise, and the sum of log N(u; mean, std) - log(1 - tanh(u)**2).

    The last logarithm is computed as 2 * (log 2 - u - softplus(-2 u)), which stays finite where tanh(u) rounds to 1.

    Args:
        mean: Mean of the normal distribution, `[batch, act_dim]`.
        log_std: Logarithm of its standard deviation, `[batch, act_dim]`.
        noise: Draws from N(0, 1), `[batch, act_dim]`.

    Returns:
        The actions `[batch, act_dim]` and their log-density `[batch]`; gradients flow through both.
    """
    same_shape(mean=mean, noise=noise)
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - _HALF_LOG_2PI
    log_slope = 2.0 * (_LOG_2 - u - functional.softplus(-2.0 * u))
    return torch.tanh(u), (log_normal - log_slope).sum(dim=-1)


def squashed_log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """Return the log-density `[batch]` of actions `[batch, act_dim]`; actions at a bound are moved just inside."""
    same_shape(mean=mean, action=action)
    inside = action.clamp(-_ALMOST_1, _ALMOST_1)
    u = torch.atanh(inside)
    log_normal = -0.5 * ((u - mean) / log_std.exp()).square() - log_std - _HALF_LOG_2PI
    return (log_normal - torch.log1p(-inside.square())).sum(dim=-1)
