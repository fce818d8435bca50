"""Losses for learning from logged data."""

import torch
from torch import Tensor

from parl_core.checks import same_shape
from parl_torch.data_parallel import mean_of_all

__all__ = ["expectile", "huber", "masked_squared_error", "weighted_imitation"]


def expectile(error: Tensor, tau: float) -> Tensor:
    """Return mean(|tau - 1(error < 0)| * error**2), `[batch]`: arXiv:2110.06169, equation 5."""
    below = (error < 0.0).to(error.dtype)
    return ((tau + below * (1.0 - 2.0 * tau)) * error.square()).mean()


def weighted_imitation(log_prob_t: Tensor, adv_t: Tensor, beta: float, limit: float) -> Tensor:
    """Return -mean(min(exp(beta * adv), limit) * log pi(a | s)), both `[batch]`: arXiv:2110.06169, equation 7.

    No gradient flows into the weights.
    """
    same_shape(log_prob_t=log_prob_t, adv_t=adv_t)
    return -((beta * adv_t.detach()).exp().clamp(max=limit) * log_prob_t).mean()


def huber(error: Tensor, delta: float, weights: Tensor | None = None) -> Tensor:
    """Return mean(weights * h(error)), Huber 1964: 0.5 * error**2 up to delta, then delta * (|error| - 0.5 * delta)."""
    size = error.abs()
    loss = torch.where(size <= delta, 0.5 * error.square(), delta * (size - 0.5 * delta))
    if weights is None:
        return loss.mean()
    same_shape(error=error, weights=weights)
    return (weights * loss).mean()


def masked_squared_error(predicted: Tensor, wanted: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of (predicted - wanted)**2, `[batch, steps, dim]`, over steps whose mask `[batch, steps]` is 1.

    If several processes learn together, the mean is over the steps of all processes.
    """
    same_shape(predicted=predicted, wanted=wanted)
    counted = mask.to(predicted.dtype).unsqueeze(-1)
    return ((predicted - wanted).square() * counted).sum() / (mean_of_all(counted.sum()) * predicted.shape[-1])
