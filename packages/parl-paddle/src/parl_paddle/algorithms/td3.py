"""TD3, TD3+BC and ReBRAC on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import td3 as contract
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.value import squared_error, td_error

__all__ = ["TD3", "TD3BC", "ReBRAC"]


class TD3(contract.TD3, Algorithm):
    def critic_loss(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, obs, next_obs = batch.reward, batch.obs, batch.next_obs
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            shift = (self.policy_noise * noise).clip(-self.noise_clip, self.noise_clip)
            a_t = (self.target_model.policy(next_obs) + shift).clip(-1.0, 1.0)
            v_t = self._next_values(batch, a_t)
        q1_tm1, q2_tm1 = self.model.value(obs, batch.action)
        error1 = td_error(q1_tm1.reshape([-1]), r_t, discount_t, v_t)
        error2 = td_error(q2_tm1.reshape([-1]), r_t, discount_t, v_t)
        loss = squared_error(error1, batch.weights) + squared_error(error2, batch.weights)
        return loss, {"td_error": 0.5 * (error1 + error2)}

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        return -self.model.Q1(batch.obs, self.model.policy(batch.obs)).mean(), {}

    def _learn_of_parl2(self, batch: Transitions) -> Any:
        """Learn and return PARL 2.x's critic_loss of paddle."""
        return self._counted_update(batch)[0]

    def _next_values(self, batch: Transitions, a_t: Tensor) -> Tensor:
        """Return the values `[batch]` that the target is bootstrapped from, of actions in `next_obs`."""
        q1_t, q2_t = self.target_model.value(batch.next_obs, a_t)
        smaller: Tensor = paddle.minimum(q1_t, q2_t)  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        return smaller.reshape([-1])


class TD3BC(contract.TD3BC, TD3):
    def _learn_of_parl2(self, batch: Transitions) -> Any:
        return self._counted_update(batch)[:2]  # PARL 2.x had no TD3+BC

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        action = self.model.policy(batch.obs)
        value = self.model.Q1(batch.obs, action).reshape([-1])
        scale = self.alpha / value.detach().abs().mean()
        return (action - batch.action).square().mean() - scale * value.mean(), {}


class ReBRAC(contract.ReBRAC, TD3):
    def _next_values(self, batch: Transitions, a_t: Tensor) -> Tensor:
        penalty: Tensor = (a_t - batch.extra["next_action"]).square().sum(axis=-1)
        return super()._next_values(batch, a_t) - self.critic_bc * penalty

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        action = self.model.policy(batch.obs)
        q1, q2 = self.model.value(batch.obs, action)
        value = paddle.minimum(q1, q2).reshape([-1])  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        penalty = (action - batch.action).square().sum(axis=-1)
        scale = 1.0 / value.detach().abs().mean()
        return (self.actor_bc * penalty - scale * value).mean(), {}
