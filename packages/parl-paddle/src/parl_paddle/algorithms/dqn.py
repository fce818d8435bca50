"""DQN and DDQN on PaddlePaddle."""

from __future__ import annotations

import math

import paddle
from paddle import Tensor

from parl_core.contracts import dqn as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.offline import huber
from parl_paddle.losses.value import double_q_learning, q_learning, squared_error

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
        a_tm1, r_t = action.reshape([-1]), reward.reshape([-1])
        q_tm1 = self._values(self.model, obs)
        with paddle.no_grad():
            going_on = 1.0 - terminal.reshape([-1]).astype(r_t.dtype)
            discount_t = going_on * (self.gamma if discount is None else discount)
            q_t = self._values(self.target_model, next_obs)
            q_t_selector = self._values(self.model, next_obs) if self.double else q_t
            if next_action_mask is not None:
                impossible = paddle.full_like(q_t_selector, -math.inf)
                q_t_selector = paddle.where(next_action_mask.astype("bool"), q_t_selector, impossible)
        if self.double or next_action_mask is not None:
            td_error = double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector)
        else:
            td_error = q_learning(q_tm1, a_tm1, r_t, discount_t, q_t)
        return self._of_error(td_error, weights), td_error

    def _of_error(self, td_error: Tensor, weights: Tensor | None) -> Tensor:
        return squared_error(td_error, weights) if self.huber is None else huber(td_error, self.huber, weights)


class DDQN(contract.DDQN, DQN):
    pass
