"""Losses of policies."""

import torch
from torch import Tensor

from parl_core.checks import same_shape

__all__ = ["approximate_kl", "clipped_surrogate", "kl_penalised_surrogate", "log_prob_of_action", "policy_gradient"]


def log_prob_of_action(probabilities: Tensor, a_t: Tensor) -> Tensor:
    """Return the log-probability `[batch]` of actions `[batch]` from probabilities `[batch, act_dim]`.

    Probabilities are at least the smallest step of their dtype, so that an impossible action does not give -inf.
    """
    chosen = probabilities.gather(1, a_t.long().unsqueeze(1)).squeeze(1)
    return chosen.clamp_min(torch.finfo(chosen.dtype).eps).log()


def policy_gradient(log_prob_t: Tensor, weight_t: Tensor) -> Tensor:
    """Return -mean(log pi(a_t | s_t) * weight_t), both `[batch]`: Williams 1992, equation 5."""
    same_shape(log_prob_t=log_prob_t, weight_t=weight_t)
    return -(log_prob_t * weight_t).mean()


def clipped_surrogate(ratio_t: Tensor, adv_t: Tensor, clip: float) -> Tensor:
    """Return -mean(min(ratio * adv, clip(ratio, 1 - clip, 1 + clip) * adv)): arXiv:1707.06347, equation 7."""
    same_shape(ratio_t=ratio_t, adv_t=adv_t)
    return -torch.minimum(ratio_t * adv_t, ratio_t.clamp(1.0 - clip, 1.0 + clip) * adv_t).mean()


def kl_penalised_surrogate(ratio_t: Tensor, adv_t: Tensor, kl_t: Tensor, beta: float | Tensor) -> Tensor:
    """Return -mean(ratio * adv) + beta * mean(KL(old || new)), all `[batch]`: arXiv:1707.06347, equation 8."""
    same_shape(ratio_t=ratio_t, adv_t=adv_t, kl_t=kl_t)
    return -(ratio_t * adv_t).mean() + beta * kl_t.mean()


def approximate_kl(log_ratio_t: Tensor, ratio_t: Tensor) -> Tensor:
    """Return mean(ratio - 1 - log ratio), an unbiased, never negative estimate of KL(old || new) (Schulman 2020)."""
    same_shape(log_ratio_t=log_ratio_t, ratio_t=ratio_t)
    return (ratio_t - 1.0 - log_ratio_t).mean()
