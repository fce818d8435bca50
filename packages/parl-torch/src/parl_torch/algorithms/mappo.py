"""MAPPO and IPPO on PyTorch."""

import torch
from torch import Tensor

from parl_core.checks import same_shape
from parl_core.contracts import mappo as contract
from parl_core.contracts.batches import Rollout
from parl_core.contracts.ppo import FIGURES
from parl_torch.algorithm import Algorithm
from parl_torch.losses.value import huber

__all__ = ["IPPO", "MAPPO"]


class MAPPO(contract.MAPPO, Algorithm):
    def loss(
        self, batch: Rollout, clip: float | None = None, entropy_coef: float | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        clip = self._now("clip_param", self.clip_param, clip)
        entropy_coef = self._now("entropy_coef", self.entropy_coef, entropy_coef)
        obs = self._features(batch.obs, batch.state, batch.begins)
        output, value = self._policy_and_value(obs)
        policy = self._policy(output, obs, batch.action_mask)
        columns = (batch.log_prob, batch.advantage, batch.value, batch.return_, batch.active)
        log_prob_old, advantage, value_old, return_, active = (column.reshape(-1) for column in columns)
        log_prob = policy.logp(batch.action.flatten(0, 1))
        same_shape(log_prob=log_prob, advantage=advantage, value=value, return_=return_)
        weights = active / active.sum().clamp_min(1.0)

        log_ratio = log_prob - log_prob_old
        ratio = log_ratio.exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
        policy_loss, entropy = -(weights * gain).sum(), (weights * policy.entropy()).sum()

        value_losses = huber(value - return_, self.huber_delta)
        if self.use_clipped_value_loss:
            near = value_old + (value - value_old).clamp(-clip, clip)
            value_losses = torch.maximum(value_losses, huber(near - return_, self.huber_delta))
        value_loss = (weights * value_losses).sum() if self.use_value_active_masks else value_losses.mean()

        moved = (weights * (ratio - 1.0 - log_ratio)).sum()
        outside = (weights * ((ratio - 1.0).abs() > clip)).sum()
        loss = policy_loss + self.value_loss_coef * value_loss - entropy_coef * entropy
        figures = (value_loss, policy_loss, entropy, moved, outside)
        return loss, {name: figure.detach() for name, figure in zip(FIGURES, figures, strict=True)}


class IPPO(contract.IPPO, MAPPO):
    pass
