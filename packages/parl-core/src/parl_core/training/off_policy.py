"""The off-policy loop: act, store transitions, learn from them.

    envs <──── actions ──── TransitionCollector ───> replay memory ── sample ──> agent.learn
         ─── observations ──>                              ^── TD errors (prioritised) ──┘
    callbacks <── Update, Evaluation, Ended ── train_off_policy

The `next_obs` of a transition is the observation after the step: at an episode's end its last observation, not the next
one's first. Observations that are dictionaries are stored as records, one array in the memory:

    {"camera": [n, 3, 84, 84] uint8, "speed": [n] float32}  <──>  [n] records with the fields camera and speed

With a vector in `NormalizeVector` the memory holds the environments' own observations and rewards; a batch is
normalised when it is drawn.

A memory made with `obs_dim=()` and the dtype of `storage_of(space)` stores, draws and saves such records like numbers.
This module does not depend on a framework, on the location of environments, or on files.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.wrappers.vector import NormalizeObservation, NormalizeReward
from numpy.typing import NDArray

from parl_core._nested import Observations, holds_tensors, map_nested, rows_of
from parl_core.algorithm import Algorithm
from parl_core.checks import check_fraction, check_int, check_non_negative
from parl_core.contracts._base import check_by_name, check_rates, check_stages, unused_settings
from parl_core.contracts.actions import ActionKind, mask_of
from parl_core.contracts.batches import Batch, Sequences, Transitions
from parl_core.env.autoreset import in_same_step, require_vector
from parl_core.env.normalize import NormalizeVector
from parl_core.errors import HyperparameterError
from parl_core.replay import (
    EpisodeReplayMemory,
    FrameReplayMemory,
    HindsightReplayMemory,
    Prioritized,
    ReplayMemory,
    SequenceReplayMemory,
    outcome_of,
)
from parl_core.replay._memory import Outcome
from parl_core.replay._sampled_ring import SampledRing
from parl_core.schedules import Scheduled, as_schedule, linear
from parl_core.seeding import make_generator
from parl_core.spaces import action_size, has_agents, kind_of, named_space, with_named_parts
from parl_core.training._requirements import (
    RewardWatch,
    TargetWatch,
    UpdateWatch,
    require_agents,
    require_goals,
    require_kinds,
    require_off_policy,
    try_out,
    warn_of_missing_bounds,
)
from parl_core.training.acting import (
    Acting,
    OffPolicyAgent,
    acts_in_unit_box,
    check_masks,
    check_observations,
    check_rewards,
    first_reset,
    into_space,
    last_observations,
    reset_with,
    tell_dimensions,
)
from parl_core.training.checkpoints import Checkpoints, LoopParts, SavedAgent
from parl_core.training.evaluation import Evaluator
from parl_core.training.events import Callback, Ended, Episode, LoopCounter, MetricMeans, RunningEpisodes
from parl_core.training.session import Session

__all__ = [
    "OffPolicySettings",
    "TransitionCollector",
    "check_memory",
    "from_records",
    "learn_from",
    "make_memory",
    "random_actions",
    "storage_of",
    "to_records",
    "train_off_policy",
]


_CHANGING = (gymnasium.vector.VectorObservationWrapper, gymnasium.vector.VectorRewardWrapper)
_NORMALISING = (NormalizeObservation, NormalizeReward)


def storage_of(space: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype in which observations of a space are stored; floating-point numbers as float32.

    Raises:
        HyperparameterError: They are neither an array nor a dictionary of arrays, or the name of a part is empty.
    """
    if isinstance(space, gymnasium.spaces.Dict) and space.spaces:
        if "" in space.spaces:  # numpy then names the field of a record itself
            raise HyperparameterError(
                f"a replay memory needs a name of each part of an observation, got an empty one in {space}: rename it"
            )
        fields = []
        for name, part in space.spaces.items():
            shape, dtype = storage_of(part)
            fields.append((name, dtype, shape))
        return (), np.dtype(fields, align=True)
    if space.shape is None or space.dtype is None or isinstance(space, gymnasium.spaces.Dict):
        raise HyperparameterError(
            f"a replay memory holds observations that are an array or a dictionary of arrays, got {space}; wrap the "
            "environment in gymnasium.wrappers.FlattenObservation"
        )
    dtype = np.dtype(space.dtype)
    return tuple(space.shape), np.dtype(np.float32) if dtype.kind == "f" else dtype


def to_records(obs: Observations, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return observations `[n, ...]` in the form that a memory stores: arrays unchanged, dictionaries as `[n]` records.

    Raises:
        KeyError: A field is not among the observations.
    """
    if dtype.names is None or not isinstance(obs, Mapping):
        return np.asarray(obs)
    parts = {name: to_records(obs[name], dtype[name].base) for name in dtype.names}
    records = np.empty(len(next(iter(parts.values()))), dtype)
    for name, part in parts.items():
        records[name] = part
    return records


def from_records(array: NDArray[Any]) -> Observations:
    """Convert records back to observations (see `to_records`); the arrays of a dictionary are views of the records."""
    if array.dtype.names is None:
        return array
    return {name: from_records(array[name]) for name in array.dtype.names}


class TransitionCollector:
    """Steps a vector environment with an agent, and keeps its state between calls.

    Args:
        agent: The agent that chooses the actions.
        envs: A vector environment; it is reset here.
        memory: The replay memory for the transitions.
        rng: The generator of random actions.
        seed: The seed that the environments' seeds are derived from; None takes it from the system.

    Raises:
        HyperparameterError: The agent's actions do not fit the environment's action space, or the environments return
            tensors.
        ModelContractError: The agent's model has another number of outputs than the space has actions.
    """

    def __init__(
        self, agent: OffPolicyAgent, envs: Any, memory: Any, rng: np.random.Generator, seed: int | None = None
    ) -> None:
        self._envs = with_named_parts(in_same_step(envs))
        self._normalized = _normalizer_of(self._envs)
        tell_dimensions(agent, self._envs.single_observation_space)
        self._memory, self._rng = memory, rng
        self._unit_box = acts_in_unit_box(agent)
        self._into_space = into_space(envs.single_action_space, unit_box=self._unit_box)
        if self._unit_box:
            warn_of_missing_bounds(type(agent.alg).__name__, envs.single_action_space)
        self._running = RunningEpisodes(envs.num_envs)
        self._episodes: list[Episode] = []
        self._acting = Acting(agent, self._envs.num_envs)
        self._watch = RewardWatch(agent) if has_agents(self._envs.single_observation_space) else None
        self._obs = first_reset(self._envs, seed)
        if holds_tensors(self._obs):
            raise HyperparameterError(
                f"replay memories store arrays, and {type(envs.unwrapped).__name__} gives tensors: wrap it so that it "
                "gives arrays, or use an algorithm of train_on_policy, such as PPO, which takes tensors as they are"
            )
        self._raw = self._unscaled()
        try_out(agent, self._obs, envs.single_action_space, self._into_space)

    def collect(self, *, at_random: bool, exploration: Mapping[str, float]) -> int:
        """Take one step in every environment.

        Args:
            at_random: Whether actions are drawn uniformly from all, without the agent.
            exploration: Options of the agent's `sample`.

        Returns:
            The number of steps.

        Raises:
            DivergedError: A reward or an observation is infinite or NaN; the message names its environment.
            EnvironmentContractError: A mask allows no action; the message names its environment.
        """
        obs, before = self._obs, self._acting.state
        raw = self._raw  # a copy, because the vector may reuse the arrays
        kept = raw.copy() if isinstance(raw, np.ndarray) else self._as_stored(raw)
        if at_random:
            if before:
                self._acting.sample(obs, **exploration)  # for the state after the step
            action = random_actions(self._envs.single_action_space, obs, self._rng, unit_box=self._unit_box)
        else:
            action = self._acting.sample(obs, **exploration)
        self._obs, reward, terminated, truncated, infos = self._envs.step(self._into_space(action))
        check_rewards(reward, "of the step just taken")
        ended = np.flatnonzero(terminated | truncated)
        now, normalized = self._unscaled(), self._normalized
        given = reward if normalized is None else normalized.raw_reward
        next_obs = now
        if ended.size:
            last = last_observations(infos)
            if normalized is not None and normalized.ob_rms is not None:
                last = normalized.raw_final_obs
            next_obs = _with_last(now, ended, last)
        check_observations(next_obs, "after the step just taken")
        if ended.size:
            check_observations(now, "at the beginning of an episode")
        if isinstance(self._envs.single_action_space, gymnasium.spaces.Discrete):
            check_masks(self._obs, True, "after the step just taken")
            if ended.size:
                check_masks(next_obs, ~np.asarray(terminated), "after the step just taken")
        if self._watch is not None:
            self._watch.compare(given, next_obs["rewards"], kept["alive"])
        remembered = {"state": before} if before else {}
        # for several agents, whose continuous actions are stored concatenated
        if action.ndim > 2 and action.dtype.kind == "f":
            action = action.reshape(len(action), -1)
        stored = kept, action, given, self._as_stored(next_obs), terminated, truncated
        self._memory.append_batch(*stored, **remembered)
        if ended.size:
            self._acting.begin(ended)
        self._raw = now
        self._episodes += self._running.step(reward, ended, infos)
        return len(reward)

    def take_episodes(self) -> tuple[Episode, ...]:
        """Return the episodes that ended since the last call."""
        episodes, self._episodes = tuple(self._episodes), []
        return episodes

    def begin_again(self, seeds: Sequence[int]) -> None:
        """Reset all environments with these seeds, one each, and forget the episodes that were running."""
        self._obs = reset_with(self._envs, seeds)
        self._raw = self._unscaled()
        self._acting.begin()
        self._running.begin_again()

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint; the environments' own state is not in it."""
        ended = [[episode.episode_return, episode.length] for episode in self._episodes]
        raw = {} if self._normalized is None else {"raw": self._raw}
        return {"obs": self._obs, **raw, **self._acting.get_state(), **self._running.get_state(), "ended": ended}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned; the environments must be in their state of that time."""
        self._obs = state["obs"]
        self._raw = state.get("raw", self._obs)
        self._acting.set_state(state)
        self._running.set_state(state)
        self._episodes = [Episode(*ended) for ended in state["ended"]]

    def _unscaled(self) -> Any:
        """Return the newest observations as a memory holds them: not normalised."""
        normalized = self._normalized
        return self._obs if normalized is None or normalized.ob_rms is None else normalized.raw_obs

    def _as_stored(self, obs: Any) -> Any:
        return to_records(obs, self._memory.obs.dtype) if isinstance(obs, Mapping) else obs


def _with_last(now: Any, ended: NDArray[np.int64], final_obs: Any) -> Any:
    """Return the observations that a step led to: where an episode ended its last one."""

    def with_last(first: Any, *last: Any) -> Any:
        patched = first.copy()
        patched[ended] = last
        return patched

    return map_nested(with_last, now, *final_obs[ended])


def _normalizer_of(envs: Any) -> NormalizeVector | None:
    """Return the `NormalizeVector` of a vector, whose memory holds raw observations.

    Raises:
        HyperparameterError: Something around it changes observations or rewards once more, or Gymnasium's wrappers or
            `wrap_rms` normalise them, in the vector or around it: then the memory would hold numbers of statistics that
            are no longer true.
    """
    inside = dict(getattr(envs, "metadata", None) or {}).get("running_statistics")
    if inside is not None:
        raise HyperparameterError(
            f"{inside} inside the vector normalises by statistics that change later, so what the memory holds becomes "
            "wrong: leave it out and use parl.env.NormalizeVector(envs), which stores them raw"
        )
    outside: list[Any] = []
    while isinstance(envs, gymnasium.vector.VectorWrapper):
        if isinstance(envs, NormalizeVector):
            changed = [layer for layer in outside if isinstance(layer, _CHANGING)]
            if changed:
                raise HyperparameterError(
                    f"{type(changed[0]).__name__} is around NormalizeVector: a replay memory holds what "
                    f"NormalizeVector was given, so put it inside: NormalizeVector({type(changed[0]).__name__}(envs))"
                )
            return envs
        if isinstance(envs, _NORMALISING):
            raise HyperparameterError(
                f"{type(envs).__module__}.{type(envs).__name__} normalises by statistics that change later, so "
                "what the memory holds becomes wrong: use parl.env.NormalizeVector(envs), which stores them raw"
            )
        outside.append(envs)
        envs = envs.env
    return None


def random_actions(space: Any, obs: Any, rng: np.random.Generator, *, unit_box: bool = False) -> NDArray[Any]:
    """Return uniform actions as a policy counts them, one for each row of `obs`.

    Args:
        space: The environment's action space.
        obs: `[n, ...]`, or a dictionary of arrays, whose `action_mask` is respected.
        rng: The generator that draws them.
        unit_box: Whether a box is [-1, 1] for the policy.

    Raises:
        HyperparameterError: There are no uniform actions in this space.
    """
    n = rows_of(obs)
    if isinstance(space, gymnasium.spaces.MultiDiscrete) and space.nvec.ndim == 1:  # one choice per agent
        mask = mask_of(obs)
        if mask is None:
            return np.asarray(rng.integers(space.nvec, size=(n, len(space.nvec))))
        drawn = np.where(np.asarray(mask, np.bool_), rng.random((n, len(space.nvec), int(space.nvec.max()))), -1.0)
        return np.asarray(drawn.argmax(axis=2))
    if isinstance(space, gymnasium.spaces.Discrete):
        mask = mask_of(obs)
        if mask is None:
            return rng.integers(int(space.n), size=n)
        drawn = np.where(np.asarray(mask, np.bool_), rng.random((n, int(space.n))), -1.0)
        return np.asarray(drawn.argmax(axis=1))  # each possible action is as often the largest
    is_float = isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating)
    if unit_box and (is_float or isinstance(space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple))):
        return rng.uniform(-1.0, 1.0, (n, *cast("tuple[int, ...]", _action_shape(space)))).astype(np.float32)
    if isinstance(space, gymnasium.spaces.Box) and unit_box:
        return rng.uniform(-1.0, 1.0, (n, *space.shape)).astype(np.float32)
    if isinstance(space, gymnasium.spaces.Box) and space.is_bounded():
        return rng.uniform(space.low, space.high, (n, *space.shape)).astype(space.dtype)
    raise HyperparameterError(
        f"off-policy loops act in Discrete spaces (DQN) and in Boxes with finite bounds (SAC and its like); got {space}"
    )


@dataclass(frozen=True)
class OffPolicySettings:
    """Hyper-parameters of the loop; a step is one step of one environment.

    Attributes:
        total_steps: Number of steps over all environments.
        learning_starts: Steps with random actions before the first update.
        train_every: Steps between two phases of learning.
        gradient_steps: Updates of one phase; there are `gradient_steps / train_every` updates per step for any number
            of environments.
        batch_size: Transitions of one update; episodes for algorithms that learn from whole episodes (QMIX, VDN without
            `sequence_length`).
        memory_size: Number of transitions in the replay memory.
        n_step: Rewards that are summed before bootstrapping, with the algorithm's gamma.
        sequence_length: The steps of a sequence that a model with a memory learns from; default 20. An update learns
            from sequences with at most `batch_size` such steps in all, and at least from one. Without this setting,
            QMIX learns from whole episodes.
        burn_in: The steps before each sequence that bring the state of a model with a memory up to date; default 10.
        prioritized: The settings of draws by TD errors; its beta goes linearly to 1 over `total_steps`.
        hindsight: The share of drawn transitions whose goal is replaced by one that was achieved later, for
            environments with goals (Gymnasium's GoalEnv), in [0, 1]; None for no hindsight. 0.8 is usual.
        exploration: Options of the agent's `sample`, such as `{"epsilon": linear(1.0, 0.05, 10_000)}` or
            `{"noise": 0.1}`; numbers, or schedules of the steps taken.
        rates: Learning rates by the names of the arguments of the algorithm's `learn`, such as
            `{"learning_rate": linear(1e-3, 0.0, 50_000)}`; default: the rates of its constructor.
        report_every: Steps between two reports to the callbacks, which get mean losses.
    """

    total_steps: int = 1_000_000
    learning_starts: int = 1_000
    train_every: int = 1
    gradient_steps: int = 1
    batch_size: int = 256
    memory_size: int = 1_000_000
    n_step: int = 1
    sequence_length: int | None = None
    burn_in: int | None = None
    prioritized: Prioritized | None = None
    hindsight: float | None = None
    exploration: Mapping[str, Scheduled] = field(default_factory=dict)
    rates: Mapping[str, Scheduled] = field(default_factory=dict)
    report_every: int = 1_000

    def __post_init__(self) -> None:
        for name in ("total_steps", "train_every", "gradient_steps", "batch_size", "n_step", "report_every"):
            check_int(name, getattr(self, name))
        check_int("learning_starts", self.learning_starts, at_least=0)
        if self.sequence_length is not None:
            check_int("sequence_length", self.sequence_length)
        if self.burn_in is not None:
            check_int("burn_in", self.burn_in, at_least=0)
        if self.prioritized is not None and not isinstance(self.prioritized, Prioritized):
            raise HyperparameterError(
                f"prioritized must be parl_core.replay.Prioritized(), got {self.prioritized!r}: alpha and beta are its "
                "settings; None draws uniformly"
            )
        check_by_name("exploration", self.exploration, '{"epsilon": 0.1}')
        for name, check in (("epsilon", check_fraction), ("noise", check_non_negative)):
            if name in self.exploration:
                check_stages(f"exploration's {name}", self.exploration[name], check)
        check_rates(self.rates)
        if self.hindsight is not None:
            check_fraction("hindsight", self.hindsight)
            if self.n_step > 1 or self.prioritized is not None:
                raise HyperparameterError(
                    "hindsight computes rewards of single steps that are drawn uniformly: leave out "
                    f"{'prioritized' if self.n_step == 1 else f'n_step={self.n_step}'}"
                )
        if check_int("memory_size", self.memory_size) < self.batch_size:
            raise HyperparameterError(
                f"memory_size is {self.memory_size}, less than batch_size {self.batch_size}: make it larger"
            )

    def with_total_steps(self, total_steps: int) -> "OffPolicySettings":
        """Return the same with another budget of environment steps; at most half pass before the first update."""
        return replace(self, total_steps=total_steps, learning_starts=min(self.learning_starts, total_steps // 2))

    def updates_after(self, step: int, new: int) -> int:
        """Return the number of updates for the last `new` steps up to `step`."""
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
    """Train an agent on replayed experience until the budget is used up or a callback stops it.

        agent = parl.Agent(parl.algorithms.DQN(parl.networks.QNetwork(act_dim=2)), seed=0)
        settings = training.OffPolicySettings(total_steps=600, memory_size=600, learning_starts=100)
        with training.make_vector_env("CartPole-v1", num_envs=1) as envs:
            ended = training.train_off_policy(agent, envs, settings, seed=0)

    Args:
        agent: The agent that acts and learns; `parl.Agent` around DQN, DDPG, TD3, SAC or OAC is one.
        envs: A vector environment, such as that of `make_vector_env`; the caller closes it.
        settings: Hyper-parameters of the loop.
        memory: The replay memory, made for `settings`; the loop also learns from its existing transitions.
            Default: the result of `make_memory`.
        evaluator: The function that plays episodes with the present agent; None: no evaluations.
        evaluate_every: Environment steps between evaluations.
        callbacks: The callbacks, called for every report and evaluation, and once at the end, however the loop ends.
        checkpoints: The object that writes checkpoints, and lets a resumed run continue from its newest one; None for
            neither.
        seed: The seed of the environments, random actions and batches. (The agent's own sampling has its own.)
        clock: The function that returns seconds from an arbitrary zero.

    Returns:
        how the loop ended.

    Raises:
        HyperparameterError: The spaces of the environments do not suit the agent, the algorithm does not learn
            off-policy or lacks the given exploration or rates, or the memory was made for another number of
            environments, other settings or another discount.
        CheckpointError: A checkpoint cannot be written, or the run's cannot be used.
        DivergedError: A loss is not finite; callbacks that save have not saved since.
        KeyboardInterrupt: Ctrl-C was pressed; raised after the callbacks were called.
        Exception: One of an environment, the agent or a callback, raised after the callbacks were called.
    """
    require_kinds("train_off_policy", agent, settings, OffPolicySettings)
    require_vector(envs)
    require_off_policy(agent, settings.exploration, settings.rates)
    require_agents(agent, envs.single_observation_space)
    rng = make_generator(seed)
    exploration = {name: as_schedule(value) for name, value in settings.exploration.items()}
    rates = {name: as_schedule(value) for name, value in settings.rates.items()}
    beta = None
    if settings.prioritized is not None:
        beta = linear(settings.prioritized.beta, 1.0, settings.total_steps)
    with Session(settings.total_steps, callbacks, evaluator, evaluate_every, clock, checkpoints=checkpoints) as session:
        session.watch(envs, seed)
        normalized = _normalizer_of(envs)
        if memory is None:
            memory = make_memory(agent, envs, settings, rng)
        check_memory(agent, memory, settings, envs.num_envs, normalized)
        collector = TransitionCollector(agent, envs, memory, rng, seed)
        whole = bool(getattr(agent, "takes_batches", False))
        newest: list[Batch | None] = [None]
        read = (lambda unread: cast("Any", agent).read(unread, newest[0])) if whole else None
        figures = MetricMeans(agent.alg.FIGURES, read)
        reported = LoopCounter(0)
        others = {"rng": rng, "figures": figures, "reported": reported}
        target, watch = TargetWatch(agent), UpdateWatch(memory, settings)
        session.keep(LoopParts(cast("SavedAgent", agent), collector, memory, others))
        while session.is_running:
            explore = {name: value(session.step) for name, value in exploration.items()}
            at_random = session.step < settings.learning_starts
            new = collector.collect(at_random=at_random, exploration=explore)
            session.advance(new)
            now = {name: rate(session.step) for name, rate in rates.items()}
            due = settings.updates_after(session.step, new)
            for _ in range(due if due and watch.is_ready(session.step) else 0):
                drawn = settings.batch_size, None if beta is None else beta(session.step)
                result, newest[0] = learn_from(agent, memory, normalized, *drawn, now, whole=whole)
                figures.add(result)
                target.after_update()
            if session.step - reported.value >= settings.report_every or session.step >= settings.total_steps:
                reported.value = session.step
                session.report(figures.take_means(), collector.take_episodes(), {**explore, **now})
            if session.evaluation_is_due:
                figures.settle()
            session.evaluate_when_due()
            session.checkpoint_when_due()
    return session.ended


def make_memory(
    agent: OffPolicyAgent, envs: Any, settings: OffPolicySettings, rng: np.random.Generator
) -> ReplayMemory:
    """Return a replay memory for the spaces of `envs`.

    Args:
        agent: The agent; its gamma discounts n-step returns.
        envs: The vector environment.
        settings: The memory's size and way of drawing.
        rng: The generator that draws from it.

    Raises:
        HyperparameterError: A memory cannot hold such observations or actions.
    """
    normalized = _normalizer_of(envs)
    observed = envs.single_observation_space if normalized is None else normalized.raw_observation_space
    obs_shape, obs_dtype = storage_of(named_space(observed))
    space, n = envs.single_action_space, envs.num_envs
    size = settings.memory_size + -settings.memory_size % n
    gamma = check_fraction(f"gamma of {type(agent.alg).__name__}", getattr(agent.alg, "gamma", None))
    state = Acting(agent, 1).state
    _refuse_unused(agent, settings, normalized)
    if settings.hindsight is not None:
        if state:
            raise HyperparameterError(
                "hindsight changes goals of single steps, which a model with a memory does not learn from: leave it out"
            )
        require_goals(settings.hindsight, observed)
        return HindsightReplayMemory(
            size,
            obs_shape,
            _action_shape(space),
            obs_dtype=obs_dtype,
            outcome=_outcome_in(envs),
            share=settings.hindsight,
            n_envs=n,
            seed=rng,
        )
    shape, act_dtype = _action_shape(space, teams=_learns_teams(agent)), None
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        act_dtype = np.int32
    by_sequence = bool(state) or _learns_sequences(agent)
    if not by_sequence:
        return ReplayMemory(
            size,
            obs_shape,
            shape,
            obs_dtype=obs_dtype,
            act_dtype=act_dtype,
            n_envs=n,
            n_step=settings.n_step,
            gamma=gamma,
            sampling=settings.prioritized,
            seed=rng,
        )
    shapes = {name: array.shape[1:] for name, array in state.items()}
    if _learns_sequences(agent) and settings.sequence_length is None:
        return EpisodeReplayMemory(
            size,
            obs_shape,
            shape,
            gamma=gamma,
            state=shapes,
            obs_dtype=obs_dtype,
            act_dtype=act_dtype,
            n_envs=n,
            seed=rng,
        )
    return SequenceReplayMemory(
        size,
        obs_shape,
        shape,
        state=shapes,
        length=20 if settings.sequence_length is None else settings.sequence_length,
        burn_in=(10 if state else 0) if settings.burn_in is None else settings.burn_in,
        n_step=settings.n_step,
        gamma=gamma,
        obs_dtype=obs_dtype,
        act_dtype=act_dtype,
        n_envs=n,
        seed=rng,
    )


def _outcome_in(envs: Any) -> Outcome:
    """Return a function that computes rewards of goals as the environments of a vector do.

    Raises:
        HyperparameterError: No environment of the vector is accessible, or it has no `compute_reward`.
    """
    while isinstance(envs, gymnasium.vector.VectorWrapper):
        envs = envs.env
    if isinstance(envs, gymnasium.vector.SyncVectorEnv):
        return outcome_of(envs.envs[0])
    make = getattr(envs, "make_one", None)  # a local environment needs no messages
    if make is None:
        raise HyperparameterError(
            f"hindsight computes rewards of other goals, which {type(envs).__name__} cannot compute: make the "
            "vector with parl.env.make_vector_env, or pass memory=, a HindsightReplayMemory with the outcome_of(env)"
        )
    return outcome_of(make())


def _learns_teams(agent: Any) -> bool:
    """Return whether the algorithm learns from joint observations of several agents."""
    return bool(getattr(agent.alg, "TEAM", None))


def _learns_sequences(agent: Any) -> bool:
    """Return whether the algorithm learns from sequences whether or not its model has a memory, as QMIX does."""
    return bool(getattr(agent.alg, "NEEDS_SEQUENCES", False))


def _action_shape(space: Any, *, teams: bool = False) -> int | tuple[int, ...]:
    """Return the shape in which actions are remembered; 0 for a choice.

    Args:
        space: The space of actions.
        teams: Whether there may be one choice per agent.

    Raises:
        HyperparameterError: Off-policy algorithms do not act in such a space.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return 0
    if teams and isinstance(space, gymnasium.spaces.MultiDiscrete):
        return tuple(space.nvec.shape)
    if isinstance(space, gymnasium.spaces.Box):
        return (prod(space.shape),) if np.issubdtype(space.dtype, np.floating) else tuple(space.shape)
    if kind_of(space) != ActionKind(continuous=True):
        raise HyperparameterError(f"off-policy loops act in Discrete and Box spaces, got {space}")
    return (action_size(space),)


def check_memory(
    agent: Any,
    memory: Any,
    settings: OffPolicySettings,
    num_envs: int,
    normalized: NormalizeVector | None = None,
    asked: Collection[str] = (),
) -> None:
    """Reject a replay memory that does not fit an agent or the settings of a loop.

    Args:
        agent: The agent that learns.
        memory: The replay memory; a custom class is only checked as far as it has the attributes.
        settings: The settings of the loop; settings with their defaults are only checked if `asked` names them.
        num_envs: Number of environments that take turns.
        normalized: The vector environment that normalises batches.
        asked: Settings with which the memory must agree in any case.

    Raises:
        HyperparameterError: They differ; the message names the difference and a remedy.
    """
    _refuse_unused(agent, settings, normalized)
    _check_sequences(agent, memory, settings, normalized)
    _check_turns(memory, num_envs)
    _check_asked(agent, memory, settings, asked)


def _refuse_unused(agent: Any, settings: OffPolicySettings, normalized: NormalizeVector | None) -> None:
    """Reject settings that the algorithm does not use."""
    asked = {
        "n_step": settings.n_step > 1,
        "prioritized": settings.prioritized is not None,
        "hindsight": settings.hindsight is not None,
        "normalize": normalized is not None,
    }
    unused = unused_settings(type(agent.alg)) if isinstance(agent.alg, Algorithm) else frozenset()
    if wrong := [name for name, wanted in asked.items() if wanted and name in unused]:
        raise HyperparameterError(
            f"{type(agent.alg).__name__} learns from {'episodes' if _learns_sequences(agent) else 'steps'} of several "
            "agents, drawn uniformly and as they were observed: leave out "
            f"{', '.join('NormalizeVector' if name == 'normalize' else name for name in wrong)}"
        )


_ASKED = {
    "n_step": "n_step",
    "prioritized": "sampling",
    "hindsight": "share",
    "sequence_length": "length",
    "burn_in": "burn_in",
}
"""Settings of the loop, and the arguments of memories of the same meaning."""


def _check_asked(agent: Any, memory: Any, settings: OffPolicySettings, always: Collection[str]) -> None:
    """Reject a memory whose sampling differs from the settings, or its discount from the algorithm's."""
    for name, argument in _ASKED.items():
        asked = getattr(settings, name)
        has = getattr(memory, argument, None if isinstance(memory, SampledRing) else asked)
        if asked != has and (name in always or asked != getattr(OffPolicySettings, name)):
            raise HyperparameterError(
                f"the settings have {name}={asked}, and the {type(memory).__name__} has {argument}={has}, by which it "
                f"draws: make both the same, or leave out one of {name} and memory"
            )
    gamma, own = getattr(memory, "gamma", None), getattr(agent.alg, "gamma", None)
    discounts = getattr(memory, "n_step", 1) > 1 or hasattr(memory, "sample_sequences")
    if discounts and None not in (gamma, own) and gamma != own:
        raise HyperparameterError(
            f"the {type(memory).__name__} discounts by gamma={gamma}, and {type(agent.alg).__name__} was made with "
            f"gamma={own}: give both the same"
        )


def _check_turns(memory: Any, num_envs: int) -> None:
    """Reject a memory that does not accept these environments' steps, or would mix several environments."""
    n_envs, n_step = getattr(memory, "n_envs", num_envs), getattr(memory, "n_step", 1)
    joins = n_step > 1 or hasattr(memory, "sample_sequences")
    joins = joins or isinstance(memory, (FrameReplayMemory, HindsightReplayMemory))
    if n_envs != num_envs and (joins or num_envs % n_envs):
        kind = f"the {type(memory).__name__} has " + (f"n_step={n_step} and " if n_step > 1 else "")
        raise HyperparameterError(
            f"{kind}n_envs={n_envs}, but {num_envs} environments are stepped: make it with n_envs={num_envs}, so that "
            "it knows the steps of each of them"
        )


def _check_sequences(agent: Any, memory: Any, settings: OffPolicySettings, normalized: NormalizeVector | None) -> None:
    """Reject a memory without sequences for a recurrent model, and settings of sequences for other models."""
    remembers, has_sequences = Acting(agent, 1).has_memory, hasattr(memory, "sample_sequences")
    if has_sequences and (normalized is not None or settings.prioritized is not None):
        raise HyperparameterError(
            "sequences are drawn uniformly and as they were observed: with a model that has a memory leave out "
            f"{'NormalizeVector' if normalized is not None else 'prioritized'}"
        )
    if _learns_sequences(agent):
        if not has_sequences:
            raise HyperparameterError(
                f"{type(agent.alg).__name__} learns from sequences, and a {type(memory).__name__} draws single "
                "transitions: leave it out, or make a parl_core.replay.EpisodeReplayMemory"
            )
        if remembers and isinstance(memory, EpisodeReplayMemory) and not memory.state_shapes:
            shapes = {name: array.shape[1:] for name, array in agent.initial_state(1).items()}
            raise HyperparameterError(
                f"the agent's model has a memory: make the EpisodeReplayMemory with state={shapes}, or leave it out"
            )
        return
    if remembers and not has_sequences:
        raise HyperparameterError(
            f"the agent's model has a memory, and a {type(memory).__name__} draws single transitions: leave it out, or "
            "make a parl_core.replay.SequenceReplayMemory"
        )
    given = settings.sequence_length is not None or settings.burn_in is not None
    if not remembers and (has_sequences or given):
        raise HyperparameterError(
            "sequence_length, burn_in and SequenceReplayMemory are for models with a memory, and this agent's has "
            'none: leave them out, or make the model with parl.networks.for_spaces(..., "q", memory="lstm")'
        )


def _learn_sequences(
    agent: Any, memory: EpisodeReplayMemory | SequenceReplayMemory, batch_size: int, rates: Mapping[str, float]
) -> tuple[Any, Sequences]:
    """Draw sequences, take one step, and return the loss, which is not read yet, and the batch."""
    columns = memory.sample_sequences(memory.count_for(batch_size))
    for name in ("obs", "before_obs"):
        if name in columns:
            columns[name] = from_records(columns[name])
    batch = Sequences.made(**columns)
    result = agent.learn_unread(batch, **rates)
    return result[: len(agent.alg.FIGURES)], batch


def learn_from(
    agent: OffPolicyAgent,
    memory: Any,
    normalized: NormalizeVector | None,
    batch_size: int,
    beta: float | None,
    rates: Mapping[str, float],
    *,
    whole: bool,
) -> tuple[Any, Batch | None]:
    """Draw a batch, take one step, and return its result, with the figures that are not read yet, and the batch.

    Args:
        agent: The agent that learns.
        memory: The memory that the batch is drawn from.
        normalized: The vector environment that normalises the batch.
        batch_size: Number of transitions.
        beta: Beta of prioritised replay.
        rates: Learning rates.
        whole: Whether the agent takes the batch as one object.

    Raises:
        DivergedError: A loss of prioritised replay is not finite; the memory keeps its priorities.
    """
    if isinstance(memory, (EpisodeReplayMemory, SequenceReplayMemory)):
        return _learn_sequences(agent, memory, batch_size, rates)
    batch = memory.sample(batch_size, beta=beta)
    obs, reward, next_obs = from_records(batch.obs), batch.reward, from_records(batch.next_obs)
    if normalized is not None:
        obs, next_obs = normalized.normalize_obs(obs), normalized.normalize_obs(next_obs)
        summed = sum(float(agent.alg.gamma) ** k for k in range(getattr(memory, "n_step", 1)))
        reward = np.asarray(normalized.normalize_reward(reward, summed), np.float32)
    given = {"weights": batch.weight, "discount": batch.discount}
    extra = getattr(batch, "extra", None) or {}
    transitions = None
    if whole:
        columns = {"obs": obs, "action": batch.action, "reward": reward, "next_obs": next_obs}
        optional = {name: column for name, column in given.items() if column is not None}
        optional |= {"extra": extra} if extra else {}
        transitions = Transitions.made(**columns, terminal=batch.terminal, **optional)
        result: Any = cast("Any", agent).learn_unread(transitions, **rates)
    else:
        result = agent.learn(obs, batch.action, reward, next_obs, batch.terminal, **given, **extra, **rates)
    if batch.weight is not None:
        *figures, errors = cast("Any", agent).read(result, transitions) if whole else result
        memory.update_priorities(batch.index, errors)
        result = tuple(figures)
    return result, transitions
