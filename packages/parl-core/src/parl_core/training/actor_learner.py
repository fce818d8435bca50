"""The actors-and-learner loop: many actors play, one learner learns, and neither waits for the other if it need not.

    actors ── fragments, each with the version of its weights ──> order ──> batch ──> experience.learn
       ^────────── weights, once a host and version ───────────── publish <──┘
    callbacks <── Update, Evaluation, Ended ── Course <──────────────────────┘

                      inference   max_lag   batch
    IMPALA            actors      some      some fragments
    A2C, PPO          actors      0         a fragment of every group: rounds
    GA3C              learner     some      some fragments

Nothing here knows a framework, where the actors live, or what is written to disk. `learner_metrics` says what the
metrics mean.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium.vector.utils import create_empty_array

from parl_core.actors import ActorHandle, ActorSystem, InProcessActors
from parl_core.checks import check_fraction, check_int, check_non_negative, check_positive
from parl_core.env.group_step import GroupSpaces
from parl_core.env.vector_group import EnvMaker
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.schedules import Schedule, as_schedule
from parl_core.training.acting import tell_dimensions
from parl_core.training.central_inference import CentralInference
from parl_core.training.course import Course
from parl_core.training.crew import Crew
from parl_core.training.evaluation import Evaluator
from parl_core.training.events import Callback, Ended, Episode
from parl_core.training.experience import Experience, experience_of
from parl_core.training.figures import Losses
from parl_core.training.fragment_batch import BatchMemory
from parl_core.training.fragment_order import AsTheyCome, FragmentOrder, InRounds
from parl_core.training.fragment_source import CollectedByActors, FragmentSource
from parl_core.training.group_actor import CollectingActor, GroupActor
from parl_core.training.learner_metrics import LearnerMetrics

__all__ = ["ActorLearnerSettings", "train_actor_learner"]

Scheduled = float | Schedule


@dataclass(frozen=True)
class ActorLearnerSettings:
    """Hyper-parameters of the loop; a step is one step of one environment.

    Environments come in groups, each of which one actor steps together and one forward pass serves. With the same
    groups, `deterministic=True` gives the same bits however many actors there are.

    Attributes:
        total_steps: that are learned from, over all environments; the last batch is always completed.
        n_actors: actors, each with `groups / n_actors` groups.
        groups: of environments; default: one an actor.
        envs_per_group: environments of one group.
        n_steps: steps of every environment in one fragment; for IMPALA its `sample_batch_steps`.
        batch_fragments: fragments (`envs_per_group * n_steps` steps each) of one update; default: one of every group.
        max_lag: updates that the weights which acted may lie behind those that learn from it; 0 makes rounds, in which
            actors and learner take turns, as on-policy algorithms want it. So `(max_lag + 1) * batch_fragments`
            fragments are under way or wait at most.
        deterministic: learn from fragments in the order of their numbers and not of their arrival.
        inference: `"actors"`: each has a copy of the agent; `"learner"`: it chooses all actions (GA3C).
        max_wait_s: of inference on the learner: how long one pass waits for more environments once one is ready. With
            `deterministic`, passes wait for all.
        gamma: discount of the next step, in [0, 1]; of advantages (A2C, PPO), IMPALA has its own.
        gae_lambda: how far advantages look ahead, in [0, 1]; 1, A2C's, to the end of the fragment.
        rates: arguments of the algorithm's `learn` (or `learn_rollout`) by name, such as
            `{"learning_rate": linear(1e-3, 0.0, 1e6)}`: numbers, or schedules of the steps learned from.
        report_every: steps between two reports to the callbacks, which get mean losses.
        timeout_s: longest time for one answer of an actor, a whole fragment or with inference on the learner a step,
            its start included; who takes longer is replaced. None has no limit. (In this process nothing can be ended.)
        max_failures: how often in a row the environments of a group may raise, hang, or lose their actor, before the
            run ends with the last error.
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
    rates: Mapping[str, Scheduled] = field(default_factory=dict)
    report_every: int = 10_000
    timeout_s: float | None = None
    max_failures: int = 3

    def __post_init__(self) -> None:
        for name in ("total_steps", "n_actors", "envs_per_group", "n_steps", "report_every"):
            check_int(name, getattr(self, name))
        for name in ("groups", "batch_fragments"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name))
        for name in ("max_lag", "max_failures"):
            check_int(name, getattr(self, name), at_least=0)
        for name in ("gamma", "gae_lambda"):
            check_fraction(name, getattr(self, name))
        check_non_negative("max_wait_s", self.max_wait_s)
        if self.timeout_s is not None:
            check_positive("timeout_s", self.timeout_s)
        if self.inference not in ("actors", "learner"):
            raise HyperparameterError(f"inference must be 'actors' or 'learner', got {self.inference!r}")
        if self.n_groups % self.n_actors:
            raise HyperparameterError(
                f"{self.n_groups} groups cannot be shared evenly by {self.n_actors} actors: give a multiple"
            )
        if self.max_lag == 0 and self.fragments_per_batch % self.n_groups:
            raise HyperparameterError(
                f"max_lag=0 makes rounds, so batch_fragments must be a multiple of the {self.n_groups} groups, got "
                f"{self.batch_fragments}; or let max_lag be 1"
            )

    def with_total_steps(self, total_steps: int) -> "ActorLearnerSettings":
        """The same with another budget of environment steps."""
        return replace(self, total_steps=total_steps)

    @property
    def n_groups(self) -> int:
        """Groups in all."""
        return self.n_actors if self.groups is None else self.groups

    @property
    def fragments_per_batch(self) -> int:
        """Fragments of one update."""
        return self.n_groups if self.batch_fragments is None else self.batch_fragments


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
    seed: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Train an agent on the experience of actors until the budget is used up or a callback stops it.

    Args:
        agent: learns; `parl.Agent` around IMPALA, A2C, A3C or PPO.
        make_agent: makes the like of it in an actor, to act there; its weights are replaced by the learner's. With
            inference on the learner it is not needed.
        env: the id of a registered environment, or a function that returns one.
        settings: hyper-parameters of the loop.
        actors: where actors are made, such as `open_actors("remote")` gives; the caller closes it. Default: here.
        env_kwargs: passed to `gymnasium.make` or to the function.
        evaluator: plays episodes with the agent as it is now; None evaluates never.
        evaluate_every: steps between evaluations, rounded up to whole updates.
        callbacks: told of every report and evaluation, and once of the end, however it comes.
        seed: of the environments and of the actions that are drawn in actors.
        clock: seconds from an arbitrary zero.

    Returns:
        how it ended.

    Raises:
        HyperparameterError: the settings do not suit the algorithm or the environment.
        DivergedError: a loss or a reward is not finite; callbacks that save have not saved since.
        LostActor: actors ended, or hung, more often in a row than `max_failures` allows.
        KeyboardInterrupt: after the callbacks were told.
        Exception: what an environment raised more often than that, or the agent or a callback raised.
    """
    if actors is None:
        actors = InProcessActors()
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    rates = {name: as_schedule(rate) for name, rate in settings.rates.items()}
    experience = experience_of(
        agent,
        n_steps=settings.n_steps,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        rng=np.random.default_rng(seed),
    )
    order, metrics, memory = _order(settings), LearnerMetrics(settings.max_lag, clock), BatchMemory()
    with (
        Course(settings.total_steps, callbacks, evaluator, evaluate_every, clock) as course,
        _crew(actors, make_agent, env, dict(env_kwargs or {}), settings, seed) as crew,
    ):
        source = _source(agent, experience, order, crew, actors.put, settings, seed)
        version = reported = 0
        losses = Losses()
        episodes: list[Episode] = []
        source.publish(version)
        while course.goes_on:
            now = {name: rate(course.step) for name, rate in rates.items()}
            with metrics.phase("wait"):
                fragments = source.take()
            with metrics.phase("receive"):
                batch = memory.join(fragments)
            with metrics.phase("learn"):
                losses.add(experience.learn(batch, now))
            metrics.learned(version, fragments)
            course.advance(len(batch))
            episodes += batch.episodes
            version += 1
            with metrics.phase("send"):
                source.publish(version)
            if course.step - reported >= settings.report_every or not course.goes_on:
                reported = course.step
                so_far = metrics.take(dropped=order.dropped, lost=crew.lost, failed=crew.failed)
                course.report(losses.take_means(), episodes, now, so_far)
                episodes = []
            course.evaluate_when_due()
    return course.ended


def _order(settings: ActorLearnerSettings) -> FragmentOrder:
    if settings.deterministic or settings.max_lag == 0:  # rounds wait for everybody anyway
        return InRounds(settings.n_groups, settings.fragments_per_batch, settings.max_lag)
    return AsTheyCome(_shares(settings), settings.fragments_per_batch, settings.max_lag)


def _shares(settings: ActorLearnerSettings) -> list[list[int]]:
    """The groups of each actor."""
    return [list(range(actor, settings.n_groups, settings.n_actors)) for actor in range(settings.n_actors)]


def _crew(
    actors: ActorSystem,
    make_agent: Callable[[], Any] | None,
    env: EnvMaker,
    env_kwargs: Mapping[str, Any],
    settings: ActorLearnerSettings,
    seed: int,
) -> Crew:
    shares = _shares(settings)

    def hire(actor: int, incarnation: int) -> ActorHandle:
        what = {
            "env": env,
            "env_kwargs": env_kwargs,
            "groups": shares[actor],
            "size": settings.envs_per_group,
            "seed": seed,
            "incarnation": incarnation,
        }
        if settings.inference == "learner":
            return actors.create(GroupActor, **what)
        numbers = settings.n_steps, settings.gamma, settings.gae_lambda
        return actors.create(CollectingActor, make_agent, *numbers, **what)

    if settings.inference == "actors" and make_agent is None:
        raise HyperparameterError("actors that choose their actions need make_agent; or let inference be 'learner'")
    return Crew(hire, shares, settings.timeout_s, settings.max_failures)


def _source(
    agent: Any,
    experience: Experience,
    order: FragmentOrder,
    crew: Crew,
    store: Callable[[Any], Any],
    settings: ActorLearnerSettings,
    seed: int,
) -> FragmentSource:
    spaces: GroupSpaces = crew.call(0, "spaces")
    tell_dimensions(agent, spaces.observation)
    if settings.inference == "learner":
        wait_s = None if settings.deterministic else settings.max_wait_s
        return CentralInference(
            crew, order, agent, experience, spaces, settings.n_groups, settings.n_steps, wait_s, seed
        )
    try:
        agent.get_weights()
    except ModelContractError:  # of a model whose layers take their shapes from the first batch
        experience.warm_up(create_empty_array(spaces.observation, n=1, fn=np.zeros))
    return CollectedByActors(crew, order, agent.get_weights, store)
