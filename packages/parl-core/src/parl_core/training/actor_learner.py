"""The actors-and-learner loop: many actors play, one learner learns, and neither waits for the other unnecessarily.

    actors ── fragments, each with the version of its weights ──> order ──> batch ──> experience.learn
       ^────────── weights, once a host and version ───────────── publish <──┘
    callbacks <── Update, Evaluation, Ended ── Session <─────────────────────┘

                      inference   max_lag   batch
    IMPALA            actors      some      some fragments
    A2C, PPO          actors      0         a fragment of every group: rounds
    GA3C              learner     some      some fragments

This module does not depend on a framework, on the location of actors, or on files. Metrics of a run:

    lag/mean, lag/max         updates between the weights that acted and those that learned, of the report's samples
    lag/limit                 the setting max_lag
    lag/dropped               fragments so far that were dropped because they were older
    actors/lost               actors so far that were replaced because they ended or hung
    actors/failed             calls so far that failed because an environment raised, and was made again
    actors/env                share of the actors' time that their environments took, from 0 to 1
    actors/policy             ... that choosing actions and recording steps took
    actors/idle               ... between fragments: sending one, taking weights, waiting for the next call
    learner/wait              share of the learner's time that it waited for samples; in GA3C, acting is part of it
    learner/receive           ... in which samples were joined to batches
    learner/learn             ... that updates took
    learner/send              ... in which weights were stored and calls were sent
    learner/other             ... of callbacks, evaluations and checkpoints

Shares refer to the time since the previous report. A learner that waits needs more or faster actors; idle actors need a
faster learner, or a larger max_lag.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parl_core.actors import ActorHandle, ActorSystem, InProcessActors
from parl_core.checks import check_fraction, check_int, check_non_negative, check_positive
from parl_core.contracts._base import check_rates
from parl_core.env._steps import GroupSpaces
from parl_core.env._vector_group import EnvMaker
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.schedules import Scheduled, as_schedule
from parl_core.seeding import make_generator
from parl_core.spaces import blank_observations
from parl_core.training._central_inference import CentralInference
from parl_core.training._fragment_source import (
    ActorEnvironments,
    ActorFragmentSource,
    ArrivalOrder,
    AsynchronousCollector,
    DeterministicCollector,
    EnvironmentWorkers,
    FragmentOrder,
    FragmentSource,
    RoundOrder,
)
from parl_core.training._group_actor import CollectingActor, Experience, GroupActor, experience_of
from parl_core.training._requirements import TargetWatch, require_agents, require_kinds, require_rates
from parl_core.training.acting import tell_dimensions
from parl_core.training.checkpoints import Checkpoints, LoopParts
from parl_core.training.evaluation import Evaluator
from parl_core.training.events import Callback, Ended, EndedEpisodes, LoopCounter, LossMeans
from parl_core.training.fragment import ActorSeconds, BatchMemory, FragmentSteps
from parl_core.training.session import Session

__all__ = [
    "LOOSE",
    "ActorLearnerSettings",
    "LearnerMetrics",
    "order_of",
    "parts_of_loop",
    "shares_of",
    "train_actor_learner",
]

_PHASES = ("wait", "receive", "learn", "send")


class LearnerMetrics:
    """Sums of metrics between two reports.

    Args:
        max_lag: The setting.
        clock: The function that returns seconds from an arbitrary zero.
    """

    def __init__(self, max_lag: int, clock: Callable[[], float]) -> None:
        self._max_lag, self._clock = max_lag, clock
        self._began = clock()
        self._lags: list[int]
        self._clear()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block as `learner/<name>`."""
        began = self._clock()
        try:
            yield
        finally:
            self._phases[name] += self._clock() - began

    def learned(self, version: int, fragments: Sequence[FragmentSteps]) -> None:
        """Record that the weights after `version` updates learned from fragments."""
        for fragment in fragments:
            self._lags.append(version - fragment.version)
            self._seconds += np.array(fragment.seconds)

    def take(self, *, dropped: int, lost: int, failed: int) -> dict[str, float]:
        """Return the metrics since the last time, by name."""
        named = {
            "lag/limit": float(self._max_lag),
            "lag/dropped": float(dropped),
            "actors/lost": float(lost),
            "actors/failed": float(failed),
        }
        if self._lags:
            named |= {"lag/mean": float(np.mean(self._lags)), "lag/max": float(max(self._lags))}
        if actors := float(self._seconds.sum()):
            shares = self._seconds / actors
            named |= {f"actors/{name}": float(s) for name, s in zip(ActorSeconds._fields, shares, strict=True)}
        now = self._clock()
        if total := now - self._began:
            parts = {name: seconds / total for name, seconds in self._phases.items()}
            parts["other"] = max(0.0, 1.0 - sum(parts.values()))
            named |= {f"learner/{name}": share for name, share in parts.items()}
        self._began = now
        self._clear()
        return named

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: no times."""
        return {"lags": list(self._lags)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned."""
        self._lags = list(state["lags"])

    def _clear(self) -> None:
        self._lags = []
        self._seconds = np.zeros(len(ActorSeconds._fields))
        self._phases = dict.fromkeys(_PHASES, 0.0)


@dataclass(frozen=True)
class ActorLearnerSettings:
    """Hyper-parameters of the loop; a step is one step of one environment.

    Environments come in groups. One actor steps a group together, with one forward pass. With the same groups,
    `deterministic=True` gives the same bits for any number of actors.

    Attributes:
        total_steps: Steps that are learned from, over all environments; the last batch is always completed.
        n_actors: Number of actors, each with `groups / n_actors` groups.
        groups: Number of groups of environments; default: one per actor.
        envs_per_group: The number of environments of one group.
        n_steps: Steps of every environment in one fragment; for IMPALA its `sample_batch_steps`.
        batch_fragments: Fragments (`envs_per_group * n_steps` steps each) of one update; default: one of every group.
        max_lag: Maximum number of updates by which the acting weights lag behind the learner's. 0 makes rounds, in
            which actors and learner take turns, as on-policy algorithms need. At most `(max_lag + 1) * batch_fragments`
            fragments are in progress or wait.
        deterministic: Whether fragments are learned from in the order of their numbers and not of their arrival.
        inference: `"actors"`: each has a copy of the agent; `"learner"`: it chooses all actions (GA3C).
        max_wait_s: The seconds that one pass of inference on the learner waits for more environments once one is ready.
            With `deterministic`, passes wait for all.
        gamma: Discount of the next step, in [0, 1]; for advantages (A2C, PPO), IMPALA has its own.
        gae_lambda: The lambda of the advantages, in [0, 1]; with 1, as in A2C, they reach to the end of the fragment.
        epochs: The passes over each batch for PPO, 10 by default; the other algorithms always take one.
        minibatch_size: Samples of one gradient step, of PPO (64 by default).
        rates: Numbers, or schedules of the steps learned from, such as `{"lr": linear(1e-3, 0.0, 1e6)}`. A2C, A3C and
            PPO have `lr` and `entropy_coef` (PPO `clip` and `target_kl`, too); IMPALA has `learning_rate` and
            `entropy_coeff`, which is negative for a bonus.
        report_every: Steps between two reports to the callbacks, which get mean losses.
        timeout_s: Longest time for one answer of an actor, its start included: a whole fragment, or a step with
            inference on the learner. A slower actor is replaced. None: no limit. (In this process no actor can be
            ended.)
        max_failures: The number of times in a row that the environments of a group may raise, hang, or lose their
            actor, before the run ends with the last error; ten times as often if its host was lost or it was stopped
            from outside.
    """

    total_steps: int = 1_000_000
    n_actors: int = 2
    groups: int | None = None
    envs_per_group: int = 5
    n_steps: int = 50
    batch_fragments: int | None = None
    max_lag: int = 2
    deterministic: bool = False
    inference: str = "actors"
    max_wait_s: float = 0.002
    gamma: float = 0.99
    gae_lambda: float = 1.0
    epochs: int | None = None
    minibatch_size: int | None = None
    rates: Mapping[str, Scheduled] = field(default_factory=dict)
    report_every: int = 10_000
    timeout_s: float | None = None
    max_failures: int = 3

    def __post_init__(self) -> None:
        for name in ("total_steps", "n_actors", "envs_per_group", "n_steps", "report_every"):
            check_int(name, getattr(self, name))
        for name in ("groups", "batch_fragments", "epochs", "minibatch_size"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name))
        for name in ("max_lag", "max_failures"):
            check_int(name, getattr(self, name), at_least=0)
        for name in ("gamma", "gae_lambda"):
            check_fraction(name, getattr(self, name))
        check_rates(self.rates)
        check_non_negative("max_wait_s", self.max_wait_s)
        if self.timeout_s is not None:
            check_positive("timeout_s", self.timeout_s)
        if self.inference not in ("actors", "learner"):
            raise HyperparameterError(f"inference must be 'actors' or 'learner', got {self.inference!r}")
        if self.n_groups % self.n_actors:
            raise HyperparameterError(
                f"{self.n_groups} groups cannot be shared evenly by {self.n_actors} actors: use a multiple"
            )
        if self.max_lag == 0 and self.fragments_per_batch % self.n_groups:
            raise HyperparameterError(
                f"max_lag=0 makes rounds, so batch_fragments must be a multiple of the {self.n_groups} groups, got "
                f"{self.batch_fragments}; or let max_lag be 1"
            )

    @property
    def resumes_exactly(self) -> bool:
        """Return whether a resumed run equals a run that was never stopped; if not, it begins new episodes."""
        return self.deterministic or (self.max_lag == 0 and self.inference == "actors")

    def with_total_steps(self, total_steps: int) -> "ActorLearnerSettings":
        """Return the same with another budget of environment steps."""
        return replace(self, total_steps=total_steps)

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return self.n_actors if self.groups is None else self.groups

    @property
    def fragments_per_batch(self) -> int:
        """The number of fragments of one update."""
        return self.n_groups if self.batch_fragments is None else self.batch_fragments


LOOSE = (
    "fragments are learned from as they come, so a resumed run begins new episodes; set deterministic=True, or leave "
    'environments at "auto"'
)
"""The reason why a run without `deterministic=True` cannot continue its environments, for error messages."""


def train_actor_learner(
    agent: Any,
    make_agent: Callable[[], Any] | None,
    env: EnvMaker,
    settings: ActorLearnerSettings,
    *,
    actors: ActorSystem | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    evaluator: Evaluator | None = None,
    evaluate_every: int = 50_000,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    seed: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Train an agent on the experience of actors until the budget is used up or a callback stops it.

        def make_agent():
            return parl.Agent(parl.algorithms.IMPALA(parl.networks.ActorCritic(act_dim=2), sample_batch_steps=20))

        agent = make_agent()
        settings = training.ActorLearnerSettings(total_steps=800, n_actors=2, envs_per_group=2, n_steps=20)
        with training.open_actors() as actors:  # of this process; open_actors("remote") makes them elsewhere
            ended = training.train_actor_learner(agent, make_agent, "CartPole-v1", settings, actors=actors, seed=0)

    Args:
        agent: The agent that learns; `parl.Agent` around IMPALA, A2C, A3C or PPO.
        make_agent: The function that makes an agent of the same kind in each actor; its weights are replaced by the
            learner's. With inference on the learner it is not needed.
        env: The id of a registered environment, or a function that returns one.
        settings: Hyper-parameters of the loop.
        actors: The system that makes the actors, such as `open_actors("remote")`; the caller closes it. Default: this
            process.
        env_kwargs: Arguments of `gymnasium.make` or of the function.
        evaluator: The function that plays episodes with the present agent; None: no evaluations.
        evaluate_every: Steps between evaluations, rounded up to whole updates.
        callbacks: The callbacks, called for every report and evaluation, and once at the end, however the loop ends.
        checkpoints: The object that writes checkpoints, and lets a resumed run continue from its newest one; None for
            neither. Where `settings.resumes_exactly` does not hold, a resumed run begins new episodes.
        seed: The seed of the environments and of the actions that are drawn in actors.
        clock: The function that returns seconds from an arbitrary zero.

    Returns:
        how the loop ended.

    Raises:
        HyperparameterError: The settings do not suit the algorithm, the environment or the checkpoints.
        CheckpointError: A checkpoint cannot be written, or the run's cannot be used.
        DivergedError: A loss or a reward is not finite; callbacks that save have not saved since.
        LostActor: Actors ended, or hung, more often in a row than `max_failures` allows.
        KeyboardInterrupt: Ctrl-C was pressed; raised after the callbacks were called.
        Exception: An environment raised it more often than that, or the agent or a callback raised it.
    """
    require_kinds("train_actor_learner", agent, settings, ActorLearnerSettings)
    if actors is None:
        actors = InProcessActors()
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    rates = {name: as_schedule(rate) for name, rate in settings.rates.items()}
    rng = make_generator(seed)
    discounts = {"gamma": settings.gamma, "gae_lambda": settings.gae_lambda}
    passes = settings.epochs, settings.minibatch_size
    experience = experience_of(agent, n_steps=settings.n_steps, **discounts, passes=passes, rng=rng)
    require_rates(agent, settings.rates)
    total = settings.total_steps
    with Session(total, callbacks, evaluator, evaluate_every, clock, checkpoints=checkpoints) as session:
        environments = ActorEnvironments(settings.n_groups, settings.envs_per_group)
        if settings.resumes_exactly:
            session.watch(environments, seed)
        elif checkpoints is not None:
            checkpoints.watch_no_environments(LOOSE)
        workers = _workers(
            actors, make_agent, env, dict(env_kwargs or {}), settings, seed, recorded=environments.recorded
        )
        with workers:
            order = order_of(settings)
            source = _source(agent, experience, order, workers, actors.put, settings, seed)
            environments.use_actors(workers, source)
            version, reported = LoopCounter(0), LoopCounter(0)
            losses, episodes, metrics = (
                LossMeans(experience.read),
                EndedEpisodes(),
                LearnerMetrics(settings.max_lag, clock),
            )
            remembered = {"version": version, "reported": reported, "losses": losses, "episodes": episodes}
            others = {**remembered, "metrics": metrics, "rng": rng}
            session.keep(parts_of_loop(agent, source, order, workers, settings, version, others))
            memory, target = BatchMemory(), TargetWatch(agent)
            source.publish(version.value)
            while session.is_running:
                now = {name: rate(session.step) for name, rate in rates.items()}
                with metrics.phase("wait"):
                    fragments = source.take()
                with metrics.phase("receive"):
                    batch = memory.join(fragments)
                with metrics.phase("learn"):
                    losses.add(experience.learn(batch, now))
                    target.after_update()
                metrics.learned(version.value, fragments)
                session.advance(len(batch))
                episodes.add(batch.episodes)
                version.value += 1
                with metrics.phase("send"):
                    source.publish(version.value)
                if session.step - reported.value >= settings.report_every or session.step >= settings.total_steps:
                    reported.value = session.step
                    so_far = metrics.take(dropped=order.dropped, lost=workers.lost_count, failed=workers.failed_count)
                    session.report(losses.take_means(), episodes.take(), now, so_far)
                if session.evaluation_is_due:
                    losses.settle()
                session.evaluate_when_due()
                session.checkpoint_when_due()
            session.checkpoint_at_the_end()
    return session.ended


def order_of(settings: ActorLearnerSettings) -> FragmentOrder:
    """Return the order in which fragments are learned from."""
    if settings.deterministic or settings.max_lag == 0:  # rounds wait for all groups anyway
        return RoundOrder(settings.n_groups, settings.fragments_per_batch, settings.max_lag)
    return ArrivalOrder(shares_of(settings), settings.fragments_per_batch, settings.max_lag)


def shares_of(settings: ActorLearnerSettings) -> list[list[int]]:
    """Return the groups of each actor."""
    return [list(range(actor, settings.n_groups, settings.n_actors)) for actor in range(settings.n_actors)]


def _workers(
    actors: ActorSystem,
    make_agent: Callable[[], Any] | None,
    env: EnvMaker,
    env_kwargs: Mapping[str, Any],
    settings: ActorLearnerSettings,
    seed: int,
    *,
    recorded: bool,
) -> EnvironmentWorkers:
    shares = shares_of(settings)

    def spawn(actor: int, lives: Mapping[int, int]) -> ActorHandle:  # noqa: ARG001 - which one it is makes no difference
        what = {
            "env": env,
            "env_kwargs": env_kwargs,
            "lives": lives,
            "size": settings.envs_per_group,
            "seed": seed,
            "recorded": recorded,
        }
        if settings.inference == "learner":
            return actors.create(GroupActor, **what)
        numbers = settings.n_steps, settings.gamma, settings.gae_lambda
        return actors.create(CollectingActor, make_agent, *numbers, **what)

    if settings.inference == "actors" and make_agent is None:
        raise HyperparameterError("actors that choose their actions need make_agent; or let inference be 'learner'")
    return EnvironmentWorkers(spawn, shares, settings.timeout_s, settings.max_failures)


def parts_of_loop(
    agent: Any,
    source: FragmentSource,
    order: FragmentOrder,
    workers: EnvironmentWorkers,
    settings: ActorLearnerSettings,
    version: LoopCounter,
    others: Mapping[str, Any],
    memory: Any = None,
) -> LoopParts:
    """Return the parts of a loop over fragments that a checkpoint contains."""
    if not settings.resumes_exactly:
        collector = AsynchronousCollector(order, workers, version)
        return LoopParts(agent, memory=memory, others={**others, "collector": collector})
    shape = {
        "n_steps": settings.n_steps,
        "batch_fragments": settings.fragments_per_batch,
        "max_lag": settings.max_lag,
        "inference": settings.inference,
    }
    return LoopParts(agent, DeterministicCollector(source, workers, shape), memory, others)


def _source(
    agent: Any,
    experience: Experience,
    order: FragmentOrder,
    workers: EnvironmentWorkers,
    store: Callable[[Any], Any],
    settings: ActorLearnerSettings,
    seed: int,
) -> FragmentSource:
    spaces: GroupSpaces = workers.call(0, "spaces")
    tell_dimensions(agent, spaces.observation)
    require_agents(agent, spaces.observation)
    if settings.inference == "learner":
        wait_s = None if settings.deterministic else settings.max_wait_s
        return CentralInference(
            workers, order, agent, experience, spaces, settings.n_groups, settings.n_steps, wait_s, seed
        )
    try:
        agent.get_weights()
    except ModelContractError:  # layers get their shapes from the first batch
        experience.warm_up(blank_observations(spaces.observation, 1))
    return ActorFragmentSource(workers, order, agent.get_weights, store)
