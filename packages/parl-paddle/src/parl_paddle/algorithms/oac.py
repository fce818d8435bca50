"""OAC on PaddlePaddle."""

from __future__ import annotations

import math

import paddle
from paddle import Tensor

from parl_core.contracts import oac as contract
from parl_paddle.algorithms.sac import SAC

__all__ = ["OAC"]


class OAC(contract.OAC, SAC):
    def get_optimistic_exploration_action(self, obs: Tensor) -> Tensor:
        with paddle.no_grad():
            mean, log_std = self.model.policy(obs)
        with paddle.enable_grad():
            u = mean.detach()
            u.stop_gradient = False
            q1, q2 = self.model.value(obs, paddle.tanh(u))
            upper_bound = 0.5 * (q1 + q2) + self.beta * 0.5 * (q1 - q2).abs()
            (gradient,) = paddle.grad(upper_bound.sum(), u)
        with paddle.no_grad():
            std = log_std.exp()
            norm = (std * gradient).norm(axis=-1, keepdim=True) + 1e-5
            shifted = mean + math.sqrt(2.0 * self.delta) * std.square() * gradient / norm
            return paddle.tanh(shifted + std * self._noise(mean))
