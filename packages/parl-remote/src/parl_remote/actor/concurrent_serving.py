"""How an actor's process serves its callers when several calls run at a time.

    threads   the main thread reads and queues;      pool threads run and write
    loop      an asyncio loop in the main thread: reads when something has come, runs, writes at the end of a turn

The process itself (who calls, what has arrived, when it is over) is `actor.process`; what runs calls is `runners`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from parl_remote.actor.concurrency import How
from parl_remote.actor.host import ActorHost
from parl_remote.actor.runners import Runner, ThreadRunner
from parl_remote.system.polling import IN, Poller, Waker

if TYPE_CHECKING:
    import asyncio

__all__ = ["ConcurrentServing", "LoopServing", "Process", "ThreadServing", "serving_for"]

_PARTING_S = 0.25  # what tasks get to finish once nobody needs the actor; half of what a program waits that ends


class Process(Protocol):
    """What serving needs of the process."""

    poller: Poller

    @property
    def over(self) -> bool:
        """Whether it is to end."""

    def take_in(self, timeout_s: float | None) -> None:
        """Read what has arrived, waiting for it if need be, and hand it to the runner."""

    def flush_all(self) -> None:
        """Write all replies that are held."""


class ConcurrentServing(Protocol):
    """One way to serve."""

    runner: Runner

    def postpones(self) -> bool:
        """Whether a reply that was kept just now leaves later, with others; then it is seen to here."""

    def wake(self) -> None:
        """Messages were read while writing had to wait; see to it that they are looked at."""

    def serve(self) -> None:
        """Serve until the end."""


class ThreadServing:
    """Calls in threads.

    Args:
        process: The process.
        host: Its object.
        limit: How many calls run at once.
    """

    def __init__(self, process: Process, host: ActorHost, limit: int) -> None:
        self._process = process
        self._threads = ThreadRunner(host, limit)
        self.runner: Runner = self._threads
        self._read_ahead = Waker()
        process.poller.register(self._read_ahead.fileno(), IN)

    def postpones(self) -> bool:
        """False: threads write at once."""
        return False

    def wake(self) -> None:
        """Have the main thread look."""
        self._read_ahead.wake()

    def serve(self) -> None:
        """Serve until the end; what was taken is answered before."""
        while not self._process.over:
            self._process.take_in(None)
            self._read_ahead.clear()
        self._threads.drain()


class LoopServing:
    """Calls on an asyncio loop.

    Args:
        process: The process.
        host: Its object.
        limit: How many calls run at once.
        loop: The loop that the constructor ran on.
    """

    def __init__(self, process: Process, host: ActorHost, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        from parl_remote.actor.loop_runner import LoopRunner

        self._process = process
        self._loop = loop
        self._calls = LoopRunner(host, limit, loop, self._stop_if_over)
        self.runner: Runner = self._calls
        self._flushing = False
        self._parting = False

    def postpones(self) -> bool:
        """True: what all tasks of a turn of the loop have answered is written together after it."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        return True

    def wake(self) -> None:
        """Look in the loop's next turn."""
        self._loop.call_soon(self._turn)

    def serve(self) -> None:
        """Serve until the end; what still runs then is cancelled after a moment."""
        from parl_remote.actor.loop_runner import run_forever, wind_up

        self._loop.add_reader(self._process.poller.fileno(), self._turn)
        self._loop.call_soon(self._turn)
        run_forever(self._loop, lambda: self._process.over and not self._calls.busy)
        self._loop.remove_reader(self._process.poller.fileno())
        wind_up(self._loop)

    def _turn(self) -> None:
        self._process.take_in(0.0)
        self._stop_if_over()

    def _stop_if_over(self) -> None:
        if not self._process.over:
            return
        if not self._calls.busy:
            self._loop.stop()
        elif not self._parting:
            self._parting = True
            self._loop.call_later(_PARTING_S, self._calls.cancel_all)

    def _flush(self) -> None:
        self._flushing = False
        self._process.flush_all()


def serving_for(
    process: Process, host: ActorHost, loop: asyncio.AbstractEventLoop | None
) -> ThreadServing | LoopServing:
    """What serves an object that has been made."""
    how, limit = host.concurrency
    if how is How.LOOP and loop is not None:
        return LoopServing(process, host, limit, loop)
    return ThreadServing(process, host, limit)
