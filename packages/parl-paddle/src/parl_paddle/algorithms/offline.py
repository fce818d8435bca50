"""CQL, IQL and AWAC on PaddlePaddle."""

from __future__ import annotations

import math
from typing import Any

import paddle
from paddle import Tensor

from parl_core._nested import map_nested
from parl_core.contracts import offline as contract
from parl_core.contracts.batches import Transitions
from parl_paddle.algorithm import Algorithm
from parl_paddle.algorithms.sac import SAC
from parl_paddle.distributions import DiagGaussianDistribution
from parl_paddle.losses.offline import expectile, weighted_imitation
from parl_paddle.losses.squashed import squashed_gaussian, squashed_log_prob
from parl_paddle.losses.value import squared_error, td_error

__all__ = ["AWAC", "CQL", "IQL"]


class CQL(contract.CQL, SAC):
    def imitation_loss(
        self, batch: Transitions, alpha: Tensor | float, noise: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        mean, log_std = self.model.policy(batch.obs)
        _, log_prob = squashed_gaussian(mean, log_std, noise)
        return (alpha * log_prob - squashed_log_prob(mean, log_std, batch.action)).mean(), {"log_prob": log_prob}

    def _candidates(self, obs: Tensor, next_obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions `[3 * samples, batch, act_dim]` and their log-densities `[3 * samples, batch]`."""
        with paddle.no_grad():
            uniform = self._uniform(action)
            density = paddle.full_like(uniform[..., 0], -action.shape[-1] * math.log(2.0))
            actions, log_probs = [uniform], [density]
            for seen in (next_obs, obs):
                mean, log_std = (part.expand([self.samples, *part.shape]) for part in self.model.policy(seen))
                drawn, log_prob = squashed_gaussian(mean, log_std, self._noise(mean))
                actions.append(drawn)
                log_probs.append(log_prob)
            return paddle.concat(actions), paddle.concat(log_probs)

    def critic_loss(self, batch: Transitions, *drawn: Any) -> tuple[Tensor, dict[str, Tensor]]:
        factor, noise, actions, log_probs = drawn
        r_t, obs, next_obs = batch.reward, batch.obs, batch.next_obs
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            mean, log_std = self.model.policy(next_obs)
            a_t, _ = squashed_gaussian(mean, log_std, noise)
            q1_t, q2_t = self.target_model.value(next_obs, a_t)
            v_t = paddle.minimum(q1_t, q2_t).reshape([-1])  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        repeated = map_nested(lambda part: part.expand([3 * self.samples, *part.shape]).flatten(0, 1), obs)
        of_candidates = self.model.value(repeated, actions.flatten(0, 1))
        of_data = self.model.value(obs, batch.action)
        losses, squares, errors, gaps = [], [], [], []
        for q, q_tm1 in zip(of_candidates, (q.reshape([-1]) for q in of_data), strict=True):
            energy = q.reshape([3 * self.samples, -1])
            energy = energy - log_probs if self.min_q_version == 3 else paddle.concat([energy, q_tm1.unsqueeze(0)])
            conservative = self.min_q_weight * (energy.logsumexp(axis=0) - q_tm1).mean()
            gaps.append(conservative - self.lagrange_thresh if self.with_lagrange else conservative)
            errors.append(td_error(q_tm1, r_t, discount_t, v_t))
            squares.append(squared_error(errors[-1], batch.weights))
            losses.append(squares[-1] + factor * gaps[-1])
        figures = {"td_error": 0.5 * (errors[0] + errors[1]), "gap": gaps[0] + gaps[1], "mse": squares[0] + squares[1]}
        return losses[0] + losses[1], figures

    def _learn_of_parl2(self, batch: Transitions) -> tuple[Tensor, ...]:
        """Learn and return PARL 2.x's (critic_loss, mse, actor_loss, min_q) of paddle.

        `mse` is the critics' squared error without the conservative term, None if a `critic_loss` of the program has no
        such figure. `min_q` is the mean of min(Q1, Q2) of the
        policy's actions, after the update.
        """
        critic_loss, actor_loss, _, mse = self._counted_update(batch)
        with paddle.no_grad():
            mean, log_std = self.model.policy(batch.obs)
            action, _ = squashed_gaussian(mean, log_std, self._noise(mean))
            min_q = paddle.minimum(*self.model.value(batch.obs, action)).mean()  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        return critic_loss, mse, actor_loss, min_q

    def _factor(self) -> Tensor | float:
        return self.multiplier.alpha().clip(0.0, 1e6) if self.with_lagrange else 1.0

    def _multiplier_loss(self, gap: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return -0.5 * self.multiplier.log_alpha.exp().clip(0.0, 1e6) * gap.astype("float64"), {}

    def _uniform(self, like: Tensor) -> Tensor:
        return paddle.uniform(paddle.shape(like.expand([self.samples, *like.shape])), like.dtype, -1.0, 1.0)


class IQL(contract.IQL, Algorithm):
    def _policy(self, obs: Tensor) -> Any:
        """Return a distribution of actions: the model's own, or the Gaussian of its pair."""
        output = self.model.policy(obs)
        return output if hasattr(output, "log_prob") else DiagGaussianDistribution(output)

    def sample(self, obs: Tensor) -> Tensor:
        with paddle.no_grad():
            drawn: Tensor = self._policy(obs).sample().clip(-1.0, 1.0)
            return drawn

    def _target_values(self, obs: Tensor, action: Tensor) -> Tensor:
        with paddle.no_grad():
            q1_t, q2_t = self._q_values(self.target_model, obs, action)
            smaller: Tensor = paddle.minimum(q1_t, q2_t)  # type: ignore[no-untyped-call]  # paddle leaves it untyped
            return smaller.reshape([-1])

    def value_loss(self, batch: Transitions, q_t: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return expectile(q_t - self.model.value(batch.obs).reshape([-1]), self.tau), {}

    def actor_loss(self, batch: Transitions, q_t: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        policy = self._policy(batch.obs)
        if isinstance(policy, DiagGaussianDistribution):
            log_prob = policy.logp(batch.action)
        else:
            log_prob = policy.log_prob(batch.action).reshape([len(batch.action), -1]).sum(-1)
        with paddle.no_grad():
            adv_t = q_t - self.model.value(batch.obs).reshape([-1])
        return weighted_imitation(log_prob, adv_t, self.beta, self.MAX_WEIGHT), {}

    def critic_loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        r_t = batch.reward
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.discount if batch.discount is None else batch.discount)
            v_t = self.model.value(batch.next_obs).reshape([-1])
        q1_tm1, q2_tm1 = self._q_values(self.model, batch.obs, batch.action)
        errors = [td_error(q_tm1.reshape([-1]), r_t, discount_t, v_t) for q_tm1 in (q1_tm1, q2_tm1)]
        return squared_error(errors[0]) + squared_error(errors[1]), {}


class AWAC(contract.AWAC, Algorithm):
    def critic_loss(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r_t = batch.reward
        with paddle.no_grad():
            going_on = 1.0 - batch.terminal.astype(r_t.dtype)
            discount_t = going_on * (self.gamma if batch.discount is None else batch.discount)
            a_t = self._drawn(batch.next_obs, noise)
            q1_t, q2_t = self.target_model.value(batch.next_obs, a_t)
            v_t = paddle.minimum(q1_t, q2_t).reshape([-1])  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        errors = [td_error(q.reshape([-1]), r_t, discount_t, v_t) for q in self.model.value(batch.obs, batch.action)]
        loss = squared_error(errors[0], batch.weights) + squared_error(errors[1], batch.weights)
        return loss, {"td_error": 0.5 * (errors[0] + errors[1])}

    def actor_loss(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        with paddle.no_grad():
            values = [self.model.value(batch.obs, a) for a in (batch.action, self._drawn(batch.obs, noise))]
            q_t, v_t = (paddle.minimum(*pair).reshape([-1]) for pair in values)  # type: ignore[no-untyped-call]  # paddle leaves it untyped
        log_prob = DiagGaussianDistribution(self.model.policy(batch.obs)).logp(batch.action)
        return weighted_imitation(log_prob, q_t - v_t, 1.0 / self.lam, self.MAX_WEIGHT), {}
