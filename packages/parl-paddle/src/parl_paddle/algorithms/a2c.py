"""A2C and A3C on PaddlePaddle."""

from __future__ import annotations

from paddle import Tensor

from parl_core.checks import check_real, same_shape
from parl_core.contracts import a2c as contract
from parl_core.contracts.batches import Rollout
from parl_paddle.algorithm import Algorithm
from parl_paddle.data_parallel import joined_sum

__all__ = ["A2C", "A3C"]


class A2C(contract.A2C, Algorithm):
    def loss(self, batch: Rollout, entropy_coeff: float | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        coeff = self._now("entropy_coeff", self.entropy_coeff, entropy_coeff, check=check_real)
        obs = self._features(batch.obs, batch.state, batch.begins)
        policy, value = self._policy_and_value(obs, batch.action_mask)
        log_prob, advantage, target = policy.logp(batch.action), batch.advantage, batch.return_
        same_shape(log_prob=log_prob, advantage=advantage, value=value, target=target)
        pi_loss = -(log_prob * advantage).sum()
        vf_loss = 0.5 * (value - target).square().sum()
        entropy = policy.entropy().sum()
        loss = pi_loss + self.vf_loss_coeff * vf_loss + coeff * entropy
        figures = {"total_loss": loss, "pi_loss": pi_loss, "vf_loss": vf_loss, "entropy": entropy}
        return joined_sum(loss), figures


class A3C(contract.A3C, A2C):
    pass
