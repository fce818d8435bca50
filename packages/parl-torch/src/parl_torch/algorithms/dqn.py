"""DQN and DDQN on PyTorch."""

import math

import torch
from torch import Tensor

from parl_core.contracts import dqn as contract
from parl_torch.algorithm import Algorithm
from parl_torch.losses.offline import huber
from parl_torch.losses.value import double_q_learning, q_learning, squared_error

__all__ = ["DDQN", "DQN"]


class DQN(contract.DQN, Algorithm):
    def _loss(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        terminal: Tensor,
        weights: Tensor | None,
        discount: Tensor | None,
        next_action_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        a_tm1, r_t = action.reshape(-1), reward.reshape(-1)
        q_tm1 = self._values(self.model, obs)
        with torch.no_grad():
            discount_t = (self.gamma if discount is None else discount) * (1.0 - terminal.reshape(-1).to(r_t.dtype))
            q_t = self._values(self.target_model, next_obs)
            q_t_selector = self._values(self.model, next_obs) if self.double else q_t
            if next_action_mask is not None:
                q_t_selector = q_t_selector.masked_fill(~next_action_mask.bool(), -math.inf)
        if self.double or next_action_mask is not None:
            td_error = double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector)
        else:
            td_error = q_learning(q_tm1, a_tm1, r_t, discount_t, q_t)
        return self._of_error(td_error, weights), td_error

    def _of_error(self, td_error: Tensor, weights: Tensor | None) -> Tensor:
        return squared_error(td_error, weights) if self.huber is None else huber(td_error, self.huber, weights)


class DDQN(contract.DDQN, DQN):
    pass
