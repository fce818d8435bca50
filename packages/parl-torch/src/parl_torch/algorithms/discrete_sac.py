"""Discrete SAC on PyTorch."""

import torch
from torch import Tensor

from parl_core.contracts import discrete_sac as contract
from parl_core.contracts.actions import mask_of
from parl_core.contracts.batches import Transitions
from parl_torch.algorithms.sac import SAC
from parl_torch.losses.value import squared_error, td_error

__all__ = ["DiscreteSAC"]


class DiscreteSAC(contract.DiscreteSAC, SAC):
    def critic_loss(
        self,
        batch: Transitions,
        alpha: Tensor | float,
        *drawn: Tensor,  # noqa: ARG002 - nothing is drawn here
    ) -> tuple[Tensor, dict[str, Tensor]]:
        r_t, action = batch.reward, batch.action.unsqueeze(1)
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = discount * (1.0 - batch.terminal.to(r_t.dtype))
            p_t, log_p_t, _ = self._policy(batch.next_obs, batch, "next_action_mask")
            q1_t, q2_t = self.target_model.value(batch.next_obs)
            v_t = (p_t * (torch.minimum(q1_t, q2_t) - alpha * log_p_t)).sum(1)
        q1_tm1, q2_tm1 = (values.gather(1, action).squeeze(1) for values in self.model.value(batch.obs))
        error1, error2 = td_error(q1_tm1, r_t, discount_t, v_t), td_error(q2_tm1, r_t, discount_t, v_t)
        loss = squared_error(error1, batch.weights) + squared_error(error2, batch.weights)
        return loss, {"td_error": 0.5 * (error1 + error2)}

    def actor_loss(
        self,
        batch: Transitions,
        alpha: Tensor | float,
        *drawn: Tensor,  # noqa: ARG002 - nothing is drawn here
    ) -> tuple[Tensor, dict[str, Tensor]]:
        p, log_p, count = self._policy(batch.obs, batch, "action_mask")
        with torch.no_grad():
            q1, q2 = self.model.value(batch.obs)
        loss = (p * (alpha * log_p - torch.minimum(q1, q2))).sum(1).mean()
        return loss, {"entropy": -(p * log_p).sum(1).detach(), "largest_entropy": count.log()}

    def _policy(self, obs: Tensor, batch: Transitions, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return probabilities, their logarithms (0 for impossible actions), and the number of possible actions."""
        mask = mask_of(obs, (batch.extra or {}).get(name))
        log_p = self._of(self.model.policy(obs), obs, mask).log_probabilities
        if mask is None:
            return log_p.exp(), log_p, log_p.new_full((len(log_p),), log_p.shape[1])
        possible = mask != 0
        return log_p.exp() * possible, log_p.masked_fill(~possible, 0.0), possible.sum(1).to(log_p.dtype)
