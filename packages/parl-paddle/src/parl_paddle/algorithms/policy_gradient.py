"""PolicyGradient on PaddlePaddle."""

from __future__ import annotations

from typing import Any

from parl_core.contracts import policy_gradient as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.policy import log_prob_of_action, policy_gradient

__all__ = ["PolicyGradient"]


class PolicyGradient(contract.PolicyGradient, Algorithm):
    __doc__ = contract.PolicyGradient.__doc__

    def predict(self, obs: Any) -> Any:
        return getattr(self.model, self._policy)(obs)

    def learn(self, obs: Any, action: Any, reward: Any, lr: Any = None) -> Any:
        log_prob = log_prob_of_action(self.predict(obs), action.reshape([-1]))
        loss = policy_gradient(log_prob, reward.reshape([-1]))
        self.optimizer.minimize(loss, lr)
        return loss.detach()
