"""SAC on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import sac as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.distributions import standard_normal_like
from parl_paddle.losses.squashed import squashed_gaussian
from parl_paddle.losses.value import squared_error, td_error
from parl_paddle.model import Model

__all__ = ["SAC"]


class SAC(contract.SAC, Algorithm):
    __doc__ = contract.SAC.__doc__

    def predict(self, obs: Tensor) -> Tensor:
        with paddle.no_grad():
            mean, _ = self.model.policy(obs)
            return paddle.tanh(mean)

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.model.policy(obs)
        action, log_prob = squashed_gaussian(mean, log_std, self._noise(mean))
        return action, log_prob.unsqueeze(-1)

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
        alpha = self.alpha if self._fixed_alpha is not None else self.alpha.astype(reward.dtype)
        batch = (obs, action, reward, next_obs, terminal, weights, discount, alpha, self._noise(action))
        rate = self._now("critic_lr", self.critic_lr, critic_lr)
        critic_loss, error = self.critic_optimizer.descend(self._critic_loss, *batch, lr=rate)
        rate = self._now("actor_lr", self.actor_lr, actor_lr)
        actor_loss, log_prob = self.actor_optimizer.descend(self._actor_loss, obs, alpha, self._noise(action), lr=rate)
        if self._fixed_alpha is None:
            entropy = -action.shape[-1] if self.target_entropy is None else self.target_entropy
            rate = self._now("alpha_lr", self.alpha_lr)
            self.temperature_optimizer.descend(self._temperature_loss, log_prob + entropy, lr=rate)
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
        alpha: Tensor | float,
        noise: Tensor,
    ) -> tuple[Tensor, Tensor]:
        r_t = reward.reshape([-1])
        with paddle.no_grad():
            going_on = 1.0 - terminal.reshape([-1]).astype(r_t.dtype)
            discount_t = going_on * (self.gamma if discount is None else discount)
            mean_t, log_std_t = self.model.policy(next_obs)
            a_t, log_prob_t = squashed_gaussian(mean_t, log_std_t, noise)
            q1_t, q2_t = self.target_model.value(next_obs, a_t)
            v_t = paddle.minimum(q1_t, q2_t).reshape([-1]) - alpha * log_prob_t  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        q1_tm1, q2_tm1 = self.model.value(obs, action)
        error1 = td_error(q1_tm1.reshape([-1]), r_t, discount_t, v_t)
        error2 = td_error(q2_tm1.reshape([-1]), r_t, discount_t, v_t)
        return squared_error(error1, weights) + squared_error(error2, weights), 0.5 * (error1 + error2)

    def _actor_loss(self, obs: Tensor, alpha: Tensor | float, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.model.policy(obs)
        action, log_prob = squashed_gaussian(mean, log_std, noise)
        q1, q2 = self.model.value(obs, action)
        return (alpha * log_prob - paddle.minimum(q1, q2).reshape([-1])).mean(), log_prob  # type: ignore[no-untyped-call]  # paddle leaves it untyped

    def _temperature_loss(self, excess: Tensor) -> tuple[Tensor]:
        return (-self.temperature.log_alpha * excess.mean().astype("float64"),)

    def _noise(self, like: Tensor) -> Tensor:
        return standard_normal_like(like)

    def _new_temperature(self) -> _Temperature:
        return _Temperature()


class _Temperature(Model):
    """The logarithm of alpha, in float64: as a scalar it costs nothing, and no model's dtype matters."""

    def __init__(self) -> None:
        zero = paddle.nn.initializer.Constant(0.0)
        self.log_alpha = self.create_parameter([], dtype="float64", default_initializer=zero)

    def alpha(self) -> Tensor:
        return self.log_alpha.detach().exp()
