"""PPO on PaddlePaddle in the form of PARL 2.x; documented in `parl_core.contracts.ppo`."""

from __future__ import annotations

from typing import Any

import paddle

from parl_core.contracts import ppo as contract
from parl_paddle.algorithm import Algorithm
from parl_paddle.algorithms.separate_ppo import SeparatePPO
from parl_paddle.distributions import Categorical, DiagGaussian
from parl_paddle.losses import clipped_surrogate, clipped_value

__all__ = ["PPO"]


class PPO(Algorithm, contract.PPO):
    __doc__ = contract.PPO.__doc__

    def __new__(cls, model: Any = None, *args: Any, **kwargs: Any) -> Any:
        if cls is PPO and contract.asks_for_separate_form(len(args), kwargs):
            return SeparatePPO(model, **kwargs)
        return super().__new__(cls)

    def predict(self, obs: Any) -> Any:
        return self._distribution(self.model.policy(obs)).mode()

    def sample(self, obs: Any) -> Any:
        policy, value = self._policy_and_value(obs)
        action = policy.sample()
        return value, action, policy.logp(action), policy.entropy()

    def value(self, obs: Any) -> Any:
        return self.model.value(obs).reshape([-1])

    def learn(
        self,
        batch_obs: Any,
        batch_action: Any,
        batch_value: Any,
        batch_return: Any,
        batch_logprob: Any,
        batch_adv: Any,
        lr: Any = None,
        *,
        clip: float | None = None,
        entropy_coef: float | None = None,
    ) -> Any:
        minibatch = (batch_obs, batch_action, batch_value, batch_return, batch_logprob, batch_adv)
        clip = self.clip_param if clip is None else clip
        return self.learn_minibatch(minibatch, lr, clip, self.entropy_coef if entropy_coef is None else entropy_coef)[:3]

    def learn_minibatch(self, minibatch: tuple[Any, ...], lr: Any, clip: float, entropy_coef: float) -> Any:
        obs, action, old_value, return_, old_log_prob, adv = minibatch
        policy, value = self._policy_and_value(obs)
        log_ratio = policy.logp(action) - old_log_prob
        ratio = paddle.exp(log_ratio)
        if self.norm_adv:
            adv = (adv - adv.mean()) / (adv.std(unbiased=False) + 1e-8)
        policy_loss = clipped_surrogate(ratio, adv, clip)
        if self.use_clipped_value_loss:
            value_loss = clipped_value(value, old_value, return_, clip)
        else:
            value_loss = 0.5 * paddle.square(value - return_).mean()
        entropy = policy.entropy().mean()
        self.optimizer.minimize(policy_loss + self.value_loss_coef * value_loss - entropy_coef * entropy, lr)
        with paddle.no_grad():
            approx_kl = (ratio - 1.0 - log_ratio).mean()
            clip_fraction = ((ratio - 1.0).abs() > clip).astype(ratio.dtype).mean()
        return tuple(figure.detach() for figure in (value_loss, policy_loss, entropy, approx_kl, clip_fraction))

    def _policy_and_value(self, obs: Any) -> tuple[Categorical | DiagGaussian, Any]:
        if self._one_pass:
            policy, value = self.model.policy_and_value(obs)
        else:
            policy, value = self.model.policy(obs), self.model.value(obs)
        return self._distribution(policy), value.reshape([-1])

    def _distribution(self, policy: Any) -> Categorical | DiagGaussian:
        if not self.continuous_action:
            return Categorical(policy)
        mean, std = policy
        return DiagGaussian(mean, paddle.log(std))

    def _means(self, steps: list[tuple[Any, ...]]) -> list[float]:
        figures = paddle.stack([paddle.stack(step) for step in steps])
        means: list[float] = figures.mean(axis=0).tolist()
        return means
