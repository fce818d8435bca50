"""ReBRAC on PaddlePaddle."""

from __future__ import annotations

import paddle
from paddle import Tensor

from parl_core.contracts import rebrac as contract
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithms.td3 import TD3

__all__ = ["ReBRAC"]


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
