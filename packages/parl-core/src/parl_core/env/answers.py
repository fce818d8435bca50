"""What single environments answer, made what it has to be: one number, a bool, an observation of its space.

Numbers are taken as they come where nothing is lost (float64 for float32, whole numbers for uint8 where they fit);
everything else is refused with what was found, because numpy would repeat, wrap or cut it without a word.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core.env.group_step import ArraySpaces
from parl_core.errors import EnvironmentContractError

__all__ = ["as_flag", "as_observation", "as_reward", "require_equal_spaces", "wrong_observation"]


def as_reward(env: Any, reward: Any) -> float:
    """The reward as a float.

    Raises:
        EnvironmentContractError: it is no number, such as None or an array `[1]`.
    """
    if isinstance(reward, (int, float)):
        return float(reward)
    if np.shape(reward) == () and np.asarray(reward).dtype.kind in "biuf":
        return float(reward)
    found = f"of shape {list(np.shape(reward))}" if isinstance(reward, np.ndarray) else f"of {type(reward).__name__}"
    raise EnvironmentContractError(
        f"step of {_kind(env)} gave the reward {reward!r} {found}: it has to be one number; return float(reward), of "
        "an array with one entry reward.item()"
    )


def as_flag(env: Any, name: str, flag: Any) -> bool:
    """`terminated` or `truncated` as a bool.

    Raises:
        EnvironmentContractError: it is neither a bool nor a number.
    """
    if np.size(flag) == 1 and np.asarray(flag).dtype.kind in "biuf":
        return bool(flag)
    raise EnvironmentContractError(
        f"step of {_kind(env)} gave {name}={flag!r} of {type(flag).__name__}: return a bool, such as bool({name})"
    )


def as_observation(env: Any, space: Any, observation: Any) -> NDArray[Any]:
    """The observation of a space of arrays, in its shape and dtype; the same array where it has both.

    Raises:
        EnvironmentContractError: it has another shape, or other numbers than the dtype holds.
    """
    if isinstance(observation, np.ndarray) and observation.shape == space.shape and observation.dtype == space.dtype:
        return observation
    try:
        found = np.asarray(observation)
    except ValueError:
        raise wrong_observation(env, space, observation) from None
    if found.shape != space.shape:
        raise wrong_observation(env, space, observation)
    if not np.can_cast(found.dtype, space.dtype, "same_kind"):
        if found.dtype.kind not in "iuf":
            raise wrong_observation(env, space, observation)
        with np.errstate(invalid="ignore"):  # which numbers do not fit is what is asked here
            fitting = found.astype(space.dtype)
        if not np.array_equal(fitting, found):
            raise wrong_observation(env, space, observation)
    return found.astype(space.dtype, copy=False)


def wrong_observation(env: Any, space: Any, observation: Any) -> EnvironmentContractError:
    """The error for an observation that does not fit its space."""
    if isinstance(space, ArraySpaces):
        array = isinstance(observation, np.ndarray)
        found = f"of shape {list(observation.shape)} and dtype {observation.dtype}" if array else f"{observation!r:.99}"
        if array and observation.size <= 8:
            found = f"{observation} {found}"
        wanted = f"of shape {list(space.shape or ())} and dtype {space.dtype}"
    else:
        found, wanted = f"{observation!r:.299}", "like that"
    return EnvironmentContractError(
        f"{_kind(env)} gave the observation {found}, its observation_space is {space!r:.299}: return one {wanted}, or "
        "mend the space; parl.env.check_env finds the place"
    )


def require_equal_spaces(name: str, spaces: list[Any]) -> None:
    """Refuse environments whose spaces have other shapes, dtypes or parts than those of the first one.

    Raises:
        EnvironmentContractError: it has both spaces; different bounds are fine.
    """
    for index, space in enumerate(spaces):
        if _form(space) != _form(spaces[0]):
            raise EnvironmentContractError(
                f"environment {index} has the {name} {space}, environment 0 {spaces[0]}: the environments of a vector "
                "need spaces of the same shape and dtype"
            )


def _form(space: Any) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _form(part) for key, part in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return [_form(part) for part in space]
    return type(space), space.shape, space.dtype, getattr(space, "n", None)


def _kind(env: Any) -> str:
    return type(getattr(env, "unwrapped", env)).__name__
