"""Calls to an object of this very process that runs several at a time: what `connect(debug=True)` needs beyond a host.

    caller's thread --submit--> threads, or a loop in a thread of its own --answer--> the call's future

The calls of an object that runs one at a time need nothing of this: they run in the thread that makes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from parl_remote.actor.concurrency import Concurrency, How
from parl_remote.actor.host import ActorHost
from parl_remote.actor.runners import ClosableRunner, Job, ThreadRunner
from parl_remote.future import RemoteFuture
from parl_remote.links.call_messages import header_of
from parl_remote.program.announced import Announced
from parl_remote.program.answers import read_answer
from parl_remote.transport import Buffer

__all__ = ["LocalCalls"]


class LocalCalls(Announced):
    """Runs calls, is the carrier of their futures, and takes their answers.

    Args:
        host: The object.
        on_names: Told the object's attributes when they have changed.
    """

    def __init__(self, host: ActorHost, on_names: Callable[[tuple[str, ...]], None]) -> None:
        super().__init__()
        self._host = host
        self._on_names = on_names
        self._runner: ClosableRunner | None = None
        self._pending: dict[int, RemoteFuture[Any]] = {}
        self._held: deque[list[Buffer]] = deque()
        host.construct = self._construct

    @property
    def used(self) -> bool:
        """Whether the object runs several calls at a time."""
        return self._runner is not None

    def submit(self, frames: Sequence[memoryview], future: RemoteFuture[Any]) -> None:
        """Have a call run; the future is settled when it is answered."""
        if self._runner is None:
            raise RuntimeError("this object runs one call at a time")
        run = self._host.accept(frames)
        future.call_id = run.call_id
        self._pending[run.call_id] = future
        self._runner.take(Job(run, self))

    def close(self, error: Callable[[], Exception]) -> None:
        """Give up all calls that are not answered."""
        if self._runner is not None:
            self._runner.close()
        while self._pending:
            self._pending.popitem()[1].settle(None, error())

    # -- runners.Answerer ----------------------------------------------------------------------------------------------

    def answer(self, reply: list[Buffer]) -> None:
        """Keep a reply."""
        self._held.append(reply)

    def flush(self) -> None:
        """Settle the futures whose replies are kept."""
        while self._held:
            try:
                reply = self._held.popleft()
            except IndexError:  # another thread took the last one
                return
            frames = [memoryview(bytearray(frame)) for frame in reply]
            future = self._pending.pop(header_of(frames[0])[3], None)
            if future is not None:
                answer = read_answer(frames, future.method)
                if answer.names is not None:
                    self._on_names(answer.names)
                future.settle(answer.value, answer.error, cancelled=answer.cancelled)

    # -- future.Carrier, beside what `Announced` has -----------------------------------------------------------------

    def cancel(self, future: RemoteFuture[Any]) -> bool:
        """See `Carrier.cancel`."""
        if self._pending.pop(future.call_id, None) is None or self._runner is None:
            self.wait_for(future, None)  # another thread is just settling it
            return future.cancelled()
        future.settle(None, cancelled=True)
        self._runner.cancel(self, future.call_id)
        return True

    def _construct(self, concurrency: Concurrency, make: Callable[[], object]) -> object:
        if concurrency.how is How.SERIAL:
            return make()
        if concurrency.how is How.THREADS:
            instance = make()
            self._runner = ThreadRunner(self._host, concurrency.limit)
            return instance
        from parl_remote.actor.loop_thread import LoopThread

        thread = LoopThread()
        try:
            instance = thread.construct(make)
        except BaseException:
            thread.close()
            raise
        thread.serve(self._host, concurrency.limit)
        self._runner = thread
        return instance
