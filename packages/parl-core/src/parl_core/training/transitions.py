"""Experience of an off-policy agent: every step of a vector environment goes to a replay memory.

    obs ──> agent.sample (or random actions) ──> envs.step ──> memory.append_batch(obs, action, reward, next_obs, ...)

`next_obs` is what the step really led to: where an episode ended its last observation, not the next one's first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core.contracts.actions import mask_of
from parl_core.env.autoreset import in_same_step
from parl_core.errors import HyperparameterError
from parl_core.nested import map_nested, rows_of
from parl_core.replay.records import to_records
from parl_core.training.acting import (
    OffPolicyAgent,
    acts_in_unit_box,
    first_reset,
    into_space,
    tell_dimensions,
    try_out,
)
from parl_core.training.events import Episode
from parl_core.training.finite import check_observations, check_rewards
from parl_core.training.running_episodes import RunningEpisodes

__all__ = ["TransitionCollector", "random_actions"]


class TransitionCollector:
    """Steps a vector environment with an agent, and remembers where it stopped.

    Args:
        agent: chooses the actions.
        envs: a vector environment; it is reset here.
        memory: takes the transitions.
        rng: of random actions.
        seed: the environments' seeds are derived from it; None takes them from the system.

    Raises:
        HyperparameterError: the agent's actions do not suit the environment's action space.
        ModelContractError: the agent's model has another number of outputs than the space has actions.
    """

    def __init__(
        self, agent: OffPolicyAgent, envs: Any, memory: Any, rng: np.random.Generator, seed: int | None = None
    ) -> None:
        self._envs = in_same_step(envs)
        tell_dimensions(agent, envs.single_observation_space)
        self._agent, self._memory, self._rng = agent, memory, rng
        self._unit_box = acts_in_unit_box(agent)
        self._into_space = into_space(envs.single_action_space, unit_box=self._unit_box)
        self._running = RunningEpisodes(envs.num_envs)
        self._episodes: list[Episode] = []
        self._obs = first_reset(self._envs, seed)
        try_out(agent, self._obs, envs.single_action_space, self._into_space)

    def collect(self, *, at_random: bool, exploration: Mapping[str, float]) -> int:
        """Take one step in every environment.

        Args:
            at_random: choose uniformly among all actions in place of asking the agent.
            exploration: options of the agent's `sample`.

        Returns:
            How many steps that were.

        Raises:
            DivergedError: a reward or an observation is infinite or NaN; the message names its environment.
        """
        obs = self._obs
        if at_random:
            action = random_actions(self._envs.single_action_space, obs, self._rng, unit_box=self._unit_box)
        else:
            action = self._agent.sample(obs, **exploration)
        self._obs, reward, terminated, truncated, infos = self._envs.step(self._into_space(action))
        check_rewards(reward, "of the step just taken")
        ended = np.flatnonzero(terminated | truncated)
        next_obs = self._led_to(ended, infos) if ended.size else self._obs
        check_observations(next_obs, "after the step just taken")
        stored, led_to = self._as_stored(obs), self._as_stored(next_obs)
        self._memory.append_batch(stored, action, reward, led_to, terminated, truncated)
        self._episodes += self._running.step(reward, ended, infos)
        return len(reward)

    def take_episodes(self) -> tuple[Episode, ...]:
        """Those that ended since the last time."""
        episodes, self._episodes = tuple(self._episodes), []
        return episodes

    def begin_again(self, seeds: Sequence[int]) -> None:
        """Reset all environments with these seeds, one each, and forget the episodes that were running."""
        one_each: Any = list(seeds)
        self._obs, _ = self._envs.reset(seed=one_each)
        self._running.begin_again()

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds; the environments' own state is not in it."""
        ended = [[episode.episode_return, episode.length] for episode in self._episodes]
        return {"obs": self._obs, **self._running.get_state(), "ended": ended}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned, with environments that were brought to where they were."""
        self._obs = state["obs"]
        self._running.set_state(state)
        self._episodes = [Episode(*ended) for ended in state["ended"]]

    def _as_stored(self, obs: Any) -> Any:
        return to_records(obs, self._memory.obs.dtype) if isinstance(obs, Mapping) else obs

    def _led_to(self, ended: NDArray[np.int64], infos: Mapping[str, Any]) -> Any:
        def with_last(first: Any, *last: Any) -> Any:
            patched = first.copy()
            patched[ended] = last
            return patched

        return map_nested(with_last, self._obs, *infos["final_obs"][ended])


def random_actions(space: Any, obs: Any, rng: np.random.Generator, *, unit_box: bool = False) -> NDArray[Any]:
    """Uniform actions as a policy counts them, one for each row of `obs`.

    Args:
        space: the environment's action space.
        obs: `[n, ...]`, or a dictionary of such; what it has under `action_mask` is heeded.
        rng: draws them.
        unit_box: a box is [-1, 1] for the policy.

    Raises:
        HyperparameterError: there are no uniform actions in this space.
    """
    n = rows_of(obs)
    if isinstance(space, gymnasium.spaces.Discrete):
        mask = mask_of(obs)
        if mask is None:
            return rng.integers(int(space.n), size=n)
        drawn = np.where(np.asarray(mask, np.bool_), rng.random((n, int(space.n))), -1.0)
        return np.asarray(drawn.argmax(axis=1))  # each possible action is as often the largest
    if isinstance(space, gymnasium.spaces.Box) and unit_box:
        return rng.uniform(-1.0, 1.0, (n, *space.shape)).astype(np.float32)
    if isinstance(space, gymnasium.spaces.Box) and space.is_bounded():
        return rng.uniform(space.low, space.high, (n, *space.shape)).astype(space.dtype)
    raise HyperparameterError(
        f"off-policy loops act in Discrete spaces (DQN) and in Boxes with finite bounds (SAC and its like); got {space}"
    )
