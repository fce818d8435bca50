"""DDPG on PaddlePaddle."""

from __future__ import annotations

import paddle
from paddle import Tensor

from parl_core.contracts import ddpg as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.value import squared_error, td_error

__all__ = ["DDPG"]


class DDPG(contract.DDPG, Algorithm):
    def _critic_loss(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        terminal: Tensor,
        weights: Tensor | None,
        discount: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        r_t = reward.reshape([-1])
        with paddle.no_grad():
            going_on = 1.0 - terminal.reshape([-1]).astype(r_t.dtype)
            discount_t = going_on * (self.gamma if discount is None else discount)
            v_t = self.target_model.value(next_obs, self.target_model.policy(next_obs)).reshape([-1])
        error = td_error(self.model.value(obs, action).reshape([-1]), r_t, discount_t, v_t)
        return squared_error(error, weights), error

    def _actor_loss(self, obs: Tensor) -> tuple[Tensor]:
        return (-self.model.value(obs, self.model.policy(obs)).mean(),)
