"""PolicyGradient on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import policy_gradient as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.data_parallel import means
from parl_paddle.distributions import CategoricalDistribution, DiagGaussianDistribution
from parl_paddle.losses.policy import log_prob_of_action, policy_gradient
from parl_paddle.optim import Adam

__all__ = ["PolicyGradient"]


class PolicyGradient(contract.PolicyGradient, Algorithm):
    __doc__ = contract.PolicyGradient.__doc__

    optimizer: Adam

    def predict(self, obs: Any) -> Any:
        output: Any = getattr(self.model, self._policy)(obs)
        if self.actions.continuous:
            mean, std = output
            return mean, std.expand_as(mean)
        return output

    def explore(self, obs: Any, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        with paddle.no_grad():
            if action_mask is not None:
                raise TypeError("PolicyGradient does not mask actions; PPO and A2C do")
            policy = self._distribution(self.predict(obs))
            action = policy.sample()
            log_prob = policy.logp(action)
            return paddle.zeros_like(log_prob), action, log_prob

    def value(self, obs: Any) -> Tensor:
        with paddle.no_grad():
            output = self.predict(obs)
            probabilities: Tensor = output[0] if self.actions.continuous else output
            return paddle.zeros([len(probabilities)], probabilities.dtype)

    def learn(self, obs: Any, action: Tensor, reward: Tensor, lr: float | Tensor | None = None) -> Tensor:
        lr = self._now("lr", self.lr, lr)
        loss: Tensor
        (loss,) = self.optimizer.descend(self._losses, obs, action, reward.reshape([-1]), lr=lr)
        self._after_each_update(self._count_update)
        return loss

    def _losses(self, obs: Any, action: Tensor, weight: Tensor) -> tuple[Tensor]:
        output = self.predict(obs)
        if self.actions.continuous:
            log_prob = self._distribution(output).logp(action)
        else:
            log_prob = log_prob_of_action(output, action.reshape([-1]))
        return (policy_gradient(log_prob, weight),)

    def _distribution(self, output: Any) -> CategoricalDistribution | DiagGaussianDistribution:
        if self.actions.continuous:
            return DiagGaussianDistribution.from_std(*output)
        return CategoricalDistribution(output.clip(min=float(paddle.finfo(output.dtype).tiny)).log())

    def _means(self, steps: list[tuple[Any, ...]]) -> list[float]:
        return means(steps)
