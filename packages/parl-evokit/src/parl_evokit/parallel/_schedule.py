"""The assignment of samples to workers: guided batch sizes, stragglers, and samples of lost workers.

This module only makes decisions. It has no workers, queues or clocks; times are passed in, in seconds.

    waiting ── next_batch ──► a worker's batch ── settle ──► done
       ▲                          │   └─ overdue, and others are idle: they get the samples not yet begun, too
       └──── lost (worker died) ──┘
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

__all__ = ["MOST_DEATHS", "Schedule"]

MOST_DEATHS = 3  # number of lost workers after which the sample that they evaluated counts as the cause


@dataclass
class _Running:
    """A worker's batch.

    Attributes:
        numbers: The candidates that it has not returned yet, in its order.
        since: The time of its last sign of life.
        round: In which it was handed out.
        void: Those of `numbers` that another worker has returned.
    """

    numbers: list[int]
    since: float
    round: int
    void: set[int] = field(default_factory=set)


class Schedule:
    """The schedule of the samples of successive rounds."""

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()
        self._running: dict[int, _Running] = {}
        self._open: set[int] = set()  # unfinished samples of this round
        self._shared: set[int] = set()  # samples of this round that were also sent to a second worker
        self._deaths: Counter[int] = Counter()
        self._wanted = self._total = self._round = 0
        self._grace_s = self._slowest = 0.0

    def begin(self, numbers: Sequence[int], *, share: float, grace_s: float) -> None:
        """Begin a round; unfinished samples of the previous round are late.

        Args:
            numbers: The samples, in the order in which they are handed out.
            share: Share of the samples that must be done, above 0 to 1.
            grace_s: Time for which a worker must be silent before it counts as a straggler, in seconds.
        """
        self._waiting, self._open, self._shared = deque(numbers), set(numbers), set()
        self._deaths = Counter()
        self._total, self._wanted = len(numbers), ceil(share * len(numbers) - 1e-9)
        self._grace_s, self._slowest = grace_s, 0.0
        self._round += 1

    def next_batch(self, worker: int, workers: int, now: float) -> list[int]:
        """Return the next batch of an idle worker; an empty one if no sample is left for it.

        Args:
            worker: The worker.
            workers: Number of workers. A batch is half of an equal share of the rest, so that all workers end together.
            now: The present time.
        """
        batch = [self._waiting.popleft() for _ in range(ceil(len(self._waiting) / (2 * workers)))]
        batch = batch or self._held_up(now)
        if batch:
            self._running[worker] = _Running(batch.copy(), now, self._round)
        return batch

    def running(self) -> set[int]:
        """Return the samples that workers have, of this round and earlier ones."""
        return {number for running in self._running.values() for number in running.numbers}

    def busy(self, worker: int) -> bool:
        """Return whether the worker has a batch."""
        return worker in self._running

    def is_shared(self, number: int) -> bool:
        """Return whether a sample of this round was handed to a second worker, because the first one is overdue."""
        return number in self._shared

    def settle(self, worker: int, numbers: Iterable[int], now: float) -> list[int]:
        """Record results; return the new ones, of this round and late ones, which no worker has returned before."""
        running = self._running.get(worker)
        if running is None:
            return []
        done = set(numbers).intersection(running.numbers)
        late = running.round < self._round
        fresh = [n for n in running.numbers if n in done and n not in running.void and (late or n in self._open)]
        running.numbers = [number for number in running.numbers if number not in done]
        if not late:
            self._slowest = max(self._slowest, now - running.since)
        running.since = now
        if not running.numbers:
            del self._running[worker]
        self._open.difference_update(fresh)
        for other in self._running.values():
            other.void.update(done.intersection(other.numbers))
        return fresh

    def lost(self, worker: int, *, from_outside: bool = False) -> int | None:
        """Remove a lost worker; its unfinished samples wait again.

        Args:
            worker: The worker.
            from_outside: True if its sample cannot be the cause.

        Returns:
            A sample during whose evaluation `MOST_DEATHS` workers were lost, or None.
        """
        running = self._running.pop(worker, None)
        if running is None:
            return None
        elsewhere = {number for other in self._running.values() for number in other.numbers}
        again = [number for number in running.numbers if number in self._open and number not in elsewhere]
        self._waiting.extendleft(reversed(again))
        if from_outside or not running.numbers or running.round < self._round:
            return None
        head = running.numbers[0]
        self._deaths[head] += 1
        return head if self._deaths[head] >= MOST_DEATHS else None

    def complete(self, now: float) -> bool:
        """Return whether the round is over: all samples are done, or the share is and the rest is overdue."""
        if not self._open:
            return True
        if self._total - len(self._open) < self._wanted or self._waiting:
            return False
        return all(self._overdue(running, now) for running in self._running.values() if running.round == self._round)

    def abandon(self) -> None:
        """End the round now: samples in evaluation become late, waiting samples are dropped."""
        self._waiting.clear()
        self._open = set()

    def forget(self, worker: int) -> None:
        """Record that a worker has ended its batch early, with the round."""
        self._running.pop(worker, None)

    def overdue(self, now: float) -> list[int]:
        """Return workers with overdue batches of earlier rounds, if samples wait and all others are busy."""
        if not self._waiting:
            return []
        return [worker for worker, r in self._running.items() if r.round < self._round and self._overdue(r, now)]

    def wait_s(self, now: float) -> float | None:
        """Return the time until a worker is overdue; None if no worker can become overdue."""
        later = [running.since + self._patience - now for running in self._running.values()]
        return min((seconds for seconds in later if seconds > 0), default=None)

    @property
    def _patience(self) -> float:
        return max(self._grace_s, 2 * self._slowest)

    def _overdue(self, running: _Running, now: float) -> bool:
        return now - running.since >= self._patience

    def _held_up(self, now: float) -> list[int]:
        """Return the samples that an overdue worker of this round has not begun and no other has, the last one first.

        Its first one is left to it: if that takes so long, it would hold up the next worker as well.
        """
        for running in self._running.values():
            if running.round == self._round and self._overdue(running, now):
                batch = [n for n in running.numbers[:0:-1] if n in self._open and n not in self._shared]
                if batch:
                    self._shared.update(batch)
                    return batch
        return []
