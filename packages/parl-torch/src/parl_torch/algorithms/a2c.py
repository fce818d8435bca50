"""A2C and A3C on PyTorch."""

from typing import Any

import torch
from torch import Tensor

from parl_core.checks import check_real
from parl_core.contracts import a2c as contract
from parl_core.contracts.actions import mask_of
from parl_torch.algorithm import Algorithm
from parl_torch.data_parallel import joined_sum, means
from parl_torch.distributions import CategoricalDistribution, PolicyDistribution, policy_distribution
from parl_torch.losses.shapes import same_shape

__all__ = ["A2C", "A3C"]


class A2C(contract.A2C, Algorithm):
    __doc__ = contract.A2C.__doc__

    @torch.no_grad()
    def predict(self, obs: Any, action_mask: Tensor | None = None) -> Tensor:
        output = self._run(self.model.policy_and_value, obs)[0] if self._one_pass else self._run(self.model.policy, obs)
        return policy_distribution(output, self.actions, mask_of(obs, action_mask)).mode()

    @torch.no_grad()
    def sample(self, obs: Any, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        policy, value = self._policy_and_value(obs, action_mask)
        return policy.sample(), value

    @torch.no_grad()
    def explore(self, obs: Any, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        policy, value = self._policy_and_value(obs, action_mask)
        action = policy.sample()
        return value, action, policy.logp(action)

    @torch.no_grad()
    def prob_and_value(self, obs: Any, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        policy, value = self._policy_and_value(obs, action_mask)
        if not isinstance(policy, CategoricalDistribution):
            raise TypeError("prob_and_value is for discrete actions; of others, sample gives actions and values")
        return policy.log_probabilities.exp(), value

    @torch.no_grad()
    def value(self, obs: Any) -> Tensor:
        value: Tensor = (
            self._run(self.model.policy_and_value, obs)[1] if self._one_pass else self._run(self.model.value, obs)
        )
        return value.reshape(-1)

    def learn(
        self,
        obs: Any,
        actions: Tensor,
        advantages: Tensor,
        target_values: Tensor,
        learning_rate: float | None = None,
        entropy_coeff: float | None = None,
        *,
        action_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lr = self._now("learning_rate", self.lr, learning_rate)
        coeff = self._now("entropy_coeff", self.entropy_coeff, entropy_coeff, check=check_real)
        batch = (obs, actions, advantages.reshape(-1), target_values.reshape(-1), action_mask)
        _, *figures = self.optimizer.descend(self._losses, *batch, coeff, lr=lr)
        self.updates += 1
        total_loss, pi_loss, vf_loss, entropy = figures
        return total_loss, pi_loss, vf_loss, entropy

    def _losses(
        self, obs: Any, action: Tensor, advantage: Tensor, target: Tensor, mask: Tensor | None, entropy_coeff: float
    ) -> tuple[Tensor, ...]:
        policy, value = self._policy_and_value(obs, mask)
        log_prob = policy.logp(action)
        same_shape(log_prob=log_prob, advantage=advantage, value=value, target=target)
        pi_loss = -(log_prob * advantage).sum()
        vf_loss = 0.5 * (value - target).square().sum()
        entropy = policy.entropy().sum()
        loss = pi_loss + self.vf_loss_coeff * vf_loss + entropy_coeff * entropy
        return joined_sum(loss), loss, pi_loss, vf_loss, entropy

    def _policy_and_value(self, obs: Any, mask: Tensor | None) -> tuple[PolicyDistribution, Tensor]:
        if self._one_pass:
            output, value = self._run(self.model.policy_and_value, obs)
        else:
            output, value = self._run(self.model.policy, obs), self._run(self.model.value, obs)
        return policy_distribution(output, self.actions, mask_of(obs, mask)), value.reshape(-1)

    def _means(self, steps: list[tuple[Any, ...]]) -> list[float]:
        return means(steps)


class A3C(contract.A3C, A2C):
    __doc__ = contract.A3C.__doc__
