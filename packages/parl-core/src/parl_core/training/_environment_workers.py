"""The workers of a run: a `WorkerPool` whose workers hold groups of environments.

    workers.submit(Call) ──> worker of that group ──> workers.arrivals() ──> Arrival: an answer, or that it has failed

What fails is the loop's to ask for again; an environment that raised will be made anew. A group that fails too often in
a row ends the run with its last error.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from parl_core.actors import ActorHandle
from parl_core.errors import CheckpointError, LostActor
from parl_core.worker_pool import Work, WorkerPool

__all__ = ["Arrival", "Call", "EnvironmentWorkers"]

OUTSIDE = 10
"""How many losses for which the environments are not to blame count as much as one other failure."""


class Call(NamedTuple):
    """A call of a method, for a group of environments."""

    group: int
    method: str
    args: tuple[Any, ...] = ()
    tag: Any = None
    """What the caller wants to have back with the answer."""


class Arrival(NamedTuple):
    """The outcome of a call."""

    call: Call
    answer: Any
    failed: bool


class EnvironmentWorkers:
    """Workers with groups of environments each.

    Args:
        spawn: makes the worker of this number; the second argument has its groups, and how many workers have held each.
        groups_of: the groups of each worker.
        timeout_s: longest time for one call; None has no limit.
        max_failures: how often in a row the calls of one group may fail before the last error is raised; ten times as
            often where `LostActor.from_outside` says that the environments cannot be at fault.
    """

    def __init__(
        self,
        spawn: Callable[[int, Mapping[int, int]], ActorHandle],
        groups_of: Sequence[Sequence[int]],
        timeout_s: float | None,
        max_failures: int,
    ) -> None:
        self.lost_count = 0
        """Workers that ended, or were ended because they did not answer in time."""
        self.failed_count = 0
        """Calls in which an environment raised."""
        self._max_failures = max_failures
        self._groups_of = groups_of
        self._worker_of = {group: worker for worker, groups in enumerate(groups_of) for group in groups}
        # lives of groups in the runs that this one goes on with
        self._earlier = dict.fromkeys(sorted(self._worker_of), 0)
        self._failures: Counter[int] = Counter()
        self._losses_from_outside: Counter[int] = Counter()
        self._pool = WorkerPool(
            lambda worker: spawn(worker, self._lives_with(worker)),
            len(groups_of),
            self,
            timeout_s=timeout_s,
            runs="an environment",
            closing="close",
        )
        self._pool.start()

    def incarnation(self, group: int) -> tuple[int, int]:
        """Return the worker that has this group, and how many were in its place before."""
        worker = self._worker_of[group]
        return worker, self._pool.restarts[worker]

    @property
    def lives(self) -> list[int]:
        """How many workers have held each group before the one that has it now."""
        return [life + self._pool.restarts[self._worker_of[group]] for group, life in self._earlier.items()]

    def go_on(self, lives: Sequence[int]) -> None:
        """Continue counting the lives of groups where another run, of as many groups, has stopped."""
        for group, life in enumerate(lives):
            self._earlier[group] = life - self._pool.restarts[self._worker_of[group]]
        self.call_all([Call(group, "live", (group, life)) for group, life in enumerate(lives)])

    @property
    def is_busy(self) -> bool:
        """True while calls are in progress."""
        return self._pool.is_busy

    def call(self, group: int, method: str) -> Any:
        """Call a method of the worker that has this group until it succeeds; nothing else may be in progress."""
        (answer,) = self.call_all([Call(group, method)])
        return answer

    def call_all(self, calls: Sequence[Call]) -> list[Any]:
        """Make calls, each until it succeeds, and return their answers; nothing else may be in progress.

        Raises:
            CheckpointError: a call raised it, which no second one would mend.
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
        """Forget the failures of a group, because it has got on."""
        self._failures[group] = self._losses_from_outside[group] = 0

    def submit(self, call: Call) -> None:
        """Send a call; calls for one worker are run in order."""
        self._pool.submit(Work(self._worker_of[call.group], call.method, call.args, call))

    def arrivals(self, timeout_s: float | None = None) -> list[Arrival]:
        """Wait for answers.

        Args:
            timeout_s: how long at most; None waits as long as it takes.

        Returns:
            at least one, unless the time has passed or nothing is in progress.

        Raises:
            Exception: what a call raised, if that group has failed too often in a row; a note says which it was.
        """
        answers = self._pool.gather(timeout_s)
        for work, error, failed in answers:
            if failed and not isinstance(error, LostActor):
                self.failed_count += 1
                self._count_failure(work.tag, error)
        return [Arrival(work.tag, value, failed) for work, value, failed in answers]

    def lost(self, slot: int, work: Work | None, error: LostActor) -> None:  # noqa: ARG002
        """See `RestartPolicy`."""
        self.lost_count += 1
        if work is not None:
            self._count_failure(work.tag, error)

    def not_spawned(self, slot: int, error: Exception) -> None:  # noqa: ARG002
        """See `RestartPolicy`; a run does not continue with fewer workers."""
        raise error

    def close(self) -> None:
        """Close the environments and end the workers; a second call does nothing."""
        self._pool.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lives_with(self, worker: int) -> dict[int, int]:
        return {group: self._earlier[group] + self._pool.restarts[worker] for group in self._groups_of[worker]}

    def _count_failure(self, call: Call, error: Exception) -> None:
        outside = isinstance(error, LostActor) and error.from_outside
        counts, times = (self._losses_from_outside, OUTSIDE) if outside else (self._failures, 1)
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
