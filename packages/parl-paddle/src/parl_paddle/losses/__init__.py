"""Pure functions, one module a topic; names carry time (`q_tm1`, `r_t`, `discount_t`), inputs are batched."""

from parl_paddle.losses.policy_gradient import reinforce
from parl_paddle.losses.ppo import clipped_surrogate, clipped_value
from parl_paddle.losses.q_learning import action_values, double_q_target, q_target, weighted_square

__all__ = [
    "action_values",
    "clipped_surrogate",
    "clipped_value",
    "double_q_target",
    "q_target",
    "reinforce",
    "weighted_square",
]
