"""CrossQ on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core._nested import map_nested
from parl_core.contracts import crossq as contract
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithms.sac import SAC
from parl_paddle.losses.squashed import squashed_gaussian
from parl_paddle.losses.value import squared_error, td_error

__all__ = ["CrossQ"]


class CrossQ(contract.CrossQ, SAC):
    def _next_actions(self, next_obs: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        with paddle.no_grad():
            mean_t, log_std_t = self.model.policy(next_obs)
            return squashed_gaussian(mean_t, log_std_t, noise)

    def critic_loss(self, batch: Transitions, *drawn: Any) -> tuple[Tensor, dict[str, Tensor]]:
        alpha, a_t, log_prob_t = drawn
        r_t, rows = batch.reward, batch.reward.shape[0]
        both = map_nested(lambda now, later: paddle.concat([now, later]), batch.obs, batch.next_obs)
        values = [q.reshape([-1]) for q in self.model.value(both, paddle.concat([batch.action, a_t]))]
        going_on = 1.0 - batch.terminal.astype(r_t.dtype)
        discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
        q1_t, q2_t = (q[rows:].detach() for q in values)
        v_t = paddle.minimum(q1_t, q2_t) - alpha * log_prob_t  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        errors = [td_error(q[:rows], r_t, discount_t, v_t) for q in values]
        loss = squared_error(errors[0], batch.weights) + squared_error(errors[1], batch.weights)
        return loss, {"td_error": 0.5 * (errors[0] + errors[1])}

    def _policy_value(self, obs: Any, action: Tensor) -> Tensor:
        with self._evaluating():
            return super()._policy_value(obs, action)
