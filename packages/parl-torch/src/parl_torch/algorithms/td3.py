"""TD3, TD3+BC and ReBRAC on PyTorch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from parl_core.contracts import td3 as contract
from parl_core.contracts.batches import Transitions
from parl_torch._chains import Fork, LossReader, Network, Networks, hand_written
from parl_torch.algorithm import Algorithm
from parl_torch.algorithms._critics import actor_slopes, critic_networks, critic_slopes
from parl_torch.losses.value import squared_error, td_error

__all__ = ["TD3", "TD3BC", "ReBRAC"]


def _critic_networks(algorithm: "TD3") -> Networks:
    return critic_networks(algorithm) if type(algorithm)._next_values is TD3._next_values else ()


def _critic_slopes(algorithm: "TD3", networks: Sequence[Fork], batch: Transitions, noise: Tensor) -> LossReader:
    critics, target_actor, target_critics = networks
    shift = (algorithm.policy_noise * noise).clamp_(-algorithm.noise_clip, algorithm.noise_clip)
    (a_t,) = target_actor.outputs(batch.next_obs)
    a_t.add_(shift).clamp_(-1.0, 1.0)
    q1_t, q2_t = target_critics.outputs(torch.cat((batch.next_obs, a_t), dim=1))
    return critic_slopes(critics, batch, algorithm.gamma, torch.minimum(q1_t, q2_t).reshape(-1))


def _actor_networks(algorithm: "TD3") -> Networks:
    return Network(algorithm.model, ("policy",), True), Network(algorithm.model, ("Q1",), False, of_actions=True)


class TD3(contract.TD3, Algorithm):
    @hand_written(_critic_networks, _critic_slopes)
    def critic_loss(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, obs, next_obs = batch.reward, batch.obs, batch.next_obs
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = discount * (1.0 - batch.terminal.to(r_t.dtype))
            shift = (self.policy_noise * noise).clamp(-self.noise_clip, self.noise_clip)
            a_t = (self.target_model.policy(next_obs) + shift).clamp(-1.0, 1.0)
            v_t = self._next_values(batch, a_t)
        q1_tm1, q2_tm1 = self.model.value(obs, batch.action)
        error1 = td_error(q1_tm1.reshape(-1), r_t, discount_t, v_t)
        error2 = td_error(q2_tm1.reshape(-1), r_t, discount_t, v_t)
        loss = squared_error(error1, batch.weights) + squared_error(error2, batch.weights)
        return loss, {"td_error": 0.5 * (error1 + error2)}

    @hand_written(_actor_networks, actor_slopes)
    def actor_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        return -self.model.Q1(batch.obs, self.model.policy(batch.obs)).mean(), {}

    def _next_values(self, batch: Transitions, a_t: Tensor) -> Tensor:
        """Return the values `[batch]` that the target is bootstrapped from, of actions in `next_obs`."""
        q1_t, q2_t = self.target_model.value(batch.next_obs, a_t)
        return torch.minimum(q1_t, q2_t).reshape(-1)


class TD3BC(contract.TD3BC, TD3):
    def actor_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        action = self.model.policy(batch.obs)
        value = self.model.Q1(batch.obs, action).reshape(-1)
        scale = self.alpha / value.detach().abs().mean()
        return (action - batch.action).square().mean() - scale * value.mean(), {}


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
