"""Rainbow on PyTorch."""

from parl_core.contracts import rainbow as contract
from parl_torch.algorithms.c51 import C51

__all__ = ["Rainbow"]


class Rainbow(contract.Rainbow, C51):
    pass
