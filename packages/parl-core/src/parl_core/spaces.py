"""Spaces in the form for policies: observations are arrays or dictionaries of arrays, actions are rows of numbers.

    observation space       observations [n, ...]
    Box, Discrete, Multi…   an array
    Dict                    a dictionary of such
    Tuple                   a dictionary with the keys "0", "1", … (`NamedParts` converts environments)

    action space            a policy's actions [n, ...], by `kind_of`
    Discrete                int64 [n], counted from 0
    MultiDiscrete, …Binary  int64 [n, parts], counted from 0
    Box                     float [n, numbers], in [-1, 1]
    Dict, Tuple             the choices of all parts, then the numbers of all parts, concatenated: int64 where there are
                            choices alone, else float

`split_action` splits such rows into the parts of the space.
"""

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorWrapper
from gymnasium.vector.utils import create_empty_array
from numpy.typing import NDArray

from parl_core._nested import GOAL_KEYS
from parl_core.contracts.actions import ActionKind
from parl_core.errors import HyperparameterError

__all__ = [
    "NamedParts",
    "NamedPartsVector",
    "action_size",
    "blank_observations",
    "dimensions_of",
    "has_agents",
    "has_goals",
    "is_image",
    "kind_of",
    "named",
    "named_space",
    "one_each",
    "require_one_agent",
    "require_several_agents",
    "split_action",
    "unit_scale",
    "unnamed",
    "with_named_parts",
]

_DTYPE_BOUNDS = 2**16
"""Span of whole numbers from which their bounds are taken for those of their dtype."""

_COMPOSITE = (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)


def has_agents(space: Any) -> bool:
    """Return whether observations of a space are the joint ones of several agents (`parl_core.env.joint`)."""
    return isinstance(space, gymnasium.spaces.Dict) and {"obs", "alive"} <= space.spaces.keys()


def require_one_agent(who: str, space: Any) -> None:
    """Reject joint observations with discrete actions; continuous actions of several agents may be one action.

    Raises:
        HyperparameterError: They are joint; the message names the algorithms for several agents.
    """
    if has_agents(space) and "action_mask" in space.spaces:
        raise HyperparameterError(
            f"{who} is for one agent, and these observations are those of {space['alive'].shape[0]} (parl.env.JointEnv"
            "): learn with MAPPO, IPPO or COMA (train_on_policy) or QMIX, VDN or MADDPG (train_off_policy)"
        )


def require_several_agents(who: str, space: Any) -> None:
    """Reject observations of a single agent.

    Raises:
        HyperparameterError: They are of one agent; the message explains how to join several agents, and names
            algorithms for one.
    """
    if not has_agents(space):
        raise HyperparameterError(
            f"{who} is for several agents, and this environment has one: use one of PettingZoo's kind "
            '(parl.env.make_joint_env("package:module"), or parl.env.JointEnv around its object), or learn with an '
            "algorithm for one agent, such as PPO or DQN"
        )


def has_goals(space: Any) -> bool:
    """Return whether observations of a space have the parts of Gymnasium's GoalEnv, `GOAL_KEYS`."""
    return isinstance(space, gymnasium.spaces.Dict) and space.spaces.keys() >= set(GOAL_KEYS)


def kind_of(space: Any) -> ActionKind:
    """Return the kind of a policy's actions in a space.

    Raises:
        HyperparameterError: It has a part that no policy supports, such as a text or a box of whole numbers.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return ActionKind()
    leaves = list(_leaves(space))
    choices = [size for leaf in leaves for size in _choices(leaf)]
    if not leaves:
        raise HyperparameterError(f"there is nothing to choose in the actions {space}: give them a part")
    return ActionKind(any(map(_numbers, leaves)), tuple(choices) or None)


def action_size(space: Any) -> int:
    """Return the number of continuous dimensions of an action."""
    return sum(map(_numbers, _leaves(space)))


def split_action(space: Any, actions: NDArray[Any]) -> Any:
    """Return a policy's actions `[n, columns]` as the parts of a space: a dictionary or tuple of `[n, *part]`.

    Raises:
        HyperparameterError: The number of columns does not match the space's parts.
    """
    choices = sum(len(_choices(leaf)) for leaf in _leaves(space))
    columns = choices + action_size(space)
    rows = np.asarray(actions)
    if rows.ndim != 2 or rows.shape[1] != columns:
        raise HyperparameterError(
            f"the environment has actions in several parts, {space}, which are {columns} numbers in a row; the policy "
            f"chose {list(rows.shape)}: make its model by parl.networks.for_spaces, or write an ActionWrapper"
        )
    taken = {"choices": 0, "numbers": choices}

    def part(leaf: Any) -> NDArray[Any]:
        kind, width = ("numbers", _numbers(leaf)) if _numbers(leaf) else ("choices", len(_choices(leaf)))
        start = taken[kind]
        taken[kind] += width
        found = rows[:, start : start + width]
        if kind == "choices":
            found = found.astype(np.int64)
        return found.reshape(len(rows)) if isinstance(leaf, gymnasium.spaces.Discrete) else found

    return _rebuilt(space, part)


def one_each(space: Any, actions: Any) -> list[Any]:
    """Split actions `[n, ...]`, or dictionaries and tuples of arrays, into single ones."""
    if isinstance(space, gymnasium.spaces.Dict):
        parts = [one_each(part, actions[key]) for key, part in space.spaces.items()]
        return [dict(zip(space.spaces, each, strict=True)) for each in zip(*parts, strict=True)]
    if isinstance(space, gymnasium.spaces.Tuple):
        parts = [one_each(part, found) for part, found in zip(space.spaces, actions, strict=True)]
        return list(zip(*parts, strict=True))
    return list(actions)


def blank_observations(space: Any, n: int) -> Any:
    """Return `n` equal observations to initialise networks: zeros, first choices, all actions possible."""
    return _begun(space, create_empty_array(space, n, fn=np.zeros))


def _begun(space: Any, zeros: Any) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        found = {key: _begun(part, zeros[key]) for key, part in space.spaces.items()}
        return {key: np.ones_like(part) if key == "action_mask" else part for key, part in found.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_begun(part, array) for part, array in zip(space.spaces, zeros, strict=True))
    return zeros + np.asarray(getattr(space, "start", 0), zeros.dtype)


def dimensions_of(space: Any) -> Any:
    """Return the number of dimensions of one observation; for a `Dict` or `Tuple`, that of each part by name."""
    if isinstance(space, _COMPOSITE):
        return {key: dimensions_of(part) for key, part in named_space(space).spaces.items()}
    return None if space.shape is None else len(space.shape)


def is_image(box: Any) -> bool:
    """Return whether a `Box` holds images: arrays of three or four dimensions, or of two if they are uint8."""
    return len(box.shape) in (3, 4) or (len(box.shape) == 2 and box.dtype == np.uint8)


def unit_scale(space: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (low, span) of each number of a flattened observation, so that (number - low) / span is its feature.

    The result lies in [0, 1] for images and bounded integers. All others are unchanged, with low 0 and span 1: other
    floats, choices, which are one-hot, and integers of more than 16 bits, whose bounds are those of their dtype.
    """
    scales = [_unit_scale(leaf) for leaf in _leaves(space)]
    low, span = (np.concatenate([part.reshape(-1) for part in parts]) for parts in zip(*scales, strict=True))
    return low, span


def _unit_scale(leaf: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if not isinstance(leaf, gymnasium.spaces.Box):
        size = int(gymnasium.spaces.flatdim(leaf))
        return np.zeros(size), np.ones(size)
    low, high = leaf.low.astype(np.float64), leaf.high.astype(np.float64)
    image = is_image(leaf)
    if image:
        low, high = np.full(leaf.shape, low.min()), np.full(leaf.shape, high.max())
    span = high - low
    scaled = np.isfinite(span) & (span > 0)
    if not image:
        scaled &= (leaf.dtype.kind in "iu") & (span < _DTYPE_BOUNDS)
    return np.where(scaled, low, 0.0), np.where(scaled, span, 1.0)


def named_space(space: Any) -> Any:
    """Return a space in which every `Tuple` is a `Dict` with the keys "0", "1", …"""
    if isinstance(space, gymnasium.spaces.Tuple):
        return gymnasium.spaces.Dict({str(i): named_space(part) for i, part in enumerate(space.spaces)})
    if isinstance(space, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict({key: named_space(part) for key, part in space.spaces.items()})
    return space


def named(space: Any, observation: Any) -> Any:
    """Return observations of a space, one or a batch, with a dictionary instead of every tuple."""
    if isinstance(space, gymnasium.spaces.Tuple):
        return {str(i): named(part, found) for i, (part, found) in enumerate(zip(space, observation, strict=True))}
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: named(part, observation[key]) for key, part in space.spaces.items()}
    return observation


def unnamed(space: Any, observation: Any) -> Any:
    """Return observations of a space from a result of `named`."""
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(unnamed(part, observation[str(i)]) for i, part in enumerate(space))
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: unnamed(part, observation[key]) for key, part in space.spaces.items()}
    return observation


class NamedParts(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment with dictionaries in place of tuples in observations; made by `with_named_parts`."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = named_space(env.observation_space)

    def observation(self, observation: Any) -> Any:
        """Return an observation with names for its parts."""
        return named(self.env.observation_space, observation)


class NamedPartsVector(VectorWrapper):
    """A vector of environments with dictionaries in place of tuples in observations."""

    def __init__(self, envs: Any) -> None:
        super().__init__(envs)
        self._single_observation_space = named_space(envs.single_observation_space)
        self._observation_space = named_space(envs.observation_space)
        self._name = partial(named, envs.single_observation_space)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._name(observations), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment once."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        if "final_obs" in infos:
            last = np.full(self.num_envs, None, object)
            for index in np.flatnonzero(infos["_final_obs"]):
                last[index] = self._name(infos["final_obs"][index])
            infos = {**infos, "final_obs": last}
        return self._name(observations), rewards, terminated, truncated, infos


def with_named_parts(env: Any) -> Any:
    """Return an environment or a vector without tuples in observations, which is usually the given one."""
    is_vector = hasattr(env, "single_observation_space")
    space = env.single_observation_space if is_vector else env.observation_space
    if not _has_tuple(space):
        return env
    return NamedPartsVector(env) if is_vector else NamedParts(env)


def _has_tuple(space: Any) -> bool:
    if isinstance(space, gymnasium.spaces.Dict):
        return any(map(_has_tuple, space.spaces.values()))
    return isinstance(space, gymnasium.spaces.Tuple)


def _leaves(space: Any) -> Iterator[Any]:
    if isinstance(space, gymnasium.spaces.Dict):
        for part in space.spaces.values():
            yield from _leaves(part)
    elif isinstance(space, gymnasium.spaces.Tuple):
        for part in space.spaces:
            yield from _leaves(part)
    else:
        yield space


def _rebuilt(space: Any, part: Any) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _rebuilt(inner, part) for key, inner in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_rebuilt(inner, part) for inner in space.spaces)
    return part(space)


def _choices(leaf: Any) -> tuple[int, ...]:
    """Return the number of choices of each part of a leaf that is not a box."""
    match leaf:
        case gymnasium.spaces.Discrete():
            return (int(leaf.n),)
        case gymnasium.spaces.MultiDiscrete():
            return tuple(np.asarray(leaf.nvec).reshape(-1).tolist())
        case gymnasium.spaces.MultiBinary():
            return (2,) * prod(leaf.shape)
    if not _numbers(leaf):
        raise HyperparameterError(
            f"no policy chooses in {leaf}: actions are Discrete, MultiDiscrete, MultiBinary, a Box of floating-point "
            "numbers, or a Dict or Tuple of these; wrap the environment in an ActionWrapper that makes them of such"
        )
    return ()


def _numbers(leaf: Any) -> int:
    is_box = isinstance(leaf, gymnasium.spaces.Box) and np.issubdtype(leaf.dtype, np.floating)
    return prod(leaf.shape) if is_box else 0
