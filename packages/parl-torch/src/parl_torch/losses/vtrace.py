"""V-trace: value targets and advantages from the data of an older policy (Espeholt et al. 2018, arXiv:1802.01561)."""

import numpy as np
import torch
from torch import Tensor

from parl_core.checks import same_shape
from parl_core.contracts import impala
from parl_core.contracts.impala import VTraceReturns
from parl_core.layers import filled_in

__all__ = ["VTraceReturns", "from_importance_weights", "vtrace"]


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
    if _is_of_the_host(delta_t):  # numpy takes half the time for such small rows
        sums, traces = delta_t.contiguous().numpy(), trace_t.contiguous().numpy()
        with np.errstate(invalid="ignore", over="ignore"):  # infinite rewards are allowed, as in the framework
            for t in range(len(sums) - 2, -1, -1):
                sums[t] += traces[t] * sums[t + 1]
        return torch.from_numpy(sums)
    corrections, factors = list(delta_t.unbind()), trace_t.unbind()
    for t in reversed(range(len(corrections) - 1)):
        corrections[t] = torch.addcmul(corrections[t], factors[t], corrections[t + 1])
    return torch.stack(corrections)


def _is_of_the_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


from_importance_weights = filled_in(
    impala.from_importance_weights, vtrace=vtrace, joined=torch.cat, ones_like=torch.ones_like
)
"""As `parl_core.contracts.impala.from_importance_weights`."""
