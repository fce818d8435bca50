"""Environments with several agents, as lists with one entry for each agent, in an order that never changes.

    ParallelAgents(parallel_env)    any environment of PettingZoo's parallel API
    MAenv("simple_spread")          one of the multi-agent particle environments (MPE), by PARL's names

An agent that leaves the episode early keeps its place: its observations and rewards are zeros, and it stays terminated
or truncated as it was.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np

from parl_core.env.compat import Api
from parl_core.errors import HyperparameterError, ParlError
from parl_core.policy_outputs import action_mapping

__all__ = ["SCENARIOS", "MAenv", "ParallelAgents"]

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

_PACKAGES = ("mpe2", "pettingzoo.mpe")  # the particle environments' own package, and where they were before
_VERSIONS = range(9, 0, -1)

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
            actions: one per agent; for discrete actions the index, or the scores of all actions, of which the highest
                is taken (as MADDPG acts).

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
        """Return what the environment renders."""
        return self.env.render()

    def _action(self, index: int, action: Any) -> Any:
        space = self.action_space[index]
        if isinstance(space, gymnasium.spaces.Discrete):
            return int(np.argmax(action)) if np.size(action) > 1 else int(action)
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
        options: other arguments of the scenario, such as `N=3`.

    Raises:
        HyperparameterError: the scenario is unknown.
        ImportError: the particle environments are not installed; the message has the command.
    """

    def __init__(
        self, scenario_name: str, continuous_actions: bool = False, *, max_cycles: int = 25, **options: Any
    ) -> None:
        if scenario_name not in SCENARIOS:
            raise HyperparameterError(f"scenario_name must be one of {', '.join(SCENARIOS)}, got {scenario_name!r}")
        scenario = _scenario(scenario_name)
        super().__init__(scenario.parallel_env(continuous_actions=continuous_actions, max_cycles=max_cycles, **options))
        self.continuous_actions = continuous_actions
        self._own_spaces = self.action_space
        if continuous_actions:
            self.action_space = [gymnasium.spaces.Box(-1.0, 1.0, own.shape, np.float32) for own in self._own_spaces]

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
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _zeros(part) for key, part in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_zeros(part) for part in space)
    return np.zeros(space.shape or (), space.dtype)


def _size(space: Any) -> Any:
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.n)
    shape: tuple[int, ...] = tuple(space.shape or ())
    return shape[0] if len(shape) == 1 else shape
