"""Messages between a group of environments and its caller, and how they are pickled.

Rows of actions  ─>  EnvGroup  ─>  GroupStep: arrays, and an Ending for each episode that ended
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

__all__ = ["ArraySpaces", "Ending", "GroupSpaces", "GroupStep", "Infos", "Rows"]

ArraySpaces = (
    gymnasium.spaces.Box,
    gymnasium.spaces.Discrete,
    gymnasium.spaces.MultiDiscrete,
    gymnasium.spaces.MultiBinary,
)
"""The spaces whose batches are one numpy array."""

Infos = list[tuple[int, dict[str, Any]]]
"""Pairs of an environment's index and its info, without the empty ones."""


class Ending(NamedTuple):
    """The end of one environment's episode, in the step that ended it."""

    env_index: int
    """which environment of the group, from 0"""
    observation: Any
    """the last observation, from which a truncated episode bootstraps; None where the step itself returns it"""
    info: dict[str, Any]
    """the last info"""
    episode_return: float
    """undiscounted sum of the episode's rewards; before wrappers scaled them where one of those tells it in its info"""
    length: int
    """steps of the episode"""


class GroupSpaces(NamedTuple):
    """The spaces of a group's environments; fetched once."""

    observation: Any
    action: Any
    metadata: dict[str, Any]


class GroupStep(NamedTuple):
    """The answer of one step, arrays over the group's environments."""

    observations: Any
    """`[count, *obs]`, or a dict or tuple of such; with SAME_STEP the next episode's first one where one ended"""
    rewards: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    endings: list[Ending]
    infos: Infos
    """empty unless the group was made with `with_infos`"""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (self.endings, self.infos, *(_packed(part) for part in self[:4]))


class Rows:
    """Actions `[count, *act]` on their way to a group, which sees them one by one."""

    def __init__(self, actions: npt.NDArray[Any]) -> None:
        self._actions = actions

    def __iter__(self) -> Iterator[Any]:
        return iter(self._actions)

    def __reduce__(self) -> tuple[Any, ...]:
        return _array, _packed(self._actions)


# numpy spends ten times as long on pickling a few numbers as on copying them: small arrays travel as bytes. Larger
# ones stay arrays, which parl-remote hands over without a copy.
_BYTES_WORTH_A_COPY = 8192

_Packed = tuple[Any, ...]


def _packed(part: Any) -> _Packed:
    if not isinstance(part, np.ndarray) or part.nbytes >= _BYTES_WORTH_A_COPY or part.dtype.hasobject:
        return (part,)
    return part.tobytes(), part.dtype.str, part.shape


def _array(data: Any, dtype: str = "", shape: tuple[int, ...] = ()) -> Any:
    if not dtype:
        return data
    return np.frombuffer(bytearray(data), dtype).reshape(shape)  # of a bytearray, because arrays of bytes are read-only


def _unpack(endings: list[Ending], infos: Infos, *parts: _Packed) -> GroupStep:
    observations, rewards, terminated, truncated = (_array(*part) for part in parts)
    return GroupStep(observations, rewards, terminated, truncated, endings, infos)
