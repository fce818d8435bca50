"""IMPALA on PyTorch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from parl_core.checks import check_real
from parl_core.contracts import impala as contract
from parl_core.contracts.batches import Fragment
from parl_torch._chains import Fork, LossReader, Network, Networks, hand_written
from parl_torch.algorithm import Algorithm
from parl_torch.data_parallel import joined_sum
from parl_torch.distributions import CategoricalDistribution, DiagGaussianDistribution
from parl_torch.losses import vtrace

__all__ = ["IMPALA"]


def _networks(algorithm: "IMPALA") -> Networks:
    if algorithm._reduces or algorithm.remembers or algorithm.actions.continuous:
        return ()
    return (Network(algorithm.model, ("policy_and_value",) if algorithm._one_pass else ("policy", "value"), True),)


def _slopes(
    algorithm: "IMPALA", networks: Sequence[Fork], batch: Fragment, entropy_coeff: float | None = None
) -> LossReader:
    others = [part for part in (batch.last_obs, batch.final_obs) if part is not None]
    if batch.last_obs is None or any(part.dtype != batch.obs.dtype for part in others):
        return None
    coeff = algorithm._now("entropy_coeff", algorithm.entropy_coeff, entropy_coeff, check=check_real)
    (network,), action = networks, batch.action.reshape(-1)
    kept = network.forward(batch.obs)
    logits, values = (each[-1] for each in kept[1])
    policy, behaviour, value = (
        CategoricalDistribution(logits),
        CategoricalDistribution(batch.behaviour_logits),
        values.reshape(-1),
    )
    log_prob = policy.logp(action)
    returns = algorithm._returns(
        batch, log_prob - behaviour.logp(action), value, lambda obs, _: network.forward(obs)[1][1][-1].reshape(-1)
    )
    target, advantage = (part.t().reshape(-1) for part in returns)
    error = value - target
    by_logits = policy.slope(action, -advantage, coeff)
    network.backward(kept, (by_logits, (error * algorithm.vf_loss_coeff).unsqueeze(1)))

    def figures() -> tuple[Tensor, dict[str, Tensor]]:
        pi_loss = -torch.dot(log_prob, advantage)
        vf_loss, entropy = 0.5 * torch.dot(error, error), policy.entropy().sum()
        loss = pi_loss + algorithm.vf_loss_coeff * vf_loss + coeff * entropy
        parts = {"total_loss": loss, "pi_loss": pi_loss, "vf_loss": vf_loss, "entropy": entropy}
        return loss, {**parts, "kl": behaviour.kl(policy).mean()}

    return figures


class IMPALA(contract.IMPALA, Algorithm):
    @hand_written(_networks, _slopes)
    def loss(self, batch: Fragment, entropy_coeff: float | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        coeff = self._now("entropy_coeff", self.entropy_coeff, entropy_coeff, check=check_real)
        action = batch.action if self.actions.continuous else batch.action.reshape(-1)
        begins = self._begins(batch.done) if self.remembers else None
        policy, value = self._policy_and_value(self._features(batch.obs, batch.state, begins))
        behaviour = self._behaviour(batch.behaviour_logits)
        log_prob = policy.logp(action)
        log_ratio = log_prob.detach() - behaviour.logp(action)
        returns = self._returns(
            batch, log_ratio, value.detach(), lambda obs, state: self.value(self._features(obs, state, None))
        )
        pi_loss = -(self._by_time(log_prob, batch) * returns.pg_advantages).sum()
        vf_loss = 0.5 * (self._by_time(value, batch) - returns.vs).square().sum()
        entropy = self._by_time(policy.entropy(), batch).sum()
        loss = pi_loss + self.vf_loss_coeff * vf_loss + coeff * entropy
        figures = {"total_loss": loss, "pi_loss": pi_loss, "vf_loss": vf_loss, "entropy": entropy}
        return joined_sum(loss), {**figures, "kl": behaviour.kl(policy).mean()}

    def _behaviour(self, numbers: Tensor) -> Any:
        """Return the distribution of the policy that acted, from its parameters."""
        if not self.actions.continuous:
            return CategoricalDistribution(numbers)
        mean, log_std = numbers.chunk(2, dim=-1)
        return DiagGaussianDistribution((mean, log_std))

    def _side_by_side(self, mean: Tensor, log_std: Tensor) -> Tensor:
        return torch.cat([mean, log_std], dim=-1)

    def _by_time(self, column: Tensor, batch: Fragment) -> Tensor:
        """Return a column `[T, n]`, without the last steps where they only bootstrap."""
        steps = column.reshape(-1, self.sample_batch_steps).transpose(0, 1)
        return steps if batch.last_obs is not None else steps[:-1]

    def _begins(self, done: Tensor) -> Tensor:
        """Return a mask of the first steps of episodes in each fragment: those that follow the end of an episode."""
        by_fragment = done.reshape(-1, self.sample_batch_steps)
        return torch.cat([torch.zeros_like(by_fragment[:, :1]), by_fragment[:, :-1]], dim=1).reshape(-1)

    @torch.no_grad()
    def _returns(
        self, batch: Fragment, log_ratio: Tensor, value: Tensor, value_of: Callable[[Any, Any], Tensor]
    ) -> vtrace.VTraceReturns:
        """Return value targets and advantages of the steps that are learned from.

        Args:
            batch: The fragments.
            log_ratio: The logarithm of the ratio of the policy that learns to the one that acted, `[n * T]`.
            value: `[n * T]`.
            value_of: The function that returns the values of other observations, with the states of the memory.
        """
        done = batch.done.to(value.dtype)
        fragments = value.reshape(-1, self.sample_batch_steps)
        last = fragments[:, -1]  # for columns that are not learned
        if batch.last_obs is not None:
            last = value_of(batch.last_obs, batch.last_state)
        value_t = torch.cat([fragments[:, 1:], last.unsqueeze(1)], dim=1).reshape(-1)
        discount_t = self.gamma * (1.0 - done)  # 0 after termination only
        if batch.final_rows is not None:
            value_t = value_t.index_copy(0, batch.final_rows, value_of(batch.final_obs, batch.final_state))
            discount_t = discount_t.index_fill(0, batch.final_rows, self.gamma)
        return vtrace.vtrace(
            self._by_time(log_ratio, batch),
            self._by_time(batch.reward, batch),
            self._by_time(discount_t, batch),
            self._by_time(value, batch),
            self._by_time(value_t, batch),
            self._by_time(1.0 - done, batch),
            self.clip_rho_threshold,
            self.clip_pg_rho_threshold,
        )
