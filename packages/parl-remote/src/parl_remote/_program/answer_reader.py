"""The thread that reads the answers on a connection: its selection, and the hand-over to the next one.

    waiters    --wait_for--> the first one reads for all (the leader), the others sleep; when the leader has its own
                             result it wakes one waiter, who leads on
    await                --> the event loop reads in its own thread, while no other thread leads
    futures with callbacks, wait()  --> the background loop reads, while no thread leads

A blocking call therefore writes and reads in its own thread, and no other thread has to wake up for it. Answers that
no thread waits for are read from time to time, so that the actor never waits until it can write them.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from parl_remote._future import RemoteFuture, Waiter
from parl_remote._links.loop import EventLoopReader, Loop
from parl_remote._system.facilities import wait_for_input, waiting_bytes
from parl_remote._system.interrupts import uninterrupted
from parl_remote._transport import Channel
from parl_remote.errors import WAITS_FOR_ITSELF, ChannelClosed, RemoteError, RemoteProtocolError, ResultTimeout

if TYPE_CHECKING:
    import asyncio

__all__ = ["UNSENT", "AnswerReader"]

_TURN_S = 0.005  # seconds for which an event loop reads from all connections together before its tasks have their turn
_POLL_S = 0.05  # a poll takes the interpreter from the thread that makes calls, which mostly reads the answers itself
_POLL_AGAIN_S = 0.01  # after a poll that found something
_POLL_SOON_S = 0.001  # after one that found many bytes
_MANY_BYTES = 2**15  # an eighth of what a socket takes before its actor has to wait
_LONGEST_POLL_S = 1.0
UNSENT = "what the channel did not take"  # among what is watched: it reads while it cannot write


class AnswerReader(ABC):
    """Reads the messages of one channel, one thread at a time; the carrier of the futures that wait for them.

    The subclass, `connection.Connection`, interprets the messages and writes.

    Args:
        channel: The channel.
        background: Returns the loop that reads for futures that no thread waits for in `wait_for`.
    """

    def __init__(self, channel: Channel, background: Callable[[], Loop]) -> None:
        self._channel = channel
        # Pipelined answers come many at a time; a transport that can hand them over so saves a call each.
        self._receive_all: Callable[[deque[list[memoryview]], float | None], None] = getattr(
            channel, "receive_all", lambda into, timeout_s: into.append(channel.receive(timeout_s))
        )
        self._background = background
        # Weakly, or a future without references would keep its actor for as long as its answer is not read.
        self._pending: dict[int, weakref.ref[RemoteFuture[Any]]] = {}
        self._arrived: deque[list[memoryview]] = deque()
        self._reading = threading.RLock()
        self._reader = 0  # the thread that holds it; not yet known, or no longer, for a moment at either end
        self._is_receiving = False
        self._followers: list[Waiter] = []
        self._watched: set[object] = set()  # futures, and `UNSENT`
        self._watching = threading.RLock()  # a finalizer may call the actor while this thread is in there
        self._loop: Loop | None = None  # the background loop, while it watches the channel
        self._event_loop: EventLoopReader | None = None
        self._awaited: set[RemoteFuture[Any]] = set()  # in the event loop
        self._poll_interval_s = 0.0  # between polls for answers that no thread waits for; 0 without polls
        self._was_read = False  # by a thread, since the last poll
        self._is_lost = False
        self._is_full = False  # the channel has the rest of a message; the background writes it

    @abstractmethod
    def take_message(self, frames: list[memoryview]) -> None:
        """Settle the future of an answer, or handle another message."""

    @abstractmethod
    def lose(self) -> None:
        """Fail all pending calls: the peer is gone."""

    @abstractmethod
    def cancel(self, future: RemoteFuture[Any]) -> bool:
        """Settle the future as cancelled unless its result has arrived, and notify the actor."""

    @abstractmethod
    def write(self) -> None:
        """Write as much as the channel takes of the messages that it did not take before."""

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> None:
        """Read answers, or wait for the thread that reads them, until the future is settled or the timeout is over."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        me = get_ident()
        leads = self._reader == me  # called by a handler or a finalizer while this same thread reads
        if self._is_full:
            self.write()
        try:
            # Any other future is settled, or was given back and leaves by another connection. A slot has no carrier.
            while future._carrier is self or (future._carrier is None and not future._settled):
                if leads or self._reading.acquire(blocking=False):
                    self._reader = me
                    if self._loop is not None:
                        self._stop_watching()
                    try:
                        while not future._settled:
                            self._take(None if deadline is None else max(0.0, deadline - time.monotonic()))
                        return
                    except ResultTimeout:
                        return
                    except (ChannelClosed, RemoteProtocolError):
                        self.lose()
                elif not self._follow(future, deadline):
                    return
        finally:
            if leads:
                self._hand_over()
            else:
                self.leave()

    def look(self) -> None:
        """Settle the futures whose answers have arrived, unless another thread reads."""
        if self._reader != get_ident() and self._reading.acquire(blocking=False):
            self._drain_and_release()
            self._hand_over()

    def _follow(self, future: RemoteFuture[Any], deadline: float | None) -> bool:
        """Sleep until the future is settled or the leader has left; return False once the deadline has passed."""
        waiter = Waiter()
        future._block(waiter)
        self._followers.append(waiter)
        try:
            # Looked at again now that others can see us: see RemoteFuture._settle and _hand_over.
            if not future._settled and self._reader:
                waiter.sleep(None if deadline is None else deadline - time.monotonic())
        finally:
            future._unblock(waiter)
            if waiter in self._followers:
                self._followers.remove(waiter)
        return deadline is None or time.monotonic() < deadline

    def _hand_over(self) -> None:
        """Wake a follower or start background watching, so that another one reads when this thread stops."""
        if self._followers and not self._reader:
            with contextlib.suppress(IndexError):  # it left by itself
                self._followers[0].wake()
        if self._watched and self._loop is None and not self._reader:
            self._start_watching()
        event_loop = self._event_loop
        if event_loop is not None and self._awaited:
            with contextlib.suppress(RuntimeError):  # it is closed
                event_loop.loop.call_soon_threadsafe(self._resume, event_loop)

    def _take(self, timeout_s: float | None, *, one: bool = False) -> None:
        """Wait for answers and settle those that arrive together, or only the first of them.

        It is refused within itself, where a signal handler or a finalizer has interrupted it.
        """
        arrived = self._arrived
        if not arrived:
            if self._is_receiving:
                raise RemoteError(WAITS_FOR_ITSELF)
            self._is_receiving = True
            try:
                self._receive_all(arrived, timeout_s)
            finally:
                self._is_receiving = False
            self._was_read = True
        while arrived:
            self.take_message(arrived.popleft())
            if one:
                return

    def _settle(
        self, future: RemoteFuture[Any], value: Any, error: BaseException | None = None, *, cancelled: bool = False
    ) -> None:
        try:
            future._settle(value, error, cancelled=cancelled)
        finally:  # behind it: see `watch`
            self._unwatch(future)

    def _unwatch(self, future: RemoteFuture[Any]) -> None:
        self._watched.discard(future)
        self._awaited.discard(future)

    def _drain_and_release(self) -> None:
        self._reader = get_ident()
        try:
            self.drain()
        finally:
            self._reader = 0
            self._release_reading()

    def _release_reading(self) -> None:
        """Release the leader's lock completely if this thread holds it, however often it was acquired."""
        while self._reading._is_owned():  # type: ignore[attr-defined]  # not in its stub, but Condition asks it, too
            self._reading.release()

    # -- what `future.wait_any` needs, by which one thread reads several connections -------------------------------

    def is_led_here(self) -> bool:
        """Return whether this thread is the one that reads."""
        return self._reader == get_ident()

    def lead(self) -> bool:
        """Start to read for all threads; return False if another thread does."""
        leads = self._reading.acquire(blocking=False)
        if leads:
            self._reader = get_ident()
            if self._loop is not None:
                self._stop_watching()
        return leads

    def leave(self) -> None:
        """Stop reading if this thread does, and hand over to a thread that waits."""
        if self._reader == get_ident():
            self._reader = 0
        while self._reading._is_owned():  # type: ignore[attr-defined]  # see `_release_reading`; in place for speed
            self._reading.release()
        if self._followers or self._watched or self._event_loop is not None:
            self._hand_over()

    def drain(self) -> None:
        """Settle the answers that have arrived, without waiting for more."""
        try:
            while True:
                self._take(0.0)
        except ResultTimeout:
            pass
        except (ChannelClosed, RemoteProtocolError):
            self.lose()

    def has_read_ahead(self) -> bool:
        """Return whether data has arrived that the descriptor does not signal."""
        return bool(self._arrived) or self._channel.pending()

    def fileno(self) -> int:
        """Return the channel's descriptor, for the background loop."""
        return self._channel.fileno()

    def pending(self) -> bool:
        """Return whether the channel has data read ahead and no thread leads."""
        return not self._reader and self.has_read_ahead()

    # -- an event loop ---------------------------------------------------------------------------------------------

    def await_in(self, loop: asyncio.AbstractEventLoop, future: RemoteFuture[Any]) -> None:
        """Read answers in the thread of the event loop until the future is settled, or else in the background."""
        event_loop = self._event_loop
        if event_loop is None or not event_loop.is_reading or event_loop.loop is not loop or self._reader:
            self._begin_in(loop, future)
            return
        self._awaited.add(future)  # the loop reads already, the usual case when many are awaited
        if future._settled:
            self._awaited.discard(future)
        if self.has_read_ahead():
            event_loop.read_soon()

    @uninterrupted
    def _begin_in(self, loop: asyncio.AbstractEventLoop, future: RemoteFuture[Any]) -> None:
        """Have an event loop read for a future, if it can."""
        event_loop = self._event_loop
        if event_loop is None and not self._is_lost:
            with contextlib.suppress(OSError, ValueError, NotImplementedError):  # closed, or a loop that cannot do it
                reader = EventLoopReader(loop, self._channel.fileno(), self._read_in_event_loop)
                reader.resume()
                if self._event_loop is None:
                    self._event_loop = reader
                else:  # another thread's event loop has come meanwhile
                    reader.close()
            event_loop = self._event_loop
        elif event_loop is not None and event_loop.loop is not loop and event_loop.loop.is_closed():
            self._event_loop = None
            return self._begin_in(loop, future)
        if event_loop is None or event_loop.loop is not loop:
            return self.watch(future)
        self._awaited.add(future)
        if future._settled:
            self._awaited.discard(future)
        self._resume(event_loop)
        return None

    def _resume(self, event_loop: EventLoopReader) -> None:
        """Resume reading in an event loop, unless another thread reads, which then hands over."""
        if not self._awaited:
            return
        if self._is_lost:
            self._lose_in_background()
        elif not self._reader:
            if event_loop.is_closed:  # the connection is closed; reading it returns its end
                self._background().call_soon(self.look)
                return
            event_loop.resume()
            if self.has_read_ahead():
                event_loop.read_soon()

    @uninterrupted
    def _read_in_event_loop(self) -> None:
        """Settle answers for a moment, in the thread of an event loop."""
        event_loop = self._event_loop
        if event_loop is None:
            return
        if self._reader or not self._awaited or not self._reading.acquire(blocking=False):
            event_loop.pause()  # another thread leads and will hand over, or the answers are for others
            if self._reader:
                return
            self._resume(event_loop)  # it has just left
            return
        self._reader = get_ident()
        until = time.monotonic() + _TURN_S / event_loop.sharers
        is_more = True
        try:
            while self._arrived or self._awaited:
                self._take(0.0, one=True)
                if time.monotonic() >= until:
                    break
        except ResultTimeout:
            is_more = False
        except (ChannelClosed, RemoteProtocolError):
            self._is_lost = True
            event_loop.pause()
            self._lose_in_background()
            is_more = False
        finally:
            self._reader = 0
            self._release_reading()
        if is_more and (self._arrived or self._awaited):
            event_loop.read_soon()
        if self._followers or (self._watched and self._loop is None):
            self._hand_over()

    # -- the background --------------------------------------------------------------------------------------------

    def watch(self, future: RemoteFuture[Any]) -> None:
        """Settle the future in the background, for waiters that do not call `wait_for`."""
        self._watched.add(future)
        if future._settled:
            self._watched.discard(future)
        elif self._loop is None:
            self._start_watching()

    def _start_watching(self) -> None:
        """Let the background read what arrives from now on; its thread is not woken for that."""
        loop = self._background()
        if self._is_lost:
            loop.call_soon(self.look)
            return
        with self._watching:
            if self._loop is not None or not self._watched:
                return
            try:
                loop.add(self, self._on_readable)
            except (OSError, ValueError):  # closed a moment ago by another thread, or the loop is
                loop.call_soon(self.lose)  # the cause may have to be waited for
                return
            self._loop = loop
        if self.pending():
            loop.call_soon(self.look)

    def _stop_watching(self) -> None:
        with self._watching:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.remove(self)

    def _on_readable(self) -> None:
        if not self._reading.acquire(blocking=False):
            self._stop_watching()  # another thread leads and will hand over
            if not self._reader:
                self._start_watching()
            return
        self._drain_and_release()
        if self._is_lost or not self._watched:
            self._stop_watching()
        self._hand_over()

    def _lose_in_background(self) -> None:
        """Fail all calls in the background, because the cause may have to be waited for."""
        self._background().call_soon(self.lose)

    def read_unawaited(self) -> None:
        """Read answers from time to time although no thread waits for them, or the actor would wait to write them."""
        if not self._poll_interval_s:
            self._poll_interval_s = _POLL_S
            loop = self._background()
            loop.call_soon(partial(loop.call_later, _POLL_S, self._poll_unawaited))

    def _poll_unawaited(self) -> None:
        if self._is_lost or not self._pending:
            self._poll_interval_s = 0.0
            if not self._pending or self._is_lost:  # checked again: `read_unawaited` may not have seen the 0
                return
            self._poll_interval_s = _POLL_S
        self._poll_interval_s = _POLL_S if self._reader or self._was_read else self._read_and_reschedule()
        self._was_read = False
        self._background().call_later(self._poll_interval_s, self._poll_unawaited)

    def _read_and_reschedule(self) -> float:
        """Read the answers that have arrived; return when to do so again, sooner the more there were."""
        try:
            descriptor = self._channel.fileno()
            has_input = bool(wait_for_input([descriptor], 0))
            has_many = has_input and waiting_bytes(descriptor) >= _MANY_BYTES
        except (OSError, ValueError):  # closed a moment ago
            has_input = has_many = True
        if has_input:
            self.look()
            return _POLL_SOON_S if has_many else _POLL_AGAIN_S
        return min(2 * self._poll_interval_s, _LONGEST_POLL_S)
