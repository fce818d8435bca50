"""Decision Transformer on PyTorch."""

import torch
from torch import Tensor

from parl_core.contracts import decision_transformer as contract
from parl_torch.algorithm import Algorithm
from parl_torch.losses.offline import masked_squared_error

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
        parameters = list(self.model.parameters())
        before = [parameter.detach().clone() for parameter in parameters] if self.weight_decay else []
        predicted = self.model(obs, action, return_to_go, timestep, mask)
        loss = masked_squared_error(predicted, action, mask)
        self.optimizer.minimize(loss, rate)
        if before:  # of the weights as they were, so that the order of decay and step does not matter
            with torch.no_grad():
                torch._foreach_sub_(parameters, before, alpha=rate * self.weight_decay)
        self.updates += 1
        return loss.detach()
