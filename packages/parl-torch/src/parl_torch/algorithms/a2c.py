"""A2C and A3C on PyTorch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from parl_core.checks import check_real, same_shape
from parl_core.contracts import a2c as contract
from parl_core.contracts.actions import ActionKind
from parl_core.contracts.batches import Rollout
from parl_torch._chains import Fork, LossReader, Network, Networks, hand_written
from parl_torch.algorithm import Algorithm
from parl_torch.data_parallel import joined_sum
from parl_torch.distributions import CategoricalDistribution

__all__ = ["A2C", "A3C"]


def _networks(algorithm: "A2C") -> Networks:
    if algorithm._reduces or algorithm.remembers or algorithm.actions != ActionKind():
        return ()
    return (Network(algorithm.model, ("policy_and_value",) if algorithm._one_pass else ("policy", "value"), True),)


def _slopes(
    algorithm: "A2C", networks: Sequence[Fork], batch: Rollout, entropy_coeff: float | None = None
) -> LossReader:
    if batch.action_mask is not None or batch.action.dim() != 1:
        return None
    coeff = algorithm._now("entropy_coeff", algorithm.entropy_coeff, entropy_coeff, check=check_real)
    (network,) = networks
    kept = network.forward(batch.obs)
    logits, value = (values[-1] for values in kept[1])
    policy, error = CategoricalDistribution(logits), value.reshape(-1) - batch.return_
    by_logits = policy.slope(batch.action, -batch.advantage, coeff)
    network.backward(kept, (by_logits, (error * algorithm.vf_loss_coeff).unsqueeze(1)))

    def figures() -> tuple[Tensor, dict[str, Tensor]]:
        pi_loss = -torch.dot(policy.logp(batch.action), batch.advantage)
        vf_loss, entropy = 0.5 * torch.dot(error, error), policy.entropy().sum()
        loss = pi_loss + algorithm.vf_loss_coeff * vf_loss + coeff * entropy
        return loss, {"total_loss": loss, "pi_loss": pi_loss, "vf_loss": vf_loss, "entropy": entropy}

    return figures


class A2C(contract.A2C, Algorithm):
    @hand_written(_networks, _slopes)
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
