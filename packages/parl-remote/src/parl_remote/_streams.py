"""Generators across processes: a method that yields gives an iterator at the caller.

    in the actor   generator --open_stream--> Opened, which is sent in its place
    at the caller  RemoteIterator --NEXT(number, how many)--> a part of its values
                                  --CLOSE(number)----------> its `finally` blocks run

Parts are asked for: the first when the first value is, and each next one while the one before is read, so that a
generator is at most two parts ahead of its reader. A part has few values and takes little time. The iterator keeps
the actor alive; closing it, or dropping it, closes the generator, and the end of the actor ends the iterator.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NoReturn, Protocol, Self

__all__ = ["RemoteIterator", "can_stream", "open_stream", "stream_method"]

_NEXT, _CLOSE = "__parl_stream_next__", "__parl_stream_close__"
_MOST = 16  # values in a part
_PART_S = 0.005  # after which a part goes, however few values it has


class _Caller(Protocol):
    def submit(self, name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Send a call; see `ActorRef.submit`."""


class RemoteIterator(Iterator[Any], AsyncIterator[Any]):
    """The values that a generator in an actor yields, for `for` and `async for`.

    Args:
        number: The generator's number in its actor.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._actor: _Caller | None = None
        self._values: deque[Any] = deque()
        self._coming: Any = None
        self._size = 1
        self._over = False
        self._returned: Any = None

    def _parl_bind(self, actor: _Caller) -> None:
        """Tell where the generator is; called before the iterator is handed out."""
        self._actor = actor

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while not self._values:
            if self._over:
                raise StopIteration(self._returned)
            coming = self._asked()
            try:
                part = coming.result()
            except Exception:
                self._end()
                raise
            self._take(part)
        return self._values.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while not self._values:
            if self._over:
                raise StopAsyncIteration
            coming = self._asked()
            try:
                part = await coming
            except Exception:
                self._end()
                raise
            self._take(part)
        return self._values.popleft()

    def close(self) -> None:
        """Close the generator, and wait until its `finally` blocks have run."""
        closing = self._close()
        if closing is not None:
            closing.result()

    async def aclose(self) -> None:
        """Close the generator; for `async` code."""
        closing = self._close()
        if closing is not None:
            await closing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the actor, or this program, may have ended
            self._close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("the values of a remote generator are read by one process; send them, or yield from them")

    def __repr__(self) -> str:
        return f"<remote generator, {'ended' if self._over else 'open'}>"

    def _asked(self) -> Any:
        if self._coming is None:
            if self._actor is None:
                raise RuntimeError("this generator belongs to no actor")
            self._coming = self._actor.submit(_NEXT, (self._number, self._size), {})
            self._size = min(2 * self._size, _MOST)
        return self._coming

    def _take(self, part: Any) -> None:
        values, goes_on, returned = part
        self._coming = None
        if self._over:  # closed by another thread
            return
        self._values.extend(values)
        if goes_on:
            self._asked()
        else:
            self._end()
            self._returned = returned

    def _end(self) -> None:
        self._over = True
        self._coming = self._actor = None

    def _close(self) -> Any:
        actor = self._actor
        if self._over or actor is None:
            return None
        self._end()
        self._values.clear()
        return actor.submit(_CLOSE, (self._number,), {})


class Opened:
    """A generator on its way to the caller.

    Args:
        number: Its number.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[int], RemoteIterator], tuple[int]]:
        return RemoteIterator, (self._number,)


class _Source:
    """A generator in the actor's process."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self.turn = threading.Lock()
        self.error: BaseException | None = None
        self.task: Any = None  # in which an asynchronous one runs


# Per process, because a function that yields has no object that could keep its generator.
_sources: dict[int, _Source] = {}
_numbers = itertools.count(1)


def can_stream(value: object) -> bool:
    """Return whether a value is sent as a stream of values."""
    return inspect.isgenerator(value) or inspect.isasyncgen(value) or isinstance(value, RemoteIterator)


def open_stream(value: Any) -> Opened:
    """Keep a generator in this process; return what is sent in its place."""
    number = next(_numbers)
    _sources[number] = _Source(value)
    return Opened(number)


def stream_method(name: str) -> Callable[..., Any] | None:
    """Return the function for a call of a stream; None for other names."""
    return _METHODS.get(name)


def _next(number: int, most: int) -> Any:
    source = _sources[number]
    if inspect.isasyncgen(source.generator):
        return _next_async(number, source, most)
    values: list[Any] = []
    goes_on, returned = True, None
    with source.turn:
        error, source.error = source.error, None
        if error is not None:
            _sources.pop(number, None)
            raise error
        until = time.perf_counter() + _PART_S
        try:
            while len(values) < most:
                values.append(next(source.generator))
                if time.perf_counter() > until:
                    break
        except StopIteration as end:
            goes_on, returned = False, end.value
            _sources.pop(number, None)
        except BaseException as raised:
            if not values:
                _sources.pop(number, None)
                raise
            source.error = raised  # after the values before it
    return values, goes_on, returned


async def _next_async(number: int, source: _Source, most: int) -> Any:
    import asyncio  # 14 ms; where asynchronous generators are, it is loaded

    source.task = asyncio.current_task()
    try:
        return await _part_async(number, source, most)
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
    values: list[Any] = []
    error, source.error = source.error, None
    if error is not None:
        _sources.pop(number, None)
        raise error
    until = time.perf_counter() + _PART_S
    try:
        while len(values) < most:
            values.append(await anext(source.generator))
            if time.perf_counter() > until:
                break
    except StopAsyncIteration:
        _sources.pop(number, None)
        return values, False, None
    except Exception as raised:
        if not values:
            _sources.pop(number, None)
            raise
        source.error = raised
    return values, True, None


def _close(number: int) -> Any:
    source = _sources.pop(number, None)
    if source is None:
        return None
    if inspect.isasyncgen(source.generator):
        return _close_async(source)
    with source.turn:
        source.generator.close()
    return None


_METHODS: dict[str, Callable[..., Any]] = {_NEXT: _next, _CLOSE: _close}
