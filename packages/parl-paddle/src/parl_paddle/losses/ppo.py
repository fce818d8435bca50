"""Losses of proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from typing import Any

import paddle

__all__ = ["clipped_surrogate", "clipped_value"]


def clipped_surrogate(ratio_t: Any, adv_t: Any, clip: float) -> Any:
    """-mean(min(ratio * adv, clip(ratio, 1 - clip, 1 + clip) * adv)) (equation 7).

    Args:
        ratio_t: pi(a_t | s_t) / pi_old(a_t | s_t), `[batch]`.
        adv_t: advantages, `[batch]`.
        clip: clip range, above 0.
    """
    clipped = paddle.clip(ratio_t, 1.0 - clip, 1.0 + clip)
    return -paddle.minimum(ratio_t * adv_t, clipped * adv_t).mean()


def clipped_value(v_t: Any, old_v_t: Any, return_t: Any, clip: float) -> Any:
    """0.5 * mean(max((v - return)**2, (v_old + clip(v - v_old, -clip, clip) - return)**2)), as OpenAI's baselines.

    Args:
        v_t: values now, `[batch]`.
        old_v_t: values when the actions were taken, `[batch]`.
        return_t: targets, `[batch]`.
        clip: clip range, above 0.
    """
    near = old_v_t + paddle.clip(v_t - old_v_t, -clip, clip)
    return 0.5 * paddle.maximum(paddle.square(v_t - return_t), paddle.square(near - return_t)).mean()
