"""Playing with a Decision Transformer: ask for a return, and tell it after each step what is still to come.

    return-to-go(0) = target / scale        return-to-go(t+1) = return-to-go(t) - reward(t) / scale

Chen et al. 2021 (arXiv:2106.01345), section 3 and algorithm 1.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from parl_core.checks import check_int, check_real
from parl_core.env.vector_group import EnvMaker, make_env
from parl_core.errors import HyperparameterError
from parl_core.offline import padded_window
from parl_core.seeding import spawn_seeds
from parl_core.training.acting import into_space
from parl_core.training.evaluation import warn_of_cut
from parl_core.training.events import Episode, Evaluation
from parl_core.training.finite import check_rewards

__all__ = ["evaluate_with_target_return"]


def evaluate_with_target_return(
    agent: Any,
    env: EnvMaker,
    target_return: float,
    episodes: int = 10,
    *,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    max_steps: int = 100_000,
) -> Evaluation:
    """Play episodes, all side by side, each asked to reach `target_return`.

    Args:
        agent: `parl.Agent` around a `DecisionTransformer`; it is left in the mode it was in.
        env: a registered id, or a function that returns an environment with a `Box` of actions, to whose bounds those
            of the agent, in [-1, 1], are mapped; or with a `Discrete` space, of which it takes the action whose number
            is the largest, and remembers it as a one-hot row, as it was trained.
        target_return: what to ask for, as the environment counts.
        episodes: how many, at least 1.
        seed: the episodes' seeds are derived from it.
        env_kwargs: passed to `gymnasium.make` or to the function.
        max_steps: as of `evaluate`.

    Returns:
        the episodes, in the order of their seeds.

    Raises:
        HyperparameterError: a number is out of its range, the algorithm is another one, its model predicts other
            actions than the environment has, or an episode is longer than the model's `max_timestep`.
        DivergedError: an environment gave a reward that is NaN or infinite.
    """
    check_int("episodes", episodes)
    check_int("max_steps", max_steps)
    if not agent.alg.NEEDS_HISTORY:
        raise HyperparameterError(
            f"{type(agent.alg).__name__} cannot be asked for a return, only a DecisionTransformer can: use "
            "parl_core.training.evaluate"
        )
    wanted = check_real("target_return", target_return) / agent.alg.return_scale
    context = agent.alg.context
    envs = [make_env(env, env_kwargs) for _ in range(episodes)]
    space = envs[0].action_space
    was_training = agent.training
    agent.eval()
    try:
        valid, is_discrete = into_space(space, unit_box=True), isinstance(space, gymnasium.spaces.Discrete)
        width = _width(agent.alg, space)
        starts = [one.reset(seed=own)[0] for one, own in zip(envs, spawn_seeds(seed, episodes), strict=True)]
        obs = np.stack(starts)[:, None].astype(np.float32)
        action = np.zeros((episodes, 1, width), np.float32)
        to_go = np.full((episodes, 1, 1), wanted)
        returns, lengths, first_step = np.zeros(episodes), np.zeros(episodes, np.int64), 0
        playing = np.ones(episodes, np.bool_)
        while playing.any():
            agent.alg.check_length(first_step + obs.shape[1], str(env))
            window = padded_window(obs, action, to_go, context, first_step)
            predicted = agent.run(agent.alg.predict, *vars(window).values())
            best = predicted.argmax(axis=1)
            action[:, -1] = np.eye(width)[best] if is_discrete else np.clip(predicted, -1.0, 1.0)
            taken = valid(best if is_discrete else action[:, -1])
            newest, rewards = obs[:, -1].copy(), np.zeros(episodes)
            for i in np.flatnonzero(playing):
                newest[i], reward, terminated, truncated, _ = envs[i].step(taken[i])
                rewards[i] = float(reward)
                lengths[i] += 1
                playing[i] = not (terminated or truncated or lengths[i] >= max_steps)
                if not (playing[i] or terminated or truncated):
                    warn_of_cut(int(i), max_steps)
            check_rewards(rewards, "in the evaluation")
            returns += rewards
            kept = slice(-(context - 1), None) if context > 1 else slice(0, 0)
            dropped = obs.shape[1] - min(obs.shape[1], context - 1)
            first_step += dropped
            obs = np.concatenate([obs[:, kept], newest[:, None]], axis=1)
            action = np.concatenate([action[:, kept], np.zeros_like(action[:, :1])], axis=1)
            left = to_go[:, -1] - rewards[:, None] / agent.alg.return_scale
            to_go = np.concatenate([to_go[:, kept], left[:, None]], axis=1)
    finally:
        if was_training:
            agent.train()
        for one in envs:
            one.close()
    return Evaluation([Episode(float(r), int(n)) for r, n in zip(returns, lengths, strict=True)])


def _width(algorithm: Any, space: Any) -> int:
    """How many numbers an action is: dimensions of a box, or choices, of which it is a one-hot row."""
    if isinstance(space, gymnasium.spaces.Discrete):
        width = int(space.n)
    elif isinstance(space, gymnasium.spaces.Box):
        width = int(np.prod(space.shape))
    else:
        raise HyperparameterError(f"a {type(algorithm).__name__} acts in Box and Discrete spaces, got {space}")
    predicted = getattr(algorithm.model, "act_dim", width)
    if predicted != width:
        raise HyperparameterError(
            f"the environment has the actions {space}, {width} numbers to the model, which predicts {predicted}: make "
            f"it with act_dim={width}"
        )
    return width
