"""DDPG on PyTorch."""

from typing import Any

import torch
from torch import Tensor

from parl_core.contracts import ddpg as contract
from parl_torch.algorithm import Algorithm
from parl_torch.losses.value import squared_error, td_error

__all__ = ["DDPG"]


class DDPG(contract.DDPG, Algorithm):
    __doc__ = contract.DDPG.__doc__

    @torch.no_grad()
    def predict(self, obs: Tensor) -> Tensor:
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
        actor_lr: float | None = None,
        critic_lr: float | None = None,
    ) -> tuple[Any, ...]:
        batch = (obs, action, reward, next_obs, terminal, weights, discount)
        rate = self._now("critic_lr", self.critic_lr, critic_lr)
        critic_loss, error = self.critic_optimizer.descend(self._critic_loss, *batch, lr=rate)
        rate = self._now("actor_lr", self.actor_lr, actor_lr)
        (actor_loss,) = self.actor_optimizer.descend(self._actor_loss, obs, lr=rate)
        self.sync_target()
        self.updates += 1
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
        r_t = reward.reshape(-1)
        with torch.no_grad():
            discount_t = (self.gamma if discount is None else discount) * (1.0 - terminal.reshape(-1).to(r_t.dtype))
            v_t = self.target_model.value(next_obs, self.target_model.policy(next_obs)).reshape(-1)
        error = td_error(self.model.value(obs, action).reshape(-1), r_t, discount_t, v_t)
        return squared_error(error, weights), error

    def _actor_loss(self, obs: Tensor) -> tuple[Tensor]:
        return (-self.model.value(obs, self.model.policy(obs)).mean(),)
