"""PPO on PyTorch, in the form of PARL 1.x."""

from typing import Any

import torch
from torch import Tensor

from parl_core.checks import check_positive
from parl_core.contracts import separate_ppo as contract
from parl_torch.algorithms.ppo import PPO
from parl_torch.distributions import DiagGaussianDistribution
from parl_torch.losses.policy import clipped_surrogate, kl_penalised_surrogate
from parl_torch.losses.shapes import same_shape
from parl_torch.losses.value import squared_error

__all__ = ["SeparatePPO"]


class SeparatePPO(contract.SeparatePPO, PPO):
    __doc__ = contract.SeparatePPO.__doc__

    # The two forms of PPO return different things from predict and sample, and this one's actions are not masked.
    @torch.no_grad()
    def predict(self, obs: Tensor) -> Any:  # type: ignore[override]
        means, logvars = self.model.policy(obs)
        self._require_width(means.shape[-1])
        return means, logvars.expand_as(means)

    @torch.no_grad()
    def sample(self, obs: Tensor) -> Any:  # type: ignore[override]
        return self._gaussian(self.model, obs).sample()

    def policy_learn(
        self,
        obs: Tensor,
        actions: Tensor,
        advantages: Tensor,
        beta: float | Tensor | None = None,
        *,
        lr: float | None = None,
        epsilon: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            old = self._gaussian(self.old_policy_model, obs)
        new = self._gaussian(self.model, obs)
        adv_t = advantages.reshape(-1)
        ratio_t = (new.logp(actions) - old.logp(actions)).exp()
        kl_t = old.kl(new)
        if beta is None:
            clip = self._now("epsilon", self.epsilon, self._checked("epsilon", epsilon))
            loss = clipped_surrogate(ratio_t, adv_t, clip)
        else:
            loss = kl_penalised_surrogate(ratio_t, adv_t, kl_t, self._checked("beta", beta, check_positive))
        self.policy_optimizer.minimize(loss, self._now("policy_lr", self.policy_lr, self._checked("lr", lr)))
        self.updates += 1
        return loss.detach(), kl_t.detach().mean()

    def value_learn(self, obs: Tensor, val: Tensor, *, lr: float | None = None) -> Tensor:
        v_t, return_t = self.model.value(obs).reshape(-1), val.reshape(-1)
        same_shape(v_t=v_t, return_t=return_t)
        loss = squared_error(v_t - return_t)
        self.value_optimizer.minimize(loss, self._now("value_lr", self.value_lr, self._checked("lr", lr)))
        return loss.detach()

    @torch.no_grad()
    def value_predict(self, obs: Tensor) -> Tensor:
        value: Tensor = self.model.value(obs)
        return value.reshape(-1)

    def _gaussian(self, model: Any, obs: Tensor) -> DiagGaussianDistribution:
        means, logvars = model.policy(obs)
        self._require_width(means.shape[-1])
        return DiagGaussianDistribution((means, 0.5 * logvars))
