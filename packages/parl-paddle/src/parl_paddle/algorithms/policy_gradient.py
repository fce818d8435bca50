"""PolicyGradient on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import policy_gradient as contract
from parl_core.contracts.actions import ActionKind, mask_of
from parl_core.contracts.batches import Rollout
from parl_paddle.algorithm import Algorithm
from parl_paddle.distributions import PolicyDistribution
from parl_paddle.losses.policy import log_prob_of_action, policy_gradient

__all__ = ["PolicyGradient"]


class PolicyGradient(contract.PolicyGradient, Algorithm):
    def explore(self, obs: Any, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        with paddle.no_grad():
            policy = self._policy_of(self.predict(obs), mask_of(obs, action_mask))
            action = policy.sample()
            log_prob = policy.logp(action)
            return paddle.zeros_like(log_prob), action, log_prob

    def value(self, obs: Any) -> Tensor:
        with paddle.no_grad():
            output = self.predict(obs)
            probabilities: Tensor = output[0] if self.actions.continuous else output
            return paddle.zeros([len(probabilities)], probabilities.dtype)

    def loss(self, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        action, output, mask = batch.action, self.predict(batch.obs), mask_of(batch.obs, batch.action_mask)
        if self.actions == ActionKind() and mask is None:
            log_prob = log_prob_of_action(output, action.reshape([-1]))
        else:
            log_prob = self._policy_of(output, mask).logp(action)
        return policy_gradient(log_prob, batch.advantage), {}

    def _policy_of(self, output: Any, mask: Tensor | None) -> PolicyDistribution:
        if not self.actions.continuous:
            output = output.clip(min=float(paddle.finfo(output.dtype).tiny)).log()
        return self._distribution(output, self.actions, mask)
