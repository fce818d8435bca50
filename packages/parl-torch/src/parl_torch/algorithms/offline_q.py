"""Q-learning on logged data, on PyTorch."""

import math
from typing import Any

import torch
from torch import Tensor

from parl_core.contracts import offline_q as contract
from parl_torch.algorithms.dqn import DQN
from parl_torch.losses.value import double_q_learning

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
        a_tm1, r_t = action.reshape(-1), reward.reshape(-1)
        q_tm1 = self._mixed(self.model, obs, share)
        with torch.no_grad():
            discount_t = (self.gamma if discount is None else discount) * (1.0 - terminal.reshape(-1).to(r_t.dtype))
            q_t = self._mixed(self.target_model, next_obs, share)
            q_t_selector = self._mixed(self.model, next_obs, share) if self.double else q_t
            if next_action_mask is not None:
                q_t_selector = q_t_selector.masked_fill(~next_action_mask.bool(), -math.inf)
        error = double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector)
        return self._of_error(error, weights), error

    def _mixed(self, model: Any, obs: Tensor, share: Tensor | None) -> Tensor:
        values: Tensor = self._values(model, obs)
        return values if share is None else (values * share).sum(dim=1)

    def _mixture(self, like: Tensor) -> Tensor:
        """Return the shares of the heads `[heads, 1]`, which sum to 1."""
        drawn = torch.rand(self.heads, 1, dtype=like.dtype, device=like.device)
        return drawn / drawn.sum()
