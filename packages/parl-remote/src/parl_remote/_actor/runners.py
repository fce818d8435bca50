"""Execution of an actor's calls when several run at a time.

    I/O  --take(call)-->  Runner  --start-->  threads                 ThreadRunner
                          a queue             an event loop's tasks   LoopRunner (see `loop_runner`)
         <--answer(reply), flush()-- the finisher of the call

Calls start in the order in which they were taken, and are answered as they finish.

An actor's process (`actor.process`) has its calls served in one of two ways:

    threads   the main thread reads and queues;      pool threads run and write               ThreadServing
    loop      an asyncio loop in the main thread: reads when something has come, runs,        LoopServing
              writes at the end of a turn
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol

from parl_remote._actor.host import ActorHost, Run
from parl_remote._system.facilities import Poller
from parl_remote._transport import Buffer

__all__ = [
    "Answerer",
    "ClosableRunner",
    "ConcurrentServing",
    "Job",
    "JobQueue",
    "Process",
    "Runner",
    "ThreadRunner",
    "ThreadServing",
]


class Answerer(Protocol):
    """Receives the replies for one caller."""

    def answer(self, reply: list[Buffer]) -> None:
        """Buffer a reply, without blocking."""

    def flush(self) -> None:
        """Send the buffered replies; never raises if the caller is gone."""


class Job:
    """A call and its caller."""

    __slots__ = ("caller", "run")

    def __init__(self, run: Run, caller: Answerer) -> None:
        self.run = run
        self.caller = caller

    def is_from(self, caller: Answerer, call_id: int) -> bool:
        """Return whether this is the caller's call of that number."""
        return self.caller is caller and self.run.call_id == call_id


class Runner(Protocol):
    """Runs calls, several at a time."""

    def take(self, job: Job) -> None:
        """Start a call, or queue it behind earlier ones."""

    def cancel(self, caller: Answerer, call_id: int) -> None:
        """Drop a waiting call, or cancel one that can be cancelled; the reply has the outcome."""

    def forget(self, caller: Answerer) -> None:
        """Drop and cancel all calls of a caller that is gone."""


class ClosableRunner(Runner, Protocol):
    """A runner that can be closed, for objects that share a process with other code."""

    def close(self) -> None:
        """Drop waiting calls, and let the threads end."""


class JobQueue:
    """Calls that have not started, in order; one to be cancelled is found in one step."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[tuple[Answerer, int], Job] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def append(self, job: Job) -> None:
        """Add a call behind all others."""
        self._jobs[job.caller, job.run.call_id] = job

    def popleft(self) -> Job:
        """Remove the first call and return it."""
        return self._jobs.popitem(last=False)[1]

    def clear(self) -> None:
        """Remove all calls."""
        self._jobs.clear()

    def remove(self, caller: Answerer, call_id: int | None) -> list[Job]:
        """Remove the caller's call of that number, or all of its calls if it is None; return those removed."""
        if call_id is not None:
            found = self._jobs.pop((caller, call_id), None)
            return [] if found is None else [found]
        return [self._jobs.pop(key) for key in list(self._jobs) if key[0] is caller]


class ThreadRunner:
    """Runs calls in threads, which are started on demand and end with the process.

    Args:
        host: The object.
        limit: The maximum number of calls at once.
    """

    def __init__(self, host: ActorHost, limit: int) -> None:
        self._host = host
        self._limit = limit
        self._waiting = JobQueue()
        self._changed = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._running = 0
        self._closed = False

    def take(self, job: Job) -> None:
        """Queue a call; callable from any thread."""
        with self._changed:
            self._waiting.append(job)
            if self._idle >= len(self._waiting):
                self._changed.notify()
                return
            if self._threads == self._limit:
                return
            self._threads += 1
            name = f"parl-call-{self._threads}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError:  # the limit of threads
            with self._changed:
                self._threads -= 1
                if self._threads:
                    return  # the others take it
                job = self._waiting.popleft()
                self._running += 1
            self._do(job)

    def cancel(self, caller: Answerer, call_id: int) -> None:
        """Drop a waiting call; a running one is answered as usual."""
        self._drop(caller, call_id)

    def forget(self, caller: Answerer) -> None:
        """Drop a caller's waiting calls; running ones run to their end."""
        self._drop(caller, None)

    def drain(self) -> None:
        """Wait until all calls taken are answered."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._running)

    def close(self) -> None:
        """Drop waiting calls and let the threads end; running calls run to their end."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _drop(self, caller: Answerer, call_id: int | None) -> None:
        with self._changed:
            dropped = self._waiting.remove(caller, call_id)
        for job in dropped:
            job.caller.answer(self._host.drop(job.run))
            job.caller.flush()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closed:
                        return
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                job = self._waiting.popleft()
                self._running += 1
            self._do(job)
            del job  # otherwise its arguments and its caller would stay alive

    def _do(self, job: Job) -> None:
        """Run a call that was taken from the queue, and note its end."""
        self._run(job)
        with self._changed:
            self._running -= 1
            if not self._running and not self._waiting:
                self._changed.notify_all()

    def _run(self, job: Job) -> None:
        value, error = None, None
        try:
            value = self._host.start(job.run)
        except BaseException as raised:
            error = raised
        try:
            self._host.finish(job.run, value, error, job.caller.answer)
        finally:
            del error  # its traceback holds this frame
        job.caller.flush()


class Process(Protocol):
    """The part of the actor's process that serving needs."""

    poller: Poller

    @property
    def over(self) -> bool:
        """Return whether the process is to end."""

    @property
    def has_time(self) -> bool:
        """Return whether calls that run then may take as long as they need, because the worker limits that."""

    def take_in(self, timeout_s: float | None) -> None:
        """Read messages that have arrived, waiting up to `timeout_s`, and pass them to the runner."""

    def flush_all(self) -> None:
        """Write all buffered replies."""


class ConcurrentServing(Protocol):
    """A way to serve callers."""

    runner: Runner

    def defers_flush(self) -> bool:
        """Return whether a buffered reply is written later, together with others; if so, schedule that here."""

    def serve(self) -> None:
        """Serve until the process is to end."""


class ThreadServing:
    """Serves calls in threads.

    Args:
        process: The process.
        host: The host of the object.
        limit: The maximum number of calls at once.
    """

    def __init__(self, process: Process, host: ActorHost, limit: int) -> None:
        self._process = process
        self._threads = ThreadRunner(host, limit)
        self.runner: Runner = self._threads

    def defers_flush(self) -> bool:
        """Return False: threads write at once."""
        return False

    def serve(self) -> None:
        """Serve until the end; calls already taken are answered first."""
        while not self._process.over:
            self._process.take_in(None)
        self._threads.drain()
