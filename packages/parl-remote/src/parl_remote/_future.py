"""Futures of remote calls.

A `RemoteFuture` is a `concurrent.futures.Future`, so `wait`, `as_completed`, `asyncio.wrap_future` and callbacks work.
A future that is only used by `result` costs almost nothing: the condition that the standard library waits on is made at
its first use, and only then a background thread reads in place of the caller. The outcome is set while that condition
is held, as the standard library's waiters require.

Users' callbacks run in a separate thread, because they may wait for answers that are read by the thread that settles
the future. Futures of pools and executors have no carrier; the pool or executor settles them.

`wait_any` waits for the first of several futures and reads in the caller's own thread. A future that is awaited on an
event loop is read by that loop, in the loop's thread.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import functools
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, LOGGER, PENDING, RUNNING
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeVar, cast

from parl_remote import _display
from parl_remote._data.answers import without_traceback
from parl_remote._data.serialize import FuturePickled
from parl_remote._options import deadline_of
from parl_remote._streams import RemoteIterator
from parl_remote._system.facilities import wait_for_input
from parl_remote._system.interrupts import (
    Condition,
    has_own_handlers,
    interruptible,
    is_by_handler,
    is_in_finalizer,
    may_wait_in_finalizers,
    uninterrupted,
)
from parl_remote.errors import WAITS_IN_FINALIZER, ActorLost, NotConnected, RemoteError, ResultTimeout

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "CallbackThread",
    "Carrier",
    "RemoteFuture",
    "ResultIterator",
    "Waiter",
    "call_of_parent",
    "leave_to_parent",
    "program_ends",
    "wait_any",
]


program_ends = threading.Event()  # set when the interpreter ends, before the program disconnects

_LOOK_AGAIN_S = 1.0  # in case another thread closed a connection just before the wait


class ReadableCarrier(Protocol):
    """A carrier whose messages are read by one thread at a time, on behalf of all threads."""

    def is_led_here(self) -> bool:
        """Return whether this thread reads already, and a handler or a finalizer has interrupted it."""

    def lead(self) -> bool:
        """Start to read for all threads; return False if another thread does."""

    def leave(self) -> None:
        """Stop reading for all threads if this thread does."""

    def drain(self) -> None:
        """Settle the answers that have arrived; called by the leading thread."""

    def has_read_ahead(self) -> bool:
        """Return whether data has arrived that the descriptor does not signal."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when data arrives."""


@uninterrupted
def wait_any(futures: Sequence[RemoteFuture[Any]], timeout_s: float | None = None) -> None:
    """Block until one of several calls has ended, or until the timeout.

    Args:
        futures: The futures of the calls, at least one.
        timeout_s: Seconds to wait; None waits without limit.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    carriers = list(dict.fromkeys(future._carrier for future in futures))
    if all(hasattr(carrier, "lead") for carrier in carriers):
        readable = cast("list[ReadableCarrier]", carriers)
        others = [carrier for carrier in readable if not carrier.is_led_here()]
        try:
            if all(carrier.lead() for carrier in others):
                _read(readable, futures, deadline)
                return
        finally:
            for carrier in others:
                carrier.leave()
    some: list[concurrent.futures.Future[Any]] = list(futures)
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    with interruptible:
        concurrent.futures.wait(some, left, concurrent.futures.FIRST_COMPLETED)


def leave_to_parent(futures: Iterable[RemoteFuture[Any]], error: Callable[[], BaseException]) -> None:
    """Leave calls in flight to the parent, in a forked child; waiting for one of them there raises an error.

    Args:
        futures: The futures of the calls.
        error: Returns the error of a call; called for each call that a thread waits for.
    """
    global _making_condition
    _making_condition = threading.RLock()  # the thread that held it was not copied
    carrier = _ParentCarrier(error)
    for future in futures:
        future._carrier = carrier
        future.__dict__.pop("_blocked", None)
        future._made_condition = None  # its lock, its waiters and its callbacks are the parent's, too


def call_of_parent() -> NotConnected:
    """Return the error of a call of a function or a pool that was in progress during the fork."""
    return NotConnected("the parent of this process has made this call, and gets the answer; make it again here")


class _ParentCarrier:
    """The carrier of calls whose answers go to the process that this one was forked from."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        self._error = error

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> None:  # noqa: ARG002
        """Fail the future."""
        self.watch(future)

    def look(self) -> None:
        """Do nothing: no answer comes."""

    def watch(self, future: RemoteFuture[Any]) -> None:
        """Fail the future."""
        if not future._settled:
            future._settle(None, self._error())

    @uninterrupted
    def await_in(self, loop: asyncio.AbstractEventLoop, future: RemoteFuture[Any]) -> None:  # noqa: ARG002
        """Fail the future."""
        self.watch(future)

    def cancel(self, future: RemoteFuture[Any]) -> bool:
        """Settle the future as cancelled, in this process alone."""
        future._settle(None, cancelled=True)
        return True


def _read(carriers: Sequence[ReadableCarrier], futures: Sequence[RemoteFuture[Any]], deadline: float | None) -> None:
    ready = [carrier for carrier in carriers if carrier.has_read_ahead()]
    while True:
        for carrier in ready:
            carrier.drain()
        if any(future._settled for future in futures):
            return
        left = _LOOK_AGAIN_S if deadline is None else min(_LOOK_AGAIN_S, deadline - time.monotonic())
        if left <= 0:
            return
        try:
            by_descriptor = {carrier.fileno(): carrier for carrier in carriers}
            ready = [by_descriptor[found] for found in wait_for_input(list(by_descriptor), 1000 * left)]
        except ValueError:  # another thread has closed one of them; reading it reports that
            ready = []
        if not ready:
            ready = list(carriers)


T = TypeVar("T")

_making_condition = threading.RLock()  # a finalizer or a handler may wait for a call while this thread is in there
_nested = threading.local()  # the depth of nested futures' callbacks in this thread
_PATIENCE_S = 5.0  # seconds after which an ending program reports what it waits for
_IDLE_S = 1.0  # after which the thread of users' callbacks ends
_DEEPEST = 50  # a failed call fails those that wait for it, and so on; Python's stack has room for some 200
_CANCELLED = (CANCELLED, CANCELLED_AND_NOTIFIED)
_STATE_NAMES = {
    PENDING: "pending",
    RUNNING: "running",
    CANCELLED: "cancelled",
    CANCELLED_AND_NOTIFIED: "cancelled",
    FINISHED: "finished",
}


class Waiter:
    """An event for which one thread at a time sleeps until another thread wakes it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def sleep(self, timeout_s: float | None) -> None:
        """Wait for `wake`, or until the timeout."""
        with interruptible:
            self._lock.acquire(timeout=-1 if timeout_s is None else min(max(0.0, timeout_s), threading.TIMEOUT_MAX))

    def wake(self) -> None:
        """End the sleep, or the next one; a second call does nothing."""
        with contextlib.suppress(RuntimeError):  # another thread woke it already
            self._lock.release()


class _Action:
    """An action for when a future is settled; called as a thread that waits for the future would be."""

    __slots__ = ("_left",)

    def __init__(self, future: RemoteFuture[Any], action: Callable[[Any], None]) -> None:
        self._left = [(future, action)]

    def wake(self) -> None:
        """Run the action once if the future is settled; if it has another carrier, have that read."""
        try:
            future, action = self._left[0]
            settled = future._settled  # looked at once: one who settles the future later wakes this again
            if settled:
                self._left.pop()
        except IndexError:  # another thread runs it
            return
        if settled:
            future._run((action,))
        elif (carrier := future._carrier) is not None:
            carrier.watch(future)


class _Awaiting:
    """A task of an event loop that awaits a future."""

    __slots__ = ("_loop", "_thread", "news")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self.news: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        """Wake the task to check again."""
        if threading.get_ident() == self._thread:
            self._tell()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the task with it
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if not self.news.done():
            self.news.set_result(None)


class ResultIterator(Iterator[T]):
    """An iterator over results, which a `with` statement closes.

    `async for` lets the event loop run while it waits for the next result.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End the iterator and drop the iterator of its items; a second call does nothing."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        import asyncio

        loop, deadline = asyncio.get_running_loop(), self._deadline_of_next()
        while not self._is_next_there(waiting := _Awaiting(loop)):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise self._late()
            await asyncio.wait([waiting.news], timeout=left)
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None

    @abstractmethod
    def _is_next_there(self, waiter: _Awaiting) -> bool:
        """Return whether `next` returns without waiting; if not, wake the waiter when that may have changed."""

    @abstractmethod
    def _deadline_of_next(self) -> float | None:
        """Return the deadline of the next result for a wait that begins now; None for no limit."""

    @abstractmethod
    def _late(self) -> ResultTimeout:
        """Return the error of a result that is late."""


class Carrier(Protocol):
    """The source of results: the connection that a call was sent on."""

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> None:
        """Wait until the future is settled, has another carrier, or the timeout; may return earlier."""

    def look(self) -> None:
        """Settle the futures whose answers have arrived, without waiting."""

    def watch(self, future: RemoteFuture[Any]) -> None:
        """Settle the future in the background, for waiters that do not call `wait_for`."""

    def await_in(self, loop: asyncio.AbstractEventLoop, future: RemoteFuture[Any]) -> None:
        """Settle the future in the thread of the event loop, which is this thread, or in the background."""

    def cancel(self, future: RemoteFuture[Any]) -> bool:
        """Settle the future as cancelled unless its result has arrived, and notify the actor."""


class RemoteFuture(concurrent.futures.Future[T]):
    """The future of a call: of a method of a `wait=False` class, of `submit`, or of a function.

    It is a `concurrent.futures.Future`, can be awaited, and has PARL's methods `get`, `get_nowait` and `empty`.
    Callbacks run one after the other in a separate thread and may wait for other calls; one that is added when the call
    has ended runs at once.
    """

    # Defaults for what the base class would set one by one, and per instance only where needed.
    _state: str = PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _made_condition: threading.Condition | None = None
    _blocked: list[Any] | None = None
    _call_id: int = 0
    _answer: RemoteFuture[Any] | None = None  # of the worker that runs it, where it is a call of a function

    wait_any = staticmethod(wait_any)

    def __init__(self, carrier: Carrier | None, owner: object = None, method: str = "") -> None:
        # Not super().__init__(): making its condition costs as much as the rest of a call.
        self._carrier = carrier
        self._owner = owner  # keeps the actor alive until its result is there
        self.method = method

    def _condition_of(self) -> threading.Condition:
        condition = self._made_condition
        if condition is None:
            # Made before the lock is taken: to make them may run a finalizer, which may wait for another future.
            waiters: list[Any] = []
            callbacks: list[Callable[[concurrent.futures.Future[T]], Any]] = []
            made = Condition()
            with _making_condition:
                condition = self._made_condition
                if condition is None:
                    self._waiters = waiters
                    self._done_callbacks = callbacks
                    self._made_condition = condition = made
            carrier = self._carrier
            if carrier is not None:
                with uninterrupted:
                    carrier.watch(self)
        return condition

    if not TYPE_CHECKING:  # for type checkers it is the attribute that the base class has
        _condition = property(_condition_of, doc="Made lazily, see the module's docstring.")

    @property
    def _settled(self) -> bool:
        """Return whether the result, the exception or the cancellation has been set."""
        return self._state is not PENDING and self._state != RUNNING

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result and return it; any later call returns it again.

        Args:
            timeout: Seconds to wait; None waits without limit.

        Raises:
            ResultTimeout: The result did not arrive before the timeout; the call continues.
            concurrent.futures.CancelledError: The call was cancelled.
            Exception: The exception that the method raised.
            SystemExit: The actor was lost because the program is ending, and this is a daemon thread, which ends
                without a traceback.
        """
        if self._state is not FINISHED:
            self._wait(timeout)
        if self._exception is not None:
            __tracebackhide__ = True  # pytest shows the caller's line, not this function
            # What is raised belongs to its catcher: its traceback holds the frames of all callers, with their
            # proxies, and a future that held it too would keep them, and so the actors, until the garbage collector
            # comes by. The future keeps one of the same kind for the next caller.
            error = self._exception
            self._exception = without_traceback(error)
            try:
                if isinstance(error, ActorLost) and program_ends.is_set() and threading.current_thread().daemon:
                    raise SystemExit from error
                raise error
            finally:
                del self, error
        result: T = self._result
        return result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end of the call and return its exception; return None if it raised none.

        Args:
            timeout: Seconds to wait; None waits without limit.

        Raises:
            ResultTimeout: The call did not end before the timeout; it continues.
            concurrent.futures.CancelledError: The call was cancelled.
        """
        if self._state is not FINISHED:
            self._wait(timeout)
        return self._exception

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Return the result, as `result` does; this is PARL's name for it.

        Args:
            block: Whether to wait for the result.
            timeout: Seconds to wait; None waits without limit.

        Raises:
            ResultTimeout: The result has not arrived, or did not arrive before the timeout.
            Exception: What `result` raises.
        """
        if block:
            return self.result(timeout)
        return self.get_nowait()

    def get_nowait(self) -> T:
        """Return the result without waiting.

        Raises:
            ResultTimeout: The result has not arrived.
            Exception: What `result` raises.
        """
        if not self.done():
            raise ResultTimeout(f"the result of {self.method}() is not there yet")
        return self.result()

    def empty(self) -> bool:
        """Return whether the call is still pending: the opposite of `done`, under PARL's name."""
        return not self.done()

    def done(self) -> bool:
        """Return whether the call has ended or was cancelled; read arrived answers without waiting."""
        if self._state is PENDING:
            carrier = self._carrier
            if carrier is not None:
                with uninterrupted:
                    carrier.look()
        return self._settled

    def running(self) -> bool:
        """Return whether the call is in progress; a call of an actor counts as running while the actor queues it."""
        if self._state is PENDING and self._carrier is None:
            return False
        return not self.done()

    def cancelled(self) -> bool:
        """Return whether the call was cancelled."""
        return self._state in _CANCELLED

    def cancel(self) -> bool:
        """Cancel the call.

        If the call has not started, its actor drops it. If it runs as a coroutine, its task is cancelled. A running
        method is not interrupted; its result is discarded.

        Returns:
            True if the call is cancelled. False if it has ended or another thread is just sending it; also if it has
            begun and belongs to an executor, a remote function or a pool, whose calls run to their end.
        """
        if self.done():
            return self.cancelled()
        carrier = self._carrier
        if carrier is None:
            return super().cancel()
        with uninterrupted:
            return carrier.cancel(self)

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited(cancels=True)

    def _awaited(self, *, cancels: bool) -> Generator[Any, None, T]:
        """Implement `await`; `cancels` is whether the call is cancelled together with the task that awaits it."""
        while not self._settled:
            import asyncio  # a program that awaits has imported it

            carrier, loop = self._carrier, asyncio.get_running_loop()
            if carrier is None:
                wrapped = asyncio.wrap_future(self)
                yield from (wrapped if cancels else asyncio.shield(wrapped)).__await__()
                break
            waiting = _Awaiting(loop)
            self._block(waiting)
            try:
                carrier.await_in(loop, self)
                if not self._settled and self._carrier is carrier:  # looked at after `waiting` can be seen
                    yield from waiting.news
            except asyncio.CancelledError:
                if cancels:
                    self.cancel()
                raise
            finally:
                self._unblock(waiting)
        return self.result()

    def _block(self, waiter: Any) -> None:
        """Call `wake` of a waiter when the future is settled or has another carrier."""
        self.__dict__.setdefault("_blocked", []).append(waiter)  # in one step: several threads may begin to wait

    def _unblock(self, waiter: Any) -> None:
        """Undo `_block`."""
        if self._blocked is not None:
            self._blocked.remove(waiter)

    def _then(self, action: Callable[[RemoteFuture[T]], None]) -> None:
        """Run an action, which must not wait, in the thread that settles the future, or now; once and uninterrupted.

        It costs a fraction of `add_done_callback`, whose condition the standard library's waiters need.
        """
        waiter = _Action(self, action)
        self._block(waiter)
        waiter.wake()

    def _wake_blocked(self) -> None:
        """Wake all waiters to check again, because the future has another carrier."""
        if self._blocked is not None:
            for waiter in tuple(self._blocked):
                waiter.wake()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise FuturePickled(
            f"the future of {self.method}() belongs to its process and cannot be pickled or copied: send its result(). "
            "Calls of actors and functions take a future that is an argument by itself, and wait for its result"
        )

    def __repr__(self) -> str:
        outcome = ""
        if self._state is FINISHED:
            what = self._result if self._exception is None else self._exception
            outcome = f" {'returned' if self._exception is None else 'raised'} {type(what).__name__}"
        of = f" of {self.method}" if self.method else ""
        return f"<{type(self).__name__}{of} at {id(self):#x} state={_STATE_NAMES[self._state]}{outcome}>"

    def _repr_html_(self) -> str:
        done = self._state is FINISHED
        error = self._exception if done else None
        return _display.future_html(
            self.method, _STATE_NAMES[self._state], self._result if done and error is None else None, error
        )

    def set_running_or_notify_cancel(self) -> bool:
        """Mark the future as running, for executors; as in the base class, but without a condition if none waits."""
        with _making_condition:
            if self._made_condition is None and self._state is PENDING:
                self._state = RUNNING
                return True
        return super().set_running_or_notify_cancel()

    def _wait(self, timeout: float | None) -> None:
        """Wait until the future is settled; raise `ResultTimeout`, or `CancelledError` if it was cancelled."""
        deadline = deadline_of("timeout", timeout)
        with uninterrupted:
            self._wait_until(deadline, timeout)
        if self._state in _CANCELLED:
            raise concurrent.futures.CancelledError

    def _wait_until(self, deadline: float | None, timeout: float | None = None) -> None:
        """Wait until the future is settled, in the thread's own uninterrupted steps; `timeout` is for the message.

        Raises:
            ResultTimeout: The deadline has passed.
        """
        while not self._settled:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            carrier = self._carrier
            if carrier is None:
                self._wait_on_condition(left)
            else:
                carrier.wait_for(self, left)
            if deadline is not None and not self._settled and time.monotonic() >= deadline:
                who = f"{self.method}()" if self._carrier is not None else self.method or "the call"
                raise ResultTimeout(f"{who} did not answer within {timeout} s; it continues")

    def _wait_on_condition(self, timeout: float | None) -> None:
        answer = self._answer
        carrier = None if answer is None or has_own_handlers() else answer._carrier
        if answer is not None and carrier is not None:  # this thread reads the answer itself
            carrier.wait_for(answer, timeout)
            return
        if is_in_finalizer():
            raise RemoteError(WAITS_IN_FINALIZER)
        condition = self._condition_of()
        with condition:
            condition.wait_for(lambda: self._settled, None if timeout is None else min(timeout, threading.TIMEOUT_MAX))

    def _settle(self, result: T | None, exception: BaseException | None = None, *, cancelled: bool = False) -> None:
        """Set the outcome and wake all waiters; called once, by the part of the package that has the outcome."""
        if type(result) is RemoteIterator and self._owner is not None:
            owner: Any = self._owner  # the reference to the actor, alone or before what it sent
            result._parl_bind(owner[0] if type(owner) is tuple else owner)
        state = CANCELLED_AND_NOTIFIED if cancelled else FINISHED
        with _making_condition:
            condition = self._made_condition
            if condition is None:  # one that is made now finds the future settled: waiters take it, then look
                self._result, self._exception, self._state = result, exception, state
        if condition is not None:
            with condition:
                self._result, self._exception, self._state = result, exception, state
                for waiter in self._waiters:
                    if cancelled:
                        waiter.add_cancelled(self)
                    elif exception is not None:
                        waiter.add_exception(self)
                    else:
                        waiter.add_result(self)
                condition.notify_all()
        self._carrier = self._answer = None
        self._owner = None  # outside the locks: it may be the last reference to an actor
        # The state is set before these are looked at, and waiters look at the state after they have put themselves
        # there: one of both sees the other.
        if self._blocked is not None:
            for waiter in tuple(self._blocked):
                waiter.wake()
        if condition is not None and self._done_callbacks:
            users = [callback for callback in self._done_callbacks if not _is_quick(callback)]
            if users and _callback_thread[0].run(functools.partial(self._run, users)):  # this one may read answers
                self._done_callbacks = [callback for callback in self._done_callbacks if _is_quick(callback)]
            self._invoke_callbacks()

    def _invoke_callbacks(self) -> None:
        """Run the callbacks here, also for the base class: a program may cancel the future, or settle it itself."""
        self._wake_blocked()
        callbacks = self._done_callbacks
        if not callbacks:
            return
        depth = getattr(_nested, "depth", 0)
        if depth == _DEEPEST:
            with contextlib.suppress(RuntimeError):  # no thread can be had, or the interpreter ends
                threading.Thread(target=self._run, args=(callbacks,), daemon=True).start()
                return
        _nested.depth = depth + 1
        try:
            self._run(callbacks)
        finally:
            _nested.depth = depth

    def _run(self, callbacks: Sequence[Callable[[concurrent.futures.Future[T]], Any]]) -> None:
        """Run callbacks; if one raises an error, the others still run, and the thread that reads answers continues."""
        interrupt: BaseException | None = None
        for callback in callbacks:
            try:
                callback(self)
            except BaseException as error:
                if is_by_handler(error):  # Ctrl-C while the callback waited
                    interrupt = error
                else:
                    LOGGER.exception("exception calling callback for %r", self)
        if interrupt is not None:
            raise interrupt


def _is_quick(callback: Any) -> bool:
    """Return whether a callback belongs to this package or to asyncio and therefore never waits."""
    module = getattr(callback.func if isinstance(callback, functools.partial) else callback, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in {_OURS, "asyncio"}


_OURS = __name__.partition(".")[0]


class CallbackThread:
    """A thread that runs users' callbacks one after the other, and ends when there are none for a while.

    Args:
        is_awaited: Whether a program that ends waits for the remaining callbacks.
    """

    def __init__(self, *, is_awaited: bool = True) -> None:
        self._is_awaited = is_awaited
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a finalizer may settle a future while this thread is in here
        self._runs = False
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def run(self, action: Callable[[], None]) -> bool:
        """Run an action after all others; return False if no thread can be started."""
        if self._pid != os.getpid():  # the thread was not copied
            _callback_thread[0] = CallbackThread()
            return _callback_thread[0].run(action)
        with self._lock:
            if not self._runs:
                self._runs = True
                try:
                    threading.Thread(target=self._work, name="parl-callbacks", daemon=True).start()
                except RuntimeError:
                    self._runs = False
                    return False
                if self._is_awaited:
                    atexit.unregister(self._finish)
                    atexit.register(self._finish)  # anew, to come before the end of a later connection
            self._waiting.put(action)
        return True

    def _finish(self) -> None:
        """Wait for the remaining callbacks, at the end of the program."""
        if self._pid != os.getpid():
            return
        finished = threading.Event()
        with self._lock:
            if not self._runs:
                return
            self._waiting.put(finished.set)
        if not finished.wait(_PATIENCE_S):
            LOGGER.warning("the program has ended but for callbacks of futures, which it waits for; Ctrl-C ends it")
            finished.wait()

    def _work(self) -> None:
        while True:
            try:
                action = self._waiting.get(timeout=_IDLE_S)
            except Empty:
                if self._end():
                    return
                continue
            action()
            del action

    def _end(self) -> bool:
        """Return whether there is nothing to do, after which the next action starts another thread."""
        with self._lock:
            if self._waiting.empty():
                self._runs = False
            return not self._runs


may_wait_in_finalizers(CallbackThread._work)  # drops callbacks, and their objects, where nothing is half done
_callback_thread = [CallbackThread()]
