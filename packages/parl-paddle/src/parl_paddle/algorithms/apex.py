"""Ape-X's learner on PaddlePaddle."""

from parl_core.contracts import apex as contract
from parl_paddle.algorithms.dqn import DQN

__all__ = ["ApeX"]


class ApeX(contract.ApeX, DQN):
    pass
