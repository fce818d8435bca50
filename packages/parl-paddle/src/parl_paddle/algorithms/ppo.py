"""PPO on PaddlePaddle, in the form of PARL 2.x; `separate_ppo` has PARL 1.x's."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.contracts import ppo as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.distributions import CategoricalDistribution, DiagGaussianDistribution
from parl_paddle.losses.policy import approximate_kl, clipped_surrogate
from parl_paddle.losses.value import clipped_value_loss, squared_error
from parl_paddle.optim import Adam
from parl_paddle.tensors import to_array

__all__ = ["PPO"]


class PPO(contract.PPO, Algorithm):
    __doc__ = contract.PPO.__doc__

    optimizer: Adam

    def __new__(cls, *args: Any, **kwargs: Any) -> PPO:
        if cls is PPO and contract.asks_for_separate_form(len(args) - 1, kwargs):
            from parl_paddle.algorithms.separate_ppo import SeparatePPO

            return super().__new__(SeparatePPO)
        return super().__new__(cls)

    def predict(self, obs: Tensor) -> Tensor:
        with paddle.no_grad():
            return self._distribution(self.model.policy(obs)).mode()

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with paddle.no_grad():
            output, value = self._policy_and_value(obs)
            distribution = self._distribution(output)
            action = distribution.sample()
            return value, action, distribution.logp(action), distribution.entropy()

    def value(self, obs: Tensor) -> Tensor:
        with paddle.no_grad():
            value: Tensor = self.model.value(obs)
            return value.reshape([-1])

    def learn(
        self,
        batch_obs: Tensor,
        batch_action: Tensor,
        batch_value: Tensor,
        batch_return: Tensor,
        batch_logprob: Tensor,
        batch_adv: Tensor,
        lr: float | Tensor | None = None,
        *,
        clip: float | None = None,
        entropy_coef: float | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        figures = self.learn_minibatch(
            (batch_obs, batch_action, batch_value, batch_return, batch_logprob, batch_adv),
            lr,
            self.clip_param if clip is None else clip,
            self.entropy_coef if entropy_coef is None else entropy_coef,
        )
        value_loss, policy_loss, entropy = figures[:3]
        return value_loss, policy_loss, entropy

    def learn_minibatch(
        self, minibatch: tuple[Tensor, ...], lr: float | Tensor | None, clip: float, entropy_coef: float
    ) -> tuple[Tensor, ...]:
        obs, action, value_old, return_, log_prob_old, advantage = minibatch
        if self.norm_adv:
            centred = advantage - advantage.mean()
            advantage = centred / (centred.square().mean().sqrt() + 1e-8)

        output, value = self._policy_and_value(obs)
        distribution = self._distribution(output)
        log_ratio = distribution.logp(action) - log_prob_old
        ratio = log_ratio.exp()
        policy_loss = clipped_surrogate(ratio, advantage, clip)
        if self.use_clipped_value_loss:
            value_loss = clipped_value_loss(value, value_old, return_, clip)
        else:
            value_loss = 0.5 * squared_error(value - return_)
        entropy = distribution.entropy().mean()
        loss = policy_loss + self.value_loss_coef * value_loss - entropy_coef * entropy
        self.optimizer.minimize(loss, lr)

        with paddle.no_grad():
            kl = approximate_kl(log_ratio, ratio)
            clipped = ((ratio - 1.0).abs() > clip).astype(ratio.dtype).mean()
        return value_loss.detach(), policy_loss.detach(), entropy.detach(), kl.detach(), clipped

    def _policy_and_value(self, obs: Tensor) -> tuple[Any, Tensor]:
        if self._one_pass:
            output, value = self.model.policy_and_value(obs)
        else:
            output, value = self.model.policy(obs), self.model.value(obs)
        return output, value.reshape([-1])

    def _distribution(self, output: Any) -> CategoricalDistribution | DiagGaussianDistribution:
        if self.continuous_action:
            return DiagGaussianDistribution.from_std(*output)
        return CategoricalDistribution(output)

    def _means(self, steps: list[tuple[Tensor, ...]]) -> list[float]:
        columns = [paddle.stack(list(column)).mean() for column in zip(*steps, strict=True)]
        return [float(figure) for figure in to_array(paddle.stack(columns))]
