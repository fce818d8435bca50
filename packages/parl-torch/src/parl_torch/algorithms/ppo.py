"""PPO on PyTorch, in the forms of PARL 2.x and, below, of PARL 1.x."""

from typing import Any

import torch
from torch import Tensor

from parl_core.contracts import ppo, separate_ppo
from parl_torch.algorithm import Algorithm
from parl_torch.distributions import DiagGaussianDistribution
from parl_torch.losses._proximal import Behaviour, proximal_losses
from parl_torch.losses._shapes import same_shape
from parl_torch.losses.policy import clipped_surrogate, kl_penalised_surrogate
from parl_torch.losses.value import squared_error

__all__ = ["PPO", "SeparatePPO"]


class PPO(ppo.PPO, Algorithm):
    def _losses(
        self,
        obs: Any,
        action: Tensor,
        value_old: Tensor,
        return_: Tensor,
        log_prob_old: Tensor,
        advantage: Tensor,
        mask: Tensor | None,
        clip: float,
        entropy_coef: float,
    ) -> tuple[Tensor, Tensor]:
        output, value = self._policy_and_value(obs)
        policy = self._policy(output, obs, mask)
        return proximal_losses(
            policy.logp(action),
            policy.entropy(),
            value,
            Behaviour(log_prob_old, advantage, value_old, return_),
            clip,
            clips_value=self.use_clipped_value_loss,
            value_coef=self.value_loss_coef,
            entropy_coef=entropy_coef,
        )


class SeparatePPO(separate_ppo.SeparatePPO, PPO):
    def _gaussian(self, model: Any, obs: Tensor) -> DiagGaussianDistribution:
        means, logvars = model.policy(obs)
        self._require_width(means.shape[-1])
        return DiagGaussianDistribution((means, 0.5 * logvars))

    def _policy_loss(
        self, obs: Tensor, action: Tensor, advantage: Tensor, clip: Any, beta: Any
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            old = self._gaussian(self.old_policy_model, obs)
            old_log_prob = old.logp(action)
        new = self._gaussian(self.model, obs)
        ratio = (new.logp(action) - old_log_prob).exp()
        kl = old.kl(new)
        if beta is None:
            return clipped_surrogate(ratio, advantage, clip), kl
        return kl_penalised_surrogate(ratio, advantage, kl, beta), kl

    def _value_loss(self, obs: Tensor, target: Tensor) -> Tensor:
        value = self.model.value(obs).reshape(-1)
        same_shape(value=value, target=target)
        return squared_error(value - target)


PPO.SEPARATE_FORM = SeparatePPO
