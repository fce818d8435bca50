"""TQC on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import tqc as contract
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithms.sac import SAC
from parl_paddle.losses.quantile import quantile_huber
from parl_paddle.losses.squashed import squashed_gaussian

__all__ = ["TQC"]


class TQC(contract.TQC, SAC):
    def critic_loss(self, batch: Transitions, alpha: Tensor | float, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, next_obs = batch.reward, batch.next_obs
        theta_tm1 = self.model.quantiles(batch.obs, batch.action)
        critics, count = theta_tm1.shape[1:]
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = (going_on * (self.gamma if batch.discount is None else batch.discount)).unsqueeze(-1)
            mean_t, log_std_t = self.model.policy(next_obs)
            a_t, log_prob_t = squashed_gaussian(mean_t, log_std_t, noise)
            theta_t = self.target_model.quantiles(next_obs, a_t).flatten(1).sort(axis=1)
            kept = theta_t[:, : critics * (count - self.drop)] - alpha * log_prob_t.unsqueeze(1)
            target = r_t.unsqueeze(1) + discount_t * kept
            td_error = target.mean(1) - theta_tm1.detach().mean([1, 2])
        losses = [quantile_huber(theta, target, 1.0, batch.weights) for theta in theta_tm1.unbind(1)]
        return paddle.stack(losses).mean() / count, {"td_error": td_error}

    def _policy_value(self, obs: Any, action: Tensor) -> Tensor:
        value: Tensor = self.model.quantiles(obs, action).mean([1, 2])
        return value
