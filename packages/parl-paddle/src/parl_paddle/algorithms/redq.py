"""REDQ and DroQ on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import redq as contract
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithms.sac import SAC
from parl_paddle.losses.squashed import squashed_gaussian
from parl_paddle.losses.value import squared_error, td_error

__all__ = ["REDQ", "DroQ"]


class REDQ(contract.REDQ, SAC):
    def critic_loss(self, batch: Transitions, alpha: Tensor | float, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, next_obs = batch.reward, batch.next_obs
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            mean_t, log_std_t = self.model.policy(next_obs)
            a_t, log_prob_t = squashed_gaussian(mean_t, log_std_t, noise)
            q_t = self.target_model.value(next_obs, a_t)
            drawn = self._noise(q_t[0]).argsort()[: self.subset]
            v_t = q_t.index_select(drawn, 1).min(axis=1) - alpha * log_prob_t
        errors = [td_error(q, r_t, discount_t, v_t) for q in self.model.value(batch.obs, batch.action).unbind(1)]
        losses = [squared_error(error, batch.weights) for error in errors]
        return paddle.stack(losses).sum(), {"td_error": paddle.stack(errors).mean(axis=0)}

    def _policy_value(self, obs: Any, action: Tensor) -> Tensor:
        value: Tensor = self.model.value(obs, action).mean(axis=1)
        return value


class DroQ(contract.DroQ, REDQ):
    pass
