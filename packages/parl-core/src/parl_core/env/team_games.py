"""Adapters from other interfaces to PettingZoo's parallel API: SMAC, and Gymnasium's with tuples.

SMACGame("3m")              the StarCraft Multi-Agent Challenge (Samvelyan et al. 2019), and SMACv2, SMAClite
TupleGame(env)              level-based foraging, RWARE: one entry an agent in observations, actions and rewards
"""

import contextlib
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from parl_core.errors import HyperparameterError

__all__ = ["SMACGame", "TupleGame", "tuple_maker"]

Steps = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]


class SMACGame:
    """A map of the StarCraft Multi-Agent Challenge; all agents get the team's reward.

    An agent that dies leaves the episode. An episode that reaches the map's limit of steps is truncated.

    Args:
        map_name: such as `"3m"`.
        env: an existing environment of the same interface: `get_env_info`, `reset`, `step`, `get_obs`, `get_state`
            and `get_avail_actions`; default: `smac.env.StarCraft2Env`.
        options: further arguments of `StarCraft2Env`, such as `difficulty="7"`.

    Raises:
        ImportError: smac is not installed.
    """

    metadata: Mapping[str, Any] = {"name": "smac", "render_modes": []}
    render_mode = None

    def __init__(self, map_name: str = "3m", *, env: Any = None, **options: Any) -> None:
        if env is None:
            try:
                module = import_module("smac.env")
            except ImportError:
                raise ImportError(
                    "the StarCraft Multi-Agent Challenge is not installed; it needs the game as well:\n"
                    "    pip install git+https://github.com/oxwhirl/smac.git",
                    name="smac",
                ) from None
            env = module.StarCraft2Env(map_name=map_name, **options)
        self.env, self._options = env, options
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
            name: bool(mask[0]) and not np.any(mask[1:]) for name, mask in zip(self.possible_agents, masks, strict=True)
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
        """Return what the environment renders."""
        return self.env.render()

    def close(self) -> None:
        """End the game's process."""
        self.env.close()

    def _observations(self) -> dict[str, Any]:
        rows = self.env.get_obs()
        return {name: np.asarray(row, np.float32) for name, row in zip(self.possible_agents, rows, strict=True)}

    def _infos(self, told: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        masks = self.env.get_avail_actions()
        return {
            name: {**told, "action_mask": np.asarray(mask, np.int8)}
            for name, mask in zip(self.possible_agents, masks, strict=True)
        }


class TupleGame:
    """A Gymnasium environment whose observations, actions and rewards have one entry per agent, as LBF and RWARE.

    Args:
        env: its spaces are `Tuple`s of equal length.

    Raises:
        HyperparameterError: they are not.
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
        return self._named(found), {name: dict(info) for name in self.possible_agents}

    def step(self, actions: Mapping[str, Any]) -> Steps:
        """Take one step of all agents."""
        names = self.possible_agents
        found, reward, terminated, truncated, info = self.env.step(tuple(actions[name] for name in names))
        rewards = np.broadcast_to(np.asarray(reward, np.float64), (len(names),))
        over, cut = bool(np.all(terminated)), bool(np.all(truncated))
        if over or cut:
            self.agents = []
        return (
            self._named(found),
            {name: float(rewards[row]) for row, name in enumerate(names)},
            dict.fromkeys(names, over),
            dict.fromkeys(names, cut),
            {name: dict(info) for name in names},
        )

    def render(self) -> Any:
        """Return what the environment renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

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
    return lambda **options: TupleGame(gymnasium.make(probe.id, disable_env_checker=True, **options).unwrapped)
