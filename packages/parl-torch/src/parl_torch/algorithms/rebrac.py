"""ReBRAC on PyTorch."""

import torch
from torch import Tensor

from parl_core.contracts import rebrac as contract
from parl_core.contracts.batches import Transitions
from parl_torch.algorithms.td3 import TD3
from parl_torch.losses.value import squared_error, td_error

__all__ = ["ReBRAC"]


class ReBRAC(contract.ReBRAC, TD3):
    def critic_loss(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, obs, next_obs = batch.reward, batch.obs, batch.next_obs
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = discount * (1.0 - batch.terminal.to(r_t.dtype))
            shift = (self.policy_noise * noise).clamp(-self.noise_clip, self.noise_clip)
            a_t = (self.target_model.policy(next_obs) + shift).clamp(-1.0, 1.0)
            penalty = (a_t - batch.extra["next_action"]).square().sum(dim=-1)
            v_t = torch.minimum(*self.target_model.value(next_obs, a_t)).reshape(-1) - self.critic_bc * penalty
        errors = [td_error(q.reshape(-1), r_t, discount_t, v_t) for q in self.model.value(obs, batch.action)]
        loss = squared_error(errors[0], batch.weights) + squared_error(errors[1], batch.weights)
        return loss, {"td_error": 0.5 * (errors[0] + errors[1])}

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        action = self.model.policy(batch.obs)
        value = torch.minimum(*self.model.value(batch.obs, action)).reshape(-1)
        penalty = (action - batch.action).square().sum(dim=-1)
        scale = 1.0 / value.detach().abs().mean()
        return (self.actor_bc * penalty - scale * value).mean(), {}
