"""QMIX and VDN on PaddlePaddle."""

from __future__ import annotations

import math
from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import qmix as contract
from parl_core.contracts.batches import Sequences
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.value import squared_error
from parl_paddle.model import Model
from parl_paddle.networks import VDNMixer

__all__ = ["QMIX", "VDN"]


class _Team(contract.Team, Model):
    def _as_numbers(self, flags: Tensor, like: Tensor) -> Tensor:
        return flags.astype(like.dtype)

    def _side_by_side(self, steps: list[Tensor]) -> Tensor:
        return paddle.stack(steps, 1).flatten(0, 1)


class QMIX(contract.QMIX, Algorithm):
    def _team(self, agents: Any, mixer: Any) -> Any:
        return _Team(agents, mixer)

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        obs, ahead = batch.obs, batch.ahead
        values = self._values_of(self.model, batch)
        here, later = self._present(batch, values.dtype)
        q_tm1 = paddle.take_along_axis(values, batch.action.unsqueeze(2), 2).squeeze(2) * here
        with paddle.no_grad():
            q = self._values_of(self.target_model, batch)
            selector = values if self.double else q
            if "action_mask" in obs:
                possible = obs["action_mask"].astype("bool")
                selector = paddle.where(possible, selector, paddle.full_like(selector, -math.inf))
            v = paddle.take_along_axis(q, selector.argmax(2, keepdim=True), 2).squeeze(2)
            v_t = paddle.gather(v, ahead) * later
            next_state = paddle.gather(obs["state"], ahead)
            target = batch.reward + batch.discount * self.target_model.mixed(v_t, next_state)
        td_error = target - self.model.mixed(q_tm1, obs["state"])
        loss = squared_error(td_error, self._weighted(batch.weights, td_error))
        return loss, {"mean_td_error": (batch.weights * td_error).mean()}

    def _values_of(self, model: Any, batch: Sequences) -> Tensor:
        values: Tensor = self._unrolled(model, batch) if self.remembers else model.value(batch.obs)
        return values

    def _present(self, batch: Sequences, dtype: Any) -> tuple[Tensor | float, Tensor | float]:
        """Return 1 where an agent acts in a step, and where it has a value in the row that is bootstrapped from."""
        if "alive" not in batch.obs:
            return 1.0, 1.0
        here = batch.obs["alive"].astype(dtype)
        kept = here * (1.0 - paddle.gather(batch.obs["terminated"].astype(dtype), batch.ahead))
        return here, paddle.maximum(paddle.gather(here, batch.ahead), kept)  # type: ignore[no-untyped-call]


class VDN(contract.VDN, QMIX):
    def _sum(self) -> Any:
        return VDNMixer()
