"""Workers that are threads of this process: for models and environments whose work releases the interpreter's lock."""

import contextlib
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue

from parl_evokit.parallel.cores import available_cores
from parl_evokit.parallel.pool import News, Pool
from parl_evokit.parallel.worker import Message, Outcome, Worker

__all__ = ["ThreadPool"]


class ThreadPool(Pool):
    """A pool of threads: nothing is copied or pickled, and functions and models may be anything.

    Args:
        workers: How many threads. Default: one for each core that this process may use.
    """

    def __init__(self, workers: int | None = None) -> None:
        super().__init__(_Threads(), available_cores() if workers is None else workers)


class _Threads:
    """The `Transport` of `ThreadPool`. Outcomes wait in a deque until somebody is woken by the end of a batch."""

    def __init__(self) -> None:
        self._inboxes: dict[int, SimpleQueue[Message | None]] = {}
        self._outcomes: deque[tuple[int, Outcome]] = deque()
        self._ended_batches: SimpleQueue[int] = SimpleQueue()
        self._threads: dict[int, threading.Thread] = {}

    def start(self, worker: int) -> None:
        """See `Transport`."""
        inbox: SimpleQueue[Message | None] = SimpleQueue()
        self._inboxes[worker] = inbox
        self._threads[worker] = threading.Thread(
            target=self._serve, args=(worker, inbox), name=f"evokit-worker-{worker}", daemon=True
        )
        self._threads[worker].start()

    def send(self, worker: int, message: Message) -> None:
        """See `Transport`."""
        self._inboxes[worker].put(message)

    def receive(self, timeout_s: float | None) -> list[News]:
        """See `Transport`."""
        with contextlib.suppress(Empty):
            self._ended_batches.get(timeout=timeout_s)
        found: dict[int, list[Outcome]] = {}
        while self._outcomes:
            worker, outcome = self._outcomes.popleft()
            found.setdefault(worker, []).append(outcome)
        return [News(worker, outcomes) for worker, outcomes in found.items()]

    def end(self, worker: int) -> None:
        """See `Transport`; a thread cannot be killed, so this one ends when its evaluation does."""
        self._inboxes.pop(worker).put(None)
        del self._threads[worker]

    def close(self) -> None:
        """See `Transport`; waits for a moment for threads that are at the end of an evaluation."""
        for inbox in self._inboxes.values():
            inbox.put(None)
        deadline = time.monotonic() + 1.0
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self, worker: int, inbox: "SimpleQueue[Message | None]") -> None:
        working = Worker()
        while (message := inbox.get()) is not None:
            reported = False
            for outcome in working.handle(message):
                self._outcomes.append((worker, outcome))
                reported = True
            if reported:
                self._ended_batches.put(worker)
