"""The sources of work for worker processes: single calls, and the items of a map.

    submit --------> Calls: one chunk per call, settles its future
    map ---items---> Items: chunks of measured cost; outcomes wait for the iterating thread, in the items' order

A thread that waits for a call, or iterates, reads the answer that it waits for itself, so that no other thread has to
wake up for it. If a signal handler of the program may interrupt the wait, another thread reads, because the handler may
wait for the worker.

A chunk of a map has as many items as a worker can process in `_CHUNK_S`, as measured on earlier chunks. It never
exceeds a share of the remaining items, so that all workers finish together. If a chunk takes much longer, its remaining
items are queued again. A chunk that takes `FILL_S` to fill goes with the items that are there.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures._base import CANCELLED, PENDING, RUNNING
from functools import partial
from itertools import chain, repeat
from math import ceil, inf
from operator import length_hint
from typing import Any, NoReturn, TypeVar, cast

from parl_remote._data.answers import Failure, rebuild, unreadable
from parl_remote._display import Bar
from parl_remote._functions.worker import CallForm, Code, Outcome, Unreadable, size_of, unpack
from parl_remote._functions.workers import Chunk, Quota, Workers
from parl_remote._future import RemoteFuture, ResultIterator
from parl_remote._item_reader import FILL_S, ItemReader
from parl_remote._streams import RemoteIterator
from parl_remote._system.interrupts import Condition, has_own_handlers, is_by_handler, undisturbed, uninterrupted
from parl_remote.errors import ActorError, NotConnected, ResultTimeout

__all__ = ["Calls", "Items", "Results", "read"]

R = TypeVar("R")

_CHUNK_S = 0.05  # seconds of work per chunk: a hundred times the cost of its transfer
_LEAST_S = 0.002  # less is not worth a message, unless a worker is idle
_SEND_S = 0.0001  # seconds of this program's time per chunk: the n-th worker begins that many times later
_GROWTH = 64  # maximum growth from one chunk to the next, because single items are not representative
_SMALL_BYTES = 2**16  # of the results of a chunk
_CHUNK_BYTES = 16 << 20  # there and back; with a quarter, chunks cost as much as the copies of their arrays
# times the expected time of a chunk, after which its rest is returned; also the limit for the items beside a late one
_SLACK = 4
_NOTHING = object()
_COSTS_KEPT = 256  # functions
_AHEAD = 4  # chunks for each worker that are on their way, or wait for the iterating thread


_WAITING = (PENDING, CANCELLED)  # states of a call that has not begun


class Calls:
    """The single calls of one executor or remote function.

    Args:
        workers: The workers that run the calls.
        quota: The maximum number of workers at a time, shared with other sources.
        retries: The maximum number of times that a call is run again after its worker has ended.
        timeout_s: Seconds that a call may run; None for no limit.
    """

    def __init__(self, workers: Workers, quota: Quota, retries: int, timeout_s: float | None) -> None:
        self.workers = workers
        self.quota = quota
        self.retries = retries
        self.timeout_s = timeout_s
        self.running = 0
        self.open: set[RemoteFuture[Any]] = set()  # the unsettled ones
        self.all_settled = Condition()
        self._queue: deque[Chunk] = deque()
        self._number = 0
        self._is_over = False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, future: RemoteFuture[Any], code: Code, call: Any) -> None:
        """Queue a call: a packed list of its arguments and keyword arguments."""
        with self.workers.lock:
            if future._settled:  # it was cancelled while it waited for futures
                self.may_begin(future)
                return
            chunk = Chunk(self, code, call, 1, CallForm.CALL, self._number)
            chunk.future = future
            self._number += 1
            self._queue.append(chunk)
        self.workers.look_at(self)

    def begin(self, future: RemoteFuture[Any]) -> None:
        """Register a call before it is queued."""
        with self.all_settled:
            self.open.add(future)

    def end(self, future: RemoteFuture[Any]) -> None:
        """Record that a call is settled or given up; a second call does nothing."""
        with self.all_settled:
            self.open.discard(future)
            if not self.open:
                self.all_settled.notify_all()

    def await_all(self) -> None:
        """Wait until all futures are settled."""
        with self.all_settled:
            self.all_settled.wait_for(lambda: not self.open)

    def cancel(self, future: RemoteFuture[Any]) -> None:
        """Cancel a call that has not begun."""
        with self.workers.lock:
            if future._state not in _WAITING or not self.may_begin(future):
                return
            self.end(future)  # from now on it does not begin
        future._settle(None, cancelled=True)

    def cancel_waiting(self) -> None:
        """Cancel all calls that have not begun."""
        with self.all_settled:
            calls = list(self.open)
        for future in calls:
            self.cancel(future)
        with self.workers.lock:
            self._queue = deque(chunk for chunk in self._queue if chunk.future in self.open)  # to be run again

    def end_all(self) -> None:
        """Cancel all calls that have not begun, and end the workers of the others, which fail."""
        with self.workers.lock:
            self._is_over = True
        self.cancel_waiting()
        with self.workers.lock:
            to_run_again, self._queue = self._queue, deque()
        for chunk in to_run_again:
            self.fail(chunk, ActorError(f"a call of {chunk.code.name}() was given up with the calls beside it"))
        self.workers.end_running(self)

    def refuse(self, future: RemoteFuture[Any], error: BaseException) -> None:
        """Settle a call with an error."""
        if self.may_begin(future):
            future._settle(None, error)
            self.end(future)

    def may_begin(self, future: RemoteFuture[Any]) -> bool:
        """Mark a call as running and return True; return False and end the call if it was cancelled."""
        with self.workers.lock:
            begins = future in self.open and (
                future._state == RUNNING or future.set_running_or_notify_cancel()  # running: it is run again
            )
            if not begins:
                self.end(future)
        return begins

    def end_if_cancelled(self, future: Any) -> None:
        """Record that a call is settled if it was cancelled."""
        if future.cancelled():
            self.may_begin(future)

    # -- workers.Source ----------------------------------------------------------------------------------------------

    def has_next(self) -> bool:
        """Return whether a call waits."""
        return bool(self._queue)

    def may_queue(self) -> bool:
        """Return False: a call may take any time."""
        return False

    def take(self, workers: int) -> Chunk | None:  # noqa: ARG002  # the protocol's
        """Return the next call that is not cancelled; None if there is none."""
        while self._queue:
            chunk = self._queue.popleft()
            if self.may_begin(chunk.future):
                return chunk
        return None

    def give_back(self, chunks: list[Chunk]) -> bool:
        """Put calls at the front of the queue, and return True; return False after `end_all`."""
        if not self._is_over:
            self._queue.extendleft(reversed(chunks))
        return not self._is_over

    def measured(self, chunk: Chunk, seconds: float, size: int) -> None:
        """Do nothing: the size of a chunk of calls is always one."""

    def settle(self, chunk: Chunk, outcome: Outcome) -> None:
        """Settle the future of a call with its outcome."""
        future = chunk.future
        chunk.future = chunk.items = None
        try:
            values, failures = read(outcome, chunk)
            if failures:
                future._settle(None, failures.pop(0))
            else:
                future._settle(values.pop())
        except BaseException as error:  # of a signal that has insisted
            if not future._settled:
                future._settle(None, unreadable(error, chunk.code.name))
            raise
        finally:
            self.end(future)

    def fail(self, chunk: Chunk, error: BaseException) -> None:
        """Settle the future of a call with an error."""
        future = chunk.future
        chunk.future = chunk.items = None
        self.refuse(future, error)


_Read = tuple[list[Any], dict[int, BaseException]]


def read(outcome: Outcome, chunk: Chunk) -> _Read:
    """Return the values of a chunk, and the errors of its items without a value, by their positions.

    What a signal's handler raises meanwhile is raised.
    """
    if outcome.failures:
        failures = {place: rebuild(Failure(*fields), "worker") for place, fields in outcome.failures.items()}
        if (first := min(failures)) < 0:  # `NO_CODE` or `NO_ITEMS`
            return [None] * chunk.size, dict.fromkeys(range(chunk.size), failures[first])
    else:
        failures = {}
    try:
        with undisturbed:
            values = unpack(outcome.values)
        for place in outcome.apart:
            if type(value := values[place]) is RemoteIterator:
                value._parl_bind(chunk.worker)
            elif type(value) is Unreadable:
                failures[place] = unreadable(value.error, chunk.code.name)
        return values, failures
    except BaseException as error:  # an exception of a user's class, which must not end the reading thread
        if is_by_handler(error):
            raise
        return [None] * chunk.size, dict.fromkeys(range(chunk.size), unreadable(error, chunk.code.name))


class _Raised:
    """A placeholder for the result of an item that raised an error."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Items:
    """The items of one map.

    Args:
        workers: The workers that process the items.
        code: The function.
        items: The items; taken in the thread that iterates, unless they are a list already.
        how: The way in which the function takes an item.
        chunksize: The number of items in a chunk; None chooses it by their cost.
        quota: The maximum number of workers at a time, shared with other sources.
        ahead: The number of items taken before their results are requested; 0 for all items at once, None for as many
            as keep the workers busy.
        retries: The maximum number of times that an item is run again after its worker has ended.
        timeout_s: Seconds that an item may run; None for no limit.
        on_end: Called once, when the last item in progress has ended.
    """

    def __init__(
        self,
        workers: Workers,
        code: Code,
        items: Iterable[Any],
        how: CallForm,
        *,
        chunksize: int | None,
        quota: Quota,
        ahead: int | None,
        retries: int,
        timeout_s: float | None,
        total: int | None,
        on_end: Callable[[], None],
    ) -> None:
        self.workers = workers
        self.quota = quota
        self.retries = retries
        self.timeout_s = timeout_s
        self.running = 0
        self._code = code
        # A slice of a range is as small as the range; a range that is too long for `len` is iterated.
        self._items: Any = items if type(items) is range and total is not None else iter(items)
        self._reader = ItemReader(iter(self._items))
        self._is_due = False  # whether a chunk waits for no more items
        self._is_watched = False  # whether `_look_again` is about to be called
        self._how = how
        self._chunksize = chunksize
        self.ahead = ahead
        self._left = total  # not taken yet, if that is known
        self._on_end: Callable[[], None] | None = on_end
        self._exhausted = False
        self.source_error: BaseException | None = None  # raised where the next item would be
        self._queue: Any = []  # items that are taken and not handed out, from `_at` on
        self._at = 0
        self._again: list[Chunk] = []  # of workers that ended
        self._next_start = 0  # of the next chunk
        self._taken = 0
        self.given = 0  # results that were returned
        self._grown = 1  # items in the largest chunk so far
        self._cost, self._bytes = workers.costs.get(code.key, (0.0, 0.0))
        if self._cost:
            self._grown = int(_CHUNK_S / self._cost) + 1
        self._workers_seen = 1
        self._arrived = Condition(workers.lock)
        self._waiters: list[Any] = []  # tasks of event loops that wait for the same
        self._sent: dict[int, Chunk] = {}  # the chunks that workers have, by their start
        self._done: dict[int, tuple[Chunk, Outcome | BaseException]] = {}
        self._closed = False
        self._cut_short = False  # by the executor's end

    def __len__(self) -> int:
        """Return the approximate number of waiting chunks."""
        waiting = len(self._queue) - self._at
        return len(self._again) + -(-waiting // (self._chunksize or self._next_size()))

    # -- the thread that iterates ------------------------------------------------------------------------------------

    def fill(self, *, waits: bool = True) -> None:
        """Take as many items as keep the workers busy; an error of their iterator is kept in `source_error`.

        Without a limit of items, it ends as soon as the next result is there, and takes no more items that may be late.

        Args:
            waits: Whether it may wait for the next result, for a part of the time that a late item takes.
        """
        before = self._taken
        began = looked = time.monotonic()
        try:
            while not self._exhausted:
                with self.workers.lock:
                    capacity = self._capacity()
                if capacity <= 0 or (self.ahead is None and self._is_result_first(began, waits)):
                    break
                self._take_up_to(capacity)
                now = time.monotonic()
                if now - looked > FILL_S:
                    self._is_due = True
                    if not self._exhausted and self.workers.may_take(self):
                        self.workers.look_at(self)
                    looked = now
                elif self._left is None and not self._is_watched:
                    self._is_watched = True
                    self.workers.later(FILL_S, self._look_again)
        finally:
            self._is_due = True
            if self._taken > before or self._exhausted:
                self.workers.look_at(self)
            if self._exhausted:
                self._end_if_idle()

    def _hand_out(self) -> None:
        """Hand out the items that are taken, because the next one may be late."""
        self._is_due = True
        if self.has_next():
            self.workers.look_at(self)

    def _look_again(self) -> None:
        """Hand out the items that are taken, in the timer's thread: the iterating thread may be waiting for another."""
        self._is_watched = False
        self._hand_out()

    def _is_result_first(self, began: float, waits: bool) -> bool:
        """Return whether to return the next result rather than to take more items, as since `began`."""
        now = time.monotonic()
        is_late = self._reader.is_late(now)
        if is_late and not self.running:
            self._hand_out()
        if is_late and waits and self.given < self._taken:
            return self._wait_for_next(now + self._reader.patience_s)
        with self.workers.lock:
            return self.given in self._done and (is_late or now - began > FILL_S)

    def _take_up_to(self, capacity: float) -> None:
        """Take items, at most `capacity`."""
        if type(self._items) is range:
            with self.workers.lock:
                if self._exhausted:  # another thread has closed the map
                    return
                self._taken = int(min(self._taken + capacity, len(self._items)))
                self._queue = self._items[: self._taken]
                self._left = len(self._items) - self._taken
                self._exhausted = not self._left
            return
        some: list[Any] = []
        try:
            error = self._reader.take(some, capacity)
            self.source_error = error
            if error is not None and (is_by_handler(error) or not isinstance(error, Exception)):
                raise error
        finally:
            with self.workers.lock:
                self._exhausted = self._exhausted or self._reader.is_exhausted
                if self._at:
                    del self._queue[: self._at]
                    self._at = 0
                if not self._queue:
                    self._is_due = False
                if not self._closed:  # by another thread, meanwhile
                    self._queue += some
                self._taken += len(some)
                if self._left is not None:
                    self._left = max(0, self._left - len(some))  # its length may be an estimate

    def _capacity(self) -> float:
        if self.ahead == 0:
            return inf
        if self.ahead is not None:
            return self.ahead - (self._taken - self.given)
        size = self._chunksize or self._next_size()
        capacity = _AHEAD * size * max(2, self._workers_seen) - (self._taken - self.given)
        return capacity if capacity >= size else 0

    def part(self, timeout_s: float | None, deadline: float | None) -> tuple[_Read, bool] | BaseException | None:
        """Wait for the next part of the results and return it.

        Args:
            timeout_s: The timeout in seconds, for the message.
            deadline: The time until which the part has to arrive; None waits without limit.

        Returns:
            The part, and whether it is so small that its results may be kept until all of them are taken; None if there
            are no more results. Or the error that ends the results: the part was late, the executor was shut down
            before all items were taken, or the iterator of the items raised an error.
        """
        if not self._wait_for_next(deadline):
            return late(timeout_s)
        with self.workers.lock:
            found = self._done.pop(self.given, None)
        if found is None:
            error, self.source_error = self.source_error, None
            if error is None and self._cut_short and self._has_more():
                return RuntimeError("cannot schedule new futures after shutdown")
            return error
        chunk, outcome = found
        if isinstance(outcome, BaseException):
            return ([None] * chunk.size, dict.fromkeys(range(chunk.size), outcome)), True
        try:
            return read(outcome, chunk), not outcome.apart and size_of(outcome.values) < _SMALL_BYTES
        except BaseException as error:  # of a signal that has insisted
            with self.workers.lock:
                self._done[self.given] = chunk, unreadable(error, chunk.code.name)
            raise

    def _wait_for_next(self, deadline: float | None) -> bool:
        """Wait until the next part has arrived or there are no more results; return False if neither is so in time."""
        reads = not has_own_handlers()
        waited_for = None
        while True:
            with self._arrived:
                if self.given in self._done or self._is_at_end():
                    return True
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                chunk = self._sent.get(self.given)
                answer = None if chunk is None else chunk.answer
                carrier = answer._carrier if reads and answer is not None and answer is not waited_for else None
                if carrier is None:
                    self._arrived.wait(left)
            if carrier is not None:  # this thread reads the answer itself
                carrier.wait_for(answer, left)
                waited_for = answer

    def _is_at_end(self) -> bool:
        return self._closed or (self.given == self._taken and self._exhausted)

    def _has_more(self) -> bool:
        return type(self._items) is range or next(self._items, _NOTHING) is not _NOTHING  # a range is taken exactly

    def has_part(self, waiter: Any) -> bool:
        """Return whether `part` returns without waiting; if not, wake the waiter when that may have changed."""
        with self._arrived:
            has_part = self.given in self._done or self._is_at_end()
            if not has_part:
                self._waiters.append(waiter)
        return has_part

    def _tell_waiters(self) -> None:
        self._arrived.notify_all()
        for waiter in self._waiters:
            waiter.wake()
        self._waiters.clear()

    def cancel(self) -> None:
        """Hand out no more items; the iterator raises `CancelledError` in place of their results."""
        with self.workers.lock:
            self._exhausted = True
            waiting = len(self._queue) - self._at
            if waiting:
                chunk = Chunk(self, self._code, None, waiting, self._how, self._next_start)
                self._done[self._next_start] = chunk, CancelledError()
                self._next_start += waiting
            self._queue = []
            self._at = 0
            self._tell_waiters()
        self._end_if_idle()

    def close(self) -> None:
        """Hand out no more items."""
        with self.workers.lock:
            if self._closed:
                return
            self._closed = self._exhausted = True
            self.source_error = None
            self._queue = []
            self._at = 0
            self._again.clear()
            self._done.clear()
            self._tell_waiters()
            self.workers.forget(self)
        self.let_go()
        self._end_if_idle()

    def let_go(self) -> None:
        """Drop the iterator of the items, of which no more are taken.

        A generator that nothing else refers to ends here, in this thread.
        """
        self._items = iter(())
        self._reader.let_go()

    def take_no_more(self) -> None:
        """Take no more items; items taken already are still handed out."""
        with self.workers.lock:
            self._exhausted = True
        self.workers.look_at(self)
        self._end_if_idle()

    def shut_down(self) -> None:
        """Take no more items; iterating past those taken already raises an error, unless there are no others."""
        with self.workers.lock:
            self._cut_short |= not self._exhausted
        self.take_no_more()

    def _end_if_idle(self) -> None:
        with self.workers.lock:
            if not self._exhausted or self.running or self.has_next() or self._on_end is None:
                return
            on_end, self._on_end = self._on_end, None
        on_end()

    # -- workers.Source ----------------------------------------------------------------------------------------------

    def has_next(self) -> bool:
        """Return whether a chunk waits; of a chosen size it has all items, unless there are no more or few allowed."""
        waiting = len(self._queue) - self._at
        if self._again or not waiting:
            return bool(self._again)
        if self._exhausted or self.ahead:
            return True
        return waiting >= (self._chunksize or (1 if self._is_due else self._next_size()))

    def may_queue(self) -> bool:
        """Return True if the next chunk is known to be quick, so that its worker need not wait for it."""
        if self._again:
            return False
        return self._chunksize is None and self.timeout_s is None and 0 < self._cost < _CHUNK_S

    def take(self, workers: int) -> Chunk:
        """Return the next chunk, sized by the measured cost and the number of workers."""
        self._workers_seen = max(1, workers if self.quota.most is None else min(workers, self.quota.most))
        if self._again:
            chunk = self._again.pop(0)
            self._sent[chunk.start] = chunk
            return chunk
        waiting = len(self._queue) - self._at
        size = self._chunksize or self._next_size()
        if self._chunksize is None and (self._exhausted or self._left is not None):
            left = waiting + (0 if self._exhausted else self._left or 0)
            parts: float = 2 * self._workers_seen
            if self._cost:
                work_s = left * self._cost
                idle = self._workers_seen - self.running
                idle = min(idle, int((work_s / _SEND_S) ** 0.5))  # the n for which n * _SEND_S + work_s / n is least
                parts = max(1, min(parts, max(idle, work_s / _LEAST_S)))
            size = min(size, ceil(left / parts))
        size = min(size, waiting)
        items = self._queue[self._at : self._at + size]
        if type(self._queue) is list:
            self._queue[self._at : self._at + size] = [None] * size  # an item is released with its chunk
        self._at += size
        chunk = Chunk(self, self._code, items, size, self._how, self._next_start)
        if self.timeout_s is not None:
            most = (size - 1) * self.timeout_s
            chunk.rest_s = min(most, _SLACK * size * self._cost) if self._cost else most
        if self._chunksize is None:
            chunk.most_s = _SLACK * _CHUNK_S
        self._next_start += size
        self._sent[chunk.start] = chunk
        return chunk

    def _next_size(self) -> int:
        if not self._cost:
            return 1
        size = min(_CHUNK_S / self._cost, self._grown * _GROWTH)
        if self._bytes:
            size = min(size, _CHUNK_BYTES / self._bytes)
        return max(1, int(size))

    def give_back(self, chunks: list[Chunk]) -> bool:
        """Put chunks at the front of the queue; return False if the map is closed."""
        if not self._closed:
            self._again[:0] = chunks
        return not self._closed

    def measured(self, chunk: Chunk, seconds: float, size: int) -> None:
        """Record the cost of a chunk, which decides the size of later chunks."""
        cost = max(seconds / chunk.size, 1e-8)
        self._cost = cost if not self._cost or chunk.size > self._grown // 2 else (self._cost + cost) / 2
        self._grown = max(self._grown, chunk.size)
        self._bytes = size / chunk.size
        costs = self.workers.costs
        costs[chunk.code.key] = self._cost, self._bytes
        if len(costs) > _COSTS_KEPT:
            costs.popitem(last=False)

    def settle(self, chunk: Chunk, outcome: Outcome) -> None:
        """Store a chunk's outcome for the reader of the results."""
        self._take_in(chunk, outcome)

    def fail(self, chunk: Chunk, error: BaseException) -> None:
        """Store the error of all items of a chunk for the reader of the results."""
        self._take_in(chunk, error)

    def _take_in(self, chunk: Chunk, outcome: Outcome | BaseException) -> None:
        chunk.items = None
        with self._arrived:
            self._sent.pop(chunk.start, None)
            if not self._closed:
                self._done[chunk.start] = chunk, outcome
                self._tell_waiters()
        self._end_if_idle()


def late(timeout_s: float | None) -> ResultTimeout:
    """Return the error of a map whose results did not all arrive before the timeout."""
    return ResultTimeout(f"a result was not there within {timeout_s} s")


class _Reader:
    """Makes the results of a map ready for its iterator, part by part.

    Args:
        job: The map.
        timeout_s: The timeout in seconds, for the message.
        deadline: The time until which all results have to arrive; None waits without limit.
        bar: Counts the results of each part as soon as they can be taken.
        goes_on: Whether the iterator continues with the next item after it has raised the error of an item.
    """

    def __init__(self, job: Items, timeout_s: float | None, deadline: float | None, bar: Bar, goes_on: bool) -> None:
        self.job = job
        self.deadline = deadline
        self.has_begun = False
        self.is_over = False
        self._timeout_s = timeout_s
        self._bar = bar
        self._goes_on = goes_on
        self._pid = os.getpid()
        self._left: list[Any] = []  # of the last part, backwards
        self._one_by_one = False  # for items that are taken one by one, or raised errors
        self._ready: Iterator[Any] = iter(())  # those that need no other step; a large part's are taken out of the list
        self._steps: Iterator[Any] = self._ready  # its length is the number of results that were not taken
        self._turn = threading.RLock()  # of the thread that makes results ready
        self._next: dict[str, Iterator[Any] | None] = {}  # "step": the replacement for a fetch; None for the end

    def steps(self) -> Iterator[Iterator[Any]]:
        """Return what a `chain` runs through: in turns an iterator that fetches, and one over what it has made ready.

        No part of it is Python code, in which a signal handler might raise and thereby end the chain.
        """
        return iter(partial(self._next.pop, "step", map(_Reader._fetch, repeat(self))), None)

    @uninterrupted
    def _fetch(self) -> NoReturn:
        """Raise `StopIteration` when the next step can be taken, or else the error of the next item."""
        self.check_process()
        with self._turn:
            error = self._advance()
            self._next["step"] = None if self.is_over else self._ready
        try:
            raise error or StopIteration
        finally:
            del error

    def _advance(self) -> BaseException | None:
        """Make the next results ready, or end the iterator; return the error of the next item."""
        if self.is_over or length_hint(self._steps):  # another thread has made them ready
            return None
        self.has_begun = True
        job = self.job
        left = self._left
        if not left:
            job.fill()
            part = job.part(self._timeout_s, self.deadline)
            if part is None or isinstance(part, BaseException):
                self.end()
                return part
            (values, failures), is_small = part
            if is_small and not failures and not job.ahead:
                self._ready = self._steps = iter(values)
                job.given += len(values)
                self._bar.update(len(values))
                return None
            for place, error in failures.items():
                values[place] = _Raised(error)
            values.reverse()
            left = self._left = values
            self._one_by_one = bool(failures) or bool(job.ahead)
        if type(left[-1]) is not _Raised:
            number = 1 if self._one_by_one else len(left)
            self._steps = repeat(left, number)
            self._ready = map(list.pop, self._steps)
            job.given += number
            self._bar.update(number)
            if job.ahead:
                job.fill()  # last: a handler may raise while it takes items
            return None
        raised: BaseException = left.pop().error
        job.given += 1
        self._bar.update(1)
        if not self._goes_on:
            self.end()
        if isinstance(raised, StopIteration):  # it would look like the end of the iteration
            replaced = RuntimeError("an item raised StopIteration")
            replaced.__cause__ = raised
            return replaced
        return raised

    def is_next_there(self, waiter: Any) -> bool:
        """Return whether the next step is taken without waiting; if not, wake the waiter when that may have changed."""
        if self._left or self.is_over or length_hint(self._steps):
            return True
        self.check_process()
        self.has_begun = True
        self.job.fill(waits=False)  # the event loop has other things to do
        return self.job.has_part(waiter)

    def late(self) -> ResultTimeout:
        """End the iterator and return the error of a result that is late."""
        self.end()
        return late(self._timeout_s)

    def is_of_this_process(self) -> bool:
        """Return whether this process called the map."""
        return self._pid == os.getpid()

    def check_process(self) -> None:
        """Raise `NotConnected` if the answers come to the process from which this one was forked."""
        if not self.is_of_this_process():
            raise NotConnected("a map's results are read by the process that called it, from which this one was forked")

    def end(self) -> None:
        """End the iterator and drop the results that have arrived; a second call does nothing."""
        if not self.is_over:
            self.is_over = True
            deque(self._ready, 0)
            self._left = []
            if self.is_of_this_process():  # else the parent goes on
                self.job.close()
                self._bar.close()


class Results(chain[R], ResultIterator[R]):
    """An iterator over the results of a map, in the items' order; `close` cancels the items that have not begun.

    `close`, which a `with` statement calls, and the end of the iterator drop the iterator of the items, so that a
    generator that nothing else refers to ends with it.

    If a signal handler raises an exception, for example at Ctrl-C, no result is lost: the next request continues.
    Several threads may request results; each result goes to one of them. It belongs to the process that called.

    Results that have arrived are taken by `chain`, in C, in a quarter of the time that a method would take.

    Args:
        job: The map.
        timeout_s: The timeout in seconds, for the message.
        deadline: The time until which all results have to arrive; None waits without limit.
        bar: Counts the results of each part as soon as they can be taken.
        goes_on: Whether the iterator continues with the next item after it has raised the error of an item.
    """

    _reader: _Reader

    def __new__(
        cls,
        job: Items,
        timeout_s: float | None,
        deadline: float | None,
        bar: Bar,
        *,
        goes_on: bool,
    ) -> Results[R]:
        reader = _Reader(job, timeout_s, deadline, bar, goes_on)
        results = cast("Results[R]", cls.from_iterable(reader.steps()))
        results._reader = reader
        return results

    @uninterrupted
    def _is_next_there(self, waiter: Any) -> bool:
        return self._reader.is_next_there(waiter)

    def _deadline_of_next(self) -> float | None:
        return self._reader.deadline

    @uninterrupted
    def _late(self) -> ResultTimeout:
        return self._reader.late()

    @uninterrupted
    def close(self) -> None:
        """Take no more items, drop their iterator and the results that have arrived; a second call does nothing."""
        self._reader.end()

    def __del__(self) -> None:
        # If it has not begun, the program wants the items done that are taken, as an executor's.
        reader = self._reader
        if not reader.is_over and reader.is_of_this_process():
            reader.job.let_go()
            if reader.has_begun:
                reader.job.workers.soon(reader.job.close)  # this may run at any point of any thread
