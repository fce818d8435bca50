"""PPO on PyTorch, in the form of PARL 2.x; `separate_ppo` has PARL 1.x's."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from parl_core.contracts import ppo as contract
from parl_core.contracts.actions import mask_of
from parl_torch.algorithm import Algorithm
from parl_torch.data_parallel import means, normalised
from parl_torch.distributions import PolicyDistribution, policy_distribution
from parl_torch.losses._proximal import Behaviour, proximal_losses

__all__ = ["PPO"]


class PPO(contract.PPO, Algorithm):
    __doc__ = contract.PPO.__doc__

    def __new__(cls, *args: Any, **kwargs: Any) -> "PPO":
        if cls is PPO and contract.asks_for_separate_form(len(args) - 1, kwargs):
            from parl_torch.algorithms.separate_ppo import SeparatePPO

            return super().__new__(SeparatePPO)
        return super().__new__(cls)

    @torch.no_grad()
    def predict(self, obs: Any, action_mask: Tensor | None = None) -> Tensor:
        return self._distribution(self._run(self.model.policy, obs), obs, action_mask).mode()

    @torch.no_grad()
    def sample(self, obs: Any, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        output, value = self._policy_and_value(obs)
        distribution = self._distribution(output, obs, action_mask)
        action = distribution.sample()
        return value, action, distribution.logp(action), distribution.entropy()

    @torch.no_grad()
    def value(self, obs: Any) -> Tensor:
        value: Tensor = self._run(self.model.value, obs)
        return value.reshape(-1)

    def learn(
        self,
        batch_obs: Any,
        batch_action: Tensor,
        batch_value: Tensor,
        batch_return: Tensor,
        batch_logprob: Tensor,
        batch_adv: Tensor,
        lr: float | None = None,
        *,
        clip: float | None = None,
        entropy_coef: float | None = None,
        action_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        columns = (column.reshape(-1) for column in (batch_value, batch_return, batch_logprob, batch_adv))
        minibatch = (batch_obs, batch_action, *columns, action_mask)
        value_loss, policy_loss, entropy, *_ = self.learn_minibatch(minibatch, lr, clip, entropy_coef).unbind()
        return value_loss, policy_loss, entropy

    def learn_minibatch(
        self,
        minibatch: tuple[Any, ...],
        lr: float | None = None,
        clip: float | None = None,
        entropy_coef: float | None = None,
    ) -> Tensor:
        obs, action, value_old, return_, log_prob_old, advantage, *mask = minibatch
        if self.norm_adv:
            advantage = normalised(advantage)
        lr = self._now("initial_lr", self.lr, lr)
        clip = self._now("clip_param", self.clip_param, clip)
        entropy_coef = self._now("entropy_coef", self.entropy_coef, entropy_coef)
        batch = (obs, action, value_old, return_, log_prob_old, advantage, mask_of(obs, *mask))
        figures: Tensor
        _, figures = self.optimizer.descend(self._losses, *batch, clip, entropy_coef, lr=lr)
        self.updates += 1
        return figures

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
        policy = self._distribution(output, obs, mask)
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

    def _policy_and_value(self, obs: Any) -> tuple[Any, Tensor]:
        if self._one_pass:
            output, value = self._run(self.model.policy_and_value, obs)
        else:
            output, value = self._run(self.model.policy, obs), self._run(self.model.value, obs)
        return output, value.reshape(-1)

    def _distribution(self, output: Any, obs: Any, mask: Tensor | None) -> PolicyDistribution:
        return policy_distribution(output, self.actions, mask_of(obs, mask))

    def _means(self, steps: Sequence[Any]) -> list[float]:
        return means(steps)
