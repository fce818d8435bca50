"""Losses of distributions of returns over fixed values: projection and divergence."""

from __future__ import annotations

import paddle
from paddle import Tensor

from parl_core.checks import same_shape
from parl_paddle.distributions import log_softmax

__all__ = ["cross_entropy", "project", "relative_entropy"]


def project(probabilities: Tensor, values: Tensor, support: Tensor) -> Tensor:
    """Return the projection of a distribution on other values onto `support`.

        m_i = sum_j max(0, 1 - |clip(values_j) - support_i| / gap) * probabilities_j

    arXiv:1707.06887, equation 7.

    Args:
        probabilities: Probability of each value, `[batch, M]`.
        values: The values, `[batch, M]`; they are clipped to the range of the support.
        support: At least two evenly spaced, ascending values, `[N]`.

    Returns:
        The probabilities on `support`, `[batch, N]`, without gradient.
    """
    same_shape(probabilities=probabilities, values=values)
    with paddle.no_grad():
        gap = (support[-1] - support[0]) / (support.shape[0] - 1)
        kept = paddle.minimum(paddle.maximum(values, support[0]), support[-1])  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        share = (1.0 - (kept.unsqueeze(1) - support.unsqueeze(1)).abs() / gap).clip(min=0.0)
        projected: Tensor = paddle.matmul(share, probabilities.unsqueeze(2)).squeeze(2)  # type: ignore[no-untyped-call]  # likewise
        return projected


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return -sum_i target_i log softmax_i(logits), `[batch]`; `logits` and `target` are `[batch, N]`."""
    same_shape(logits=logits, target=target)
    return -(target * log_softmax(logits)).sum(1)


def relative_entropy(crossed: Tensor, target: Tensor) -> Tensor:
    """Return KL(target || softmax(logits)), `[batch]`, 0 or more, from their cross-entropy `[batch]`."""
    logarithms = paddle.log(paddle.where(target > 0.0, target, paddle.ones_like(target)))
    return (crossed + (target * logarithms).sum(1)).clip(min=0.0)
