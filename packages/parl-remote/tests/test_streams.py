"""Generators of actors and functions, read at the caller."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parl_remote
from parl_remote import ActorLost, RemoteCallError, submit

PATIENCE_S = 60.0


@parl_remote.remote_class
class Source:
    def __init__(self) -> None:
        self.made = 0
        self.closed = ""

    def count(self, limit: int | None = None) -> Iterator[int]:
        for number in itertools.count():
            if number == limit:
                return "returned"  # type: ignore[return-value]  # the value of the generator
            self.made += 1
            yield number

    def guarded(self) -> Iterator[int]:
        try:
            yield from range(1_000_000)
        finally:
            self.closed = "closed"

    def fails(self) -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("third")

    def arrays(self) -> Iterator[Any]:
        for number in range(20):
            yield np.full(100_000, number, np.float32)

    def dies(self) -> Iterator[int]:
        yield 1
        time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    def __iter__(self) -> Iterator[int]:
        yield from range(3)


@parl_remote.remote_class
class AsyncSource:
    def __init__(self) -> None:
        self.closed = ""

    async def count(self, limit: int) -> AsyncIterator[int]:
        try:
            for number in range(limit):
                await asyncio.sleep(0)
                yield number
        finally:
            self.closed = "closed"

    async def fails(self) -> AsyncIterator[int]:
        yield 1
        raise KeyError("second")


@parl_remote.remote_class
class Between:
    def __init__(self) -> None:
        self.source: Any = Source()

    def passed_on(self, limit: int) -> Any:
        return self.source.count(limit)


def upto(limit: int) -> Iterator[int]:
    yield from range(limit)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_method_that_yields_gives_an_iterator(anywhere: str) -> None:
    source = Source()
    assert list(source.count(100)) == list(range(100))
    assert list(source) == [0, 1, 2]
    assert list(submit(source.count, 5).result(PATIENCE_S)) == list(range(5))
    assert [int(array[7]) for array in source.arrays()] == list(range(20))


def test_its_value_and_its_error_arrive(anywhere: str) -> None:
    source: Any = Source()

    def reads() -> Iterator[int]:
        value = yield from source.count(3)
        assert value == "returned"

    assert list(reads()) == [0, 1, 2]
    numbers = source.fails()
    assert [next(numbers), next(numbers)] == [1, 2]
    with pytest.raises(KeyError) as caught:
        next(numbers)
    assert isinstance(caught.value, RemoteCallError)
    with pytest.raises(StopIteration):
        next(numbers)


def test_it_waits_for_its_reader_and_others_may_call(anywhere: str) -> None:
    source = Source()
    numbers = source.count()
    assert source.made == 0
    assert [next(numbers) for _ in range(10)] == list(range(10))
    time.sleep(0.1)
    assert 10 <= source.made <= 50
    other = source.count()
    assert next(other) == 0
    assert next(numbers) == 10


def test_closing_and_dropping_it_closes_the_generator(anywhere: str) -> None:
    source: Any = Source()
    numbers = source.guarded()
    assert next(numbers) == 0
    numbers.close()
    assert source.closed == "closed"
    assert list(numbers) == []
    source.closed = ""
    numbers = source.guarded()
    assert next(numbers) == 0
    del numbers
    gc.collect()
    until(lambda: source.closed == "closed")


def test_the_end_of_its_actor_ends_it(shared_cluster: None) -> None:
    numbers = Source().dies()
    assert next(numbers) == 1
    with pytest.raises(ActorLost):
        next(numbers)


def test_an_async_generator_is_read_either_way(anywhere: str) -> None:
    source: Any = AsyncSource()
    assert list(source.count(50)) == list(range(50))

    async def main() -> list[int]:
        numbers = [number async for number in source.count(50)]
        started = source.count(50)
        assert await anext(started) == 0
        await started.aclose()
        return numbers

    assert asyncio.run(main()) == list(range(50))
    assert source.closed == "closed"
    numbers = source.fails()
    assert next(numbers) == 1
    with pytest.raises(KeyError):
        next(numbers)


def test_async_for_reads_an_ordinary_generator(anywhere: str) -> None:
    async def main() -> list[int]:
        return [number async for number in Source().count(40)]  # type: ignore[attr-defined]  # a remote iterator

    assert asyncio.run(main()) == list(range(40))


def test_an_actor_passes_on_what_another_one_yields(shared_cluster: None) -> None:
    assert list(Between().passed_on(30)) == list(range(30))


def test_functions_that_yield(shared_cluster: None) -> None:
    with parl_remote.Executor(2) as executor:
        assert list(executor.submit(upto, 100).result(PATIENCE_S)) == list(range(100))
    assert [list(numbers) for numbers in parl_remote.map(upto, range(5))] == [list(range(n)) for n in range(5)]


def test_the_iterator_itself_is_not_sent(shared_cluster: None, tmp_path: Path) -> None:
    with pytest.raises(parl_remote.SerializationError, match="one process"):
        parl_remote.Executor(1).submit(list, [Source().count(3)]).result(PATIENCE_S)
