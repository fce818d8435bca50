"""DDPG and bootstrapped DDPG on PyTorch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from parl_core.contracts import ddpg as contract
from parl_core.contracts.batches import Transitions
from parl_torch._chains import Fork, LossReader, Network, Networks, hand_written
from parl_torch.algorithm import Algorithm
from parl_torch.algorithms._critics import actor_slopes, critic_networks, critic_slopes
from parl_torch.losses.value import squared_error, td_error

__all__ = ["DDPG", "BootstrappedDDPG"]


def _critic_slopes(algorithm: "DDPG", networks: Sequence[Fork], batch: Transitions) -> LossReader:
    critic, target_actor, target_critic = networks
    (a_t,) = target_actor.outputs(batch.next_obs)
    (v_t,) = target_critic.outputs(torch.cat((batch.next_obs, a_t), dim=1))
    return critic_slopes(critic, batch, algorithm.gamma, v_t.reshape(-1))


def _actor_networks(algorithm: "DDPG") -> Networks:
    model = algorithm.model
    return Network(model, ("policy",), True), Network(model, ("value",), False, of_actions=True)


class DDPG(contract.DDPG, Algorithm):
    @hand_written(critic_networks, _critic_slopes)
    def critic_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, obs, next_obs = batch.reward, batch.obs, batch.next_obs
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = discount * (1.0 - batch.terminal.to(r_t.dtype))
            v_t = self.target_model.value(next_obs, self.target_model.policy(next_obs)).reshape(-1)
        error = td_error(self.model.value(obs, batch.action).reshape(-1), r_t, discount_t, v_t)
        return squared_error(error, batch.weights), {"td_error": error}

    @hand_written(_actor_networks, actor_slopes)
    def actor_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        return -self.model.value(batch.obs, self.model.policy(batch.obs)).mean(), {}


class BootstrappedDDPG(contract.BootstrappedDDPG, Algorithm):
    @torch.no_grad()
    def predict(self, obs: Tensor) -> Tensor:
        actions: Tensor = self.model.policy(obs)
        if self.ensemble == "mean":
            return actions.mean(dim=1)
        proposals = actions.unbind(dim=1)
        values = [self.model.value(obs, one.unsqueeze(1).expand_as(actions)).mean(dim=1) for one in proposals]
        return _picked(actions, torch.stack(values, dim=1).argmax(dim=1))

    @torch.no_grad()
    def sample(self, obs: Tensor, *, head: Any = None, noise: float = 0.1) -> Tensor:
        scale = self._checked_noise(noise)
        actions: Tensor = self.model.policy(obs)
        rows, heads = actions.shape[:2]
        if head is None:
            chosen = torch.randint(heads, (rows,), device=actions.device)
        else:
            chosen = self._tensor(self._checked_heads(head, rows, heads))
        action = _picked(actions, chosen)
        return (action + scale * self._noise(action)).clamp(-1.0, 1.0)

    def critic_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs, weights, discount = batch.obs, batch.next_obs, batch.weights, batch.discount
        r_t = batch.reward.reshape(-1, 1)
        with torch.no_grad():
            going_on = 1.0 - batch.terminal.reshape(-1, 1).to(r_t.dtype)
            discount_t = (self.gamma if discount is None else discount.reshape(-1, 1)) * going_on
            a_t = self.target_model.policy(next_obs)
            target = r_t + discount_t * self.target_model.value(next_obs, a_t)
        error = target - self.model.value(obs, batch.action.unsqueeze(1).expand_as(a_t))
        loss = error.square() if weights is None else weights.reshape(-1, 1) * error.square()
        return _masked_mean(loss, _mask(batch)), {"td_error": error.mean(dim=1)}

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        return -_masked_mean(self.model.value(batch.obs, self.model.policy(batch.obs)), _mask(batch)), {}


def _mask(batch: Transitions) -> Tensor | None:
    return None if batch.extra is None else batch.extra.get("mask")


def _masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over batch and heads, `[batch, heads]`; masked entries count as 0."""
    return values.mean() if mask is None else (mask * values).mean()


def _picked(actions: Tensor, head: Tensor) -> Tensor:
    """Return `[batch, act_dim]` of `[batch, heads, act_dim]`: of each row the actions of its head."""
    return actions[torch.arange(len(head), device=head.device), head]
