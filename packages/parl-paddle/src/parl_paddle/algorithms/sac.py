"""SAC on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import sac as contract
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.squashed import squashed_gaussian
from parl_paddle.losses.value import squared_error, td_error
from parl_paddle.model import Model

__all__ = ["SAC"]


class SAC(contract.SAC, Algorithm):
    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.model.policy(obs)
        action, log_prob = squashed_gaussian(mean, log_std, self._noise(mean))
        return action, log_prob.unsqueeze(-1)

    def critic_loss(self, batch: Transitions, alpha: Tensor | float, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, obs, next_obs = batch.reward, batch.obs, batch.next_obs
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            mean_t, log_std_t = self.model.policy(next_obs)
            a_t, log_prob_t = squashed_gaussian(mean_t, log_std_t, noise)
            q1_t, q2_t = self.target_model.value(next_obs, a_t)
            v_t = paddle.minimum(q1_t, q2_t).reshape([-1]) - alpha * log_prob_t  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        q1_tm1, q2_tm1 = self.model.value(obs, batch.action)
        error1 = td_error(q1_tm1.reshape([-1]), r_t, discount_t, v_t)
        error2 = td_error(q2_tm1.reshape([-1]), r_t, discount_t, v_t)
        loss = squared_error(error1, batch.weights) + squared_error(error2, batch.weights)
        return loss, {"td_error": 0.5 * (error1 + error2)}

    def actor_loss(self, batch: Transitions, alpha: Tensor | float, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        mean, log_std = self.model.policy(batch.obs)
        action, log_prob = squashed_gaussian(mean, log_std, noise)
        value = self._policy_value(batch.obs, action)
        return (alpha * log_prob - value).mean(), {"log_prob": log_prob}

    def _policy_value(self, obs: Any, action: Tensor) -> Tensor:
        """Return the values `[batch]` of the policy's actions that the actor ascends."""
        q1, q2 = self.model.value(obs, action)
        smaller: Tensor = paddle.minimum(q1, q2)  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        return smaller.reshape([-1])

    def _temperature_loss(self, excess: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return -self.temperature.log_alpha * excess.mean().astype("float64"), {}

    def _of_dtype(self, number: Tensor | float, like: Tensor) -> Tensor | float:
        return number.astype(like.dtype) if isinstance(number, Tensor) else number

    def _new_temperature(self) -> _Temperature:
        return _Temperature()


class _Temperature(Model):
    """The logarithm of alpha, in float64: as a scalar it costs nothing, and no model's dtype matters."""

    def __init__(self) -> None:
        zero = paddle.nn.initializer.Constant(0.0)
        self.log_alpha = self.create_parameter([], dtype="float64", default_initializer=zero)

    def alpha(self) -> Tensor:
        return self.log_alpha.detach().exp()
