"""The training loop: simulators play episodes and the learner learns from them, without waiting for each other.

    simulators ── episodes ──> replay memory ── batch and masks ──> agent.learn
        ^───── newest weights, a head, target speeds ── tasks <──────────┘

One head is drawn for each episode. A simulator that ends, hangs or raises is replaced, and its episode is
lost; the metrics `actors/lost` and `actors/failed` count that.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from simulator import Played, Simulator, Task
from targets import Curriculum

from parl_core.actors import ActorHandle, ActorSystem
from parl_core.checks import check_int, check_non_negative, check_positive
from parl_core.errors import HyperparameterError
from parl_core.replay import BootstrapMasks, ReplayMemory
from parl_core.seeding import spawn_seeds
from parl_core.training._fragment_source import Call, EnvironmentWorkers
from parl_core.training.acting import check_observations, check_rewards
from parl_core.training.actor_learner import LearnerMetrics
from parl_core.training.evaluation import Evaluator
from parl_core.training.events import Callback, Ended, Episode, MetricMeans
from parl_core.training.session import Session

__all__ = ["LearnerSettings", "train_with_simulators"]

UPDATES_AT_ONCE = 10
"""Interval between two checks for results."""


@dataclass(frozen=True)
class LearnerSettings:
    """Hyper-parameters of the loop; a step is one step of one simulator.

    Attributes:
        total_steps: Number of steps of all simulators together; the last episode is completed.
        simulators: Number of actors with a simulator each.
        heads: Number of heads of the agent's model.
        share, masks: Arguments of `BootstrapMasks`.
        noise: Standard deviation of the noise on the acting head's actions.
        learning_starts: Number of steps before the first update.
        updates_per_step: Number of updates per step.
        batch_size: Number of transitions per update.
        memory_size: Number of transitions in the memory.
        n_step: Number of rewards that are summed before bootstrapping.
        max_ahead: Number of pending updates above which simulators pause, so that they do not run too far ahead.
        timeout_s: Maximum time of an episode, including the simulator's start; a slower simulator is replaced. None for
            no limit.
        max_failures: Number of consecutive failures of a simulator (errors, timeouts, exits) after which the run ends
            with the last error; ten times as many if its host was lost or it was stopped from outside.
        report_every: Number of steps between two reports to the callbacks.
        curriculum: Target speeds during training.
    """

    total_steps: int = 200_000
    simulators: int = 2
    heads: int = 5
    share: float = 0.5
    masks: str = "bernoulli"
    noise: float = 0.1
    learning_starts: int = 5_000
    updates_per_step: float = 1.0
    batch_size: int = 128
    memory_size: int = 200_000
    n_step: int = 5
    max_ahead: int = 1_000
    timeout_s: float | None = 120.0
    max_failures: int = 3
    report_every: int = 2_000
    curriculum: Curriculum = field(default_factory=Curriculum)

    def __post_init__(self) -> None:
        for name in ("total_steps", "simulators", "heads", "batch_size", "max_ahead", "n_step", "report_every"):
            check_int(name, getattr(self, name))
        for name in ("learning_starts", "max_failures"):
            check_int(name, getattr(self, name), at_least=0)
        BootstrapMasks(1, self.heads, self.share, self.masks)  # it checks them
        check_positive("updates_per_step", self.updates_per_step)
        check_non_negative("noise", self.noise)
        if self.timeout_s is not None:
            check_positive("timeout_s", self.timeout_s)
        if check_int("memory_size", self.memory_size) < max(self.batch_size, self.learning_starts):
            raise HyperparameterError(
                f"memory_size is {self.memory_size}, less than batch_size {self.batch_size} or learning_starts "
                f"{self.learning_starts}: make it larger"
            )


def train_with_simulators(
    agent: Any,
    actors: ActorSystem,
    make_env: Callable[[], Any],
    make_agent: Callable[[], Any],
    settings: LearnerSettings,
    *,
    evaluator: Evaluator | None = None,
    evaluate_every: int = 10_000,
    callbacks: Sequence[Callback] = (),
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Train an agent with `BootstrappedDDPG` until the budget is used up or a callback stops it.

    Args:
        agent: The agent that learns.
        actors: Actor system of the simulators.
        make_env: Function that makes a simulator in an actor.
        make_agent: Function that makes an agent with the same model in an actor.
        settings: Hyper-parameters of the loop.
        evaluator: Function that evaluates the present agent; None for no evaluations.
        evaluate_every: Number of steps between evaluations.
        callbacks: Called after every report and evaluation, and once at the end, also after an error.
        seed: Seed of episodes, heads, masks and batches.
        clock: Function that returns seconds from an arbitrary zero.

    Returns:
        how it ended.

    Raises:
        DivergedError: A loss, a reward or an observation is not finite.
        LostActor: Simulators ended or hung more often in a row than `max_failures` allows.
        KeyboardInterrupt: Raised again after the callbacks were called.
        Exception: A simulator raised it more often than that, or the agent or a callback raised it.
    """

    def spawn(_actor: int, _lives: Any) -> ActorHandle:
        return actors.create(Simulator, make_env, make_agent)

    metrics = LearnerMetrics(0, clock)
    figures = MetricMeans(agent.alg.FIGURES)
    episodes: list[Played] = []
    reported = 0
    with (
        Session(settings.total_steps, callbacks, evaluator, evaluate_every, clock) as session,
        EnvironmentWorkers(
            spawn, [[i] for i in range(settings.simulators)], settings.timeout_s, settings.max_failures
        ) as workers,
    ):
        dispatcher = _Dispatcher(agent, workers, actors, settings, seed)
        experience = _Experience(settings, seed)
        while session.is_running:
            with metrics.phase("send"):
                if experience.due < settings.max_ahead:
                    dispatcher.send(session.step / settings.total_steps)
            with metrics.phase("wait"):
                arrived = dispatcher.arrived(wait=experience.due < 1.0)
            with metrics.phase("receive"):
                for played in arrived:
                    experience.add(played, agent.alg.gamma)
                    session.advance(len(played))
            episodes += arrived
            metrics.learned(dispatcher.version, arrived)  # type: ignore[arg-type]  # it looks at version and seconds alone
            with metrics.phase("learn"):
                for _ in range(min(UPDATES_AT_ONCE, int(experience.due))):
                    figures.add(experience.learn(agent))
                    dispatcher.version += 1
            if session.step - reported >= settings.report_every or not session.is_running:
                reported = session.step
                session.report(figures.take_means(), *_summary(episodes, metrics, workers, settings, session.step))
                episodes = []
            session.evaluate_when_due()
    return session.ended


class _Dispatcher:
    """Sends tasks with the newest weights, and collects episodes."""

    def __init__(
        self, agent: Any, workers: EnvironmentWorkers, actors: ActorSystem, settings: LearnerSettings, seed: int
    ) -> None:
        self._agent, self._workers, self._store, self._settings = agent, workers, actors.put, settings
        self._rng = np.random.default_rng(spawn_seeds(seed, 1)[0])
        self._idle = list(range(settings.simulators))
        self._tasks = 0
        self._stored: Any = None
        self._stored_version = -1
        self.version = 0
        """Number of updates so far."""

    def send(self, progress: float) -> None:
        """Start an episode on every idle simulator."""
        if self._idle and self._stored_version != self.version:
            self._stored, self._stored_version = self._store(self._agent.get_weights()), self.version
        for simulator in self._idle:
            self._workers.submit(Call(simulator, "play", (self._task(progress), self.version, self._stored)))
        self._idle = []

    def arrived(self, *, wait: bool) -> list[Played]:
        """Return finished episodes; wait for at least one result if `wait` is true."""
        found = []
        for call, answer, failed in self._workers.arrivals(None if wait else 0.0):
            self._idle.append(call.group)
            if not failed:
                self._workers.succeeded(call.group)
                found.append(answer)
        return found

    def _task(self, progress: float) -> Task:
        settings, number = self._settings, self._tasks
        self._tasks += 1
        seed, head = self._rng.integers(2**31), self._rng.integers(settings.heads)
        return Task(number, int(seed), int(head), settings.noise, settings.curriculum.at(min(progress, 1.0)))


class _Experience:
    """The fragments so far, and the number of updates due for them."""

    def __init__(self, settings: LearnerSettings, seed: int) -> None:
        self._settings, self._seed = settings, seed
        self._memory: Any = None
        self._masks: Any = None
        self.due = 0.0

    def add(self, played: Played, gamma: float) -> None:
        """Add an episode, whose rewards are discounted with `gamma`."""
        check_rewards(played.reward, f"of episode {played.task.number}")
        check_observations(played.obs, f"in episode {played.task.number}")
        if self._memory is None:
            self._open(played, gamma)
        ended = np.zeros((2, len(played)), np.bool_)
        ended[0 if played.terminated else 1, -1] = True
        self._memory.append_batch(played.obs[:-1], played.action, played.reward, played.obs[1:], *ended)
        if len(self._memory) >= self._settings.learning_starts:
            self.due += len(played) * self._settings.updates_per_step

    def learn(self, agent: Any) -> Any:
        """Make one of the pending updates."""
        self.due -= 1.0
        batch = self._memory.sample(self._settings.batch_size)
        mask = None if self._masks is None else self._masks.of(batch.index)
        columns = batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminal
        return agent.learn(*columns, mask=mask, discount=batch.discount)

    def _open(self, played: Played, gamma: float) -> None:
        settings, seeds = self._settings, spawn_seeds(self._seed, 3)[1:]
        shapes = played.obs.shape[1], played.action.shape[1]
        self._memory = ReplayMemory(settings.memory_size, *shapes, n_step=settings.n_step, gamma=gamma, seed=seeds[0])
        if settings.heads > 1:
            self._masks = BootstrapMasks(
                settings.memory_size, settings.heads, settings.share, settings.masks, seed=seeds[1]
            )


def _summary(
    episodes: Sequence[Played],
    metrics: LearnerMetrics,
    workers: EnvironmentWorkers,
    settings: LearnerSettings,
    step: int,
) -> tuple[list[Episode], dict[str, float], dict[str, float]]:
    """Return episodes, schedules and metrics of a report."""
    speeds = settings.curriculum.at(min(step / settings.total_steps, 1.0))
    so_far = metrics.take(dropped=0, lost=workers.lost_count, failed=workers.failed_count)
    if episodes:
        so_far["task/speed_error"] = float(np.mean([played.speed_error for played in episodes]))
    kept = {name: value for name, value in so_far.items() if name not in ("lag/limit", "lag/dropped")}
    ended = [Episode(float(played.reward.sum()), len(played)) for played in episodes]
    return ended, {"slowest_target": speeds.low}, kept
