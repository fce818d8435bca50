"""The calls of this process to one actor, until they are handed to a connection.

    submit --nothing waits?--> connection.send                     in the caller's thread, without waiting
           --else--> frozen and queued --next()--> connection.send  by the thread that reports what it waited for
    settle <--GONE: fails with the cause; cancelled: never sent

`outbox_state` makes the decisions; this module has the lock, the futures and the threads. A call is sent by the thread
that makes it possible: the thread that settles an awaited future, the loop that finds a socket writable, or the thread
that has restarted the actor.

`max_pending_calls` limits unanswered calls: a call above the limit waits for an answer, which its own thread reads, or
raises.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from parl_remote._data.calls import Call
from parl_remote._future import RemoteFuture, Waiter, leave_to_parent
from parl_remote._links.call_messages import Kind
from parl_remote._program.outbox_state import OutboxEvent, OutboxMachine, OutboxState
from parl_remote._streams import stream_method
from parl_remote._system.interrupts import is_in_finalizer
from parl_remote.errors import WAITS_FOR_ITSELF, WAITS_IN_FINALIZER, ChannelClosed, RemoteError, TooManyPendingCalls

if TYPE_CHECKING:
    import asyncio

__all__ = ["CallPath", "OpenPath", "Outbox"]

_CALL = int(Kind.CALL)


class CallPath(Protocol):
    """A path to an actor: a connection, or a host within this process.

    Attributes:
        outbox: The outbox to notify when the path can take calls again; None before there is one.
    """

    outbox: Outbox | None

    def send(self, call: Call, future: RemoteFuture[Any]) -> bool:
        """Send a call without waiting, and become the carrier of its future, which is settled with the answer.

        Returns:
            False if the path is full; it notifies its `outbox` when it can take calls again.

        Raises:
            ChannelClosed: The actor is gone, and the call did not reach it.
            Exception: The call cannot be sent, to no actor.
        """

    def is_full(self) -> bool:
        """Return whether the path cannot take calls now."""

    def is_sending_here(self) -> bool:
        """Return whether this thread is within `send`: a signal handler or a finalizer has interrupted it."""

    def report_loss(self) -> None:
        """Ensure, without waiting, that the outbox gets the actor's end or restart: a call has met its loss."""

    def read_unawaited(self) -> None:
        """Read answers that no thread waits for, if they would block the actor."""


class OpenPath:
    """The common part of paths that can always take calls; see `CallPath`."""

    outbox: Outbox | None = None

    def is_full(self) -> bool:
        """Return False."""
        return False

    def is_sending_here(self) -> bool:
        """Return False: no call waits for a send."""
        return False

    def report_loss(self) -> None:
        """Do nothing: no call meets it, `send` waits or fails."""

    def read_unawaited(self) -> None:
        """Do nothing: no answer has to be read."""


class _Held:
    """A call that waits in the outbox; not a dataclass, which would cost every program half a millisecond at start."""

    __slots__ = ("call", "futures")

    def __init__(self, call: Call, futures: Sequence[RemoteFuture[Any]]) -> None:
        self.call = call
        self.futures = futures


class Outbox:
    """The queue of this process's calls to one actor; the carrier of futures whose calls have not been sent.

    Args:
        path: The path to the actor; None while there is none.
    """

    def __init__(self, path: CallPath | None) -> None:
        self._machine: OutboxMachine[Any] = OutboxMachine(OutboxState.RESTARTING if path is None else OutboxState.LIVE)
        self._lock = threading.RLock()  # a finalizer may call the actor while this thread is in here
        self._held: dict[RemoteFuture[Any], _Held] = {}
        self._live = path
        self._path = path  # the same while calls may be sent at once, else None
        self._waits = True
        self._slots: dict[_Slot, None] = {}
        self._sender: int | None = None  # the thread that sends the first call here
        self._error: Callable[[], BaseException] = _no_actor
        if path is not None:
            path.outbox = self

    @property
    def path(self) -> CallPath | None:
        """The path to the actor; None while there is none."""
        return self._live

    @property
    def unsent(self) -> int:
        """Return the number of calls that wait here."""
        return len(self._held)

    @property
    def is_sending(self) -> bool:
        """Return whether the first call here is sent as soon as the path takes it."""
        with self._lock:
            return self._machine.is_sending

    def limit(self, calls: int | None, *, waits: bool) -> None:
        """Set the maximum number of unanswered calls, and whether a call above it waits or raises."""
        self._machine.limit = calls
        self._waits = waits

    def submit(self, call: Call, futures: Sequence[RemoteFuture[Any]] = ()) -> RemoteFuture[Any]:
        """Send a call as soon as possible, after earlier calls; does not wait, except for a slot.

        Args:
            call: The call.
            futures: The futures among its arguments, by their numbers.

        Raises:
            TooManyPendingCalls: All slots are taken, and `when_full` is "raise" or the thread runs an event loop.
            Exception: The call cannot be sent.
        """
        slot = None
        # The reading of a generator is not limited: its next part is asked for ahead, and it has to be closed.
        if self._machine.limit is not None and call.kind == _CALL and stream_method(call.method) is None:
            call, slot = self._enter(call)
        future: RemoteFuture[Any] = RemoteFuture(None, call.owner, call.method)
        try:
            path = self._path
            if futures and path is not None and all(one._settled for one in futures):
                with contextlib.suppress(Exception, concurrent.futures.CancelledError):  # reported when it would leave
                    call, futures = call.completed([one.result() for one in futures]), ()
            if path is None or futures:
                self._hold(call, future, futures)
            else:
                try:
                    if not path.send(call, future):
                        self._hold(call, future)
                except ChannelClosed:
                    self._hold(call, future)
                    self._path_closed(path)
        except BaseException:
            if slot is not None:
                self._leave(slot)
            raise
        if slot is not None:
            slot.keep(future)
        return future

    def give_back(self, call: Call, future: RemoteFuture[Any]) -> None:
        """Take back a call that a connection took and could not send before the actor was lost."""
        future._carrier = self
        with self._lock:
            self._path = None
            is_kept = self._machine.give_back(future)
            if is_kept:
                self._held[future] = _Held(call, ())
        if not is_kept:
            future._settle(None, self._error())
        self._tell_moved(future)
        self._advance()

    def read_unawaited(self) -> None:
        """Read answers that no thread waits for, if they would block the actor."""
        live = self._live
        if live is not None:
            live.read_unawaited()

    # -- what becomes of the actor -----------------------------------------------------------------------------------

    def on_writable(self) -> None:
        """Send the waiting calls, because the path takes calls again."""
        with self._lock:
            self._machine.on(OutboxEvent.WRITABLE)
        self._advance()

    def lost(self) -> None:
        """Queue calls from now on: the actor is lost, and `made` or `end` will follow."""
        with self._lock:
            self._path = self._live = None
            self._machine.on(OutboxEvent.LOST)

    def made(self, path: CallPath) -> None:
        """Send the waiting calls and all later calls to another actor."""
        path.outbox = self
        with self._lock:
            if self._machine.on(OutboxEvent.MADE):
                self._live = path
        self._advance()

    @property
    def is_over(self) -> bool:
        """Return whether the actor has ended for good."""
        return self._machine.state is OutboxState.GONE

    def end(self, error: Callable[[], BaseException]) -> None:
        """Fail the waiting calls and all later calls; a second call does nothing.

        Args:
            error: Returns the error of a call; called for each.
        """
        with self._lock:
            if self._machine.state is OutboxState.GONE:
                return
            self._error = error
            self._path = self._live = None
            failed = self._machine.end()
            for future in failed:
                del self._held[future]
            admitted = self._machine.admit_all()
            self._slots.update(dict.fromkeys(admitted))
        for future in failed:
            future._settle(None, error())
        for waiting in admitted:
            waiting.admit()

    def abandon(self, error: Callable[[], BaseException]) -> None:
        """Fail later calls, in a forked child; the waiting calls belong to the parent."""
        leave_to_parent(self._held, error)
        self._lock = threading.RLock()  # the thread that held it was not copied
        self._machine = OutboxMachine(OutboxState.GONE)
        self._error = error
        self._path = self._live = None
        self._held = {}

    def _path_closed(self, path: CallPath) -> None:
        """Record that a call met the actor's loss; another link reports its end or restart."""
        with self._lock:
            if path is not self._live:
                return
            self._path = self._live = None
            self._machine.on(OutboxEvent.LOST)
        path.report_loss()

    # -- future.Carrier ----------------------------------------------------------------------------------------------

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> None:
        """Wait until the call has left for a connection, or is settled.

        Raises:
            RemoteError: This thread is sending a call before it, which a signal handler or a finalizer has interrupted;
                or a finalizer waits that may have interrupted the thread that has to send it.
        """
        waiter = Waiter()
        future._block(waiter)
        try:
            if (
                not future._settled and future._carrier is self
            ):  # looked at now that the thread that moves it can see us
                live = self._live
                if self._sender == get_ident() or (live is not None and live.is_sending_here()):
                    raise RemoteError(WAITS_FOR_ITSELF)
                if is_in_finalizer():
                    raise RemoteError(WAITS_IN_FINALIZER)
                waiter.sleep(timeout_s)
        finally:
            future._unblock(waiter)

    def look(self) -> None:
        """Do nothing: calls are sent without it as soon as possible."""

    def watch(self, future: RemoteFuture[Any]) -> None:
        """Do nothing: the awaited futures are watched, and later the connection."""

    def await_in(self, loop: asyncio.AbstractEventLoop, future: RemoteFuture[Any]) -> None:
        """Do nothing: the awaited futures are watched, and later the connection."""

    def cancel(self, future: RemoteFuture[Any]) -> bool:
        """Settle the future as cancelled if its call still waits here; else pass the cancellation to its connection."""
        with self._lock:
            is_here = self._machine.cancel(future)
            if is_here:
                del self._held[future]
        if not is_here:  # another thread is sending it, or has
            carrier = future._carrier
            return carrier is not None and carrier is not self and carrier.cancel(future)
        future._settle(None, cancelled=True)
        self._advance()
        return True

    # -- the queue ---------------------------------------------------------------------------------------------------

    def _hold(self, call: Call, future: RemoteFuture[Any], futures: Sequence[RemoteFuture[Any]] = ()) -> None:
        """Queue a call, and send the calls that can be sent."""
        future._carrier = self
        held = _Held(call.frozen(), futures)
        with self._lock:
            self._path = None
            is_kept = self._machine.add(future, len(futures))
            if is_kept:
                self._held[future] = held
        if not is_kept:
            future._settle(None, self._error())
            return
        if futures:
            settled = functools.partial(self._settled, future)
            for one in futures:
                one.add_done_callback(settled)
        else:
            self._advance()

    def _settled(self, future: RemoteFuture[Any], _: object) -> None:
        with self._lock:
            self._machine.settled(future)
        self._advance()

    def _advance(self) -> None:
        """Send the calls that can be sent."""
        machine, me = self._machine, get_ident()
        while True:
            with self._lock:
                live = self._live
                future = None if live is None else machine.next()
                if live is None or future is None:
                    if machine.is_direct:
                        self._path = live
                    return
                self._sender = me  # before any call: a handler that waits has to see it
                held = self._held[future]
            is_full = False
            try:
                if held.futures:
                    held.call = held.call.completed([one.result() for one in held.futures])
                    held.futures = ()
                if live.send(held.call, future):
                    self._has_left(future)
                else:
                    is_full = True
            except ChannelClosed:
                self._stays(future)
                self._path_closed(live)
            except BaseException as error:
                self._has_left(future)
                if not future._settled:
                    is_cancelled = isinstance(error, concurrent.futures.CancelledError)
                    future._settle(None, None if is_cancelled else error, cancelled=is_cancelled)
                if not isinstance(error, Exception):
                    raise
            if is_full:
                with self._lock:
                    is_replaced = live is not self._live
                    if not is_replaced:
                        machine.on(OutboxEvent.REFUSED)
                self._stays(future)
                if is_replaced:
                    continue  # no event will report that the lost actor's path takes calls again
                if not live.is_full():  # it was full, and the thread that emptied it found this call still leaving
                    self.on_writable()
                return

    def _has_left(self, future: RemoteFuture[Any]) -> None:
        with self._lock:
            self._machine.has_left()
            self._sender = None
            del self._held[future]
        self._tell_moved(future)

    def _stays(self, future: RemoteFuture[Any]) -> None:
        with self._lock:
            is_kept = self._machine.stays()
            self._sender = None
            if not is_kept:
                del self._held[future]
        if not is_kept:
            future._settle(None, self._error())

    def _tell_moved(self, future: RemoteFuture[Any]) -> None:
        """Wake the threads that wait for a future whose carrier has changed; they continue with the new carrier."""
        future._wake_blocked()
        carrier = future._carrier
        if carrier is not None and future._made_condition is not None:
            carrier.watch(future)

    # -- slots -------------------------------------------------------------------------------------------------------

    def _enter(self, call: Call) -> tuple[Call, _Slot]:
        """Take a slot for a call, and wait for one if allowed; return the call, frozen if that took time."""
        slot = _Slot(self)
        with self._lock:
            if self._machine.enter():
                self._slots[slot] = None
                return call, slot
            if self._waits and not _runs_event_loop():
                self._machine.await_slot(slot)
            else:
                raise TooManyPendingCalls(
                    f"{self._machine.limit} calls are unanswered, which is what max_pending_calls allows; wait for a "
                    'result before the next call, or leave out when_full="raise" (on an event loop, await a result: '
                    "no call waits there)",
                    limit=self._machine.limit or 0,
                )
        try:
            call = call.frozen()
            while not slot.is_taken:
                self._await_answer(slot)
        except BaseException:
            with self._lock:
                gave_up = self._machine.give_up_slot(slot)
            if not gave_up:
                self._leave(slot)
            raise
        return call, slot

    def _await_answer(self, slot: _Slot) -> None:
        """Wait until the slot is taken, or until the wait has to continue elsewhere; read answers if possible."""
        with self._lock:
            oldest = next((one.future for one in self._slots if one.future is not None), None)
        carrier = None if oldest is None else oldest._carrier
        if oldest is None or carrier is None:
            slot.sleep(_MOMENT_S)
        elif carrier is self:
            self.wait_for(oldest, _LONG_S)
        else:
            slot.beside = oldest, carrier
            carrier.wait_for(slot, None)  # type: ignore[arg-type]  # a slot has what this needs of a future

    def _leave(self, slot: _Slot) -> None:
        """Free a slot; a second call does nothing."""
        with self._lock:
            if self._slots.pop(slot, self) is self:
                return
            following = self._machine.leave()
            if following is not None:
                self._slots[following] = None
        if following is not None:
            following.admit()


_MOMENT_S = 0.005  # others that have a slot are about to send; they have no future yet that could be waited for
_LONG_S = 1.0  # a call that waits here is sent or fails; in either case others may have freed a slot before


class _Slot:
    """The slot of one call, freed when the call's future is settled.

    For the thread that waits for the slot it acts as a future, which is settled when the slot is taken or when the
    oldest call has another carrier.
    """

    __slots__ = ("__weakref__", "_blocked", "_outbox", "beside", "future", "is_taken")

    _carrier = None  # answers on any connection free slots
    method = "a slot"

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._blocked: list[Waiter] = []
        self.future: RemoteFuture[Any] | None = None
        self.is_taken = False
        self.beside: tuple[RemoteFuture[Any], object] | None = None

    @property
    def _settled(self) -> bool:
        """Return whether the waiting thread has to check again."""
        if self.is_taken or self.beside is None:
            return True
        oldest, carrier = self.beside
        return oldest._settled or oldest._carrier is not carrier

    def admit(self) -> None:
        """Give the slot to the thread that waits for it, and wake the thread."""
        self.is_taken = True
        for waiter in tuple(self._blocked):
            waiter.wake()

    def keep(self, future: RemoteFuture[Any]) -> None:
        """Keep the slot until a future is settled."""
        self.future = future
        future._block(self)
        if future._settled:  # looked at after the slot can be seen: one of both frees it
            self.wake()

    def wake(self) -> None:
        """Free the slot if its future is settled; a second call does nothing."""
        future = self.future
        if future is not None and future._settled:
            self.future = None
            self._outbox._leave(self)

    def _block(self, waiter: Waiter) -> None:
        """Wake a thread when the slot is taken."""
        self._blocked.append(waiter)

    def _unblock(self, waiter: Waiter) -> None:
        """Stop waking a thread."""
        self._blocked.remove(waiter)

    def sleep(self, timeout_s: float) -> None:
        """Wait until the slot is taken."""
        waiter = Waiter()
        self._block(waiter)
        if not self.is_taken:
            waiter.sleep(timeout_s)
        self._unblock(waiter)


def _runs_event_loop() -> bool:
    """Return whether an event loop runs in this thread, which must not be blocked."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def _no_actor() -> BaseException:
    return ChannelClosed("there is no actor")
