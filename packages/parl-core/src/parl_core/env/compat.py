"""Two APIs of environments: Gymnasium's, and that of gym before 0.26, which programs of PARL 1.x and 2.x use.

    api            reset()      step(action)                                  seeds
    "gymnasium"    obs, info    obs, reward, terminated, truncated, info      reset(seed=…)
    "gym"          obs          obs, reward, done, info                       seed(…)

`api_of` names the API of any environment. The wrappers of this project have the API of the environment that they wrap,
and their attribute `api` names it: Gymnasium's around a Gymnasium environment; gym's around a `CompatWrapper` or an
environment of the old kind. `as_gymnasium` converts an environment to Gymnasium's API.
"""

import copy
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any, Literal

import gymnasium

from parl_core.errors import EnvironmentContractError

__all__ = [
    "V_GYM_CHANGED",
    "V_NPRANDOM_CHANGED",
    "AnyEnv",
    "AnyWrapper",
    "Api",
    "ApiWrapper",
    "CompatWrapper",
    "Step",
    "api_of",
    "as_gymnasium",
    "is_gym_version_ge",
]

AnyEnv = gymnasium.Env[Any, Any]
"""A Gymnasium environment of any observations and actions."""
AnyWrapper = gymnasium.Wrapper[Any, Any, Any, Any]
"""A Gymnasium wrapper of any observations and actions."""
Api = Literal["gymnasium", "gym"]
"""The API of an environment: `"gymnasium"` returns five values from `step`, the old `"gym"` four."""
Step = tuple[Any, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info."""

V_GYM_CHANGED = "0.26.0"
"""The version of gym since which `reset` returns two values and `step` five."""
V_NPRANDOM_CHANGED = "0.22.0"
"""The version of gym since which `env.np_random` is numpy's `Generator`."""


def is_gym_version_ge(compare_version: str) -> bool:
    """Return whether the installed Gymnasium has at least a version such as `"0.26.0"`; it continues gym's numbers."""
    return _numbers(gymnasium.__version__) >= _numbers(compare_version)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def api_of(env: Any) -> Api:
    """Return the name of the API of an environment.

    An attribute `api` of the environment, or of a wrapped one, is the name. Other environments whose `reset` takes a
    `seed`, and those of gym 0.26, have the API "gymnasium"; all others have "gym".

    Raises:
        ValueError: The attribute has another value.
    """
    while True:
        # `vars` first, because the wrappers of old gym, and many others, forward any attribute.
        found = vars(env).get("api", getattr(type(env), "api", None)) if hasattr(env, "__dict__") else None
        if found in ("gymnasium", "gym"):
            api: Api = found
            return api
        if found is not None:
            raise ValueError(f"{type(env).__name__}.api must be 'gymnasium' or 'gym', got {found!r}")
        if not isinstance(env, gymnasium.Wrapper):
            break
        env = env.env
    gym: Any = sys.modules.get("gym")  # an environment of gym has imported it
    if gym is not None and isinstance(env, gym.Env) and not isinstance(env, gymnasium.Env):
        return "gymnasium" if _numbers(gym.__version__) >= _numbers(V_GYM_CHANGED) else "gym"
    return "gymnasium" if _takes(env.reset, "seed") else "gym"


def _takes(reset: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(reset).parameters.values()
    except ValueError:  # a compiled class may have no signature
        return False
    return any(each.name == name or each.kind is each.VAR_KEYWORD for each in parameters)


def as_gymnasium(env: Any) -> AnyEnv:
    """Return an environment with Gymnasium's API: the given one if it has this API, otherwise an adapter.

    In gym's API `info["TimeLimit.truncated"]` marks an episode that a time limit ended: it counts as truncated, and
    every other end as terminated.

    Raises:
        TypeError: It lacks `reset` or `step`.
        EnvironmentContractError: It has no space of observations or actions.
    """
    for method in ("reset", "step"):
        if not callable(getattr(env, method, None)):
            raise TypeError(f"an environment needs reset() and step(), {type(env).__name__} has no {method}()")
    for name in ("observation_space", "action_space"):
        if getattr(env, name, None) is None:
            raise EnvironmentContractError(
                f"{type(getattr(env, 'unwrapped', env)).__name__} has no {name}: set self.{name} in __init__ to one of "
                "gymnasium.spaces, such as Box(-1.0, 1.0, (4,), numpy.float32) or Discrete(2)"
            )
    api = api_of(env)
    if not isinstance(env, gymnasium.Env):
        env = _ForeignEnv(env, api)
    return env if api == "gymnasium" else _adapted(env)


def _adapted(env: AnyEnv) -> AnyEnv:
    """Return an environment of gym's API as Gymnasium's, inside of the time limit that `gymnasium.make` gave it."""
    if isinstance(env, gymnasium.wrappers.TimeLimit):
        return gymnasium.wrappers.TimeLimit(_adapted(env.env), vars(env)["_max_episode_steps"])
    if isinstance(env, (gymnasium.wrappers.OrderEnforcing, gymnasium.wrappers.PassiveEnvChecker)):
        return _adapted(env.env)  # `gymnasium.make` adds these, and they know Gymnasium's API alone
    return _GymAdapter(env)


class ApiWrapper(AnyWrapper):
    """Base of wrappers with the API of the wrapped environment; their own code uses Gymnasium's.

    Subclasses override `_reset` and `_step`. These and `self.env` always have Gymnasium's forms.

    Args:
        env: An environment of either API.

    Attributes:
        api: "gymnasium" or "gym", the form of `reset` and `step`.
    """

    api: Api

    def __init__(self, env: Any) -> None:
        inside = as_gymnasium(env)
        if not isinstance(inside, gymnasium.Wrapper) and not _takes(inside.unwrapped.reset, "options"):
            inside = _WithoutOptions(inside)
        super().__init__(inside)
        self.api = api_of(env)
        self._next_seed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode.

        Returns:
            the observation and the info; in gym's API the observation alone.
        """
        waiting, self._next_seed = self._next_seed, None
        seed = waiting if seed is None else seed
        if self.api == "gymnasium":
            return self._reset(seed, options)
        answer: Any = self._reset(seed, options)
        if not (isinstance(answer, (tuple, list)) and len(answer) == 2):
            raise TypeError(
                f"{type(self.unwrapped).__name__}.reset() takes a seed, as in Gymnasium's API, and did not return"
                " (obs, info): let it do so, or give the class the attribute api = 'gym'"
            )
        return answer[0]

    def step(self, action: Any) -> Any:
        """Take a step.

        Returns:
            observation, reward, terminated, truncated, info; in gym's API one flag, `done`, replaces the two, and
            `info["TimeLimit.truncated"]` of the last step is true if a limit ended the episode.
        """
        if self.api == "gymnasium":
            return self._step(action)
        obs, reward, terminated, truncated, info = self._step(action)
        if not isinstance(terminated, list):
            return obs, reward, *_one_end(terminated, truncated, info)
        ends = [_one_end(*of_agent) for of_agent in zip(terminated, truncated, info, strict=True)]
        return obs, reward, [done for done, _ in ends], [info for _, info in ends]

    def render(self, mode: str | None = None) -> Any:
        """Return the rendering of the environment.

        Args:
            mode: An argument of gym's API; for an environment whose `render` takes no mode, the mode with which it was
                made.

        Raises:
            ValueError: The environment was made with another mode.
        """
        return _rendered(self.env, mode)

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Seed the next episode, in either API, unless `reset` gets a seed; later ones continue with its generator."""
        self._next_seed = seed
        return [seed]

    @property
    def _max_episode_steps(self) -> int:
        """The limit of steps of an episode, for programs of PARL 2.x, which check it by `hasattr`."""
        env: AnyEnv = self.env
        while isinstance(env, gymnasium.Wrapper):
            if isinstance(env, gymnasium.wrappers.TimeLimit):
                return int(vars(env)["_max_episode_steps"])
            env = env.env
        limit = getattr(env, "_max_episode_steps", None)
        if limit is None:
            raise AttributeError(f"{type(env).__name__} has no time limit")
        return int(limit)

    def __getattr__(self, name: str) -> Any:
        # Gymnasium's wrappers do not forward attributes, unlike those of gym.
        if name.startswith("_") or vars(self).get("api") != "gym":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.env.get_wrapper_attr(name)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed, options=options)

    def _step(self, action: Any) -> Any:
        env: Any = self.env
        obs, reward, terminated, truncated, info = env.step(action)
        if isinstance(terminated, list):  # one entry per agent
            return obs, reward, terminated, truncated, info
        return obs, float(reward), bool(terminated), bool(truncated), info


def _rendered(env: Any, mode: str | None) -> Any:
    if mode is None:
        return env.render()
    if "mode" in inspect.signature(env.render).parameters:
        return env.render(mode=mode)
    made_with = getattr(env, "render_mode", None)
    if mode != made_with:
        raise ValueError(
            f"the environment was made with render_mode={made_with!r} and cannot render {mode!r}: make it "
            f"with render_mode={mode!r}, such as by gymnasium.make(..., render_mode={mode!r})"
        )
    return env.render()


def _one_end(terminated: bool, truncated: bool, info: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    done = terminated or truncated
    return done, {**info, "TimeLimit.truncated": not terminated} if done else info


class CompatWrapper(ApiWrapper):
    """Wrapper that gives any environment gym's old API, for programs of PARL 1.x and 2.x.

        env = CompatWrapper(gymnasium.make("CartPole-v1"))
        env.seed(7)
        obs = env.reset()
        obs, reward, done, info = env.step(action)

    PARL's wrapper of this name did not mark time limits, so agents learned that nothing follows them. Here
    `info["TimeLimit.truncated"]` of the last step marks a time limit. A seed is used once, not at each reset.

    Args:
        env: An environment of either API. For a `ParallelAgents` or `MAenv`, `reset` and `step` return lists with one
            entry per agent, and `step` one list of `done` flags.
    """

    api: Api = "gym"

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.api = "gym"
        if isinstance(self.action_space, gymnasium.spaces.Discrete):
            # Agents of PARL 2.x assert that `n` is an int, as in gym; Gymnasium's is a numpy integer.
            space: Any = copy.copy(self.action_space)
            space.n = int(space.n)
            self.action_space = space


class _GymAdapter(AnyWrapper):
    """Adapter of an environment with gym's API to Gymnasium's."""

    api: Api = "gymnasium"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        env: Any = self.env
        if seed is not None and env.has_wrapper_attr("seed"):
            env.get_wrapper_attr("seed")(seed)
        obs = env.reset() if options is None else env.reset(options=options)
        if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict):
            raise TypeError(
                f"{self._name()}.reset() returned (obs, info), which is Gymnasium's API, and takes no seed: let it"
                " take seed=None and options=None, or give the class the attribute api = 'gymnasium'"
            )
        return obs, {}

    def step(self, action: Any) -> Step:
        """Take a step."""
        result: Any = self.env.step(action)
        if len(result) != 4:
            raise TypeError(
                f"{self._name()}.step() returned {len(result)} values, and gym's API has 4: let reset take seed=None"
                " and options=None, or give the class the attribute api = 'gymnasium', if it has Gymnasium's 5"
            )
        obs, reward, done, info = result
        truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return obs, float(reward), bool(done) and not truncated, truncated, info

    def render(self, mode: str | None = None) -> Any:
        """Return the rendering of the environment; see `ApiWrapper.render`."""
        return _rendered(self.env, mode)

    def _name(self) -> str:
        return type(self.unwrapped).__name__


class _WithoutOptions(AnyWrapper):
    """Adapter of an environment with Gymnasium's API whose `reset` takes a seed only."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        if options is not None:
            raise TypeError(f"{type(self.unwrapped).__name__}.reset() takes no options: let it take options=None")
        return self.env.reset(seed=seed)


class _ForeignEnv(AnyEnv):
    """Wraps an environment of a foreign class in a Gymnasium environment without changing its API."""

    def __init__(self, env: Any, api: Api) -> None:
        self._env = env
        self.api = api
        self.observation_space = _space(env.observation_space)
        self.action_space = _space(env.action_space)
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self.spec = getattr(env, "spec", None)

    def reset(self, **options: Any) -> Any:
        return self._env.reset(**options)

    def step(self, action: Any) -> Any:
        return self._env.step(action)

    def seed(self, seed: int | None = None) -> Any:
        """Seed the environment, if it supports that."""
        own = getattr(self._env, "seed", None)
        return own(seed) if callable(own) else [seed]

    def render(self, mode: str | None = None) -> Any:
        return _rendered(self._env, mode)

    def close(self) -> None:
        if callable(close := getattr(self._env, "close", None)):
            close()

    @property
    def unwrapped(self) -> Any:
        """The innermost foreign object."""
        return getattr(self._env, "unwrapped", self._env)

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # not initialised yet: copying and unpickling look up methods first
            raise AttributeError(name)
        return getattr(self._env, name)


def _space(space: Any) -> Any:
    """Convert a space of gym (or each of a list) to Gymnasium's, by the name of its class and its attributes."""
    if isinstance(space, list):
        return [_space(part) for part in space]
    if isinstance(space, gymnasium.Space):
        return space
    made = gymnasium.spaces
    match type(space).__name__:
        case "Box":
            return made.Box(space.low, space.high, space.shape, space.dtype.type)
        case "Discrete":
            return made.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
        case "MultiDiscrete":
            return made.MultiDiscrete(space.nvec)
        case "MultiBinary":
            return made.MultiBinary(space.n)
        case "Tuple":
            return made.Tuple([_space(part) for part in space.spaces])
        case "Dict":
            return made.Dict({key: _space(part) for key, part in space.spaces.items()})
        case kind:
            raise TypeError(f"spaces of the class {kind} have no counterpart in Gymnasium, got {space}")
