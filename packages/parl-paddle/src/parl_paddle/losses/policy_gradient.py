"""Losses of policies that are improved by the returns of their own actions."""

from __future__ import annotations

from typing import Any

__all__ = ["reinforce"]


def reinforce(log_prob_t: Any, return_t: Any) -> Any:
    """-mean(log pi(a_t | s_t) * return_t) (Williams 1992, equation 5).

    Args:
        log_prob_t: log-probabilities of the actions taken, `[batch]`.
        return_t: their weights, `[batch]`; no gradient flows through them.
    """
    return -(log_prob_t * return_t.detach()).mean()
