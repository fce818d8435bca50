"""Adapters of environments with several agents: to lists, and to PettingZoo's parallel API.

    ParallelAgents(parallel_env)    any environment of the parallel API, as lists with one entry for each agent
    MAenv("simple_spread")          one of the multi-agent particle environments (MPE), by PARL's names, as lists
    SMACGame("3m")                  the StarCraft Multi-Agent Challenge (Samvelyan et al. 2019), and SMACv2
    TupleGame(env)                  level-based foraging, RWARE: spaces are tuples with one entry for each agent

The first two have lists in an order that never changes. An agent that leaves the episode early keeps its place: its
observations and rewards are zeros, and it stays terminated or truncated as it was. The others have dictionaries by
name, as the parallel API has.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from parl_core._policy_outputs import action_mapping
from parl_core.env.compat import Api
from parl_core.errors import HyperparameterError, ParlError

__all__ = ["SCENARIOS", "MAenv", "ParallelAgents", "SMACGame", "TupleGame", "tuple_maker"]

SCENARIOS = (
    "simple",
    "simple_adversary",
    "simple_crypto",
    "simple_push",
    "simple_reference",
    "simple_speaker_listener",
    "simple_spread",
    "simple_tag",
    "simple_world_comm",
)
"""Lowe et al. 2017 (arXiv:1706.02275)."""

_OPTIONS: Mapping[str, Mapping[str, Any]] = {"simple_spread": {"local_ratio": 0.0}}
"""The options of PARL 2.x that are not the defaults of the particle environments' packages."""

_PACKAGES = ("mpe2", "pettingzoo.mpe")  # the present package of the particle environments, and the previous one
_VERSIONS = range(9, 0, -1)
_MASKS = ("action_mask", "avail_actions")  # names of infos

Step = tuple[list[Any], list[float], list[bool], list[bool], list[dict[str, Any]]]


class ParallelAgents:
    """Lists in, lists out, around an environment of PettingZoo's parallel API.

    (Environments in which agents take turns become parallel by `pettingzoo.utils.aec_to_parallel`.)

    `CompatWrapper(ParallelAgents(env))` has the forms of PARL 2.x: `reset` returns the observations, and `step` one
    list of ends.

    Args:
        env: has `possible_agents`, `observation_space(agent)`, `action_space(agent)`, `reset` and `step`.

    Attributes:
        api: "gymnasium", see `parl_core.env.compat`.
        n: number of agents.
        agents_name: their names, in the order of all lists.
        observation_space: one per agent.
        action_space: one per agent.
        obs_shape_n: size of each agent's observation if it is a vector, else its shape.
        act_shape_n: number of each agent's actions if they are discrete, else of the numbers in its action.

    Raises:
        HyperparameterError: it is not such an environment.
    """

    api: Api = "gymnasium"

    def __init__(self, env: Any) -> None:
        wanted = ("possible_agents", "observation_space", "action_space", "reset", "step")
        if missing := [name for name in wanted if not hasattr(env, name)]:
            raise HyperparameterError(
                f"{type(env).__name__} has no {', '.join(missing)}: it is not an environment of PettingZoo's parallel "
                "API. Use its parallel_env(), or pettingzoo.utils.aec_to_parallel"
            )
        self.env = env
        self.agents_name: list[str] = list(env.possible_agents)
        self.n = len(self.agents_name)
        self.observation_space = [env.observation_space(name) for name in self.agents_name]
        self.action_space = [env.action_space(name) for name in self.agents_name]
        self.obs_shape_n = [_size(space) for space in self.observation_space]
        self.act_shape_n = [_size(space) for space in self.action_space]
        self._ends: dict[str, tuple[bool, bool]] = {}
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """Begin an episode; returns observations and infos."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self._ends, self._running = {}, True
        return self._observations(observations), [infos.get(name, {}) for name in self.agents_name]

    def step(self, actions: Sequence[Any]) -> Step:
        """Take one step of all agents; actions of agents that have left are ignored.

        Args:
            actions: one per agent; for discrete actions one of its space, or the scores of all actions, of which the
                highest is taken (as MADDPG acts).

        Returns:
            observations, rewards, terminated, truncated, infos.

        Raises:
            HyperparameterError: there are more or fewer actions than agents.
            ParlError: every agent has left, or `reset` was never called.
        """
        if len(actions) != self.n:
            raise HyperparameterError(f"step got {len(actions)} actions for {self.n} agents: {self.agents_name}")
        if not self._running:
            raise ParlError("call reset() before step(): no episode is running")
        present = set(self.env.agents)
        taken = {
            name: self._action(index, actions[index]) for index, name in enumerate(self.agents_name) if name in present
        }
        observations, rewards, terminated, truncated, infos = self.env.step(taken)
        for name in taken:
            over = bool(terminated.get(name, False)), bool(truncated.get(name, False))
            if any(over):
                self._ends[name] = over
        self._running = len(self._ends) < self.n and bool(self.env.agents)
        ends = [self._ends.get(name, (False, False)) for name in self.agents_name]
        return (
            self._observations(observations),
            [float(rewards[name]) if name in taken else 0.0 for name in self.agents_name],
            [end[0] for end in ends],
            [end[1] for end in ends],
            [infos.get(name, {}) for name in self.agents_name],
        )

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def render(self) -> Any:
        """Return the rendering of the environment."""
        return self.env.render()

    def _action(self, index: int, action: Any) -> Any:
        space = self.action_space[index]
        if isinstance(space, spaces.Discrete):
            return int(space.start + np.argmax(action)) if np.size(action) > 1 else int(action)
        return np.asarray(action, space.dtype)

    def _observations(self, found: dict[str, Any]) -> list[Any]:
        return [
            found[name] if name in found else _zeros(space)
            for name, space in zip(self.agents_name, self.observation_space, strict=True)
        ]


class MAenv(ParallelAgents):
    """A multi-agent particle environment.

    With `continuous_actions` policies act in [-1, 1], which is the `action_space`; actions are mapped to the
    environment's own bounds.

    Args:
        scenario_name: one of `SCENARIOS`, such as `"simple_spread"`.
        continuous_actions: actions are vectors instead of indices.
        max_cycles: steps after which an episode is truncated.
        options: other arguments of the scenario, such as `N=3`. `local_ratio` of `simple_spread` is 0 by default, as in
            PARL 2.x: all agents get the same reward.

    Raises:
        HyperparameterError: the scenario is unknown.
        ImportError: the particle environments are not installed; the message has the command.
    """

    def __init__(
        self, scenario_name: str, continuous_actions: bool = False, *, max_cycles: int = 25, **options: Any
    ) -> None:
        if scenario_name not in SCENARIOS:
            raise HyperparameterError(f"scenario_name must be one of {', '.join(SCENARIOS)}, got {scenario_name!r}")
        given = {**_OPTIONS.get(scenario_name, {}), **options, "max_cycles": max_cycles}
        super().__init__(_scenario(scenario_name).parallel_env(continuous_actions=continuous_actions, **given))
        self.continuous_actions = continuous_actions
        self._own_spaces = self.action_space
        if continuous_actions:
            self.action_space = [spaces.Box(-1.0, 1.0, own.shape, np.float32) for own in self._own_spaces]

    def _action(self, index: int, action: Any) -> Any:
        if not self.continuous_actions:
            return super()._action(index, action)
        own = self._own_spaces[index]
        return action_mapping(action, own.low, own.high).astype(np.float32)


def _scenario(name: str) -> Any:
    for package in _PACKAGES:
        try:
            import_module(package)
        except ImportError:
            continue
        for version in _VERSIONS:
            try:
                return import_module(f"{package}.{name}_v{version}")
            except ModuleNotFoundError:
                continue
    raise ImportError(
        'the multi-agent particle environments are not installed:\n    pip install "parl-core[multiagent]"', name="mpe2"
    )


def _zeros(space: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _zeros(part) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_zeros(part) for part in space)
    return np.zeros(space.shape or (), space.dtype)


def _size(space: Any) -> Any:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    shape: tuple[int, ...] = tuple(space.shape or ())
    return shape[0] if len(shape) == 1 else shape


Steps = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]


class SMACGame:
    """A map of the StarCraft Multi-Agent Challenge; all agents get the team's reward.

    An agent that dies leaves the episode, or stays, see `dead_agents_stay`. An episode that reaches the map's limit of
    steps is truncated.

    Args:
        map_name: such as `"3m"`.
        env: an existing environment of the same interface: `get_env_info`, `reset`, `step`, `get_obs`, `get_state`
            and `get_avail_actions`; default: `smac.env.StarCraft2Env`. It reports the limit of steps by
            `info["episode_limit"]`, as SMAC and SMACv2 do with `continuing_episode=True`; otherwise an episode that
            reaches it terminates.
        dead_agents_stay: agents that die remain in the episode: their only action is 0, which does nothing, and they
            get the rewards that the team earns later, as in PyMARL. Default: they leave with the reward of that step.
        options: further arguments of `StarCraft2Env`, such as `difficulty="7"`; `continuing_episode` is True by
            default.

    Raises:
        ImportError: smac is not installed.
    """

    metadata: Mapping[str, Any] = {"name": "smac", "render_modes": []}
    render_mode = None

    def __init__(
        self, map_name: str = "3m", *, env: Any = None, dead_agents_stay: bool = False, **options: Any
    ) -> None:
        if env is None:
            try:
                module = import_module("smac.env")
            except ImportError:
                raise ImportError(
                    "the StarCraft Multi-Agent Challenge is not installed; it needs the game as well:\n"
                    "    pip install git+https://github.com/oxwhirl/smac.git",
                    name="smac",
                ) from None
            env = module.StarCraft2Env(map_name=map_name, **{"continuing_episode": True, **options})
        self.env, self._dead_stay = env, dead_agents_stay
        info = env.get_env_info()
        self.possible_agents = [f"agent_{i}" for i in range(int(info["n_agents"]))]
        self.agents: list[str] = []
        self._obs_space = spaces.Box(-np.inf, np.inf, (int(info["obs_shape"]),), np.float32)
        self._choices = int(info["n_actions"])
        self.state_space = spaces.Box(-np.inf, np.inf, (int(info["state_shape"]),), np.float32)

    def observation_space(self, agent: str) -> spaces.Box:  # noqa: ARG002 - equal for all
        """Return the space of an agent's observations."""
        return self._obs_space

    def action_space(self, agent: str) -> spaces.Discrete:  # noqa: ARG002 - equal for all
        """Return the space of an agent's actions."""
        return spaces.Discrete(self._choices)

    def reset(
        self,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,  # noqa: ARG002 - PettingZoo's
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begin an episode; a seed is set if the environment has a method for it (`seed` of SMACv2)."""
        if seed is not None and callable(getattr(self.env, "seed", None)):
            with contextlib.suppress(TypeError):  # StarCraft2Env's own returns the seed that it was made with
                self.env.seed(seed)
        self.env.reset()
        self.agents = list(self.possible_agents)
        return self._observations(), self._infos({})

    def step(self, actions: Mapping[str, Any]) -> Steps:
        """Take one step; agents that have left take action 0, which does nothing."""
        took = list(self.agents)
        reward, over, info = self.env.step([int(actions.get(name, 0)) for name in self.possible_agents])[:3]
        masks = self.env.get_avail_actions()
        cut = bool(over) and bool(info.get("episode_limit", False))
        dead = {
            name: not self._dead_stay and bool(mask[0]) and not np.any(mask[1:])
            for name, mask in zip(self.possible_agents, masks, strict=True)
        }
        terminated = {name: (bool(over) and not cut) or dead[name] for name in took}
        truncated = {name: cut and not dead[name] for name in took}
        found, infos = self._observations(), self._infos(info)
        self.agents = [] if over else [name for name in took if not dead[name]]
        return found, dict.fromkeys(took, float(reward)), terminated, truncated, infos

    def state(self) -> Any:
        """Return the global state."""
        return np.asarray(self.env.get_state(), np.float32)

    def render(self) -> Any:
        """Return the rendering of the environment."""
        return self.env.render()

    def close(self) -> None:
        """End the game's process."""
        self.env.close()

    def _observations(self) -> dict[str, Any]:
        rows = self.env.get_obs()
        return {name: np.asarray(row, np.float32) for name, row in zip(self.possible_agents, rows, strict=True)}

    def _infos(self, info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        masks = self.env.get_avail_actions()
        return {
            name: {**info, "action_mask": np.asarray(mask, np.int8)}
            for name, mask in zip(self.possible_agents, masks, strict=True)
        }


class TupleGame:
    """A Gymnasium environment whose observations, actions and rewards have one entry per agent, as LBF and RWARE.

    Rewards and ends have one entry per agent, or are those of all. An info `action_mask`, or `avail_actions` as of
    SMAClite, has a mask of possible choices for each agent. An agent that has ended leaves the episode, and its action
    is then the first of its choices, or zeros.

    Args:
        env: its spaces are `Tuple`s of equal length.

    Raises:
        HyperparameterError: the spaces are of another kind.
    """

    def __init__(self, env: Any) -> None:
        seen, acts = env.observation_space, env.action_space
        if not isinstance(seen, spaces.Tuple) or not isinstance(acts, spaces.Tuple) or len(seen) != len(acts):
            raise HyperparameterError(
                f"{env} has the observations {seen} and the actions {acts}: both must be a Tuple with an entry for "
                "each agent"
            )
        self.env, self.metadata = env, dict(env.metadata or {})
        self.render_mode = getattr(env, "render_mode", None)
        self.possible_agents = [f"agent_{i}" for i in range(len(seen))]
        self.agents: list[str] = []
        self._idle = {name: _idle(space) for name, space in zip(self.possible_agents, acts, strict=True)}

    def observation_space(self, agent: str) -> Any:
        """Return the space of an agent's observations."""
        return self.env.observation_space[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> Any:
        """Return the space of an agent's actions."""
        return self.env.action_space[self.possible_agents.index(agent)]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begin an episode; returns observations and infos."""
        found, info = self.env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._named(found), self._infos(info)

    def step(self, actions: Mapping[str, Any]) -> Steps:
        """Take one step of all agents that are in the episode."""
        names, took = self.possible_agents, self.agents
        taken = tuple(actions[name] if name in took else self._idle[name] for name in names)
        found, *outcome, info = self.env.step(taken)
        rewards, terminated, truncated = (self._named(np.broadcast_to(each, len(names))) for each in outcome)
        self.agents = [name for name in took if not (terminated[name] or truncated[name])]
        return (
            self._named(found),
            {name: float(rewards[name]) for name in took},
            {name: bool(terminated[name]) for name in took},
            {name: bool(truncated[name]) for name in took},
            self._infos(info),
        )

    def render(self) -> Any:
        """Return the rendering of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _infos(self, info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return a copy of the info for each agent, with its own mask if the info has a row for each."""
        of_all = next((info[name] for name in _MASKS if info.get(name) is not None), None)
        rows = list(of_all) if isinstance(of_all, np.ndarray | list | tuple) else []
        if len(rows) != len(self.possible_agents) or not all(np.ndim(row) for row in rows):
            return {name: dict(info) for name in self.possible_agents}
        rest = {name: value for name, value in info.items() if name not in _MASKS}
        return {
            name: {**rest, "action_mask": np.asarray(mask)[: getattr(self.action_space(name), "n", None)]}
            for name, mask in zip(self.possible_agents, rows, strict=True)
        }

    def _named(self, found: Any) -> dict[str, Any]:
        return dict(zip(self.possible_agents, found, strict=True))


def tuple_maker(env_id: str) -> Callable[..., Any] | None:
    """Return a function that makes a `TupleGame` from a registered environment, `package:Id`; None if there is none."""
    package, _, name = env_id.partition(":")
    if find_spec(package.partition(".")[0]) is None:
        return None
    import_module(package)
    if name not in gymnasium.registry:
        return None
    probe = gymnasium.spec(name)
    made = gymnasium.make(name, disable_env_checker=True)
    joint = isinstance(made.observation_space, spaces.Tuple) and isinstance(made.action_space, spaces.Tuple)
    made.close()
    if not joint:
        return None
    return lambda **options: TupleGame(gymnasium.make(probe.id, disable_env_checker=True, **options))


def _idle(space: Any) -> Any:
    return int(space.start) if isinstance(space, spaces.Discrete) else _zeros(space)
