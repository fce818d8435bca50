"""PolicyGradient on PyTorch."""

from typing import Any

import torch
from torch import Tensor

from parl_core.contracts import policy_gradient as contract
from parl_core.contracts.actions import ActionKind, mask_of
from parl_torch.algorithm import Algorithm
from parl_torch.data_parallel import means, normalised
from parl_torch.distributions import PolicyDistribution, policy_distribution
from parl_torch.losses.policy import log_prob_of_action, policy_gradient

__all__ = ["PolicyGradient"]


class PolicyGradient(contract.PolicyGradient, Algorithm):
    __doc__ = contract.PolicyGradient.__doc__

    def predict(self, obs: Any) -> Any:
        output: Any = getattr(self.model, self._policy)(obs)
        if self.actions.continuous:
            mean, std = output
            return mean, std.expand_as(mean)
        return output

    @torch.no_grad()
    def explore(self, obs: Any, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        policy = self._distribution(self.predict(obs), mask_of(obs, action_mask))
        action = policy.sample()
        log_prob = policy.logp(action)
        return torch.zeros_like(log_prob), action, log_prob

    @torch.no_grad()
    def value(self, obs: Any) -> Tensor:
        output = self.predict(obs)
        probabilities: Tensor = output[0] if self.actions.continuous else output
        return probabilities.new_zeros(len(probabilities))

    def learn(
        self,
        obs: Any,
        action: Tensor,
        reward: Tensor,
        lr: float | None = None,
        *,
        action_mask: Tensor | None = None,
    ) -> Tensor:
        lr = self._now("lr", self.lr, lr)
        loss: Tensor
        (loss,) = self.optimizer.descend(self._losses, obs, action, reward.reshape(-1), action_mask, lr=lr)
        self.updates += 1
        return loss

    def _losses(self, obs: Any, action: Tensor, weight: Tensor, mask: Tensor | None) -> tuple[Tensor]:
        output, mask = self.predict(obs), mask_of(obs, mask)
        if self.actions == ActionKind() and mask is None:
            log_prob = log_prob_of_action(output, action.reshape(-1))
        else:
            log_prob = self._distribution(output, mask).logp(action)
        return (policy_gradient(log_prob, weight),)

    def _distribution(self, output: Any, mask: Tensor | None) -> PolicyDistribution:
        if not self.actions.continuous:
            output = output.clamp_min(torch.finfo(output.dtype).tiny).log()
        return policy_distribution(output, self.actions, mask)

    def _normalised(self, values: Tensor) -> Tensor:
        return normalised(values)

    def _means(self, steps: list[tuple[Any, ...]]) -> list[float]:
        return means(steps)
