"""CrossQ on PyTorch."""

from typing import Any

import torch
from torch import Tensor

from parl_core._nested import map_nested
from parl_core.contracts import crossq as contract
from parl_core.contracts.batches import Transitions
from parl_torch.algorithms.sac import SAC
from parl_torch.losses.squashed import squashed_gaussian
from parl_torch.losses.value import squared_error, td_error

__all__ = ["CrossQ"]


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
