"""V-trace: value targets and advantages from the data of an older policy (Espeholt et al. 2018, arXiv:1802.01561)."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from parl_core.checks import same_shape

__all__ = ["VTraceReturns", "from_importance_weights", "vtrace"]


class VTraceReturns(NamedTuple):
    """Value targets and policy-gradient advantages, both `[T, n]`, without gradients."""

    vs: Tensor
    pg_advantages: Tensor


@torch.no_grad()
def vtrace(
    log_ratio_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    v_tm1: Tensor,
    v_t: Tensor,
    same_episode_t: Tensor,
    clip_rho: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VTraceReturns:
    """Return the targets of section 4.1, time first; `parl_core.returns.vtrace` has the equations.

    Args:
        log_ratio_t: log pi(a|s) - log mu(a|s), `[T, n]`.
        r_t: Rewards, `[T, n]`.
        discount_t: Discounts, `[T, n]`; 0 where the episode terminated.
        v_tm1: Values of the states before the steps, `[T, n]`.
        v_t: Values of the states after the steps, `[T, n]`.
        same_episode_t: 1 where the next row continues the episode, else 0, `[T, n]`.
        clip_rho: Upper bound of the importance weights of the temporal differences.
        clip_pg_rho: Upper bound of the importance weights of the advantages.
    """
    same_shape(
        log_ratio_t=log_ratio_t, r_t=r_t, discount_t=discount_t, v_tm1=v_tm1, v_t=v_t, same_episode_t=same_episode_t
    )
    ratio_t = log_ratio_t.exp()
    delta_t = ratio_t.clamp(max=clip_rho) * (r_t + discount_t * v_t - v_tm1)
    trace_t = discount_t * ratio_t.clamp(max=1.0) * same_episode_t
    vs = v_tm1 + _scanned(delta_t, trace_t)
    vs_t = torch.cat([torch.where(same_episode_t[:-1] > 0, vs[1:], v_t[:-1]), v_t[-1:]])
    return VTraceReturns(vs, ratio_t.clamp(max=clip_pg_rho) * (r_t + discount_t * vs_t - v_tm1))


def _scanned(delta_t: Tensor, trace_t: Tensor) -> Tensor:
    """Return vs - V, from the last step back."""
    if _is_of_the_host(delta_t):  # of so small rows, numpy takes half the time
        sums, traces = delta_t.contiguous().numpy(), trace_t.contiguous().numpy()
        with np.errstate(invalid="ignore", over="ignore"):  # of infinite rewards, as the framework takes them
            for t in range(len(sums) - 2, -1, -1):
                sums[t] += traces[t] * sums[t + 1]
        return torch.from_numpy(sums)
    corrections, factors = list(delta_t.unbind()), trace_t.unbind()
    for t in reversed(range(len(corrections) - 1)):
        corrections[t] = torch.addcmul(corrections[t], factors[t], corrections[t + 1])
    return torch.stack(corrections)


def _is_of_the_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def from_importance_weights(
    behaviour_actions_log_probs: Tensor,
    target_actions_log_probs: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    clip_rho_threshold: float = 1.0,
    clip_pg_rho_threshold: float = 1.0,
) -> VTraceReturns:
    """Return the targets of `vtrace` from the arguments of PARL 2.x.

    Args:
        behaviour_actions_log_probs: log mu(a|s), `[T, n]`.
        target_actions_log_probs: log pi(a|s), `[T, n]`.
        discounts: Discounts, `[T, n]`; 0 where an episode ended.
        rewards: Rewards, `[T, n]`.
        values: Values of the states before the steps, `[T, n]`.
        bootstrap_value: Value of the state after the last step, `[n]`.
        clip_rho_threshold: Upper bound of the importance weights of the temporal differences.
        clip_pg_rho_threshold: Upper bound of the importance weights of the advantages.
    """
    following = torch.cat([values[1:], bootstrap_value.unsqueeze(0)])
    return vtrace(
        target_actions_log_probs - behaviour_actions_log_probs,
        rewards,
        discounts,
        values,
        following,
        torch.ones_like(rewards),
        clip_rho_threshold,
        clip_pg_rho_threshold,
    )
