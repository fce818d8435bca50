"""IMPALA on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.checks import check_real
from parl_core.contracts import impala as contract
from parl_core.contracts.actions import mask_of
from parl_paddle.algorithm import Algorithm
from parl_paddle.data_parallel import joined_sum
from parl_paddle.distributions import CategoricalDistribution
from parl_paddle.losses.vtrace import vtrace
from parl_paddle.optim import Adam

__all__ = ["IMPALA"]


class IMPALA(contract.IMPALA, Algorithm):
    __doc__ = contract.IMPALA.__doc__

    optimizer: Adam

    def predict(self, obs: Any) -> Tensor:
        with paddle.no_grad():
            return self._policy_and_value(obs)[0].mode()

    def sample(self, obs: Any) -> tuple[Tensor, Tensor]:
        with paddle.no_grad():
            policy, _ = self._policy_and_value(obs)
            return policy.sample(), policy.logits

    def logits(self, obs: Any) -> Tensor:
        with paddle.no_grad():
            if not self._policy_alone:
                return self._policy_and_value(obs)[0].logits
            return CategoricalDistribution(self.model.policy(obs), mask_of(obs)).logits

    def value(self, obs: Any) -> Tensor:
        with paddle.no_grad():
            return self._policy_and_value(obs)[1]

    def learn(
        self,
        obs: Any,
        actions: Tensor,
        behaviour_logits: Tensor,
        rewards: Tensor,
        dones: Tensor,
        learning_rate: float | Tensor | None = None,
        entropy_coeff: float | None = None,
        *,
        last_obs: Any = None,
        final_rows: Tensor | None = None,
        final_obs: Any = None,
    ) -> tuple[contract.VTraceLoss, Tensor]:
        lr = self._now("learning_rate", self.lr, learning_rate)
        coeff = self._now("entropy_coeff", self.entropy_coeff, entropy_coeff, check=check_real)
        batch = (obs, actions.reshape([-1]), behaviour_logits, rewards.reshape([-1]), dones.reshape([-1]))
        _, *losses, kl = self.optimizer.descend(self._losses, *batch, last_obs, final_rows, final_obs, coeff, lr=lr)
        self._after_each_update(self._count_update)
        return contract.VTraceLoss(*losses), kl

    def _losses(
        self,
        obs: Any,
        action: Tensor,
        behaviour_logits: Tensor,
        reward: Tensor,
        done: Tensor,
        last_obs: Any,
        final_rows: Tensor | None,
        final_obs: Any,
        entropy_coeff: float,
    ) -> tuple[Tensor, ...]:
        policy, value = self._policy_and_value(obs)
        behaviour = CategoricalDistribution(behaviour_logits)
        log_prob = policy.logp(action)
        value_t, discount_t = self._following(value.detach(), done.astype(value.dtype), last_obs, final_rows, final_obs)
        learned = slice(None) if last_obs is not None else slice(-1)  # without it, the last steps only bootstrap

        def by_time(column: Tensor) -> Tensor:
            return column.reshape([-1, self.sample_batch_steps]).transpose([1, 0])[learned]

        returns = vtrace(
            by_time(log_prob.detach() - behaviour.logp(action)),
            by_time(reward),
            by_time(discount_t),
            by_time(value.detach()),
            by_time(value_t),
            by_time(1.0 - done.astype(value.dtype)),
            self.clip_rho_threshold,
            self.clip_pg_rho_threshold,
        )
        pi_loss = -(by_time(log_prob) * returns.pg_advantages).sum()
        vf_loss = 0.5 * (by_time(value) - returns.vs).square().sum()
        entropy = by_time(policy.entropy()).sum()
        loss = pi_loss + self.vf_loss_coeff * vf_loss + entropy_coeff * entropy
        return joined_sum(loss), loss, pi_loss, vf_loss, entropy, behaviour.kl(policy).mean()

    def _following(
        self, value: Tensor, done: Tensor, last_obs: Any, final_rows: Tensor | None, final_obs: Any
    ) -> tuple[Tensor, Tensor]:
        """Values of the states that the steps led to, and their discounts: 0 after termination only."""
        with paddle.no_grad():
            fragments = value.reshape([-1, self.sample_batch_steps])
            last = fragments[:, -1] if last_obs is None else self.value(last_obs)  # in the place of what is not learned
            value_t = paddle.concat([fragments[:, 1:], last.unsqueeze(1)], axis=1).reshape([-1])
            discount_t = self.gamma * (1.0 - done)
            if final_rows is not None:
                value_t = paddle.scatter(value_t, final_rows, self.value(final_obs))
                discount_t = paddle.scatter(
                    discount_t, final_rows, paddle.full_like(final_rows, self.gamma, discount_t.dtype)
                )
            return value_t, discount_t

    def _policy_and_value(self, obs: Any) -> tuple[CategoricalDistribution, Tensor]:
        if self._one_pass:
            logits, value = self.model.policy_and_value(obs)
        else:
            logits, value = self.model.policy(obs), self.model.value(obs)
        return CategoricalDistribution(logits, mask_of(obs)), value.reshape([-1])
