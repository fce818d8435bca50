"""DQN, DDQN, the learner of Ape-X and Q-learning on logged data, on PaddlePaddle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import dqn as contract
from parl_core.contracts.actions import mask_of
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.offline import huber
from parl_paddle.losses.value import double_q_learning, q_learning, squared_error

__all__ = ["DDQN", "DQN", "ApeX", "OfflineQ"]


class DQN(contract.DQN, Algorithm):
    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        if self.remembers:
            return self._loss_of_sequences(batch)
        a_tm1, r_t = batch.action, batch.reward
        mask = None
        if batch.extra is not None or isinstance(batch.next_obs, Mapping):
            mask = mask_of(batch.next_obs, (batch.extra or {}).get("next_action_mask"))
        q_tm1 = self._values(self.model, batch.obs)
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            q_t = self._values(self.target_model, batch.next_obs)
            q_t_selector = self._values(self.model, batch.next_obs) if self.double else q_t
            if mask is not None:
                impossible = paddle.full_like(q_t_selector, -math.inf)
                q_t_selector = paddle.where(mask.astype("bool"), q_t_selector, impossible)
        if self.double or mask is not None:
            td_error = double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector)
        else:
            td_error = q_learning(q_tm1, a_tm1, r_t, discount_t, q_t)
        return self._of_error(td_error, batch.weights), {"td_error": td_error}

    def _loss_of_sequences(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        values = self._unrolled(self.model, batch)
        q_tm1 = paddle.take_along_axis(values, batch.action.unsqueeze(1), 1).squeeze(1)
        with paddle.no_grad():
            q_t = paddle.gather(self._unrolled(self.target_model, batch), batch.ahead)
            q_t_selector = paddle.gather(values, batch.ahead) if self.double else q_t
            mask = mask_of(batch.obs)
            if mask is not None:
                possible = paddle.gather(mask.astype("int32"), batch.ahead).astype("bool")
                q_t_selector = paddle.where(possible, q_t_selector, paddle.full_like(q_t_selector, -math.inf))
            v_t = paddle.take_along_axis(q_t, q_t_selector.argmax(1, keepdim=True), 1).squeeze(1)
            target = self._target(batch, v_t)
        td_error = target - q_tm1
        return self._of_error(td_error, batch.weights), {"td_error": td_error}

    def _of_error(self, td_error: Tensor, weights: Tensor | None) -> Tensor:
        return squared_error(td_error, weights) if self.huber is None else huber(td_error, self.huber, weights)


class DDQN(contract.DDQN, DQN):
    pass


class ApeX(contract.ApeX, DQN):
    pass


class OfflineQ(contract.OfflineQ, DQN):
    def loss(self, batch: Transitions, share: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        if share is None and self.heads > 1:
            share = self._mixture(batch.reward)
        a_tm1, r_t = batch.action, batch.reward
        obs, next_obs = batch.obs, batch.next_obs
        mask = mask_of(next_obs, (batch.extra or {}).get("next_action_mask"))
        q_tm1 = self._mixed(self.model, obs, share)
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            q_t = self._mixed(self.target_model, next_obs, share)
            q_t_selector = self._mixed(self.model, next_obs, share) if self.double else q_t
            if mask is not None:
                q_t_selector = q_t_selector.masked_fill(~mask.astype("bool"), -math.inf)
        error = double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector)
        return self._of_error(error, batch.weights), {"td_error": error}

    def _mixed(self, model: Any, obs: Tensor, share: Tensor | None) -> Tensor:
        values: Tensor = self._values(model, obs)
        return values if share is None else (values * share).sum(axis=1)

    def _mixture(self, like: Tensor) -> Tensor:
        """Return the shares of the heads `[heads, 1]`, which sum to 1."""
        drawn = paddle.rand([self.heads, 1], dtype=like.dtype)
        return drawn / drawn.sum()
