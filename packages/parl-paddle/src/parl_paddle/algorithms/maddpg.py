"""MADDPG on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor

from parl_core.contracts import maddpg as contract
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithm import Algorithm
from parl_paddle.distributions import SoftCategoricalDistribution

__all__ = ["MADDPG", "OneAgentMADDPG"]


class OneAgentMADDPG(contract.OneAgentMADDPG, Algorithm):
    def _action(self, output: Any, *, drawn: bool) -> Tensor:
        if self.continuous_actions:
            mean, log_std = output
            return paddle.tanh(mean + log_std.exp() * self._noise(mean) if drawn else mean)
        return SoftCategoricalDistribution(output).sample() if drawn else F.softmax(output, axis=-1)


class MADDPG(contract.MADDPG, Algorithm):
    ONE_AGENT_FORM = OneAgentMADDPG

    def critic_loss(self, batch: Transitions, noise: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = batch.obs, batch.next_obs
        acted, taken = self._taken(batch)
        with paddle.no_grad():
            of_all = batch.terminal.astype(acted.dtype).reshape([-1, 1])
            ends = paddle.maximum(next_obs["terminated"].astype(acted.dtype), of_all)  # type: ignore[no-untyped-call]
            goes_on = acted * (1.0 - ends)
            alive = next_obs["alive"].astype(acted.dtype)
            cut = (goes_on * (1.0 - alive)).t().unsqueeze(2)  # [agents, batch, 1]: see all that have not ended
            there = paddle.maximum(alive, cut * goes_on).unsqueeze(3)  # type: ignore[no-untyped-call]
            a_t = self._actions(self.target_model.policy(next_obs), next_obs, noise) * there
            target = next_obs["rewards"] + self.gamma * goes_on * self._values(self.target_model, next_obs, a_t)
        q_tm1 = self._values(self.model, obs, taken)
        error = (target - q_tm1) * acted
        return (error.square().sum(0) / acted.sum(0).clip(min=1.0)).sum(), {}

    def actor_loss(self, batch: Transitions, noise: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        obs = batch.obs
        acted, taken = self._taken(batch)
        policy = self.model.policy(obs)
        chosen, count = self._actions(policy, obs, noise), acted.sum(0).clip(min=1.0)
        own = paddle.where(paddle.eye(acted.shape[1]).astype("bool").unsqueeze([1, 3]), chosen, taken)
        losses = self.policy_decay * self._mean_square(policy) - self._values(self.model, obs, own)
        loss = ((losses * acted).sum(0) / count).sum()
        return loss, {}

    def _side_by_side(self, columns: list[Tensor]) -> Tensor:
        return paddle.stack([column.reshape([-1]) for column in columns], 1)

    def _taken(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Return 1 where an agent acted, `[batch, agents]`, and the actions for the critics, zeros where it did not."""
        dtype = batch.next_obs["rewards"].dtype
        acted = batch.obs["alive"].astype(dtype)
        if self.continuous:
            return acted, batch.action.reshape([*acted.shape, -1]) * acted.unsqueeze(2)
        choices = batch.obs["action_mask"].shape[2]
        return acted, F.one_hot(batch.action.astype("int64"), choices).astype(dtype) * acted.unsqueeze(2)

    def _actions(self, policy: Tensor, obs: Any, noise: Tensor | None) -> Tensor:
        if noise is None:
            return policy
        logits = paddle.where(obs["action_mask"].astype("bool"), policy, paddle.full_like(policy, -1e9))
        soft = F.softmax((logits + noise) / self.temperature, axis=2)
        hard = F.one_hot(soft.argmax(2), soft.shape[2]).astype(soft.dtype)
        return hard + soft - soft.detach()

    def _gumbel(self, batch: Transitions) -> Tensor:
        mask, dtype = batch.obs["action_mask"], batch.next_obs["rewards"].dtype
        uniform = paddle.uniform(mask.shape, dtype, 0.0, 1.0).clip(1e-20, 1.0 - 1e-7)
        return -paddle.log(-paddle.log(uniform))
