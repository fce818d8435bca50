"""A2C and A3C on PyTorch."""

from typing import Any

from torch import Tensor

from parl_core.contracts import a2c as contract
from parl_torch.algorithm import Algorithm
from parl_torch.data_parallel import joined_sum
from parl_torch.losses._shapes import same_shape

__all__ = ["A2C", "A3C"]


class A2C(contract.A2C, Algorithm):
    def _losses(
        self, obs: Any, action: Tensor, advantage: Tensor, target: Tensor, mask: Tensor | None, entropy_coeff: float
    ) -> tuple[Tensor, ...]:
        policy, value = self._policy_and_value(obs, mask)
        log_prob = policy.logp(action)
        same_shape(log_prob=log_prob, advantage=advantage, value=value, target=target)
        pi_loss = -(log_prob * advantage).sum()
        vf_loss = 0.5 * (value - target).square().sum()
        entropy = policy.entropy().sum()
        loss = pi_loss + self.vf_loss_coeff * vf_loss + entropy_coeff * entropy
        return joined_sum(loss), loss, pi_loss, vf_loss, entropy


class A3C(contract.A3C, A2C):
    pass
