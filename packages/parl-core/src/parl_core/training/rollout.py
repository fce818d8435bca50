"""Experience of one policy: `n_steps` steps of all environments, with the values that bootstrapping needs.

An array `x[t, i]` belongs to step t of environment i. `next_value[t, i]` is the value of the observation that step
really led to: after a truncation that of the episode's last observation, not that of the next episode's first one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from parl_core.env.autoreset import in_same_step
from parl_core.env.group_step import ArraySpaces
from parl_core.errors import HyperparameterError
from parl_core.nested import Observations, map_nested
from parl_core.training.acting import (
    ExploringAgent,
    acts_in_unit_box,
    check_outputs,
    first_reset,
    into_space,
    tell_dimensions,
)
from parl_core.training.events import Episode
from parl_core.training.finite import check_observations, check_rewards
from parl_core.training.running_episodes import RunningEpisodes

__all__ = ["Rollout", "RolloutCollector"]

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rollout:
    """`T` steps of `N` environments.

    Attributes:
        obs: `[T, N, *obs]`, or a dictionary of such: what the action was chosen from.
        action: `[T, N, *act]`, as the policy drew it, before it was made valid in the action space.
        log_prob: `[T, N]`, of the action under the policy that drew it.
        reward: `[T, N]`.
        value: `[T, N]`, of `obs`.
        next_value: `[T, N]`, of the observation that the step led to.
        terminated: `[T, N]`: the episode ended by itself; nothing follows.
        truncated: `[T, N]`: the episode was cut, by a time limit for instance; `next_value` stands for the rest.
        episodes: those that ended within the rollout.
    """

    obs: Observations
    action: npt.NDArray[Any]
    log_prob: Floats
    reward: Floats
    value: Floats
    next_value: Floats
    terminated: Bools
    truncated: Bools
    episodes: tuple[Episode, ...]


class RolloutCollector:
    """Steps a vector environment with an agent and remembers where it stopped.

    Args:
        agent: chooses the actions.
        envs: a vector environment, such as `make_vector_env` gives; any autoreset mode will do.
        n_steps: steps of every environment in one rollout.
        seed: the environments' seeds are derived from it; None takes them from the system.

    Raises:
        TypeError: the agent has no `explore`.
        HyperparameterError: the environments do not say when they reset, or observe what is neither an array nor a
            dictionary of arrays.
        ModelContractError: the agent's policy has another number of outputs than the action space has choices.
    """

    def __init__(self, agent: ExploringAgent, envs: Any, n_steps: int, seed: int | None = None) -> None:
        if not hasattr(agent, "explore"):
            raise TypeError(
                "rollouts need an agent whose explore(obs) gives (value, action, log_prob), as parl.Agent has with PPO "
                f"or A2C; {type(agent).__name__} has none"
            )
        envs = in_same_step(envs)
        if not _holds_arrays(envs.single_observation_space):
            raise HyperparameterError(
                f"rollouts hold observations that are an array or a dictionary of arrays, got "
                f"{envs.single_observation_space}; wrap the environment in gymnasium.wrappers.FlattenObservation"
            )
        tell_dimensions(agent, envs.single_observation_space)
        self._agent, self._envs, self._n_steps = agent, envs, n_steps
        self._running = RunningEpisodes(envs.num_envs)
        self._into_space = into_space(envs.single_action_space, unit_box=acts_in_unit_box(agent))
        self._obs = first_reset(envs, seed)
        check_outputs(agent, self._obs, envs.single_action_space)

    def collect(self) -> Rollout:
        """Take `n_steps` steps in every environment.

        Raises:
            DivergedError: a reward or an observation is infinite or NaN; the message names its environment.
        """
        shape = (self._n_steps, self._envs.num_envs)
        obs = map_nested(lambda first: np.empty((self._n_steps, *first.shape), first.dtype), self._obs)
        log_prob, reward, value = (np.empty(shape, np.float32) for _ in range(3))
        terminated, truncated = (np.empty(shape, np.bool_) for _ in range(2))
        actions: list[NDArray[Any]] = []
        episodes: list[Episode] = []
        last_obs: dict[tuple[int, int], Any] = {}  # of truncated episodes, by step and environment
        for t in range(self._n_steps):
            map_nested(lambda kept, now, t=t: np.copyto(kept[t], now), obs, self._obs)
            value[t], action, log_prob[t] = self._agent.explore(self._obs)
            actions.append(action)
            self._obs, rewards, terminated[t], truncated[t], infos = self._envs.step(self._into_space(action))
            reward[t] = rewards
            ended = np.flatnonzero(terminated[t] | truncated[t])
            episodes += self._running.step(rewards, ended, infos)
            for i in ended[~terminated[t, ended]].tolist():
                last_obs[t, i] = infos["final_obs"][i]
        check_rewards(reward, "of the rollout")
        check_observations(obs, "of the rollout", leading=2)
        check_observations(self._obs, "after the rollout")
        next_value = np.empty_like(value)
        next_value[:-1] = value[1:]
        next_value[-1] = self._agent.value(self._obs)
        if last_obs:  # all truncations of the rollout in one call of the network
            rows, columns = zip(*last_obs, strict=True)
            stacked = map_nested(lambda *observations: np.stack(observations), *last_obs.values())
            next_value[rows, columns] = self._agent.value(stacked)
        return Rollout(
            obs, np.stack(actions), log_prob, reward, value, next_value, terminated, truncated, tuple(episodes)
        )

    def begin_again(self, seeds: Sequence[int]) -> None:
        """Reset all environments with these seeds, one each, and forget the episodes that were running."""
        self._obs, _ = self._envs.reset(seed=list(seeds))
        self._running.begin_again()

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds; the environments' own state is not in it."""
        return {"obs": self._obs, **self._running.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned, with environments that were brought to where they were."""
        self._obs = state["obs"]
        self._running.set_state(state)


def _holds_arrays(space: Any) -> bool:
    if isinstance(space, gymnasium.spaces.Dict):
        return bool(space.spaces) and all(_holds_arrays(part) for part in space.spaces.values())
    return isinstance(space, ArraySpaces)
