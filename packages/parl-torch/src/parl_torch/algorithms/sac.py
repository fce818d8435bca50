"""SAC, OAC, TQC, REDQ, DroQ and CrossQ on PyTorch."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from parl_core._nested import map_nested
from parl_core.contracts import sac as contract
from parl_core.contracts.batches import Transitions
from parl_torch.algorithm import Algorithm
from parl_torch.losses.quantile import quantile_huber
from parl_torch.losses.squashed import squashed_gaussian
from parl_torch.losses.value import squared_error, td_error
from parl_torch.model import Model

__all__ = ["OAC", "REDQ", "SAC", "TQC", "CrossQ", "DroQ"]


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


class OAC(contract.OAC, SAC):
    def get_optimistic_exploration_action(self, obs: Tensor) -> Tensor:
        with torch.no_grad():
            mean, log_std = self.model.policy(obs)
        with torch.enable_grad():
            u = mean.detach().requires_grad_()
            q1, q2 = self.model.value(obs, torch.tanh(u))
            upper_bound = 0.5 * (q1 + q2) + self.beta * 0.5 * (q1 - q2).abs()
            (gradient,) = torch.autograd.grad(upper_bound.sum(), u)
        with torch.no_grad():
            std = log_std.exp()
            norm = (std * gradient).norm(dim=-1, keepdim=True) + 1e-5
            shifted = mean + math.sqrt(2.0 * self.delta) * std.square() * gradient / norm
            return torch.tanh(shifted + std * self._noise(mean))


class TQC(contract.TQC, SAC):
    def critic_loss(self, batch: Transitions, alpha: Tensor | float, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, next_obs = batch.reward, batch.next_obs
        theta_tm1 = self.model.quantiles(batch.obs, batch.action)
        critics, count = theta_tm1.shape[1:]
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = (discount * (1.0 - batch.terminal.to(r_t.dtype))).unsqueeze(-1)
            mean_t, log_std_t = self.model.policy(next_obs)
            a_t, log_prob_t = squashed_gaussian(mean_t, log_std_t, noise)
            theta_t = self.target_model.quantiles(next_obs, a_t).flatten(1).sort(dim=1).values
            kept = theta_t[:, : critics * (count - self.drop)] - alpha * log_prob_t.unsqueeze(1)
            target = r_t.unsqueeze(1) + discount_t * kept
            td_error = target.mean(1) - theta_tm1.mean((1, 2))
        losses = [quantile_huber(theta, target, 1.0, batch.weights) for theta in theta_tm1.unbind(1)]
        return torch.stack(losses).mean() / count, {"td_error": td_error}

    def _policy_value(self, obs: Any, action: Tensor) -> Tensor:
        value: Tensor = self.model.quantiles(obs, action).mean((1, 2))
        return value


class REDQ(contract.REDQ, SAC):
    def critic_loss(self, batch: Transitions, alpha: Tensor | float, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, next_obs = batch.reward, batch.next_obs
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = discount * (1.0 - batch.terminal.to(r_t.dtype))
            mean_t, log_std_t = self.model.policy(next_obs)
            a_t, log_prob_t = squashed_gaussian(mean_t, log_std_t, noise)
            q_t = self.target_model.value(next_obs, a_t)
            drawn = self._noise(q_t[0]).argsort()[: self.subset]
            v_t = q_t.index_select(1, drawn).amin(dim=1) - alpha * log_prob_t
        errors = [td_error(q, r_t, discount_t, v_t) for q in self.model.value(batch.obs, batch.action).unbind(1)]
        losses = [squared_error(error, batch.weights) for error in errors]
        return torch.stack(losses).sum(), {"td_error": torch.stack(errors).mean(dim=0)}

    def _policy_value(self, obs: Any, action: Tensor) -> Tensor:
        value: Tensor = self.model.value(obs, action).mean(dim=1)
        return value


class DroQ(contract.DroQ, REDQ):
    pass


class CrossQ(contract.CrossQ, SAC):
    @torch.no_grad()
    def _next_actions(self, next_obs: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean_t, log_std_t = self.model.policy(next_obs)
        return squashed_gaussian(mean_t, log_std_t, noise)

    def critic_loss(self, batch: Transitions, *drawn: Any) -> tuple[Tensor, dict[str, Tensor]]:
        alpha, a_t, log_prob_t = drawn
        r_t, rows = batch.reward, len(batch.reward)
        both = map_nested(lambda now, later: torch.cat([now, later]), batch.obs, batch.next_obs)
        values = [q.reshape(-1) for q in self.model.value(both, torch.cat([batch.action, a_t]))]
        discount = self.gamma if batch.discount is None else batch.discount
        discount_t = discount * (1.0 - batch.terminal.to(r_t.dtype))
        v_t = torch.minimum(*(q[rows:].detach() for q in values)) - alpha * log_prob_t
        errors = [td_error(q[:rows], r_t, discount_t, v_t) for q in values]
        loss = squared_error(errors[0], batch.weights) + squared_error(errors[1], batch.weights)
        return loss, {"td_error": 0.5 * (errors[0] + errors[1])}

    def _policy_value(self, obs: Any, action: Tensor) -> Tensor:
        with self._evaluating():
            return super()._policy_value(obs, action)
