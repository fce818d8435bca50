"""The whole loss of PPO as one operation with a hand-written gradient.

As a composition of about thirty operations with autograd, the loss would take longer than both passes through a small
network. The formulas are those of `losses.policy` and `losses.value`. For second derivatives (a Hessian-vector
product), the loss is composed of these functions.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from parl_core.checks import same_shape
from parl_torch.losses.policy import clipped_surrogate
from parl_torch.losses.value import clipped_value_loss, squared_error

__all__ = ["Behaviour", "proximal_losses", "proximal_slopes"]


class Behaviour(NamedTuple):
    """Columns `[batch]` with the data of the policy that acted, and the results of its actions."""

    log_prob: Tensor
    advantage: Tensor
    value: Tensor
    return_: Tensor


def proximal_losses(
    log_prob_t: Tensor,
    entropy_t: Tensor,
    v_t: Tensor,
    behaviour: Behaviour,
    clip: float,
    *,
    clips_value: bool,
    value_coef: float,
    entropy_coef: float,
) -> tuple[Tensor, Tensor]:
    """Return PPO's loss and its figures: arXiv:1707.06347, equations 7 and 9.

    Args:
        log_prob_t: log-probabilities of the actions, `[batch]`.
        entropy_t: Entropies of the policy, `[batch]`.
        v_t: Values, `[batch]`.
        behaviour: Data of the policy that acted.
        clip: Clip range of the ratio and the value.
        clips_value: True to clip the step of the value, too.
        value_coef: Weight of the value loss.
        entropy_coef: Weight of the entropy.

    Returns:
        The loss, a scalar; and its figures `[5]`, without gradient: value loss, policy loss, entropy, approximate KL,
        and the share of ratios outside the clip range.
    """
    same_shape(log_prob_t=log_prob_t, entropy_t=entropy_t, v_t=v_t, **behaviour._asdict())
    settings = (clip, clips_value, value_coef, entropy_coef)
    losses: tuple[Tensor, Tensor] = _Proximal.apply(log_prob_t, entropy_t, v_t, *behaviour, *settings)  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
    return losses


def proximal_slopes(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    behaviour: Behaviour,
    clip: float,
    clips_value: bool,
    value_coef: float,
    entropy_coef: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the loss and its figures as `proximal_losses`, and its derivatives.

    The derivatives are `-by_log_prob / n` by each log-probability, `value_coef * error / n` by each value, and
    `-entropy_coef / n` by each entropy.

    Returns:
        (loss, figures `[5]`, by_log_prob `[batch]`, error `[batch]`).
    """
    log_prob_old, advantage, value_old, return_ = behaviour
    log_ratio = log_prob - log_prob_old
    ratio = log_ratio.exp()
    gain = ratio * advantage  # it is also its own derivative by log_prob
    limit = advantage + clip * advantage.abs()  # (1 + clip) * adv where adv > 0, else (1 - clip) * adv
    by_log_prob = gain.masked_fill(gain > limit, 0.0)

    error = value - return_
    square = error.square()
    if clips_value:
        step = value - value_old
        square_near = (error - (step - step.clamp(-clip, clip))).square()
        error = error.masked_fill(square_near > square, 0.0)
        square = torch.maximum(square, square_near)

    moved = ratio - 1.0
    outside = (moved.abs() > clip).to(ratio.dtype)
    columns = (0.5 * square, -torch.minimum(gain, limit), entropy, moved - log_ratio, outside)
    share = 1.0 / len(log_prob)
    figures = torch.stack(columns).sum(dim=1).mul_(share)  # means over the batch
    value_loss, policy_loss, mean_entropy, *_ = figures.unbind()
    loss = policy_loss + value_coef * value_loss - entropy_coef * mean_entropy
    return loss, figures, by_log_prob, error


class _Proximal(Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_prob: Tensor,
        entropy: Tensor,
        value: Tensor,
        log_prob_old: Tensor,
        advantage: Tensor,
        value_old: Tensor,
        return_: Tensor,
        clip: float,
        clips_value: bool,
        value_coef: float,
        entropy_coef: float,
    ) -> tuple[Tensor, Tensor]:
        behaviour = Behaviour(log_prob_old, advantage, value_old, return_)
        loss, figures, by_log_prob, error = proximal_slopes(
            log_prob, entropy, value, behaviour, clip, clips_value, value_coef, entropy_coef
        )

        ctx.save_for_backward(by_log_prob, error, log_prob, entropy, value, log_prob_old, advantage, value_old, return_)
        ctx.share = 1.0 / len(log_prob)
        ctx.coefs = value_coef, entropy_coef
        ctx.clips = clip, clips_value
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(figures)
        return loss, figures

    @staticmethod
    def backward(ctx: Any, by_loss: Tensor, _: None) -> tuple[Tensor | None, ...]:
        by_log_prob, error, *inputs = ctx.saved_tensors
        value_coef, entropy_coef = ctx.coefs
        # for `create_graph=True`: the gradients computed above have no derivatives of their own
        if torch.is_grad_enabled():
            loss = _composed(inputs, ctx.clips, ctx.coefs)
            wanted = ctx.needs_input_grad[:3]
            asked = [part for part, want in zip(inputs, wanted, strict=False) if want]
            found = iter(torch.autograd.grad(loss, asked, by_loss, create_graph=True, allow_unused=True))
            return *(next(found) if want else None for want in wanted), *(None,) * 8
        each = by_loss * -ctx.share
        by_entropy = (each * entropy_coef).expand(len(error))
        return each * by_log_prob, by_entropy, each * -value_coef * error, *(None,) * 8


def _composed(inputs: Sequence[Tensor], clips: tuple[float, bool], coefs: tuple[float, float]) -> Tensor:
    """Return the same loss, composed of operations that autograd can differentiate to any order."""
    log_prob, entropy, value, log_prob_old, advantage, value_old, return_ = inputs
    clip, clips_value = clips
    value_coef, entropy_coef = coefs
    if clips_value:
        value_loss = clipped_value_loss(value, value_old, return_, clip)
    else:
        value_loss = 0.5 * squared_error(value - return_)
    policy_loss = clipped_surrogate((log_prob - log_prob_old).exp(), advantage, clip)
    return policy_loss + value_coef * value_loss - entropy_coef * entropy.mean()
