"""DQN and DDQN on PyTorch."""

import functools
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from parl_core.contracts import dqn as contract
from parl_core.contracts.actions import mask_of
from parl_core.contracts.batches import Transitions
from parl_torch.algorithm import Algorithm
from parl_torch.losses.offline import huber
from parl_torch.losses.value import double_q_learning, q_learning, squared_error

__all__ = ["DDQN", "DQN"]


class DQN(contract.DQN, Algorithm):
    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        a_tm1, r_t = batch.action.reshape(-1), batch.reward
        mask = None
        if batch.extra is not None or isinstance(batch.next_obs, Mapping):
            mask = mask_of(batch.next_obs, (batch.extra or {}).get("next_action_mask"))
        values, target_values = getattr(self.model, self._value), getattr(self.target_model, self._value)
        if self._reduces:
            values, target_values = (functools.partial(self._run, network) for network in (values, target_values))
        q_tm1 = values(batch.obs)
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = discount * (1.0 - batch.terminal.to(r_t.dtype))
            q_t = target_values(batch.next_obs)
            q_t_selector = values(batch.next_obs) if self.double else q_t
            if mask is not None:
                q_t_selector = q_t_selector.masked_fill(~mask.bool(), -math.inf)
        if self.double or mask is not None:
            td_error = double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector)
        else:
            td_error = q_learning(q_tm1, a_tm1, r_t, discount_t, q_t)
        if self.huber is None:
            return squared_error(td_error, batch.weights), {"td_error": td_error}
        return huber(td_error, self.huber, batch.weights), {"td_error": td_error}

    def _of_error(self, td_error: Tensor, weights: Tensor | None) -> Tensor:
        return squared_error(td_error, weights) if self.huber is None else huber(td_error, self.huber, weights)


class DDQN(contract.DDQN, DQN):
    pass
