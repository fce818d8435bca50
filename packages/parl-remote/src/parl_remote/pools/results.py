"""Results of a pool's `map`, one after the other, while at most so many items are under way.

    items --taken one by one--> tasks --> Dispatcher --> results, in the items' order or as they come

An item that raises, raises at its place; the iterator goes on with the next one when it is asked again.
"""

from __future__ import annotations

import contextlib
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from parl_remote.errors import ResultTimeout
from parl_remote.pools.work import PoolFuture

__all__ = ["Results"]


class Results(Iterator[Any]):
    """What `ActorPool.map` and `map_unordered` return.

    Args:
        items: What is worked on; taken in the thread that asks for results, no more than needed.
        begin: Has an item with its number done.
        ahead: How many items may be under way, or finished and not asked for.
        is_ordered: Whether results come in the items' order.
        timeout_s: How long to wait for the next result; None waits as long as it takes.
        tick: Called for each result that is handed out.
    """

    def __init__(
        self,
        items: Iterable[Any],
        begin: Callable[[int, Any], PoolFuture],
        *,
        ahead: int,
        is_ordered: bool,
        timeout_s: float | None,
        tick: Callable[[int], None],
    ) -> None:
        self._items = enumerate(items)
        self._begin = begin
        self._ahead = ahead
        self._is_ordered = is_ordered
        self._timeout_s = timeout_s
        self._tick = tick
        self._under_way: deque[PoolFuture] = deque()
        self._finished: queue.SimpleQueue[PoolFuture] = queue.SimpleQueue()
        self._exhausted = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The next result.

        Raises:
            StopIteration: There are no more.
            ResultTimeout: It did not come in time; ask again to go on waiting.
            ItemLost: Actors kept dying of this item.
            Exception: Whatever the method raised for this item.
        """
        self._fill()
        if not self._under_way:
            self.close()
            raise StopIteration
        future = self._first() if self._is_ordered else self._any()
        self._tick(1)
        try:
            return future.result()
        finally:
            del future  # it has the result, and the error, whose traceback would have this frame

    def close(self) -> None:
        """Take no more items and cancel what has not started; results that are there are lost."""
        self._exhausted = True
        while self._under_way:
            self._under_way.popleft().cancel()
        self._tick(0)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never whole
            self.close()

    def _fill(self) -> None:
        while not self._exhausted and len(self._under_way) < self._ahead:
            try:
                index, item = next(self._items)
            except StopIteration:
                self._exhausted = True
                return
            future = self._begin(index, item)
            self._under_way.append(future)
            if not self._is_ordered:
                future.add_done_callback(self._note)  # not a lambda: it must not keep this iterator alive for long

    def _note(self, future: Any) -> None:
        self._finished.put(future)

    def _first(self) -> PoolFuture:
        future = self._under_way[0]
        try:
            future.exception(self._timeout_s)
        except TimeoutError:
            if not future.done():
                raise ResultTimeout(f"the next result did not come within {self._timeout_s} s; ask again") from None
        return self._under_way.popleft()

    def _any(self) -> PoolFuture:
        try:
            future = self._finished.get(timeout=self._timeout_s)
        except queue.Empty:
            raise ResultTimeout(f"no result came within {self._timeout_s} s; ask again") from None
        self._under_way.remove(future)
        return future
