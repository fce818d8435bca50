"""The off-policy loop: act, remember, learn from what was remembered.

    envs <──── actions ──── TransitionCollector ───> replay memory ── sample ──> agent.learn
         ─── observations ──>                              ^── TD errors (prioritised) ──┘
    callbacks <── Update, Evaluation, Ended ── train_off_policy

Nothing here knows a framework, where the environments live, or what is written to disk.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import gymnasium
import numpy as np

from parl_core.checks import check_fraction, check_int
from parl_core.env.autoreset import require_vector
from parl_core.errors import HyperparameterError
from parl_core.replay import Prioritized, ReplayMemory
from parl_core.replay.records import from_records, storage_of
from parl_core.schedules import Schedule, as_schedule, linear
from parl_core.seeding import make_generator
from parl_core.training.acting import OffPolicyAgent
from parl_core.training.checkpoints import Checkpoints, LoopParts, SavedAgent
from parl_core.training.course import Course
from parl_core.training.evaluation import Evaluator
from parl_core.training.events import Callback, Ended
from parl_core.training.figures import Figures, Latest
from parl_core.training.requirements import require_off_policy
from parl_core.training.transitions import TransitionCollector

__all__ = ["OffPolicySettings", "make_memory", "train_off_policy"]

Scheduled = float | Schedule


@dataclass(frozen=True)
class OffPolicySettings:
    """Hyper-parameters of the loop; a step is one step of one environment.

    Attributes:
        total_steps: over all environments.
        learning_starts: steps with random actions before the first update.
        train_every: steps between two phases of learning.
        gradient_steps: updates of one phase; `gradient_steps / train_every` updates a step, however many environments
            there are.
        batch_size: transitions of one update.
        memory_size: transitions that are remembered.
        n_step: rewards that are summed before bootstrapping, with the algorithm's gamma.
        prioritized: draw transitions by their TD errors; its beta goes linearly to 1 over `total_steps`.
        exploration: options of the agent's `sample`, such as `{"epsilon": linear(1.0, 0.05, 10_000)}` or
            `{"noise": 0.1}`; numbers, or schedules of the steps taken.
        rates: learning rates by the names that the algorithm's `learn` has for them, such as
            `{"learning_rate": linear(1e-3, 0.0, 50_000)}`; default: those it was made with.
        report_every: steps between two reports to the callbacks, which get mean losses.
    """

    total_steps: int = 1_000_000
    learning_starts: int = 1_000
    train_every: int = 1
    gradient_steps: int = 1
    batch_size: int = 256
    memory_size: int = 1_000_000
    n_step: int = 1
    prioritized: Prioritized | None = None
    exploration: Mapping[str, Scheduled] = field(default_factory=dict)
    rates: Mapping[str, Scheduled] = field(default_factory=dict)
    report_every: int = 1_000

    def __post_init__(self) -> None:
        for name in ("total_steps", "train_every", "gradient_steps", "batch_size", "n_step", "report_every"):
            check_int(name, getattr(self, name))
        check_int("learning_starts", self.learning_starts, at_least=0)
        if check_int("memory_size", self.memory_size) < self.batch_size:
            raise HyperparameterError(
                f"memory_size is {self.memory_size}, less than batch_size {self.batch_size}: make it larger"
            )

    def with_total_steps(self, total_steps: int) -> "OffPolicySettings":
        """The same with another budget of environment steps, of which at most half pass before the first update."""
        return replace(self, total_steps=total_steps, learning_starts=min(self.learning_starts, total_steps // 2))

    def updates_after(self, step: int, new: int) -> int:
        """How many updates are due when the last `new` steps have led to `step`."""
        if step < max(self.learning_starts, 1):
            return 0
        return self.gradient_steps * (step // self.train_every - (step - new) // self.train_every)


def train_off_policy(
    agent: OffPolicyAgent,
    envs: Any,
    settings: OffPolicySettings,
    *,
    memory: Any = None,
    evaluator: Evaluator | None = None,
    evaluate_every: int = 5_000,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    seed: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Train an agent on remembered experience until the budget is used up or a callback stops it.

    Args:
        agent: acts and learns; `parl.Agent` around DQN, DDPG, TD3, SAC or OAC is one.
        envs: a vector environment, such as `make_vector_env` gives; the caller closes it.
        settings: hyper-parameters of the loop.
        memory: where transitions go, and what is there already is learned from, too; default: a new `make_memory`.
        evaluator: plays episodes with the agent as it is now; None evaluates never.
        evaluate_every: environment steps between evaluations.
        callbacks: told of every report and evaluation, and once of the end, however it comes.
        checkpoints: writes checkpoints, and lets a resumed run go on from its newest one; None for neither.
        seed: of the environments, random actions and batches. (The agent's own sampling has its own.)
        clock: seconds from an arbitrary zero.

    Returns:
        how it ended.

    Raises:
        HyperparameterError: the environment's spaces do not suit, or the algorithm learns otherwise, or it has no such
            exploration or rates, or the memory was made for another number of environments.
        CheckpointError: a checkpoint cannot be written, or the run's cannot be used.
        DivergedError: a loss is not finite; callbacks that save have not saved since.
        KeyboardInterrupt: after the callbacks were told.
        Exception: what an environment, the agent or a callback raised, after the callbacks were told.
    """
    require_vector(envs)
    require_off_policy(agent, settings.exploration, settings.rates)
    rng = make_generator(seed)
    exploration = {name: as_schedule(value) for name, value in settings.exploration.items()}
    rates = {name: as_schedule(value) for name, value in settings.rates.items()}
    beta = None
    if settings.prioritized is not None:
        beta = linear(settings.prioritized.beta, 1.0, settings.total_steps)
    with Course(settings.total_steps, callbacks, evaluator, evaluate_every, clock, checkpoints=checkpoints) as course:
        course.watch(envs, seed)
        if memory is None:
            memory = make_memory(agent, envs, settings, rng)
        _check_turns(memory, envs.num_envs)
        collector = TransitionCollector(agent, envs, memory, rng, seed)
        figures = Figures(agent.alg.FIGURES)
        reported = Latest(0)
        others = {"rng": rng, "figures": figures, "reported": reported}
        course.keep(LoopParts(cast("SavedAgent", agent), collector, memory, others))
        while course.goes_on:
            explore = {name: value(course.step) for name, value in exploration.items()}
            at_random = course.step < settings.learning_starts
            new = collector.collect(at_random=at_random, exploration=explore)
            course.advance(new)
            now = {name: rate(course.step) for name, rate in rates.items()}
            for _ in range(settings.updates_after(course.step, new)):
                drawn = settings.batch_size, None if beta is None else beta(course.step)
                figures.add(_learn(agent, memory, *drawn, now))
            if course.step - reported.value >= settings.report_every or course.step >= settings.total_steps:
                reported.value = course.step
                course.report(figures.take_means(), collector.take_episodes(), {**explore, **now})
            course.evaluate_when_due()
            course.checkpoint_when_due()
    return course.ended


def make_memory(
    agent: OffPolicyAgent, envs: Any, settings: OffPolicySettings, rng: np.random.Generator
) -> ReplayMemory:
    """A replay memory for the spaces of `envs`.

    Args:
        agent: whose gamma n-step returns are discounted with.
        envs: the vector environment.
        settings: say its size and how it draws.
        rng: draws from it.

    Raises:
        HyperparameterError: it cannot hold such observations or actions.
    """
    obs_shape, obs_dtype = storage_of(envs.single_observation_space)
    space, n = envs.single_action_space, envs.num_envs
    if not isinstance(space, (gymnasium.spaces.Discrete, gymnasium.spaces.Box)):
        raise HyperparameterError(f"off-policy loops act in Discrete and Box spaces, got {space}")
    return ReplayMemory(
        settings.memory_size + -settings.memory_size % n,
        obs_shape,
        space.shape if isinstance(space, gymnasium.spaces.Box) else 0,
        obs_dtype=obs_dtype,
        n_envs=n,
        n_step=settings.n_step,
        gamma=check_fraction(f"gamma of {type(agent.alg).__name__}", getattr(agent.alg, "gamma", None)),
        sampling=settings.prioritized,
        seed=rng,
    )


def _check_turns(memory: Any, num_envs: int) -> None:
    """Refuse a memory that would sum up the rewards of several environments as if they were the steps of one."""
    if getattr(memory, "n_step", 1) > 1 and getattr(memory, "n_envs", num_envs) != num_envs:
        raise HyperparameterError(
            f"the memory has n_step={memory.n_step} and n_envs={memory.n_envs}, but {num_envs} environments are "
            f"stepped: make it with n_envs={num_envs}, so that n-step returns stay within each of them"
        )


def _learn(agent: OffPolicyAgent, memory: Any, batch_size: int, beta: float | None, rates: Mapping[str, float]) -> Any:
    batch = memory.sample(batch_size, beta=beta)
    result = agent.learn(
        from_records(batch.obs),
        batch.action,
        batch.reward,
        from_records(batch.next_obs),
        batch.terminal,
        weights=batch.weight,
        discount=batch.discount,
        **rates,
    )
    if batch.weight is not None:
        memory.update_priorities(batch.index, result[-1])
    return result
