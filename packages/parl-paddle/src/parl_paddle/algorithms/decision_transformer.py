"""Decision Transformer on PaddlePaddle."""

from __future__ import annotations

import paddle
from paddle import Tensor

from parl_core.contracts import decision_transformer as contract
from parl_paddle._static_graphs import operand, overwrite
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.offline import masked_squared_error

__all__ = ["DecisionTransformer"]


class DecisionTransformer(contract.DecisionTransformer, Algorithm):
    def learn(
        self,
        obs: Tensor,
        action: Tensor,
        return_to_go: Tensor,
        timestep: Tensor,
        mask: Tensor,
        *,
        learning_rate: float | None = None,
    ) -> Tensor:
        rate = self._rate(learning_rate)
        parameters = list(self.model.parameters()) if self.weight_decay else []
        with paddle.no_grad():  # of the weights as they are, so that the order of decay and step does not matter
            decays = [operand(parameter) * (rate * self.weight_decay) for parameter in parameters]
        predicted = self.model(obs, action, return_to_go, timestep, mask)
        loss = masked_squared_error(predicted, action, mask)
        self.optimizer.minimize(loss, rate)
        with paddle.no_grad():
            for parameter, decay in zip(parameters, decays, strict=True):
                overwrite(parameter, operand(parameter) - decay)
        self._after_each_update(self._count_update)
        return loss.detach()
