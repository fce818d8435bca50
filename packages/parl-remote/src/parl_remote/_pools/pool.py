"""`parl.ActorPool`: distributes many items over a few actors and runs an item again if its actor dies.

    with parl.ActorPool(Worker, 4) as pool:
        for result in pool.map("work", items): ...              in order, taken lazily
        for result in pool.map_unordered("work", items): ...                    as they finish
        future = pool.submit("work", 3)                         a single one

If an actor dies, another actor runs its item again: every item runs at least once, and possibly more often. While `map`
is read, the number of items in progress is limited:

    items --taken one by one--> tasks --> Dispatcher --> Results, in the items' order or as they come

If an item raises an error, the iterator raises it at the item's position; the next request continues with the next
item.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

from parl_remote._display import Bar, length_of, progress_bar
from parl_remote._future import RemoteFuture, ResultIterator
from parl_remote._item_reader import FILL_S, ItemReader
from parl_remote._options import check_count, deadline_of, seconds_of
from parl_remote._pools.dispatcher import Dispatcher, Task, closed
from parl_remote._program.actor_ref import ActorRef, FrozenArguments
from parl_remote._program.proxy import RemoteMethod, RemoteObject, reference_of
from parl_remote._system.interrupts import Condition, is_by_handler, uninterrupted
from parl_remote.errors import ActorError, NotConnected, ResultTimeout

__all__ = ["ActorPool", "Results"]

_log = logging.getLogger("parl.remote")
_AHEAD_FACTOR = 8  # items under way for each that runs, so that a slow one does not stop the others at once

Work = str | Callable[..., Any]
_Call = Callable[[RemoteObject], Any]
_Bind = Callable[[tuple[Any, ...], dict[str, Any]], _Call]  # makes the call of an item


class ActorPool:
    """A pool of actors that distributes items to those that are free; a context manager.

    Args:
        actors: Remote objects of this program or of others; or a remote class (also `Class.options(...)`) or any other
            callable that returns an actor. With a class or callable, the pool makes `size` actors and replaces those
            that die.
        size: The number of actors to make, 1 or more; only with a class or callable.
        args: The positional arguments of each actor.
        kwargs: The keyword arguments of each actor.
        per_actor: The maximum number of items sent to an actor at a time, 1 or more (default 2). One runs; the others
            wait in the actor, which saves a round trip between items.
        retries: The maximum number of times that an item is run again after its actor has died, 0 or more (default 3).
            After that it raises `ItemLost`. Only deaths of an actor with no other item are counted, and not those with
            a cause outside the actor, such as `parl.kill` or a drained node. If the actor had several items, all of
            them are run again, one at a time.

    Raises:
        TypeError: `actors` is neither a class nor remote objects.
        ValueError: A number is out of its range, or there are no actors.
        NoResources: The cluster has no resources for so many actors.
    """

    def __init__(
        self,
        actors: Iterable[Any] | Callable[..., Any],
        size: int | None = None,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        per_actor: int = 2,
        retries: int = 3,
    ) -> None:
        self._dispatcher: Dispatcher | None = None
        per_actor = check_count("per_actor", per_actor, 1)
        retries = check_count("retries", retries, 0)
        self._per_actor = per_actor
        self._numbers = itertools.count()
        make: Callable[[], Any] | None = None
        if callable(actors) and reference_of(actors) is None:
            if size is None:
                raise ValueError("a pool of a class needs the number of its actors, for example ActorPool(Worker, 4)")
            size = check_count("size", size, 1)
            make = _Maker(actors, tuple(args), dict(kwargs or {}))
            members = [make() for _ in range(size)]
        else:
            if size is not None or args or kwargs:
                raise ValueError("size, args and kwargs are only for a pool that makes its actors itself, of a class")
            members = _actors_of(actors)
        self._retries = retries
        self._make = make
        self._pid = os.getpid()
        self._opening = threading.Lock()
        with uninterrupted:
            self._dispatcher = self._dispatcher_of(members)

    @property
    def actors(self) -> tuple[Any, ...]:
        """The actors of the pool at this moment."""
        return () if self._dispatcher is None else self._dispatcher.actors

    def __len__(self) -> int:
        return len(self.actors)

    def map(
        self,
        work: Work,
        items: Iterable[Any],
        *,
        ahead: int | None = None,
        timeout_s: float | None = None,
        progress: bool | str = False,
    ) -> Results:
        """Return an iterator over the results of all items, in their order.

        The first item starts when the first result is requested. Items are taken on demand, so `items` may be infinite.

        Args:
            work: The name of a method that takes an item, or a function of an actor and an item that calls a method and
                returns its future: `lambda actor, item: actor.step(item, scale=2)`. In this function, methods return
                futures without waiting. It is called when an actor is free, and again if the actor dies, perhaps in
                another thread.
            items: The items. For a method, an item is serialized when it is taken, so it may change afterwards. A
                function gets the item itself, which must not change until its result has arrived.
            ahead: The maximum number of items in progress or finished but not yet consumed, 1 or more (default: 16 per
                actor).
            timeout_s: Seconds to wait for the next result; then the iterator raises `ResultTimeout` and can be
                continued. None waits without limit.
            progress: Whether to show a progress bar, or the bar's title. Without `tqdm` a warning is logged instead.

        Returns:
            An iterator. If an item raises an error, the iterator raises it at the item's position and continues with
            the next item.

        Raises:
            TypeError: `work` is neither a name nor a function.
            ValueError: `ahead` is out of its range.
            ActorError: The pool is closed.
        """
        return self._results(work, items, ahead, timeout_s, progress, is_ordered=True)

    def map_unordered(
        self,
        work: Work,
        items: Iterable[Any],
        *,
        ahead: int | None = None,
        timeout_s: float | None = None,
        progress: bool | str = False,
    ) -> Results:
        """Return an iterator over the results of all items in the order in which they finish; see `map`."""
        return self._results(work, items, ahead, timeout_s, progress, is_ordered=False)

    def submit(self, work: Work, /, *args: Any, **kwargs: Any) -> RemoteFuture[Any]:
        """Run one call on a free actor.

        Arguments of a method are serialized before `submit` returns; if one cannot be sent, the future's error is a
        `SerializationError`. A function gets the arguments themselves, later: they must not change until the call is
        done.

        Args:
            work: The name of a method, or a function of an actor and `args` that returns the future of a call.
            args: The arguments of the method or function.
            kwargs: Its keyword arguments.

        Returns:
            The future of the call, which cannot be cancelled once the call has begun.

        Raises:
            TypeError: `work` is neither a name nor a function.
            ActorError: The pool is closed.
        """
        return self._do(next(self._numbers), _bind_of(work, self.actors), args, kwargs)

    def push(self, actor: Any) -> None:
        """Add an actor to the pool.

        Raises:
            TypeError: The argument is not a remote object.
            ActorError: The pool is closed.
        """
        self._open().add(actor)

    def pop(self, timeout_s: float | None = None) -> Any:
        """Remove a free actor from the pool and return it; wait until one is free.

        Args:
            timeout_s: Seconds to wait; None waits without limit.

        Raises:
            ResultTimeout: No actor became free before the timeout.
            ActorError: The pool has no actors, or is closed.
        """
        timeout_s = seconds_of("timeout_s", timeout_s)
        request = self._open().take_out()
        try:
            return request.result(timeout_s)
        except TimeoutError:
            if request.cancel():
                raise ResultTimeout(f"no actor of the pool became free within {timeout_s} s") from None
            return request.result()
        except concurrent.futures.CancelledError:
            raise closed() from None
        except BaseException:
            # a signal handler raised an exception as the actor arrived
            if not request.cancel() and request.exception() is None:
                with contextlib.suppress(ActorError):  # the pool was closed meanwhile
                    self.push(request.result())
            raise

    @uninterrupted
    def close(self, *, wait: bool = True) -> None:
        """Release the actors; a second call does nothing.

        Args:
            wait: Whether to wait until all submitted items are done. If False, items that have not begun are cancelled,
                and the futures of the others raise `ActorError`.
        """
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None and self._pid == os.getpid():
            try:
                if wait:
                    dispatcher.await_all()
            finally:
                dispatcher.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(wait=error is None)

    def __del__(self) -> None:
        if getattr(self, "_dispatcher", None) is not None:
            self.close(wait=False)

    def __repr__(self) -> str:
        return f"<ActorPool of {len(self)} actors>"

    # -- inner steps -------------------------------------------------------------------------------------------------

    def _open(self) -> Dispatcher:
        dispatcher = self._dispatcher
        if dispatcher is None:
            raise closed()
        if self._pid != os.getpid():  # its thread is in the process that this one was forked from
            with self._opening:
                if self._pid != os.getpid():
                    self._dispatcher = self._dispatcher_of(dispatcher.actors)
                    self._pid = os.getpid()
                dispatcher = self._dispatcher
                if dispatcher is None:
                    raise closed()
        return dispatcher

    def _dispatcher_of(self, actors: Iterable[Any]) -> Dispatcher:
        dispatcher = Dispatcher(self._per_actor, self._retries, self._make)
        for actor in actors:
            dispatcher.add(actor)
        return dispatcher

    def _do(self, index: int, bind: _Bind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteFuture[Any]:
        task = Task(index, bind(args, kwargs))
        self._open().do(task)
        return task.future

    def _results(
        self,
        work: Work,
        items: Iterable[Any],
        ahead: int | None,
        timeout_s: float | None,
        progress: bool | str,
        *,
        is_ordered: bool,
    ) -> Results:
        self._open()
        timeout_s = seconds_of("timeout_s", timeout_s)
        if ahead is not None:
            ahead = check_count("ahead", ahead, 1)
        bind = _bind_of(work, self.actors)
        return Results(
            items,
            lambda index, item: self._do(index, bind, (item,), {}),
            ahead=ahead or _AHEAD_FACTOR * self._per_actor * max(1, len(self)),
            is_ordered=is_ordered,
            timeout_s=timeout_s,
            bar=progress_bar(progress, length_of(items)),
        )


class Results(ResultIterator[Any]):
    """An iterator over the results of `ActorPool.map` and `map_unordered`.

    Args:
        items: The items, taken as needed in the thread that requests results.
        begin: Submits an item with its number.
        ahead: The maximum number of items in progress or finished but not yet consumed.
        is_ordered: Whether results are in the items' order.
        timeout_s: Seconds to wait for the next result; None waits without limit.
        bar: Counts each result returned.
    """

    def __init__(
        self,
        items: Iterable[Any],
        begin: Callable[[int, Any], RemoteFuture[Any]],
        *,
        ahead: int,
        is_ordered: bool,
        timeout_s: float | None,
        bar: Bar,
    ) -> None:
        self._pid = os.getpid()
        self._items = ItemReader(enumerate(items))
        self._begin = begin
        self._ahead = ahead
        self._is_ordered = is_ordered
        self._timeout_s = timeout_s
        self._bar = bar
        self._under_way: deque[RemoteFuture[Any]] = deque()
        self._news = Condition()
        self._finished: deque[RemoteFuture[Any]] = deque()
        self._waiters: list[Any] = []  # tasks of event loops that wait for one of these
        self._taken: list[tuple[int, Any]] = []  # an item that has not begun yet
        self._next: list[tuple[Any, BaseException | None]] = []  # the result, or error, that is to be returned
        self._exhausted = False
        self._source_error: BaseException | None = None  # raised where the next item would be

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next result.

        Raises:
            StopIteration: There are no more results.
            ResultTimeout: The result did not arrive before the timeout; call again to continue waiting.
            ItemLost: Too many actors died while they worked on this item.
            Exception: The exception that the method raised for this item.
        """
        following = self._next
        while not following:
            self._fetch()
        value, error = following[0]
        del following[0]  # no call from there on: neither a signal's handler nor another thread comes in between
        if error is None:
            return value
        try:
            if isinstance(error, StopIteration):  # as in a generator
                raise RuntimeError("an item raised StopIteration") from error
            raise error
        finally:
            del error  # its traceback would have this frame

    @uninterrupted
    def _fetch(self) -> None:
        """Make the next result ready, or end."""
        self._check_process()
        self._fill(waits=True)
        if not self._under_way:
            self.close()
            error, self._source_error = self._source_error, None
            raise StopIteration if error is None else error
        future = self._first() if self._is_ordered else self._any()
        self._bar.update(1)
        error = concurrent.futures.CancelledError() if future.cancelled() else future.exception()
        self._next.append((None if error is not None else future.result(), error))

    @uninterrupted
    def _is_next_there(self, waiter: Any) -> bool:
        if self._next:
            return True
        self._check_process()
        self._fill(waits=False)  # the event loop has other things to do
        if not self._under_way:
            return True
        if self._is_ordered:
            first = self._under_way[0]
            if not (is_there := first.done()):
                first.add_done_callback(lambda _: waiter.wake())
            return is_there
        with self._news:
            if not self._finished:
                self._waiters.append(waiter)
            return bool(self._finished)

    def _deadline_of_next(self) -> float | None:
        return deadline_of("timeout_s", self._timeout_s)

    def _late(self) -> ResultTimeout:
        what = "the next result did not come" if self._is_ordered else "no result came"
        return ResultTimeout(f"{what} within {self._timeout_s} s; ask again")

    @uninterrupted
    def close(self) -> None:
        """Take no more items, cancel those that have not begun and drop the results that have arrived.

        The iterator of the items is dropped, too: a generator that nothing else refers to ends here.
        """
        self._exhausted = True
        self._next.clear()
        self._items.let_go()
        if self._pid == os.getpid():  # else the parent goes on
            while self._under_way:
                self._under_way.popleft().cancel()
            self._bar.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never whole
            self.close()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise NotConnected("a pool's results are read by the process that called it, from which this was forked")

    def _fill(self, *, waits: bool) -> None:
        """Begin as many items as are allowed, until a result is there; it may wait for one before a late item."""
        began = time.monotonic()
        while not self._exhausted and len(self._under_way) < self._ahead:
            if not self._taken:
                if self._is_result_first(began, waits):
                    return
                error = self._items.take(self._taken, 1)
                if error is not None:
                    trace = error.__traceback__
                    self._source_error = error.with_traceback(trace and trace.tb_next)  # its frame keeps the iterator
                    self._exhausted = True
                    if is_by_handler(error) or not isinstance(error, Exception):
                        raise error
            if not self._taken:
                self._exhausted = True
                return
            future = self._begin(*self._taken.pop())
            self._under_way.append(future)
            if not self._is_ordered:
                future.add_done_callback(self._note)  # not a lambda: it must not keep this iterator alive for long

    def _is_result_first(self, began: float, waits: bool) -> bool:
        """Return whether to return a result rather than to take more items."""
        if not self._under_way:
            return False
        now = time.monotonic()
        if self._items.is_late(now):
            return self._is_result_there(self._items.patience_s if waits else 0.0)
        return now - began > FILL_S and self._is_result_there(0.0)

    def _is_result_there(self, patience_s: float) -> bool:
        """Return whether a result can be taken, or can be within some seconds."""
        if not self._is_ordered:
            with self._news:
                return bool(self._news.wait_for(lambda: self._finished, patience_s))
        first = self._under_way[0]
        if patience_s:
            with contextlib.suppress(ResultTimeout):
                first._wait_until(time.monotonic() + patience_s)
        return first.done()

    def _note(self, future: Any) -> None:
        with self._news:
            self._finished.append(future)
            self._news.notify_all()
            for waiter in self._waiters:
                waiter.wake()
            self._waiters.clear()

    def _first(self) -> RemoteFuture[Any]:
        future = self._under_way[0]
        try:
            future._wait_until(self._deadline_of_next())
        except ResultTimeout:
            raise self._late() from None
        return self._under_way.popleft()

    def _any(self) -> RemoteFuture[Any]:
        with self._news:
            if not self._news.wait_for(lambda: self._finished, self._timeout_s):
                raise self._late()
            future = self._finished.popleft()
        self._under_way.remove(future)
        return future


class _Maker:
    """Makes the actors of a pool, all with the same arguments."""

    def __init__(self, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._make = make
        self._args = args
        self._kwargs = kwargs

    def __call__(self) -> Any:
        return self._make(*self._args, **self._kwargs)


def _actors_of(given: Any) -> list[Any]:
    if reference_of(given) is not None or not isinstance(given, Iterable):
        raise TypeError(f"a pool is made of a list of remote objects or of a class, not of {given!r}")
    actors = list(given)
    if not actors:
        raise ValueError("a pool needs at least one actor")
    for actor in actors:
        if reference_of(actor) is None:
            raise TypeError(f"a pool's actors are objects of remote classes, not {actor!r}")
    return actors


def _bind_of(work: Work, actors: Sequence[Any]) -> _Bind:
    """Return a function that makes the call of an item from its arguments; for a method they are serialized then."""
    name = work if isinstance(work, str) else _method_of(work, actors)
    if name is not None:
        return functools.partial(_bind_method, name, reference_of(actors[0]) if actors else None)
    if not callable(work):
        raise TypeError(f"a pool's work is the name of a method or a function of an actor and an item, not {work!r}")
    function = work
    return lambda args, kwargs: lambda actor: function(actor, *args, **kwargs)


def _bind_method(name: str, ref: ActorRef | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    call, names = (name, list) if ref is None else (f"{ref.spec.name}.{name}", lambda: ref.spec.parameters(name))
    try:
        arguments = FrozenArguments.of(args, kwargs, call, names)
    except Exception as error:  # the item's own, as any error of its call
        return functools.partial(_refuse, error)
    return functools.partial(_begin_method, name, arguments)


def _begin_method(name: str, arguments: FrozenArguments, actor: RemoteObject) -> RemoteFuture[Any]:
    method = getattr(actor, name)
    if not isinstance(method, RemoteMethod):
        raise TypeError(f"{name!r} is no method of {actor!r} that a pool can call")
    return method.begin_frozen(arguments)


def _refuse(error: Exception, _: RemoteObject) -> NoReturn:
    raise error


def _method_of(work: Any, actors: Sequence[Any]) -> str | None:
    """Return the name of a method of the actors' class, which would run here if called directly; else None."""
    name = getattr(work, "__name__", "")
    for actor in actors[:1]:
        ref = reference_of(actor)
        if ref is not None and name and getattr(ref.spec.cls, name, None) is work:
            return str(name)
    return None
