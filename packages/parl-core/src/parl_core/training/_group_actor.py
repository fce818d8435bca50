"""The object in an actor: groups of environments and, where the actor chooses the actions itself, an agent.

    learner ── begin(group), step(group, actions) ──> GroupActor ──> observations, GroupStep         inference there
    learner ── collect(task, version, weights) ─────> CollectingActor ──> FragmentSteps                   inference here

Both are ordinary classes, which give the same numbers in this process and in others. Random numbers belong to groups,
environments and rounds, never to the actor. After an error a group starts afresh, with new environments and seeds, and
the same in another actor: a group's lives count the actors that have held it before.

An experience defines the columns that an actor-critic records while it acts, and the call that learns from them:

                        the policy says of a step      a fragment's end              the learner calls
    VTraceExperience    logits                         the last observations         agent.learn (IMPALA)
    RolloutExperience   value, log-probability         values of what was led to     agent.learn_rollout (A2C, A3C, PPO)
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parl_core._nested import Observations, rows_of
from parl_core.contracts import batches
from parl_core.contracts.actions import ActionKind
from parl_core.env._steps import ActionRows, GroupSpaces, GroupStep
from parl_core.env._vector_group import EnvGroup, EnvMaker, make_env
from parl_core.errors import HyperparameterError
from parl_core.returns import gae
from parl_core.seeding import make_generator, spawn_seeds
from parl_core.spaces import with_named_parts
from parl_core.training.acting import (
    Acting,
    acts_in_unit_box,
    begun,
    check_masks,
    into_space,
    paired,
    tell_dimensions,
    warn_of_unseen_masks,
)
from parl_core.training.fragment import (
    ActorSeconds,
    FlatWeights,
    FragmentBatch,
    FragmentSteps,
    FragmentWriter,
    Task,
)

__all__ = [
    "ActingExperience",
    "Choice",
    "CollectingActor",
    "Experience",
    "GroupActor",
    "RolloutExperience",
    "VTraceExperience",
    "begun_after",
    "experience_of",
    "stream_seed",
]


class Choice(NamedTuple):
    """A policy's outputs for observations.

    Attributes:
        action: `[n, *act]`, as the policy drew them.
        policy: The policy's other outputs by name, `[n, ...]`.
        state: The state of a model with a memory after the step, `[n, ...]` by name; else empty.
    """

    action: NDArray[Any]
    policy: Mapping[str, NDArray[Any]]
    state: Mapping[str, NDArray[Any]]


def begun_after(state: Mapping[str, NDArray[Any]], step: GroupStep) -> Mapping[str, NDArray[Any]]:
    """Return the state after a step, before the next one: where an episode ended, that of a new one."""
    return begun(state, [ending.env_index for ending in step.endings]) if step.endings else state


class ActingExperience(Protocol):
    """An agent, seen from an actor that collects fragments."""

    def drawing_from(self, seed: int) -> AbstractContextManager[None]:
        """Provide a context in which `choose` draws by `seed`; no other generator changes."""

    def begin(self, rows: int) -> Mapping[str, NDArray[Any]]:
        """Return the state before the first step of an episode, `[rows, ...]` by name; empty without a memory."""

    def choose(self, obs: Observations, state: Mapping[str, NDArray[Any]]) -> Choice:
        """Draw actions for `[n, *obs]`, with the state before them."""

    def complete(self, fragment: FragmentSteps) -> FragmentSteps:
        """Return a fragment with the columns that only the actor can compute, without unneeded ones."""


class Experience(ActingExperience, Protocol):
    """An agent, seen from a loop in which acting and learning are apart."""

    def warm_up(self, obs: Observations) -> None:
        """Pass a batch through the model, so that layers without shapes get them."""

    def learn(self, batch: FragmentBatch, rates: Mapping[str, float]) -> Any:
        """Update the weights and return the results that `read` turns into losses; they may be on the device."""

    def read(self, result: Any) -> Mapping[str, float]:
        """Return the losses of an update by name.

        Raises:
            DivergedError: One is not finite.
        """


class _ActorExperience:
    """The base of both: the agent, and the state of its memory, which the loop holds between calls."""

    METHOD: ClassVar[str]
    """Name of the agent's method that acts."""

    _act: Callable[[Observations], Any] | None = None
    """The method that acts while the model keeps its layers; None while it may change."""

    def __init__(self, agent: Any) -> None:
        self._agent, self._acting = agent, Acting(agent, 1)

    @contextmanager
    def _layers_kept(self) -> Iterator[None]:
        """Provide a context for faster steps, in which the agent does not learn and its model keeps its layers."""

        def first(obs: Observations) -> Any:
            self._act = self._acting.steady(self.METHOD, obs)
            return self._act(obs)

        self._act = first
        try:
            yield
        finally:
            self._act = None

    def _acted(self, obs: Observations, state: Mapping[str, NDArray[Any]]) -> Any:
        """Return the result of the method, with the state before the observations."""
        if state:
            self._acting.state = dict(state)
        return (self._act or getattr(self._acting, self.METHOD))(obs)

    def begin(self, rows: int) -> Mapping[str, NDArray[Any]]:
        return Acting(self._agent, rows).state


class VTraceExperience(_ActorExperience):
    """The experience of IMPALA, whose targets correct for the lag.

    Args:
        agent: `parl.Agent` around IMPALA.
    """

    METHOD = "logits"

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self._rng = np.random.default_rng()
        kind = getattr(getattr(agent, "alg", None), "actions", ActionKind())
        self._is_continuous = kind.continuous

    @contextmanager
    def drawing_from(self, seed: int) -> Iterator[None]:
        before, self._rng = self._rng, np.random.default_rng(seed)
        try:
            with self._layers_kept():
                yield
        finally:
            self._rng = before

    def choose(self, obs: Observations, state: Mapping[str, NDArray[Any]]) -> Choice:
        # Drawn on the host: for a few rows a framework takes five times as long (Gumbel-max: Maddison et al. 2014).
        logits = self._acted(obs, state)
        if self._is_continuous:
            mean, log_std = np.split(logits, 2, axis=1)
            action = (mean + np.exp(log_std) * self._rng.normal(size=mean.shape)).astype(mean.dtype)
        else:
            action = (logits + self._rng.gumbel(size=logits.shape)).argmax(axis=1)
        return Choice(action, {"logits": logits}, self._acting.state)

    def complete(self, fragment: FragmentSteps) -> FragmentSteps:
        return fragment

    def warm_up(self, obs: Observations) -> None:
        self._agent.logits(obs)
        self._agent.value(obs)

    def learn(self, batch: FragmentBatch, rates: Mapping[str, float]) -> Any:
        columns = {
            "obs": batch.obs,
            "action": batch.action,
            "behaviour_logits": batch.policy["logits"],
            "reward": batch.reward,
            "done": batch.terminated | batch.truncated,
        }
        optional = {"last_obs": batch.last_obs}
        if batch.final_obs is not None:
            optional |= {"final_rows": batch.final_rows, "final_obs": batch.final_obs}
        if batch.state:
            optional |= {"state": batch.state, "last_state": batch.last_state}
            optional |= {"final_state": batch.final_state} if batch.final_state else {}
        if getattr(self._agent, "takes_batches", False):
            return self._agent.learn_unread(batches.Fragment.made(**columns, **optional), **rates)
        return self._agent.learn(*columns.values(), **optional, **rates)

    def read(self, result: Any) -> Mapping[str, float]:
        losses, kl = self._agent.read(result) if getattr(self._agent, "takes_batches", False) else result
        return {**losses._asdict(), "kl": kl}


class RolloutExperience(_ActorExperience):
    """The experience of algorithms that learn from advantages: A2C, A3C and PPO.

    Args:
        agent: `parl.Agent` around one of them.
        gamma: Discount of the next step, in [0, 1].
        gae_lambda: The lambda of advantages, in [0, 1].
        passes: `epochs` and `minibatch_size` of its `learn_rollout`; None for the algorithm's defaults.
        rng: The generator that draws the order of minibatches, for algorithms that have some.
    """

    METHOD = "explore"

    def __init__(
        self,
        agent: Any,
        gamma: float,
        gae_lambda: float,
        passes: tuple[int | None, int | None],
        rng: np.random.Generator,
    ) -> None:
        super().__init__(agent)
        self._gamma, self._gae_lambda, self._rng = gamma, gae_lambda, rng
        self._epochs, self._minibatch_size = passes

    @contextmanager
    def drawing_from(self, seed: int) -> Iterator[None]:
        with getattr(self._agent, "drawing_from", lambda _: nullcontext())(seed), self._layers_kept():
            yield

    def choose(self, obs: Observations, state: Mapping[str, NDArray[Any]]) -> Choice:
        value, action, log_prob = self._acted(obs, state)
        return Choice(np.asarray(action), {"value": value, "log_prob": log_prob}, self._acting.state)

    def complete(self, fragment: FragmentSteps) -> FragmentSteps:
        value = fragment.policy["value"]
        next_value = np.empty_like(value)
        next_value[:, :-1] = value[:, 1:]
        next_value[:, -1] = self._acting.value(paired(fragment.last_obs, fragment.last_state))
        if fragment.final_obs is not None:
            values = self._acting.value(paired(fragment.final_obs, fragment.final_state))
            next_value.reshape(-1)[fragment.final_rows] = values
        policy = {**fragment.policy, "next_value": next_value}
        return replace(fragment, policy=policy, last_obs=None, final_obs=None, last_state={}, final_state={})

    def warm_up(self, obs: Observations) -> None:
        with self.drawing_from(0):
            self._agent.explore(obs)
        self._agent.value(obs)

    def learn(self, batch: FragmentBatch, rates: Mapping[str, float]) -> dict[str, float]:
        columns = batch.reward, batch.policy["value"], batch.policy["next_value"], batch.terminated, batch.truncated
        by_time = (column.reshape(-1, batch.n_steps).T for column in columns)
        advantage = gae(*by_time, gamma=self._gamma, lam=self._gae_lambda).T.reshape(-1)
        memory: dict[str, Any] = {}
        if batch.state:
            ended = (batch.terminated | batch.truncated).reshape(-1, batch.n_steps)
            begins = np.concatenate([np.zeros_like(ended[:, :1]), ended[:, :-1]], axis=1).reshape(-1)
            memory = {"state": dict(batch.state), "begins": begins}
        rollout = batches.Rollout.made(
            obs=batch.obs,
            action=batch.action,
            value=batch.policy["value"],
            return_=advantage + batch.policy["value"],
            log_prob=batch.policy["log_prob"],
            advantage=advantage,
            **memory,
        )
        losses: dict[str, float] = self._agent.learn_rollout(
            rollout, epochs=self._epochs, minibatch_size=self._minibatch_size, rng=self._rng, **rates
        )
        return losses

    def read(self, result: Any) -> Mapping[str, float]:
        found: Mapping[str, float] = result
        return found


def experience_of(
    agent: Any,
    *,
    n_steps: int,
    gamma: float,
    gae_lambda: float,
    passes: tuple[int | None, int | None] = (None, None),
    rng: np.random.Generator | None = None,
) -> Experience:
    """Return the experience that fits the agent's algorithm.

    Args:
        agent: The agent that acts, learns, or does both.
        n_steps: Steps of a fragment.
        gamma: See `RolloutExperience`; IMPALA has its own.
        gae_lambda: See `RolloutExperience`.
        passes: See `RolloutExperience`; IMPALA takes one.
        rng: See `RolloutExperience`.

    Raises:
        TypeError: It is neither kind of actor-critic.
        HyperparameterError: IMPALA was made for fragments of another length, or is to learn from a batch in passes.
    """
    algorithm = getattr(agent, "alg", agent)
    own_steps = getattr(algorithm, "sample_batch_steps", None)
    if own_steps is not None:
        if own_steps != n_steps:
            raise HyperparameterError(
                f"the algorithm learns from fragments of sample_batch_steps={own_steps} steps, the loop makes some of "
                f"n_steps={n_steps}: set both to the same number"
            )
        if passes != (None, None):
            raise HyperparameterError(
                f"IMPALA learns once from each batch: leave out epochs and minibatch_size, got {passes}"
            )
        return VTraceExperience(agent)
    if hasattr(algorithm, "learn_rollout") and getattr(algorithm, "TEAM", None) is None:
        return RolloutExperience(agent, gamma, gae_lambda, passes, make_generator(rng))
    raise TypeError(
        f"actors and a learner need an agent with IMPALA, A2C, A3C or PPO; {type(algorithm).__name__} learns in "
        "another way: see train_on_policy, train_off_policy and train_by_episodes"
    )


def stream_seed(*parts: int) -> int:
    """Return a seed in [0, 2**32) that belongs to these whole numbers, at least 0, and to no others."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint32)[0])


def _make_named(env: EnvMaker, /, **env_kwargs: Any) -> Any:
    return with_named_parts(make_env(env, env_kwargs))


class GroupActor:
    """Groups of environments in one actor.

    Args:
        env: The function that makes each environment.
        env_kwargs: The arguments of `make_env`.
        lives: The groups by their numbers in the whole run, with the number of earlier actors of each.
        size: The number of environments of a group.
        seed: The seed of the whole run.
        recorded: Whether the history of each environment's episode is remembered, for `get_state`.
    """

    def __init__(
        self,
        env: EnvMaker,
        env_kwargs: Mapping[str, Any],
        lives: Mapping[int, int],
        size: int,
        seed: int,
        recorded: bool = False,
    ) -> None:
        self._make: Callable[[], EnvGroup] = lambda: EnvGroup(partial(_make_named, env), size, env_kwargs, False)
        self._size, self._seed, self._recorded = size, seed, recorded
        self._open: dict[int, EnvGroup] = {}
        self._spaces: GroupSpaces
        self._begun = dict.fromkeys(lives, 0)
        self._lives = dict(lives)
        self._has_warned = False

    def spaces(self) -> GroupSpaces:
        """Return the spaces of observations and actions; makes the environments of the first group."""
        self._environments(min(self._lives))
        return self._spaces

    def begin(self, group: int, seeds: Sequence[int] | None = None) -> Observations:
        """Make the environments of a group, unless there are some, and reset them: `[size, *obs]`.

        Args:
            group: The number of the group.
            seeds: One per environment; default: seeds derived from the group, its number of actors and its number of
                resets.
        """
        environments = self._environments(group)
        try:
            observations, infos = environments.reset(self._seeds(group) if seeds is None else seeds, None)
            self._check_masks(group, observations, "after a reset")
        except Exception:
            self._give_up(group)
            raise
        if group == 0 and not self._has_warned:  # the actor of this group
            self._has_warned = True
            warn_of_unseen_masks(self._spaces.observation, self._spaces.metadata, dict(infos).get(0, {}))
        return observations

    def step(self, group: int, actions: Any) -> GroupStep:
        """Step the environments of a group once."""
        try:
            step = self._open[group].step(actions)
            self._check_masks_after(group, step)
            return step
        except Exception:
            self._give_up(group)
            raise

    def live(self, group: int, life: int) -> None:
        """Set the number of earlier actors of a group, in a resumed run."""
        self._lives[group] = life

    def get_state(self, group: int) -> dict[str, Any]:
        """Return the state of a group, for `set_state` of another actor.

        Raises:
            CheckpointError: An environment cannot be saved.
        """
        is_open = group in self._open and self._begun[group] > 0
        return {"begun": self._begun[group], "environments": self._open[group].get_state() if is_open else None}

    def set_state(self, group: int, state: Mapping[str, Any]) -> None:
        """Bring a group to the state of the saved one.

        Raises:
            CheckpointError: An environment reached another observation.
        """
        if state["environments"] is not None:
            self.begin(group)
            try:
                self._open[group].set_state(state["environments"])
            except Exception:
                self._give_up(group)
                raise
        self._begun[group] = state["begun"]

    def get_statistics(self, group: int) -> list[Any]:
        """Return the state of each environment of a group that outlasts an episode."""
        return self._environments(group).get_statistics()

    def set_statistics(self, group: int, states: Sequence[Any]) -> None:
        """Restore the result of `get_statistics`; a reset must follow."""
        self._environments(group).set_statistics(states)

    def close(self) -> None:
        """Close all environments."""
        for group in list(self._open):
            self._give_up(group)

    def _environments(self, group: int) -> EnvGroup:
        if group not in self._open:
            environments = self._make()
            self._spaces = environments.open()
            if self._recorded:
                environments.record()
            self._open[group] = environments
        return self._open[group]

    def _check_masks(self, group: int, observations: Observations, when: str) -> None:
        if isinstance(self._spaces.action, gymnasium.spaces.Discrete):
            check_masks(observations, True, when, group * self._size)

    def _check_masks_after(self, group: int, step: GroupStep) -> None:
        self._check_masks(group, step.observations, "after the step just taken")

    def _give_up(self, group: int) -> None:
        with suppress(Exception):  # any exception: the reason for closing the group matters more
            self._open.pop(group).close()

    def _seeds(self, group: int) -> list[int]:
        again = self._lives[group], self._begun[group]
        self._begun[group] += 1
        seed = stream_seed(self._seed, *again) if any(again) else self._seed
        return spawn_seeds(seed, (group + 1) * self._size)[-self._size :]


class CollectingActor(GroupActor):
    """A group actor with an agent, which chooses the actions of whole fragments.

    Args:
        make_agent: The function that makes the agent; it is called here.
        n_steps: Steps of a fragment.
        gamma: See `RolloutExperience`.
        gae_lambda: See `RolloutExperience`.
        groups_arguments: The arguments of `GroupActor`.
    """

    def __init__(
        self, make_agent: Callable[[], Any], n_steps: int, gamma: float, gae_lambda: float, **groups_arguments: Any
    ) -> None:
        super().__init__(**groups_arguments)
        self._make_agent = make_agent
        self._n_steps, self._gamma, self._gae_lambda = n_steps, gamma, gae_lambda
        self._agent: Any = None
        self._experience: ActingExperience
        self._valid: Callable[[Any], Any]
        self._version = -1
        self._obs: dict[int, Observations] = {}
        self._state: dict[int, Mapping[str, NDArray[Any]]] = {}
        self._idle_since = time.perf_counter()

    def collect(
        self, task: Task, version: int, weights: Mapping[str, NDArray[Any]] | FlatWeights | None
    ) -> FragmentSteps:
        """Take `n_steps` steps in all environments of a group.

        Args:
            task: The fragment to make.
            version: The version of the weights.
            weights: The weights of that version; None if an earlier call had them.
        """
        began = time.perf_counter()
        idle = began - self._idle_since
        try:
            if self._agent is None:
                self._set_up()
            if weights is not None:
                self._agent.set_weights(weights.by_name() if isinstance(weights, FlatWeights) else weights)
                self._version = version
            with self._experience.drawing_from(stream_seed(self._seed, *task, self._lives[task.group])):
                fragment, env = self._collect(task)
        finally:
            self._idle_since = time.perf_counter()
        return replace(fragment, seconds=ActorSeconds(env, self._idle_since - began - env, idle))

    def begin(self, group: int, seeds: Sequence[int] | None = None) -> Observations:
        """Do as `GroupActor` does; fragments continue from there."""
        self._obs[group] = super().begin(group, seeds)
        self._state.pop(group, None)
        return self._obs[group]

    def live(self, group: int, life: int) -> None:
        """Set the number and make the agent, whose initial weights may come from the process's generators."""
        super().live(group, life)
        if self._agent is None:
            self._set_up()

    def get_state(self, group: int) -> dict[str, Any]:
        """Do as `GroupActor` does, with the state of a model with a memory."""
        memory = self._state.get(group)
        return super().get_state(group) | ({"memory": dict(memory)} if memory else {})

    def set_state(self, group: int, state: Mapping[str, Any]) -> None:
        """Do as `GroupActor` does; fragments continue from there."""
        super().set_state(group, state)
        if group in self._obs:
            self._obs[group] = self._open[group].observations()
        if "memory" in state:
            self._state[group] = state["memory"]

    def _collect(self, task: Task) -> tuple[FragmentSteps, float]:
        group, clock = task.group, time.perf_counter
        if group not in self._obs:
            self.begin(group)
        obs = self._obs[group]
        before = self._state[group] if group in self._state else self._experience.begin(rows_of(obs))
        step_all, choose, valid = self._open[group].step, self._experience.choose, self._valid
        writer, env = FragmentWriter(task, self._n_steps), 0.0
        try:
            while not writer.is_full:
                action, policy, after = choose(obs, before)
                acted = clock()
                step = step_all(ActionRows(valid(action)))
                env += clock() - acted
                self._check_masks_after(group, step)
                writer.add(self._version, obs, action, policy, step, before, after)
                obs, before = step.observations, begun_after(after, step) if after else after
        except Exception:
            self._give_up(group)
            raise
        self._obs[group], self._state[group] = obs, before
        return self._experience.complete(writer.finish(obs, before)), env

    def _give_up(self, group: int) -> None:
        self._state.pop(group, None)
        self._obs.pop(group, None)  # so that it begins again
        super()._give_up(group)

    def _set_up(self) -> None:
        spaces = self.spaces()
        agent = self._make_agent()
        tell_dimensions(agent, spaces.observation)
        self._valid = into_space(spaces.action, unit_box=acts_in_unit_box(agent), one_by_one=True)
        self._experience = experience_of(agent, n_steps=self._n_steps, gamma=self._gamma, gae_lambda=self._gae_lambda)
        self._agent = agent
