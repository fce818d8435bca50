"""PolicyGradient on PaddlePaddle; documented in `parl_core.contracts.policy_gradient`."""

from __future__ import annotations

from typing import Any

import paddle

from parl_core.contracts import policy_gradient as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses import reinforce

__all__ = ["PolicyGradient"]

_TINY = 1e-38  # probabilities that underflowed to 0 get a large finite log-probability, not -inf


class PolicyGradient(Algorithm, contract.PolicyGradient):
    __doc__ = contract.PolicyGradient.__doc__

    def predict(self, obs: Any) -> Any:
        return getattr(self.model, self._policy)(obs)

    def learn(self, obs: Any, action: Any, reward: Any, lr: Any = None) -> Any:
        probability = paddle.index_sample(self.predict(obs), action.reshape([-1, 1])).squeeze(-1)
        loss = reinforce(paddle.log(probability.clip(min=_TINY)), reward.reshape([-1]))
        self.optimizer.minimize(loss, lr)
        return loss.detach()
