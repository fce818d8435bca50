"""What the facade asks of a backend; registered as entry point `paddle` of the group `parl.backends`."""

from __future__ import annotations

from types import ModuleType

__all__ = ["PaddleBackend"]


class PaddleBackend:
    """PaddlePaddle; it is imported when the first of these is asked for."""

    name = "paddle"

    @property
    def Model(self) -> type:
        """`parl.Model`."""
        from parl_paddle.model import Model

        return Model

    @property
    def Algorithm(self) -> type:
        """`parl.Algorithm`."""
        from parl_paddle.algorithm import Algorithm

        return Algorithm

    @property
    def Agent(self) -> type:
        """`parl.Agent`."""
        from parl_paddle.agent import Agent

        return Agent

    @property
    def layers(self) -> ModuleType:
        """`parl.layers`."""
        from parl_paddle import layers

        return layers

    @property
    def algorithms(self) -> ModuleType:
        """`parl.algorithms`."""
        from parl_paddle import algorithms

        return algorithms
