"""A single-threaded event loop: readable sources, timers, and calls from other threads.

    loop.add(listener, on_ready)      on_ready() runs in the loop's thread when there is something to do
    loop.call_later(1.0, action)      so does action
    loop.run()                        until stop()

Master, worker and node run on one loop each, or share one. A caller's connection is read by asyncio's loop while its
tasks await futures: `EventLoopReader`.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from parl_remote._system.facilities import IN, OUT, Waker, is_portable, new_poller
from parl_remote._system.shortage import is_shortage, shortage_of
from parl_remote._transport import Pollable

if TYPE_CHECKING:
    import asyncio

__all__ = ["EventLoopReader", "Loop", "SuspensionDetector", "Timer", "WritableSource"]

Action = Callable[[], object]  # the result is ignored

_log = logging.getLogger("parl.remote")
_REST_S = 0.02  # a source that stays readable would occupy the loop and fill the log
_LONGEST_WAIT_S = 3600.0  # the system takes 24 days at most, and a timer may be for the year after next


class Timer:
    """A scheduled call, which can be cancelled."""

    __slots__ = ("_action",)

    def __init__(self, action: Action) -> None:
        self._action: Action | None = action

    def cancel(self) -> None:
        """Cancel the call; a second call does nothing."""
        self._action = None

    def fire(self) -> None:
        """Run the action unless it was cancelled; called by the loop."""
        action, self._action = self._action, None
        if action is not None:
            action()


class Loop:
    """A single-threaded event loop on the monotonic clock.

    An exception that leaves a handler ends `run` and is raised there: handlers deal with bad input themselves, so one
    that escapes is a bug, and a process that continues after a bug is worse than one that ends with a traceback. A
    shortage of the system (no descriptors, no memory) is no bug: it is logged, and the loop continues after a moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._poller = new_poller()
        self._sources: dict[int, tuple[Pollable, Action]] = {}
        self._sources_lock = threading.RLock()  # a finalizer may remove another source
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._calls: deque[Action] = deque()
        self._waker: Waker | None = Waker()
        self._poller.register(self._waker.fileno(), IN)
        self._stopped = False

    def now(self) -> float:
        """Return the time on the loop's clock, in seconds."""
        return self._clock()

    def add(self, source: Pollable, on_ready: Action) -> None:
        """Call `on_ready` whenever `source` is readable or pending; it must then take all that is available.

        Another thread may call this, and `remove`, for a source that has nothing pending: epoll learns of it while the
        loop waits.
        """
        with self._sources_lock:
            fileno = source.fileno()
            if fileno in self._sources:  # of a source that was closed before it was removed
                self.remove(self._sources[fileno][0])
            self._poller.register(fileno, IN)
            self._sources[fileno] = (source, on_ready)
        if is_portable() and self._waker is not None:
            self._waker.wake()

    def remove(self, source: Pollable) -> None:
        """Stop watching a source; to be called before it is closed. Unknown sources are ignored."""
        with self._sources_lock:  # else its number might be that of another one when it is unregistered
            try:
                fileno = source.fileno()
            except (OSError, ValueError):  # of a closed channel of zmq
                fileno = -1
            if (found := self._sources.get(fileno)) is None or found[0] is not source:  # closed already, or unknown
                fileno = next((at for at, (known, _) in list(self._sources.items()) if known is source), -1)
            if self._sources.pop(fileno, None) is not None:
                with contextlib.suppress(OSError, KeyError, ValueError):  # what is closed is forgotten by that
                    self._poller.unregister(fileno)

    def call_at(self, when: float, action: Action) -> Timer:
        """Run `action` in the loop once `now()` has reached `when`."""
        timer = Timer(action)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def call_later(self, delay_s: float, action: Action) -> Timer:
        """Run `action` in the loop after `delay_s` seconds."""
        return self.call_at(self._clock() + delay_s, action)

    def call_soon(self, action: Action) -> None:
        """Run `action` in the loop's next turn; callable from any thread and any signal handler."""
        self._calls.append(action)
        waker = self._waker
        if waker is not None:  # a closed loop needs no waking
            waker.wake()

    def run(self) -> None:
        """Serve until `stop` is called."""
        while not self._stopped:
            self.run_once()

    def run_once(self, timeout_s: float | None = None) -> None:
        """Wait for events, at most `timeout_s` seconds, and handle all that have occurred."""
        for fileno, _ in self._poller.poll(self._patience(timeout_s)):
            found = self._sources.get(fileno)
            if found is not None:
                self._do(found[1])
            elif self._waker is not None and fileno == self._waker.fileno():  # else it was removed in this turn
                self._waker.clear()
        for source, on_ready in list(self._sources.values()):
            if source.pending():
                self._do(on_ready)
        for _ in range(len(self._calls)):
            self._do(self._calls.popleft())
        now = self._clock()
        while self._timers and self._timers[0][0] <= now:
            self._do(heapq.heappop(self._timers)[2].fire)

    def _do(self, action: Action) -> None:
        """Run a handler; a shortage in it ends that handler only, never the process."""
        try:
            action()
        except Exception as error:
            if not is_shortage(error):
                raise
            _log.exception("a resource of the system is exhausted: %s", shortage_of(error))
            time.sleep(_REST_S)

    def stop(self) -> None:
        """Make `run` return after the current turn; callable from any thread and any signal handler."""
        self._stopped = True
        self.call_soon(lambda: None)

    def close(self) -> None:
        """Close the loop's descriptors; sources stay open, they have their own owners. A second call does nothing."""
        self._poller.close()
        self._waker = None

    def _patience(self, timeout_s: float | None) -> float | None:
        if self._calls or any(source.pending() for source, _ in list(self._sources.values())):
            return 0.0
        if self._timers:
            until_next_s = min(max(0.0, self._timers[0][0] - self._clock()), _LONGEST_WAIT_S)
            return until_next_s if timeout_s is None else min(timeout_s, until_next_s)
        return timeout_s


class SuspensionDetector:
    """Detects that this process was stopped, by a signal or with its machine, so that silence of peers means nothing.

    Args:
        interval_s: The longest time between two calls of `missed_s`.
        now: The time on the loop's clock.
    """

    __slots__ = ("_interval_s", "_last")

    def __init__(self, interval_s: float, now: float) -> None:
        self._interval_s = interval_s
        self._last = now

    def missed_s(self, now: float) -> float:
        """Return for how long this process was stopped since the last call, in seconds; 0 if it was not."""
        since_s, self._last = now - self._last, now
        return since_s if since_s > 2 * self._interval_s else 0.0


class WritableSource:
    """A source for a loop that is readable while a socket can be written to."""

    def __init__(self, descriptor: int) -> None:
        self._poller = new_poller()
        self._poller.register(descriptor, OUT)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._poller.fileno()

    def pending(self) -> bool:
        """Return False: the descriptor signals everything."""
        return False

    def close(self) -> None:
        """Stop watching the socket; the loop must have forgotten this before."""
        self._poller.close()


_readers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, set[int]] = weakref.WeakKeyDictionary()


class EventLoopReader:
    """Reads a connection in an asyncio event loop, while tasks of that loop await futures.

    It reads once in a turn of the loop, however often it is requested.

    Attributes:
        is_reading: Whether it reads whenever something arrives.
        is_closed: Whether it has been closed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, read: Callable[[], None]) -> None:
        self.loop = loop
        # A poller of its own: its descriptor stays open until the event loop has forgotten it, even if another
        # thread closes the connection.
        self._poller = new_poller()
        self._poller.register(descriptor, IN)
        self._read = read
        self.is_reading = False
        self._is_due = False
        self._reading = _readers.setdefault(loop, set())  # the ids of the connections that read in this loop
        self.is_closed = False

    def resume(self) -> None:
        """Read whenever something arrives, unless this is closed; called in the loop's thread."""
        if not self.is_reading and not self.is_closed:
            self.loop.add_reader(self._poller.fileno(), self._on_readable)
            self.is_reading = True
            self._reading.add(id(self))

    def read_soon(self) -> None:
        """Read in the next turn of the loop, also if nothing arrives; called in the loop's thread."""
        if not self._is_due:
            self.loop.call_soon(self._read_due)  # first: a handler that raises here must not leave it due
            self._is_due = True

    @property
    def sharers(self) -> int:
        """The number of connections that read in this loop, 1 or more."""
        return max(1, len(self._reading))

    def pause(self) -> None:
        """Do not read until `resume`; called in the loop's thread."""
        if self.is_reading:
            self.loop.remove_reader(self._poller.fileno())
            self.is_reading = False
            self._reading.discard(id(self))

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """Stop reading for good; callable from any thread.

        Args:
            then: Called in the loop's thread when that is done.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._close, then)

    def _on_readable(self) -> None:
        if not self._is_due:
            self._read()

    def _read_due(self) -> None:
        self._is_due = False
        self._read()

    def _close(self, then: Callable[[], None]) -> None:
        self.pause()
        self.is_closed = True
        self._poller.close()
        then()
