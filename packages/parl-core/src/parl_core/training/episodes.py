"""The loop of the QuickStart in the PARL 1.x manual: play one episode, learn from it, repeat.

The order, with the numbers of the manual:

    for each episode:  run_episode(sample) ── obs, actions, returns ──> agent.learn
    every 10:          log the return         every 100:  run_episode(predict), log the return
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from parl_core import logger
from parl_core._nested import Observations, map_nested
from parl_core.checks import check_int
from parl_core.env._contract import as_flag
from parl_core.returns import calc_discount_norm_reward
from parl_core.spaces import with_named_parts
from parl_core.training.acting import acts_in_unit_box, check_observations, check_rewards, into_space

__all__ = ["EpisodeAgent", "PlayedEpisode", "run_episode", "train_by_episodes"]


class EpisodeAgent(Protocol):
    """An agent for the episode loop, one observation at a time; `parl.Agent` around PolicyGradient is one."""

    def sample(self, obs: Any, /) -> Any:
        """Return an action to explore with."""

    def predict(self, obs: Any, /) -> Any:
        """Return the best action."""

    def learn(self, obs: Any, action: Any, reward: Any, /) -> Any:
        """Learn from the steps of one episode."""


@dataclass(frozen=True)
class PlayedEpisode:
    """The steps of an episode: `obs[t]`, the action taken there, and its reward."""

    obs: Observations
    actions: npt.NDArray[Any]
    rewards: Sequence[float]

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of the rewards."""
        return float(sum(self.rewards))


def run_episode(
    env: Any,
    act: Callable[[Any], Any],
    seed: int | None = None,
    *,
    valid: Callable[[Any], Any] | None = None,
) -> PlayedEpisode:
    """Play one episode to its end.

    Args:
        env: A Gymnasium environment.
        act: The function that chooses an action for an observation: `agent.sample` or `agent.predict`.
        seed: The seed of the environment's reset; None continues with its generator.
        valid: The function that makes actions `[n, *act]` valid in the action space, such as the result of
            `into_space`; by default the environment gets the chosen actions unchanged.
    """
    env = with_named_parts(env)
    obs, _ = env.reset(seed=seed)
    seen, actions, rewards = [], [], []
    over = False
    while not over:
        seen.append(map_nested(np.array, obs))  # copies: the environment may change its action
        chosen = act(obs)
        actions.append(np.array(chosen))
        action = chosen if valid is None else valid(np.asarray(chosen)[None])[0]
        obs, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        over = as_flag(env, "terminated", terminated) or as_flag(env, "truncated", truncated)
    return PlayedEpisode(map_nested(lambda *steps: np.array(steps), *seen), np.array(actions), rewards)


def train_by_episodes(
    agent: EpisodeAgent,
    env: Any,
    episodes: int = 1000,
    *,
    gamma: float = 0.99,
    log_every: int = 10,
    test_every: int = 100,
    seed: int | None = None,
) -> list[float]:
    """Train with the Monte-Carlo returns of one episode at a time (REINFORCE).

    Args:
        agent: The agent that acts and learns.
        env: A Gymnasium environment.
        episodes: Number of episodes to learn from.
        gamma: Discount of the next step.
        log_every: Episodes between log lines.
        test_every: Episodes between test episodes, played with `predict`.
        seed: The seed of the environment's first reset.

    Returns:
        the returns of the test episodes.

    Raises:
        HyperparameterError: A number is out of its range.
        DivergedError: The environment returned a reward or an observation that is NaN or infinite.
    """
    for name, number in (("episodes", episodes), ("log_every", log_every), ("test_every", test_every)):
        check_int(name, number)
    valid = into_space(env.action_space, unit_box=acts_in_unit_box(agent), one_by_one=True)
    tested = []
    for i in range(episodes):
        played = run_episode(env, agent.sample, seed if i == 0 else None, valid=valid)
        if i % log_every == 0:
            logger.info("Episode %d, Reward Sum %s.", i, played.episode_return)
        check_rewards(np.array(played.rewards)[:, None], f"of episode {i}")
        check_observations(map_nested(lambda steps: steps[:, None], played.obs), f"of episode {i}", leading=2)
        agent.learn(played.obs, played.actions, calc_discount_norm_reward(played.rewards, gamma))
        if (i + 1) % test_every == 0:
            tested.append(run_episode(env, agent.predict, valid=valid).episode_return)
            logger.info("Test reward: %s", tested[-1])
    return tested
