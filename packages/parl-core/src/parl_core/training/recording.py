"""Logging what a behaviour does in an environment, as data to learn from without one."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core.checks import check_int
from parl_core.env.vector_group import EnvMaker, as_reward, make_env
from parl_core.offline import OfflineDataset
from parl_core.seeding import spawn_seeds
from parl_core.training.acting import into_space

__all__ = ["Behaviour", "record_episodes"]

Behaviour = Callable[[np.random.Generator], Callable[[Any], Any]]
"""Is asked at the beginning of each episode for what chooses its actions, given an observation."""


def record_episodes(
    env: EnvMaker,
    behaviour: Behaviour,
    episodes: int,
    *,
    seed: int = 0,
    unit_box: bool = True,
    max_steps: int = 100_000,
    env_kwargs: Mapping[str, Any] | None = None,
) -> OfflineDataset:
    """Play episodes with a behaviour and return what happened.

        def mostly_right(rng):
            return lambda obs: 1 if rng.random() < 0.8 else 0

        record_episodes("CartPole-v1", mostly_right, episodes=100).save("log.npz")

    Every episode has a seed and a generator of its own, so the first episodes stay when there are more of them.

    Args:
        env: a registered id, or a function that returns an environment; observations are arrays.
        behaviour: called with a generator when an episode begins; returns the function from observation `[*obs]` to
            action, an int or an array `[*act]`. One that always acts alike returns the same function every time.
        episodes: how many, at least 1.
        seed: all other seeds follow from it.
        unit_box: continuous actions are given and logged in [-1, 1], as the agents choose them, and mapped to the
            environment's bounds; else they are given and logged as the environment takes them.
        max_steps: steps of one episode at most; it is cut there (`truncated`).
        env_kwargs: passed to `gymnasium.make` or to the function.

    Raises:
        HyperparameterError: a number is out of its range, or an action is none of the environment's.
        DatasetError: an observation, action or reward is not finite.
    """
    check_int("episodes", episodes)
    check_int("max_steps", max_steps)
    made = make_env(env, env_kwargs)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("obs", "action", "reward", "next_obs", "terminal", "truncated")
    }
    try:
        valid = into_space(made.action_space, unit_box=unit_box)
        for episode_seed in spawn_seeds(seed, episodes):
            act = behaviour(np.random.default_rng(episode_seed))
            obs, _ = made.reset(seed=episode_seed)
            steps, over = 0, False
            while not over:
                before = np.array(obs)  # copies, because an environment may write into the array that it returned
                action: NDArray[Any] = np.array(act(before))
                obs, reward, terminated, truncated, _ = made.step(valid(action[np.newaxis])[0])
                steps += 1
                cut = bool(truncated) or (steps >= max_steps and not terminated)
                over = bool(terminated) or cut
                row = (before, action, as_reward(made, reward), np.array(obs), bool(terminated), cut)
                for column, value in zip(columns.values(), row, strict=True):
                    column.append(value)
    finally:
        made.close()
    return OfflineDataset.from_arrays(columns, f"{episodes} episodes of {_name(env)}")


def _name(env: EnvMaker) -> str:
    return env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
