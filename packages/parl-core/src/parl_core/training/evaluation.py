"""Playing episodes without exploration, many at a time, with seeds of their own."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parl_core.checks import check_int
from parl_core.env.vector_group import EnvMaker, make_env
from parl_core.seeding import spawn_seeds
from parl_core.training.acting import PredictingAgent, into_space
from parl_core.training.events import Episode, Evaluation

__all__ = ["Evaluator", "evaluate"]

Evaluator = Callable[[], Evaluation]
"""Plays some episodes with the agent as it is now."""


def evaluate(
    agent: PredictingAgent,
    env: EnvMaker,
    episodes: int = 10,
    *,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    at_once: int = 20,
) -> Evaluation:
    """Play episodes with the agent's deterministic actions.

    Every episode has a seed of its own, derived from `seed`, so the same agent gets the same returns again. The
    agent always sees a batch of the same size, because a row's result may depend on it in the last bit.

    Args:
        agent: chooses the actions.
        env: a registered id, or a function that returns an environment; they are made in this process.
        episodes: how many, at least 1.
        seed: the episodes' seeds are derived from it; those of the first episodes stay when `episodes` grows.
        env_kwargs: passed to `gymnasium.make` or to the function.
        at_once: how many environments are played side by side, at most.

    Returns:
        the episodes, in the order of their seeds.

    Raises:
        HyperparameterError: a number is out of its range.
    """
    check_int("episodes", episodes)
    at_once = min(check_int("at_once", at_once), episodes)
    envs = [make_env(env, env_kwargs) for _ in range(at_once)]
    try:
        played: dict[int, Episode] = {}
        valid = into_space(envs[0].action_space)
        seeds = spawn_seeds(seed, episodes)
        obs = np.stack([row.reset(seed=seeds[i])[0] for i, row in enumerate(envs)])
        playing = list(range(at_once))  # which episode each environment plays; -1 when none is left
        returns, lengths = np.zeros(at_once), np.zeros(at_once, np.int64)
        upcoming = at_once
        while len(played) < episodes:
            actions = valid(agent.predict(obs))
            for i, episode in enumerate(playing):
                if episode < 0:
                    continue
                obs[i], reward, terminated, truncated, _ = envs[i].step(actions[i])
                returns[i] += float(reward)
                lengths[i] += 1
                if terminated or truncated:
                    played[episode] = Episode(float(returns[i]), int(lengths[i]))
                    returns[i], lengths[i], playing[i] = 0.0, 0, -1
                    if upcoming < episodes:
                        obs[i], _ = envs[i].reset(seed=seeds[upcoming])
                        playing[i] = upcoming
                        upcoming += 1
        return Evaluation([played[i] for i in range(episodes)])
    finally:
        for row in envs:
            row.close()
