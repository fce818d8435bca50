"""The source of fragments when the actors choose the actions themselves, and the order in which fragments are due.

take(version) ── order.due ──> actors: collect(task, version, weights) ──> order.arrived ──> order.take ──> fragments
publish(version): the weights are stored once a host, and an actor gets them with its next call

An order does not depend on actors or time; it only counts:

    ArrivalOrder   in the order of arrival; an actor has its next call before it has ended the last
    RoundOrder     fragment i = round * groups + group is learned from in update i // per_batch, of any actor, with the
                   weights of `max_lag` updates before: the same numbers, however many actors there are

Both limit the policy lag, the number of updates between acting and learning, to `max_lag`: only so many fragments are
under way or wait to be learned from, (max_lag + 1) * per_batch. That is the back-pressure: actors that are faster than
the learner wait. `ArrivalOrder` drops fragments of an actor so slow that they exceed the lag all the same.

Checkpoints access the environments of all actors, and their calls in progress, through `ActorEnvironments`:

    exact     deterministic runs: wait for what is in progress, then save fragments, environments and counters
    others    nothing waits; a resumed run begins new episodes, with unused seeds

Which fragments a checkpoint finds made is a matter of time where the order is that of arrival, so there is nothing that
could be had again.

Environments are in the workers of a `WorkerPool`:

    workers.submit(Call) ──> worker of that group ──> workers.arrivals() ──> Arrival: an answer, or that it has failed

The loop repeats failed calls; an environment that raised is made again. A group that fails too often in
a row ends the run with its last error.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from parl_core._closing import ClosingContext
from parl_core._nested import Observations
from parl_core.actors import ActorHandle
from parl_core.errors import CheckpointError, LostActor
from parl_core.training.events import LoopCounter
from parl_core.training.fragment import FlatWeights, FragmentSteps, Task
from parl_core.worker_pool import Work, WorkerPool

__all__ = [
    "ActorEnvironments",
    "ActorFragmentSource",
    "Arrival",
    "ArrivalOrder",
    "AsynchronousCollector",
    "Call",
    "DeterministicCollector",
    "EnvironmentWorkers",
    "FragmentOrder",
    "FragmentSource",
    "RoundOrder",
]


_OUTSIDE = 10
"""The number of losses, with causes outside the environments, that count as one other failure."""


class Call(NamedTuple):
    """A call of a method, for a group of environments."""

    group: int
    method: str
    args: tuple[Any, ...] = ()
    tag: Any = None
    """A value of the caller that is returned with the answer."""


class Arrival(NamedTuple):
    """The outcome of a call."""

    call: Call
    answer: Any
    failed: bool


class EnvironmentWorkers(ClosingContext):
    """Workers with groups of environments each.

    Args:
        spawn: The function that makes a worker from its number; its second argument has the worker's groups, with the
            number of workers have held each.
        groups_of: The groups of each worker.
        timeout_s: Maximum time of a call; None for no limit.
        max_failures: The number of times in a row that the calls of one group may fail before the last error is raised;
            ten times as often if the environments cannot be the cause (`LostActor.from_outside`).
    """

    def __init__(
        self,
        spawn: Callable[[int, Mapping[int, int]], ActorHandle],
        groups_of: Sequence[Sequence[int]],
        timeout_s: float | None,
        max_failures: int,
    ) -> None:
        self.lost_count = 0
        """Number of workers that ended, or were ended because they did not answer in time."""
        self.failed_count = 0
        """Calls in which an environment raised."""
        self._max_failures = max_failures
        self._groups_of = groups_of
        self._worker_of = {group: worker for worker, groups in enumerate(groups_of) for group in groups}
        # counts of workers in earlier parts of the run
        self._earlier = dict.fromkeys(sorted(self._worker_of), 0)
        self._failures: Counter[int] = Counter()
        self._losses_from_outside: Counter[int] = Counter()
        self._pool = WorkerPool(
            lambda worker: spawn(worker, self._predecessors_with(worker)),
            len(groups_of),
            self,
            timeout_s=timeout_s,
            runs="an environment",
            closing="close",
        )
        self._pool.start()

    def worker_of(self, group: int) -> tuple[int, int]:
        """Return the worker that has this group, and the number of its predecessors."""
        worker = self._worker_of[group]
        return worker, self._pool.restarts[worker]

    @property
    def lives(self) -> list[int]:
        """The number of workers that have held each group before the present one."""
        return [life + self._pool.restarts[self._worker_of[group]] for group, life in self._earlier.items()]

    def continue_counts(self, lives: Sequence[int]) -> None:
        """Continue the counts of workers per group from the end of a run with the same number of groups."""
        for group, life in enumerate(lives):
            self._earlier[group] = life - self._pool.restarts[self._worker_of[group]]
        self.call_all([Call(group, "live", (group, life)) for group, life in enumerate(lives)])

    @property
    def is_busy(self) -> bool:
        """True while calls are in progress."""
        return self._pool.is_busy

    def call(self, group: int, method: str) -> Any:
        """Call a method of the worker of this group until it succeeds; no other call may be in progress."""
        (answer,) = self.call_all([Call(group, method)])
        return answer

    def call_all(self, calls: Sequence[Call]) -> list[Any]:
        """Make calls, each until it succeeds, and return their results; no other call may be in progress.

        Raises:
            CheckpointError: A call raised it, which no second one would mend.
        """
        answers: list[Any] = [None] * len(calls)
        for index, call in enumerate(calls):
            self.submit(call._replace(tag=index))
        while self.is_busy:
            for call, answer, failed in self.arrivals():
                if isinstance(answer, CheckpointError):
                    raise answer
                if failed:
                    self.submit(call)
                else:
                    answers[call.tag] = answer
        return answers

    def succeeded(self, group: int) -> None:
        """Reset the failures of a group, because a call of it has succeeded."""
        self._failures[group] = self._losses_from_outside[group] = 0

    def submit(self, call: Call) -> None:
        """Send a call; calls for one worker are run in order."""
        self._pool.submit(Work(self._worker_of[call.group], call.method, call.args, call))

    def arrivals(self, timeout_s: float | None = None) -> list[Arrival]:
        """Wait for answers.

        Args:
            timeout_s: The maximum time to wait; None for no limit.

        Returns:
            at least one, except after the timeout or if nothing is in progress.

        Raises:
            Exception: The exception of a call, if its group has failed too often in a row; a note names the group.
        """
        answers = self._pool.gather(timeout_s)
        for work, error, failed in answers:
            if failed and not isinstance(error, LostActor):
                self.failed_count += 1
                self._count_failure(work.tag, error)
        return [Arrival(work.tag, value, failed) for work, value, failed in answers]

    def lost(self, slot: int, work: Work | None, error: LostActor) -> None:  # noqa: ARG002
        """Count the loss of a worker, and the failure of the call that it was running."""
        self.lost_count += 1
        if work is not None:
            self._count_failure(work.tag, error)

    def not_spawned(self, slot: int, error: Exception) -> None:  # noqa: ARG002
        """Raise the error of a worker that could not be spawned: a run does not continue with fewer workers."""
        raise error

    def close(self) -> None:
        """Close the environments and end the workers; a second call does nothing."""
        self._pool.stop()

    def _predecessors_with(self, worker: int) -> dict[int, int]:
        return {group: self._earlier[group] + self._pool.restarts[worker] for group in self._groups_of[worker]}

    def _count_failure(self, call: Call, error: Exception) -> None:
        outside = isinstance(error, LostActor) and error.from_outside
        counts, times = (self._losses_from_outside, _OUTSIDE) if outside else (self._failures, 1)
        counts[call.group] += 1
        count, most = counts[call.group], times * self._max_failures
        if count <= most:
            return
        error.add_note(
            f"in {call.method} of worker {self._worker_of[call.group]} for group {call.group} of the environments, "
            f"which has failed {count} times in a row; max_failures={self._max_failures} were allowed"
            + (f", or {most} losses of hosts" if outside else "")
        )
        raise error


class FragmentOrder(Protocol):
    """The order in which fragments are made and learned from."""

    dropped: int
    """Fragments that were too old to be learned from."""

    def due(self, version: int) -> list[Task]:
        """Return the fragments to request at present, with the weights after `version` updates; each only once."""

    def arrived(self, fragment: FragmentSteps) -> None:
        """Accept a requested fragment."""

    def take(self, version: int) -> list[FragmentSteps] | None:
        """Return the fragments of the next batch; None while some are missing."""

    def begin_at(self, version: int) -> None:
        """Continue after `version` updates, with nothing in progress or waiting."""

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, when all requested fragments have arrived."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `get_state`."""


class ArrivalOrder:
    """An order that takes fragments as they arrive.

    Args:
        groups_of: The groups of each actor.
        per_batch: Fragments of one update.
        max_lag: Updates that a fragment's weights may lie behind, at least 0.
        outstanding: Maximum number of requested fragments per actor: one in progress, and others queued.
    """

    def __init__(
        self, groups_of: Sequence[Sequence[int]], per_batch: int, max_lag: int, *, outstanding: int = 2
    ) -> None:
        self.dropped = 0
        self._groups = [deque(groups) for groups in groups_of]
        self._actor_of = {group: actor for actor, groups in enumerate(groups_of) for group in groups}
        self._owed = [0] * len(groups_of)
        self._rounds = dict.fromkeys(self._actor_of, 0)
        self._ready: deque[FragmentSteps] = deque()
        self._per_batch, self._max_lag = per_batch, max_lag
        self._limit = per_batch * (max_lag + 1)
        self._outstanding = outstanding

    def due(self, version: int) -> list[Task]:  # noqa: ARG002 - the order does not depend on it
        tasks = []
        while sum(self._owed) + len(self._ready) < self._limit:
            actor = min(range(len(self._owed)), key=self._owed.__getitem__)
            if self._owed[actor] >= self._outstanding:
                break
            group = self._groups[actor][0]
            self._groups[actor].rotate(-1)
            self._owed[actor] += 1
            tasks.append(Task(group, self._rounds[group]))
            self._rounds[group] += 1
        return tasks

    def arrived(self, fragment: FragmentSteps) -> None:
        self._owed[self._actor_of[fragment.task.group]] -= 1
        self._ready.append(fragment)

    def take(self, version: int) -> list[FragmentSteps] | None:
        fresh = deque(fragment for fragment in self._ready if version - fragment.version <= self._max_lag)
        self.dropped += len(self._ready) - len(fresh)
        self._ready = fresh
        if len(fresh) < self._per_batch:
            return None
        return [fresh.popleft() for _ in range(self._per_batch)]

    def begin_at(self, version: int) -> None:
        pass  # a new round may begin

    def get_state(self) -> dict[str, Any]:
        raise NotImplementedError("the order of arrival cannot be reproduced")

    def set_state(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError("the order of arrival cannot be reproduced")


class RoundOrder:
    """Always the same order.

    Args:
        groups: The number of groups.
        per_batch: Fragments of one update.
        max_lag: Number of updates between acting and learning, at least 0; reached exactly after that many updates.
    """

    def __init__(self, groups: int, per_batch: int, max_lag: int) -> None:
        self.dropped = 0
        self._groups, self._per_batch, self._max_lag = groups, per_batch, max_lag
        self._asked = self._taken = 0
        self._ready: dict[Task, FragmentSteps] = {}

    def due(self, version: int) -> list[Task]:
        first, self._asked = self._asked, max(self._asked, (version + self._max_lag + 1) * self._per_batch)
        return [self._task(index) for index in range(first, self._asked)]

    def arrived(self, fragment: FragmentSteps) -> None:
        self._ready[fragment.task] = fragment

    def take(self, version: int) -> list[FragmentSteps] | None:  # noqa: ARG002 - nothing is ever too old
        tasks = [self._task(self._taken + index) for index in range(self._per_batch)]
        if not all(task in self._ready for task in tasks):
            return None
        self._taken += self._per_batch
        return [self._ready.pop(task) for task in tasks]

    def begin_at(self, version: int) -> None:
        self._asked = self._taken = version * self._per_batch

    def get_state(self) -> dict[str, Any]:
        return {
            "asked": self._asked,
            "taken": self._taken,
            "ready": [each.get_state() for each in self._ready.values()],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._asked, self._taken = state["asked"], state["taken"]
        self._ready = {each.task: each for each in map(FragmentSteps.from_state, state["ready"])}

    def _task(self, index: int) -> Task:
        return Task(index % self._groups, index // self._groups)


class FragmentSource(Protocol):
    """A source of the fragments that a learner joins to batches."""

    def publish(self, version: int) -> None:
        """Act with the agent's weights of now from now on."""

    def take(self) -> list[FragmentSteps]:
        """Return the fragments of the next batch; waits only if they are not there yet."""

    def settle(self) -> None:
        """Wait for all calls in progress; in the deterministic mode, later batches stay the same."""

    def begin_again(self, observations: Sequence[Observations]) -> None:
        """Start from the first observations `[size, *obs]` of every group after a reset, with no call in progress."""

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, of a deterministic run that has settled."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `get_state`."""


class ActorFragmentSource:
    """Fragments of `CollectingActor`s.

    Args:
        workers: The actors.
        order: The order of fragments and batches.
        get_weights: The function that returns the weights of the learner's agent.
        store: The function that returns a stand-in for a value that many actors get: `ActorSystem.put`.
    """

    def __init__(
        self,
        workers: EnvironmentWorkers,
        order: FragmentOrder,
        get_weights: Callable[[], Any],
        store: Callable[[Any], Any],
    ) -> None:
        self._workers, self._order = workers, order
        self._get_weights, self._store = get_weights, store
        self._version = -1
        self._stored: Any = None
        self._known: dict[tuple[int, int], int] = {}  # version of the last weights of each actor

    def publish(self, version: int) -> None:
        self._stored, self._version = self._store(FlatWeights.of(self._get_weights())), version
        self._ask()

    def take(self) -> list[FragmentSteps]:
        while (fragments := self._order.take(self._version)) is None:
            self._ask()
            self._take_in(None)
        self._take_in(0.0)
        return fragments

    def settle(self) -> None:
        while self._workers.is_busy:
            self._take_in(None)

    def begin_again(self, observations: Sequence[Observations]) -> None:
        pass  # the actors continue from there

    def get_state(self) -> dict[str, Any]:
        return {"order": self._order.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._order.set_state(state["order"])

    def _ask(self) -> None:
        for task in self._order.due(self._version):
            self._collect(task)

    def _take_in(self, timeout_s: float | None) -> None:
        for call, answer, failed in self._workers.arrivals(timeout_s):
            if failed:
                self._known.pop(self._workers.worker_of(call.group), None)
                self._collect(call.tag)
            else:
                self._workers.succeeded(call.group)
                self._order.arrived(answer)

    def _collect(self, task: Task) -> None:
        actor = self._workers.worker_of(task.group)
        news = None if self._known.get(actor) == self._version else self._stored
        self._known[actor] = self._version
        self._workers.submit(Call(task.group, "collect", (task, self._version, news), task))


class ActorEnvironments:
    """Groups of environments in actors, as if they were one vector of environments.

    Args:
        groups: The number of groups.
        size: The number of environments of each group.
    """

    def __init__(self, groups: int, size: int) -> None:
        self.num_envs = groups * size
        self.recorded = False
        """True if actors have to record episodes from their first reset on."""
        self._groups = groups
        self._workers: EnvironmentWorkers
        self._source: FragmentSource

    def use_actors(self, workers: EnvironmentWorkers, source: FragmentSource) -> None:
        """Set the actors that have the environments, and the source that requests fragments of them."""
        self._workers, self._source = workers, source

    def record_episodes(self) -> None:
        """Make later actors record their episodes."""
        self.recorded = True

    def get_state(self) -> dict[str, Any]:
        """Return the state of every group when nothing is in progress.

        Raises:
            CheckpointError: An environment cannot be saved.
        """
        self._source.settle()
        return {"groups": self._workers.call_all([Call(group, "get_state", (group,)) for group in range(self._groups)])}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Bring every group to its saved state; it may have lived in another number of actors.

        Raises:
            CheckpointError: The groups differ, or an environment reached another observation.
        """
        saved = state["groups"]
        sizes = [len(group["environments"]) for group in saved if group["environments"] is not None]
        if len(saved) != self._groups or any(size * self._groups != self.num_envs for size in sizes):
            raise CheckpointError(
                f"the saved run had {len(saved)} groups of {sizes[0] if sizes else '?'} environments, this one has "
                f"{self._groups} of {self.num_envs // self._groups}: make the same, however many actors have them"
            )
        self._workers.call_all([Call(group, "set_state", (group, each)) for group, each in enumerate(saved)])

    def get_statistics(self) -> list[Any]:
        """Return the state of each environment that outlasts an episode, when nothing is in progress."""
        self._source.settle()
        calls = [Call(group, "get_statistics", (group,)) for group in range(self._groups)]
        return list(itertools.chain.from_iterable(self._workers.call_all(calls)))

    def set_statistics(self, saved: Sequence[Any]) -> None:
        """Continue with the result of `get_statistics`, from the next reset on, which has to follow.

        Raises:
            CheckpointError: An environment has other wrappers.
        """
        size = self.num_envs // self._groups
        each = enumerate(saved[start : start + size] for start in range(0, self.num_envs, size))
        self._workers.call_all([Call(group, "set_statistics", (group, states)) for group, states in each])


class DeterministicCollector:
    """The state of a deterministic run besides its environments.

    Args:
        source: The source of the fragments.
        workers: The workers that have the environments.
        shape: The settings that decide which fragments there are, by name; a resumed run needs the same.
    """

    def __init__(self, source: FragmentSource, workers: EnvironmentWorkers, shape: Mapping[str, Any]) -> None:
        self._source, self._workers, self._shape = source, workers, dict(shape)

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        self._source.settle()
        return {"shape": self._shape, "source": self._source.get_state(), **_counts(self._workers)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `get_state`.

        Raises:
            CheckpointError: The settings are others.
        """
        changed = {name: was for name, was in state["shape"].items() if self._shape[name] != was}
        if changed:
            differences = ", ".join(f"{name} was {was!r} and is {self._shape[name]!r}" for name, was in changed.items())
            raise CheckpointError(
                f"fragments of the saved run are of another form: {differences}; resume it with the same"
            )
        self._workers.continue_counts(state["lives"])
        _restore_counts(self._workers, state)
        self._source.set_state(state["source"])

    def begin_again(self, seeds: Sequence[int]) -> None:
        """Reset all environments with these seeds, one each, and forget the episodes that were running."""
        groups = len(self._workers.lives)
        size = len(seeds) // groups
        calls = [Call(i, "begin", (i, list(seeds[i * size : (i + 1) * size]))) for i in range(groups)]
        self._source.begin_again(self._workers.call_all(calls))


class AsynchronousCollector:
    """The state of a run that learns from fragments as they arrive.

    Args:
        order: The order of the fragments.
        workers: The workers that have the environments.
        version: Number of updates so far, restored earlier.
    """

    def __init__(self, order: FragmentOrder, workers: EnvironmentWorkers, version: LoopCounter) -> None:
        self._order, self._workers, self._version = order, workers, version

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"dropped": self._order.dropped, **_counts(self._workers)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `get_state`, with new episodes."""
        life = 1 + max(state["lives"])
        self._workers.continue_counts([life] * len(self._workers.lives))
        _restore_counts(self._workers, state)
        self._order.dropped = state["dropped"]
        self._order.begin_at(self._version.value)


def _counts(workers: EnvironmentWorkers) -> dict[str, Any]:
    return {"lives": workers.lives, "lost": workers.lost_count, "failed": workers.failed_count}


def _restore_counts(workers: EnvironmentWorkers, state: Mapping[str, Any]) -> None:
    workers.lost_count, workers.failed_count = state["lost"], state["failed"]
