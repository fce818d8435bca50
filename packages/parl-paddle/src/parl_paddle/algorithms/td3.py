"""TD3 on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import td3 as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.distributions import standard_normal_like
from parl_paddle.each_run import either, no_figure
from parl_paddle.losses.value import squared_error, td_error

__all__ = ["TD3"]


class TD3(contract.TD3, Algorithm):
    __doc__ = contract.TD3.__doc__

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
        batch = (obs, action, reward, next_obs, terminal, weights, discount, self._noise(action))
        rate = self._now("critic_lr", self.critic_lr, critic_lr)
        critic_loss, error = self.critic_optimizer.descend(self._critic_loss, *batch, lr=rate)
        rate = self._now("actor_lr", self.actor_lr, actor_lr)
        actor_loss = either(self._actor_is_due, lambda: self._learn_actor(obs, rate), lambda: no_figure(reward))
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
        noise: Tensor,
    ) -> tuple[Tensor, Tensor]:
        r_t = reward.reshape([-1])
        with paddle.no_grad():
            going_on = 1.0 - terminal.reshape([-1]).astype(r_t.dtype)
            discount_t = going_on * (self.gamma if discount is None else discount)
            shift = (self.policy_noise * noise).clip(-self.noise_clip, self.noise_clip)
            a_t = (self.target_model.policy(next_obs) + shift).clip(-1.0, 1.0)
            q1_t, q2_t = self.target_model.value(next_obs, a_t)
            v_t = paddle.minimum(q1_t, q2_t).reshape([-1])  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        q1_tm1, q2_tm1 = self.model.value(obs, action)
        error1 = td_error(q1_tm1.reshape([-1]), r_t, discount_t, v_t)
        error2 = td_error(q2_tm1.reshape([-1]), r_t, discount_t, v_t)
        return squared_error(error1, weights) + squared_error(error2, weights), 0.5 * (error1 + error2)

    def _learn_actor(self, obs: Tensor, rate: Any) -> Tensor:
        actor_loss: Tensor
        (actor_loss,) = self.actor_optimizer.descend(self._actor_loss, obs, lr=rate)
        self.sync_target()
        return actor_loss

    def _actor_is_due(self) -> bool:
        return (self.updates + 1) % self.policy_freq == 0

    def _actor_loss(self, obs: Tensor) -> tuple[Tensor]:
        return (-self.model.Q1(obs, self.model.policy(obs)).mean(),)

    def _noise(self, like: Tensor) -> Tensor:
        return standard_normal_like(like)
