"""Decision Transformer on PaddlePaddle."""

from __future__ import annotations

import paddle
from paddle import Tensor

from parl_core.contracts import decision_transformer as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.losses.offline import masked_squared_error

__all__ = ["DecisionTransformer"]


class DecisionTransformer(contract.DecisionTransformer, Algorithm):
    __doc__ = contract.DecisionTransformer.__doc__

    def predict(self, obs: Tensor, action: Tensor, return_to_go: Tensor, timestep: Tensor, mask: Tensor) -> Tensor:
        with paddle.no_grad():
            predicted: Tensor = self.model(obs, action, return_to_go, timestep, mask)
            return predicted[:, -1]

    def learn(self, obs: Tensor, action: Tensor, return_to_go: Tensor, timestep: Tensor, mask: Tensor) -> Tensor:
        rate = self._rate()
        parameters = list(self.model.parameters())
        before = [parameter.detach().clone() for parameter in parameters] if self.weight_decay else []
        predicted = self.model(obs, action, return_to_go, timestep, mask)
        loss = masked_squared_error(predicted, action, mask)
        self.optimizer.minimize(loss, rate)
        with paddle.no_grad():  # of the weights as they were, so that the order of decay and step does not matter
            for parameter, old in zip(parameters, before, strict=False):
                parameter.subtract_(old * (rate * self.weight_decay))
        self.updates += 1
        return loss.detach()
