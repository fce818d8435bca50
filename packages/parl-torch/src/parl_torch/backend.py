"""What parl-torch offers the facade `parl`; nothing here imports PyTorch before it is asked for."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parl_torch.agent import Agent
    from parl_torch.algorithm import Algorithm
    from parl_torch.model import Model

__all__ = ["TorchBackend"]


class TorchBackend:
    """The backend called `torch` (entry point of the group `parl.backends`)."""

    name = "torch"

    @property
    def Model(self) -> "type[Model]":
        """`torch.nn.Module` with PARL's methods."""
        from parl_torch.model import Model

        return Model

    @property
    def Algorithm(self) -> "type[Algorithm]":
        """Base of the algorithms."""
        from parl_torch.algorithm import Algorithm

        return Algorithm

    @property
    def Agent(self) -> "type[Agent]":
        """Numpy in, numpy out."""
        from parl_torch.agent import Agent

        return Agent

    @property
    def layers(self) -> ModuleType:
        """`parl.layers`."""
        return import_module("parl_torch.layers")

    @property
    def optim(self) -> ModuleType:
        """`parl.optim`."""
        return import_module("parl_torch.optim")

    @property
    def networks(self) -> ModuleType:
        """Ready-made models."""
        return import_module("parl_torch.networks")

    @property
    def algorithms(self) -> ModuleType:
        """`parl.algorithms`."""
        return import_module("parl_torch.algorithms")

    @property
    def data_parallel(self) -> ModuleType:
        """Several processes that learn together."""
        return import_module("parl_torch.data_parallel")

    @property
    def random_state(self) -> ModuleType:
        """The framework's own generators."""
        return import_module("parl_torch.random_state")
