"""PPO on PaddlePaddle in the form of PARL 1.x; documented in `parl_core.contracts.separate_ppo`."""

from __future__ import annotations

from typing import Any

import paddle

from parl_core.contracts import separate_ppo as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.distributions import DiagGaussian
from parl_paddle.losses import clipped_surrogate

__all__ = ["SeparatePPO"]


class SeparatePPO(Algorithm, contract.SeparatePPO):
    __doc__ = contract.SeparatePPO.__doc__

    def predict(self, obs: Any) -> Any:
        means, log_variances = self.model.policy(obs)
        return means, log_variances + paddle.zeros_like(means)

    def sample(self, obs: Any) -> Any:
        return _distribution(self.model.policy(obs)).sample()

    def policy_learn(self, obs: Any, actions: Any, advantages: Any, beta: Any = None) -> Any:
        with paddle.no_grad():
            old_means, old_log_variances = self.old_policy_model.policy(obs)
        old = _distribution((old_means.detach(), old_log_variances.detach()))
        new = _distribution(self.model.policy(obs))
        ratio = paddle.exp(new.logp(actions) - old.logp(actions))
        advantages = advantages.reshape([-1])
        kl = old.kl(new).mean()
        if beta is None:
            loss = clipped_surrogate(ratio, advantages, self.epsilon)
        else:
            loss = -(ratio * advantages).mean() + beta * kl
        self.policy_optimizer.minimize(loss)
        return loss.detach(), kl.detach()

    def value_learn(self, obs: Any, val: Any) -> Any:
        loss = paddle.square(self.value_predict(obs) - val.reshape([-1])).mean()
        self.value_optimizer.minimize(loss)
        return loss.detach()

    def value_predict(self, obs: Any) -> Any:
        return self.model.value(obs).reshape([-1])


def _distribution(policy: tuple[Any, Any]) -> DiagGaussian:
    means, log_variances = policy
    return DiagGaussian(means, 0.5 * log_variances)
