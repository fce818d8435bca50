"""`parl.Agent` on PyTorch: the agent of `parl_core.agent`; its algorithm converts arrays to tensors."""

from typing import ClassVar

from parl_core import agent as contract

__all__ = ["Agent"]


class Agent(contract.Agent):
    BACKEND: ClassVar[str] = "torch"
