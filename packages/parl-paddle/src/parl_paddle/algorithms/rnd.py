"""RND on PaddlePaddle."""

from parl_core.contracts import rnd as contract
from parl_paddle.algorithm import Algorithm

__all__ = ["RND"]


class RND(contract.RND, Algorithm):
    pass
