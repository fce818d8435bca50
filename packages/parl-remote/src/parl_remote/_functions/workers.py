"""The worker processes of plain functions, and the distribution of work over them.

    a source (an executor, a map) --chunk--> Workers --call--> a FunctionWorker in an actor
             ^                                                       |
             '----- outcome, or the chunk again: its worker died ----'

Chunks are handed out by the thread that adds a chunk or receives an outcome; there is no separate thread for it. A
worker has one chunk at a time, so no chunk waits behind a long one. Workers are made while chunks wait, as many as
there are slots for. A worker ends when it has been idle for a while, or when this program makes an actor that needs its
slot.

Inside an actor, and on a private cluster, the first worker is made even if no CPU is free. Otherwise a function that
waits for other functions could wait for its own CPU.

On a private cluster executors have as many workers as they ask for. Workers beyond the CPUs run chunks of executors
alone: executors do not wait for maps and remote functions, and these do not get more workers than there are CPUs.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import queue
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Protocol

from parl_remote import _current
from parl_remote._data import serialize
from parl_remote._data.class_spec import ClassSpec
from parl_remote._functions.worker import (
    NO_ITEMS,
    CallForm,
    Code,
    FunctionCache,
    FunctionWorker,
    Outcome,
    pack_items,
    size_of,
)
from parl_remote._options import ActorOptions
from parl_remote._program.actor_ref import ActorRef
from parl_remote._system.interrupts import uninterrupted
from parl_remote.errors import (
    ActorError,
    ActorLost,
    ExecutorBroken,
    ItemLost,
    NoResources,
    NotConnected,
    RemoteCallError,
    ResultTimeout,
)

__all__ = [
    "Chunk",
    "Quota",
    "Source",
    "Workers",
    "after_fork",
    "free_for_actor",
    "own_workers",
    "shared_workers",
]

_log = logging.getLogger("parl.remote")
_executors_log = logging.getLogger("concurrent.futures")  # where the standard library reports failed initializers
_IDLE_S = 15.0  # less than others wait for resources by default
# After a worker was given back, only a first one is made for this long, so that a waiting program gets the slot.
_SHARED_S = 5.0
_FULL_S = 1.0  # between attempts to make more workers than there were slots for
_FEWEST_TO_SHARE = 2  # workers: the last one is kept
_PIECES = 16  # the maximum number of parts into which a chunk is split after its worker ended
_FAILED_STARTS = 3  # workers that may end before they can run anything
_spec = ClassSpec(FunctionWorker)


class Clock:
    """A timer that runs functions later, in a separate thread."""

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[tuple[float, int, Callable[[], None]]] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._starting = threading.RLock()  # a signal handler may come in between
        self._runs = False

    def start(self) -> None:
        """Start the thread unless it runs; finalizers must not call this, because they may interrupt a start."""
        with self._starting:
            if not self._runs:
                self._runs = True
                try:
                    threading.Thread(target=self._run, name="parl-functions", daemon=True).start()
                except RuntimeError:  # no thread can be had, now
                    self._runs = False
                    raise

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Run a function, which must not block, after some seconds; takes no lock, so finalizers may call this."""
        self._given.put((time.monotonic() + seconds, next(self._numbers), action))

    def _run(self) -> None:
        todo: list[tuple[float, int, Callable[[], None]]] = []
        while True:
            try:
                left = min(max(0.0, todo[0][0] - time.monotonic()), threading.TIMEOUT_MAX) if todo else None
                heapq.heappush(todo, self._given.get(timeout=left))
            except queue.Empty:
                action = heapq.heappop(todo)[2]
                try:
                    action()
                except Exception:  # a lack of memory, for example; the others still run
                    _log.exception("%r failed in the timer of functions", action)
                del action


_clock = Clock()


class Chunk:
    """Items that are sent to a worker together.

    Attributes:
        source: The source of the items.
        code: The function.
        items: The list of items; of a call its only item, packed.
        size: The number of items.
        how: The way in which the function takes an item, see `CallForm`.
        start: The index of the first item.
        most_s: Seconds after which a worker begins no further item.
        rest_s: Seconds that all items but one may take. If the chunk takes longer than this plus the time limit, it is
            run again in pieces, until the item that is too slow is alone.
        deaths: The number of workers that have ended with it, if it is a single item.
        alone: Whether its worker gets no other chunk, because a worker has ended with it.
        answer: The future of the worker's answer, from when the chunk is sent until it is answered.
        due: The time until which it has to be answered, on the monotonic clock; infinite without a time limit.
        future: The future of the call, if the chunk is a call.
        worker: The reference to the worker that has run it, for generators in that worker; None without any.
    """

    __slots__ = (
        "alone",
        "answer",
        "code",
        "deaths",
        "due",
        "future",
        "how",
        "items",
        "most_s",
        "rest_s",
        "size",
        "source",
        "start",
        "worker",
    )

    def __init__(self, source: Source, code: Code, items: Any, size: int, how: CallForm, start: int) -> None:
        self.source = source
        self.code = code
        self.items = items
        self.size = size
        self.how = how
        self.start = start
        self.most_s = inf
        self.rest_s = 0.0
        self.deaths = 0
        self.alone = False
        self.answer: Any = None
        self.due = inf
        self.future: Any = None
        self.worker: Any = None

    def part(self, first: int, end: int) -> Chunk:
        """Return the items from `first` to before `end` as a chunk."""
        part = Chunk(self.source, self.code, self.items[first:end], end - first, self.how, self.start + first)
        part.most_s, part.rest_s = self.most_s, self.rest_s
        part.alone = self.alone
        return part


class Quota:
    """The number of workers that the sources of one executor may have at a time.

    Args:
        most: The maximum number; None for no limit.
    """

    __slots__ = ("most", "taken")

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.taken = 0

    @property
    def is_promised(self) -> bool:
        """Return whether a private cluster has as many workers as requested, whatever the number of its CPUs."""
        return self.most is not None

    @property
    def free(self) -> float:
        """The number of further workers that they may have."""
        return float("inf") if self.most is None else self.most - self.taken


class Source(Protocol):
    """A source of chunks. All methods except `settle` and `fail` are called with the lock of `Workers` held."""

    quota: Quota
    running: int  # chunks that were handed out
    retries: int
    timeout_s: float | None

    def has_next(self) -> bool:
        """Return whether a chunk waits."""

    def may_queue(self) -> bool:
        """Return whether the next chunk may wait in a worker behind another chunk of this source."""

    def take(self, workers: int) -> Chunk | None:
        """Return the next chunk, sized for this number of workers; None if the waiting items were cancelled."""

    def __len__(self) -> int:
        """Return the approximate number of waiting chunks."""

    def give_back(self, chunks: list[Chunk]) -> bool:
        """Put chunks at the front of the queue; return False if they are no longer wanted, so that they `fail`."""

    def measured(self, chunk: Chunk, seconds: float, size: int) -> None:
        """Record the cost of a chunk, in seconds and bytes."""

    def settle(self, chunk: Chunk, outcome: Outcome) -> None:
        """Take a chunk's outcome."""

    def fail(self, chunk: Chunk, error: BaseException) -> None:
        """Take the error of all items of a chunk."""


class _Worker:
    """One worker process."""

    __slots__ = (
        "__weakref__",
        "chunks",
        "idle_since",
        "is_extra",
        "is_wanted",
        "known",
        "lost",
        "next_look",
        "overdue",
        "ref",
    )

    def __init__(self, ref: ActorRef, is_extra: bool) -> None:
        self.ref = ref
        self.is_extra = is_extra  # without a CPU, for executors that were promised more workers than there are CPUs
        self.known: FunctionCache[None] = FunctionCache()
        self.idle_since = 0.0
        self.chunks: list[Chunk] = []  # the first one runs
        self.lost: Chunk | None = None  # the chunk that it ran when it ended
        self.overdue = False
        self.next_look = inf  # when it is next checked whether its chunk is overdue
        self.is_wanted = False  # by another program


class Workers:
    """The workers of one kind.

    Args:
        client: The connection that makes the workers.
        options: The options of each worker.
        initializer: The function that each worker calls first, see `FunctionWorker`; None for no initializer.
    """

    def __init__(self, client: _current.ActorMaker, options: ActorOptions, initializer: Any = None) -> None:
        self._client = client
        self.options = options
        self._initializer = initializer
        self._clock = _clock
        self._clock.start()
        client.start_reading()  # while threads can be had: Python 3.12.0 and 3.12.1 start none when a program ends
        self.lock = threading.RLock()
        self.broken: ExecutorBroken | None = None
        self._ready: dict[Source, None] = {}  # sources with chunks that wait
        self._idle: list[_Worker] = []
        self._workers: dict[_Worker, None] = {}
        self._making = 0
        self._makers: list[threading.Thread] = []  # that are to be started
        self._failed_starts = 0
        self._full_until = {False: 0.0, True: 0.0}  # for further workers, and for those that executors insist on
        self._shared_until = 0.0  # for further workers, not for a first one
        self._dispatching = False
        self._again = False
        self._sweeping = False
        self._abandoned = False  # only what waits already is still run
        self.costs: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # seconds and bytes of an item, by function
        self._yields = False  # the resources of idle workers were needed, and no worker was wanted since

    # -- any thread --------------------------------------------------------------------------------------------------

    @uninterrupted
    def look_at(self, source: Source) -> None:
        """Hand out the chunks of a source, now or when workers are free."""
        with self.lock:
            self._ready[source] = None
        self.dispatch()

    def may_take(self, source: Source) -> bool:
        """Return whether a worker may be idle for a chunk of a source, or could be made."""
        return bool(self._idle or not self._making) and source.quota.free > 0

    def soon(self, action: Callable[[], None]) -> None:
        """Run a function, which must not block, in another thread; for finalizers.

        A finalizer may run in any thread at any point, even while that thread holds `lock` or while the thread that
        holds it waits for that thread. So a finalizer must neither take the lock nor change the state that it guards.
        """
        self.later(0.0, action)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run a function, which must not block, in another thread after some seconds."""
        self._clock.after(seconds, action)

    def forget(self, source: Source) -> None:
        """Hand out no more chunks of a source."""
        with self.lock:
            self._ready.pop(source, None)

    def dispatch(self) -> None:
        """Hand out chunks while workers are free; one thread does so at a time."""
        with self.lock:
            if self._dispatching:
                self._again = True
                return
            self._dispatching = True
        goes_on = True
        try:
            while goes_on:
                with self.lock:
                    self._again = False
                    picked = self._pick()
                    makers, self._makers = self._makers, []
                    goes_on = self._dispatching = picked is not None or self._again
                for maker in makers:  # without the lock: `start` waits for the thread, which may run a finalizer first
                    try:
                        maker.start()
                    except RuntimeError as error:  # no thread can be had, or the interpreter ends
                        self._not_made(NoResources(f"no thread can be started that makes one: {error}"), insist=True)
                if picked is not None:
                    self._send(*picked)
        finally:
            if goes_on:  # an error ends the loop
                self._dispatching = False

    def release_idle(self) -> int:
        """End the idle workers, because their resources are needed; return their number."""
        with self.lock:
            self._yields = True  # busy workers, and those being made, end too late for this request
            ended = len(self._idle)
            for worker in self._idle:
                del self._workers[worker]
            self._idle.clear()
        return ended

    def give_back(self, lease_id: str) -> None:
        """End the worker on a lease when it has no chunk, for a program that waits for it; keep the last worker."""
        with self.lock:
            wanted = [worker for worker in self._workers if getattr(worker.ref.place, "lease_id", "") == lease_id]
            if not wanted or sum(not worker.is_wanted for worker in self._workers) < _FEWEST_TO_SHARE:
                return
            (worker,) = wanted
            worker.is_wanted = True
            self._shared_until = time.monotonic() + _SHARED_S
            self._clock.after(_SHARED_S, self.dispatch)
            if worker in self._idle:
                self._idle.remove(worker)
                del self._workers[worker]

    def end_running(self, source: Source) -> None:
        """End the workers that run chunks of a source, which fail or are given back to it."""
        with self.lock:
            ended = [worker for worker in self._workers if worker.chunks and worker.chunks[0].source is source]
            for worker in ended:
                del self._workers[worker]
        for worker in ended:
            worker.ref.destroy()

    def close(self) -> None:
        """End each worker when it is idle and no chunk waits; executors add no more."""
        self._abandoned = True
        self.release_idle()

    def is_over(self) -> bool:
        """Return whether the connection of these workers is no longer the connection of this program."""
        return _current.peek() is not self._client

    # -- with the lock -----------------------------------------------------------------------------------------------

    def _pick(self) -> tuple[_Worker, Chunk] | None:
        for source in list(self._ready):
            if not source.has_next():
                del self._ready[source]
                continue
            if source.quota.free <= 0:
                if (queued := self._queue_behind(source)) is not None:
                    return queued
                continue
            worker = self._idle_for(source)
            if worker is None:
                self._grow()
                if (queued := self._queue_behind(source)) is not None:
                    return queued
                if self._idle:  # for executors
                    continue
                return None
            chunk = source.take(len(self._workers) + self._making)
            if chunk is None:
                continue
            self._idle.remove(worker)
            source.running += 1
            source.quota.taken += 1
            worker.chunks.append(chunk)
            del self._ready[source]  # behind the others
            self._ready[source] = None
            if source.has_next() and self._idle_for(source) is None:
                self._grow()
            return worker, chunk
        return None

    def _idle_for(self, source: Source) -> _Worker | None:
        """Return an idle worker for a source: extra ones first for executors, none of them for the others."""
        for worker in reversed(self._idle):
            if worker.is_extra == source.quota.is_promised:
                return worker
        return self._idle[-1] if self._idle and source.quota.is_promised else None

    def _queue_behind(self, source: Source) -> tuple[_Worker, Chunk] | None:
        """Queue the next chunk of a source in a worker that has another chunk of it, if there is such a worker."""
        if not source.may_queue():
            return None
        for worker in self._workers:
            if len(worker.chunks) != 1 or worker.is_wanted:
                continue
            if worker.chunks[0].source is source and not worker.chunks[0].alone:
                chunk = source.take(len(self._workers) + self._making)
                if chunk is None:
                    return None
                source.running += 1
                worker.chunks.append(chunk)
                return worker, chunk
        return None

    def _grow(self) -> None:
        now = time.monotonic()
        sources = [source for source in self._ready if source.has_next()]
        wanted = 0
        for source in sources:
            waiting = len(source)
            wanted += int(min(waiting, max(0, source.quota.free)))
        wanted = min(wanted, max(4, len(self._workers)))
        working = {worker: worker.chunks[0].source.quota for worker in self._workers if worker.chunks}
        quotas = {source.quota for source in sources}.union(working.values())
        promised = sum(quota.most or 0 for quota in quotas)  # to all executors that have something to do
        others = sum(not quota.is_promised for quota in working.values())  # workers that executors would wait for
        while self._making < wanted:
            is_first = not self._making and all(worker.is_extra for worker in self._workers)
            insist = len(self._workers) + self._making - others < promised
            is_shared = now < self._shared_until and bool(self._workers or self._making)
            if is_shared or now < self._full_until[insist]:
                return
            self._making += 1
            self._yields = False
            self._makers.append(
                threading.Thread(target=self._make, args=(is_first, insist), name="parl-worker", daemon=True)
            )

    # -- making workers, each in a thread of its own -----------------------------------------------------------------

    def _make(self, is_first: bool, insist: bool) -> None:
        try:
            ref, is_extra = self._leased(is_first, insist)
        except BaseException as error:
            self._not_made(error, insist)
        else:
            with self.lock:
                self._making -= 1
                self._failed_starts = 0
                worker = _Worker(ref, is_extra)
                self._workers[worker] = None
                self._rest(worker)
        self.dispatch()

    def _leased(self, is_first: bool, insist: bool) -> tuple[ActorRef, bool]:
        """Return a new worker, and whether it is an extra one."""
        options = self.options
        private = getattr(self._client, "address", "") in {"local", "debug"}  # the CPUs of no other program
        at_once = options.changed({"lease_timeout_s": 0.0})
        try:
            return self._created(at_once), False
        except NoResources as error:
            if isinstance(error.__cause__, RemoteCallError) or (not is_first and not insist):
                raise
            if _free_slots(self._client, self):
                with contextlib.suppress(NoResources):
                    return self._created(options.changed({"lease_timeout_s": _FULL_S})), False
            if 0 < options.n_cpu <= 1 and ((private and insist) or (is_first and (private or _current.inside_actor()))):
                return self._created(at_once.changed({"n_cpu": 0})), not is_first
            if not is_first:
                raise
        return self._created(options), False

    def _created(self, options: ActorOptions) -> ActorRef:
        args = () if self._initializer is None else (self._initializer,)
        return self._client.create(_spec, options, args, {})

    def _not_made(self, error: BaseException, insist: bool) -> None:
        with self.lock:
            self._making -= 1
            others = bool(self._workers or self._making)
            may_pass = isinstance(error, NoResources) and error.may_pass and error.__cause__ is None
            if may_pass or (others and isinstance(error, NoResources)):
                if not others and self._ready:
                    _log.warning("functions wait for a worker, as long as it takes: %s", error)
                self._full_until[False] = self._full_until[insist] = time.monotonic() + _FULL_S
                self._clock.after(_FULL_S, self.dispatch)
                return
            self._failed_starts += 1
            is_user = self._initializer is not None and not isinstance(error, NoResources | NotConnected)
            if isinstance(error, ActorLost) and self._failed_starts < _FAILED_STARTS:
                return
            if self._workers and not is_user:
                return
            text = "the initializer failed in a worker" if is_user else "no worker could be made"
            broken = ExecutorBroken(f"{text}: {error}")
            broken.__cause__ = error
            if is_user and self.broken is None:  # other workers that were being made fail in the same way
                exc_info = type(error), error, None  # the remote traceback is its cause; the frames here add nothing
                _executors_log.critical("Exception in initializer:", exc_info=exc_info)
                self.broken = broken
            self._failed_starts = 0
            failed = [(source, self._rest_of(source)) for source in list(self._ready)]
            self._ready.clear()
        for source, chunks in failed:
            for chunk in chunks:
                source.fail(chunk, broken)

    def _rest_of(self, source: Source) -> list[Chunk]:
        chunks = []
        while source.has_next():
            if (chunk := source.take(1)) is not None:
                chunks.append(chunk)
        return chunks

    def _rest(self, worker: _Worker) -> None:
        """Make a worker idle, with the lock held."""
        worker.idle_since = time.monotonic()
        if worker.is_wanted:
            del self._workers[worker]
            return
        if (self._abandoned or self._yields) and not any(source.has_next() for source in self._ready):
            del self._workers[worker]
            return
        self._idle.append(worker)
        if not self._sweeping:
            self._sweeping = True
            self._clock.after(_IDLE_S, self._sweep)

    def _sweep(self) -> None:
        """End workers that have been idle for long."""
        with self.lock:
            until = time.monotonic() - _IDLE_S / 2
            for worker in [worker for worker in self._idle if worker.idle_since < until]:
                self._idle.remove(worker)
                del self._workers[worker]
            self._sweeping = bool(self._workers)
            if self._sweeping:
                self._clock.after(_IDLE_S, self._sweep)

    # -- chunks on their way -----------------------------------------------------------------------------------------

    def _send(self, worker: _Worker, chunk: Chunk) -> None:
        try:
            items = chunk.items if chunk.how is CallForm.CALL else pack_items(chunk.items, chunk.how)
        except BaseException as error:
            self._unsendable(worker, chunk, error)
            return
        size = size_of(items)
        code, key = None, chunk.code.key
        if not chunk.code.is_kept:
            code, key = chunk.code.packed, b""
        elif not worker.known.use(key):
            worker.known.add(key, None)
            code = chunk.code.packed
        try:
            future = worker.ref.submit("run", (key, code, chunk.code.name, items, int(chunk.how), chunk.most_s), {})
        except Exception as error:
            self._lost(worker, chunk, error)
            return
        if chunk.source.timeout_s is not None:
            chunk.due = time.monotonic() + chunk.source.timeout_s + chunk.rest_s
            self._look_later(worker, chunk.due)
        del items, code
        chunk.answer = future
        if chunk.future is not None:
            chunk.future._answer = future
        future._then(partial(self._answered, worker, chunk, size))

    def _answered(self, worker: _Worker, chunk: Chunk, size: int, future: Any) -> None:
        source = chunk.source
        chunk.answer = None
        error = NotConnected("the call was cancelled") if future.cancelled() else future.exception()
        if error is not None:
            del future
            self._lost(worker, chunk, error)
            return
        outcome = Outcome(*future.result())
        del future
        with self.lock:
            is_split = NO_ITEMS in (outcome.failures or ()) and self._split(chunk)
            if not is_split:
                if outcome.left:
                    done = chunk.size - outcome.left
                    self._give_back([chunk.part(done, chunk.size)])
                    size = size * done // chunk.size
                    chunk.size = done
                source.measured(chunk, outcome.seconds, size + size_of(outcome.values))
            self._done(worker, chunk)
            self._ready[source] = None
        if outcome.apart:  # else the chunk, which a map may keep for long, would keep its worker
            chunk.worker = worker.ref
        self.dispatch()
        if not is_split:
            source.settle(chunk, outcome)

    def _done(self, worker: _Worker, chunk: Chunk) -> None:
        """Record a chunk as done; called with the lock held."""
        source = chunk.source
        source.running -= 1
        chunk.due = inf
        worker.chunks.remove(chunk)
        if not worker.chunks:
            source.quota.taken -= 1
            if worker in self._workers:
                self._rest(worker)

    def _give_back(self, chunks: list[Chunk]) -> bool:
        """Queue chunks of a source again; return False if they are no longer wanted. Called with the lock held."""
        source = chunks[0].source
        wanted = source.give_back(chunks)
        if wanted:
            self._ready[source] = None
        return wanted

    def _split(self, chunk: Chunk) -> bool:
        """Queue a chunk again in pieces, because of one of its items; otherwise as `_give_back`."""
        return chunk.size > 1 and self._give_back(_pieces(chunk))

    def _unsendable(self, worker: _Worker, chunk: Chunk, error: BaseException) -> None:
        with self.lock:
            is_split = self._split(chunk)
            self._done(worker, chunk)
        if not is_split:
            if chunk.size == 1 and isinstance(error, Exception):
                args = chunk.items[0] if chunk.how is CallForm.ITEMS else tuple(chunk.items)
                refused = serialize.refusal(error, args, {}, chunk.code.name, list, "function")
                refused.__cause__, error = error, refused
            chunk.source.fail(chunk, error)

    def _look_later(self, worker: _Worker, at: float) -> None:
        """Check at a time of the monotonic clock whether a worker's chunk is overdue, unless a check comes earlier.

        A worker has one timer for all its chunks, which does not keep it alive.
        """
        with self.lock:
            if at >= worker.next_look:
                return
            worker.next_look = at
        self._clock.after(at - time.monotonic(), partial(self._end_if_overdue, weakref.ref(worker), at))

    def _end_if_overdue(self, found: weakref.ref[_Worker], at: float) -> None:
        """End a worker whose chunk is overdue; otherwise check again when the chunk is due."""
        worker = found()
        if worker is None:
            return
        with self.lock:
            if at != worker.next_look:
                return  # another check has come earlier
            worker.next_look = inf
            due = worker.chunks[0].due if worker.chunks else inf
            is_overdue = due <= time.monotonic()
            if is_overdue:
                worker.overdue = True
                self._workers.pop(worker, None)  # it gets no other chunk, even if it answers at this moment
        if is_overdue:
            try:
                threading.Thread(target=worker.ref.destroy, name="parl-timeout", daemon=True).start()
            except RuntimeError:  # no thread can be had, now
                self._look_later(worker, time.monotonic() + _FULL_S)
        elif due < inf:
            self._look_later(worker, due)

    def _lost(self, worker: _Worker, chunk: Chunk, error: BaseException) -> None:
        """Run a chunk whose worker ended again in pieces, to find and give up the item that ends workers."""
        source = chunk.source
        from_outside = isinstance(error, ActorLost) and error.from_outside and not worker.overdue
        with self.lock:
            self._workers.pop(worker, None)
            if worker.lost is None:
                worker.lost = worker.chunks[0]
            self._done(worker, chunk)
            if _current.peek() is not self._client and not _current.inside_actor():
                again = False  # the program has disconnected
            elif worker.lost is not chunk or not getattr(error, "was_sent", True):
                again = self._give_back([chunk])  # it waited behind the one that ran, or came too late
            elif chunk.size > 1:
                again = self._split(chunk)
            else:
                chunk.alone = True
                chunk.deaths += not from_outside
                again = chunk.deaths <= source.retries and not worker.overdue and self._give_back([chunk])
        if not again:
            source.fail(chunk, _given_up(chunk, error, worker.overdue))
        self.dispatch()


def _pieces(chunk: Chunk) -> list[Chunk]:
    step = -(-chunk.size // _PIECES)
    pieces = [chunk.part(first, min(first + step, chunk.size)) for first in range(0, chunk.size, step)]
    for piece in pieces:
        piece.alone = True
        if piece.size == 1:
            piece.rest_s = 0.0
    return pieces


def _given_up(chunk: Chunk, error: BaseException, overdue: bool) -> BaseException:
    what = (
        f"a call of {chunk.code.name}()" if chunk.how is CallForm.CALL else f"item {chunk.start} of {chunk.code.name}()"
    )
    if overdue:
        late: BaseException = ResultTimeout(f"{what} ran longer than {chunk.source.timeout_s} s, and was ended")
    elif isinstance(error, ActorLost) and chunk.deaths:
        deaths = "1 worker died" if chunk.deaths == 1 else f"{chunk.deaths} workers died"
        late = ItemLost(
            f"{what} was given up: {deaths} while working on it alone; the last one: {error}",
            index=chunk.start,
            attempts=chunk.deaths,
        )
    else:
        late = ActorError(f"{what} could not be done: {error}")
    late.__cause__ = error
    return late


class _Shared:
    """The workers that the functions of this program share: by connection, and by their options."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # as that of `Executor`
        self.client: Any = None
        self.kinds: list[Workers] = []
        self.own: weakref.WeakSet[Workers] = weakref.WeakSet()  # of executors with initializers


_shared = _Shared()


def shared_workers(client: _current.ActorMaker, options: ActorOptions) -> Workers:
    """Return the workers with these options that this program's functions share."""
    _current.when_full(free_for_actor, give_back)
    with _shared.lock:
        if _shared.client is not client:
            _shared.client, _shared.kinds = client, []
        for known in _shared.kinds:
            if known.options is options or known.options == options:
                return known
        workers = Workers(client, options)
        _shared.kinds.append(workers)
        return workers


def own_workers(client: _current.ActorMaker, options: ActorOptions, initializer: Any) -> Workers:
    """Return separate workers, for an executor with an initializer."""
    _current.when_full(free_for_actor, give_back)
    workers = Workers(client, options, initializer)
    with _shared.lock:
        _shared.own.add(workers)
    return workers


def free_for_actor(client: Any, class_name: str) -> None:
    """End this program's idle workers, because an actor waits for their resources; `_leased` does so for a worker."""
    if class_name != _spec.name:
        _free_slots(client)


def _free_slots(client: Any, needy: Workers | None = None) -> bool:
    """End this program's idle workers, except those of the needy kind; return whether there were any."""
    with _shared.lock:
        kinds = list(_shared.kinds) if _shared.client is client else []
    return sum(kind.release_idle() for kind in kinds if kind is not needy) > 0


def give_back(lease_id: str) -> None:
    """End a worker soon, because another program waits for its resources; does not block."""

    def give() -> None:
        with _shared.lock:
            kinds = [*_shared.kinds, *_shared.own]
        for kind in kinds:
            kind.give_back(lease_id)

    _clock.after(0.0, give)


def after_fork() -> None:
    """Forget the parent's workers, in the child of a fork."""
    global _shared, _clock
    _shared, _clock = _Shared(), Clock()
