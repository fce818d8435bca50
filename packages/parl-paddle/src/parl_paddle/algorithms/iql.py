"""IQL on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import iql as contract
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithm import Algorithm
from parl_paddle.distributions import DiagGaussianDistribution
from parl_paddle.losses.offline import expectile, weighted_imitation
from parl_paddle.losses.value import squared_error, td_error

__all__ = ["IQL"]


class IQL(contract.IQL, Algorithm):
    def _policy(self, obs: Tensor) -> Any:
        """Return a distribution of actions: the model's own, or the Gaussian of its pair."""
        output = self.model.policy(obs)
        return output if hasattr(output, "log_prob") else DiagGaussianDistribution(output)

    def sample(self, obs: Tensor) -> Tensor:
        with paddle.no_grad():
            drawn: Tensor = self._policy(obs).sample().clip(-1.0, 1.0)
            return drawn

    def _target_values(self, obs: Tensor, action: Tensor) -> Tensor:
        with paddle.no_grad():
            q1_t, q2_t = self._q_values(self.target_model, obs, action)
            smaller: Tensor = paddle.minimum(q1_t, q2_t)  # type: ignore[no-untyped-call]  # paddle leaves it untyped
            return smaller.reshape([-1])

    def value_loss(self, batch: Transitions, q_t: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return expectile(q_t - self.model.value(batch.obs).reshape([-1]), self.tau), {}

    def actor_loss(self, batch: Transitions, q_t: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        policy = self._policy(batch.obs)
        if isinstance(policy, DiagGaussianDistribution):
            log_prob = policy.logp(batch.action)
        else:
            log_prob = policy.log_prob(batch.action).reshape([len(batch.action), -1]).sum(-1)
        with paddle.no_grad():
            adv_t = q_t - self.model.value(batch.obs).reshape([-1])
        return weighted_imitation(log_prob, adv_t, self.beta, self.MAX_WEIGHT), {}

    def critic_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        r_t = batch.reward
        with paddle.no_grad():
            discount_t = self.discount * (1.0 - batch.terminal.astype(r_t.dtype))
            v_t = self.model.value(batch.next_obs).reshape([-1])
        q1_tm1, q2_tm1 = self._q_values(self.model, batch.obs, batch.action)
        errors = [td_error(q_tm1.reshape([-1]), r_t, discount_t, v_t) for q_tm1 in (q1_tm1, q2_tm1)]
        return squared_error(errors[0]) + squared_error(errors[1]), {}
