"""A queue shared by programs and actors: an actor that holds the items, and `Queue`, its handle.

Queue.put --items--> QueueActor: items, waiting calls --items--> Queue.get
                        (one event loop: a caller that waits is a task, which ends with its caller)
                     items that are lent        <--got, given back-- Queue.get

Ctrl-C or a cancellation may end a `get` at any moment, also when its items are on the way. So a `get` borrows its
items, under a ticket of its own. The next `get` confirms that they have arrived; a `get` that was ended returns them to
their old place. Calls run in order, so the next `get` of the same program finds them there.
"""

from __future__ import annotations

import asyncio
import os
import queue as standard
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from parl_remote import _current
from parl_remote._connecting import connect, get_actor, kill
from parl_remote._decorator import remote_class, submit, with_options
from parl_remote._options import check_count, seconds_of
from parl_remote._system.interrupts import uninterrupted
from parl_remote.errors import QueueClosed

__all__ = ["Queue"]

Item = TypeVar("Item")

_TICKET_BYTES = 8
_MOST_LENT = 10_000
_MOST_WAITING = 1_000_000  # calls at once: all getters may wait, and a put must still be heard


@remote_class(n_cpu=0, max_concurrency=_MOST_WAITING)
class QueueActor:
    """The items of a queue, and the calls that wait for one or for a slot.

    Args:
        maxsize: The most items; 0 has no limit.
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
        for one in got:
            self._lent.pop(one, None)
        while len(self._lent) >= _MOST_LENT:  # to callers that are gone
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

    def give_back(self, ticket: bytes) -> None:
        """Put items that were lent back to the front; do nothing if there were none."""
        for item in reversed(self._lent.pop(ticket, ())):
            self._items.appendleft(item)
            _wake(self._getters)

    async def size(self) -> tuple[int, int]:
        """Return the number of items, and the most that there may be."""
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
                _wake(waiters)  # it was this call's turn, and its caller is gone
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

    Its handle can be an argument of any call, so that actors put and take. Items may be any value that a call accepts,
    handles and `parl.put` references included. It lives until its last handle is gone.

    Args:
        maxsize: The most items in it; a `put` beyond that waits. 0 has no limit.
        options: Options of its actor, as for a remote class: `name` for `Queue.named`, `node`, `detached`, ... The
            default of `n_cpu` is 0.

    If a process is killed just as it receives an item, the item is lost. If the queue's own process or node is lost, so
    are its items, and calls raise `ActorLost`. The queue keeps the items that a handle got last until the handle's next
    `get`, in case that `get` was interrupted. Without a connection, a private cluster is started.
    """

    def __init__(self, maxsize: int = 0, **options: Any) -> None:
        maxsize = check_count("maxsize", maxsize, 0)
        if _current.peek() is None and not _current.inside_actor():
            connect()
        made: Callable[..., Any] = with_options(QueueActor, **options) if options else QueueActor
        self._actor: Any = made(maxsize)
        self._got: list[bytes] = []  # tickets of what this handle has got

    @classmethod
    def named(cls, name: str) -> Queue[Any]:
        """Return the queue that was made with that `name`.

        Raises:
            NoSuchActor: There is none.
        """
        return _of(get_actor(name))

    def put(self, item: Item, block: bool = True, timeout: float | None = None) -> None:
        """Add an item; wait if there is no slot.

        If Ctrl-C or another signal's handler ends the call, the item is in the queue once or not at all. That depends
        on whether the queue has taken it by then.

        Args:
            item: The item; it is serialised now.
            block: Whether to wait for a slot.
            timeout: How long, in seconds; None has no limit.

        Raises:
            queue.Full: There was no slot in time.
            QueueClosed: The queue is closed.
        """
        _check_put(self._actor.put([item], _patience(block, timeout)), 1)

    def get(self, block: bool = True, timeout: float | None = None) -> Item:
        """Take the oldest item; wait if there is none.

        Args:
            block: Whether to wait for an item.
            timeout: How long, in seconds; None has no limit.

        Raises:
            queue.Empty: There was no item in time.
            QueueClosed: The queue is closed and has no items left.
        """
        return self._taken(1, _patience(block, timeout))[0]

    def put_nowait(self, item: Item) -> None:
        """Add an item at once; raise what `put` raises."""
        self.put(item, block=False)

    def get_nowait(self) -> Item:
        """Take an item at once; raise what `get` raises."""
        return self.get(block=False)

    def put_many(self, items: Iterable[Item], timeout: float | None = None) -> None:
        """Add items with one call, in order; each waits for a slot.

        Raises:
            queue.Full: There were no slots for all in time; those that fitted are in the queue.
            QueueClosed: The queue is closed.
        """
        batch = list(items)
        _check_put(self._actor.put(batch, _patience(True, timeout)), len(batch))

    def get_many(self, most: int, timeout: float | None = None) -> list[Item]:
        """Take the available items, at least one and up to `most`, with one call; wait for the first.

        Raises:
            queue.Empty: There was no item in time.
            QueueClosed: The queue is closed and has no items left.
        """
        return self._taken(check_count("most", most, 1), _patience(True, timeout))

    def _taken(self, most: int, timeout_s: float | None) -> list[Item]:
        """Take items; what a signal's handler raises leaves them in the queue."""
        ticket, got = os.urandom(_TICKET_BYTES), self._got[:]
        try:
            with uninterrupted:
                items, is_closed = self._actor.lend(ticket, most, timeout_s, got)
                del self._got[: len(got)]
        except BaseException:
            submit(self._actor.give_back, ticket)
            raise
        if items:
            self._got += (ticket,)
            return items  # type: ignore[no-any-return]  # no call since they came: no handler comes in between
        raise _nothing(is_closed)

    async def put_async(self, item: Item, timeout: float | None = None) -> None:
        """Add an item without blocking the event loop; raise what `put` raises.

        If it is cancelled, as by `asyncio.wait_for`, the item is in the queue once or not at all.
        """
        _check_put(await submit(self._actor.put, [item], _patience(True, timeout)), 1)

    async def get_async(self, timeout: float | None = None) -> Item:
        """Take an item without blocking the event loop; raise what `get` raises.

        If it is cancelled, as by `asyncio.wait_for`, it takes nothing.
        """
        ticket = os.urandom(_TICKET_BYTES)
        got, self._got = self._got, []
        lending = submit(self._actor.lend, ticket, 1, _patience(True, timeout), got)
        try:
            items, is_closed = await lending
        except BaseException:
            lending.cancel()
            self._got += got  # the call may not have come so far
            submit(self._actor.give_back, ticket)
            raise
        if items:
            self._got += (ticket,)
            return items[0]  # type: ignore[no-any-return]
        raise _nothing(is_closed)

    @property
    def maxsize(self) -> int:
        """The most items in it; 0 has no limit."""
        return int(self._actor.size()[1])

    def qsize(self) -> int:
        """Return the number of items at this moment."""
        return int(self._actor.size()[0])

    def empty(self) -> bool:
        """Return whether there is no item at this moment."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Return whether there is no free slot at this moment."""
        items, most = self._actor.size()
        return bool(most) and items >= most

    def task_done(self) -> None:
        """Count one item that was taken as finished, for `join`.

        Raises:
            ValueError: It is called more often than items were added.
        """
        if not self._actor.done(1):
            raise ValueError("task_done() called too many times")

    def join(self, timeout: float | None = None) -> bool:
        """Wait until `task_done` was called for every item; return False if that does not happen in time."""
        return bool(self._actor.join(seconds_of("timeout", timeout)))

    def close(self) -> None:
        """Refuse more items: `put` raises `QueueClosed`, as does `get` once the queue is empty; loops over it end."""
        self._actor.close()

    def kill(self) -> None:
        """End the queue at once, with all its items."""
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

    def __reduce__(self) -> tuple[Callable[[Any], Queue[Any]], tuple[Any]]:
        return _of, (self._actor,)

    def __repr__(self) -> str:
        return f"<Queue {self._actor!r}>"


def _of(actor: Any) -> Queue[Any]:
    made: Queue[Any] = Queue.__new__(Queue)
    made._actor, made._got = actor, []
    return made


def _patience(block: bool, timeout: float | None) -> float | None:
    if not block:
        return 0.0
    seconds = seconds_of("timeout", timeout)
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout must be 0 or more, not {timeout!r}")
    return seconds


def _check_put(answer: tuple[int, bool], number: int) -> None:
    put, is_closed = answer
    if is_closed:
        raise QueueClosed(f"the queue is closed; {put} of {number} items were added")
    if put < number:
        raise standard.Full(f"{put} of {number} items were added in time")


def _nothing(is_closed: bool) -> Exception:
    return QueueClosed("the queue is closed and has no items left") if is_closed else standard.Empty()
