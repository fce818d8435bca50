"""Environments whose episodes can be continued in another process, by replaying them from the beginning.

    reset ──> seed, or the state of the generators before it          set_state:  repeat the reset and every action,
    step  ──> action                                                              and compare the last observation

This only relies on Gymnasium's rule that `np_random` and the actions determine an episode. Other state that outlives an
episode (running statistics, an emulator's own generator) is saved if its layer is known, or provides it by two methods:

    checkpoint_state() -> state      state that outlives an episode; see `parl_core.checkpoint` for allowed values
    restore_checkpoint(state)        called on a new environment before its episode is replayed

If the outermost layer has the attribute `restores_episodes = True`, its state includes the episode, and no action is
recorded (for a simulator that can save itself, or one with slow steps).
"""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, cast

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from numpy.typing import NDArray

from parl_core._nested import map_nested
from parl_core.env.compat import AnyEnv, AnyWrapper, Step
from parl_core.errors import CheckpointError
from parl_core.seeding import generator_from_json, generator_to_json
from parl_core.spaces import named, unnamed

__all__ = [
    "RecordedEnv",
    "put_statistics",
    "put_statistics_inside",
    "set_state_beyond_episode",
    "state_beyond_episode",
    "statistics_inside",
    "statistics_of",
]

FIRST_CAPACITY = 64  # capacity in actions, which doubles when it is full


class RecordedEnv(AnyWrapper):
    """Wrapper that records the actions of its episode.

    A reset that only continues with the same game (a layer says so by `reset_continues`, as `EpisodicLifeEnv` does) is
    part of the record; any other one begins a new record.
    """

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self._whole = bool(getattr(env, "restores_episodes", False))
        self._begin(None, None)
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        if seed is None and any(getattr(layer, "reset_continues", False) for layer in _layers(self.env)):
            self._resets.append(self._count)
        else:
            self._begin(seed, options)
        return self._reset(seed, options)

    def step(self, action: Any) -> Step:
        """Take a step."""
        if not self._whole:
            self._remember(action)
        step = cast("Step", self.env.step(action))
        self._obs = step[0]
        return step

    def get_state(self) -> dict[str, Any]:
        """Return the state for `set_state` of a new environment of the same kind.

        Raises:
            CheckpointError: The environment's generator is not one of numpy's usual ones.
        """
        state: dict[str, Any] = {"obs": map_nested(np.array, named(self.env.observation_space, self._obs))}
        if self._whole:
            layer: Any = self.env
            return {**state, "whole": layer.checkpoint_state()}
        return {
            **state,
            "seed": self._seed,
            "options": None if self._options is None else json.dumps(self._options),
            "carried": self._carried,
            "actions": self._saved_actions(),
            "resets": list(self._resets),
        }

    def set_state(self, state: Mapping[str, Any]) -> Any:
        """Restore the state of the saved environment in a new one, and return its newest observation.

        Raises:
            CheckpointError: The same actions led to another observation.
        """
        if self._whole:
            layer: Any = self.env
            self._obs, _ = self.env.reset(seed=0)
            layer.restore_checkpoint(state["whole"])
            self._obs = unnamed(self.env.observation_space, state["obs"])
            return self._obs
        options = None if state["options"] is None else json.loads(state["options"])
        _restore(self.env, state["carried"])
        self._begin(state["seed"], options)  # the record begins here, even if a layer was reset before
        self._reset(state["seed"], options)
        resets = list(state["resets"])
        actions = self._loaded_actions(state["actions"])
        for number, action in enumerate(actions):
            for _ in range(resets.count(number)):
                self.reset()
            self.step(action)
        for _ in range(resets.count(len(actions))):
            self.reset()
        if not _same(named(self.env.observation_space, self._obs), state["obs"]):
            raise CheckpointError(
                f"{self.env} took the same {len(actions)} actions from the same start as before and reached another "
                f"observation: its np_random and the actions do not determine an episode. Go on with new "
                "episodes (fresh_episodes=True, parl resume --fresh-episodes); for runs that resume exactly train with "
                'environments="reset", or give it checkpoint_state() and restore_checkpoint()'
            )
        return self._obs

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self._seed, self._options = seed, options
        self._carried = _carried(self.env, seed)
        self._actions: NDArray[Any] | list[Any] | None = None
        self._count = 0
        self._resets: list[int] = []

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        found = self.env.reset(seed=seed, options=options)
        self._obs = found[0]
        return found

    def _remember(self, action: Any) -> None:
        if self.env.action_space.shape is None:
            if self._actions is None:
                self._actions = []
            self._actions.append(deepcopy(action))  # type: ignore[union-attr]  # a list for these spaces
        else:
            array = np.asarray(action)
            if self._actions is None:
                self._actions = np.empty((FIRST_CAPACITY, *array.shape), array.dtype)
            elif self._count == len(self._actions):
                self._actions = np.concatenate([self._actions, np.empty_like(self._actions)])
            if array.dtype != self._actions.dtype:  # type: ignore[union-attr]  # whole numbers, then fractions
                self._actions = np.asarray(self._actions, np.result_type(self._actions, array))
            self._actions[self._count] = array
        self._count += 1

    def _saved_actions(self) -> Any:
        if isinstance(self._actions, list):
            return json.dumps(self.env.action_space.to_jsonable(self._actions))
        return None if self._actions is None else self._actions[: self._count].copy()

    def _loaded_actions(self, saved: Any) -> list[Any]:
        if saved is None:
            return []
        if isinstance(saved, str):
            return list(self.env.action_space.from_jsonable(json.loads(saved)))
        return list(saved)


def _carried(env: AnyEnv, seed: int | None) -> list[Any]:
    """Return the state that a reset with this seed keeps from earlier episodes, by layer, outermost first."""
    return [_state_of(layer, seed) for layer in _layers(env)]


def _restore(env: AnyEnv, states: list[Any]) -> None:
    layers = list(_layers(env))
    if len(layers) != len(states):
        raise CheckpointError(
            f"the saved environment had {len(states)} layers of wrappers, this one has {len(layers)}: {env}"
        )
    for layer, state in zip(layers, states, strict=True):
        _restore_layer(layer, state)


def _layers(env: Any) -> Iterator[Any]:
    while True:
        yield env
        inner = getattr(env, "env", None)
        if inner is None or inner is env:
            return
        env = inner


def _state_of(layer: Any, seed: int | None) -> dict[str, Any]:
    state: dict[str, Any] = {}
    statistics = statistics_of(layer)
    if statistics is not None:
        state["statistics"] = statistics
    if seed is None and layer is layer.unwrapped:
        generator = getattr(layer, "_np_random", None)
        if generator is not None:
            try:
                state["np_random"] = generator_to_json(generator)
            except ValueError as error:
                raise CheckpointError(f"the generator of {layer} cannot be saved: {error}") from error
        if hasattr(layer, "ale") and hasattr(layer, "clone_state"):  # an emulator has its own generator
            state["ale"] = layer.clone_state(include_rng=True).__getstate__()
    return state


def _restore_layer(layer: Any, state: Mapping[str, Any]) -> None:
    if "statistics" in state:
        put_statistics(layer, state["statistics"])
    if "np_random" in state:
        layer.np_random = generator_from_json(state["np_random"])
    if "ale" in state:
        kind: Any = type(layer.clone_state(include_rng=True))
        restored = kind.__new__(kind)
        restored.__setstate__(state["ale"])
        layer.restore_state(restored)


# The running statistics of Gymnasium's NormalizeObservation and NormalizeReward, and of VecNormalizeEnv.
_RUNNING = ("obs_rms", "return_rms", "ob_rms", "ret_rms")
_SUM = "discounted_reward"  # of NormalizeReward, which does not reset it with an episode


def statistics_of(layer: Any) -> Any:
    """Return the state of a wrapper of an environment or a vector that outlasts an episode, or None."""
    if hasattr(layer, "checkpoint_state"):
        return layer.checkpoint_state()
    if hasattr(layer, "state_dict") and hasattr(layer, "load_state_dict"):
        return {name: np.array(value) for name, value in layer.state_dict().items()}
    return _saved(vars(layer)) or None


def put_statistics(layer: Any, saved: Any) -> None:
    """Restore the result of `statistics_of` of a wrapper of the same kind."""
    if hasattr(layer, "restore_checkpoint"):
        layer.restore_checkpoint(saved)
    elif hasattr(layer, "load_state_dict"):
        layer.load_state_dict(saved)
    else:
        for name, value in _continued(vars(layer), saved).items():
            setattr(layer, name, value)


def state_beyond_episode(env: AnyEnv) -> list[Any]:
    """Return the state of an environment's layers that outlasts an episode, besides their generators."""
    return _carried(env.env if isinstance(env, RecordedEnv) else env, seed=0)


def set_state_beyond_episode(env: AnyEnv, states: list[Any]) -> None:
    """Restore the result of `state_beyond_episode` of an environment of the same kind, before its next reset.

    Raises:
        CheckpointError: It has other layers.
    """
    inner = env.env if isinstance(env, RecordedEnv) else env
    if getattr(inner, "restores_episodes", False):
        inner.reset(seed=0)
    _restore(inner, states)


def statistics_inside(envs: Any) -> list[Any] | None:
    """Return the lasting state of each environment of a vector; None for vectors of other libraries."""
    if hasattr(envs, "get_statistics"):
        found: list[Any] = envs.get_statistics()
        return found
    if not isinstance(envs, (SyncVectorEnv, AsyncVectorEnv)):
        return None
    return [_saved(attributes) for attributes in _attributes_inside(envs)]


def put_statistics_inside(envs: Any, saved: list[Any]) -> None:
    """Restore the result of `statistics_inside` of a vector of the same kind.

    Raises:
        CheckpointError: The number of environments differs.
    """
    if len(saved) != envs.num_envs:
        raise CheckpointError(
            f"the saved run had {len(saved)} environments, this one has {envs.num_envs}: make the same number"
        )
    if hasattr(envs, "set_statistics"):
        envs.set_statistics(saved)
        return
    found = [_continued(own, state) for own, state in zip(_attributes_inside(envs), saved, strict=True)]
    for name in found[0]:
        envs.set_attr(name, [attributes[name] for attributes in found])


def _attributes_inside(envs: SyncVectorEnv | AsyncVectorEnv) -> list[dict[str, Any]]:
    """Return the attributes in which each environment may keep statistics, by name, if all have them."""
    rows: list[dict[str, Any]] = [{} for _ in range(envs.num_envs)]
    for name in (*_RUNNING, _SUM):
        # checked first, because a worker process ends with its first error
        if all(envs.call("has_wrapper_attr", name)):
            for row, value in zip(rows, envs.get_attr(name), strict=True):
                row[name] = value
    return rows


def _saved(attributes: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: {part: np.array(getattr(attributes[name], part)) for part in ("mean", "var", "count")}
        for name in _RUNNING
        if attributes.get(name) is not None
    }
    if found and _SUM in attributes:
        found[_SUM] = np.array(attributes[_SUM])
    return found


def _continued(attributes: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that `_saved` supports, with the saved numbers."""
    found = {name: attributes[name] for name in _RUNNING if name in saved}
    for name, statistics in found.items():
        for part, value in saved[name].items():
            # numpy's scalars would change the precision of the others
            is_plain = type(getattr(statistics, part)) is float
            setattr(statistics, part, value.item() if is_plain else value[()])
    if _SUM in saved:
        found[_SUM] = saved[_SUM].copy()
    return found


def _same(obs: Any, saved: Any) -> bool:
    if isinstance(obs, Mapping):
        return isinstance(saved, Mapping) and all(_same(obs[name], saved[name]) for name in obs)
    one, other = np.asarray(obs), np.asarray(saved)
    return one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
