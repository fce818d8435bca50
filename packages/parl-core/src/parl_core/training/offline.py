"""Offline reinforcement learning: record data, learn from it, and play with a target return.

    dataset ── draw ──> agent.learn ──> figures ──> Session ──> callbacks (Update, Evaluation, Ended)

A step of the loop, also in reports to callbacks, is a gradient step; an environment is only used for evaluation. A
Decision Transformer gets a target return, and after each step the return that is left (Chen et al. 2021,
arXiv:2106.01345, section 3 and algorithm 1):

    return-to-go(0) = target / scale        return-to-go(t+1) = return-to-go(t) - reward(t) / scale
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core.agent import Agent
from parl_core.checks import check_int, check_real
from parl_core.env._contract import as_flag, as_reward
from parl_core.env._vector_group import EnvMaker, make_env
from parl_core.errors import HyperparameterError
from parl_core.offline import OfflineDataset, padded_window
from parl_core.seeding import make_generator, spawn_seeds
from parl_core.training._requirements import TargetWatch, require_kinds, require_log, require_offline
from parl_core.training.acting import check_rewards, into_space
from parl_core.training.checkpoints import Checkpoints, LoopParts, SavedAgent
from parl_core.training.evaluation import Evaluator, warn_of_cut
from parl_core.training.events import Callback, Ended, Episode, Evaluation, MetricMeans
from parl_core.training.session import Session

__all__ = [
    "Behaviour",
    "OfflineAgent",
    "OfflineSettings",
    "evaluate_with_target_return",
    "record_episodes",
    "train_offline",
]

Behaviour = Callable[[np.random.Generator], Callable[[Any], Any]]
"""A function that returns, at the beginning of each episode, the function from observations to actions."""


class OfflineAgent(Protocol):
    """An agent for the offline loop; `parl.Agent` around CQL, IQL, OfflineQ, DecisionTransformer, DQN or SAC is one."""

    @property
    def alg(self) -> Any:
        """The algorithm. Its optional `draw_batch(dataset, n, rng)` makes batches, and `whole_log(dataset)` a batch of
        all rows for a check.
        """

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """Learn from the columns of a batch; returns a loss, or several."""


@dataclass(frozen=True)
class OfflineSettings:
    """Hyper-parameters of the loop.

    Attributes:
        updates: Gradient steps.
        batch_size: Rows (or windows) of a batch.
        report_every: Gradient steps between two reports to the callbacks, which get mean figures.
    """

    updates: int = 100_000
    batch_size: int = 256
    report_every: int = 1_000

    def __post_init__(self) -> None:
        for name in ("updates", "batch_size", "report_every"):
            check_int(name, getattr(self, name))


def train_offline(
    agent: OfflineAgent,
    dataset: OfflineDataset,
    settings: OfflineSettings,
    *,
    evaluator: Evaluator | None = None,
    evaluate_every: int = 10_000,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    seed: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Train an agent on logged data until the budget is used up or a callback stops it.

    Args:
        agent: The agent that learns.
        dataset: The data that it learns from.
        settings: Hyper-parameters of the loop.
        evaluator: The function that plays episodes with the present agent; None: no evaluations.
        evaluate_every: Gradient steps between evaluations.
        callbacks: The callbacks, called for reports and evaluations, and once at the end, however the loop ends.
        checkpoints: The object that writes checkpoints, and lets a resumed run continue from its newest one; None for
            neither.
        seed: The seed of the batches. (The algorithm's own draws are the backend's.)
        clock: The function that returns seconds from an arbitrary zero.

    Returns:
        how the loop ended.

    Raises:
        HyperparameterError: The batch is larger than the dataset, or the algorithm does not learn from logged data.
        DatasetError: A logged action does not suit the algorithm: its kind or width differs, or it is out of range.
        CheckpointError: A checkpoint cannot be written, or the run's cannot be used.
        DivergedError: A figure is not finite; callbacks that save have not saved since.
        Exception: One of the agent or a callback, raised after the callbacks were called.
    """
    require_kinds("train_offline", agent, settings, OfflineSettings)
    require_offline(agent)
    require_log(agent, dataset, settings.batch_size)
    draw: Callable[..., dict[str, Any]] = getattr(agent.alg, "draw_batch", OfflineDataset.draw)
    if isinstance(agent, Agent):  # actors that learn later than critics have shapes from here on
        agent.alg.settle_shapes(dataset.obs[:1], dataset.action[:1])
    rng = make_generator(seed)
    columns = cast("Any", agent)._columns if getattr(agent, "takes_batches", False) else None
    newest: list[Any] = [None]
    read = None if columns is None else lambda unread: cast("Any", agent).read(unread, newest[0])
    figures = MetricMeans(getattr(agent.alg, "FIGURES", ("loss",)), read)
    with Session(
        settings.updates, callbacks, evaluator, evaluate_every, clock, unit="updates", checkpoints=checkpoints
    ) as session:
        session.keep(LoopParts(cast("SavedAgent", agent), others={"rng": rng, "figures": figures}))
        target = TargetWatch(agent)
        while session.is_running:
            drawn = draw(dataset, settings.batch_size, rng)
            if columns is None:
                extra = drawn.pop("extra", {})
                figures.add(agent.learn(**drawn, **extra))
            else:
                newest[0] = columns.kind.made(**drawn)
                figures.add(cast("Any", agent).learn_unread(newest[0]))
            target.after_update()
            session.advance(1)
            if session.step % settings.report_every == 0 or session.step == settings.updates:
                session.report(figures.take_means())
            if session.evaluation_is_due:
                figures.settle()
            session.evaluate_when_due()
            session.checkpoint_when_due()
    return session.ended


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
    """Play parallel episodes, each with the target return `target_return`.

    Args:
        agent: `parl.Agent` around a `DecisionTransformer`; its previous mode is restored.
        env: A registered id, or a function that returns an environment. In a `Box` of actions, the agent's actions in
            [-1, 1] are mapped to the bounds. In a `Discrete` space, the action with the largest number is taken, and
            given to the model as a one-hot row, as in training.
        target_return: The return to reach, in the environment's units.
        episodes: The number of episodes, at least 1.
        seed: The seed that the episodes' seeds are derived from.
        env_kwargs: Arguments of `gymnasium.make` or of the function.
        max_steps: As in `evaluate`.

    Returns:
        the episodes, in the order of their seeds.

    Raises:
        HyperparameterError: A number is out of its range, the algorithm is not a `DecisionTransformer`, its model
            predicts actions that the environment does not have, or an episode is longer than the model's
            `max_timestep`.
        DivergedError: An environment returned a reward that is NaN or infinite.
    """
    check_int("episodes", episodes)
    check_int("max_steps", max_steps)
    if not agent.alg.NEEDS_HISTORY:
        raise HyperparameterError(
            f"{type(agent.alg).__name__} takes no target return, which only a DecisionTransformer does: use "
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
                over = as_flag(envs[i], "terminated", terminated) or as_flag(envs[i], "truncated", truncated)
                playing[i] = not (over or lengths[i] >= max_steps)
                if not (playing[i] or over):
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
    """Return the number of columns of an action: dimensions of a box, or choices, as a one-hot row."""
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
    """Play episodes with a behaviour policy and return the transitions.

        def mostly_right(rng):
            return lambda obs: 1 if rng.random() < 0.8 else 0

        record_episodes("CartPole-v1", mostly_right, episodes=100).save("log.npz")

    Every episode has its own seed and generator, so the first episodes do not change when `episodes` grows.

    Args:
        env: A registered id, or a function that returns an environment; observations are arrays.
        behaviour: The function that is called with a generator when an episode begins and returns a function from
            observation `[*obs]` to action: an int or an array `[*act]`, or for a space in parts the row of numbers that
            policies choose. A policy that does not vary returns the same function every time.
        episodes: The number of episodes, at least 1.
        seed: The seed that all other seeds follow from.
        unit_box: Continuous actions are given and logged in [-1, 1], as the agents choose them, and mapped to the
            environment's bounds; else they are given and logged as the environment takes them.
        max_steps: Largest number of steps of an episode, after which it is truncated.
        env_kwargs: Arguments of `gymnasium.make` or of the function.

    Raises:
        HyperparameterError: A number is out of its range, or an action is invalid in the environment.
        DatasetError: An observation, action or reward is not finite.
    """
    check_int("episodes", episodes)
    check_int("max_steps", max_steps)
    made = make_env(env, env_kwargs)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("obs", "action", "reward", "next_obs", "terminal", "truncated")
    }
    try:
        valid = into_space(made.action_space, unit_box=unit_box, one_by_one=True)
        in_unit_box = (
            unit_box and isinstance(made.action_space, gymnasium.spaces.Box) and made.action_space.is_bounded()
        )
        for episode_seed in spawn_seeds(seed, episodes):
            act = behaviour(np.random.default_rng(episode_seed))
            obs, _ = made.reset(seed=episode_seed)
            steps, over = 0, False
            while not over:
                before = np.array(obs)  # copies, because an environment may write into the array that it returned
                action: NDArray[Any] = np.array(act(before))
                if in_unit_box and action.dtype.kind in "iuf" and np.any(np.abs(action) > 1.0):
                    raise HyperparameterError(
                        f"the behaviour gave the action {action}, and actions are logged in [-1, 1]: let it give such "
                        f"ones, which are mapped to the bounds of {made.action_space}, or pass unit_box=False"
                    )
                obs, reward, terminated, truncated, _ = made.step(valid(action[np.newaxis])[0])
                steps += 1
                ended = as_flag(made, "terminated", terminated)
                cut = as_flag(made, "truncated", truncated) or (steps >= max_steps and not ended)
                over = ended or cut
                row = (before, action, as_reward(made, reward), np.array(obs), ended, cut)
                for column, value in zip(columns.values(), row, strict=True):
                    column.append(value)
    finally:
        made.close()
    return OfflineDataset.from_arrays(columns, f"{episodes} episodes of {_name(env)}")


def _name(env: EnvMaker) -> str:
    return env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
