"""Execution of calls on an asyncio loop: `async def` methods as tasks, ordinary ones between their steps.

    take --> a queue --pump, while fewer than `limit` calls run-->  ordinary method   runs, is answered
                                                                    async def method  becomes a task, and is answered
                                                                                      when that has ended

All of this runs in the loop's thread. Importing this module takes 14 ms, nearly all of it for asyncio, so those who
need it import it when the first object with `async def` methods is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from parl_remote._actor.host import ActorHost
from parl_remote._actor.runners import Answerer, Job, JobQueue, Process, Runner
from parl_remote._future import RemoteFuture
from parl_remote._system.facilities import is_portable, is_raised_by_handler

__all__ = ["LoopRunner", "LoopServing", "LoopThread", "construct_on", "new_loop", "run_forever", "wind_up"]


_log = logging.getLogger("parl.remote")
_PARTING_S = 0.25  # time for tasks to finish once the actor has no holders; half the time that an ending program waits
_TURN_S = 0.001  # ordinary methods run in a row for this long, then replies are sent and tasks run
_WIND_UP_S = 5.0  # time for tasks to handle their cancellation when the actor ends; the worker waits less


class LoopRunner:
    """Runs calls on an event loop.

    Args:
        host: The object.
        limit: The maximum number of calls at once.
        loop: The loop, running or to be run.
        idle: Called whenever the last call has ended.
    """

    def __init__(
        self,
        host: ActorHost,
        limit: int,
        loop: asyncio.AbstractEventLoop,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._host = host
        self._limit = limit
        self._loop = loop
        self._tell_idle = idle
        self._waiting = JobQueue()
        self._pumping = False
        self._tasks: dict[asyncio.Task[None], tuple[Job, Any]] = {}
        self._without_reply: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Return whether a call runs or waits."""
        return bool(self._tasks or self._waiting)

    def take(self, job: Job) -> None:
        """Queue a call, to be started in order."""
        self._waiting.append(job)
        self._pump_soon()

    def cancel(self, caller: Answerer, call_id: int) -> None:
        """Drop a waiting call, or cancel the task of a running one."""
        self._cancel(self._waiting.remove(caller, call_id), lambda job: job.is_from(caller, call_id))

    def forget(self, caller: Answerer) -> None:
        """Drop or cancel all calls of a caller, without a reply."""
        self._cancel(self._waiting.remove(caller, None), lambda job: job.caller is caller, replies=False)

    def cancel_all(self) -> None:
        """Drop or cancel all calls without a reply, because they are lost with the actor."""
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._cancel(waiting, lambda _: True, replies=False)

    def _cancel(self, dropped: Sequence[Job], is_meant: Callable[[Job], bool], *, replies: bool = True) -> None:
        """Drop the given calls, and cancel the tasks of the selected calls."""
        for job in dropped:
            self._drop(job, replies=replies)
        for task, (job, _) in list(self._tasks.items()):
            if is_meant(job):
                if not replies:
                    self._without_reply.add(task)
                task.cancel()

    def _drop(self, job: Job, *, replies: bool) -> None:
        reply = self._host.drop(job.run)
        if replies:
            job.caller.answer(reply)
            job.caller.flush()

    def _pump_soon(self) -> None:
        if not self._pumping and self._waiting and len(self._tasks) < self._limit:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        until = time.perf_counter() + _TURN_S
        while self._waiting and len(self._tasks) < self._limit:
            self._start(self._waiting.popleft())
            if time.perf_counter() > until:
                break
        self._pump_soon()
        if not self.busy:
            self._tell_idle()

    def _start(self, job: Job) -> None:
        try:
            value = self._host.start(job.run)
        except BaseException as error:
            self._finish(job, None, error)
            return
        if job.run.stays or not inspect.isawaitable(value):
            self._finish(job, value, None)
            return
        task = self._loop.create_task(self._run(job, value), name=f"parl:{job.run.name}")
        self._tasks[task] = job, value
        task.add_done_callback(self._done)

    async def _run(self, job: Job, awaitable: Awaitable[Any]) -> None:
        """Await a method's result and answer the call, before another task can change objects in the result."""
        value, failure = None, None
        try:
            value = await awaitable
            if isinstance(value, RemoteFuture):  # of a call, which a plain method may return as well
                value = await value
        except BaseException as error:  # also what would end the loop
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # else the method itself, or a task that it awaited, raised it
            failure = error
        try:
            self._finish(job, value, failure)
        finally:
            del failure  # its traceback holds this frame

    def _done(self, task: asyncio.Task[None]) -> None:
        job, awaited = self._tasks.pop(task)
        if task.cancelled():
            if inspect.iscoroutine(awaited):
                awaited.close()  # it may not have begun
            self._drop(job, replies=task not in self._without_reply)
        self._without_reply.discard(task)
        self._pump_soon()
        if not self.busy:
            self._tell_idle()

    def _finish(self, job: Job, value: Any, error: BaseException | None) -> None:
        self._host.finish(job.run, value, error, job.caller.answer)
        job.caller.flush()


def selecting_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that can wait for any socket, which asyncio's default on Windows cannot."""
    return asyncio.SelectorEventLoop() if is_portable() else asyncio.new_event_loop()


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop, set as this thread's current one."""
    loop = selecting_loop()
    asyncio.set_event_loop(loop)
    return loop


def construct_on(loop: asyncio.AbstractEventLoop, make: Callable[[], object]) -> object:
    """Run a constructor on a loop that does not run yet, so that it may create tasks that run later."""

    async def made() -> object:
        return make()

    return loop.run_until_complete(made())


def run_forever(loop: asyncio.AbstractEventLoop, is_over: Callable[[], bool]) -> None:
    """Run a loop until it is stopped and `is_over` is true, whatever background tasks of the user's code raise."""
    while not is_over():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            _log.exception("a background task of the actor tried to end the process, which goes on")
        except Exception as error:
            if not is_raised_by_handler(error):
                raise
            _log.exception("a signal's handler raised an exception while no call was running")


def wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks of a stopped loop, so that `finally` blocks run, and close it."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(Exception):
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=_WIND_UP_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


class LoopThread:
    """A runner callable from any thread; its thread does not keep the process alive. Implements `runners.Runner`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls: LoopRunner | None = None
        self._closing = False
        threading.Thread(target=self._live, name="parl-loop", daemon=True).start()

    def construct(self, make: Callable[[], object]) -> Any:
        """Run a constructor on the loop and wait for it.

        Raises:
            BaseException: The constructor's exception.
        """

        async def made() -> tuple[object, BaseException | None]:
            try:
                return make(), None
            except BaseException as error:  # SystemExit would end the loop
                return None, error

        instance, error = asyncio.run_coroutine_threadsafe(made(), self._loop).result()
        if error is not None:
            raise error
        return instance

    def serve(self, host: ActorHost, limit: int) -> None:
        """Run calls of this object from now on, at most `limit` at once."""
        self._calls = LoopRunner(host, limit, self._loop)

    def take(self, job: Job) -> None:
        """Queue a call."""
        self._in_loop(lambda calls: calls.take(job))

    def cancel(self, caller: Answerer, call_id: int) -> None:
        """Drop or cancel a call."""
        self._in_loop(lambda calls: calls.cancel(caller, call_id))

    def forget(self, caller: Answerer) -> None:
        """Drop and cancel all calls of a caller."""
        self._in_loop(lambda calls: calls.forget(caller))

    def close(self) -> None:
        """Cancel running calls and end the thread, without waiting for it."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _in_loop(self, action: Callable[[LoopRunner], None]) -> None:
        calls = self._calls
        if calls is not None and not self._closing:
            self._loop.call_soon_threadsafe(action, calls)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        run_forever(self._loop, lambda: self._closing)
        wind_up(self._loop)


class LoopServing:
    """Serves calls on an asyncio loop.

    Args:
        process: The process.
        host: The host of the object.
        limit: The maximum number of calls at once.
        loop: The loop that the constructor ran on.
    """

    def __init__(self, process: Process, host: ActorHost, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._process = process
        self._loop = loop
        self._calls = LoopRunner(host, limit, loop, self._stop_if_over)
        self.runner: Runner = self._calls
        self._flushing = False
        self._parting = False

    def defers_flush(self) -> bool:
        """Return True: the replies of all tasks in one turn of the loop are written together after it."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        return True

    def serve(self) -> None:
        """Serve until the end; calls that still run then are cancelled after a moment, unless they have time."""
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
        elif not self._parting and not self._process.has_time:
            self._parting = True
            self._loop.call_later(_PARTING_S, self._calls.cancel_all)

    def _flush(self) -> None:
        self._flushing = False
        self._process.flush_all()
