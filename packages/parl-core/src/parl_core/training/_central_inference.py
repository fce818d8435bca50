"""The source of fragments when the learner chooses the actions: GA3C (Babaeizadeh et al. 2017, arXiv:1611.06256).

    actors: begin, step ── observations ──> groups ready within max_wait_s ──> one pass ── actions ──> actors

Actors only have environments, so only observations and actions are sent, and one large pass through the network
takes the place of many small ones. Deviation from the paper: predictor and trainer take turns in one thread, so that
weights never change within a pass, and no locks are needed.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parl_core._nested import Observations, map_nested, rows_of
from parl_core.env._steps import ActionRows, Ending, GroupSpaces, GroupStep
from parl_core.training._fragment_source import Arrival, Call, EnvironmentWorkers, FragmentOrder
from parl_core.training._group_actor import Experience, begun_after, stream_seed
from parl_core.training.acting import acts_in_unit_box, into_space
from parl_core.training.fragment import FragmentSteps, FragmentWriter, Task

__all__ = ["CentralInference", "GroupSlot", "step_of", "step_state"]


_ARRAYS = ("observations", "rewards", "terminated", "truncated")


class GroupChoice(NamedTuple):
    """The choices for a group: the arguments of `FragmentWriter.add` without the environments' results."""

    version: int
    obs: Observations
    action: NDArray[Any]
    policy: Mapping[str, NDArray[Any]]
    before: Mapping[str, NDArray[Any]] = {}
    after: Mapping[str, NDArray[Any]] = {}


class GroupSlot:
    """A group of environments as the learner sees it: it waits for actions, or its step is in progress."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        """Number of fragments to make after the present one."""
        self.writer: FragmentWriter | None = None
        self.obs: Observations = None
        """`[size, *obs]`, the observations for the next actions; None before the environments have begun."""
        self.state: Mapping[str, NDArray[Any]] = {}
        """The state before `obs` of a model with a memory, `[size, ...]` by name."""
        self.chosen: GroupChoice | None = None
        """The step in progress."""
        self.under_way = False

    @property
    def waits(self) -> bool:
        """Return whether it waits for actions."""
        return self.writer is not None and not self.under_way and self.obs is not None

    def begin_again(self, obs: Observations, state: Mapping[str, NDArray[Any]]) -> None:
        """Drop the fragment that was being made, because the environments were reset."""
        if self.writer is not None:
            self.writer = FragmentWriter(self.writer.task, self.writer.n_steps)
        self.obs, self.state, self.chosen, self.under_way = obs, state, None, False

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "tasks": list(self.tasks),
            "writer": None if self.writer is None else self.writer.get_state(),
            "obs": self.obs,
            "state": dict(self.state),
            "chosen": None if self.chosen is None else tuple(self.chosen),
            "under_way": self.under_way,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `get_state`."""
        self.tasks = deque(Task(*task) for task in state["tasks"])
        self.writer = None if state["writer"] is None else FragmentWriter.from_state(state["writer"])
        self.obs, self.state, self.under_way = state["obs"], state.get("state", {}), state["under_way"]
        self.chosen = None if state["chosen"] is None else GroupChoice(*state["chosen"])


def step_state(step: GroupStep) -> dict[str, Any]:
    """Return the state for a checkpoint of an answer that was not written down yet; infos are of no use here."""
    endings = [[e.env_index, e.observation, e.episode_return, e.length] for e in step.endings]
    return {name: getattr(step, name) for name in _ARRAYS} | {"endings": endings}


def step_of(state: Mapping[str, Any]) -> GroupStep:
    """Return the answer that `step_state` described."""
    endings = [Ending(index, obs, {}, total, length) for index, obs, total, length in state["endings"]]
    return GroupStep(**{name: state[name] for name in _ARRAYS}, endings=endings, infos=[])


class CentralInference:
    """A source of fragments of `GroupActor`s that chooses their actions.

    Args:
        workers: The actors.
        order: The order of fragments and batches.
        agent: The agent that chooses the actions.
        experience: The experience of the agent.
        spaces: The spaces of one environment.
        groups: The number of groups.
        n_steps: Steps of a fragment.
        max_wait_s: The time for which a pass waits for more environments after the first is ready; None waits for all,
            which makes it deterministic.
        seed: The seed of the actions.
    """

    def __init__(
        self,
        workers: EnvironmentWorkers,
        order: FragmentOrder,
        agent: Any,
        experience: Experience,
        spaces: GroupSpaces,
        groups: int,
        n_steps: int,
        max_wait_s: float | None,
        seed: int,
    ) -> None:
        self._workers, self._order, self._experience = workers, order, experience
        self._n_steps, self._max_wait_s = n_steps, max_wait_s
        self._valid = into_space(spaces.action, unit_box=acts_in_unit_box(agent), one_by_one=True)
        self._slots = [GroupSlot() for _ in range(groups)]
        self._version = -1
        self._seed, self._passes = seed, 0
        self._held: list[Arrival] = []  # answers that are to be taken in where the loop would have waited for them

    def publish(self, version: int) -> None:
        self._version = version
        self._ask()

    def take(self) -> list[FragmentSteps]:
        while (fragments := self._order.take(self._version)) is None:
            self._ask()
            self._gather()
            self._act()
        return fragments

    def settle(self) -> None:
        while self._workers.is_busy:
            for arrival in self._workers.arrivals():
                if arrival.failed:
                    self._take_in(arrival)
                else:
                    self._held.append(arrival)

    def begin_again(self, observations: Sequence[Observations]) -> None:
        self._held = []
        for slot, obs in zip(self._slots, observations, strict=True):
            slot.begin_again(obs, self._experience.begin(rows_of(obs)))

    def get_state(self) -> dict[str, Any]:
        held = [
            [call.group, call.method, answer if call.method == "begin" else step_state(answer)]
            for call, answer, _ in self._held
        ]
        slots = [slot.get_state() for slot in self._slots]
        return {"order": self._order.get_state(), "passes": self._passes, "seats": slots, "held": held}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._order.set_state(state["order"])
        self._passes = state["passes"]
        for slot, saved in zip(self._slots, state["seats"], strict=True):
            slot.set_state(saved)
        self._held = [
            Arrival(Call(group, method), answer if method == "begin" else step_of(answer), False)
            for group, method, answer in state["held"]
        ]

    def _ask(self) -> None:
        for task in self._order.due(self._version):
            self._slots[task.group].tasks.append(task)
        for group, slot in enumerate(self._slots):
            if slot.writer is None and slot.tasks:
                slot.writer = FragmentWriter(slot.tasks.popleft(), self._n_steps)
                if slot.obs is None:
                    self._submit(group, "begin")

    def _submit(self, group: int, method: str, *args: Any) -> None:
        self._slots[group].under_way = True
        self._workers.submit(Call(group, method, (group, *args)))

    def _gather(self) -> None:
        """Receive observations of at least one group, and of others that arrive before the timeout."""
        if not any(slot.under_way for slot in self._slots):
            return
        deadline = self._deadline() if any(slot.waits for slot in self._slots) else None
        while any(slot.under_way for slot in self._slots):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            arrivals, self._held = self._held or self._workers.arrivals(left), []
            for arrival in arrivals:
                self._take_in(arrival)
            if not arrivals or (deadline is not None and time.monotonic() >= deadline):
                return
            deadline = deadline or self._deadline()

    def _deadline(self) -> float | None:
        return None if self._max_wait_s is None else time.monotonic() + self._max_wait_s

    def _take_in(self, arrival: Arrival) -> None:
        group, slot = arrival.call.group, self._slots[arrival.call.group]
        slot.under_way = False
        if arrival.failed:  # the fragment begins once more, with new environments
            assert slot.writer is not None
            slot.writer, slot.obs, slot.chosen = FragmentWriter(slot.writer.task, self._n_steps), None, None
            self._submit(group, "begin")
        elif arrival.call.method == "begin":
            slot.obs, slot.state = arrival.answer, self._experience.begin(rows_of(arrival.answer))
        else:
            self._write(slot, group, arrival.answer)

    def _write(self, slot: GroupSlot, group: int, step: GroupStep) -> None:
        assert slot.writer is not None
        assert slot.chosen is not None
        chosen = slot.chosen
        slot.writer.add(chosen.version, chosen.obs, chosen.action, chosen.policy, step, chosen.before, chosen.after)
        slot.obs, slot.state = step.observations, begun_after(chosen.after, step)
        if slot.writer.is_full:
            fragment = self._experience.complete(slot.writer.finish(slot.obs, slot.state))
            self._workers.succeeded(group)
            self._order.arrived(fragment)
            slot.writer = FragmentWriter(slot.tasks.popleft(), self._n_steps) if slot.tasks else None

    def _act(self) -> None:
        """Make one pass for all groups that wait for actions."""
        ready = [group for group, slot in enumerate(self._slots) if slot.waits]
        if not ready:
            return
        obs = [self._slots[group].obs for group in ready]
        states = [self._slots[group].state for group in ready]
        bounds = np.cumsum([0, *map(rows_of, obs)])
        together, state = (map_nested(lambda *parts: np.concatenate(parts), *each) for each in (obs, states))
        with self._experience.drawing_from(stream_seed(self._seed, self._passes)):
            choice = self._experience.choose(together, state)
        self._passes += 1
        valid = self._valid(choice.action)
        for group, start, stop in zip(ready, bounds, bounds[1:], strict=False):
            slot = self._slots[group]
            rows = slice(start, stop)
            policy, after = (map_nested(itemgetter(rows), named) for named in (choice.policy, choice.state))
            slot.chosen = GroupChoice(self._version, slot.obs, choice.action[rows], policy, slot.state, after)
            self._submit(group, "step", ActionRows(valid[rows]))
