"""REDQ and DroQ on PyTorch."""

from typing import Any

import torch
from torch import Tensor

from parl_core.contracts import redq as contract
from parl_core.contracts.batches import Transitions
from parl_torch.algorithms.sac import SAC
from parl_torch.losses.squashed import squashed_gaussian
from parl_torch.losses.value import squared_error, td_error

__all__ = ["REDQ", "DroQ"]


class REDQ(contract.REDQ, SAC):
    def critic_loss(self, batch: Transitions, alpha: Tensor | float, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, next_obs = batch.reward, batch.next_obs
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = discount * (1.0 - batch.terminal.to(r_t.dtype))
            mean_t, log_std_t = self.model.policy(next_obs)
            a_t, log_prob_t = squashed_gaussian(mean_t, log_std_t, noise)
            q_t = self.target_model.value(next_obs, a_t)
            drawn = self._noise(q_t[0]).argsort()[: self.subset]
            v_t = q_t.index_select(1, drawn).amin(dim=1) - alpha * log_prob_t
        errors = [td_error(q, r_t, discount_t, v_t) for q in self.model.value(batch.obs, batch.action).unbind(1)]
        losses = [squared_error(error, batch.weights) for error in errors]
        return torch.stack(losses).sum(), {"td_error": torch.stack(errors).mean(dim=0)}

    def _policy_value(self, obs: Any, action: Tensor) -> Tensor:
        value: Tensor = self.model.value(obs, action).mean(dim=1)
        return value


class DroQ(contract.DroQ, REDQ):
    pass
