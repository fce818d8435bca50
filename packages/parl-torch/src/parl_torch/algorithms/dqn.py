"""DQN, DDQN, the learner of Ape-X and Q-learning on logged data, on PyTorch."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from parl_core.contracts import dqn as contract
from parl_core.contracts.actions import mask_of
from parl_core.contracts.batches import Transitions
from parl_torch._chains import Fork, LossReader, Network, Networks, hand_written
from parl_torch.algorithm import Algorithm
from parl_torch.losses.offline import huber
from parl_torch.losses.value import double_q_learning, q_learning, squared_error

__all__ = ["DDQN", "DQN", "ApeX", "OfflineQ"]


@functools.lru_cache(maxsize=64)
def _number(value: float, dtype: torch.dtype) -> Tensor:
    """Return a number as a tensor, because PyTorch would convert it again in each operation."""
    return torch.tensor(value, dtype=dtype, device="cpu")


def _networks(algorithm: "DQN") -> Networks:
    if algorithm._reduces or algorithm.remembers:
        return ()
    methods = (algorithm._value,)
    return Network(algorithm.model, methods, True), Network(algorithm.target_model, methods, False)


def _slopes(algorithm: "DQN", networks: Sequence[Fork], batch: Transitions) -> LossReader:
    (chain,), (target,) = networks[0].heads, networks[1].heads
    rows, delta, weights = batch.obs.shape[0], algorithm.huber, batch.weights
    action, r_t, terminal = batch.action.unsqueeze(1), batch.reward, batch.terminal
    if terminal.dtype is not r_t.dtype:
        terminal = terminal.to(r_t.dtype)
    q_t = target.forward(batch.next_obs, again=True)[-1]
    if algorithm.double:
        best = chain.forward(batch.next_obs, again=True)[-1].argmax(1, keepdim=True)
        v_t = q_t.gather(1, best).squeeze(1)
    else:
        v_t = q_t.amax(1)
    # a number as an operand, unlike one as a keyword, would first become a tensor
    v_t.addcmul_(terminal, v_t, value=-1.0)
    if batch.discount is None:
        td_error = torch.add(r_t, v_t, alpha=algorithm.gamma)
    else:
        td_error = torch.addcmul(r_t, batch.discount, v_t)
    kept = chain.forward(batch.obs, again=True)
    td_error.sub_(kept[-1].gather(1, action).squeeze(1))
    slope = td_error if delta is None else td_error.clamp(-delta, delta)
    slope = slope * _number((-2.0 if delta is None else -1.0) / rows, slope.dtype)
    if weights is not None:
        slope *= weights
    chain.backward(kept, torch.zeros_like(kept[-1]).scatter_(1, action, slope.unsqueeze(1)))

    def figures() -> tuple[Tensor, dict[str, Tensor]]:
        if delta is None and weights is None:
            return torch.dot(td_error, td_error) * _number(1.0 / rows, td_error.dtype), {}
        error = td_error.clone()
        return algorithm._of_error(error, weights), {"td_error": error}

    return figures


class DQN(contract.DQN, Algorithm):
    @hand_written(_networks, _slopes)
    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        if self.remembers:
            return self._loss_of_sequences(batch)
        a_tm1, r_t = batch.action, batch.reward
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

    def _loss_of_sequences(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        values = self._unrolled(self.model, batch)
        q_tm1 = values.gather(1, batch.action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            q_t = self._unrolled(self.target_model, batch)[batch.ahead]
            q_t_selector = values[batch.ahead] if self.double else q_t
            mask = mask_of(batch.obs)
            if mask is not None:
                q_t_selector = q_t_selector.masked_fill(~mask.bool()[batch.ahead], -math.inf)
            v_t = q_t.gather(1, q_t_selector.argmax(1, keepdim=True)).squeeze(1)
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
        with torch.no_grad():
            discount = self.gamma if batch.discount is None else batch.discount
            discount_t = discount * (1.0 - batch.terminal.to(r_t.dtype))
            q_t = self._mixed(self.target_model, next_obs, share)
            q_t_selector = self._mixed(self.model, next_obs, share) if self.double else q_t
            if mask is not None:
                q_t_selector = q_t_selector.masked_fill(~mask.bool(), -math.inf)
        error = double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector)
        return self._of_error(error, batch.weights), {"td_error": error}

    def _mixed(self, model: Any, obs: Tensor, share: Tensor | None) -> Tensor:
        values: Tensor = self._values(model, obs)
        return values if share is None else (values * share).sum(dim=1)

    def _mixture(self, like: Tensor) -> Tensor:
        """Return the shares of the heads `[heads, 1]`, which sum to 1."""
        drawn = torch.rand(self.heads, 1, dtype=like.dtype, device=like.device)
        return drawn / drawn.sum()
