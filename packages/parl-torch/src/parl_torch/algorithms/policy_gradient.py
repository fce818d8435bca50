"""PolicyGradient on PyTorch."""

from typing import Any

import torch
from torch import Tensor

from parl_core.contracts import policy_gradient as contract
from parl_core.contracts.actions import ActionKind, mask_of
from parl_core.contracts.batches import Rollout
from parl_torch.algorithm import Algorithm
from parl_torch.distributions import PolicyDistribution
from parl_torch.losses.policy import log_prob_of_action, policy_gradient

__all__ = ["PolicyGradient"]


class PolicyGradient(contract.PolicyGradient, Algorithm):
    @torch.no_grad()
    def explore(self, obs: Any, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        policy = self._policy_of(self.predict(obs), mask_of(obs, action_mask))
        action = policy.sample()
        log_prob = policy.logp(action)
        return torch.zeros_like(log_prob), action, log_prob

    @torch.no_grad()
    def value(self, obs: Any) -> Tensor:
        output = self.predict(obs)
        probabilities: Tensor = output[0] if self.actions.continuous else output
        return probabilities.new_zeros(len(probabilities))

    def loss(self, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        action, output, mask = batch.action, self.predict(batch.obs), mask_of(batch.obs, batch.action_mask)
        if self.actions == ActionKind() and mask is None:
            log_prob = log_prob_of_action(output, action.reshape(-1))
        else:
            log_prob = self._policy_of(output, mask).logp(action)
        return policy_gradient(log_prob, batch.advantage), {}

    def _policy_of(self, output: Any, mask: Tensor | None) -> PolicyDistribution:
        if not self.actions.continuous:
            output = output.clamp_min(torch.finfo(output.dtype).tiny).log()
        return self._distribution(output, self.actions, mask)
