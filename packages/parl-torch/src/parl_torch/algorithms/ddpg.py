"""DDPG on PyTorch."""

import torch
from torch import Tensor

from parl_core.contracts import ddpg as contract
from parl_torch.algorithm import Algorithm
from parl_torch.losses.value import squared_error, td_error

__all__ = ["DDPG"]


class DDPG(contract.DDPG, Algorithm):
    def _critic_loss(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        terminal: Tensor,
        weights: Tensor | None,
        discount: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        r_t = reward.reshape(-1)
        with torch.no_grad():
            discount_t = (self.gamma if discount is None else discount) * (1.0 - terminal.reshape(-1).to(r_t.dtype))
            v_t = self.target_model.value(next_obs, self.target_model.policy(next_obs)).reshape(-1)
        error = td_error(self.model.value(obs, action).reshape(-1), r_t, discount_t, v_t)
        return squared_error(error, weights), error

    def _actor_loss(self, obs: Tensor) -> tuple[Tensor]:
        return (-self.model.value(obs, self.model.policy(obs)).mean(),)
