"""Q-learning on logged data, on PaddlePaddle."""

from __future__ import annotations

import math
from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import offline_q as contract
from parl_paddle.algorithms.dqn import DQN
from parl_paddle.losses.value import double_q_learning

__all__ = ["OfflineQ"]


class OfflineQ(contract.OfflineQ, DQN):
    def _mixed_loss(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        terminal: Tensor,
        weights: Tensor | None,
        discount: Tensor | None,
        next_action_mask: Tensor | None,
        share: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        a_tm1, r_t = action.reshape([-1]), reward.reshape([-1])
        q_tm1 = self._mixed(self.model, obs, share)
        with paddle.no_grad():
            going_on = 1.0 - terminal.reshape([-1]).astype(r_t.dtype)
            discount_t = going_on * (self.gamma if discount is None else discount)
            q_t = self._mixed(self.target_model, next_obs, share)
            q_t_selector = self._mixed(self.model, next_obs, share) if self.double else q_t
            if next_action_mask is not None:
                q_t_selector = q_t_selector.masked_fill(~next_action_mask.astype("bool"), -math.inf)
        error = double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector)
        return self._of_error(error, weights), error

    def _mixed(self, model: Any, obs: Tensor, share: Tensor | None) -> Tensor:
        values: Tensor = self._values(model, obs)
        return values if share is None else (values * share).sum(axis=1)

    def _mixture(self, like: Tensor) -> Tensor:
        """Return the shares of the heads `[heads, 1]`, which sum to 1."""
        drawn = paddle.rand([self.heads, 1], dtype=like.dtype)
        return drawn / drawn.sum()
