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
from typing import Any

import numpy as np
from gymnasium.vector.utils import create_empty_array

from parl_core.actors import ActorHandle, ActorSystem, InProcessActors
from parl_core.env.group_step import GroupSpaces
from parl_core.env.vector_group import EnvMaker
from parl_core.errors import HyperparameterError, ModelContractError
from parl_core.schedules import as_schedule
from parl_core.seeding import make_generator
from parl_core.training.acting import tell_dimensions
from parl_core.training.actor_environments import ActorEnvironments, FragmentCollector, LooseCollector
from parl_core.training.actor_learner_settings import ActorLearnerSettings
from parl_core.training.central_inference import CentralInference
from parl_core.training.checkpoints import Checkpoints, LoopParts
from parl_core.training.course import Course
from parl_core.training.crew import Crew
from parl_core.training.evaluation import Evaluator
from parl_core.training.events import Callback, Ended
from parl_core.training.experience import Experience, experience_of
from parl_core.training.figures import EndedEpisodes, Latest, Losses
from parl_core.training.fragment_batch import BatchMemory
from parl_core.training.fragment_order import AsTheyCome, FragmentOrder, InRounds
from parl_core.training.fragment_source import CollectedByActors, FragmentSource
from parl_core.training.group_actor import CollectingActor, GroupActor
from parl_core.training.learner_metrics import LearnerMetrics

__all__ = ["ActorLearnerSettings", "train_actor_learner"]

_LOOSE = (
    "fragments are learned from as they come, so a resumed run begins new episodes; set deterministic=True, or leave "
    'environments at "auto"'
)


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
        checkpoints: writes checkpoints, and lets a resumed run go on from its newest one; None for neither. Where
            `settings.resumes_exactly` does not hold, a resumed run begins new episodes.
        seed: of the environments and of the actions that are drawn in actors.
        clock: seconds from an arbitrary zero.

    Returns:
        how it ended.

    Raises:
        HyperparameterError: the settings do not suit the algorithm, the environment or the checkpoints.
        CheckpointError: a checkpoint cannot be written, or the run's cannot be used.
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
    rng = make_generator(seed)
    discounts = {"gamma": settings.gamma, "gae_lambda": settings.gae_lambda}
    passes = settings.epochs, settings.minibatch_size
    experience = experience_of(agent, n_steps=settings.n_steps, **discounts, passes=passes, rng=rng)
    total = settings.total_steps
    with Course(total, callbacks, evaluator, evaluate_every, clock, checkpoints=checkpoints) as course:
        environments = ActorEnvironments(settings.n_groups, settings.envs_per_group)
        if settings.resumes_exactly:
            course.watch(environments, seed)
        elif checkpoints is not None:
            checkpoints.watch_nothing(_LOOSE)
        crew = _crew(actors, make_agent, env, dict(env_kwargs or {}), settings, seed, recorded=environments.recorded)
        with crew:
            order = _order(settings)
            source = _source(agent, experience, order, crew, actors.put, settings, seed)
            environments.live_in(crew, source)
            version, reported = Latest(0), Latest(0)
            losses, episodes, metrics = Losses(), EndedEpisodes(), LearnerMetrics(settings.max_lag, clock)
            remembered = {"version": version, "reported": reported, "losses": losses, "episodes": episodes}
            others = {**remembered, "metrics": metrics, "rng": rng}
            course.keep(_parts(agent, source, order, crew, settings, version, others))
            memory = BatchMemory()
            source.publish(version.value)
            while course.goes_on:
                now = {name: rate(course.step) for name, rate in rates.items()}
                with metrics.phase("wait"):
                    fragments = source.take()
                with metrics.phase("receive"):
                    batch = memory.join(fragments)
                with metrics.phase("learn"):
                    losses.add(experience.learn(batch, now))
                metrics.learned(version.value, fragments)
                course.advance(len(batch))
                episodes.add(batch.episodes)
                version.value += 1
                with metrics.phase("send"):
                    source.publish(version.value)
                if course.step - reported.value >= settings.report_every or not course.goes_on:
                    reported.value = course.step
                    so_far = metrics.take(dropped=order.dropped, lost=crew.lost, failed=crew.failed)
                    course.report(losses.take_means(), episodes.take(), now, so_far)
                course.evaluate_when_due()
                course.checkpoint_when_due()
            course.checkpoint_at_the_end()
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
    *,
    recorded: bool,
) -> Crew:
    shares = _shares(settings)

    def hire(actor: int, lives: Mapping[int, int]) -> ActorHandle:  # noqa: ARG001 - which one it is makes no difference
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
    return Crew(hire, shares, settings.timeout_s, settings.max_failures)


def _parts(
    agent: Any,
    source: FragmentSource,
    order: FragmentOrder,
    crew: Crew,
    settings: ActorLearnerSettings,
    version: Latest,
    others: Mapping[str, Any],
) -> LoopParts:
    if not settings.resumes_exactly:
        return LoopParts(agent, others={**others, "collector": LooseCollector(order, crew, version)})
    shape = {
        "n_steps": settings.n_steps,
        "batch_fragments": settings.fragments_per_batch,
        "max_lag": settings.max_lag,
        "inference": settings.inference,
    }
    return LoopParts(agent, FragmentCollector(source, crew, shape), others=others)


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
