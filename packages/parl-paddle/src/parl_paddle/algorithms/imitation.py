"""Behaviour cloning and the Decision Transformer on PaddlePaddle."""

from __future__ import annotations

import paddle
from paddle import Tensor

from parl_core.contracts import imitation as contract
from parl_core.contracts.batches import Windows
from parl_paddle._static_graphs import operand, overwrite
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.offline import masked_squared_error

__all__ = ["BC", "DecisionTransformer"]


class BC(contract.BC, Algorithm):
    pass


class DecisionTransformer(contract.DecisionTransformer, Algorithm):
    def loss(self, batch: Windows) -> tuple[Tensor, dict[str, Tensor]]:
        predicted = self.model(batch.obs, batch.action, batch.return_to_go, batch.timestep, batch.mask)
        return masked_squared_error(predicted, batch.action, batch.mask), {}

    def _step(self, batch: Windows, rate: float) -> Tensor:
        parameters = list(self.model.parameters()) if self.weight_decay else []
        with paddle.no_grad():  # of the weights before the step, so that the order of decay and step does not matter
            decays = [operand(parameter) * (rate * self.weight_decay) for parameter in parameters]
        loss, _ = self.loss(batch)
        self.optimizer.minimize(loss, rate)
        with paddle.no_grad():
            for parameter, decay in zip(parameters, decays, strict=True):
                overwrite(parameter, operand(parameter) - decay)
        return loss.detach()
