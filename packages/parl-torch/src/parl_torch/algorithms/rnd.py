"""RND on PyTorch."""

from parl_core.contracts import rnd as contract
from parl_torch.algorithm import Algorithm

__all__ = ["RND"]


class RND(contract.RND, Algorithm):
    pass
