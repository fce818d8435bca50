"""QR-DQN on PaddlePaddle."""

from __future__ import annotations

import math

import paddle
from paddle import Tensor

from parl_core.contracts import qr_dqn as contract
from parl_core.contracts.actions import mask_of
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithms.dqn import DQN, of_action
from parl_paddle.losses.quantile import quantile_huber

__all__ = ["QRDQN"]


class QRDQN(contract.QRDQN, DQN):
    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        a_tm1, r_t = batch.action.reshape([-1]), batch.reward
        mask = mask_of(batch.next_obs, (batch.extra or {}).get("next_action_mask"))
        theta_tm1 = of_action(self._values(self.model, batch.obs), a_tm1)
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            theta_t = self._values(self.target_model, batch.next_obs)
            selector = (self._values(self.model, batch.next_obs) if self.double else theta_t).mean(1)
            if mask is not None:
                selector = selector.masked_fill(~mask.astype("bool"), -math.inf)
            target = r_t.unsqueeze(1) + discount_t.unsqueeze(-1) * of_action(theta_t, selector.argmax(1))
        td_error = target.mean(1) - theta_tm1.detach().mean(1)
        return quantile_huber(theta_tm1, target, self.kappa, batch.weights), {"td_error": td_error}
