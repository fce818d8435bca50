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
            there = torch.maximum(next_obs["alive"].to(acted.dtype), goes_on).unsqueeze(2)
            a_t = self._actions(self.target_model.policy(next_obs), next_obs, noise) * there
            v_t = [self.target_model.value(next_obs, a_t, i).reshape(-1) for i in range(acted.shape[1])]
            target = next_obs["rewards"] + self.gamma * goes_on * torch.stack(v_t, 1)
        q_tm1 = torch.stack([self.model.value(obs, taken, i).reshape(-1) for i in range(acted.shape[1])], 1)
        error = (target - q_tm1) * acted
        return (error.square().sum(0) / acted.sum(0).clamp(min=1.0)).sum(), {}

    def actor_loss(self, batch: Transitions, noise: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        obs = batch.obs
        acted, taken = self._taken(batch)
        policy = self.model.policy(obs)
        chosen, count = self._actions(policy, obs, noise), acted.sum(0).clamp(min=1.0)
        loss = policy.new_zeros(())
        for i in range(acted.shape[1]):
            own = torch.cat([taken[:, :i], chosen[:, i : i + 1], taken[:, i + 1 :]], 1)
            value = self.model.value(obs, own, i).reshape(-1)
            decay = self.policy_decay * policy[:, i].square().mean(1)
            loss = loss + ((decay - value) * acted[:, i]).sum() / count[i]
        return loss, {}

    def _taken(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Return 1 where an agent acted, `[batch, agents]`, and the actions for the critics, zeros where it did not."""
        dtype = batch.next_obs["rewards"].dtype
        acted = batch.obs["alive"].to(dtype)
        if self.continuous:
            return acted, batch.action.reshape(*acted.shape, -1) * acted.unsqueeze(2)
        choices = batch.obs["action_mask"].shape[2]
        return acted, torch.nn.functional.one_hot(batch.action.long(), choices).to(dtype) * acted.unsqueeze(2)

    def _actions(self, policy: Tensor, obs: Any, noise: Tensor | None) -> Tensor:
        if noise is None:
            return policy
        logits = policy.masked_fill(~obs["action_mask"].bool(), -1e9)
        soft = torch.softmax((logits + noise) / self.temperature, dim=2)
        hard = torch.nn.functional.one_hot(soft.argmax(2), soft.shape[2]).to(soft.dtype)
        return hard + soft - soft.detach()

    def _gumbel(self, batch: Transitions) -> Tensor:
        like = torch.empty_like(batch.obs["action_mask"], dtype=batch.next_obs["rewards"].dtype)
        return -like.exponential_().log()
