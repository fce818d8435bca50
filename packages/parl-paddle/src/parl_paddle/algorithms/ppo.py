"""PPO on PaddlePaddle, in the forms of PARL 2.x and, below, of PARL 1.x."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.checks import same_shape
from parl_core.contracts import ppo, separate_ppo
from parl_core.contracts.batches import Rollout
from parl_paddle.algorithm import Algorithm
from parl_paddle.distributions import DiagGaussianDistribution
from parl_paddle.losses.policy import approximate_kl, clipped_surrogate, kl_penalised_surrogate
from parl_paddle.losses.value import clipped_value_loss, squared_error

__all__ = ["PPO", "SeparatePPO"]


class PPO(ppo.PPO, Algorithm):
    def loss(
        self, batch: Rollout, clip: float | None = None, entropy_coef: float | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        clip = self._now("clip_param", self.clip_param, clip)
        entropy_coef = self._now("entropy_coef", self.entropy_coef, entropy_coef)
        obs = self._features(batch.obs, batch.state, batch.begins)
        output, value = self._policy_and_value(obs)
        policy = self._policy(output, obs, batch.action_mask)
        log_ratio = policy.logp(batch.action) - batch.log_prob
        ratio = log_ratio.exp()
        policy_loss = clipped_surrogate(ratio, batch.advantage, clip)
        if self.use_clipped_value_loss:
            value_loss = clipped_value_loss(value, batch.value, batch.return_, clip)
        else:
            value_loss = 0.5 * squared_error(value - batch.return_)
        entropy = policy.entropy().mean()
        loss = policy_loss + self.value_loss_coef * value_loss - entropy_coef * entropy
        with paddle.no_grad():
            kl = approximate_kl(log_ratio, ratio)
            clipped = ((ratio - 1.0).abs() > clip).astype(ratio.dtype).mean()
        return loss, dict(zip(ppo.FIGURES, (value_loss, policy_loss, entropy, kl, clipped), strict=True))


class SeparatePPO(separate_ppo.SeparatePPO, PPO):
    def _gaussian(self, model: Any, obs: Tensor) -> DiagGaussianDistribution:
        means, logvars = model.policy(obs)
        self._require_width(means.shape[-1])
        return DiagGaussianDistribution((means, 0.5 * logvars))

    def _policy_loss(
        self, obs: Tensor, action: Tensor, advantage: Tensor, clip: Any, beta: Any
    ) -> tuple[Tensor, Tensor]:
        with paddle.no_grad():
            old = self._gaussian(self.old_policy_model, obs)
            old_log_prob = old.logp(action).detach()
        new = self._gaussian(self.model, obs)
        ratio = (new.logp(action) - old_log_prob).exp()
        kl = old.kl(new)
        if beta is None:
            return clipped_surrogate(ratio, advantage, clip), kl
        return kl_penalised_surrogate(ratio, advantage, kl, beta), kl

    def _value_loss(self, obs: Tensor, target: Tensor) -> Tensor:
        value = self.model.value(obs).reshape([-1])
        same_shape(value=value, target=target)
        return squared_error(value - target)


PPO.SEPARATE_FORM = SeparatePPO
