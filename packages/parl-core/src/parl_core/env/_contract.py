"""The contract of environments: checks and conversions of options and results.

Rewards become numbers, flags become bools, and observations get the shape and dtype of their space. Conversions without
loss are accepted (float64 to float32, whole numbers that fit uint8); other values raise an error that shows them,
because numpy would silently broadcast, wrap or truncate them.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core.env._steps import ArraySpaces
from parl_core.errors import EnvironmentContractError, HyperparameterError

__all__ = [
    "CHECKED_SPACES",
    "CHOICES",
    "as_beginning",
    "as_flag",
    "as_observation",
    "as_reward",
    "casting_to",
    "choices_of",
    "explaining_options",
    "name_of",
    "require_equal_spaces",
    "require_info",
    "require_parts",
    "wrong_answer",
    "wrong_observation",
]

CHOICES = (gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete)
CHECKED_SPACES = (gymnasium.spaces.Dict, gymnasium.spaces.Box, *CHOICES)
"""Spaces for whose observations numpy would silently accept wrong keys, wrong choices, or numbers that wrap."""


@contextlib.contextmanager
def explaining_options(name: str, given: Mapping[str, Any], made_by: Callable[[], Any]) -> Iterator[None]:
    """Provide a context for making an environment, in which errors about options list the valid ones.

    Args:
        name: The name of the environment.
        given: The options of the environment.
        made_by: The function that returns the callable that takes the options, or its `module:name`.

    Raises:
        HyperparameterError: An option is unknown, or its value is wrong.
    """
    try:
        yield
    except (TypeError, ValueError, AssertionError) as error:
        if not given:
            raise
        known: list[str] = []
        with contextlib.suppress(Exception):  # any exception: some callables cannot be inspected
            found = made_by()
            if isinstance(found, str):
                module, _, attribute = found.partition(":")
                found = getattr(import_module(module), attribute)
            parameters = inspect.signature(found).parameters.values()
            known = [one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]
        arguments = ", ".join(f"{option}={value!r}" for option, value in given.items())
        there = f"; its options are {', '.join(known)}" if known else ""
        raise HyperparameterError(f"{name} cannot be made with {arguments} ({error}){there}") from error


def as_beginning(env: Any, answer: Any) -> tuple[Any, dict[str, Any]]:
    """Return observation and info of `reset`.

    Raises:
        EnvironmentContractError: It is not a pair with a dictionary.
    """
    if isinstance(answer, (tuple, list)) and len(answer) == 2:
        require_info(env, "reset", answer[1])
        return answer[0], answer[1]
    raise wrong_answer(env, "reset", answer, "(observation, info)")


def wrong_answer(env: Any, method: str, answer: Any, wanted: str) -> EnvironmentContractError:
    """Return the error for a wrong result of a method."""
    found = f"an array of shape {list(answer.shape)}" if isinstance(answer, np.ndarray) else f"{answer!r:.99}"
    found = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else found
    return EnvironmentContractError(
        f"{method} of {name_of(env)} returned {found}: let it return {wanted}; parl.env.check_env looks for more"
    )


def require_info(env: Any, method: str, info: Any) -> None:
    """Reject an info that is not a dictionary.

    Raises:
        EnvironmentContractError: It is not a dictionary; the message names the method.
    """
    if not isinstance(info, Mapping):
        raise EnvironmentContractError(
            f"{method} of {name_of(env)} gave info={info!r:.99} of {type(info).__name__}: return a dict; {{}} will do"
        )


def as_reward(env: Any, reward: Any) -> float:
    """Return the reward as a float.

    Raises:
        EnvironmentContractError: It is not a number, such as None or an array `[1]`.
    """
    if isinstance(reward, (int, float)):
        return float(reward)
    array = _as_array(reward)
    if array is not None and array.shape == () and array.dtype.kind in "biuf":
        return float(array)
    found = f"of shape {list(np.shape(reward))}" if isinstance(reward, np.ndarray) else f"of {type(reward).__name__}"
    raise EnvironmentContractError(
        f"step of {name_of(env)} gave the reward {reward!r} {found}: it has to be one number; return float(reward), of "
        "an array with one entry reward.item()"
    )


def _as_array(value: Any) -> NDArray[Any] | None:
    """Return a value as an array; None for rows of different lengths, and for a tensor on a GPU or with gradients."""
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError):
        return None


def as_flag(env: Any, name: str, flag: Any) -> bool:
    """Return `terminated` or `truncated` as a bool.

    Raises:
        EnvironmentContractError: It is neither a bool nor a number.
    """
    if isinstance(flag, (bool, np.bool_)):
        return bool(flag)
    array = _as_array(flag)  # also of a tensor, of which `np.size` does not find the size
    if array is not None and array.size == 1 and array.dtype.kind in "biuf":
        return bool(array)
    raise EnvironmentContractError(
        f"step of {name_of(env)} gave {name}={flag!r} of {type(flag).__name__}: return a bool, such as bool({name})"
    )


def as_observation(env: Any, space: Any, observation: Any) -> NDArray[Any]:
    """Return an observation of a space of arrays in its shape and dtype; the same array if it already has both.

    Raises:
        EnvironmentContractError: It has another shape, or numbers that do not fit the dtype.
    """
    if isinstance(observation, np.ndarray) and observation.shape == space.shape and observation.dtype == space.dtype:
        return observation
    found = _as_array(observation)
    if found is None or found.shape != space.shape:
        raise wrong_observation(env, space, observation)
    if not _holds(space, found):
        raise wrong_observation(env, space, observation)
    return found.astype(space.dtype, copy=False)


def casting_to(space: Any) -> str:
    """Return numpy's name of the conversions that keep all numbers; integers of the same kind may wrap."""
    return "same_kind" if space.dtype.kind == "f" else "safe"


def _holds(space: Any, found: NDArray[Any]) -> bool:
    """Return whether the dtype of a space can represent all numbers of an array; floats may be rounded."""
    if np.can_cast(found.dtype, space.dtype, casting_to(space)):  # type: ignore[arg-type]  # one of numpy's names
        return True
    if found.dtype.kind not in "iuf":
        return False
    with np.errstate(invalid="ignore"):  # the check looks for numbers that do not fit
        return np.array_equal(found.astype(space.dtype), found)


def choices_of(space: Any) -> tuple[Any, Any]:
    """Return the first choice of each part of a space of choices, and the number after its last one."""
    start = getattr(space, "start", 0)
    return start, start + (space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec)


def require_parts(env: Any, space: Any, observation: Any, place: str = "") -> None:
    """Reject dictionaries with wrong keys, and numbers that are not in a space of choices.

    Values of other kinds are not checked.

    Raises:
        EnvironmentContractError: An observation is wrong; the message names the key.
    """
    if isinstance(space, CHOICES):
        is_number = isinstance(observation, (int, np.integer, np.ndarray))
        if is_number and np.shape(observation) == space.shape and np.asarray(observation).dtype.kind in "iu":
            start, stop = choices_of(space)
            if np.any((observation < start) | (observation >= stop)):
                raise EnvironmentContractError(
                    f"{name_of(env)} gave the observation{place} {observation}, which is not in {space}: return one of "
                    f"{start}..{stop - 1}, or correct the space"
                )
        return
    if isinstance(space, gymnasium.spaces.Box):
        if np.shape(observation) == space.shape and not _holds(space, np.asarray(observation)):
            raise wrong_observation(env, space, observation, place)
        return
    if not isinstance(observation, Mapping):
        return
    parts = space.spaces
    if observation.keys() != parts.keys():
        unknown = [key for key in observation if key not in parts]
        missing = [key for key in parts if key not in observation]
        found = f"with the key {unknown[0]!r}" if unknown else f"without the key {missing[0]!r}"
        raise EnvironmentContractError(
            f"{name_of(env)} gave the observation{place} {found}, its observation_space has there the keys "
            f"{list(parts)}: return exactly those, or correct the space"
        )
    for key, part in parts.items():
        if isinstance(part, CHECKED_SPACES):
            require_parts(env, part, observation[key], f"{place}[{key!r}]")


def wrong_observation(env: Any, space: Any, observation: Any, place: str = "") -> EnvironmentContractError:
    """Return the error for an observation (or a part of it) that does not fit its space."""
    if isinstance(space, ArraySpaces):
        array = isinstance(observation, np.ndarray)
        found = f"of shape {list(observation.shape)} and dtype {observation.dtype}" if array else f"{observation!r:.99}"
        if array and observation.size <= 8:
            found = f"{observation} {found}"
        wanted = f"of shape {list(space.shape or ())} and dtype {space.dtype}"
    else:
        found, wanted = f"{observation!r:.299}", "like that"
    return EnvironmentContractError(
        f"{name_of(env)} gave the observation{place} {found}, its observation_space{place} is {space!r:.299}: return "
        f"one {wanted}, or correct the space; parl.env.check_env finds the place"
    )


def require_equal_spaces(name: str, spaces: list[Any]) -> None:
    """Reject environments whose spaces differ in shapes, dtypes or parts from those of the first one.

    Raises:
        EnvironmentContractError: They differ; the message has both spaces. Different bounds are allowed.
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


def name_of(env: Any) -> str:
    """Return the name of the class of an environment, without wrappers."""
    return type(getattr(env, "unwrapped", env)).__name__
