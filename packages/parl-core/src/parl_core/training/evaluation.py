"""Episodes played without exploration: evaluations, many at a time, with separate seeds, and videos."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from math import inf, isfinite
from typing import Any

import gymnasium
import numpy as np

from parl_core import logger
from parl_core._nested import map_nested
from parl_core.actors import ActorFuture, ActorSystem
from parl_core.checks import check_int
from parl_core.contracts._base import OnPolicy
from parl_core.env._contract import as_flag, as_reward
from parl_core.env._vector_group import EnvMaker, close_all, make_env, make_envs
from parl_core.env.normalize import NormalizeVector
from parl_core.errors import DivergedError
from parl_core.seeding import spawn_seeds
from parl_core.spaces import has_agents, with_named_parts
from parl_core.training._requirements import require_agents, require_kinds
from parl_core.training.acting import (
    Acting,
    PredictingAgent,
    acts_in_unit_box,
    check_observations,
    into_space,
    tell_dimensions,
)
from parl_core.training.events import Callback, Ended, Episode, Evaluation, Stop, Update
from parl_core.training.run import Run

__all__ = ["EvaluateInActor", "Evaluator", "RecordVideo", "evaluate", "warn_of_cut"]


Evaluator = Callable[[], Evaluation]
"""Function that plays episodes with the present agent."""


def evaluate(
    agent: PredictingAgent,
    env: EnvMaker,
    episodes: int = 10,
    *,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    at_once: int = 20,
    max_steps: int = 100_000,
    stochastic: bool = False,
) -> Evaluation:
    """Play episodes with the agent's deterministic actions, or with exploration.

    Every episode has its own seed, derived from `seed`, so the same agent gets the same returns again. The batches for
    the agent always have the same size, because the last bit of a row's result may depend on it.

    Args:
        agent: chooses the actions, in evaluation mode; its previous mode is restored.
        env: a registered id, a name of `make_joint_env`, or a function that returns an environment; they are made in
            this process.
        episodes: the number of episodes, at least 1.
        seed: Seed from which those of episodes are derived; the first ones do not depend on `episodes`.
        env_kwargs: Arguments of `gymnasium.make` or of the function.
        at_once: Maximum number of parallel environments.
        max_steps: Maximum steps of an episode; a longer one counts with its return so far, with a warning. Without
            this limit, an evaluation in an environment without a time limit might not end.
        stochastic: draw actions as in training: from the policy of on-policy algorithms, else by the agent's `sample`
            with its own defaults (DQN's epsilon of 0.1, DDPG's noise); of a tuple that it returns, the first of two
            parts, else the second is the action, as in `(action, value)` and `(value, action, log_prob, entropy)`. If
            the agent has `drawing_from`, from a stream that `seed` determines.

    Returns:
        the episodes, in the order of their seeds; those of a team (`JointEnv`) with each agent's return.

    Raises:
        HyperparameterError: a number is out of its range, or an algorithm for several agents was made for others.
        ModelContractError: the model of an algorithm for several agents does not act on these observations.
        DivergedError: an environment returned a reward that is NaN or infinite, or an observation to act on that is.
    """
    require_kinds("evaluate", agent)
    check_int("episodes", episodes)
    check_int("max_steps", max_steps)
    count = min(check_int("at_once", at_once), episodes)
    slots = [_Slot(made) for made in make_envs(lambda: with_named_parts(make_env(env, env_kwargs)), count)]
    waiting = deque(enumerate(spawn_seeds(seed, episodes)))
    played: dict[int, Episode] = {}
    was_training = agent.training
    agent.eval()
    stream: Any = getattr(agent, "drawing_from", None) if stochastic else None
    try:
        tell_dimensions(agent, slots[0].env.observation_space)
        require_agents(agent, slots[0].env.observation_space, learns=False)
        valid = into_space(slots[0].env.action_space, unit_box=acts_in_unit_box(agent), one_by_one=True)
        for slot in slots:
            slot.begin(*waiting.popleft())
        acting = Acting(agent, count)
        act = _exploring(agent, acting) if stochastic else acting.predict
        with nullcontext() if stream is None else stream(seed):
            while len(played) < episodes:
                obs = map_nested(_stacked, *(slot.obs for slot in slots))
                check_observations(obs, f"after {len(played)} evaluated episodes")
                actions = valid(act(obs))
                for row, (slot, action) in enumerate(zip(slots, actions, strict=True)):
                    if slot.playing and slot.step(action, max_steps):
                        played[slot.number] = Episode(slot.episode_return, slot.length, slot.agent_returns)
                        if waiting:
                            slot.begin(*waiting.popleft())
                            acting.begin(row)
    finally:
        if was_training:
            agent.train()
        close_all(slot.env for slot in slots)
    return Evaluation([played[number] for number in range(episodes)])


def warn_of_cut(episode: int, max_steps: int) -> None:
    """Log a warning that an episode was cut short."""
    logger.warning(
        "evaluation: episode %d had not ended after %d step%s and counts with its return so far; raise max_steps, or "
        "give the environment a time limit (gymnasium.wrappers.TimeLimit)",
        episode,
        max_steps,
        "s" * (max_steps != 1),
    )


def _exploring(agent: PredictingAgent, acting: Acting) -> Callable[[Any], Any]:
    """Return a function of observations that only draws actions, without values and the like."""
    algorithm = getattr(agent, "alg", None)
    if isinstance(algorithm, OnPolicy) and not algorithm.NO_ROLLOUTS:
        return lambda obs: acting.explore(obs)[1]

    def sampled(obs: Any) -> Any:
        drawn = acting.sample(obs)
        return drawn[len(drawn) > 2] if isinstance(drawn, tuple) else drawn

    return sampled


def _stacked(*observations: Any) -> Any:
    return np.stack(observations)


class _Slot:
    """One environment, and the episode that is played there."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.playing = False
        self._of_team = has_agents(env.observation_space)
        self._rewards: Any = 0.0

    @property
    def agent_returns(self) -> tuple[float, ...]:
        """Return the return of each agent of a team; empty for single agents."""
        return tuple(self._rewards.tolist()) if self._of_team else ()

    def begin(self, number: int, seed: int) -> None:
        self.number = number
        self.obs, _ = self.env.reset(seed=seed)
        self.playing, self.episode_return, self.length, self._rewards = True, 0.0, 0, 0.0

    def step(self, action: Any, max_steps: int) -> bool:
        """Take one step and return whether it was the last one."""
        obs, reward, terminated, truncated, _ = self.env.step(action)
        self.episode_return += as_reward(self.env, reward)
        if self._of_team:
            self._rewards = self._rewards + np.asarray(obs["rewards"], np.float64)
        if not isfinite(self.episode_return):
            raise DivergedError(
                f"evaluation: episode {self.number} has the return {self.episode_return} after the reward {reward} of "
                f"step {self.length}; clip or repair rewards in {self.env}"
            )
        self.length += 1
        over = as_flag(self.env, "terminated", terminated) or as_flag(self.env, "truncated", truncated)
        self.playing = not (over or self.length >= max_steps)
        if self.playing:
            self.obs = obs  # a final observation is left out of the batch, because it may have no valid action
        elif not over:
            warn_of_cut(self.number, max_steps)
        return not self.playing


class EvaluateInActor(Callback):
    """Evaluates in an actor while the loop continues: the learner stops only to copy its weights.

        with open_actors("remote", cpu_num=1) as system:
            watching = EvaluateInActor(agent, make_agent, "CartPole-v1", system, every=5_000)
            train_on_policy(agent, envs, settings, callbacks=[watching])

    One evaluation runs at a time: if the next one is due earlier, it begins when the actor is free, with the weights of
    that time. When a result arrives, this callback calls `on_evaluation` of the other callbacks, in the loop's own
    process, with the step at which the weights were copied. A callback that keeps the present agent, such as
    `KeepBest`, would keep later weights than the evaluated ones; use `best_weights`, those of the best evaluation.

    In actors of this process (`open_actors()`) evaluations are played at once, and the loop waits for them.

    Args:
        agent: learns in this process.
        make_agent: makes another agent with the same model, in the actor.
        env: a registered id, or a function that returns an environment; it is made in the actor.
        actors: the system that makes the actor.
        every: steps of the loop between evaluations.
        episodes: of one evaluation.
        seed: Seed of the episodes.
        callbacks: called for evaluations; a reason to stop ends the loop. Checkpoints contain their state.
        max_steps: of one episode; see `evaluate`.
        normalization: the `NormalizeVector` of training; its statistics are sent with the weights, and normalise the
            observations. Without it, the agent receives the environment's observations.

    Attributes:
        evaluations: the finished evaluations.
        best_weights: the weights of the best evaluation, for `agent.set_weights`; None before the first.
        best_normalization: the statistics of the best evaluation, for `set_state` of a `NormalizeVector`; None before
            the first, and without `normalization`.

    Raises:
        HyperparameterError: a number is out of its range.
    """

    ends_first = True  # its last evaluation is for callbacks that are not closed yet

    def __init__(
        self,
        agent: Any,
        make_agent: Callable[[], Any],
        env: EnvMaker,
        actors: ActorSystem,
        *,
        every: int = 10_000,
        episodes: int = 10,
        seed: int = 0,
        callbacks: Sequence[Callback] = (),
        max_steps: int = 100_000,
        normalization: NormalizeVector | None = None,
    ) -> None:
        self._agent, self.called_callbacks, self._normalization = agent, callbacks, normalization
        self._every = self._next = check_int("every", every)
        how = {"episodes": check_int("episodes", episodes), "seed": seed, "max_steps": max_steps}
        self._actor = actors.create(_Evaluating, make_agent, env, how)
        self._running: tuple[ActorFuture, Any, Any, int, float] | None = None
        self.evaluations: list[Evaluation] = []
        self.best_weights: Any = None
        self.best_normalization: Any = None

    def on_update(self, update: Update) -> str | None:
        """Read an available result, and start an evaluation that is due."""
        reason = self._taken() if self._running is not None and self._running[0].done() else None
        if self._running is None and update.step >= self._next:
            self._next += self._every * ((update.step - self._next) // self._every + 1)
            weights, statistics, view = self._agent.get_weights(), None, None
            if self._normalization is not None:
                statistics, view = self._normalization.get_state(), self._normalization.present_view()
            future = self._actor.submit("play", weights, view)
            self._running = future, weights, statistics, update.step, update.seconds
        return reason

    def on_end(self, ended: Ended) -> None:
        """Wait for a running evaluation, unless the loop was interrupted or has failed, and close the actor."""
        try:
            if self._running is not None and ended.stop in (Stop.BUDGET, Stop.CALLBACK):
                self._taken()
        finally:
            self._actor.close()

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint; an evaluation that is running is not part of it."""
        return {"next": self._next, "evaluations": [one.get_state() for one in self.evaluations]}

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned; the best weights are None until the next better evaluation."""
        self._next = int(state["next"])
        self.evaluations = [Evaluation.from_state(one) for one in state["evaluations"]]

    def _taken(self) -> str | None:
        assert self._running is not None
        future, weights, statistics, step, seconds = self._running
        self._running = None
        evaluation = replace(future.result(), step=step, seconds=seconds)
        if evaluation.mean > max((one.mean for one in self.evaluations), default=-inf):
            self.best_weights, self.best_normalization = weights, statistics
        self.evaluations.append(evaluation)
        reasons = [callback.on_evaluation(evaluation) for callback in self.called_callbacks]
        return next((reason for reason in reasons if reason), None)


class _Evaluating:
    """The actor of `EvaluateInActor`."""

    def __init__(self, make_agent: Callable[[], Any], env: EnvMaker, how: Mapping[str, Any]) -> None:
        self._agent, self._env, self._how = make_agent(), env, how

    def play(self, weights: Any, view: Callable[[Any], Any] | None) -> Evaluation:
        """Play with these weights in environments that `view` wraps."""
        self._agent.set_weights(weights)
        if view is None:
            return evaluate(self._agent, self._env, **self._how)
        return evaluate(self._agent, lambda: view(make_env(self._env, None)), **self._how)


class RecordVideo(Callback):
    """Plays one more episode after an evaluation, without exploration, and records it.

    The files are `videos/step-<step>/agent-episode-0.mp4` in the run's folder.

    Args:
        run: the run; the videos go to its folder.
        agent: plays.
        env: a registered id, or a function that returns an environment; either is given `render_mode="rgb_array"`.
        every: evaluations from one video to the next; the first one has a video.
        seed: of the episode.
        env_kwargs: Arguments of `gymnasium.make` or of the function.
        playing: called with `make_env=`, a function that makes the environment which records, to play the episode
            instead of `evaluate`; for agents that see an environment otherwise, or that `evaluate` does not take.

    Raises:
        ImportError: moviepy, which writes the files, is not installed.
        HyperparameterError: `every` is not at least 1.
    """

    needs_evaluations = True

    def __init__(
        self,
        run: Run,
        agent: PredictingAgent,
        env: EnvMaker,
        every: int = 1,
        *,
        seed: int = 0,
        env_kwargs: Mapping[str, Any] | None = None,
        playing: Callable[..., Any] | None = None,
    ) -> None:
        if find_spec("moviepy") is None:
            raise ImportError('videos are written by moviepy: pip install "parl-core[video]"')
        self._run, self._agent, self._env = run, agent, env
        self._every, self._seed = check_int("every", every), seed
        self._env_kwargs = {**(env_kwargs or {}), "render_mode": "rgb_array"}
        self._evaluations = 0
        self._playing = playing or self._evaluated

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._evaluations += 1
        if (self._evaluations - 1) % self._every:
            return
        folder = self._run.path / "videos" / f"step-{evaluation.step:012d}"
        number = 1
        while folder.exists():  # from a run that was resumed
            number += 1
            folder = folder.with_name(f"step-{evaluation.step:012d}-{number}")

        def recorded() -> Any:
            env = make_env(self._env, self._env_kwargs)
            return gymnasium.wrappers.RecordVideo(
                env, str(folder), episode_trigger=lambda _episode: True, name_prefix="agent"
            )

        self._playing(make_env=recorded)
        self._run.saved(folder.parent, f"videos of the agent, the latest after {evaluation.step} steps")

    def get_state(self) -> int:
        """Return the state for a checkpoint."""
        return self._evaluations

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned."""
        self._evaluations = int(state)

    def _evaluated(self, make_env: Callable[[], Any]) -> None:
        evaluate(self._agent, make_env, 1, seed=self._seed)
