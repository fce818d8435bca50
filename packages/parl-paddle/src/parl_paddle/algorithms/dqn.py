"""DQN and double DQN on PaddlePaddle; documented in `parl_core.contracts.dqn`."""

from __future__ import annotations

from typing import Any

import paddle

from parl_core.contracts import dqn as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses import action_values, double_q_target, q_target, weighted_square
from parl_paddle.programs import in_program

__all__ = ["DDQN", "DQN"]


class DQN(Algorithm, contract.DQN):
    __doc__ = contract.DQN.__doc__

    def predict(self, obs: Any) -> Any:
        return getattr(self.model, self._value)(obs)

    def learn(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminal: Any,
        learning_rate: Any = None,
        *,
        weights: Any = None,
        discount: Any = None,
    ) -> Any:
        with paddle.no_grad():
            target = self._target(reward.reshape([-1]), next_obs, terminal.reshape([-1]), discount)
        td_error = target.detach() - action_values(self.predict(obs), action.reshape([-1]))
        loss = weighted_square(td_error, weights)
        self.optimizer.minimize(loss, learning_rate)
        if not in_program():  # a program is built once and run often: there the caller synchronises
            self._count_update()
        return loss.detach() if weights is None else (loss.detach(), td_error.detach())

    def _target(self, r_t: Any, next_obs: Any, terminal: Any, discount: Any) -> Any:
        discount_t = (1.0 - terminal.astype(r_t.dtype)) * (self.gamma if discount is None else discount)
        q_t = getattr(self.target_model, self._value)(next_obs)
        if self.double:
            return double_q_target(r_t, discount_t, q_t, self.predict(next_obs))
        return q_target(r_t, discount_t, q_t)


class DDQN(DQN, contract.DDQN):
    __doc__ = contract.DDQN.__doc__
