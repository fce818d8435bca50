"""IMPALA on PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from parl_core.checks import check_real
from parl_core.contracts import impala as contract
from parl_core.contracts.batches import Fragment
from parl_paddle.algorithm import Algorithm
from parl_paddle.data_parallel import joined_sum
from parl_paddle.distributions import CategoricalDistribution, DiagGaussianDistribution
from parl_paddle.losses import vtrace

__all__ = ["IMPALA"]


class IMPALA(contract.IMPALA, Algorithm):
    PARL2_SAMPLED_PROBABILITIES = True

    def loss(self, batch: Fragment, entropy_coeff: float | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        coeff = self._now("entropy_coeff", self.entropy_coeff, entropy_coeff, check=check_real)
        action = batch.action if self.actions.continuous else batch.action.reshape([-1])
        reward, last_obs = batch.reward, batch.last_obs
        begins = self._begins(batch.done) if self.remembers else None
        policy, value = self._policy_and_value(self._features(batch.obs, batch.state, begins))
        done = batch.done.astype(value.dtype)
        behaviour = self._behaviour(batch.behaviour_logits)
        log_prob = policy.logp(action)
        value_t, discount_t = self._following(value.detach(), done, batch)
        learned = slice(None) if last_obs is not None else slice(-1)  # without it, the last steps only bootstrap

        def by_time(column: Tensor) -> Tensor:
            return column.reshape([-1, self.sample_batch_steps]).transpose([1, 0])[learned]

        returns = vtrace.vtrace(
            by_time(log_prob.detach() - behaviour.logp(action)),
            by_time(reward),
            by_time(discount_t),
            by_time(value.detach()),
            by_time(value_t),
            by_time(1.0 - done),
            self.clip_rho_threshold,
            self.clip_pg_rho_threshold,
        )
        pi_loss = -(by_time(log_prob) * returns.pg_advantages).sum()
        vf_loss = 0.5 * (by_time(value) - returns.vs).square().sum()
        entropy = by_time(policy.entropy()).sum()
        loss = pi_loss + self.vf_loss_coeff * vf_loss + coeff * entropy
        figures = {"total_loss": loss, "pi_loss": pi_loss, "vf_loss": vf_loss, "entropy": entropy}
        return joined_sum(loss), {**figures, "kl": behaviour.kl(policy).mean()}

    def _behaviour(self, numbers: Tensor) -> Any:
        """Return the distribution that acted, of the numbers that were sent."""
        if not self.actions.continuous:
            return CategoricalDistribution(numbers)
        mean, log_std = numbers.chunk(2, axis=-1)
        return DiagGaussianDistribution((mean, log_std))

    def _side_by_side(self, mean: Tensor, log_std: Tensor) -> Tensor:
        joined: Tensor = paddle.concat([mean, log_std], axis=-1)
        return joined

    def _begins(self, done: Tensor) -> Tensor:
        """Return a mask of the first steps of episodes: those behind the end of an episode, in each fragment."""
        by_fragment = done.reshape([-1, self.sample_batch_steps])
        return paddle.concat([paddle.zeros_like(by_fragment[:, :1]), by_fragment[:, :-1]], axis=1).reshape([-1])

    def _following(self, value: Tensor, done: Tensor, batch: Fragment) -> tuple[Tensor, Tensor]:
        """Return the values of the states that the steps led to, and their discounts: 0 after termination only."""
        with paddle.no_grad():
            fragments = value.reshape([-1, self.sample_batch_steps])
            last = fragments[:, -1]  # for columns that are not learned
            if batch.last_obs is not None:
                last = self.value(self._features(batch.last_obs, batch.last_state, None))
            value_t = paddle.concat([fragments[:, 1:], last.unsqueeze(1)], axis=1).reshape([-1])
            discount_t = self.gamma * (1.0 - done)
            if batch.final_rows is not None:
                final_value = self.value(self._features(batch.final_obs, batch.final_state, None))
                value_t = paddle.scatter(value_t, batch.final_rows, final_value)
                discount_t = paddle.scatter(
                    discount_t, batch.final_rows, paddle.full_like(batch.final_rows, self.gamma, discount_t.dtype)
                )
            return value_t, discount_t
