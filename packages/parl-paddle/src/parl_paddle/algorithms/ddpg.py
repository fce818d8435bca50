"""DDPG on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import ddpg as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.value import squared_error, td_error

__all__ = ["DDPG"]


class DDPG(contract.DDPG, Algorithm):
    __doc__ = contract.DDPG.__doc__

    def predict(self, obs: Tensor) -> Tensor:
        with paddle.no_grad():
            action: Tensor = self.model.policy(obs)
            return action

    def learn(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        terminal: Tensor,
        *,
        weights: Tensor | None = None,
        discount: Tensor | None = None,
        actor_lr: float | Tensor | None = None,
        critic_lr: float | Tensor | None = None,
    ) -> tuple[Any, ...]:
        batch = (obs, action, reward, next_obs, terminal, weights, discount)
        rate = self._now("critic_lr", self.critic_lr, critic_lr)
        critic_loss, error = self.critic_optimizer.descend(self._critic_loss, *batch, lr=rate)
        rate = self._now("actor_lr", self.actor_lr, actor_lr)
        (actor_loss,) = self.actor_optimizer.descend(self._actor_loss, obs, lr=rate)
        self.sync_target()
        self._after_each_update(self._count_update)
        return (critic_loss, actor_loss) if weights is None else (critic_loss, actor_loss, error)

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
