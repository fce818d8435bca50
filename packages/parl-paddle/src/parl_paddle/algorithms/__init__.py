"""The algorithms; each is documented in its contract, `parl_core.contracts.<name>`."""

from parl_paddle.algorithms.dqn import DDQN, DQN
from parl_paddle.algorithms.policy_gradient import PolicyGradient
from parl_paddle.algorithms.ppo import PPO

__all__ = ["DDQN", "DQN", "PPO", "PolicyGradient"]
