"""PPO on PaddlePaddle, in the form of PARL 2.x; `separate_ppo` has PARL 1.x's."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import ppo as contract
from parl_core.contracts.actions import mask_of
from parl_paddle.algorithm import Algorithm
from parl_paddle.data_parallel import means, normalised
from parl_paddle.distributions import PolicyDistribution, policy_distribution
from parl_paddle.losses.policy import approximate_kl, clipped_surrogate
from parl_paddle.losses.value import clipped_value_loss, squared_error
from parl_paddle.optim import Adam

__all__ = ["PPO"]


class PPO(contract.PPO, Algorithm):
    __doc__ = contract.PPO.__doc__

    optimizer: Adam

    def __new__(cls, *args: Any, **kwargs: Any) -> PPO:
        if cls is PPO and contract.asks_for_separate_form(len(args) - 1, kwargs):
            from parl_paddle.algorithms.separate_ppo import SeparatePPO

            return super().__new__(SeparatePPO)
        return super().__new__(cls)

    def predict(self, obs: Any, action_mask: Tensor | None = None) -> Tensor:
        with paddle.no_grad():
            return self._distribution(self.model.policy(obs), obs, action_mask).mode()

    def sample(self, obs: Any, action_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with paddle.no_grad():
            output, value = self._policy_and_value(obs)
            distribution = self._distribution(output, obs, action_mask)
            action = distribution.sample()
            return value, action, distribution.logp(action), distribution.entropy()

    def value(self, obs: Any) -> Tensor:
        with paddle.no_grad():
            value: Tensor = self.model.value(obs)
            return value.reshape([-1])

    def learn(
        self,
        batch_obs: Any,
        batch_action: Tensor,
        batch_value: Tensor,
        batch_return: Tensor,
        batch_logprob: Tensor,
        batch_adv: Tensor,
        lr: float | Tensor | None = None,
        *,
        clip: float | None = None,
        entropy_coef: float | None = None,
        action_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        columns = (column.reshape([-1]) for column in (batch_value, batch_return, batch_logprob, batch_adv))
        minibatch = (batch_obs, batch_action, *columns, action_mask)
        value_loss, policy_loss, entropy, *_ = self.learn_minibatch(minibatch, lr, clip, entropy_coef)
        return value_loss, policy_loss, entropy

    def learn_minibatch(
        self,
        minibatch: tuple[Any, ...],
        lr: float | Tensor | None = None,
        clip: float | None = None,
        entropy_coef: float | None = None,
    ) -> tuple[Tensor, ...]:
        obs, action, value_old, return_, log_prob_old, advantage, *mask = minibatch
        if self.norm_adv:
            advantage = normalised(advantage)
        lr = self._now("initial_lr", self.lr, lr)
        clip = self._now("clip_param", self.clip_param, clip)
        entropy_coef = self._now("entropy_coef", self.entropy_coef, entropy_coef)
        batch = (obs, action, value_old, return_, log_prob_old, advantage, mask_of(obs, *mask))
        figures = self.optimizer.descend(self._losses, *batch, clip, entropy_coef, lr=lr)
        self._after_each_update(self._count_update)
        return figures[1:]

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
    ) -> tuple[Tensor, ...]:
        output, value = self._policy_and_value(obs)
        distribution = self._distribution(output, obs, mask)
        log_ratio = distribution.logp(action) - log_prob_old
        ratio = log_ratio.exp()
        policy_loss = clipped_surrogate(ratio, advantage, clip)
        if self.use_clipped_value_loss:
            value_loss = clipped_value_loss(value, value_old, return_, clip)
        else:
            value_loss = 0.5 * squared_error(value - return_)
        entropy = distribution.entropy().mean()
        loss = policy_loss + self.value_loss_coef * value_loss - entropy_coef * entropy
        with paddle.no_grad():
            kl = approximate_kl(log_ratio, ratio)
            clipped = ((ratio - 1.0).abs() > clip).astype(ratio.dtype).mean()
        return loss, value_loss, policy_loss, entropy, kl, clipped

    def _policy_and_value(self, obs: Any) -> tuple[Any, Tensor]:
        if self._one_pass:
            output, value = self.model.policy_and_value(obs)
        else:
            output, value = self.model.policy(obs), self.model.value(obs)
        return output, value.reshape([-1])

    def _distribution(self, output: Any, obs: Any, mask: Tensor | None) -> PolicyDistribution:
        return policy_distribution(output, self.actions, mask_of(obs, mask))

    def _means(self, steps: list[tuple[Any, ...]]) -> list[float]:
        return means(steps)
