"""Targets and loss of Q-learning."""

from __future__ import annotations

from typing import Any

import paddle

__all__ = ["action_values", "double_q_target", "q_target", "weighted_square"]


def action_values(q_t: Any, a_t: Any) -> Any:
    """Q(s_t, a_t).

    Args:
        q_t: values of all actions, `[batch, act_dim]`.
        a_t: int64 `[batch]`.

    Returns:
        `[batch]`.
    """
    return paddle.index_sample(q_t, a_t.unsqueeze(-1)).squeeze(-1)


def q_target(r_t: Any, discount_t: Any, q_t: Any) -> Any:
    """r_t + discount_t * max_a Q(s_t, a) (Mnih et al. 2015).

    Args:
        r_t: reward after the action, `[batch]`.
        discount_t: 0 where the episode terminated, else gamma (gamma**n over n steps); `[batch]`.
        q_t: the target network's values of the next observations, `[batch, act_dim]`.
    """
    return r_t + discount_t * q_t.max(axis=-1)


def double_q_target(r_t: Any, discount_t: Any, q_t: Any, q_selector_t: Any) -> Any:
    """r_t + discount_t * Q(s_t, argmax_a Q_selector(s_t, a)) (van Hasselt et al. 2016, equation 4).

    Args:
        r_t: as in `q_target`.
        discount_t: as in `q_target`.
        q_t: the target network's values of the next observations, `[batch, act_dim]`.
        q_selector_t: the trained network's, by which the action is chosen.
    """
    return r_t + discount_t * action_values(q_t, q_selector_t.argmax(axis=-1))


def weighted_square(td_error_t: Any, weights_t: Any = None) -> Any:
    """mean(weights * td_error**2); without weights the mean square.

    Args:
        td_error_t: `[batch]`.
        weights_t: importance weights of prioritised replay, `[batch]` (Schaul et al. 2016).
    """
    square = paddle.square(td_error_t)
    return square.mean() if weights_t is None else (weights_t * square).mean()
