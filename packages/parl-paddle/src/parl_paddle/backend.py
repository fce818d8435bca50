"""What parl-paddle offers the facade `parl`; nothing here imports paddle before it is asked for."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parl_paddle.agent import Agent
    from parl_paddle.algorithm import Algorithm
    from parl_paddle.model import Model

__all__ = ["PaddleBackend"]


class PaddleBackend:
    """The backend called `paddle` (entry point of the group `parl.backends`)."""

    name = "paddle"

    @property
    def Model(self) -> "type[Model]":
        """`paddle.nn.Layer` with PARL's methods."""
        from parl_paddle.model import Model

        return Model

    @property
    def Algorithm(self) -> "type[Algorithm]":
        """Base of the algorithms."""
        from parl_paddle.algorithm import Algorithm

        return Algorithm

    @property
    def Agent(self) -> "type[Agent]":
        """Numpy in, numpy out."""
        from parl_paddle.agent import Agent

        return Agent

    @property
    def layers(self) -> ModuleType:
        """`parl.layers`."""
        return import_module("parl_paddle.layers")

    @property
    def optim(self) -> ModuleType:
        """`parl.optim`."""
        return import_module("parl_paddle.optim")

    @property
    def networks(self) -> ModuleType:
        """Ready-made models."""
        return import_module("parl_paddle.networks")

    @property
    def algorithms(self) -> ModuleType:
        """`parl.algorithms`."""
        return import_module("parl_paddle.algorithms")

    @property
    def data_parallel(self) -> ModuleType:
        """Several processes that learn together."""
        return import_module("parl_paddle.data_parallel")

    @property
    def random_state(self) -> ModuleType:
        """The framework's own generators."""
        return import_module("parl_paddle.random_state")
