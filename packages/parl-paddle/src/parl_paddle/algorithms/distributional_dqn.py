"""C51, QR-DQN and Rainbow on PaddlePaddle."""

from __future__ import annotations

import math

import paddle
from paddle import Tensor
from paddle.nn import functional as F

from parl_core.contracts import distributional_dqn as contract
from parl_core.contracts.actions import mask_of
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithms.dqn import DQN
from parl_paddle.losses.categorical import cross_entropy, project, relative_entropy
from parl_paddle.losses.quantile import quantile_huber

__all__ = ["C51", "QRDQN", "Rainbow"]


class C51(contract.C51, DQN):
    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        r_t = batch.reward
        mask = mask_of(batch.next_obs, (batch.extra or {}).get("next_action_mask"))
        logits_tm1 = _of_action(self._values(self.model, batch.obs), batch.action)
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            logits_t = self._values(self.target_model, batch.next_obs)
            q_t = self._means_of(self._values(self.model, batch.next_obs) if self.double else logits_t)
            if mask is not None:
                q_t = q_t.masked_fill(~mask.astype("bool"), -math.inf)
            support = self._support(logits_t)
            values = r_t.unsqueeze(1) + discount_t.unsqueeze(1) * support
            p_t = F.softmax(_of_action(logits_t, q_t.argmax(1)), 1)
            target = project(p_t, values, support)
        crossed = cross_entropy(logits_tm1, target)
        loss = crossed.mean() if batch.weights is None else (batch.weights * crossed).mean()
        return loss, {"td_error": relative_entropy(crossed.detach(), target)}

    def _means_of(self, logits: Tensor) -> Tensor:
        return (F.softmax(logits, 1) * self._support(logits).unsqueeze(1)).sum(1)

    def _support(self, logits: Tensor) -> Tensor:
        return paddle.linspace(self.v_min, self.v_max, logits.shape[1], dtype=logits.dtype)


class QRDQN(contract.QRDQN, DQN):
    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        a_tm1, r_t = batch.action, batch.reward
        mask = mask_of(batch.next_obs, (batch.extra or {}).get("next_action_mask"))
        theta_tm1 = _of_action(self._values(self.model, batch.obs), a_tm1)
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            theta_t = self._values(self.target_model, batch.next_obs)
            selector = (self._values(self.model, batch.next_obs) if self.double else theta_t).mean(1)
            if mask is not None:
                selector = selector.masked_fill(~mask.astype("bool"), -math.inf)
            target = r_t.unsqueeze(1) + discount_t.unsqueeze(-1) * _of_action(theta_t, selector.argmax(1))
        td_error = target.mean(1) - theta_tm1.detach().mean(1)
        return quantile_huber(theta_tm1, target, self.kappa, batch.weights), {"td_error": td_error}


class Rainbow(contract.Rainbow, C51):
    pass


def _of_action(distributions: Tensor, action: Tensor) -> Tensor:
    """Return the distribution `[batch, N]` of one action of each row of `[batch, N, act_dim]`."""
    chosen = F.one_hot(action, distributions.shape[2]).astype(distributions.dtype)
    return (distributions * chosen.unsqueeze(1)).sum(2)
