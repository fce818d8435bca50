"""Distributions of returns over fixed values: their projection, and how far they are from each other."""

from __future__ import annotations

import paddle
from paddle import Tensor

from parl_paddle.distributions import log_softmax
from parl_paddle.losses._shapes import same_shape

__all__ = ["cross_entropy", "project", "relative_entropy"]


def project(probabilities: Tensor, values: Tensor, support: Tensor) -> Tensor:
    """Return the distribution on `support` nearest to one on other values: each gives its share to its neighbours.

        m_i = sum_j max(0, 1 - |clip(values_j) - support_i| / gap) * probabilities_j

    arXiv:1707.06887, equation 7.

    Args:
        probabilities: `[batch, M]`.
        values: `[batch, M]`, kept in the support's range.
        support: `[N]`, at least two, evenly spaced, ascending.

    Returns:
        `[batch, N]`; no gradient flows into it.
    """
    same_shape(probabilities=probabilities, values=values)
    with paddle.no_grad():
        gap = (support[-1] - support[0]) / (support.shape[0] - 1)
        kept = paddle.minimum(paddle.maximum(values, support[0]), support[-1])  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        share = (1.0 - (kept.unsqueeze(1) - support.unsqueeze(1)).abs() / gap).clip(min=0.0)
        projected: Tensor = paddle.matmul(share, probabilities.unsqueeze(2)).squeeze(2)  # type: ignore[no-untyped-call]  # likewise
        return projected


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return -sum_i target_i log softmax_i(logits), `[batch]`, of `[batch, N]` both."""
    same_shape(logits=logits, target=target)
    return -(target * log_softmax(logits)).sum(1)


def relative_entropy(crossed: Tensor, target: Tensor) -> Tensor:
    """Return KL(target || softmax(logits)) from their cross-entropy, `[batch]`; never negative, despite rounding."""
    logarithms = paddle.log(paddle.where(target > 0.0, target, paddle.ones_like(target)))
    return (crossed + (target * logarithms).sum(1)).clip(min=0.0)
