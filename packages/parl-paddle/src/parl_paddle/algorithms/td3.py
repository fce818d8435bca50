"""TD3 on PaddlePaddle."""

from __future__ import annotations

import paddle
from paddle import Tensor

from parl_core.contracts import td3 as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.value import squared_error, td_error

__all__ = ["TD3"]


class TD3(contract.TD3, Algorithm):
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

    def _actor_loss(self, obs: Tensor) -> tuple[Tensor]:
        return (-self.model.Q1(obs, self.model.policy(obs)).mean(),)
