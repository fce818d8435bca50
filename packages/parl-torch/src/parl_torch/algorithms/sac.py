"""SAC on PyTorch."""

from typing import Any

import torch
from torch import Tensor, nn

from parl_core.contracts import sac as contract
from parl_core.contracts.batches import Transitions
from parl_torch.algorithm import Algorithm
from parl_torch.losses.squashed import squashed_gaussian
from parl_torch.losses.value import squared_error, td_error
from parl_torch.model import Model

__all__ = ["SAC"]


class SAC(contract.SAC, Algorithm):
    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.model.policy(obs)
        action, log_prob = squashed_gaussian(mean, log_std, self._noise(mean))
        return action, log_prob.unsqueeze(-1)

    def critic_loss(self, batch: Transitions, alpha: Tensor | float, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, obs, next_obs = batch.reward, batch.obs, batch.next_obs
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = discount * (1.0 - batch.terminal.to(r_t.dtype))
            mean_t, log_std_t = self.model.policy(next_obs)
            a_t, log_prob_t = squashed_gaussian(mean_t, log_std_t, noise)
            q1_t, q2_t = self.target_model.value(next_obs, a_t)
            v_t = torch.minimum(q1_t, q2_t).reshape(-1) - alpha * log_prob_t
        q1_tm1, q2_tm1 = self.model.value(obs, batch.action)
        error1 = td_error(q1_tm1.reshape(-1), r_t, discount_t, v_t)
        error2 = td_error(q2_tm1.reshape(-1), r_t, discount_t, v_t)
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
        return torch.minimum(q1, q2).reshape(-1)

    def _temperature_loss(self, excess: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return -self.temperature.log_alpha * excess.mean(), {}

    def _new_temperature(self) -> "_Temperature":
        return _Temperature()


class _Temperature(Model):
    """The logarithm of alpha, in float64: as a scalar it costs nothing, and no model's dtype matters."""

    def __init__(self) -> None:
        self.log_alpha = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def alpha(self) -> Tensor:
        return self.log_alpha.detach().exp()
