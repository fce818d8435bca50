"""The dispatcher of an actor pool: its tasks, its members, and the thread that assigns tasks to members.

    submit, map --task--> Dispatcher --call--> a member's actor
                              ^                     | answered: the task's future is settled
                              `---- another member <' its actor died: the task is run again

When an actor dies, each of its tasks is run alone from then on. So the pool finds the task that kills actors, and does
not blame other tasks.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from parl_remote._future import RemoteFuture, call_of_parent, leave_to_parent
from parl_remote._program.proxy import RemoteObject, make_proxy, reference_of
from parl_remote._system.interrupts import Event
from parl_remote.errors import ActorError, ActorLost, ItemLost, NotConnected, RemoteCallError, TooManyPendingCalls

__all__ = ["Dispatcher", "Member", "Task", "closed"]

_log = logging.getLogger("parl.remote")
_FULL_RETRY_S = 0.01  # between attempts to assign a task to an actor whose calls have reached their limit
_LOOK_S = 1.0  # interval in seconds at which waiting threads check whether the dispatcher has ended


def closed() -> ActorError:
    """Return the error of a pool that takes nothing any more."""
    return ActorError("the pool is closed; make another one")


class Task:
    """One call of a pool.

    Attributes:
        index: Its number, for messages.
        future: The future of its result.
        killed: The number of actors that have died while they worked on it alone.
        is_suspect: Whether it was in flight when an actor died, so that it is run alone.
        is_hit: The same for a death that its own future has not reported yet.
        has_started: Whether it has begun, so that it can no longer be cancelled.
    """

    __slots__ = ("call", "future", "has_started", "index", "is_hit", "is_suspect", "killed")

    def __init__(self, index: int, call: Callable[[RemoteObject], Any]) -> None:
        self.index = index
        self.call = call
        self.future: RemoteFuture[Any] = RemoteFuture(None)
        self.future.method = f"item {index}"
        self.killed = 0
        self.is_suspect = False
        self.is_hit = False
        self.has_started = False

    def may_start(self) -> bool:
        """Return whether it is not cancelled; after True, it can no longer be cancelled."""
        if not self.has_started:
            self.has_started = self.future.set_running_or_notify_cancel()
        return self.has_started


class Member:
    """One actor of a pool.

    Attributes:
        actor: The given handle.
        tasks: Its tasks, oldest first.
        is_reserved: Whether it leaves the pool and therefore gets no more tasks.

    Raises:
        TypeError: The argument is not a remote object.
    """

    def __init__(self, actor: Any) -> None:
        ref = reference_of(actor)
        if ref is None:
            raise TypeError(f"a pool's actors are objects of remote classes, not {actor!r}")
        self.actor = actor
        self.quick = make_proxy(type(actor), ref, wait=False)  # calls from the pool never wait
        self.tasks: dict[Task, None] = {}
        self.is_reserved = False


class Dispatcher:
    """Assigns tasks to members, in one thread; other threads only queue events for it.

    Args:
        per_actor: The maximum number of tasks of an actor at a time: one runs, and the others wait in the actor.
        retries: The maximum number of times that a task is run again after it has killed an actor.
        replace: Makes a new actor for one that died; None if the pool cannot make actors.
    """

    def __init__(self, per_actor: int, retries: int, replace: Callable[[], Any] | None) -> None:
        self._per_actor = per_actor
        self._retries = retries
        self._replace = replace
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._todo: deque[Task] = deque()
        self._members: dict[Member, None] = {}
        # requests for actors that are to leave the pool
        self._requests: deque[concurrent.futures.Future[Any]] = deque()
        self._making = 0
        self._refused: list[tuple[Member, Task]] = []  # because the actor's calls had reached their limit
        self._open: dict[Task, None] = {}  # the unsettled ones
        self._all_done: list[threading.Event] = []
        self._why_none: BaseException | None = None
        self._over = False
        self._stopping = threading.RLock()  # a finalizer may close the pool while this thread is in here
        self._is_stopped = False
        self._thread = threading.Thread(target=self._serve, name="parl-pool", daemon=True)
        _dispatchers.add(self)
        self._thread.start()

    # -- any thread --------------------------------------------------------------------------------------------------

    @property
    def actors(self) -> tuple[Any, ...]:
        """The handles of the current actors."""
        return tuple(member.actor for member in tuple(self._members))

    def add(self, actor: Any) -> None:
        """Add an actor."""
        member = Member(actor)
        done = Event()

        def add() -> None:
            self._members[member] = None
            done.set()

        self._events.put(add)
        self._await(done)

    def do(self, task: Task) -> None:
        """Add a task.

        Raises:
            ActorError: The dispatcher was stopped.
        """
        with self._stopping:
            self._check_running()
            self._open[task] = None
            self._events.put(lambda: self._todo.append(task))

    def take_out(self) -> concurrent.futures.Future[Any]:
        """Remove an idle actor from the pool; return the future of its handle.

        Raises:
            ActorError: The dispatcher was stopped.
        """
        request: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._stopping:
            self._check_running()
            self._events.put(lambda: self._requests.append(request))
        return request

    def await_all(self) -> None:
        """Wait until all tasks so far are settled."""
        done = Event()
        self._events.put(lambda: self._all_done.append(done))
        self._await(done)

    def stop(self) -> None:
        """Stop: cancel tasks that have not started; running tasks continue in their actors, without a result."""
        with self._stopping:  # this ends all tasks added before it, and none is added after it
            self._is_stopped = True
            self._events.put(self._end)

    def _check_running(self) -> None:
        if self._is_stopped:
            raise closed()

    def _post(self, event: Callable[[], None]) -> None:
        """Queue an event for the thread; drop it if the thread has ended."""
        self._events.put(event)
        if self._over:
            self._forget_events()

    def _forget_events(self) -> None:
        """Drop late events, because they refer to actors and would keep them alive."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._events.get_nowait()

    def _await(self, done: threading.Event) -> None:
        while not done.wait(_LOOK_S):
            if not self._thread.is_alive():
                raise closed()

    # -- its own thread ----------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._over:
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=_FULL_RETRY_S if self._refused else None)()
            while not self._over:  # further events, before the members are examined
                try:
                    event = self._events.get_nowait()
                except queue.Empty:
                    break
                event()
            if not self._over:
                self._put_back()
                self._assign()
                self._settle_requests()
        self._forget_events()

    def _assign(self) -> None:
        while self._todo:
            member = self._free_member(alone=self._todo[0].is_suspect)
            if member is None:
                break
            self._start(member, self._todo.popleft())
        if self._todo and not self._members and not self._making:
            self._fail_all()

    def _free_member(self, *, alone: bool) -> Member | None:
        most = 0 if alone else self._per_actor - 1
        best: Member | None = None
        for member in self._members:
            load = len(member.tasks)
            if member.is_reserved or load > most or (load and next(iter(member.tasks)).is_suspect):
                continue
            if not load:
                return member
            if best is None or load < len(best.tasks):
                best = member
        return best

    def _start(self, member: Member, task: Task) -> None:
        if not task.may_start():
            self._open.pop(task, None)
            return
        try:
            future = task.call(member.quick)
            if not isinstance(future, RemoteFuture):
                raise TypeError(
                    "a pool's function must return the call's future; inside it the actor's methods do not wait, so "
                    f"`lambda actor, item: actor.method(item)` does. It returned {future!r}"
                )
        except TooManyPendingCalls:  # other callers may keep it busy as well
            member.tasks[task] = None
            self._refused.append((member, task))
            return
        except BaseException as error:
            task.future._settle(None, error)
            self._open.pop(task, None)
            return
        member.tasks[task] = None
        future._then(lambda done: self._post(lambda: self._answered(member, task, done)))

    def _put_back(self) -> None:
        """Put tasks that an actor has refused at the front of the queue."""
        while self._refused:
            member, task = self._refused.pop()
            member.tasks.pop(task, None)
            self._todo.appendleft(task)

    def _answered(self, member: Member, task: Task, done: concurrent.futures.Future[Any]) -> None:
        error = concurrent.futures.CancelledError() if done.cancelled() else done.exception()
        if isinstance(error, ActorLost) and not isinstance(error.__cause__, RemoteCallError):
            self._lost(member, task, error)
            return
        member.tasks.pop(task, None)
        if error is None:
            task.future._settle(done.result())
        else:
            task.future._settle(None, error)
        self._open.pop(task, None)

    def _lost(self, member: Member, task: Task, error: ActorLost) -> None:
        """Record the death of an actor that had this task, and perhaps others."""
        if not task.is_hit:  # the first of them that reports it
            # Of several, which one it was is not known.
            task.killed += error.was_sent and not error.from_outside and len(member.tasks) == 1
            for other in member.tasks:
                other.is_hit = other.is_suspect = True
        task.is_hit = False
        member.tasks.pop(task, None)
        if not error.is_restarting:
            self._leave(member, error)
        if task.killed <= self._retries:
            self._todo.appendleft(task)
            return
        deaths = "1 actor died" if task.killed == 1 else f"{task.killed} actors died"
        lost = ItemLost(
            f"item {task.index} was given up: {deaths} while working on it alone; the last one: {error}",
            index=task.index,
            attempts=task.killed,
        )
        lost.__cause__ = error
        task.future._settle(None, lost)
        self._open.pop(task, None)

    def _leave(self, member: Member, error: BaseException) -> None:
        if self._members.pop(member, self) is self:
            return
        self._why_none = error
        if self._replace is not None:
            self._making += 1
            try:
                threading.Thread(target=self._make, args=(self._replace,), name="parl-pool-actor", daemon=True).start()
            except RuntimeError as no_thread:  # the limit of threads
                self._made(None, no_thread)

    def _make(self, replace: Callable[[], Any]) -> None:
        """Make an actor, in a separate thread, because it may have to wait for resources."""
        try:
            member = Member(replace())
        except BaseException as error:
            failed = error
            self._post(lambda: self._made(None, failed))
        else:
            self._post(lambda: self._made(member, None))

    def _made(self, member: Member | None, error: BaseException | None) -> None:
        self._making -= 1
        if member is not None:
            self._members[member] = None
        elif not isinstance(error, NotConnected):  # else the program has disconnected, of which the actor died
            _log.warning("a pool could not replace an actor that died: %s", str(error))
            self._why_none = error

    def _fail_all(self) -> None:
        """Fail all tasks: no actor is left."""
        while self._todo:
            task = self._todo.popleft()
            if task.may_start():
                lost = ActorError(
                    f"item {task.index} could not be done: the pool has no actors any more; push() another one"
                )
                lost.__cause__ = self._why_none
                task.future._settle(None, lost)
            self._open.pop(task, None)

    def _settle_requests(self) -> None:
        """Hand out requested members that are idle, and wake threads that wait for the end of all tasks."""
        for request in list(self._requests):
            if request.cancelled():
                self._requests.remove(request)
                continue
            idle = next((m for m in self._members if not m.tasks), None)
            if idle is None:
                if not self._members and not self._making:
                    self._requests.remove(request)
                    request.set_exception(ActorError("the pool has no actor that could be removed"))
                break
            del self._members[idle]
            self._requests.remove(request)
            if request.set_running_or_notify_cancel():
                request.set_result(idle.actor)
            else:
                self._members[idle] = None
        if self._requests or any(member.is_reserved for member in self._members):
            by_load = sorted(self._members, key=lambda member: len(member.tasks))
            for rank, member in enumerate(by_load):  # as many idle members as are requested get no more tasks
                member.is_reserved = rank < len(self._requests)
            self._assign()  # to the reserved members
        if not self._open:
            for done in self._all_done:
                done.set()
            self._all_done.clear()

    def _end(self) -> None:
        self._over = True
        for task in list(self._open):
            if task.has_started:
                task.future._settle(None, ActorError(f"the pool was closed before item {task.index} was finished"))
            elif task.may_start():
                task.future._settle(None, cancelled=True)
        self._open.clear()
        self._todo.clear()
        self._members.clear()
        for request in self._requests:
            request.cancel()


_dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


def _after_fork() -> None:
    for dispatcher in list(_dispatchers):
        leave_to_parent([task.future for task in dispatcher._open], call_of_parent)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
