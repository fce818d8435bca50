"""Generators across processes: a method that yields returns an iterator to its caller.

    in the actor   generator --open_stream--> Opened, which is sent in its place
    at the caller  RemoteIterator --NEXT(number, how many)-------> a part of its values
                                  --RESUME(number, value, error)-> the value it yields after `send` or `throw`
                                  --CLOSE(number)----------------> its `finally` blocks run

The reader requests values in parts. The first part has one value and is requested with that value. From the second part
on, the next part is requested while the previous one is read, so a generator is at most two parts ahead of its reader.
A part has few values and takes little time. `send` and `throw` need a generator that is not read ahead: it has yielded
a single value so far, or was resumed by `send` or `throw` last, and so stands at the value that its reader has. The
iterator keeps the actor alive, and belongs to the process that called. Closing or dropping the iterator closes the
generator, and the end of the actor ends the iterator, also if the actor is made again. If a read is interrupted, for
example by `asyncio.wait_for` or Ctrl-C, the next read gets its part.

In the actor a generator belongs to the connection over which its answer is sent. It is closed when that connection
closes, or when the caller no longer needs the answer.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import time
import types
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable
from math import inf
from typing import Any, NoReturn, Protocol, Self

from parl_remote._data import serialize
from parl_remote._system.interrupts import uninterrupted
from parl_remote.errors import ActorLost, NotConnected

__all__ = [
    "RemoteIterator",
    "as_recorded",
    "can_stream",
    "close_streams",
    "close_unwanted",
    "numbers_of",
    "of_part",
    "open_stream",
    "part_size",
    "read_by",
    "stream_method",
]

_NEXT, _RESUME, _CLOSE = "<generator>.next", "<generator>.send", "<generator>.close"  # the names that users see
_MOST = 16  # values in a part
_FIRST_AHEAD = 2  # values that the next part would have, after a first one
_PART_S = 0.005  # after which a part goes, however few values it has
_UNCHANGING = (int, float, str, bytes, bool, type(None))


class _Caller(Protocol):
    def submit(self, name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Send a call; see `ActorRef.submit`."""


class RemoteIterator(Generator[Any, Any, Any], AsyncGenerator[Any, Any]):
    """An iterator over the values of a generator in an actor, for `for` and `async for`.

    `send` and `throw` (`asend` and `athrow` in `async` code) work as for a local generator after the first value, and
    after each other. After a second `next` in a row, the generator is read ahead, and they raise `RuntimeError`.

    Args:
        number: The generator's number in its actor.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._pid = os.getpid()
        self._turn = threading.RLock()  # of the thread that reads
        self._actor: _Caller | None = None
        self._values: deque[Any] = deque()
        self._coming: Any = None
        self._size = 1
        self._is_resumed = False  # resumed by `send` or `throw`, so that it is not read ahead
        self._over = False
        self._returned: Any = None

    def _parl_bind(self, actor: _Caller) -> None:
        """Set the reference of the actor that has the generator; called before the iterator is handed out."""
        self._actor = actor

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        values = self._values
        while not values:
            self._fetch()
        value = values[0]
        del values[0]  # no call from there on: neither a signal's handler nor another thread comes in between
        return value

    @uninterrupted
    def _fetch(self) -> None:
        self._check_process()
        with self._turn:
            if self._values:
                return
            if self._over:
                raise StopIteration(self._returned)
            self._take(self._result_of(self._asked()))

    def _result_of(self, coming: Any) -> Any:
        """Wait for a part and return it; if a signal handler or the timeout ends the wait, the next wait gets it."""
        coming._wait_until(None)
        try:
            return coming.result()
        except Exception:
            self._end_if_failed(coming)
            raise

    def send(self, value: Any, /) -> Any:
        """Resume the generator with the value of its `yield` expression, and return the value that it yields next.

        Raises:
            StopIteration: The generator returned.
            TypeError: The generator has not yielded anything yet, and the value is not None.
            RuntimeError: The generator was read ahead.
            Exception: The generator's exception.
        """
        return next(self) if self._is_at_start(value) else self._resumed(value, None)

    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> Any:  # noqa: ARG002  # frames cannot be sent
        """Raise an exception where the generator stands, and return the value that it yields next.

        Raises:
            StopIteration: The generator returned.
            RuntimeError: The generator was read ahead.
            Exception: The generator's exception, which may be the given one.
        """
        return self._resumed(None, _exception(typ, val))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while not self._values:
            self._check_process()
            if self._over:
                raise StopAsyncIteration
            coming = self._asked()
            try:
                part = await _arrival(coming)
            except Exception:
                if self._coming is not coming:  # another task has handled the failure
                    continue
                self._end_if_failed(coming)
                raise
            if self._coming is coming:  # else another task that waited for the same part has taken it
                self._take(part)
        return self._values.popleft()

    async def asend(self, value: Any, /) -> Any:
        """Do what `send` does, in `async` code; raises `StopAsyncIteration` at the generator's end."""
        return await (anext(self) if self._is_at_start(value) else self._resumed_async(value, None))

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None, /) -> Any:  # noqa: ARG002  # as in `throw`
        """Do what `throw` does, in `async` code; raises `StopAsyncIteration` at the generator's end."""
        return await self._resumed_async(None, _exception(typ, val))

    def close(self) -> None:
        """Close the generator, and wait until its `finally` blocks have run."""
        closing = self._close()
        if closing is not None:
            closing.result()

    async def aclose(self) -> None:
        """Close the generator; for `async` code."""
        closing = self._close()
        if closing is not None:
            await _arrival(closing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # modules may be empty
            return
        with uninterrupted, contextlib.suppress(Exception):  # the actor, or this program, may have ended
            self._close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("the values of a remote generator are read by one process; send them, or yield from them")

    def __repr__(self) -> str:
        return f"<remote generator, {'ended' if self._over else 'open'}>"

    def _check_process(self) -> None:
        if self._pid != os.getpid():  # reading here would take values from the parent
            raise NotConnected("a generator is read by the process that called it, from which this one was forked")

    def _asked(self) -> Any:
        if self._coming is None:
            if self._actor is None:
                raise RuntimeError("this generator does not belong to an actor")
            self._coming = self._actor.submit(_NEXT, (self._number, 1 if self._is_resumed else self._size), {})
            self._size = min(2 * self._size, _MOST)
        return self._coming

    def _is_at_start(self, value: Any) -> bool:
        """Return whether no value was requested from the generator yet, so that it cannot take one."""
        at_start = self._size == 1 and not self._is_resumed and not self._over
        if at_start and value is not None:
            raise TypeError("can't send non-None value to a just-started generator")
        return at_start

    @uninterrupted
    def _resumed(self, value: Any, error: BaseException | None) -> Any:
        self._check_process()
        with self._turn:
            self._take(self._result_of(self._resume(value, error)))
            if not self._values:
                raise StopIteration(self._returned)
            return self._values.popleft()

    async def _resumed_async(self, value: Any, error: BaseException | None) -> Any:
        self._check_process()
        if self._over and error is None:
            raise StopAsyncIteration
        coming = self._resume(value, error)
        try:
            part = await _arrival(coming)
        except Exception:
            self._end_if_failed(coming)
            raise
        self._take(part)
        if not self._values:
            raise StopAsyncIteration
        return self._values.popleft()

    def _resume(self, value: Any, error: BaseException | None) -> Any:
        """Resume the generator with a value or an exception; return the future of the next part."""
        if self._over:
            raise StopIteration if error is None else error
        if self._values or self._coming is not None:
            raise RuntimeError(
                "send() or throw() to a remote generator that was read ahead, as it is from the second next() in a row "
                "on: call next() once, and send() for every value after it"
            )
        if self._actor is None:
            raise RuntimeError("this generator does not belong to an actor")
        self._is_resumed, self._size = True, 1
        self._coming = self._actor.submit(_RESUME, (self._number, value, error), {})
        return self._coming

    def _take(self, part: Any) -> None:
        values, goes_on, returned = part
        self._coming = None
        if self._over:  # closed by another thread
            return
        self._values.extend(values)
        if goes_on:
            if self._size > _FIRST_AHEAD and not self._is_resumed:
                self._asked()
        else:
            self._end()
            self._returned = returned

    def _end_if_failed(self, coming: Any) -> None:
        """End the iterator if the part itself raised an error, as opposed to the wait for it.

        The generator is closed, too: it may have yielded a value that cannot be sent, and would stay open.
        """
        if self._coming is coming and coming._settled:
            with contextlib.suppress(Exception):  # the actor has ended
                self._close()

    def _end(self) -> None:
        self._over = True
        self._coming = self._actor = None

    def _close(self) -> Any:
        actor = self._actor
        if self._over or actor is None:
            return None
        self._end()
        self._values.clear()
        if self._pid != os.getpid():  # the parent reads on
            return None
        return actor.submit(_CLOSE, (self._number,), {})


@types.coroutine
def _arrival(future: Any) -> Generator[Any, None, Any]:
    """Await a future; if the waiting task is cancelled, the call continues."""
    return (yield from future._awaited(cancels=False))


class Opened(serialize.Reference):
    """A generator on its way to the caller.

    Args:
        source: The source of its values.
    """

    def __init__(self, source: _Source) -> None:
        self._source = source

    def _parl_referents(self) -> tuple[_Source]:
        return (self._source,)

    def __reduce__(self) -> tuple[Callable[[int], RemoteIterator], tuple[int]]:
        return RemoteIterator, (self._source.number,)


class _Source:
    """A generator in the actor's process."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        # Unique: a reader may ask the actor after it was made again.
        self.number = _recorded.numbers.popleft() if _recorded.numbers else int.from_bytes(os.urandom(8))
        self.reader: object = None
        self.turn = threading.Lock()
        self.next_part: list[Any] = []  # a yielded value that is a part by itself
        self.error: BaseException | None = None
        self.task: Any = None  # the task in which an asynchronous generator runs


class _Recorded:
    """The recording that this process repeats.

    Attributes:
        numbers: The numbers of the generators that are opened next.
        size: The number of values in the next part; None if that does not depend on the time they take.
        repeats: Whether this process repeats one.
    """

    def __init__(self) -> None:
        self.numbers: deque[int] = deque()
        self.size: int | None = None
        self.repeats = False


# Per process, because a function that yields has no object that could keep its generator.
_sources: dict[int, _Source] = {}
_recorded = _Recorded()


def numbers_of(references: Iterable[object]) -> list[int]:
    """Return the numbers of the generators among the references of an answer, for its recording."""
    return [source.number for source in references if isinstance(source, _Source)]


def part_size(name: str, value: Any) -> int | None:
    """Return the number of values in the result of a call, for its recording: if it is a part before the last one."""
    return len(value[0]) if name == _NEXT and value[1] else None


def as_recorded(numbers: Iterable[int], size: int | None) -> None:
    """Make the next call repeat a recorded one.

    Args:
        numbers: The `numbers_of` its answer.
        size: The `part_size` of its result.
    """
    _recorded.numbers, _recorded.size, _recorded.repeats = deque(numbers), size, True


def can_stream(value: object) -> bool:
    """Return whether a value is sent as a stream of values."""
    return inspect.isgenerator(value) or inspect.isasyncgen(value) or isinstance(value, RemoteIterator)


def open_stream(value: Any) -> Opened:
    """Keep a generator in this process; return the object to send in its place."""
    if inspect.isasyncgen(value) and not _is_in_loop():
        value = _driven(value)
    source = _Source(value)
    _sources[source.number] = source
    return Opened(source)


def _is_in_loop() -> bool:
    import asyncio

    return asyncio._get_running_loop() is not None


def _driven(generator: AsyncGenerator[Any, Any]) -> Generator[Any, Any]:
    """Yield the values of an asynchronous generator, for which an event loop runs while the next value is awaited."""
    import asyncio

    async def result_of(step: Awaitable[Any]) -> Any:
        return await step

    with asyncio.Runner() as runner:
        step: Awaitable[Any] = generator.asend(None)
        try:
            while True:
                try:
                    value = runner.run(result_of(step))
                except StopAsyncIteration:
                    return
                try:
                    sent = yield value
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step = generator.athrow(error)
                else:
                    step = generator.asend(sent)
        finally:
            runner.run(result_of(generator.aclose()))


def read_by(reader: object, references: Iterable[object]) -> None:
    """Record the connection over which the generators in an answer are read.

    Args:
        reader: The connection.
        references: The references that `serialize.dumps` found in the answer.
    """
    for source in references:
        if isinstance(source, _Source):
            source.reader = reader


def close_unwanted(references: Iterable[object]) -> None:
    """Close the generators in an answer that its caller no longer needs."""
    for source in references:
        if isinstance(source, _Source):
            _sources.pop(source.number, None)


def close_streams(reader: object = None) -> None:
    """Close the generators of a reader that is gone; all generators if it is None."""
    for source in list(_sources.values()):
        if reader is None or source.reader is reader:
            _sources.pop(source.number, None)


def stream_method(name: str) -> Callable[..., Any] | None:
    """Return the function for a call of a stream; None for other names."""
    return _METHODS.get(name)


class _Part:
    """Values that are sent together.

    Args:
        source: The source of the values.
        most: The maximum number of values.
    """

    def __init__(self, source: _Source, most: int) -> None:
        self.values = source.next_part
        source.next_part = []
        self.is_full = bool(self.values)
        self._source = source
        self._most = most if _recorded.size is None else _recorded.size
        self._until = inf if _recorded.repeats else time.perf_counter() + _PART_S

    def add(self, value: Any) -> None:
        """Add values that the generator has yielded."""
        if self._most == 1 or type(value) in _UNCHANGING:
            self.values.append(value)
        else:
            references: list[object] = []
            try:
                frames = serialize.dumps(value, references)
            except Exception:  # sending the part raises the same error with its reason
                frames = []
            if len(frames) == 1 and not references:
                self.values.append(serialize.Pickled(frames))
            else:
                self.is_full = True
                (self._source.next_part if self.values else self.values).append(value)
                return
        self.is_full = len(self.values) >= self._most or time.perf_counter() > self._until


def of_part(part: Any) -> Any:
    """Return the value of a part that cannot be sent, for the error's message; the part has no other value."""
    values, _, returned = part
    return values[0] if len(values) == 1 else returned


def _source_of(number: int) -> _Source:
    try:
        return _sources[number]
    except KeyError:
        raise ActorLost(
            "this generator was closed: its actor was made again, the connection broke, or another thread closed it"
        ) from None


def _next(number: int, most: int) -> Any:
    source = _source_of(number)
    if inspect.isasyncgen(source.generator):
        return _in_task(source, _part_async(number, source, most))
    goes_on, returned = True, None
    with source.turn:
        part = _Part(source, most)
        error, source.error = source.error, None
        if error is not None:
            _sources.pop(number, None)
            raise error
        try:
            while not part.is_full:
                part.add(next(source.generator))
        except StopIteration as end:
            goes_on, returned = False, end.value
            _sources.pop(number, None)
        except BaseException as raised:
            if not part.values:
                _sources.pop(number, None)
                raise
            source.error = raised  # after the values before it
    return part.values, goes_on, returned


def _resume(number: int, value: Any, error: BaseException | None) -> Any:
    """Resume a generator with a value or an exception; return the result of `_next`, with one value at most."""
    source = _source_of(number)
    generator = source.generator
    if inspect.isasyncgen(generator):
        resumed = generator.asend(value) if error is None else generator.athrow(error)
        return _in_task(source, _resumed_async(number, resumed))
    with source.turn:
        try:
            return [generator.send(value) if error is None else generator.throw(error)], True, None
        except StopIteration as end:
            _sources.pop(number, None)
            return [], False, end.value
        except BaseException:
            _sources.pop(number, None)
            raise


async def _resumed_async(number: int, resumed: Any) -> Any:
    try:
        return [await resumed], True, None
    except StopAsyncIteration:
        _sources.pop(number, None)
        return [], False, None
    except Exception:
        _sources.pop(number, None)
        raise


async def _in_task(source: _Source, part: Coroutine[Any, Any, Any]) -> Any:
    import asyncio  # 14 ms; where asynchronous generators are, it is loaded

    source.task = asyncio.current_task()
    try:
        return await part
    finally:
        source.task = None


async def _close_async(source: _Source) -> None:
    import asyncio

    task = source.task
    if task is not None:  # it may wait for something that does not come
        task.cancel()
        await asyncio.wait([task])
    await source.generator.aclose()


async def _part_async(number: int, source: _Source, most: int) -> Any:
    part = _Part(source, most)
    error, source.error = source.error, None
    if error is not None:
        _sources.pop(number, None)
        raise error
    try:
        while not part.is_full:
            part.add(await anext(source.generator))
    except StopAsyncIteration:
        _sources.pop(number, None)
        return part.values, False, None
    except Exception as raised:
        if not part.values:
            _sources.pop(number, None)
            raise
        source.error = raised
    return part.values, True, None


def _close(number: int) -> Any:
    source = _sources.pop(number, None)
    if source is None:
        return None
    if inspect.isasyncgen(source.generator):
        return _close_async(source)
    with source.turn:
        source.generator.close()
    return None


def _exception(typ: Any, val: Any) -> BaseException:
    """Return the exception that the arguments of `throw` describe."""
    if isinstance(typ, BaseException):
        return typ
    if not (isinstance(typ, type) and issubclass(typ, BaseException)):
        raise TypeError(
            f"exceptions must be classes or instances deriving from BaseException, not {type(typ).__name__}"
        )
    if isinstance(val, typ):
        return val
    return typ() if val is None else typ(*val) if isinstance(val, tuple) else typ(val)


_METHODS: dict[str, Callable[..., Any]] = {_NEXT: _next, _RESUME: _resume, _CLOSE: _close}
