"""PPO on PyTorch, in the forms of PARL 2.x and, below, of PARL 1.x."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from parl_core.checks import same_shape
from parl_core.contracts import ppo, separate_ppo
from parl_core.contracts.actions import ActionKind
from parl_core.contracts.batches import Rollout
from parl_torch._chains import Fork, LossReader, Network, Networks, hand_written
from parl_torch.algorithm import Algorithm
from parl_torch.distributions import CategoricalDistribution, DiagGaussianDistribution
from parl_torch.losses._proximal import Behaviour, proximal_losses, proximal_slopes
from parl_torch.losses.policy import clipped_surrogate, kl_penalised_surrogate
from parl_torch.losses.value import squared_error

__all__ = ["PPO", "SeparatePPO"]


def _networks(algorithm: "PPO") -> Networks:
    if algorithm._reduces or algorithm.remembers or algorithm.actions != ActionKind():
        return ()
    return (Network(algorithm.model, ("policy_and_value",) if algorithm._one_pass else ("policy", "value"), True),)


def _slopes(
    algorithm: "PPO",
    networks: Sequence[Fork],
    batch: Rollout,
    clip: float | None = None,
    entropy_coef: float | None = None,
) -> LossReader:
    if batch.action_mask is not None or batch.action.dim() != 1:
        return None
    clip = algorithm._now("clip_param", algorithm.clip_param, clip)
    entropy_coef = algorithm._now("entropy_coef", algorithm.entropy_coef, entropy_coef)
    (network,) = networks
    kept = network.forward(batch.obs)
    logits, value = (values[-1] for values in kept[1])
    policy, each = CategoricalDistribution(logits), 1.0 / len(batch.action)
    loss, figures, by_log_prob, error = proximal_slopes(
        policy.logp(batch.action),
        policy.entropy(),
        value.reshape(-1),
        Behaviour(batch.log_prob, batch.advantage, batch.value, batch.return_),
        clip,
        algorithm.use_clipped_value_loss,
        algorithm.value_loss_coef,
        entropy_coef,
    )
    by_logits = policy.slope(batch.action, by_log_prob * -each, -entropy_coef * each)
    network.backward(kept, (by_logits, (error * (algorithm.value_loss_coef * each)).unsqueeze(1)))
    return lambda: (loss.clone(), dict(zip(ppo.FIGURES, figures.clone().unbind(), strict=True)))


class PPO(ppo.PPO, Algorithm):
    @hand_written(_networks, _slopes)
    def loss(
        self, batch: Rollout, clip: float | None = None, entropy_coef: float | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        clip = self._now("clip_param", self.clip_param, clip)
        entropy_coef = self._now("entropy_coef", self.entropy_coef, entropy_coef)
        obs = self._features(batch.obs, batch.state, batch.begins)
        output, value = self._policy_and_value(obs)
        policy = self._policy(output, obs, batch.action_mask)
        loss, figures = proximal_losses(
            policy.logp(batch.action),
            policy.entropy(),
            value,
            Behaviour(batch.log_prob, batch.advantage, batch.value, batch.return_),
            clip,
            clips_value=self.use_clipped_value_loss,
            value_coef=self.value_loss_coef,
            entropy_coef=entropy_coef,
        )
        return loss, dict(zip(ppo.FIGURES, figures.unbind(), strict=True))


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
