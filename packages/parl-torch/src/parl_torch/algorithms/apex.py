"""Ape-X's learner on PyTorch."""

from typing import ClassVar

from parl_core.contracts import apex as contract
from parl_torch.algorithms.dqn import DQN

__all__ = ["ApeX"]


class ApeX(contract.ApeX, DQN):
    ON_HOST: ClassVar = DQN.ON_HOST
