"""Losses and errors of value functions."""

from __future__ import annotations

import paddle
from paddle import Tensor

from parl_core.checks import same_shape

__all__ = ["clipped_value_loss", "double_q_learning", "huber", "q_learning", "squared_error", "td_error"]


def q_learning(q_tm1: Tensor, a_tm1: Tensor, r_t: Tensor, discount_t: Tensor, q_t: Tensor) -> Tensor:
    """Return the temporal difference of Q-learning: r_t + discount_t * max_a q_t[a] - q_tm1[a_tm1].

    Watkins & Dayan 1992. The target carries no gradient.

    Args:
        q_tm1: Action values before the step, `[batch, act_dim]`.
        a_tm1: Actions, int64 `[batch]`.
        r_t: Rewards, `[batch]`.
        discount_t: Discounts, `[batch]`; 0 where the episode terminated.
        q_t: Action values of the target network after the step, `[batch, act_dim]`.

    Returns:
        The temporal differences, `[batch]`.
    """
    return _difference(q_tm1, a_tm1, r_t, discount_t, q_t.max(axis=1))


def double_q_learning(
    q_tm1: Tensor, a_tm1: Tensor, r_t: Tensor, discount_t: Tensor, q_t_value: Tensor, q_t_selector: Tensor
) -> Tensor:
    """Return the temporal difference of double Q-learning: one network selects the action, another evaluates it.

    van Hasselt, Guez & Silver 2016, equation 4.

    Args:
        q_tm1: Action values before the step, `[batch, act_dim]`.
        a_tm1: Actions, int64 `[batch]`.
        r_t: Rewards, `[batch]`.
        discount_t: Discounts, `[batch]`; 0 where the episode terminated.
        q_t_value: Action values of the target network after the step, `[batch, act_dim]`.
        q_t_selector: Action values of the trained network after the step, `[batch, act_dim]`.

    Returns:
        The temporal differences, `[batch]`.
    """
    best = q_t_selector.argmax(axis=1, keepdim=True)
    return _difference(q_tm1, a_tm1, r_t, discount_t, paddle.index_sample(q_t_value, best).squeeze(1))


def td_error(q_tm1: Tensor, r_t: Tensor, discount_t: Tensor, v_t: Tensor) -> Tensor:
    """Return the temporal difference r_t + discount_t * v_t - q_tm1, all `[batch]`; the target carries no gradient.

    Sutton & Barto 2018, equation 6.5; `discount_t` is 0 where the episode terminated.
    """
    same_shape(q_tm1=q_tm1, r_t=r_t, discount_t=discount_t, v_t=v_t)
    return (r_t + discount_t * v_t).detach() - q_tm1


def squared_error(error: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return mean(weights * error**2) over the batch; without weights, mean(error**2)."""
    if weights is None:
        return error.square().mean()
    same_shape(error=error, weights=weights)
    return (weights * error.square()).mean()


def clipped_value_loss(v_t: Tensor, v_old_t: Tensor, return_t: Tensor, clip: float) -> Tensor:
    """Return 0.5 * mean(max((v - return)**2, (v_old + clip(v - v_old, -clip, clip) - return)**2)), all `[batch]`.

    The formula is that of OpenAI's baselines (ppo2).
    """
    same_shape(v_t=v_t, v_old_t=v_old_t, return_t=return_t)
    near = v_old_t + (v_t - v_old_t).clip(-clip, clip)
    larger: Tensor = paddle.maximum((v_t - return_t).square(), (near - return_t).square())  # type: ignore[no-untyped-call]  # paddle leaves it untyped
    return 0.5 * larger.mean()


def _difference(q_tm1: Tensor, a_tm1: Tensor, r_t: Tensor, discount_t: Tensor, v_t: Tensor) -> Tensor:
    same_shape(a_tm1=a_tm1, r_t=r_t, discount_t=discount_t, v_t=v_t)
    target = (r_t + discount_t * v_t).detach()
    return target - paddle.index_sample(q_tm1, a_tm1.unsqueeze(1)).squeeze(1)


def huber(error: Tensor, delta: float) -> Tensor:
    """Return the Huber loss of each error: error**2 / 2 up to `delta`, delta * (|error| - delta / 2) beyond (1964)."""
    size = error.abs()
    near = size.clip(max=delta)
    return near * (size - 0.5 * near)
