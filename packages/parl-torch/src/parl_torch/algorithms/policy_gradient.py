"""PolicyGradient on PyTorch."""

from torch import Tensor

from parl_core.contracts import policy_gradient as contract
from parl_torch.algorithm import Algorithm
from parl_torch.losses.policy import log_prob_of_action, policy_gradient

__all__ = ["PolicyGradient"]


class PolicyGradient(contract.PolicyGradient, Algorithm):
    __doc__ = contract.PolicyGradient.__doc__

    def predict(self, obs: Tensor) -> Tensor:
        probabilities: Tensor = getattr(self.model, self._policy)(obs)
        return probabilities

    def learn(self, obs: Tensor, action: Tensor, reward: Tensor, lr: float | None = None) -> Tensor:
        log_prob = log_prob_of_action(self.predict(obs), action.reshape(-1))
        loss = policy_gradient(log_prob, reward.reshape(-1))
        self.optimizer.minimize(loss, lr)
        return loss.detach()
