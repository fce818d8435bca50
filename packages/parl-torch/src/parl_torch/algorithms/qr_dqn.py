"""QR-DQN on PyTorch."""

import math

import torch
from torch import Tensor

from parl_core.contracts import qr_dqn as contract
from parl_core.contracts.actions import mask_of
from parl_core.contracts.batches import Transitions
from parl_torch.algorithms.dqn import DQN
from parl_torch.losses.quantile import quantile_huber

__all__ = ["QRDQN"]


class QRDQN(contract.QRDQN, DQN):
    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        a_tm1, r_t, rows = batch.action.reshape(-1), batch.reward, torch.arange(len(batch.reward))
        mask = mask_of(batch.next_obs, (batch.extra or {}).get("next_action_mask"))
        theta_tm1 = self._values(self.model, batch.obs)[rows, :, a_tm1]
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = discount * (1.0 - batch.terminal.to(r_t.dtype))
            theta_t = self._values(self.target_model, batch.next_obs)
            selector = (self._values(self.model, batch.next_obs) if self.double else theta_t).mean(1)
            if mask is not None:
                selector = selector.masked_fill(~mask.bool(), -math.inf)
            target = r_t.unsqueeze(1) + discount_t.unsqueeze(-1) * theta_t[rows, :, selector.argmax(1)]
        td_error = target.mean(1) - theta_tm1.detach().mean(1)
        return quantile_huber(theta_tm1, target, self.kappa, batch.weights), {"td_error": td_error}
