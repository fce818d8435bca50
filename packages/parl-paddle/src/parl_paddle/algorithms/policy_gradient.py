"""PolicyGradient on PaddlePaddle."""

from __future__ import annotations

from paddle import Tensor

from parl_core.contracts import policy_gradient as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.policy import log_prob_of_action, policy_gradient
from parl_paddle.optim import Adam

__all__ = ["PolicyGradient"]


class PolicyGradient(contract.PolicyGradient, Algorithm):
    __doc__ = contract.PolicyGradient.__doc__

    optimizer: Adam

    def predict(self, obs: Tensor) -> Tensor:
        probabilities: Tensor = getattr(self.model, self._policy)(obs)
        return probabilities

    def learn(self, obs: Tensor, action: Tensor, reward: Tensor, lr: float | Tensor | None = None) -> Tensor:
        log_prob = log_prob_of_action(self.predict(obs), action.reshape([-1]))
        loss = policy_gradient(log_prob, reward.reshape([-1]))
        self.optimizer.minimize(loss, lr)
        return loss.detach()
