"""Q-learning on logged data, on PaddlePaddle."""

from __future__ import annotations

import math
from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import offline_q as contract
from parl_core.contracts.actions import mask_of
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithms.dqn import DQN
from parl_paddle.losses.value import double_q_learning

__all__ = ["OfflineQ"]


class OfflineQ(contract.OfflineQ, DQN):
    def loss(self, batch: Transitions, share: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        if share is None and self.heads > 1:
            share = self._mixture(batch.reward)
        a_tm1, r_t = batch.action.reshape([-1]), batch.reward
        obs, next_obs = batch.obs, batch.next_obs
        mask = mask_of(next_obs, (batch.extra or {}).get("next_action_mask"))
        q_tm1 = self._mixed(self.model, obs, share)
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            q_t = self._mixed(self.target_model, next_obs, share)
            q_t_selector = self._mixed(self.model, next_obs, share) if self.double else q_t
            if mask is not None:
                q_t_selector = q_t_selector.masked_fill(~mask.astype("bool"), -math.inf)
        error = double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector)
        return self._of_error(error, batch.weights), {"td_error": error}

    def _mixed(self, model: Any, obs: Tensor, share: Tensor | None) -> Tensor:
        values: Tensor = self._values(model, obs)
        return values if share is None else (values * share).sum(axis=1)

    def _mixture(self, like: Tensor) -> Tensor:
        """Return the shares of the heads `[heads, 1]`, which sum to 1."""
        drawn = paddle.rand([self.heads, 1], dtype=like.dtype)
        return drawn / drawn.sum()
