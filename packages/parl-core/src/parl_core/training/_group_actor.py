"""The object in an actor: groups of environments and, where the actor chooses the actions itself, an agent.

    learner ── begin(group), step(group, actions) ──> GroupActor ──> observations, GroupStep         inference there
    learner ── collect(task, version, weights) ─────> CollectingActor ──> FragmentSteps                   inference here

Both are ordinary classes, which give the same numbers in this process and in others. What is drawn belongs to groups,
environments and rounds, never to the actor. After an error a group starts afresh, with new environments and seeds, and
the same in another actor: a group's lives count the actors that have held it before.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parl_core._nested import Observations, rows_of
from parl_core.env._steps import GroupSpaces, GroupStep, Rows
from parl_core.env._vector_group import EnvGroup, EnvMaker, make_env
from parl_core.seeding import spawn_seeds
from parl_core.spaces import with_named_parts
from parl_core.training._experience import ActingExperience, begun_after, experience_of
from parl_core.training.acting import acts_in_unit_box, into_space, tell_dimensions
from parl_core.training.fragment import ActorSeconds, FragmentSteps, FragmentWriter, Task

__all__ = ["CollectingActor", "GroupActor", "stream_seed"]


def stream_seed(*parts: int) -> int:
    """Return a seed in [0, 2**32) that belongs to these whole numbers, at least 0, and to no others."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint32)[0])


def _make_named(env: EnvMaker, **env_kwargs: Any) -> Any:
    return with_named_parts(make_env(env, env_kwargs))


class GroupActor:
    """Groups of environments in one actor.

    Args:
        env: what each environment is.
        env_kwargs: for `make_env`.
        lives: the groups, as they are numbered in the whole run, and how many actors have held each before.
        size: environments of a group.
        seed: of the whole run.
        recorded: remember how each environment's episode came about, for `get_state`.
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

    def spaces(self) -> GroupSpaces:
        """Return what the environments observe and what they do; makes those of the first group."""
        self._environments(min(self._lives))
        return self._spaces

    def begin(self, group: int, seeds: Sequence[int] | None = None) -> Observations:
        """Make the environments of a group, unless there are some, and reset them: `[size, *obs]`.

        Args:
            group: which one.
            seeds: one per environment; default: those that belong to the group, its lives and its beginnings.
        """
        environments = self._environments(group)
        try:
            observations, _ = environments.reset(self._seeds(group) if seeds is None else seeds, None)
        except Exception:
            self._give_up(group)
            raise
        return observations

    def step(self, group: int, actions: Any) -> GroupStep:
        """Step the environments of a group once."""
        try:
            return self._open[group].step(actions)
        except Exception:
            self._give_up(group)
            raise

    def live(self, group: int, life: int) -> None:
        """Set how many actors have held a group before, in a resumed run."""
        self._lives[group] = life

    def get_state(self, group: int) -> dict[str, Any]:
        """Return where a group is, for `set_state` of another actor.

        Raises:
            CheckpointError: an environment cannot be saved.
        """
        is_open = group in self._open and self._begun[group] > 0
        return {"begun": self._begun[group], "environments": self._open[group].get_state() if is_open else None}

    def set_state(self, group: int, state: Mapping[str, Any]) -> None:
        """Bring a group to where the saved one was.

        Raises:
            CheckpointError: an environment did not come to the same observation.
        """
        if state["environments"] is not None:
            self.begin(group)
            try:
                self._open[group].set_state(state["environments"])
            except Exception:
                self._give_up(group)
                raise
        self._begun[group] = state["begun"]

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

    def _give_up(self, group: int) -> None:
        self._open.pop(group).close()

    def _seeds(self, group: int) -> list[int]:
        again = self._lives[group], self._begun[group]
        self._begun[group] += 1
        seed = stream_seed(self._seed, *again) if any(again) else self._seed
        return spawn_seeds(seed, (group + 1) * self._size)[-self._size :]


class CollectingActor(GroupActor):
    """A group actor with an agent, which chooses the actions of whole fragments.

    Args:
        make_agent: makes the agent; called here.
        n_steps: steps of a fragment.
        gamma: see `RolloutExperience`.
        gae_lambda: see `RolloutExperience`.
        groups_arguments: those of `GroupActor`.
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

    def collect(self, task: Task, version: int, weights: Mapping[str, NDArray[Any]] | None) -> FragmentSteps:
        """Take `n_steps` steps in all environments of a group.

        Args:
            task: which fragment.
            version: of the weights.
            weights: those of that version; None where they were given with an earlier call.
        """
        began = time.perf_counter()
        idle = began - self._idle_since
        try:
            if self._agent is None:
                self._set_up()
            if weights is not None:
                self._agent.set_weights(weights)
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
        """Do as `GroupActor` does, and make the agent: its first weights may be drawn from the process's generators."""
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
                step = step_all(Rows(valid(action)))
                env += clock() - acted
                writer.add(self._version, obs, action, policy, step, before, after)
                obs, before = step.observations, begun_after(after, step)
        except Exception:
            self._give_up(group)
            raise
        self._obs[group], self._state[group] = obs, before
        return self._experience.complete(writer.finish(obs, before)), env

    def _give_up(self, group: int) -> None:
        self._state.pop(group, None)
        self._obs.pop(group, None)  # so that it is begun again
        super()._give_up(group)

    def _set_up(self) -> None:
        spaces = self.spaces()
        agent = self._make_agent()
        tell_dimensions(agent, spaces.observation)
        self._valid = into_space(spaces.action, unit_box=acts_in_unit_box(agent), one_by_one=True)
        self._experience = experience_of(agent, n_steps=self._n_steps, gamma=self._gamma, gae_lambda=self._gae_lambda)
        self._agent = agent
