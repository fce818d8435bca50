"""C51, QR-DQN and Rainbow on PyTorch."""

import math

import torch
from torch import Tensor

from parl_core.contracts import distributional_dqn as contract
from parl_core.contracts.actions import mask_of
from parl_core.contracts.batches import Transitions
from parl_torch.algorithms.dqn import DQN
from parl_torch.losses.categorical import cross_entropy, project, relative_entropy
from parl_torch.losses.quantile import quantile_huber

__all__ = ["C51", "QRDQN", "Rainbow"]


class C51(contract.C51, DQN):
    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        r_t = batch.reward
        mask = mask_of(batch.next_obs, (batch.extra or {}).get("next_action_mask"))
        logits_tm1 = _of_action(self._values(self.model, batch.obs), batch.action)
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = discount * (1.0 - batch.terminal.to(r_t.dtype))
            logits_t = self._values(self.target_model, batch.next_obs)
            q_t = self._means_of(self._values(self.model, batch.next_obs) if self.double else logits_t)
            if mask is not None:
                q_t = q_t.masked_fill(~mask.bool(), -math.inf)
            support = self._support(logits_t)
            values = r_t.unsqueeze(1) + discount_t.unsqueeze(1) * support
            p_t = torch.softmax(_of_action(logits_t, q_t.argmax(1)), 1)
            target = project(p_t, values, support)
        crossed = cross_entropy(logits_tm1, target)
        loss = crossed.mean() if batch.weights is None else (batch.weights * crossed).mean()
        return loss, {"td_error": relative_entropy(crossed.detach(), target)}

    def _means_of(self, logits: Tensor) -> Tensor:
        return (torch.softmax(logits, 1) * self._support(logits).unsqueeze(1)).sum(1)

    def _support(self, logits: Tensor) -> Tensor:
        return torch.linspace(self.v_min, self.v_max, logits.shape[1], dtype=logits.dtype, device=logits.device)


def _of_action(logits: Tensor, action: Tensor) -> Tensor:
    """Return the logits `[batch, N]` of one action of each row of `[batch, N, act_dim]`."""
    return logits.gather(2, action.reshape(-1, 1, 1).expand(-1, logits.shape[1], 1)).squeeze(2)


class QRDQN(contract.QRDQN, DQN):
    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        a_tm1, r_t, rows = batch.action, batch.reward, torch.arange(len(batch.reward))
        mask = mask_of(batch.next_obs, (batch.extra or {}).get("next_action_mask"))
        theta_tm1 = self._values(self.model, batch.obs)[rows, :, a_tm1]
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = discount * (1.0 - batch.terminal.to(r_t.dtype))
            theta_t = self._values(self.target_model, batch.next_obs)
            selector = (self._values(self.model, batch.next_obs) if self.double else theta_t).mean(1)
            if mask is not None:
                selector = selector.masked_fill(~mask.bool(), -math.inf)
            target = r_t.unsqueeze(1) + discount_t.unsqueeze(-1) * theta_t[rows, :, selector.argmax(1)]
        td_error = target.mean(1) - theta_tm1.detach().mean(1)
        return quantile_huber(theta_tm1, target, self.kappa, batch.weights), {"td_error": td_error}


class Rainbow(contract.Rainbow, C51):
    pass
