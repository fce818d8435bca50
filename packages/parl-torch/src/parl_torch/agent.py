"""`parl.Agent` on PyTorch: everything is the contract's; the algorithm converts."""

from typing import ClassVar

from parl_core import agent as contract

__all__ = ["Agent"]


class Agent(contract.Agent):
    BACKEND: ClassVar[str] = "torch"
