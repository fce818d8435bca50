"""Losses of quantiles of returns."""

from __future__ import annotations

import paddle
from paddle import Tensor

from parl_core.checks import same_shape

__all__ = ["quantile_huber"]


def quantile_huber(theta_tm1: Tensor, target: Tensor, kappa: float, weights: Tensor | None = None) -> Tensor:
    """Return mean(weights * sum_i mean_j |tau_i - 1(u_ij < 0)| * L(u_ij)), u_ij = target_j - theta_i.

    arXiv:1710.10044, equation 10; tau_i = (2 i - 1) / (2 N), L the Huber loss.

    Args:
        theta_tm1: Quantiles of the returns, `[batch, N]`.
        target: Samples of the target returns, `[batch, M]`; no gradient flows into them.
        kappa: Absolute error above which L is linear, above 0.
        weights: Weight of each row, `[batch]`; default 1.
    """
    count = theta_tm1.shape[1]
    tau = (paddle.arange(count).astype(theta_tm1.dtype) + 0.5) / count
    error = target.unsqueeze(1) - theta_tm1.unsqueeze(2)
    size = error.abs()
    loss = paddle.where(size <= kappa, 0.5 * error.square(), kappa * (size - 0.5 * kappa))
    share = (tau.unsqueeze(1) - (error.detach() < 0.0).astype(error.dtype)).abs()
    each: Tensor = (share * loss).mean(2).sum(1)
    if weights is None:
        weights = paddle.ones_like(each)
    same_shape(error=each, weights=weights)
    mean: Tensor = (weights * each).mean()
    return mean
