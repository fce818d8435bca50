"""AWAC on PaddlePaddle."""

from __future__ import annotations

import paddle
from paddle import Tensor

from parl_core.contracts import awac as contract
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithm import Algorithm
from parl_paddle.distributions import DiagGaussianDistribution
from parl_paddle.losses.offline import weighted_imitation
from parl_paddle.losses.value import squared_error, td_error

__all__ = ["AWAC"]


class AWAC(contract.AWAC, Algorithm):
    def critic_loss(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r_t = batch.reward
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            a_t = self._drawn(batch.next_obs, noise)
            q1_t, q2_t = self.target_model.value(batch.next_obs, a_t)
            v_t = paddle.minimum(q1_t, q2_t).reshape([-1])  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        errors = [td_error(q.reshape([-1]), r_t, discount_t, v_t) for q in self.model.value(batch.obs, batch.action)]
        loss = squared_error(errors[0], batch.weights) + squared_error(errors[1], batch.weights)
        return loss, {"td_error": 0.5 * (errors[0] + errors[1])}

    def actor_loss(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        with paddle.no_grad():
            values = [self.model.value(batch.obs, a) for a in (batch.action, self._drawn(batch.obs, noise))]
            q_t, v_t = (paddle.minimum(*pair).reshape([-1]) for pair in values)  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        log_prob = DiagGaussianDistribution(self.model.policy(batch.obs)).logp(batch.action)
        return weighted_imitation(log_prob, q_t - v_t, 1.0 / self.lam, self.MAX_WEIGHT), {}
