"""Returns, advantages and action mapping, defined in `parl_core.returns` and `parl_core._policy_outputs`."""

from parl_core._policy_outputs import action_mapping
from parl_core.returns import (
    VTrace,
    calc_discount_norm_reward,
    calc_discount_sum_rewards,
    calc_gae,
    discounted_returns,
    gae,
    n_step_returns,
    vtrace,
)

__all__ = [
    "VTrace",
    "action_mapping",
    "calc_discount_norm_reward",
    "calc_discount_sum_rewards",
    "calc_gae",
    "discounted_returns",
    "gae",
    "n_step_returns",
    "vtrace",
]
