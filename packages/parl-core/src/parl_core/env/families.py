"""Environments of other packages, by their id: their registration, and their preprocessing for an agent.

    MinAtar/Breakout-v1               minatar    as they are: images of 10 x 10, one plane for each kind of thing
    MiniGrid-Empty-5x5-v0             minigrid   the visible part of the grid, and the direction; no mission text
    dm_control/cartpole-swingup-v0    shimmy     dictionaries of numbers, which the command flattens

This module registers their ids with Gymnasium when one of them is used.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium
import numpy as np

__all__ = ["make_of_family", "register"]


class _Family(NamedTuple):
    """A package of environments.

    Attributes:
        module: imported to register them.
        function: of the module, which registers them; empty: importing does.
        extra: of parl-core, which installs it.
    """

    module: str
    function: str
    extra: str


_GRID = _Family("minigrid", "", "minigrid")
_FAMILIES: Mapping[str, _Family] = MappingProxyType(
    {
        "MinAtar/": _Family("minatar.gym", "register_envs", "minatar"),
        "MiniGrid-": _GRID,
        "BabyAI-": _GRID,
        "dm_control/": _Family("shimmy", "", "dmcontrol"),
    }
)


def register(env_id: str) -> None:
    """Register the environments of the package to which an id belongs; other ids have no effect.

    Raises:
        ImportError: the package is not installed; the message is the `pip install` line.
    """
    family = next((found for prefix, found in _FAMILIES.items() if env_id.startswith(prefix)), None)
    if family is None or env_id in gymnasium.registry:
        return
    try:
        module = import_module(family.module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f'{env_id} needs {error.name}:\n    pip install "parl-core[{family.extra}]"', name=error.name
        ) from None
    if family.function:
        getattr(module, family.function)()


def make_of_family(env_id: str, env: Any) -> Any:
    """Return an environment of one of these packages with its preprocessing; return others unchanged."""
    return _SeenGrid(env) if env_id.startswith(("MiniGrid-", "BabyAI-")) else env


class _SeenGrid(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows the part of a grid that is seen, with bounds that its numbers reach, and the direction.

    MiniGrid says that its cells are uint8 in 0..255; what they hold, kind, colour and state, are numbers up to 10.
    The mission is a text, which says what to do where there are several tasks; here there is one.
    """

    LARGEST = 10

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        parts: Any = env.observation_space
        self.observation_space = gymnasium.spaces.Dict(
            image=gymnasium.spaces.Box(0, self.LARGEST, parts["image"].shape, np.uint8), direction=parts["direction"]
        )

    def observation(self, observation: Any) -> Any:
        """Return both entries."""
        return {"image": observation["image"], "direction": observation["direction"]}
