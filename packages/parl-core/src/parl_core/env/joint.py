"""Several agents as one Gymnasium environment, with joint observations and joint actions.

    PettingZoo's parallel API ──┐
    PettingZoo's AEC API ───────┼──> JointEnv ──> make_vector_env, remote actors, every training loop
    matrix games, SMAC, LBF ────┘

The observation contains everything from which a team of `n` agents learns, in the order of `JointEnv.agents`. It is a
dictionary:

    obs           [n, obs_dim], or [n, *shape] where all agents observe arrays of one shape; zeros of absent agents
    state         [state_dim]: the features of the environment's own `state()`, else the concatenated observations
    alive         [n]: 1 where an agent is in the episode
    rewards       [n]: each agent's reward of the step that led here; 0 after `reset` and of absent agents
    terminated    [n]: 1 where an agent has terminated, in this step or before; 0 where it was truncated
    action_mask   [n, act_dim]: 1 where an action is possible; only with discrete actions

The reward of `step` is the team's: the mean or the sum of the rewards of the agents that acted. An agent that leaves in
the middle of an episode keeps its row: at the step in which it leaves, `obs` has its last observation and `alive` is 0,
and its returns bootstrap from that observation unless `terminated` is 1. If the environment returns no observation for
an agent that acted, the agent keeps its previous observation and mask. The episode ends when no agent is left: it is
truncated if its last step truncated an agent, or removed it without an end; otherwise it terminates. An agent that was
truncated before has been bootstrapped from in the step in which it left.

Features are numbers: images and bounded integers are scaled to [0, 1] by the bounds of their space, choices are
one-hot, and floats are unchanged. If the agents' observations are not arrays of one shape, `obs` also has features.

Observations and actions that are smaller than the largest are padded: observations with zeros, choices with ones that
the mask excludes, numbers of an action with ones that are ignored. Nothing else differs between kinds of agents.

Where agents take turns (PettingZoo's AEC API, unless the environment is declared parallelizable), a step is one turn.
Agents that wait remain in the episode and get their rewards. Their actions are ignored, and their masks allow a single
choice, so that no policy learns from it. Continuous actions have no mask, so agents that take turns have discrete ones.
"""

import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from parl_core.env._contract import as_observation, as_reward, explaining_options, wrong_answer
from parl_core.env.matrix_games import GAMES
from parl_core.env.multi_agent import SMACGame, tuple_maker
from parl_core.errors import EnvironmentContractError, HyperparameterError, ParlError
from parl_core.spaces import unit_scale

__all__ = ["JointEnv", "is_joint", "make_joint_env", "misnamed", "parallel_of"]

TeamReward = Literal["mean", "sum"]
StateSource = Literal["auto", "env", "obs"]

_PARALLEL = ("possible_agents", "observation_space", "action_space", "reset", "step")
_ANSWER = ("observations", "rewards", "terminations", "truncations", "infos")
_SEEDS = 2**31 - 1
_INFO_NAMES = (
    "episode",
    "final_info",
    "final_obs",
)  # keys of vectors' infos, each with a mask of environments
_PACKAGES = ("mpe2", "pettingzoo", "lbforaging", "smac")


class JointEnv(gymnasium.Env[dict[str, Any], Any]):
    """An environment of PettingZoo's parallel or AEC API as a Gymnasium environment of the whole team.

    `action_space` is `MultiDiscrete`, one choice per agent, or a `Box` `[n, act_dim]`, whose bounds are 0 where it pads
    actions with fewer numbers. Actions of absent agents are ignored. The seed of `reset` and the actions determine an
    episode, also after a `reset` without a seed.

    Args:
        env: An environment of PettingZoo's parallel API or, with agents that take turns, of its AEC API, which
            PettingZoo's own conversions make parallel. It has `possible_agents`, `observation_space(agent)`,
            `action_space(agent)`, `reset` and `step`.
        team_reward: the team's reward: the `"mean"` of the rewards of the agents that acted, which is the common reward
            if they share one; or their `"sum"`.
        state: the source of the global state: `"env"`, its `state()`, which its `state_space` describes; `"obs"`, all
            observations, concatenated; `"auto"`, `"env"` if the environment has a `state_space`.

    Attributes:
        parallel_env: the environment of PettingZoo's parallel API.
        agents: names of all agents, in the order of all rows.
        obs_sizes: features of each agent's own observation, before padding.
        act_sizes: choices of each agent, or numbers in its action, before padding.

    Raises:
        HyperparameterError: it is not such an environment, has no possible agents or one whose name infos of vectors
            have for something else, mixes discrete and continuous actions, has actions of another kind, has agents that
            take turns with continuous actions, or an argument is unknown.
        ImportError: agents take turns, and pettingzoo, which is needed to convert that, is not installed.
    """

    action_space: Any

    def __init__(self, env: Any, *, team_reward: TeamReward = "mean", state: StateSource = "auto") -> None:
        if team_reward not in ("mean", "sum"):
            raise HyperparameterError(f'team_reward must be "mean" or "sum", got {team_reward!r}')
        if state not in ("auto", "env", "obs"):
            raise HyperparameterError(f'state must be "auto", "env" or "obs", got {state!r}')
        self.parallel_env = parallel_of(env)
        self.agents: tuple[str, ...] = tuple(self.parallel_env.possible_agents)
        if not self.agents:
            raise HyperparameterError(
                f"possible_agents of {type(self.parallel_env).__name__} is empty: let it list all agents, those that "
                "join later, too"
            )
        taken = {*_INFO_NAMES, *(f"_{name}" for name in (*_INFO_NAMES, *self.agents))}
        if clash := [name for name in self.agents if name in taken]:
            raise HyperparameterError(
                f"{type(self.parallel_env).__name__} has the agent {clash[0]!r}, a name that infos of vector "
                "environments, which are by agent, have for something else: rename it"
            )
        self.metadata = dict(getattr(self.parallel_env, "metadata", None) or {})
        self.render_mode = getattr(self.parallel_env, "render_mode", None)
        self._team_reward = team_reward
        seen = [self.parallel_env.observation_space(name) for name in self.agents]
        self._with_mask = [_has_mask(space) for space in seen]
        self._spaces = [_without_mask(space) for space in seen]
        self._stacked = _equal_arrays(self._spaces)
        self._features = [_Features(space) for space in self._spaces]
        self.obs_sizes = tuple(features.size for features in self._features)
        self._acts = [self.parallel_env.action_space(name) for name in self.agents]
        self.action_space, self.act_sizes = _joint_actions(self.agents, self._acts)
        self.discrete = isinstance(self.action_space, spaces.MultiDiscrete)
        own = getattr(self.parallel_env, "state_space", None)
        self._own_state = state == "env" or (state == "auto" and own is not None)
        if self._own_state and own is None:
            raise HyperparameterError(
                f'{type(self.parallel_env).__name__} has no state_space: use state="obs", the concatenated observations'
            )
        self._state_features = _Features(own) if self._own_state else None
        size = sum(self.obs_sizes) if self._state_features is None else self._state_features.size
        self.observation_space = self._observed(size)
        turns = getattr(self.parallel_env, "aec_env", None)
        self._turns = None if (getattr(turns, "metadata", None) or {}).get("is_parallelizable", False) else turns
        if self._turns is not None and not self.discrete:
            raise HyperparameterError(
                f"the agents of {type(self._turns.unwrapped).__name__} take turns, and their actions are numbers: "
                "policies would learn from actions that are ignored while an agent waits, which no mask can exclude. "
                'Make the actions discrete, or set metadata["is_parallelizable"] = True if all agents act in each '
                "cycle; parl.training.AgainstOpponents trains one seat of such a game"
            )
        self._alive = np.zeros(len(self.agents), np.int8)
        self._terminated = np.zeros(len(self.agents), np.int8)
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: of the episode; None draws one from `np_random`.
            options: for the environment's own `reset`.

        Raises:
            EnvironmentContractError: the environment begins without agents, or with unknown ones, or an observation, a
                state or a mask does not fit its spaces.
        """
        super().reset(seed=seed)
        inner = int(self.np_random.integers(_SEEDS)) if seed is None else seed
        self._running = False
        answer = self.parallel_env.reset(seed=inner, options=options)
        found, infos = self._by_agent("reset", answer, "observations", "infos")
        found, infos = self._at_turn(found, infos)
        present = self._present()
        if not present:
            raise EnvironmentContractError(
                f"{type(self.parallel_env).__name__}.agents is empty after reset: let it list the agents of the episode"
            )
        self._alive = np.array([name in present for name in self.agents], np.int8)
        self._terminated = np.zeros(len(self.agents), np.int8)
        self._obs = np.zeros(self._obs_space.shape, self._obs_space.dtype)
        self._flat = [np.zeros(size, np.float32) for size in self.obs_sizes]
        self._masks = np.ones((len(self.agents), max(self.act_sizes)), np.int8)
        joint = self._joint(found, infos, {}, present)
        self._running = True
        return joint, _infos(infos)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take one step of all agents.

        Args:
            action: `[n]` choices counted from 0, or numbers `[n, act_dim]`.

        Raises:
            HyperparameterError: actions are a dictionary, the numbers of actions and agents differ, or an agent does
                not have the chosen action.
            EnvironmentContractError: the environment returned no reward for an agent that acted, no flags for one that
                remains, or an unknown agent; or a reward is not a number, or an observation, a state or a mask does not
                fit its spaces.
            ParlError: no episode is running.
        """
        if not self._running:
            raise ParlError("call reset() before step(): no episode is running")
        if isinstance(action, Mapping):
            raise HyperparameterError(
                f"step got a dictionary of actions {dict(action)}: give a list or an array with one for each of "
                f"{self.agents}, in this order; those of absent agents are ignored"
            )
        if len(action) != len(self.agents):
            raise HyperparameterError(f"step got {len(action)} actions for {len(self.agents)} agents: {self.agents}")
        acting = [name for row, name in enumerate(self.agents) if self._alive[row]]
        taken = {name: self._own_action(row, action[row]) for row, name in enumerate(self.agents) if self._alive[row]}
        found, rewards, terminated, truncated, infos = self._by_agent("step", self.parallel_env.step(taken), *_ANSWER)
        found, infos = self._at_turn(found, infos)
        present = self._present()
        any_cut = False
        for row, name in enumerate(self.agents):
            if name in taken:
                if name not in rewards or (name in present and not (name in terminated and name in truncated)):
                    raise self._missing_entry(name, rewards=rewards, terminations=terminated, truncations=truncated)
                ended, cut = bool(terminated.get(name, False)), bool(truncated.get(name, False))
                gone = ended or cut or name not in present
                self._alive[row] = not gone
                self._terminated[row] = ended
                any_cut = any_cut or (gone and not ended)
            elif name in present and not (terminated.get(name) or truncated.get(name)):  # it joins or rejoins
                self._alive[row], self._terminated[row] = 1, 0
        over = not self._alive.any()
        self._running = not over
        own = {name: as_reward(self.parallel_env, rewards[name]) for name in acting}
        team = sum(own.values())
        if self._team_reward == "mean":
            team /= max(len(own), 1)
        ended_all = over and not any_cut
        there = {*acting, *(name for row, name in enumerate(self.agents) if self._alive[row])}
        return self._joint(found, infos, own, there), team, ended_all, over and not ended_all, _infos(infos)

    def render(self) -> Any:
        """Return what the environment renders."""
        return self.parallel_env.render()

    def close(self) -> None:
        """Close the environment if it has a method for it."""
        close = getattr(self.parallel_env, "close", None)
        if close is not None:
            close()

    def _at_turn(
        self, found: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return what agents that take turns see and are told, without dead ones that have the turn.

        What the next one sees is observed anew if dead ones were removed: its mask may depend on whose turn it is.
        """
        turns = self._turns
        if turns is None:
            return found, infos
        has_removed = False
        while turns.agents and (turns.terminations[turns.agent_selection] or turns.truncations[turns.agent_selection]):
            turns.step(None)
            has_removed = True
        self.parallel_env.agents = turns.agents[:]
        if not turns.agents or (len(found) == len(turns.agents) and not has_removed):
            return found, infos
        name = turns.agent_selection
        return {**found, name: turns.observe(name)}, {**infos, name: turns.infos.get(name, {})}

    def _observed(self, state_size: int) -> spaces.Dict:
        n = len(self.agents)
        if self._stacked is not None:
            low = np.stack([space.low for space in self._spaces]).astype(self._stacked.dtype)
            high = np.stack([space.high for space in self._spaces]).astype(self._stacked.dtype)
            obs = spaces.Box(low, high, dtype=self._stacked.dtype.type)
        else:
            obs = spaces.Box(-np.inf, np.inf, (n, max(self.obs_sizes)), np.float32)
        self._obs_space = obs
        parts: dict[str, Any] = {
            "obs": obs,
            "state": spaces.Box(-np.inf, np.inf, (state_size,), np.float32),
            "alive": spaces.MultiBinary(n),
            "rewards": spaces.Box(-np.inf, np.inf, (n,), np.float32),
            "terminated": spaces.MultiBinary(n),
        }
        if self.discrete:
            parts["action_mask"] = spaces.MultiBinary([n, max(self.act_sizes)])
        return spaces.Dict(parts)

    def _present(self) -> set[str]:
        """Return the agents that are in the episode, as reported by the environment.

        Raises:
            EnvironmentContractError: One of them is unknown.
        """
        present = set(self.parallel_env.agents)
        if unknown := present.difference(self.agents):
            raise EnvironmentContractError(
                f"{type(self.parallel_env).__name__} has the agent {min(unknown)}, which is not among its "
                "possible_agents"
            )
        return present

    def _by_agent(self, method: str, answer: Any, *names: str) -> Any:
        """Return the answer of a method.

        Raises:
            EnvironmentContractError: It is not a tuple of dictionaries with these names.
        """
        if not isinstance(answer, (tuple, list)) or len(answer) != len(names):
            raise wrong_answer(self.parallel_env, method, answer, f"({', '.join(names)}), dictionaries by agent")
        for name, part in zip(names, answer, strict=True):
            if not isinstance(part, Mapping):
                raise EnvironmentContractError(
                    f"{method} of {type(self.parallel_env).__name__} gave {name}={part!r:.99}: return a dictionary by "
                    "agent"
                )
        return answer

    def _missing_entry(self, name: str, **given: Mapping[str, Any]) -> EnvironmentContractError:
        missing = next(kind for kind, values in given.items() if name not in values)
        return EnvironmentContractError(
            f"step of {type(self.parallel_env).__name__} has no entry for {name} in its {missing}, though the agent "
            f"acted: return one for each agent that was given an action, got {dict(given[missing])}"
        )

    def _own_action(self, row: int, action: Any) -> Any:
        space = self._acts[row]
        if isinstance(space, spaces.Discrete):
            choice = int(action)
            if choice != action or not 0 <= choice < self.act_sizes[row]:
                raise HyperparameterError(
                    f"step got the action {action} for {self.agents[row]}, which has {self.act_sizes[row]} choices, "
                    "counted from 0"
                )
            return choice + int(space.start)
        numbers = np.asarray(action, space.dtype).reshape(-1)[: self.act_sizes[row]]
        return numbers.reshape(space.shape)

    def _joint(
        self,
        found: Mapping[str, Any],
        infos: Mapping[str, Any],
        rewards: Mapping[str, float],
        there: set[str],
    ) -> dict[str, Any]:
        """Return the joint observation of the agents that are in the episode or were in it until this step."""
        n, space = len(self.agents), self._obs_space
        obs = np.zeros(space.shape, space.dtype)
        flat = [np.zeros(size, np.float32) for size in self.obs_sizes]
        for row, name in enumerate(self.agents):
            if name not in there:
                continue
            if name not in found:
                obs[row], flat[row] = self._obs[row], self._flat[row]
                continue
            own, part = found[name], self._spaces[row]
            if self._with_mask[row]:
                own = _masked_observation(own)
            if isinstance(part, spaces.Box):
                own = self._of_agent(name, part, own)
            flat[row] = self._features[row].of(own)
            if self._stacked is not None:
                obs[row] = own
            else:
                obs[row, : self.obs_sizes[row]] = flat[row]
        state = np.concatenate(flat) if self._state_features is None else self._state(self._state_features)
        joint = {
            "obs": obs,
            "state": state,
            "alive": self._alive.copy(),
            "rewards": np.array([rewards.get(name, 0.0) for name in self.agents], np.float32),
            "terminated": self._terminated.copy(),
        }
        if self.discrete:
            mask = np.zeros((n, max(self.act_sizes)), np.int8)
            for row, name in enumerate(self.agents):
                mask[row, : self.act_sizes[row]] = self._mask(row, name, found, infos) if name in there else 1
            self._masks = joint["action_mask"] = mask
        self._obs, self._flat = obs, flat
        return joint

    def _state(self, features: "_Features") -> NDArray[np.float32]:
        """Return the features of the environment's own state.

        Raises:
            EnvironmentContractError: it does not fit its space.
        """
        state = self.parallel_env.state()
        try:
            return features.of(state)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            found = f"has shape {list(state.shape)}" if isinstance(state, np.ndarray) else f"is {state!r}"
            raise EnvironmentContractError(
                f"state() of {type(self.parallel_env).__name__} {found}, its state_space "
                f"{self.parallel_env.state_space}: correct one of them"
            ) from error

    def _of_agent(self, name: str, space: spaces.Box, own: Any) -> NDArray[Any]:
        try:
            return as_observation(self.parallel_env, space, own)
        except EnvironmentContractError as error:
            raise EnvironmentContractError(f"the observation of {name} does not fit: {error}") from None

    def _mask(self, row: int, name: str, found: Mapping[str, Any], infos: Mapping[str, Any]) -> Any:
        """Return the mask of possible choices of a present agent; an agent that waits has a single choice.

        An agent that was truncated by this step, too, has those that it would have if the episode went on.
        """
        size = self.act_sizes[row]
        if self._turns is not None and not self._terminated[row] and name != self._turns.agent_selection:
            return np.arange(size) == 0  # its choice is ignored, so nothing is learned from it
        if self._with_mask[row] and name in found:
            given = found[name]["action_mask"]
        else:
            given = infos.get(name, {}).get("action_mask")
            if given is None and name not in found:
                return self._masks[row, :size]
        possible = None if given is None else np.asarray(given) != 0
        if possible is None or not (self._alive[row] or possible.any()):
            return 1
        if possible.shape != (size,):
            raise EnvironmentContractError(
                f"{type(self.parallel_env).__name__} gave an action_mask of shape {list(possible.shape)} for {name}, "
                f"which has {size} choices"
            )
        if not possible.any():
            raise EnvironmentContractError(
                f"{type(self.parallel_env).__name__} gave an action_mask that leaves no action for {name}, which has "
                "not left the episode: let at least one action be possible"
            )
        return possible


def parallel_of(env: Any) -> Any:
    """Return an environment of PettingZoo's parallel API, converted where agents take turns (AEC).

    Raises:
        HyperparameterError: it has neither API.
        ImportError: agents take turns, and pettingzoo is not installed.
    """
    if hasattr(env, "agent_iter") and hasattr(env, "last"):
        try:
            conversions = import_module("pettingzoo.utils.conversions")
        except ImportError:
            raise ImportError(
                "agents that take turns need pettingzoo's conversion:\n    pip install pettingzoo", name="pettingzoo"
            ) from None
        if (env.metadata or {}).get("is_parallelizable", False):
            return conversions.aec_to_parallel(env)
        return conversions.turn_based_aec_to_parallel(env)
    if missing := [name for name in _PARALLEL if not hasattr(env, name)]:
        raise HyperparameterError(
            f"{type(env).__name__} has no {', '.join(missing)}: it is not an environment of PettingZoo's parallel "
            "API. Use its parallel_env(), or of agents that take turns its env()"
        )
    if fixed := [name for name in _PARALLEL[1:] if not callable(getattr(env, name))]:
        raise HyperparameterError(
            f"{fixed[0]} of {type(env).__name__} is a {type(getattr(env, fixed[0])).__name__}: PettingZoo's parallel "
            f"API has a method, and {fixed[0]}(agent) returns the space of that agent"
        )
    return env


def make_joint_env(env_id: str, **options: Any) -> JointEnv:
    """Make a `JointEnv` from a name.

        two_step                  a game of `parl_core.env.matrix_games`
        mpe2:simple_spread_v3     `parallel_env()`, else `env()`, of the module mpe2.simple_spread_v3
        smac:3m                   a map of the StarCraft Multi-Agent Challenge
        lbforaging:Foraging-8x8-2p-1f-v3    a Gymnasium environment whose spaces are one `Tuple` per agent

    Args:
        env_id: the name.
        options: `team_reward` and `state` of `JointEnv`; the others are the environment's own.

    Raises:
        HyperparameterError: there is no such environment.
        ImportError: its package is not installed.
    """
    own = {name: options.pop(name) for name in ("team_reward", "state") if name in options}
    maker = _maker(env_id)
    if maker is None:
        raise misnamed(env_id)
    package, _, name = env_id.partition(":")
    if package == "mpe2":
        own.setdefault("state", "obs")  # its own state is a copy of the observations
    with explaining_options(env_id, options, lambda: GAMES.get(env_id) or f"{package}.{name}:raw_env"):
        made = maker(**options)
    joint = JointEnv(made, **own)
    _leave_out_checks(joint)
    return joint


def _leave_out_checks(joint: JointEnv) -> None:
    """Remove checks from PettingZoo's conversion that take a quarter of MPE's time and do not change episodes.

    These are wrappers that check what `JointEnv` checks, and the observation of each agent before it acts, which the
    conversion asks for and drops.
    """
    converted, conversions = joint.parallel_env, sys.modules.get("pettingzoo.utils.conversions")
    if conversions is None or type(converted) is not conversions.aec_to_parallel_wrapper:
        return
    wrappers = import_module("pettingzoo.utils.wrappers")
    checking = [wrappers.OrderEnforcingWrapper, *([wrappers.AssertOutOfBoundsWrapper] if joint.discrete else [])]
    turns = converted.aec_env
    while type(turns) in checking:
        turns = turns.env
    turns.last = partial(turns.last, observe=False)
    converted.aec_env = turns


def is_joint(env_id: str) -> bool:
    """Return whether `make_joint_env` supports a name."""
    return _maker(env_id) is not None


def misnamed(env_id: str) -> Exception:
    """Return the error for a name that `make_joint_env` does not support, with the reason."""
    package, _, name = env_id.partition(":")
    root = package.partition(".")[0]
    if name and find_spec(root) is None:
        meant = get_close_matches(root, _PACKAGES, 1)
        hint = f"did you mean {meant[0]}?" if meant and root not in _PACKAGES else f"pip install {root}"
        return ImportError(f"{env_id} is of the package {root}, which is not installed: {hint}", name=root)
    if name and _has_module(package, name):
        return HyperparameterError(
            f"{env_id!r} names the module {package}.{name}, which has neither parallel_env nor env: let it have a "
            "function parallel_env(**options) that returns the environment"
        )
    if name:
        paths = getattr(import_module(package), "__path__", ())
        known = [f"{package}:{module.name}" for module in iter_modules(paths)]
        known += [f"{package}:{one}" for one, spec in gymnasium.registry.items() if _is_of(spec, root)]
    else:
        known = list(GAMES)
    near = [one for one in get_close_matches(env_id, known, 2, 0.75) if one != env_id]
    hint = (
        "use package:module of PettingZoo's kind, such as mpe2:simple_spread_v3, or lbforaging:ID, or smac:MAP, or one "
        f"of {', '.join(sorted(GAMES))}"
    )
    hint = f"did you mean {near[0]}?" if near else hint
    if name.isidentifier():
        hint = f"there is no module {package}.{name}; {hint}"
    return HyperparameterError(f"{env_id!r} names no environment with several agents: {hint}")


def _is_of(spec: Any, package: str) -> bool:
    return isinstance(spec.entry_point, str) and spec.entry_point.partition(":")[0].partition(".")[0] == package


def _maker(env_id: str) -> Callable[..., Any] | None:
    if env_id in GAMES:
        return GAMES[env_id]
    package, _, name = env_id.partition(":")
    if not name:
        return None
    if package == "smac":
        return lambda **options: SMACGame(map_name=name, **options)
    if _has_module(package, name):
        module = import_module(f"{package}.{name}")
        maker: Callable[..., Any] | None = getattr(module, "parallel_env", None) or getattr(module, "env", None)
        return maker
    return tuple_maker(env_id)


def _has_module(package: str, name: str) -> bool:
    try:
        return find_spec(f"{package}.{name}") is not None
    except (ImportError, ValueError):
        return False


def _has_mask(space: Any) -> bool:
    return isinstance(space, spaces.Dict) and "action_mask" in space.spaces


def _without_mask(space: Any) -> Any:
    if not _has_mask(space):
        return space
    rest = {name: part for name, part in space.spaces.items() if name != "action_mask"}
    return next(iter(rest.values())) if len(rest) == 1 else spaces.Dict(rest)


def _masked_observation(found: Mapping[str, Any]) -> Any:
    rest = {name: part for name, part in found.items() if name != "action_mask"}
    return next(iter(rest.values())) if len(rest) == 1 else rest


class _Features:
    """Converts observations of a space to rows of numbers for networks."""

    def __init__(self, space: Any) -> None:
        self._space, self._is_box = space, isinstance(space, spaces.Box)
        self.size = int(spaces.flatdim(space))
        low, span = unit_scale(space)
        self._scale = (low.astype(np.float32), span.astype(np.float32)) if low.any() or (span != 1.0).any() else None

    def of(self, observation: Any) -> NDArray[np.float32]:
        """Return the features of one observation as a new array.

        Raises:
            ValueError: It is not in the space.
        """
        flat = observation if self._is_box else spaces.flatten(self._space, observation)
        row = np.array(flat, np.float32).reshape(self.size)
        return row if self._scale is None else (row - self._scale[0]) / self._scale[1]


def _equal_arrays(found: list[Any]) -> spaces.Box | None:
    """Return the common space of all agents' observations, if they are arrays of one shape and dtype."""
    first = found[0]
    alike = all(
        isinstance(space, spaces.Box) and space.shape == first.shape and space.dtype == first.dtype for space in found
    )
    if not alike:
        return None
    dtype = np.float32 if first.dtype.kind == "f" else first.dtype.type
    return spaces.Box(first.low.astype(dtype), first.high.astype(dtype), dtype=dtype)


def _joint_actions(names: tuple[str, ...], acts: list[Any]) -> tuple[Any, tuple[int, ...]]:
    if all(isinstance(space, spaces.Discrete) for space in acts):
        sizes = tuple(int(space.n) for space in acts)
        return spaces.MultiDiscrete(np.array(sizes)), sizes
    if all(isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) for space in acts):
        sizes = tuple(_size(space) for space in acts)
        low, high = np.zeros((2, len(acts), max(sizes)), np.float32)  # padding is always 0
        for row, (space, size) in enumerate(zip(acts, sizes, strict=True)):
            low[row, :size], high[row, :size] = space.low.reshape(-1), space.high.reshape(-1)
        return spaces.Box(low, high, dtype=np.float32), sizes
    found = ", ".join(f"{name}: {space}" for name, space in zip(names, acts, strict=True))
    raise HyperparameterError(
        f"the actions of all agents must be Discrete, or all be boxes of floating-point numbers; got {found}. Wrap the "
        "environment so that they are"
    )


def _size(space: Any) -> int:
    return int(np.prod(space.shape))


def _infos(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Return the infos besides masks by agent, without agents that have none."""
    without_masks = {
        name: {key: value for key, value in info.items() if key != "action_mask"}
        for name, info in infos.items()
        if isinstance(info, Mapping)
    }
    return {name: info for name, info in without_masks.items() if info}
