"""The loop of Ape-X: many actors explore, each with its own epsilon, and one learner draws from prioritised replay.

    actors ── fragments, with a TD error of each step ──> replay memory ── batches ──> agent.learn
       ^────────── weights, once a host and round ──────────── publish <──┘  ^── TD errors ──┘

D. Horgan et al.: Distributed Prioritized Experience Replay, ICLR 2018 (arXiv:1803.00933). An actor computes the first
priority of a step from the Q values of acting, so the learner passes no transition through the network before it is
drawn. The memory is in the learner's process, because `benchmarks/apex` shows that a separate actor for it costs more
than it saves.

Differences from the paper: the number of updates follows from the steps taken (`train_every`), so that runs are
comparable whatever the speed of their actors; each environment has an epsilon, not each actor; n-step returns also end,
and bootstrap, at the end of a fragment; the loop moves the target as in `train_off_policy`.

Environments, groups, failures, checkpoints and metrics are those of `actor_learner`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parl_core._nested import Observations, map_nested
from parl_core.actors import ActorHandle, ActorSystem, InProcessActors
from parl_core.agent import Agent
from parl_core.checks import check_fraction, check_non_negative
from parl_core.contracts.actions import mask_of
from parl_core.contracts.dqn import DQN
from parl_core.env._steps import GroupSpaces, GroupStep
from parl_core.env._vector_group import EnvMaker
from parl_core.errors import HyperparameterError
from parl_core.replay import Prioritized
from parl_core.schedules import Scheduled, as_schedule
from parl_core.seeding import make_generator
from parl_core.spaces import blank_observations
from parl_core.training._fragment_source import ActorEnvironments, ActorFragmentSource, EnvironmentWorkers
from parl_core.training._group_actor import Choice, CollectingActor
from parl_core.training._requirements import TargetWatch, require_agents, require_kinds, require_off_policy, try_out
from parl_core.training.acting import check_masks, into_space, tell_dimensions
from parl_core.training.actor_learner import (
    LOOSE,
    ActorLearnerSettings,
    LearnerMetrics,
    order_of,
    parts_of_loop,
    shares_of,
)
from parl_core.training.checkpoints import Checkpoints
from parl_core.training.evaluation import Evaluator
from parl_core.training.events import Callback, Ended, EndedEpisodes, LoopCounter, MetricMeans
from parl_core.training.fragment import FragmentSteps, Task, require_finite
from parl_core.training.off_policy import OffPolicySettings, check_memory, learn_from, make_memory, to_records
from parl_core.training.session import Session

__all__ = ["ApexActor", "ApexSettings", "epsilons", "first_errors", "train_apex"]


@dataclass(frozen=True)
class ApexSettings:
    """Hyper-parameters of the loop; a step is one step of one environment.

    Attributes:
        total_steps: The environment steps of the run, over all environments; the last round is completed.
        n_actors: Actors, each with `groups / n_actors` groups.
        groups: The number of groups of environments, each of which one actor steps together; default: one per actor.
        envs_per_group: The number of environments of one group.
        n_steps: Steps of every environment in one fragment, after which an actor takes the newest weights.
        max_lag: Rounds (one fragment of every group) by which the actors may be ahead of the learner, in addition to
            the round that they make while it learns.
        deterministic: True to store fragments in the order of their groups instead of their arrival. This gives
            the same bits for any number of actors, and a resumed run that equals one that was never stopped.
        learning_starts: Steps before the first update.
        train_every: Steps between two phases of learning.
        gradient_steps: Updates of one phase.
        batch_size: Transitions of one update; default 512 (paper).
        memory_size: Number of transitions in the replay memory.
        n_step: Rewards that are summed before bootstrapping, with the algorithm's gamma; default 3 (paper).
        prioritized: Settings of the prioritised draws; default alpha 0.6 and beta 0.4 (paper).
        epsilon: Probability of random actions of the first environment, in (0, 1); default 0.4 (paper).
        epsilon_power: The power that spreads exploration: the last environment's epsilon is
            `epsilon ** (1 + epsilon_power)`, at least 0; default 7 (paper).
        rates: Learning rates by the names of the arguments of the algorithm's `learn`: numbers, or schedules of the
            steps taken.
        report_every: Steps between two reports to the callbacks, which get mean losses.
        timeout_s: As in `ActorLearnerSettings`.
        max_failures: As in `ActorLearnerSettings`.
    """

    total_steps: int = 1_000_000
    n_actors: int = 8
    groups: int | None = None
    envs_per_group: int = 1
    n_steps: int = 50
    max_lag: int = 1
    deterministic: bool = False
    learning_starts: int = 1_000
    train_every: int = 4
    gradient_steps: int = 1
    batch_size: int = 512
    memory_size: int = 1_000_000
    n_step: int = 3
    prioritized: Prioritized = field(default_factory=Prioritized)
    epsilon: float = 0.4
    epsilon_power: float = 7.0
    rates: Mapping[str, Scheduled] = field(default_factory=dict)
    report_every: int = 1_000
    timeout_s: float | None = None
    max_failures: int = 3

    def __post_init__(self) -> None:
        if not 0.0 < check_fraction("epsilon", self.epsilon) < 1.0:
            raise HyperparameterError(f"epsilon must be above 0 and below 1, got {self.epsilon}")
        check_non_negative("epsilon_power", self.epsilon_power)
        if not isinstance(self.prioritized, Prioritized):
            raise HyperparameterError(
                f"prioritized must be a parl_core.replay.Prioritized, got {self.prioritized!r}: Ape-X draws by priority"
            )
        _ = self.acting, self.learning  # these properties check the other settings

    @property
    def acting(self) -> ActorLearnerSettings:
        """The settings of the actors."""
        names: tuple[str, ...] = ("total_steps", "n_actors", "groups", "envs_per_group", "n_steps", "max_lag")
        names += ("deterministic", "report_every", "timeout_s", "max_failures")
        return ActorLearnerSettings(**{name: getattr(self, name) for name in names})

    @property
    def learning(self) -> OffPolicySettings:
        """The settings of the replay memory."""
        names: tuple[str, ...] = ("total_steps", "learning_starts", "train_every", "gradient_steps", "batch_size")
        names += ("memory_size",)
        names += ("n_step", "prioritized", "rates", "report_every")
        return OffPolicySettings(**{name: getattr(self, name) for name in names})

    def with_total_steps(self, total_steps: int) -> "ApexSettings":
        """Return the same with another budget of environment steps; at most half pass before the first update."""
        return replace(self, total_steps=total_steps, learning_starts=min(self.learning_starts, total_steps // 2))


def epsilons(epsilon: float, power: float, count: int) -> NDArray[np.float64]:
    """Return the probabilities of random actions `[count]`: epsilon ** (1 + power * i / (count - 1)).

    arXiv:1803.00933, section 4.1.
    """
    return np.asarray(epsilon ** (1.0 + power * np.arange(count) / max(count - 1, 1)))


def first_errors(
    reward: NDArray[Any],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    chosen: NDArray[Any],
    next_best: NDArray[Any],
    *,
    steps: int,
    gamma: float,
) -> NDArray[np.float64]:
    """Return the TD errors `[n, T]` of n-step returns that end at an episode's end or at that of the arrays.

        G_1(t) = r_t + gamma * (1 - terminated_t) * next_best_t
        G_m(t) = G_1(t) where an episode ended or t = T - 1, else r_t + gamma * G_m-1(t + 1)

    Args:
        reward: `[n, T]`, of n environments over T steps.
        terminated: `[n, T]`.
        truncated: `[n, T]`.
        chosen: `[n, T]`, Q of the chosen actions.
        next_best: `[n, T]`, the largest Q of the observation after the step; if the episode was truncated, of its last
            observation.
        steps: The n of n-step.
        gamma: Discount of a step.
    """
    bootstrapped = reward + gamma * np.where(terminated, 0.0, next_best)
    goes_on = ~(terminated | truncated)
    goes_on[:, -1] = False
    returns = bootstrapped
    for _ in range(steps - 1):
        later = np.concatenate([returns[:, 1:], returns[:, -1:]], axis=1)
        returns = np.where(goes_on, reward + gamma * later, bootstrapped)
    return np.asarray(returns - chosen, np.float64)


class _Explorer:
    """An agent as an actor of Ape-X uses it; see `ActingExperience`.

    Args:
        agent: `parl.Agent` around DQN or one of its variants.
        n_step: The n of the n-step returns.
        epsilon: The epsilons of all environments of the run, `[N]`.
    """

    def __init__(self, agent: Any, n_step: int, epsilon: NDArray[np.float64]) -> None:
        self._agent, self._n_step, self._epsilon = agent, n_step, epsilon
        self._first = 0

    def set_first_environment(self, first: int) -> None:
        """Act from now on in the environments from this number on."""
        self._first = first

    def drawing_from(self, seed: int) -> AbstractContextManager[None]:
        found: AbstractContextManager[None] = self._agent.drawing_from(seed)
        return found

    def begin(self, rows: int) -> Mapping[str, NDArray[Any]]:  # noqa: ARG002 - models with a memory are refused
        return {}

    def choose(self, obs: Observations, state: Mapping[str, NDArray[Any]]) -> Choice:
        agent, rows = self._agent, np.arange(len(_first_leaf(obs)))
        mask = mask_of(obs)
        q = self._values(obs)
        action = agent.alg.choose(q, action_mask=mask)
        at_random = agent.alg.choose(q, rng=agent.rng, epsilon=1.0, action_mask=mask)
        explores = agent.rng.random(len(rows)) < self._epsilon[self._first : self._first + len(rows)]
        action = np.where(explores, at_random, action)
        return Choice(action, {"chosen": q[rows, action], "best": _best(q, mask)}, state)

    def complete(self, fragment: FragmentSteps) -> FragmentSteps:
        best = fragment.policy["best"]
        next_best = np.empty_like(best)
        next_best[:, :-1] = best[:, 1:]
        next_best[:, -1] = self._best_of(fragment.last_obs)
        if fragment.final_obs is not None:
            next_best.reshape(-1)[fragment.final_rows] = self._best_of(fragment.final_obs)
        error = first_errors(
            fragment.reward,
            fragment.terminated,
            fragment.truncated,
            fragment.policy["chosen"],
            next_best,
            steps=self._n_step,
            gamma=self._agent.alg.gamma,
        )
        return replace(fragment, policy={"error": error})

    def _best_of(self, obs: Observations) -> NDArray[Any]:
        return _best(self._values(obs), mask_of(obs))

    def _values(self, obs: Observations) -> NDArray[Any]:
        found: NDArray[Any] = self._agent._forward(self._agent.alg.predict, obs, True)
        return found


def _best(q: NDArray[Any], mask: Any) -> NDArray[Any]:
    if mask is None:
        return np.asarray(q.max(axis=1))
    possible = np.asarray(mask, np.bool_)
    return np.where(possible.any(axis=1), np.where(possible, q, -np.inf).max(axis=1), 0.0)


def _first_leaf(obs: Any) -> NDArray[Any]:
    while isinstance(obs, Mapping):
        obs = next(iter(obs.values()))
    found: NDArray[Any] = obs
    return found


class ApexActor(CollectingActor):
    """A collecting actor that explores by epsilons and computes the first priority of each step.

    Args:
        make_agent: The function that makes the agent; it is called here.
        n_steps: Steps of a fragment.
        n_step: The n of the n-step returns.
        epsilon: The epsilons of all environments of the run.
        groups_arguments: The arguments of `GroupActor`.
    """

    def __init__(
        self,
        make_agent: Callable[[], Any],
        n_steps: int,
        n_step: int,
        epsilon: NDArray[np.float64],
        **groups_arguments: Any,
    ) -> None:
        super().__init__(make_agent, n_steps, 1.0, 1.0, **groups_arguments)
        self._n_step, self._epsilon = n_step, epsilon

    def _set_up(self) -> None:
        spaces = self.spaces()
        agent = self._make_agent()
        tell_dimensions(agent, spaces.observation)
        self._valid = into_space(spaces.action, one_by_one=True)
        self._experience = self._explorer = _Explorer(agent, self._n_step, self._epsilon)
        self._agent = agent

    def _collect(self, task: Task) -> tuple[FragmentSteps, float]:
        self._explorer.set_first_environment(task.group * self._size)
        return super()._collect(task)

    def _check_masks_after(self, group: int, step: GroupStep) -> None:
        """Do as `GroupActor` does, also for the last observations of truncated episodes, whose values are used."""
        super()._check_masks_after(group, step)
        for ending in step.endings:
            if not step.terminated[ending.env_index]:
                last = map_nested(lambda part: np.asarray(part)[None], ending.observation)
                when = "at the end of an episode that was truncated"
                check_masks(last, True, when, group * self._size + ending.env_index)


class _Spaces(NamedTuple):
    """The part of a vector of environments that `make_memory` needs."""

    single_observation_space: Any
    single_action_space: Any
    num_envs: int
    metadata: Mapping[str, Any]


def train_apex(
    agent: Any,
    make_agent: Callable[[], Any],
    env: EnvMaker,
    settings: ApexSettings,
    *,
    actors: ActorSystem | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    memory: Any = None,
    evaluator: Evaluator | None = None,
    evaluate_every: int = 5_000,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    seed: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Train an agent from the prioritised experience of many actors.

    Args:
        agent: The agent that learns; `parl.Agent` around ApeX, DQN, QRDQN, C51 or Rainbow (with noisy layers and the
            smallest epsilons: `epsilon=1e-3`).
        make_agent: The function that makes an agent of the same kind in each actor; its weights are replaced by the
            learner's.
        env: The id of a registered environment, or a function that returns one.
        settings: Hyper-parameters of the loop.
        actors: The system that makes the actors, such as `open_actors("remote")`; the caller closes it. Default: this
            process.
        env_kwargs: Arguments of `gymnasium.make` or of the function.
        memory: The memory, made with `prioritized` and `n_step` of the settings, for `envs_per_group` environments that
            take turns; default: what `make_memory` returns.
        evaluator: The function that plays episodes with the present agent; None: no evaluations.
        evaluate_every: Steps between evaluations, rounded up to whole rounds.
        callbacks: The callbacks, called for every report and evaluation, and once at the end, however the loop ends.
        checkpoints: The object that writes checkpoints, and lets a resumed run continue from its newest one; None for
            neither. Where `settings.deterministic` does not hold, a resumed run begins new episodes.
        seed: The seed of the environments, the actions that are drawn in actors, and the batches.
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
    require_kinds("train_apex", agent, settings, ApexSettings)
    _require_values(agent)
    require_off_policy(agent, (), settings.rates)
    if actors is None:
        actors = InProcessActors()
    if isinstance(actors, InProcessActors):  # its agents are made from the generators that the learner draws from
        make_agent = partial(_made_apart, agent, make_agent)
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    acting, learning, rng = settings.acting, settings.learning, make_generator(seed)
    rates = {name: as_schedule(rate) for name, rate in settings.rates.items()}
    total = settings.total_steps
    with Session(total, callbacks, evaluator, evaluate_every, clock, checkpoints=checkpoints) as session:
        environments = ActorEnvironments(acting.n_groups, acting.envs_per_group)
        if acting.resumes_exactly:
            session.watch(environments, seed)
        elif checkpoints is not None:
            checkpoints.watch_no_environments(LOOSE)
        with _workers(
            actors, make_agent, env, dict(env_kwargs or {}), settings, seed, environments.recorded
        ) as workers:
            spaces: GroupSpaces = workers.call(0, "spaces")
            tell_dimensions(agent, spaces.observation)
            require_agents(agent, spaces.observation)
            try_out(agent, blank_observations(spaces.observation, 1), spaces.action, into_space(spaces.action))
            seen = _Spaces(spaces.observation, spaces.action, acting.envs_per_group, spaces.metadata)
            memory = make_memory(agent, seen, learning, rng) if memory is None else memory
            # The actors compute the first priorities with n_step.
            check_memory(agent, memory, learning, acting.envs_per_group, asked=("n_step", "prioritized"))
            order = order_of(acting)
            source = ActorFragmentSource(workers, order, agent.get_weights, actors.put)
            environments.use_actors(workers, source)
            version, reported, episodes = LoopCounter(0), LoopCounter(0), EndedEpisodes()
            newest: list[Any] = [None]
            figures = MetricMeans(agent.alg.FIGURES, lambda unread: agent.read(unread, newest[0]))
            metrics, target = LearnerMetrics(acting.max_lag, clock), TargetWatch(agent)
            others = {"version": version, "reported": reported, "episodes": episodes, "metrics": metrics, "rng": rng}
            others |= {"figures": figures}
            session.keep(parts_of_loop(agent, source, order, workers, acting, version, others, memory))
            source.publish(version.value)
            while session.is_running:
                with metrics.phase("wait"):
                    fragments = source.take()
                with metrics.phase("receive"):
                    new = sum(_remember(memory, fragment) for fragment in fragments)
                    episodes.add([episode for fragment in fragments for episode in fragment.episodes])
                metrics.learned(version.value, fragments)
                session.advance(new)
                version.value += 1
                with metrics.phase("send"):
                    source.publish(version.value)  # before learning, during which the actors continue
                now = {name: rate(session.step) for name, rate in rates.items()}
                with metrics.phase("learn"):
                    for _ in range(learning.updates_after(session.step, new)):
                        drawn = settings.batch_size, settings.prioritized.beta
                        result, newest[0] = learn_from(agent, memory, None, *drawn, now, whole=True)
                        figures.add(result)
                        target.after_update()
                if session.step - reported.value >= settings.report_every or session.step >= settings.total_steps:
                    reported.value = session.step
                    so_far = metrics.take(dropped=order.dropped, lost=workers.lost_count, failed=workers.failed_count)
                    session.report(figures.take_means(), episodes.take(), now, so_far)
                if session.evaluation_is_due:
                    figures.settle()
                session.evaluate_when_due()
                session.checkpoint_when_due()
            session.checkpoint_at_the_end()
    return session.ended


def _made_apart(learner: Any, make_agent: Callable[[], Any]) -> Any:
    with learner.drawing_from(0):
        return make_agent()


def _require_values(agent: Any) -> None:
    algorithm: Any = getattr(agent, "alg", None)
    has_values = isinstance(algorithm, DQN) and algorithm.TEAM is None
    if not (isinstance(agent, Agent) and has_values and agent.takes_batches):
        raise HyperparameterError(
            f"train_apex trains parl.Agent around ApeX, DQN, QRDQN, C51 or Rainbow, got {type(agent).__name__} around "
            f"{type(algorithm).__name__}"
        )
    if algorithm.remembers:
        raise HyperparameterError(
            "train_apex draws single transitions, and the agent's model has a memory: use train_off_policy"
        )


def _workers(
    actors: ActorSystem,
    make_agent: Callable[[], Any],
    env: EnvMaker,
    env_kwargs: Mapping[str, Any],
    settings: ApexSettings,
    seed: int,
    recorded: bool,
) -> EnvironmentWorkers:
    acting = settings.acting
    epsilon = epsilons(settings.epsilon, settings.epsilon_power, acting.n_groups * acting.envs_per_group)

    def spawn(actor: int, lives: Mapping[int, int]) -> ActorHandle:  # noqa: ARG001 - which one it is makes no difference
        return actors.create(
            ApexActor,
            make_agent,
            acting.n_steps,
            settings.n_step,
            epsilon,
            env=env,
            env_kwargs=env_kwargs,
            lives=lives,
            size=acting.envs_per_group,
            seed=seed,
            recorded=recorded,
        )

    return EnvironmentWorkers(spawn, shares_of(acting), settings.timeout_s, settings.max_failures)


def _remember(memory: Any, fragment: FragmentSteps) -> int:
    """Write a fragment into a memory with its priorities, and return its number of steps.

    The last step of each environment counts as cut, so that no n-step return goes beyond the fragment.

    Raises:
        DivergedError: A reward or an observation is infinite or NaN; the fragment was not written.
    """
    require_finite(fragment)
    count, length = map(int, fragment.reward.shape)
    next_obs = map_nested(_shifted, fragment.obs, fragment.last_obs)
    if fragment.final_obs is not None:
        rows = fragment.final_rows

        def with_last(array: Any, last: Any) -> Any:
            array[rows // length, rows % length] = last
            return array

        next_obs = map_nested(with_last, next_obs, fragment.final_obs)
    truncated = fragment.truncated.copy()
    truncated[:, -1] |= ~fragment.terminated[:, -1]
    columns = fragment.obs, fragment.action, fragment.reward, next_obs, fragment.terminated, truncated
    memory.append_batch(*(_by_time(column, memory) for column in columns))
    end = memory.place()["end"]
    slots = np.arange(end - count * length, end) % memory.max_size
    memory.update_priorities(slots, fragment.policy["error"].T.reshape(-1))
    return count * length


def _shifted(obs: Any, last: Any) -> Any:
    """Return the values after each step of `[n, T, ...]`, the last ones from `[n, ...]`."""
    return np.concatenate([obs[:, 1:], np.asarray(last)[:, None]], axis=1)


def _by_time(column: Any, memory: Any) -> Any:
    """Return rows `[T * n, ...]` of `[n, T, ...]`, one step of all environments after another, as a memory has them."""

    def rows(array: NDArray[Any]) -> NDArray[Any]:
        n, length, *rest = array.shape
        return np.swapaxes(array, 0, 1).reshape(length * n, *rest)

    turned = map_nested(rows, column)
    return to_records(turned, memory.obs.dtype) if isinstance(turned, Mapping) else turned
