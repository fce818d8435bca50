"""Pools of workers that are actors: spawning, work, answers, replacement of lost workers, stopping.

    submit(Work) ──> worker of that slot ──> gather() ──> Answer: a value, or that the work has failed

A worker that ended or did not answer in time is replaced, and the new one gets work as soon as it has started; the
answers of the others are received meanwhile. The pool does not repeat failed work: the caller submits it again. A
`RestartPolicy` limits how often workers are replaced.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from parl_core import logger
from parl_core.actors import ActorFuture, ActorHandle, wait_any
from parl_core.errors import LostActor

__all__ = ["Answer", "LossLimit", "RestartPolicy", "Work", "WorkerPool"]

CLOSE_TIMEOUT_S = 5.0
"""Total seconds that workers may take to close before they are ended."""

SPAWN_AGAIN_S = 1.0
"""Seconds between two attempts to spawn a worker in an empty slot."""


class Work(NamedTuple):
    """A call of a method of the worker in a slot."""

    slot: int
    method: str
    args: tuple[Any, ...] = ()
    tag: Any = None
    """A value of the caller that is returned with the answer."""


class Answer(NamedTuple):
    """The outcome of a piece of work."""

    work: Work
    value: Any
    """The result of the method, or the exception with which the work failed."""
    failed: bool


class RestartPolicy(Protocol):
    """A limit on lost workers; a method raises when the limit is exceeded."""

    def lost(self, slot: int, work: Work | None, error: LostActor) -> None:
        """Count the loss of a worker, including one that was lost while it was spawned.

        Args:
            slot: The slot that it had.
            work: The work in progress of it or its predecessor; None if it was idle.
            error: The error that ended it.
        """

    def not_spawned(self, slot: int, error: Exception) -> None:
        """Count a worker that could not be spawned; its work fails, and another attempt follows a little later."""


class LossLimit:
    """A `RestartPolicy` that allows a number of lost workers, but no failed spawns."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def lost(self, slot: int, work: Work | None, error: LostActor) -> None:  # noqa: ARG002 - as the pool calls it
        """Count a loss; the one beyond the limit is raised."""
        if self._left == 0:
            raise error
        self._left -= 1

    def not_spawned(self, slot: int, error: Exception) -> None:  # noqa: ARG002
        """Raise the error."""
        raise error


class _Spawning(Future[ActorHandle]):
    """A worker that is spawned, in a thread where that can take as long as the start and the imports of a Python."""

    def __init__(self, spawn: Callable[[], ActorHandle], *, in_thread: bool) -> None:
        super().__init__()
        self._reader, self._writer = os.pipe()
        if in_thread:
            threading.Thread(target=self._run, args=(spawn,), name="spawn a worker", daemon=True).start()
        else:
            self._run(spawn)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the worker is ready, for futures that support this."""
        return self._reader

    def take(self) -> ActorHandle:
        """Wait for the worker; to be called once."""
        try:
            return self.result()
        finally:
            os.close(self._reader)

    def stop(self) -> None:
        """End the worker as soon as it has started, without waiting."""
        self.add_done_callback(_stop)

    def _run(self, spawn: Callable[[], ActorHandle]) -> None:
        try:
            self.set_result(spawn())
        except BaseException as error:  # any exception: raised when the worker is used
            self.set_exception(error)
        finally:
            os.close(self._writer)


def _stop(spawning: Future[ActorHandle]) -> None:
    with contextlib.suppress(BaseException):  # without a spawned worker, or with a closed system, nothing is left
        assert isinstance(spawning, _Spawning)
        spawning.take().kill()


class _Slot:
    """A worker, or the one that is spawned in its place, for which work waits without a future."""

    def __init__(self) -> None:
        self.handle: ActorHandle | None = None
        self.spawning: _Spawning | None = None
        self.loss: tuple[Work | None, LostActor] | None = None  # of the previous worker
        self.calls: deque[tuple[Work, ActorFuture | None]] = deque()
        self.since = time.monotonic()  # when the oldest of them began, as far as can be seen from here
        self.empty_until = 0.0

    def submit(self, work: Work) -> None:
        if not self.calls:
            self.since = time.monotonic()
        future = None if self.handle is None else self.handle.submit(work.method, *work.args)
        self.calls.append((work, future))

    def begin(self, handle: ActorHandle) -> None:
        """Submit the waiting work to the new worker."""
        self.handle, waited, self.calls = handle, self.calls, deque()
        for work, _ in waited:
            self.submit(work)

    def answered(self) -> tuple[Work, ActorFuture] | None:
        """Return the oldest work if it has an answer."""
        if not self.calls:
            return None
        work, future = self.calls[0]
        if future is None or not future.done():
            return None
        self.calls.popleft()
        self.since = time.monotonic()
        return work, future

    def take_calls(self) -> list[Work]:
        """Return all unanswered work and remove it from the slot."""
        owed = [work for work, _ in self.calls]
        self.calls.clear()
        return owed

    def next_event(self) -> ActorFuture | None:
        """Return the event to wait for; None while no worker exists or is being spawned."""
        if self.spawning is not None:
            return self.spawning
        return self.calls[0][1] if self.calls else None


class WorkerPool:
    """A pool of slots with a worker each; workers are spawned by `start`.

    Args:
        spawn: The function that makes the worker of a slot; it is called in the order of slots first, and in threads
            later.
        size: Number of slots.
        policy: The limit of replacements of workers.
        timeout_s: Maximum time of one piece of work; None for no limit.
        runs: Description of the work, for messages.
        closing: A method that is called on workers before they end, within `CLOSE_TIMEOUT_S`; without one, busy workers
            are ended at once.
    """

    def __init__(
        self,
        spawn: Callable[[int], ActorHandle],
        size: int,
        policy: RestartPolicy,
        *,
        timeout_s: float | None = None,
        runs: str = "what it runs",
        closing: str = "",
    ) -> None:
        self._spawn, self._policy, self._timeout_s = spawn, policy, timeout_s
        self._runs, self._closing = runs, closing
        self._slots = [_Slot() for _ in range(size)]
        self.restarts = [0] * size
        """The number of workers lost in each slot."""
        self.in_thread = True
        """True if workers after the first are spawned in threads: not where they are copies of this process."""

    def start(self) -> None:
        """Spawn the first workers one by one.

        Raises:
            Exception: One could not be spawned, and the policy does not continue without.
        """
        try:
            for number, slot in enumerate(self._slots):
                try:
                    slot.handle = self._spawn(number)
                except Exception as error:  # any exception: each actor system has its own errors
                    self._leave_empty(number, error)
        except BaseException:
            self.stop()
            raise

    @property
    def is_busy(self) -> bool:
        """True while calls are in progress."""
        return any(slot.calls for slot in self._slots)

    @property
    def is_alive(self) -> bool:
        """True if a worker exists or is being spawned."""
        return any(slot.handle is not None or slot.spawning is not None for slot in self._slots)

    def ready(self) -> list[int]:
        """Return the slots that have a worker, busy or idle."""
        return [number for number, slot in enumerate(self._slots) if slot.handle is not None]

    def submit(self, work: Work) -> None:
        """Submit work to the worker of a slot, which executes one piece at a time."""
        self._slots[work.slot].submit(work)

    def replace(self, slot: int) -> None:
        """End a worker and spawn another; this is not counted as a loss, and the pending work is dropped."""
        place = self._slots[slot]
        place.calls.clear()
        if place.handle is not None:
            place.handle.kill()
            place.handle = None
            self._respawn(slot)

    def drop_calls(self) -> None:
        """Replace the workers that are busy; their calls are never answered."""
        for number, slot in enumerate(self._slots):
            if slot.calls:
                self.replace(number)

    def gather(self, timeout_s: float | None = None, *, or_spawned: bool = False) -> list[Answer]:
        """Wait for answers.

        Args:
            timeout_s: Maximum time to wait; None for no limit.
            or_spawned: True to return, possibly without answers, when a worker was spawned.

        Returns:
            at least one, except after the timeout or if nothing is in progress. If a worker was lost, all its
            unanswered work has failed with a `LostActor`.

        Raises:
            Exception: One that the policy raises.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            for number, slot in enumerate(self._slots):
                if slot.handle is None and slot.spawning is None and now >= slot.empty_until:
                    self._respawn(number)
            there = len(self.ready())
            found = [answer for number in range(len(self._slots)) for answer in self._collect(number)]
            waiting = [slot for slot in self._slots if slot.calls or (or_spawned and slot.handle is None)]
            left = None if deadline is None else deadline - time.monotonic()
            if found or not waiting or (left is not None and left <= 0) or (or_spawned and len(self.ready()) > there):
                return found
            self._wait(waiting, left)

    def stop(self) -> None:
        """End all workers; a second call does nothing."""
        slots, self._slots = self._slots, []
        closing = []
        for slot in slots:
            if slot.spawning is not None:
                slot.spawning.stop()
            if slot.handle is None:
                continue
            for _, future in reversed(slot.calls):
                getattr(future, "cancel", bool)()  # queued work need not begin
            if not self._closing:
                (slot.handle.kill if slot.calls else slot.handle.close)()
                continue
            try:
                closing.append((slot.handle, slot.handle.submit(self._closing)))
            except Exception:  # any exception: a lost worker needs no closing
                slot.handle.kill()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for handle, future in closing:
            try:
                future.result(max(0.0, deadline - time.monotonic()))
            except Exception:  # any exception: it hangs, is lost, or its own method raised
                handle.kill()
            handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait(self, waiting: list[_Slot], left: float | None) -> None:
        limits = [] if left is None else [left]
        now = time.monotonic()
        if self._timeout_s is not None:
            limits += [slot.since + self._timeout_s - now for slot in waiting if slot.calls and slot.handle is not None]
        limits += [slot.empty_until - now for slot in waiting if slot.handle is None and slot.spawning is None]
        limit = max(0.0, min(limits)) if limits else None
        events = [event for slot in waiting if (event := slot.next_event()) is not None]
        if events:
            wait_any(events, limit)
        elif limit:
            time.sleep(limit)

    def _collect(self, number: int) -> list[Answer]:
        """Return the answers of this worker; the unanswered calls of a lost worker have failed."""
        slot = self._slots[number]
        found: list[Answer] = []
        if slot.spawning is not None and slot.spawning.done():
            found += self._start_spawned(number, slot.spawning)
        while (answered := slot.answered()) is not None:
            work, future = answered
            try:
                value = future.result()
            except LostActor as error:
                return [*found, *self._lose(number, work, error)]
            except Exception as error:  # any exception of the method
                found.append(Answer(work, error, True))
            else:
                found.append(Answer(work, value, False))
        if (
            slot.calls
            and slot.handle is not None
            and self._timeout_s is not None
            and time.monotonic() - slot.since > self._timeout_s
        ):
            work, _ = slot.calls.popleft()
            hanging = LostActor(
                f"worker {number} was ended because it did not answer {work.method} within timeout_s={self._timeout_s} "
                f"seconds: {self._runs} hangs, or the limit is too short for its work"
            )
            found += self._lose(number, work, hanging)
        return found

    def _lose(self, number: int, work: Work, error: LostActor) -> list[Answer]:
        """Replace a lost worker by a new one; `work` is the work that it was busy with."""
        slot = self._slots[number]
        assert slot.handle is not None
        slot.handle.kill()
        slot.handle = None
        owed = [work, *slot.take_calls()]
        self._count_loss(number, work, error)
        self._respawn(number)
        return [Answer(each, error, True) for each in owed]

    def _count_loss(self, number: int, work: Work | None, error: LostActor) -> None:
        self._slots[number].loss = work, error
        self._policy.lost(number, work, error)
        logger.warning("worker %d is replaced: %s", number, str(error))
        self.restarts[number] += 1

    def _respawn(self, number: int) -> None:
        self._slots[number].spawning = _Spawning(lambda: self._spawn(number), in_thread=self.in_thread)

    def _start_spawned(self, number: int, spawning: _Spawning) -> list[Answer]:
        """Start the spawned worker; if it has been lost, spawn another one."""
        slot = self._slots[number]
        slot.spawning = None  # it is taken once, even if this ends the run
        try:
            handle = spawning.take()
        except LostActor as lost:
            self._count_loss(number, slot.loss[0] if slot.loss else None, lost)
            self._respawn(number)
        except Exception as error:  # any exception: each actor system has its own errors
            if slot.loss is not None:
                why = slot.loss[1]
                error.add_note(f"in spawning another worker in the place of worker {number}, which was lost: {why}")
            return self._leave_empty(number, error)
        else:
            slot.begin(handle)
        return []

    def _leave_empty(self, number: int, error: Exception) -> list[Answer]:
        """Ask the policy whether to continue without this worker, whose work then has failed."""
        slot = self._slots[number]
        self._policy.not_spawned(number, error)
        slot.empty_until = time.monotonic() + SPAWN_AGAIN_S
        return [Answer(work, error, True) for work in slot.take_calls()]
