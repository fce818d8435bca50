"""TQC on PyTorch."""

from typing import Any

import torch
from torch import Tensor

from parl_core.contracts import tqc as contract
from parl_core.contracts.batches import Transitions
from parl_torch.algorithms.sac import SAC
from parl_torch.losses.quantile import quantile_huber
from parl_torch.losses.squashed import squashed_gaussian

__all__ = ["TQC"]


class TQC(contract.TQC, SAC):
    def critic_loss(self, batch: Transitions, alpha: Tensor | float, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, next_obs = batch.reward, batch.next_obs
        theta_tm1 = self.model.quantiles(batch.obs, batch.action)
        critics, count = theta_tm1.shape[1:]
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = (discount * (1.0 - batch.terminal.to(r_t.dtype))).unsqueeze(-1)
            mean_t, log_std_t = self.model.policy(next_obs)
            a_t, log_prob_t = squashed_gaussian(mean_t, log_std_t, noise)
            theta_t = self.target_model.quantiles(next_obs, a_t).flatten(1).sort(dim=1).values
            kept = theta_t[:, : critics * (count - self.drop)] - alpha * log_prob_t.unsqueeze(1)
            target = r_t.unsqueeze(1) + discount_t * kept
            td_error = target.mean(1) - theta_tm1.mean((1, 2))
        losses = [quantile_huber(theta, target, 1.0, batch.weights) for theta in theta_tm1.unbind(1)]
        return torch.stack(losses).mean() / count, {"td_error": td_error}

    def _policy_value(self, obs: Any, action: Tensor) -> Tensor:
        value: Tensor = self.model.quantiles(obs, action).mean((1, 2))
        return value
