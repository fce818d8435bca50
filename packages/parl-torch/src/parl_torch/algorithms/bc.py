"""BC on PyTorch."""

from parl_core.contracts import bc as contract
from parl_torch.algorithm import Algorithm

__all__ = ["BC"]


class BC(contract.BC, Algorithm):
    pass
