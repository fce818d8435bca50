"""BC on PaddlePaddle."""

from parl_core.contracts import bc as contract
from parl_paddle.algorithm import Algorithm

__all__ = ["BC"]


class BC(contract.BC, Algorithm):
    pass
