"""Rainbow on PaddlePaddle."""

from parl_core.contracts import rainbow as contract
from parl_paddle.algorithms.c51 import C51

__all__ = ["Rainbow"]


class Rainbow(contract.Rainbow, C51):
    pass
