"""Generators of actors and functions, read at the caller."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parl_remote
from faults.polling import eventually
from parl_remote import ActorLost, RemoteCallError, submit, with_options

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

    def then_a_lock(self) -> Iterator[Any]:
        try:
            yield from range(10)
            yield threading.Lock()
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

    def average(self) -> Generator[float, float, str]:
        total, count, mean = 0.0, 0, 0.0
        while True:
            try:
                value = yield mean
            except LookupError as error:
                mean = -1.0
                self.closed = f"{type(error).__name__}: {error}"
                continue
            if value is None:
                return f"{count} values"
            total, count = total + value, count + 1
            mean = total / count


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

    async def echo(self) -> AsyncGenerator[Any, Any]:
        value = None
        while value != "end":
            try:
                value = yield value
            except LookupError as error:
                value = repr(error)


@parl_remote.remote_class
class Gated:
    """Yields what it is given, one value each."""

    def __init__(self) -> None:
        self.closed = 0
        self._values: asyncio.Queue[Any] = asyncio.Queue()

    async def give(self, value: Any) -> None:
        await self._values.put(value)

    async def values(self) -> AsyncGenerator[Any, Any]:
        try:
            sent = None
            while True:
                value = await self._values.get()
                if value == "fail":
                    raise KeyError(value)
                sent = yield value if sent is None else (value, sent)
        finally:
            self.closed += 1


@parl_remote.remote_class
class Changing:
    """Yields one object again and again, with other contents."""

    def changed_rows(self, count: int) -> Iterator[dict[int, int]]:
        row: dict[int, int] = {}
        for number in range(count):
            row[0] = number
            yield row

    def changed_arrays(self, count: int) -> Iterator[Any]:
        array = np.zeros(5_000)  # travels outside of the pickle
        for number in range(count):
            array[:] = number
            yield array if number % 3 else array[:5]

    async def changed_rows_async(self, count: int) -> AsyncIterator[dict[int, int]]:
        row: dict[int, int] = {}
        for number in range(count):
            row[0] = number
            yield row


@parl_remote.remote_class(n_cpu=0, max_concurrency=3)
class Slow:
    """Gives a generator that has begun, once it is told to."""

    def __init__(self) -> None:
        self.closed = 0
        self._began, self._told = threading.Event(), threading.Event()

    def guarded(self) -> Iterator[int]:
        try:
            yield from range(1_000_000)
        finally:
            self.closed += 1

    def begun(self) -> Iterator[int]:
        self._began.set()
        assert self._told.wait(PATIENCE_S)
        numbers = self.guarded()
        next(numbers)
        return numbers

    def wait(self) -> None:
        assert self._began.wait(PATIENCE_S)

    def tell(self) -> None:
        self._told.set()


@parl_remote.remote_class(n_cpu=0)
class Reader:
    def __init__(self, source: Any) -> None:
        self.source = source
        self._numbers: Any = None

    def read(self) -> Any:
        self._numbers = self.source.guarded()
        return next(self._numbers)

    def begin(self) -> None:
        submit(self.source.begun).result()


@parl_remote.remote_class
class Between:
    def __init__(self) -> None:
        self.source: Any = Source()

    def passed_on(self, limit: int) -> Any:
        return self.source.count(limit)


def upto(limit: int) -> Iterator[int]:
    yield from range(limit)


def test_a_method_that_yields_gives_an_iterator(anywhere: str) -> None:
    source = Source()
    assert list(source.count(100)) == list(range(100))
    assert list(source) == [0, 1, 2]
    assert list(submit(source.count, 5).result(PATIENCE_S)) == list(range(5))
    assert [int(array[7]) for array in source.arrays()] == list(range(20))


@pytest.mark.parametrize("kind", ["changed_rows", "changed_arrays", "changed_rows_async"])
def test_a_value_arrives_as_it_was_when_it_was_yielded(anywhere: str, kind: str) -> None:
    source: Any = Changing()
    assert [int(row[0]) for row in getattr(source, kind)(30)] == list(range(30))


def test_values_before_one_that_cannot_be_sent_arrive(anywhere: str) -> None:
    arrived: list[int] = []
    source = Source()
    numbers = source.then_a_lock()
    with pytest.raises(parl_remote.SerializationError, match="what a generator of Source yielded"):
        arrived += numbers  # those before the error
    assert arrived == list(range(10))
    eventually(lambda: source.closed == "closed")


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
    assert 10 <= source.made <= 50, "read after all that was asked for: an actor runs its calls in order"
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
    eventually(lambda: source.closed == "closed")


@pytest.mark.parametrize("when_full", ["raise", "wait"])
def test_reading_and_closing_a_generator_is_no_call_above_the_limit(anywhere: str, when_full: str) -> None:
    source: Any = with_options(Source, max_pending_calls=1, when_full=when_full)()
    for number in source.guarded():
        if number == 7:
            break
        assert source.count is not None
    eventually(lambda: source.closed == "closed")
    source.closed = ""

    async def read() -> None:
        numbers = source.guarded()
        async for number in numbers:
            if number == 7:
                await numbers.aclose()

    asyncio.run(read())
    eventually(lambda: source.closed == "closed")


def test_the_end_of_its_actor_ends_it(shared_cluster: None) -> None:
    numbers = Source().dies()
    assert next(numbers) == 1
    with pytest.raises(ActorLost, match=r"its last call was <generator>\.next\(\)"):
        next(numbers)


def test_a_generator_of_an_actor_that_was_made_again_is_no_other_one(shared_cluster: None) -> None:
    source: Any = with_options(Source, max_restarts=1)()
    numbers = source.guarded()
    assert next(numbers) == 0
    with pytest.raises(ActorLost, match=r"killed"):
        list(source.dies())
    others = source.count(5)
    assert next(others) == 0
    with pytest.raises(ActorLost, match="its actor was made again"):
        next(numbers)
    numbers.close()
    assert list(others) == [1, 2, 3, 4]


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


def test_leaving_an_async_with_block_closes_the_generator(anywhere: str) -> None:
    source: Any = AsyncSource()

    async def main() -> int:
        async with source.count(1_000) as numbers:
            return int(await anext(numbers))

    assert asyncio.run(main()) == 0
    assert source.closed == "closed"


def test_threads_that_read_one_generator_get_each_value_once(shared_cluster: None) -> None:
    numbers = Source().count(2_000)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        found = [threads.submit(list, numbers) for _ in range(4)]
        assert sorted(number for one in found for number in one.result(PATIENCE_S)) == list(range(2_000))


def test_tasks_that_read_one_generator_get_each_value_once(anywhere: str) -> None:
    source: Any = AsyncSource()

    async def all_of(numbers: Any) -> list[int]:
        return [number async for number in numbers]

    async def main() -> list[int]:
        numbers = source.count(200)
        return sorted(itertools.chain(*await asyncio.gather(*(all_of(numbers) for _ in range(3)))))

    assert asyncio.run(main()) == list(range(200))


@pytest.mark.parametrize("has_arrived", [False, True])
def test_a_value_whose_reader_gave_up_is_for_the_next_one(anywhere: str, has_arrived: bool) -> None:
    async def given_up(waiting: Any, source: Any, value: Any) -> None:
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)  # until it waits
        if has_arrived:
            source.give(value)
            assert source.closed == 0  # the answers before this one have been read
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if not has_arrived:
            source.give(value)

    async def main() -> None:
        source: Any = Gated()
        values = source.values()
        await given_up(anext(values), source, 1)
        assert await anext(values) == 1
        await given_up(values.asend("sent"), source, 2)
        assert await anext(values) == (2, "sent")
        await given_up(anext(values), source, 3)
        other = asyncio.ensure_future(anext(values))
        assert await other == 3
        waiting = [asyncio.ensure_future(anext(values)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        source.give("fail")
        with pytest.raises(KeyError):
            await waiting[1]
        with pytest.raises(StopAsyncIteration):
            await anext(values)

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["count", "count_async"])
def test_readers_that_give_up_lose_and_repeat_nothing(anywhere: str, kind: str) -> None:
    chance = random.Random(kind)
    source: Any = AsyncSource() if kind == "count_async" else Source()

    async def read(numbers: Any, found: list[int]) -> None:
        while True:
            try:
                found.append(await asyncio.wait_for(anext(numbers), chance.random() * 0.002))
            except TimeoutError:
                pass
            except StopAsyncIteration:
                return

    async def main() -> None:
        for readers in (1, 3):
            numbers = source.count(300)
            found: list[list[int]] = [[] for _ in range(readers)]
            await asyncio.gather(*(read(numbers, one) for one in found))
            assert all(one == sorted(one) for one in found)
            assert sorted(itertools.chain(*found)) == list(range(300))

    asyncio.run(main())


def test_a_generator_is_closed_when_its_reader_is_killed(shared_cluster: None) -> None:
    source: Any = Slow()
    reading, waiting = Reader(source), Reader(source)
    assert reading.read() == 0
    own = source.guarded()
    assert next(own) == 0
    submit(waiting.begin)
    source.wait()
    parl_remote.kill(reading)
    eventually(lambda: source.closed == 1)
    parl_remote.kill(waiting)  # before it has got its generator
    source.tell()
    eventually(lambda: source.closed == 2)
    assert next(own) == 1


@pytest.mark.parametrize("cancels", [True, False])
def test_a_generator_that_nobody_waits_for_any_more_is_closed(anywhere: str, cancels: bool) -> None:
    source: Any = Slow()
    call = submit(source.begun)
    source.wait()
    if cancels:
        assert call.cancel()
    else:
        source.tell()
    del call
    source.tell()
    eventually(lambda: source.closed == 1)


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


def test_values_and_exceptions_are_sent_into_a_generator(anywhere: str) -> None:
    source: Any = Source()
    means = source.average()
    assert next(means) == 0.0
    assert [means.send(value) for value in (1.0, 2.0, 6.0)] == [1.0, 1.5, 3.0]
    assert means.throw(KeyError("none")) == -1.0
    assert source.closed == "KeyError: 'none'"
    assert means.send(7.0) == 4.0
    with pytest.raises(StopIteration) as ended:
        next(means)
    assert ended.value.value == "4 values"
    with pytest.raises(StopIteration):
        means.send(1.0)


def test_a_generator_stands_where_its_reader_is_as_a_local_one_does(anywhere: str) -> None:
    def means() -> Any:
        return (yield from Source().average())  # type: ignore[attr-defined]

    generator: Any
    for generator in (means(), Source().average()):
        with pytest.raises(TypeError, match="just-started"):
            generator.send(1.0)
        assert generator.send(None) == 0.0
        assert generator.send(4.0) == 4.0
        with pytest.raises(ZeroDivisionError, match="mine"):
            generator.throw(ZeroDivisionError("mine"))
        with pytest.raises(StopIteration):
            generator.send(1.0)
    unstarted = Source().average()
    with pytest.raises(KeyError):
        unstarted.throw(KeyError)
    with pytest.raises(StopIteration):
        next(unstarted)


def test_a_generator_that_is_read_ahead_takes_no_values(anywhere: str) -> None:
    numbers = Source().count()
    assert [next(numbers), next(numbers)] == [0, 1]
    with pytest.raises(RuntimeError, match="read ahead"):
        numbers.send(1)  # type: ignore[attr-defined]
    assert next(numbers) == 2
    numbers.close()  # type: ignore[attr-defined]


def test_a_method_that_yields_once_is_a_context_manager(anywhere: str) -> None:
    source: Any = Source()

    @contextlib.contextmanager
    def averaging() -> Iterator[Any]:
        means = source.average()
        next(means)
        yield means
        means.close()

    with averaging() as means:
        assert means.send(3.0) == 3.0


def test_values_are_sent_into_an_asynchronous_generator(anywhere: str) -> None:
    async def program() -> None:
        echo: Any = AsyncSource().echo()  # type: ignore[attr-defined]
        assert await anext(echo) is None
        assert [await echo.asend(value) for value in (1, "two")] == [1, "two"]
        assert await echo.athrow(KeyError("three")) == "KeyError('three')"
        with pytest.raises(StopAsyncIteration):
            await echo.asend("end")
        with pytest.raises(StopAsyncIteration):
            await echo.asend(4)

    asyncio.run(program())


def test_generators_of_functions_take_values(shared_cluster: None) -> None:
    echoes: Any = parl_remote.remote_function(echoing)()
    assert next(echoes) is None
    assert [echoes.send(number) for number in range(3)] == [0, 1, 2]


def echoing() -> Generator[Any, Any, None]:
    value = None
    while True:
        value = yield value
