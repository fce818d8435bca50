"""`parl.algorithms` on PaddlePaddle; signatures and meaning are documented in `parl_core.contracts`."""

from parl_paddle.algorithms.dqn import DDQN, DQN
from parl_paddle.algorithms.policy_gradient import PolicyGradient
from parl_paddle.algorithms.ppo import PPO

__all__ = ["DDQN", "DQN", "PPO", "PolicyGradient"]
