"""`parl.Executor`, `parl.remote_function`, `parl.map` and `parl.wait`: plain functions in worker processes.

    @parl.remote_function(n_cpu=1)              score.submit(path) -> RemoteFuture      score(path) waits
    with parl.Executor(max_workers=8) as ex:    a concurrent.futures.Executor
    parl.map(score, paths, progress=True)       an iterator over results, in order

No connection is needed: without one, the first use starts a private cluster of this machine. All functions of the
program with the same resources share workers, which stay alive between calls. An executor with an initializer has
separate workers.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import inspect
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from parl_remote import _current
from parl_remote._connect import connected
from parl_remote._data import serialize
from parl_remote._display import NoBar, length_of, progress_bar
from parl_remote._functions.sources import Calls, Items, Results
from parl_remote._functions.worker import CallForm, Code, Packed, kept, name_of, pack_items
from parl_remote._functions.workers import Quota, Workers, after_fork, own_workers, shared_workers
from parl_remote._future import RemoteFuture, call_of_parent, leave_to_parent
from parl_remote._options import ActorOptions, check_count, deadline_of, seconds_of
from parl_remote._system.interrupts import Condition, Event, uninterrupted

__all__ = ["Executor", "RemoteFunction", "map", "remote_function", "wait"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_RETRIES = 3  # as `ActorPool`
_LIMIT_NAMES = ("n_cpu", "n_gpu", "memory", "max_memory", "labels", "placement", "node", "lease_timeout_s")


class Executor(concurrent.futures.Executor):
    """A `concurrent.futures.Executor` whose workers are processes of a cluster.

    The workers stay alive between calls. All executors and functions of the program with the same resources share
    them.

    Args:
        max_workers: The maximum number of calls that run at a time, 1 or more (default: as many as the cluster has CPUs
            for). On a private cluster it may exceed the number of CPUs if `n_cpu` is at most 1.
        initializer: A function that each worker calls first. An executor with an initializer has separate workers.
        initargs: Arguments of the initializer.
        retries: The maximum number of times that a call or an item is run again after its worker has ended, 0 or more
            (default 3). After that it raises `ItemLost`.
        timeout_s: Seconds that a call or an item may run, above 0. After that its worker is ended, and the call raises
            `ResultTimeout` (default: no limit).
        **resources: `n_cpu` (default 1), `n_gpu`, `memory`, `max_memory`, `labels`, `placement`, `node` and
            `lease_timeout_s` of each worker, as for `remote_class`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of its range.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        retries: int = _RETRIES,
        timeout_s: float | None = None,
        **resources: Any,
    ) -> None:
        if max_workers is not None:
            if isinstance(max_workers, bool) or not isinstance(max_workers, int):
                raise TypeError(f"max_workers must be a whole number, not {max_workers!r}")
            if max_workers <= 0:
                raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if not isinstance(initargs, Iterable):
            raise TypeError(f"initargs must be a tuple of arguments, not {initargs!r}")
        self._max_workers = max_workers
        self._settings = _Settings(retries, timeout_s, resources)
        self._initializer = initializer
        self._initargs = tuple(initargs)
        self._shut_down = False
        self._begin()
        _executors.add(self)

    def _begin(self) -> None:
        """Begin without work: also in the child of a fork, where the parent's work and locks are the parent's."""
        self._quota = Quota(self._max_workers)
        self._lock = threading.RLock()  # a signal handler may shut the executor down while this thread submits
        self._workers: Workers | None = None
        self._calls: Calls | None = None
        self._maps: set[Items] = set()
        self._maps_ended = Condition(self._lock)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> RemoteFuture[T]:
        """Run `fn(*args, **kwargs)` in a worker and return its future.

        Arguments are serialized before `submit` returns; if one cannot be sent, the future's error is a
        `SerializationError`. If an argument is a future, the call starts when that future is settled, and the function
        gets its result.

        Raises:
            RuntimeError: The executor is shut down.
            ExecutorBroken: The initializer has failed.
        """

        def begin(future: RemoteFuture[T]) -> Calls:
            with self._lock:
                calls = self._opened()
                calls.begin(future)
            return calls

        return submit_call(begin, fn, args, kwargs)

    @uninterrupted
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Results[T]:
        """Return an iterator over the results of `fn(*items)`, in order; work starts at once.

        Args:
            fn: The function.
            iterables: Its arguments; each item takes one element of every iterable.
            timeout: Seconds after the call of `map` until which a result may arrive; a later one raises `TimeoutError`.
            chunksize: The number of items sent to a worker together, 1 or more. By default it is chosen from the
                measured cost of the items; with a `timeout` it is 1, so that no result waits for a later one.
            buffersize: The maximum number of items that are read before their results are requested, 1 or more
                (default: all items are read at once).

        Raises:
            RuntimeError: The executor is shut down.
            ExecutorBroken: The initializer has failed.
            TypeError: There is no iterable, or an argument is of the wrong type.
            ValueError: A number is out of its range.
        """
        _check_sizes(chunksize, buffersize)
        deadline = deadline_of("timeout", timeout)
        if timeout is not None and chunksize is None:
            chunksize = 1
        items, how, total = _zipped(iterables)
        with self._lock:
            calls = self._opened()
            job: Items
            job = self._settings.items(
                calls.workers,
                fn,
                items,
                how,
                chunksize=chunksize,
                quota=self._quota,
                ahead=buffersize or 0,
                total=total,
                on_end=lambda: self._map_ended(job),
            )
            self._maps.add(job)
        try:
            job.fill()
            if job.source_error is not None:
                raise job.source_error
        except BaseException:
            job.close()
            raise
        results: Results[T] = Results(job, timeout, deadline, NoBar(), goes_on=False)
        if buffersize is not None:  # the rest is not taken if they are dropped before they are iterated
            weakref.finalize(results, calls.workers.soon, job.take_no_more).atexit = False
        return results

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more work; a second call does nothing.

        Iterators of `map` with a `buffersize` read no more items; iterating past those already read raises
        `RuntimeError`.

        Args:
            wait: Whether to wait until all work is done.
            cancel_futures: Whether to cancel calls and items that have not begun.
        """
        with self._lock:
            self._shut_down = True
            calls, workers = self._calls, self._workers
            maps = list(self._maps)
        for job in maps:
            job.shut_down()
        if cancel_futures:
            if calls is not None:
                calls.cancel_waiting()
            for job in maps:
                job.cancel()
        if wait:
            try:
                self._await_all()
            except BaseException:  # Ctrl-C: the end of the program does not wait for it, either
                _executors.discard(self)
                if calls is not None:
                    _calls.discard(calls)
                raise
        if self._initializer is not None and workers is not None:
            workers.close()

    def _end_calls(self) -> None:
        """Cancel the calls that have not begun, and end the workers of the others."""
        if self._calls is not None:
            self._calls.end_all()

    def _await_all(self) -> None:
        if self._calls is not None:
            self._calls.await_all()
        with self._maps_ended:
            self._maps_ended.wait_for(lambda: not self._maps)

    def _map_ended(self, job: Items) -> None:
        with self._maps_ended:
            self._maps.discard(job)
            self._maps_ended.notify_all()

    @property
    def _broken(self) -> Any:
        """The error that broke the executor, or False; the standard library's executors have this attribute, too."""
        return False if self._workers is None else self._workers.broken or False

    def _opened(self) -> Calls:
        if _ended.is_set():
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        if self._shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self._workers is None:
            options = self._settings.options
            if self._initializer is None:
                self._workers = shared_workers(_connected(), options)
            else:
                code = Code.of(self._initializer)
                arguments = _packed(code, self._initializer, self._initargs, {})
                self._workers = own_workers(_connected(), options, (code.packed, arguments))
        elif self._workers.is_over():  # the program has disconnected since
            self._workers = self._calls = None
            self._quota = Quota(self._max_workers)
            return self._opened()
        if self._workers.broken is not None:
            raise self._workers.broken
        if self._calls is None:
            self._calls = self._settings.calls(self._workers, self._quota)
        return self._calls

    def __del__(self) -> None:
        workers = getattr(self, "_workers", None)
        if workers is not None and self._initializer is not None:
            workers.soon(workers.close)


class _Settings:
    """The settings that an executor, a map and a remote function have in common."""

    def __init__(self, retries: int, timeout_s: float | None, resources: dict[str, Any]) -> None:
        seconds = seconds_of("timeout_s", timeout_s)
        if seconds == 0:
            raise ValueError(f"timeout_s must be above 0, not {timeout_s!r}")
        for name in resources:
            if name not in _LIMIT_NAMES:
                raise TypeError(f"there is no option {name!r}; there are {', '.join(_LIMIT_NAMES)}")
        self.options = ActorOptions.of(resources)
        self.retries = check_count("retries", retries, 0)
        self.timeout_s = seconds

    def calls(self, workers: Workers, quota: Quota) -> Calls:
        calls = Calls(workers, quota, self.retries, self.timeout_s)
        _calls.add(calls)
        return calls

    def items(
        self, workers: Workers, fn: Callable[..., Any], items: Iterable[Any], how: CallForm, **others: Any
    ) -> Items:
        return Items(workers, Code.of(_plain(fn)), items, how, retries=self.retries, timeout_s=self.timeout_s, **others)


class RemoteFunction(Generic[P, R]):
    """A function that runs in a worker process: `f(x)` waits for the result, `f.submit(x)` returns a future.

    `remote_function` makes it. As an attribute of a class it is a method: each call sends a copy of the object.

    Args:
        function: The function.
        settings: The options of `remote_function`.
    """

    def __init__(self, function: Callable[P, R], settings: _Settings) -> None:
        functools.update_wrapper(self, function)
        self._parl_function = function
        self._settings = settings
        self._calls: Calls | None = None
        if self.__module__ in _PROGRAM:
            _ship_by_value()

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload  # without its arguments, for type checkers that take a static method for another one
    def __get__(self, instance: object, owner: type | None = None) -> RemoteFunction[..., R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the function bound to the object if what is decorated binds to it, as functions do; else this one."""
        function = self._parl_function
        bind = getattr(type(function), "__get__", None)
        if instance is None or bind is None:
            return self
        bound = bind(function, instance, owner)
        return RemoteFunction(bound, self._settings) if getattr(bound, "__self__", None) is instance else self

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with uninterrupted:
            return self.submit(*args, **kwargs).result()

    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> RemoteFuture[R]:
        """Run the function and return its future; see `Executor.submit`."""

        def begin(future: RemoteFuture[R]) -> Calls:
            calls = self._opened()
            calls.begin(future)
            return calls

        return submit_call(begin, self, args, kwargs)

    def map(self, *iterables: Iterable[Any], **how: Any) -> Results[R]:
        """Return an iterator over the results of many items; `how` takes the options of `parl.map`."""
        return map(self, *iterables, **how)

    def options(self, **changed: Any) -> RemoteFunction[P, R]:
        """Return the function with some options of `remote_function` changed; raise what that raises."""
        retries = changed.pop("retries", self._settings.retries)
        timeout_s = changed.pop("timeout_s", self._settings.timeout_s)
        settings = _Settings(retries, timeout_s, changed)
        settings.options = self._settings.options.changed(changed)
        return RemoteFunction(self._parl_function, settings)

    def _opened(self) -> Calls:
        with _opening:
            if self._calls is None or self._calls.workers.is_over():
                self._calls = self._settings.calls(shared_workers(_connected(), self._settings.options), Quota(None))
            return self._calls

    def __reduce__(self) -> Any:
        if self.__module__ in _PROGRAM:  # for other processes of the program; workers get the function `_by_value`
            named = _found(self)
            if named is self:
                return name_of(self._parl_function)
            if isinstance(named, RemoteFunction) and named._parl_function is self._parl_function:  # see `options`
                settings = self._settings
                return _changed, (named, settings.retries, settings.timeout_s, settings.options)
        return self._by_value()

    def _by_value(self) -> Any:
        if serialize.has_name_elsewhere(self):
            return name_of(self._parl_function)
        settings = self._settings
        return _function_again, (self._parl_function, settings.retries, settings.timeout_s, settings.options)

    def __repr__(self) -> str:
        return f"<remote function {name_of(self._parl_function)}>"


# The names of the main module, which children of `multiprocessing` know, and workers do not.
_PROGRAM = ("__main__", "__mp_main__")


@functools.cache
def _ship_by_value() -> None:
    """Let cloudpickle send remote functions by value where plain pickle sends their names, as it does functions."""
    serialize.reduce_by_value(RemoteFunction, RemoteFunction._by_value)


def _found(function: RemoteFunction[Any, Any]) -> Any:
    """Return what is found by the name of a function; None if there is nothing."""
    try:
        return operator.attrgetter(name_of(function._parl_function))(sys.modules.get(function.__module__))
    except AttributeError:
        return None


def _changed(named: RemoteFunction[Any, Any], *settings: Any) -> RemoteFunction[Any, Any]:
    return _function_again(named._parl_function, *settings)


def _function_again(
    function: Callable[..., Any], retries: int, timeout_s: float | None, options: ActorOptions
) -> RemoteFunction[Any, Any]:
    settings = _Settings(retries, timeout_s, {})
    settings.options = options
    return RemoteFunction(function, settings)


@overload
def remote_function(function: Callable[P, R], /) -> RemoteFunction[P, R]: ...
@overload
def remote_function(
    *, retries: int = ..., timeout_s: float | None = ..., **resources: Any
) -> Callable[[Callable[P, R]], RemoteFunction[P, R]]: ...
def remote_function(
    function: Any = None, /, *, retries: int = _RETRIES, timeout_s: float | None = None, **resources: Any
) -> Any:
    """Make a function run in a worker process; the decorator works with and without parentheses.

    `f(x)` waits for the result, like a method of a remote class; `f.submit(x)` returns a `RemoteFuture`. All
    functions of a program with the same resources share workers.

    Args:
        function: The function.
        retries: As for `Executor` (default 3).
        timeout_s: As for `Executor`, in seconds (default: no limit).
        **resources: As for `Executor`: `n_cpu` (default 1), `n_gpu` and others.

    Raises:
        TypeError: An option is unknown, or the decorated object is not a function.
        ValueError: An option is out of its range.
    """
    settings = _Settings(retries, timeout_s, resources)

    def decorate(decorated: Any) -> RemoteFunction[Any, Any]:
        if isinstance(decorated, type) or not callable(decorated):
            raise TypeError(
                f"remote_function decorates functions, not {decorated!r}; for classes there is remote_class"
            )
        return RemoteFunction(_plain(decorated), settings)

    return decorate if function is None else decorate(function)


@uninterrupted
def map(  # as it is called in the package
    fn: Callable[..., R],
    *iterables: Iterable[Any],
    chunksize: int | None = None,
    buffersize: int | None = None,
    max_workers: int | None = None,
    timeout: float | None = None,
    progress: bool | str = False,
    retries: int | None = None,
    timeout_s: float | None = None,
    **resources: Any,
) -> Results[R]:
    """Return an iterator over the results of `fn(*items)`, in order, computed in worker processes.

    Items are read as results are requested, so an iterable may be infinite. The number of items in progress is limited
    to what keeps the workers busy. If an item raises an error, the iterator raises it at the item's position; the next
    request continues with the next item.

    `close` of the iterator, or a `with` statement, takes no more items and cancels those that have not begun. A
    generator of items that nothing else refers to then ends, as it does after a `for` statement.

    Args:
        fn: The function, or a remote function, whose options are then the defaults.
        iterables: Its arguments; each item takes one element of every iterable.
        chunksize: The number of items sent to a worker together, 1 or more. By default it is chosen from the measured
            cost of the items.
        buffersize: The maximum number of items that are read before their results are requested, 1 or more (default: as
            many as keep the workers busy).
        max_workers: The maximum number of chunks in progress at a time, 1 or more (default: as many as the cluster has
            CPUs for).
        timeout: Seconds after the call of `map` until which all results have to arrive; then `ResultTimeout` is raised.
        progress: Whether to show a progress bar, or the bar's title. Without `tqdm` a warning is logged instead.
        retries: As for `Executor` (default 3).
        timeout_s: As for `Executor`, in seconds (default: no limit).
        **resources: As for `Executor`.

    Raises:
        TypeError: There is no iterable, an argument is of the wrong type, or an option is unknown.
        ValueError: An option is out of its range.
        SerializationError: The function cannot be sent.
    """
    _check_sizes(chunksize, buffersize)
    if max_workers is not None and (isinstance(max_workers, bool) or not isinstance(max_workers, int)):
        raise TypeError(f"max_workers must be a whole number, not {max_workers!r}")
    if max_workers is not None and max_workers < 1:
        raise ValueError(f"max_workers must be greater than 0, not {max_workers!r}")
    settings = _Settings(_RETRIES if retries is None else retries, timeout_s, resources)
    if isinstance(fn, RemoteFunction):
        known = fn._settings
        settings = _Settings(known.retries if retries is None else retries, timeout_s or known.timeout_s, resources)
        settings.options = known.options.changed(resources)
    items, how, total = _zipped(iterables)
    job = settings.items(
        shared_workers(_connected(), settings.options),
        fn,
        items,
        how,
        chunksize=chunksize,
        quota=Quota(max_workers),
        ahead=buffersize,
        total=total,
        on_end=_nothing,
    )
    deadline = deadline_of("timeout", timeout)
    bar = progress_bar(progress, total)
    return Results(job, timeout, deadline, bar, goes_on=True)


def _connected() -> _current.ActorMaker:
    _current.refuse_at_import("calls functions in workers")
    return connected()


def _nothing() -> None:
    """Do nothing."""


def _zipped(iterables: Sequence[Iterable[Any]]) -> tuple[Iterable[Any], CallForm, int | None]:
    """Return the items, the way in which a function takes them, and their number if it is known."""
    if not iterables:
        raise TypeError("map needs at least one iterable of items")
    sizes = [length_of(one) for one in iterables]
    total = None if None in sizes else min(size for size in sizes if size is not None)
    if len(iterables) == 1:
        return iterables[0], CallForm.ITEM, total
    return zip(*iterables, strict=False), CallForm.ITEMS, total


def _check_sizes(chunksize: int | None, buffersize: int | None) -> None:
    for name, value in (("chunksize", chunksize), ("buffersize", buffersize)):
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an integer or None")
            if value < 1:
                raise ValueError(f"{name} must be > 0")


def _plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the object to send for a function: a remote function if that is sent by name, else the wrapped one."""
    if isinstance(fn, RemoteFunction) and not serialize.has_name_elsewhere(fn):
        return fn._parl_function
    return fn


def submit_call(
    begin: Callable[[RemoteFuture[Any]], Calls], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
) -> RemoteFuture[Any]:
    """Queue one call of a function, when the futures among its arguments are settled; return its future.

    Args:
        begin: Registers the call and returns the calls to which it belongs.
        fn: The function.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """
    future: RemoteFuture[Any] = RemoteFuture(None)
    future.method = name_of(fn)
    awaited = [one for one in (*args, *kwargs.values()) if isinstance(one, concurrent.futures.Future)]
    with uninterrupted:
        calls = begin(future)
        if awaited:
            _Awaiting(calls, fn, args, kwargs, future, awaited)
        else:
            _queue(calls, fn, args, kwargs, future)
    return future


def _queue(
    calls: Calls, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], future: RemoteFuture[Any]
) -> None:
    try:
        code = Code.of(_plain(fn))
        packed = _packed(code, fn, args, kwargs)
    except BaseException as error:
        calls.refuse(future, error)
        if not isinstance(error, Exception):
            raise
        return
    calls.add(future, code, packed)


def _packed(code: Code, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Packed:
    """Return the arguments of one call of a function as the only item of a list, pickled.

    Raises:
        SerializationError: They cannot be sent.
    """
    try:
        packed = pack_items([(args, kwargs)], CallForm.CALL)
    except Exception as error:
        raise serialize.refusal(error, args, kwargs, code.name, lambda: _parameters(fn), "function") from error
    return kept(packed)


def _parameters(fn: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # of some built-in functions nothing is known
        return []


class _Awaiting:
    """A call that waits for futures among its arguments."""

    def __init__(
        self,
        calls: Calls,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: RemoteFuture[Any],
        awaited: list[concurrent.futures.Future[Any]],
    ) -> None:
        self._call = calls, fn, args, kwargs, future
        self._left = len(awaited)
        self._lock = threading.Lock()
        future.add_done_callback(calls.end_if_cancelled)  # it may be waiting for a future that is never settled
        for one in awaited:
            one.add_done_callback(self._one_less)

    def _one_less(self, _: object) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        calls, fn, args, kwargs, future = self._call
        try:
            args = tuple(_settled(one) for one in args)
            kwargs = {name: _settled(one) for name, one in kwargs.items()}
        except concurrent.futures.CancelledError:
            calls.cancel(future)
        except BaseException as error:
            calls.refuse(future, error)
        else:
            _queue(calls, fn, args, kwargs, future)


def _settled(value: Any) -> Any:
    return value.result() if isinstance(value, concurrent.futures.Future) else value


@uninterrupted
def wait(futures: Sequence[Any], *, num_returns: int = 1, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
    """Wait until some futures are settled; return them and the other futures.

    Args:
        futures: Futures of calls of actors or functions, or any other futures of `concurrent.futures`, each once.
        num_returns: The number of futures to wait for, from 1 to the number of futures.
        timeout: The maximum time to wait, in seconds; None waits without limit.

    Returns:
        A list of at most `num_returns` settled futures (fewer after the timeout) and a list of the other futures, both
        in the given order. Both lists are empty if there are no futures.

    Raises:
        TypeError: `futures` is a single future, or an element is not a future.
        ValueError: A future is listed twice, or `num_returns` is out of its range.
    """
    if isinstance(futures, concurrent.futures.Future):
        raise TypeError("wait takes a list of futures, not one")
    futures = list(futures)
    for one in futures:
        if not isinstance(one, concurrent.futures.Future):
            raise TypeError(f"wait takes futures, not {one!r}")
    if len({id(one) for one in futures}) != len(futures):
        raise ValueError("wait takes each future once")
    if not futures:
        return [], []
    if check_count("num_returns", num_returns, 1) > len(futures):
        raise ValueError(f"num_returns must be from 1 to {len(futures)}, the number of futures, not {num_returns!r}")
    seconds = seconds_of("timeout", timeout)
    waiter = _Countdown(num_returns)
    for one in futures:
        with one._condition:
            if one._state in _SETTLED:
                waiter.count()
            else:  # not among its waiters, which a cancellation does not reach before the call has its turn
                one._done_callbacks.insert(0, waiter.count)
    waiter.over.wait(seconds)
    done: list[Any] = []
    others: list[Any] = []
    for one in futures:
        with one._condition:
            with contextlib.suppress(ValueError):  # it was settled at once, or its callbacks are over
                one._done_callbacks.remove(waiter.count)
            settled = one._state in _SETTLED
        (done if settled and len(done) < num_returns else others).append(one)
    return done, others


_SETTLED = (
    concurrent.futures._base.CANCELLED,
    concurrent.futures._base.CANCELLED_AND_NOTIFIED,
    concurrent.futures._base.FINISHED,
)


class _Countdown:
    """A waiter for some of many futures."""

    def __init__(self, left: int) -> None:
        self._left = left
        self._lock = threading.Lock()
        self.over = Event()

    def count(self, _: object = None) -> None:
        """Count one more."""
        with self._lock:
            self._left -= 1
            if self._left <= 0:
                self.over.set()


# What a program has to wait for before it ends, as the standard library does.
_executors: weakref.WeakSet[Executor] = weakref.WeakSet()
_calls: weakref.WeakSet[Calls] = weakref.WeakSet()  # also of executors that were dropped
_ended = threading.Event()
_opening = threading.RLock()  # of a remote function; as the lock of `Executor`


def _finish() -> None:
    _ended.set()
    for executor in list(_executors):
        executor.shutdown()
    for calls in list(_calls):
        calls.await_all()


def _after_fork() -> None:
    global _opening
    _opening = threading.RLock()  # the thread that held it was not copied
    for calls in list(_calls):
        leave_to_parent(calls.open, call_of_parent)
    _calls.clear()
    for executor in list(_executors):
        executor._begin()
    after_fork()


try:  # before atexit's functions, of which one disconnects
    threading._register_atexit(_finish)  # type: ignore[attr-defined]
except RuntimeError:  # the main thread has ended, and another one is the first to use functions
    _ended.set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
