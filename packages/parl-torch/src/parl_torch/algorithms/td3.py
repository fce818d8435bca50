"""TD3 on PyTorch."""

from typing import Any

import torch
from torch import Tensor

from parl_core.contracts import td3 as contract
from parl_torch.algorithm import Algorithm
from parl_torch.losses.value import squared_error, td_error

__all__ = ["TD3"]


class TD3(contract.TD3, Algorithm):
    __doc__ = contract.TD3.__doc__

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
        batch = (obs, action, reward, next_obs, terminal, weights, discount, self._noise(action))
        rate = self._now("critic_lr", self.critic_lr, critic_lr)
        critic_loss, error = self.critic_optimizer.descend(self._critic_loss, *batch, lr=rate)
        actor_loss = None
        if (self.updates + 1) % self.policy_freq == 0:
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
        noise: Tensor,
    ) -> tuple[Tensor, Tensor]:
        r_t = reward.reshape(-1)
        with torch.no_grad():
            discount_t = (self.gamma if discount is None else discount) * (1.0 - terminal.reshape(-1).to(r_t.dtype))
            shift = (self.policy_noise * noise).clamp(-self.noise_clip, self.noise_clip)
            a_t = (self.target_model.policy(next_obs) + shift).clamp(-1.0, 1.0)
            q1_t, q2_t = self.target_model.value(next_obs, a_t)
            v_t = torch.minimum(q1_t, q2_t).reshape(-1)
        q1_tm1, q2_tm1 = self.model.value(obs, action)
        error1 = td_error(q1_tm1.reshape(-1), r_t, discount_t, v_t)
        error2 = td_error(q2_tm1.reshape(-1), r_t, discount_t, v_t)
        return squared_error(error1, weights) + squared_error(error2, weights), 0.5 * (error1 + error2)

    def _actor_loss(self, obs: Tensor) -> tuple[Tensor]:
        return (-self.model.Q1(obs, self.model.policy(obs)).mean(),)

    def _noise(self, like: Tensor) -> Tensor:
        return torch.randn_like(like)
