"""MADDPG on PyTorch."""

from typing import Any

import torch
from torch import Tensor

from parl_core.contracts import maddpg as contract
from parl_core.contracts.batches import Transitions
from parl_torch.algorithm import Algorithm
from parl_torch.distributions import SoftCategoricalDistribution

__all__ = ["MADDPG", "OneAgentMADDPG"]


class OneAgentMADDPG(contract.OneAgentMADDPG, Algorithm):
    def _action(self, output: Any, *, drawn: bool) -> Tensor:
        if self.continuous_actions:
            mean, log_std = output
            return torch.tanh(mean + log_std.exp() * torch.randn_like(mean) if drawn else mean)
        return SoftCategoricalDistribution(output).sample() if drawn else torch.softmax(output, dim=-1)


class MADDPG(contract.MADDPG, Algorithm):
    ONE_AGENT_FORM = OneAgentMADDPG

    def critic_loss(self, batch: Transitions, noise: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = batch.obs, batch.next_obs
        acted, taken = self._taken(batch)
        with torch.no_grad():
            ends = torch.maximum(next_obs["terminated"].to(acted.dtype), batch.terminal.to(acted.dtype).reshape(-1, 1))
            goes_on = acted * (1.0 - ends)
            alive = next_obs["alive"].to(acted.dtype)
            cut = (goes_on * (1.0 - alive)).t().unsqueeze(2)  # [agents, batch, 1]: see all that have not ended
            there = torch.maximum(alive, cut * goes_on).unsqueeze(3)
            a_t = self._actions(self.target_model.policy(next_obs), next_obs, noise, relaxed=False) * there
            target = next_obs["rewards"] + self.gamma * goes_on * self._values(self.target_model, next_obs, a_t)
        q_tm1 = self._values(self.model, obs, taken)
        error = (target - q_tm1) * acted
        return (error.square().sum(0) / acted.sum(0).clamp(min=1.0)).sum(), {}

    def actor_loss(self, batch: Transitions, noise: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        obs = batch.obs
        acted, taken = self._taken(batch)
        policy = self.model.policy(obs)
        chosen, count = self._actions(policy, obs, noise), acted.sum(0).clamp(min=1.0)
        values = self._values(self.model, obs, _of_each_critic(chosen, taken))
        losses = self.policy_decay * self._mean_square(policy) - values
        loss = ((losses * acted).sum(0) / count).sum()
        return loss, {}

    def _side_by_side(self, columns: list[Tensor]) -> Tensor:
        return torch.stack([column.reshape(-1) for column in columns], 1)

    def _taken(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Return 1 where an agent acted, `[batch, agents]`, and the actions for the critics, zeros where it did not."""
        dtype = batch.next_obs["rewards"].dtype
        acted = batch.obs["alive"].to(dtype)
        if self.continuous:
            return acted, batch.action.reshape(*acted.shape, -1) * acted.unsqueeze(2)
        choices = batch.obs["action_mask"].shape[2]
        return acted, _one_hot(batch.action, choices, dtype) * acted.unsqueeze(2)

    def _actions(self, policy: Tensor, obs: Any, noise: Tensor | None, *, relaxed: bool = True) -> Tensor:
        if noise is None:
            return policy
        logits = policy.contiguous().masked_fill(~obs["action_mask"].bool(), -1e9) + noise
        hard = _one_hot(logits.argmax(2), logits.shape[2], logits.dtype)
        if not relaxed:
            return hard
        by_choice = logits.movedim(2, 0).contiguous()  # along a short last axis this takes five times as long
        soft = torch.softmax(by_choice / self.temperature, dim=0).movedim(0, 2)
        return hard + soft - soft.detach()

    def _gumbel(self, batch: Transitions) -> Tensor:
        like = batch.obs["action_mask"]
        uniform = torch.rand(like.shape, dtype=batch.next_obs["rewards"].dtype, device=like.device)
        return -uniform.clamp_min_(1e-20).log_().neg_().log_()  # ten times as fast as drawing exponentials


def _of_each_critic(chosen: Tensor, taken: Tensor) -> Tensor:
    """Return the actions for each critic, of which its own agent's is chosen, `[agents, batch, agents, act_dim]`."""
    own, others = chosen.unbind(1), taken.unbind(1)
    each = [torch.stack([*others[:i], action, *others[i + 1 :]], 1) for i, action in enumerate(own)]
    return torch.stack(each)


def _one_hot(choices: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    return (choices.unsqueeze(2) == torch.arange(count, device=choices.device)).to(dtype)
