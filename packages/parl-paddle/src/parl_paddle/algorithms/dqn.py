"""DQN and DDQN on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import dqn as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.value import double_q_learning, q_learning, squared_error
from parl_paddle.optim import Adam
from parl_paddle.programs import in_program

__all__ = ["DDQN", "DQN"]


class DQN(contract.DQN, Algorithm):
    __doc__ = contract.DQN.__doc__

    optimizer: Adam

    def predict(self, obs: Tensor) -> Tensor:
        return self._values(self.model, obs)

    def learn(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        terminal: Tensor,
        learning_rate: float | Tensor | None = None,
        *,
        weights: Tensor | None = None,
        discount: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        a_tm1, r_t = action.reshape([-1]), reward.reshape([-1])
        q_tm1 = self._values(self.model, obs)
        with paddle.no_grad():
            going_on = 1.0 - terminal.reshape([-1]).astype(r_t.dtype)
            discount_t = going_on * (self.gamma if discount is None else discount)
            q_t = self._values(self.target_model, next_obs)
            q_t_selector = self._values(self.model, next_obs) if self.double else None
        if q_t_selector is None:
            td_error = q_learning(q_tm1, a_tm1, r_t, discount_t, q_t)
        else:
            td_error = double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector)
        loss = squared_error(td_error, weights)
        self.optimizer.minimize(loss, learning_rate)
        if not in_program():  # a program is built once and run often: there its owner synchronises
            self._count_update()
        return loss.detach() if weights is None else (loss.detach(), td_error.detach())

    def _values(self, model: Any, obs: Tensor) -> Tensor:
        values: Tensor = getattr(model, self._value)(obs)
        return values


class DDQN(contract.DDQN, DQN):
    __doc__ = contract.DDQN.__doc__
