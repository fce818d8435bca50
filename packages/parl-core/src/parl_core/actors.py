"""The interface between training loops and actors, and the implementations that need no other process.

    loop ── create(EnvGroup, ...) ──> ActorHandle ── submit("step", actions) ──> ActorFuture ── result()

An actor is an object of an ordinary class that usually runs in another process and executes one call at a time.
This module contains the three protocols, `InProcessActors` and `ThreadActors`. `open_actors` opens these and other
systems by name: `subprocess`, which needs only this package, and those registered as entry points of the group
`parl.actors` (parl-remote registers `remote`). `choose_actors` opens a system from the settings of a command line. A
`WorkerPool` (`parl_core.worker_pool`) replaces lost actors.
"""

import concurrent.futures
import os
import select
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from importlib.metadata import entry_points
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol, Self

from parl_core._closing import ClosingContext
from parl_core._subprocess_actors import SubprocessActors
from parl_core.checks import check_int
from parl_core.errors import ParlError

__all__ = [
    "ActorFuture",
    "ActorHandle",
    "ActorSystem",
    "InProcessActors",
    "ThreadActors",
    "choose_actors",
    "open_actors",
    "usable_cores",
    "wait_any",
]

ENTRY_POINT_GROUP = "parl.actors"
IN_PROCESS = "in-process"
THREADS = "threads"
SUBPROCESS = "subprocess"
JOIN_TIMEOUT_S = 1.0
"""Total seconds for which closing waits for threads at the end of a call."""


class ActorFuture(Protocol):
    """The result of one call, which may still be pending; `concurrent.futures.Future` fits."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result and return it.

        Args:
            timeout: Maximum seconds to wait; None for no limit.

        Raises:
            TimeoutError: The result did not arrive in time.
            Exception: The exception that the method raised, as its own type.
        """

    def done(self) -> bool:
        """Return whether `result` would return or raise at once."""


class ActorHandle(Protocol):
    """One actor. Calls of one caller run in the order in which they were made."""

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method and wait for its result; an exception is raised here, and the actor keeps running."""

    def submit(self, method: str, *args: Any, **kwargs: Any) -> ActorFuture:
        """Send a call and return at once; any number may be outstanding.

        Errors of the call, including the loss of the actor, are raised by the future's `result`; only a call on a
        closed handle raises an error here.
        """

    def close(self) -> None:
        """End the actor; a second call does nothing."""

    def kill(self) -> None:
        """End the actor at once, also in the middle of a call."""


class ActorSystem(Protocol):
    """A system that makes actors. Closing it closes all of its actors."""

    @property
    def slots(self) -> int | None:
        """The maximum number of live actors; None if only the cluster knows it."""

    def create(self, cls: type[object], /, *args: Any, **kwargs: Any) -> ActorHandle:
        """Construct `cls(*args, **kwargs)` in a new actor; an exception of the constructor is raised here."""

    def put(self, value: Any, /) -> Any:
        """Return an object to pass as an argument in place of a value for several actors.

        The actors receive the value; its arrays may be read-only. If the system supports it, the value is stored once
        per host.
        """

    def close(self) -> None:
        """Close all actors and release the system's resources; a second call does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class InProcessActors(ClosingContext):
    """Actors that are plain objects of this process, for breakpoints, tests, and programs that need one process.

    A call runs when it is submitted, in the calling thread, so a future is always done. Arguments and results are the
    same objects, not copies; a class that keeps or changes its arguments behaves differently in another
    process.
    """

    def __init__(self) -> None:
        self._handles: list[_InProcessHandle] = []

    @property
    def slots(self) -> int:
        """The number 1, because all actors of a process take turns on one interpreter."""
        return 1

    def create(self, cls: type[object], /, *args: Any, **kwargs: Any) -> ActorHandle:
        """Construct `cls(*args, **kwargs)` here."""
        handle = _InProcessHandle(cls(*args, **kwargs))
        self._handles.append(handle)
        return handle

    def put(self, value: Any, /) -> Any:
        """Return the value itself."""
        return value

    def close(self) -> None:
        """Close every actor; later calls raise an error."""
        for handle in self._handles:
            handle.close()
        self._handles.clear()


class _InProcessHandle:
    def __init__(self, instance: object) -> None:
        self._instance: object | None = instance

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._open(method), method)(*args, **kwargs)

    def submit(self, method: str, *args: Any, **kwargs: Any) -> ActorFuture:
        instance = self._open(method)
        future: Future[Any] = Future()
        try:
            future.set_result(getattr(instance, method)(*args, **kwargs))
        except Exception as error:  # any exception of the user's method is the answer
            future.set_exception(error)
        return future

    def close(self) -> None:
        self._instance = None

    def kill(self) -> None:
        self.close()

    def _open(self, method: str) -> object:
        if self._instance is None:
            raise ParlError(f"{method!r} was called on an actor that is closed; create a new one")
        return self._instance


class ThreadActors(ClosingContext):
    """Actors that are objects of this process with a thread each, for work that releases the interpreter's lock.

    Arguments and results are the same objects, not copies. A thread cannot be killed: an actor that is closed or killed
    during a call ends after it, and the result is dropped.

    Args:
        threads: The planned number of actors; more can be made. Default: the cores that this process may use.

    Raises:
        HyperparameterError: The number is below 1.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._slots = usable_cores() if threads is None else check_int("threads", threads)
        self._handles: list[_ThreadHandle] = []

    @property
    def slots(self) -> int:
        """The number of planned actors."""
        return self._slots

    def create(self, cls: type[object], /, *args: Any, **kwargs: Any) -> ActorHandle:
        """Construct `cls(*args, **kwargs)` in a thread of its own; an exception of the constructor is raised here."""
        handle = _ThreadHandle()
        try:
            handle.start(cls, args, kwargs).result()
        except BaseException:
            handle.close()
            raise
        self._handles.append(handle)
        return handle

    def put(self, value: Any, /) -> Any:
        """Return the value itself."""
        return value

    def close(self) -> None:
        """End all actors, and wait briefly for those that execute a call; a second call does nothing."""
        for handle in self._handles:
            handle.close()
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for handle in self._handles:
            handle.join(max(0.0, deadline - time.monotonic()))
        self._handles.clear()


_ThreadCall = tuple[Future[Any], str, tuple[Any, ...], dict[str, Any]]


class _ThreadHandle:
    def __init__(self) -> None:
        self._inbox: SimpleQueue[_ThreadCall | None] = SimpleQueue()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self, cls: type[object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[None]:
        made: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(made, cls, args, kwargs), name=f"actor {cls.__name__}", daemon=True
        )
        self._thread.start()
        return made

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self.submit(method, *args, **kwargs).result()

    def submit(self, method: str, *args: Any, **kwargs: Any) -> ActorFuture:
        if self._closed:
            raise ParlError(f"{method!r} was called on an actor that is closed; create a new one")
        future: Future[Any] = Future()
        self._inbox.put((future, method, args, kwargs))
        return future

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._inbox.put(None)

    def kill(self) -> None:
        self.close()

    def join(self, timeout_s: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _serve(self, made: Future[None], cls: type[object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            instance = cls(*args, **kwargs)
        except BaseException as error:  # any exception: raised by `create`
            made.set_exception(error)
            return
        made.set_result(None)
        while (call := self._inbox.get()) is not None:
            future, method, arguments, named = call
            if self._closed:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(getattr(instance, method)(*arguments, **named))
            except BaseException as error:  # any exception of the user's method, also an exit, is the answer
                future.set_exception(error)
            del future, call  # an idle actor must not keep the last result alive


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_actors(name: str = IN_PROCESS, **options: Any) -> ActorSystem:
    """Open an actor system by its name.

    Args:
        name: `"in-process"`, `"threads"`, `"subprocess"`, or a name that an installed package registered, such as
            `"remote"`.
        options: Arguments of the system's constructor, such as `processes=2` for `"subprocess"`, `cpu_num=2` for
            `"remote"`.

    Returns:
        the system, ready to create actors; use it in a `with` statement or close it.

    Raises:
        ImportError: No installed package has that name.
    """
    if name == IN_PROCESS:
        return InProcessActors(**options)
    if name == THREADS:
        return ThreadActors(**options)
    if name == SUBPROCESS:
        return SubprocessActors(**options)
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        known = ", ".join([IN_PROCESS, THREADS, SUBPROCESS, *sorted(found)])
        hint = "; install it with: pip install parl-remote" if name == "remote" else ""
        raise ImportError(f"there is no actor system called {name!r} (there are: {known}){hint}")
    system: ActorSystem = found[name].load()(**options)
    return system


def choose_actors(count: int, address: str = "") -> ActorSystem:
    """Open the actor system from a program's settings.

    Args:
        count: Number of actors that the program makes, at least 0.
        address: The address of the running cluster that hosts them. Empty: a private cluster of this machine with
            `count` slots, or this process if `count` is 0.

    Raises:
        ImportError: parl-remote is not installed.
    """
    if address:
        return open_actors("remote", address=address)
    return open_actors("remote", cpu_num=count) if count else open_actors()


def wait_any(futures: Sequence[ActorFuture], timeout_s: float | None = None) -> list[ActorFuture]:
    """Wait until at least one of several calls has a result.

    Args:
        futures: The futures of calls on actors of one system, at least one.
        timeout_s: Maximum seconds to wait; None for no limit.

    Returns:
        the finished ones, in the given order; none after the timeout. If the calls of one actor are given in the order
        in which they were made, a later one is never returned without the earlier ones.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        # From the last to the first, because an answer that arrives meanwhile comes after those of earlier calls.
        if done := [future for future in reversed(futures) if future.done()]:
            return done[::-1]
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return []
        _wait(futures, left)


def _wait(futures: Sequence[ActorFuture], timeout_s: float | None) -> None:
    """Sleep until data arrive, which need not be a complete answer."""
    kind = type(futures[0])
    if hasattr(kind, "wait_any") and all(isinstance(future, kind) for future in futures):  # of parl-remote
        kind.wait_any(futures, timeout_s)
        return
    if all(isinstance(future, Future) for future in futures):
        some: list[Any] = list(futures)
        concurrent.futures.wait(some, timeout_s, concurrent.futures.FIRST_COMPLETED)
        return
    poll = select.poll()
    for future in futures:
        poll.register(future.fileno(), select.POLLIN)  # type: ignore[attr-defined]  # of `subprocess_actors`
    poll.poll(None if timeout_s is None else 1000 * timeout_s)
