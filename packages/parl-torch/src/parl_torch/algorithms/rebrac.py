"""ReBRAC on PyTorch."""

import torch
from torch import Tensor

from parl_core.contracts import rebrac as contract
from parl_core.contracts.batches import Transitions
from parl_torch.algorithms.td3 import TD3

__all__ = ["ReBRAC"]


class ReBRAC(contract.ReBRAC, TD3):
    def _next_values(self, batch: Transitions, a_t: Tensor) -> Tensor:
        penalty: Tensor = (a_t - batch.extra["next_action"]).square().sum(dim=-1)
        return super()._next_values(batch, a_t) - self.critic_bc * penalty

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        action = self.model.policy(batch.obs)
        value = torch.minimum(*self.model.value(batch.obs, action)).reshape(-1)
        penalty = (action - batch.action).square().sum(dim=-1)
        scale = 1.0 / value.detach().abs().mean()
        return (self.actor_bc * penalty - scale * value).mean(), {}
