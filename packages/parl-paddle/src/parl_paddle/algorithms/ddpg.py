"""DDPG on PaddlePaddle."""

from __future__ import annotations

import paddle
from paddle import Tensor

from parl_core.contracts import ddpg as contract
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.value import squared_error, td_error

__all__ = ["DDPG"]


class DDPG(contract.DDPG, Algorithm):
    def critic_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, obs, next_obs = batch.reward, batch.obs, batch.next_obs
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            v_t = self.target_model.value(next_obs, self.target_model.policy(next_obs)).reshape([-1])
        error = td_error(self.model.value(obs, batch.action).reshape([-1]), r_t, discount_t, v_t)
        return squared_error(error, batch.weights), {"td_error": error}

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        return -self.model.value(batch.obs, self.model.policy(batch.obs)).mean(), {}
