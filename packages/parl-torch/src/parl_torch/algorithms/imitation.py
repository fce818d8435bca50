"""Behaviour cloning and the Decision Transformer on PyTorch."""

import torch
from torch import Tensor

from parl_core.contracts import imitation as contract
from parl_core.contracts.batches import Windows
from parl_torch.algorithm import Algorithm
from parl_torch.losses.offline import masked_squared_error

__all__ = ["BC", "DecisionTransformer"]


class BC(contract.BC, Algorithm):
    pass


class DecisionTransformer(contract.DecisionTransformer, Algorithm):
    def loss(self, batch: Windows) -> tuple[Tensor, dict[str, Tensor]]:
        predicted = self.model(batch.obs, batch.action, batch.return_to_go, batch.timestep, batch.mask)
        return masked_squared_error(predicted, batch.action, batch.mask), {}

    def _step(self, batch: Windows, rate: float) -> Tensor:
        loss, _ = self.loss(batch)
        parameters = list(self.model.parameters())
        before = [parameter.detach().clone() for parameter in parameters] if self.weight_decay else []
        self.optimizer.minimize(loss, rate)
        if before:  # of the weights before the step, so that the order of decay and step does not matter
            with torch.no_grad():
                torch._foreach_sub_(parameters, before, alpha=rate * self.weight_decay)
        return loss.detach()
