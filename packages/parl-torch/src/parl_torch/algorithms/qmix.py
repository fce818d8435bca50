"""QMIX and VDN on PyTorch."""

import math
from typing import Any

import torch
from torch import Tensor

from parl_core.contracts import qmix as contract
from parl_core.contracts.batches import Sequences
from parl_torch.algorithm import Algorithm
from parl_torch.losses.value import squared_error
from parl_torch.model import Model
from parl_torch.networks import VDNMixer

__all__ = ["QMIX", "VDN"]


class _Team(contract.Team, Model):
    def _as_numbers(self, flags: Tensor, like: Tensor) -> Tensor:
        return flags.to(like.dtype)

    def _side_by_side(self, steps: list[Tensor]) -> Tensor:
        return torch.stack(steps, 1).flatten(0, 1)


class QMIX(contract.QMIX, Algorithm):
    def _team(self, agents: Any, mixer: Any) -> Any:
        return _Team(agents, mixer)

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        obs, ahead = batch.obs, batch.ahead
        values = self._values_of(self.model, batch)
        here, later = self._present(batch, values.dtype)
        q_tm1 = values.gather(2, batch.action.unsqueeze(2)).squeeze(2) * here
        with torch.no_grad():
            q = self._values_of(self.target_model, batch)
            selector = values if self.double else q
            if "action_mask" in obs:
                selector = selector.masked_fill(~obs["action_mask"].bool(), -math.inf)
            v_t = q.gather(2, selector.argmax(2, keepdim=True)).squeeze(2)[ahead] * later
            target = batch.reward + batch.discount * self.target_model.mixed(v_t, obs["state"][ahead])
        td_error = target - self.model.mixed(q_tm1, obs["state"])
        loss = squared_error(td_error, self._weighted(batch.weights, td_error))
        return loss, {"mean_td_error": (batch.weights * td_error).mean()}

    def _values_of(self, model: Any, batch: Sequences) -> Tensor:
        values: Tensor = self._unrolled(model, batch) if self.remembers else model.value(batch.obs)
        return values

    def _present(self, batch: Sequences, dtype: torch.dtype) -> tuple[Tensor | float, Tensor | float]:
        """Return 1 where an agent acts in a step, and where it has a value in the row that is bootstrapped from."""
        if "alive" not in batch.obs:
            return 1.0, 1.0
        here = batch.obs["alive"].to(dtype)
        kept = here * (1.0 - batch.obs["terminated"].to(dtype)[batch.ahead])
        return here, torch.maximum(here[batch.ahead], kept)


class VDN(contract.VDN, QMIX):
    def _sum(self) -> Any:
        return VDNMixer()
