"""`parl.algorithms` on PyTorch; signatures and meaning are documented in `parl_core.contracts`."""

from parl_torch.algorithms.dqn import DDQN, DQN
from parl_torch.algorithms.policy_gradient import PolicyGradient
from parl_torch.algorithms.ppo import PPO

__all__ = ["DDQN", "DQN", "PPO", "PolicyGradient"]
