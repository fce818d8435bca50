"""C51 on PaddlePaddle."""

from __future__ import annotations

import math

import paddle
from paddle import Tensor
from paddle.nn import functional as F

from parl_core.contracts import c51 as contract
from parl_core.contracts.actions import mask_of
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithms.dqn import DQN, of_action
from parl_paddle.losses.categorical import cross_entropy, project, relative_entropy

__all__ = ["C51"]


class C51(contract.C51, DQN):
    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        r_t = batch.reward
        mask = mask_of(batch.next_obs, (batch.extra or {}).get("next_action_mask"))
        logits_tm1 = of_action(self._values(self.model, batch.obs), batch.action.reshape([-1]))
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            logits_t = self._values(self.target_model, batch.next_obs)
            q_t = self._means_of(self._values(self.model, batch.next_obs) if self.double else logits_t)
            if mask is not None:
                q_t = q_t.masked_fill(~mask.astype("bool"), -math.inf)
            support = self._support(logits_t)
            values = r_t.unsqueeze(1) + discount_t.unsqueeze(1) * support
            p_t = F.softmax(of_action(logits_t, q_t.argmax(1)), 1)
            target = project(p_t, values, support)
        crossed = cross_entropy(logits_tm1, target)
        loss = crossed.mean() if batch.weights is None else (batch.weights * crossed).mean()
        return loss, {"td_error": relative_entropy(crossed.detach(), target)}

    def _means_of(self, logits: Tensor) -> Tensor:
        return (F.softmax(logits, 1) * self._support(logits).unsqueeze(1)).sum(1)

    def _support(self, logits: Tensor) -> Tensor:
        return paddle.linspace(self.v_min, self.v_max, logits.shape[1], dtype=logits.dtype)
