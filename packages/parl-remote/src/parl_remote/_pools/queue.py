"""A queue shared by programs and actors: an actor that holds the items, and `Queue`, its handle.

Queue.put --items--> QueueActor: items, waiting calls --items--> Queue.get
                        (one event loop: a caller that waits is a task, which ends with its caller)
                     items that are lent        <--got, given back-- Queue.get

Ctrl-C or a cancellation may end a `get` at any moment, even while its items are on the way. Therefore a `get` borrows
its items, under its own ticket. The next `get` of the handle, or its end, confirms that they have arrived; an
interrupted `get` returns them to their old position. Calls run in order, so the next `get` of the same program finds
them there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue as standard
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from parl_remote._connect import connected, get_actor, kill
from parl_remote._data import serialize
from parl_remote._decorator import remote_class, submit, with_options
from parl_remote._options import check_count, seconds_of
from parl_remote._system.interrupts import uninterrupted
from parl_remote.errors import NoSuchActor, QueueClosed, SerializationError

__all__ = ["Queue"]

Item = TypeVar("Item")

_TICKET_BYTES = 8
_MOST_LENT = 10_000
_MOST_WAITING = 1_000_000  # calls at once: all getters may wait, and a put must still be heard


@remote_class(n_cpu=0, max_concurrency=_MOST_WAITING)
class QueueActor:
    """The items of a queue, and the calls that wait for one or for a slot.

    Args:
        maxsize: The maximum number of items; 0 for no limit.
    """

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._items: deque[Any] = deque()
        self._lent: dict[bytes, list[Any]] = {}
        self._getters: deque[asyncio.Future[bool]] = deque()
        self._putters: deque[asyncio.Future[bool]] = deque()
        self._joiners: deque[asyncio.Future[bool]] = deque()
        self._unfinished = 0
        self._is_closed = False

    async def put(self, items: list[Any], timeout_s: float | None) -> tuple[int, bool]:
        """Add items; return how many were added in time, and whether the queue is closed."""
        until = _deadline(timeout_s)
        for number, item in enumerate(items):
            while self._maxsize and len(self._items) >= self._maxsize and not self._is_closed:
                if not await self._wait(self._putters, until):
                    return number, False
            if self._is_closed:
                return number, True
            self._items.append(item)
            self._unfinished += 1
            _wake(self._getters)
        return len(items), False

    async def lend(self, ticket: bytes, most: int, timeout_s: float | None, got: list[bytes]) -> tuple[list[Any], bool]:
        """Take one to `most` items, none if there was none in time; return them, and whether the queue is closed.

        They are kept until a later call confirms them (`got`) or gives them back.
        """
        self._confirm(got)
        while len(self._lent) >= _MOST_LENT:  # items lent to callers that are gone
            del self._lent[next(iter(self._lent))]
        until = _deadline(timeout_s)
        while not self._items:
            if self._is_closed or not await self._wait(self._getters, until):
                return [], self._is_closed
        taken = [self._items.popleft() for _ in range(min(most, len(self._items)))]
        for _ in taken:
            _wake(self._putters)
        if self._items:  # its wake-up may have been meant for more than this call has taken
            _wake(self._getters)
        self._lent[ticket] = taken
        return taken, False

    async def confirm(self, got: list[bytes]) -> None:
        """Forget items that have arrived."""
        self._confirm(got)

    def _confirm(self, got: list[bytes]) -> None:
        for one in got:
            self._lent.pop(one, None)

    def give_back(self, ticket: bytes) -> None:
        """Put items that were lent back to the front; do nothing if there were none."""
        for item in reversed(self._lent.pop(ticket, ())):
            self._items.appendleft(item)
            _wake(self._getters)

    async def size(self) -> tuple[int, int]:
        """Return the number of items, and the maximum number."""
        return len(self._items), self._maxsize

    async def done(self, number: int) -> bool:
        """Count items as finished; return False if there are not so many."""
        if number > self._unfinished:
            return False
        self._unfinished -= number
        if not self._unfinished:
            _wake_all(self._joiners)
        return True

    async def join(self, timeout_s: float | None) -> bool:
        """Wait until all items are finished; return False if they are not in time."""
        until = _deadline(timeout_s)
        while self._unfinished:
            if not await self._wait(self._joiners, until):
                return False
        return True

    async def close(self) -> None:
        """Refuse more items; those in the queue can still be taken."""
        self._is_closed = True
        for waiters in (self._getters, self._putters):
            _wake_all(waiters)

    async def _wait(self, waiters: deque[asyncio.Future[bool]], until: float | None) -> bool:
        """Wait to be woken; return False if the time is up."""
        loop = asyncio.get_running_loop()
        left_s = None if until is None else until - loop.time()
        if left_s is not None and left_s <= 0:
            return False
        waiter: asyncio.Future[bool] = loop.create_future()
        timer = None if left_s is None else loop.call_later(left_s, _give_up, waiter)
        waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                _wake(waiters)  # it was the turn of this call, whose caller is gone
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in waiters:
                waiters.remove(waiter)


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


def _wake(waiters: deque[asyncio.Future[bool]]) -> None:
    while waiters:
        waiter = waiters.popleft()
        if not waiter.done():
            waiter.set_result(True)
            return


def _wake_all(waiters: deque[asyncio.Future[bool]]) -> None:
    while waiters:
        _wake(waiters)


class Queue(Generic[Item]):
    """A queue that programs and actors share: first in, first out, with `put` and `get` as in `queue.Queue`.

    A handle of the queue can be an argument of any call, so actors can add and take items. An item is any value that a
    call accepts, including handles and `parl.put` references. Handles of one queue are equal and have the same hash.
    The queue lives until its last handle is gone. Without a connection, the constructor starts a private cluster.

    If a process is killed while it receives an item, the item is lost. If the queue's own process or node is lost, all
    its items are lost, and calls raise `ActorLost`. The queue keeps the items of a handle's last `get` in memory until
    the handle's next `get` or end, because the `get` may have been interrupted.

    Args:
        maxsize: The maximum number of items, above which `put` waits; 0 for no limit.
        options: Options of the queue's actor, as for `remote_class`: `name` for `Queue.named`, `node`, `detached` and
            others. `n_cpu` is 0 by default.

    Raises:
        TypeError: An argument is of the wrong type, or an option is unknown.
        ValueError: An argument is out of its range.
    """

    _pid = 0  # of the process that has called `get`; a forked child's copy is not its handle

    def __init__(self, maxsize: int = 0, **options: Any) -> None:
        maxsize = check_count("maxsize", maxsize, 0)
        connected()
        made: Callable[..., Any] = with_options(QueueActor, **options) if options else QueueActor
        self._actor: Any = made(maxsize)
        self._got: dict[bytes, None] = {}  # tickets of what this handle has got

    @classmethod
    def named(cls, name: str) -> Queue[Any]:
        """Return a handle of the queue that was made with the option `name`.

        Raises:
            NoSuchActor: There is no such queue.
        """
        actor = get_actor(name)
        if not isinstance(actor, QueueActor):
            raise NoSuchActor(f"the actor called {name!r} is not a queue, but {actor!r}")
        return _of(actor)

    def put(self, item: Item, block: bool = True, timeout: float | None = None) -> None:
        """Add an item; wait while the queue is full.

        If Ctrl-C or another signal's handler interrupts the call, the item is in the queue once or not at all.

        Args:
            item: The item, serialized before `put` returns.
            block: Whether to wait while the queue is full.
            timeout: Seconds to wait, 0 or more; None waits without limit.

        Raises:
            queue.Full: The queue stayed full until the timeout.
            QueueClosed: The queue is closed.
            SerializationError: The item cannot be sent.
        """
        try:
            answer = self._actor.put([item], _patience(block, timeout))
        except SerializationError as error:
            raise _refusal(error, "put", "item", item) from error.__cause__
        _check_put(answer, 1)

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        """Take the oldest item and return it; wait while the queue is empty.

        Args:
            block: Whether to wait while the queue is empty.
            timeout: Seconds to wait, 0 or more; None waits without limit.

        Raises:
            queue.Empty: The queue stayed empty until the timeout.
            QueueClosed: The queue is closed and has no items left.
        """
        return self._taken(1, _patience(block, timeout))[0]

    def put_nowait(self, item: Item) -> None:
        """Add an item without waiting; raise what `put` raises."""
        self.put(item, block=False)

    def get_nowait(self) -> Item:
        """Take an item without waiting and return it; raise what `get` raises."""
        return self.get(block=False)

    def put_many(self, items: Iterable[Item], timeout: float | None = None) -> None:
        """Add items in order, with one call; wait while the queue is full.

        Args:
            items: The items.
            timeout: Seconds to wait until all items are added, 0 or more; None waits without limit.

        Raises:
            queue.Full: Not all items were added before the timeout; the message has the number of those that were.
            QueueClosed: The queue is closed.
            SerializationError: An item cannot be sent; none is added.
        """
        batch = list(items)
        try:
            answer = self._actor.put(batch, _patience(True, timeout))
        except SerializationError as error:
            raise _refusal(error, "put_many", "items", batch) from error.__cause__
        _check_put(answer, len(batch))

    def get_many(self, most: int, timeout: float | None = None) -> list[Item]:
        """Take 1 to `most` items with one call and return them; wait for the first one only.

        Args:
            most: The maximum number of items, 1 or more.
            timeout: Seconds to wait for the first item, 0 or more; None waits without limit.

        Raises:
            queue.Empty: The queue stayed empty until the timeout.
            QueueClosed: The queue is closed and has no items left.
        """
        return self._taken(check_count("most", most, 1), _patience(True, timeout))

    def _taken(self, most: int, timeout_s: float | None) -> list[Item]:
        """Take items; if a signal's handler raises an exception, they stay in the queue."""
        ticket, got, self._pid = os.urandom(_TICKET_BYTES), list(self._got), os.getpid()
        try:
            with uninterrupted:
                items, is_closed = self._actor.lend(ticket, most, timeout_s, got)
                self._forget(got)
        except BaseException:
            submit(self._actor.give_back, ticket)
            raise
        if items:
            self._got[ticket] = None
            return items  # type: ignore[no-any-return]  # no call since they came: no handler comes in between
        raise _nothing(is_closed)

    def _forget(self, got: list[bytes]) -> None:
        """Forget tickets that a call has confirmed, those of this call alone: other threads get and confirm, too."""
        for one in got:
            self._got.pop(one, None)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # modules may be empty
            return
        with uninterrupted, contextlib.suppress(Exception):  # the queue, or this program, may have ended
            if self._got and self._pid == os.getpid():
                submit(self._actor.confirm, list(self._got))

    async def put_async(self, item: Item, timeout: float | None = None) -> None:
        """Add an item without blocking the event loop; raise what `put` raises.

        If the task is cancelled, for example by `asyncio.wait_for`, the item is in the queue once or not at all.

        Args:
            item: The item.
            timeout: Seconds to wait, 0 or more; None waits without limit.
        """
        try:
            answer = await submit(self._actor.put, [item], _patience(True, timeout))
        except SerializationError as error:
            raise _refusal(error, "put_async", "item", item) from error.__cause__
        _check_put(answer, 1)

    async def get_async(self, timeout: float | None = None) -> Item:
        """Take an item without blocking the event loop and return it; raise what `get` raises.

        If the task is cancelled, for example by `asyncio.wait_for`, it takes no item.

        Args:
            timeout: Seconds to wait, 0 or more; None waits without limit.
        """
        ticket, got, self._pid = os.urandom(_TICKET_BYTES), list(self._got), os.getpid()
        lending = submit(self._actor.lend, ticket, 1, _patience(True, timeout), got)
        try:
            items, is_closed = await lending
        except BaseException:
            lending.cancel()
            submit(self._actor.give_back, ticket)
            raise
        self._forget(got)
        if items:
            self._got[ticket] = None
            return items[0]  # type: ignore[no-any-return]
        raise _nothing(is_closed)

    @property
    def maxsize(self) -> int:
        """The maximum number of items; 0 for no limit."""
        return int(self._actor.size()[1])

    def qsize(self) -> int:
        """Return the number of items at this moment."""
        return int(self._actor.size()[0])

    def empty(self) -> bool:
        """Return whether the queue is empty at this moment."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Return whether the queue is full at this moment."""
        items, most = self._actor.size()
        return bool(most) and items >= most

    def task_done(self) -> None:
        """Mark one taken item as finished, for `join`.

        Raises:
            ValueError: There were more calls than items.
        """
        if not self._actor.done(1):
            raise ValueError("task_done() called too many times")

    def join(self, timeout: float | None = None) -> bool:
        """Wait until `task_done` was called for every item; return False after `timeout` seconds."""
        return bool(self._actor.join(seconds_of("timeout", timeout)))

    def close(self) -> None:
        """Accept no more items: `put` raises `QueueClosed`, and so does `get` once the queue is empty; loops end."""
        self._actor.close()

    def kill(self) -> None:
        """End the queue at once; its items are lost."""
        kill(self._actor)

    def __iter__(self) -> Iterator[Item]:
        while True:
            try:
                item = self.get()
            except QueueClosed:
                return
            yield item

    async def __aiter__(self) -> AsyncIterator[Item]:
        while True:
            try:
                item = await self.get_async()
            except QueueClosed:
                return
            yield item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Queue) and bool(other._actor == self._actor)

    def __hash__(self) -> int:
        return hash(self._actor)

    def __reduce__(self) -> tuple[Callable[[Any], Queue[Any]], tuple[Any]]:
        return _of, (self._actor,)

    def __repr__(self) -> str:
        return f"<Queue {self._actor!r}>"


def _of(actor: Any) -> Queue[Any]:
    made: Queue[Any] = Queue.__new__(Queue)
    made._actor, made._got = actor, {}
    return made


def _patience(block: bool, timeout: float | None) -> float | None:
    if not block:
        return 0.0
    seconds = seconds_of("timeout", timeout)
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout must be 0 or more, not {timeout!r}")
    return seconds


def _refusal(error: SerializationError, call: str, name: str, value: object) -> SerializationError:
    """Return the error of a call that put a value, if the value cannot be sent; else the error of the queue's actor."""
    try:
        serialize.dumps(value)
    except Exception as reason:
        return serialize.refusal(reason, (value,), {}, f"Queue.{call}", lambda: [name], "receiver")
    return error


def _check_put(answer: tuple[int, bool], number: int) -> None:
    put, is_closed = answer
    if is_closed:
        raise QueueClosed(f"the queue is closed; {put} of {number} items were added")
    if put < number:
        raise standard.Full(f"the queue is full; {put} of {number} items were added")


def _nothing(is_closed: bool) -> Exception:
    return QueueClosed("the queue is closed and has no items left") if is_closed else standard.Empty()
