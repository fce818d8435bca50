"""Plain functions: executors, remote functions and maps, in workers that the program keeps and shares."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import hashlib
import itertools
import math
import multiprocessing
import multiprocessing.managers
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import parl_remote
from parl_remote import ActorError, Executor, ExecutorBroken, ItemLost, RemoteFuture, ResultTimeout, SerializationError
from parl_remote._data import serialize
from parl_remote._functions.sources import Items
from parl_remote._functions.worker import CallForm, Code, FunctionWorker, pack_items, unpack
from parl_remote._functions.workers import Clock, Quota, Workers
from parl_remote._item_reader import ItemReader
from parl_remote.testing import LoopbackCluster

PATIENCE_S = 60.0
_state: dict[str, Any] = {}


def square(number: int) -> int:
    return number * number


def pid(_: object = None) -> int:
    return os.getpid()


class LateItems(ItemReader):
    """Expects every item to be late, after all results that have been begun."""

    patience_s = property(lambda _: PATIENCE_S, lambda *_: None)  # type: ignore[assignment]

    def is_late(self, now: float) -> bool:
        return True


class Bumped:
    """A callable whose calls change it."""

    def __init__(self, actor: Any = None) -> None:
        self.actor = actor
        self.calls = 0

    def __call__(self, *_: object) -> int:
        self.calls += 1
        return self.calls

    bump = __call__


def bumped_closure() -> Callable[..., int]:
    calls = 0

    def bump(*_: object) -> int:
        nonlocal calls
        calls += 1
        return calls

    return bump


def bumped_array() -> Callable[..., float]:
    array = np.zeros(100_000)  # which travels outside of the pickle

    def bump(*_: object) -> float:
        array[0] += 1
        return float(array[0])

    return bump


def bumped_remote_function() -> Callable[..., int]:
    return parl_remote.remote_function(bumped_closure())


def appended(numbers: list[object], number: object = None) -> int:
    numbers.append(number)
    return len(numbers)


def counted_in_its_module(*_: object) -> int:
    _state["calls"] = _state.get("calls", 0) + 1
    return int(_state["calls"])


def global_of_its_module(name: str) -> object:
    return globals().get(name)


def endless_at_700(n: int) -> int:
    if n == 700:
        threading.Event().wait()
    return n


def odd_fails(number: int) -> int:
    if number % 2:
        raise KeyError(number)
    return number


class Result:
    pass


def result_or_error(number: int) -> Result:
    if number == 0:
        raise KeyError(number)
    return Result()


def deadly(number: int) -> int:
    if number == 37:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def deadly_once(number: int, path: str) -> int:
    if number == 3 and not os.path.exists(path):
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


_reused: dict[str, Any] = {
    "array": np.zeros(5_000),
    "list": [0],
    "dict": {0: 0},
    "tuple": (np.zeros(3), [0]),
    "tuples": ((), ([0],)),
}


def changes_array(number: int) -> Any:
    _reused["array"][:] = number
    return _reused["array"]


def changes_array_in_a_list(number: int) -> Any:
    return [0, changes_array(number)][1:]


def changes_array_and_returns_a_part(number: int) -> Any:
    return changes_array(number)[:3]


def changes_dict(number: int) -> Any:
    _reused["dict"][0] = number
    return _reused["dict"]


def changes_tuple(number: int) -> Any:
    _reused["tuple"][0][:] = number
    return _reused["tuple"]


def changes_tuple_of_tuples(number: int) -> Any:
    _reused["tuples"][1][0][0] = number
    return _reused["tuples"][::-1]


def changes_list_with_a_handle(number: int, queue: Any) -> Any:
    _reused["list"][:] = number, queue
    return _reused["list"]


def hold(path: str) -> str:
    with open(path) as gate:  # a FIFO: opens when the test opens its end
        return gate.read()


def hold_if(path: str) -> str:
    return hold(path) if path else ""


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def remember(value: Any) -> None:
    _state["value"] = value


def recall(_: object = None) -> Any:
    return _state.get("value")


def fail_to_start() -> None:
    raise ValueError("error in initializer")


def lock(_: object = None) -> Any:
    return threading.Lock() if _ != 2 else 2


def numbers_and_an_error() -> Iterator[int]:
    yield from (1, 2)
    raise OSError("the disk is gone")


def append_to(table: Any, name: str, value: int) -> Any:
    table[name].append(value)
    return table[name]


async def numbers_in_a_loop(path: str) -> AsyncGenerator[Any, Any]:
    try:
        value = None
        for number in range(3):
            await asyncio.sleep(0)
            try:
                value = yield number if value is None else value
            except LookupError as error:
                value = repr(error)
        raise OSError("after the last")
    finally:
        await asyncio.sleep(0)
        Path(path).write_text("closed")


class ClosedFile(Mapping[str, int]):
    """A mapping that can neither be sent nor read, as a file of h5py that is closed."""

    def __reduce__(self) -> Any:
        raise TypeError("file objects cannot be pickled")

    def __getitem__(self, name: str) -> int:
        raise ValueError("the file is closed")

    def __iter__(self) -> Iterator[str]:
        raise ValueError("the file is closed")

    def __len__(self) -> int:
        raise ValueError("the file is closed")


class Loader(Iterable[int]):
    """Five numbers with a length that is another number, or an error."""

    def __init__(self, length: int | Exception) -> None:
        self.length = length

    def __len__(self) -> int:
        if isinstance(self.length, Exception):
            raise self.length
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Tally:
    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> int:
        self.total += number
        return self.total


class Tallies(multiprocessing.managers.BaseManager):
    pass


Tallies.register("Tally", Tally)


def raise_by_one(tally: Any) -> int:
    return int(tally.add(1))


@parl_remote.remote_function
def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


class Halves:
    @staticmethod
    @parl_remote.remote_function
    def half(number: int) -> float:
        return number / 2

    @parl_remote.remote_function
    @staticmethod
    def third(number: int) -> float:
        return number / 3

    root = parl_remote.remote_function(math.sqrt)


class Scaled:
    """Has a remote function for a method."""

    def __init__(self, weight: int) -> None:
        self.weight = weight

    @parl_remote.remote_function(n_cpu=1)
    def scaled(self, number: int, heavier: int = 0) -> tuple[int, int]:
        """Scales."""
        self.weight += heavier
        return self.weight * number, os.getpid()


@parl_remote.remote_function(n_cpu=1)
def fibonacci(n: int) -> int:
    if n < 2:
        return n
    return sum(parl_remote.map(fibonacci_here, [n - 1, n - 2]))


def fibonacci_here(n: int) -> int:
    return int(fibonacci(n))


def inner(n: int) -> int:
    return sum(parl_remote.map(square, range(n)))


def through_executor(n: int) -> int:
    with Executor(max_workers=2) as executor:
        return sum(executor.map(square, range(n)))


@parl_remote.remote_class
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def slow(self, number: int) -> int:
        return number


def tell(counter: Any, number: int) -> int:
    return int(counter.add(number))


@pytest.fixture(scope="module", autouse=True)
def _end() -> Iterator[None]:
    yield
    parl_remote.disconnect()


class CountingBar:
    """A bar in place of tqdm's that draws nothing."""

    made: list[CountingBar]

    def __init__(self, total: int | None, desc: str | None) -> None:
        self.total = total
        self.desc = desc
        self.count = 0
        self.is_closed = False
        self.made.append(self)

    def update(self, n: int) -> None:
        assert not self.is_closed
        self.count += n

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[CountingBar]:
    monkeypatch.setitem(sys.modules, "tqdm.auto", SimpleNamespace(tqdm=CountingBar))
    CountingBar.made = []
    return CountingBar.made


@pytest.fixture
def executor(shared_cluster: None) -> Iterator[Executor]:
    with Executor(max_workers=4) as executor:
        yield executor


@pytest.mark.parametrize(
    "function",
    [
        changes_array,
        changes_array_in_a_list,
        changes_array_and_returns_a_part,
        changes_dict,
        changes_tuple,
        changes_tuple_of_tuples,
    ],
)
def test_results_of_one_chunk_arrive_as_each_was_returned(shared_cluster: None, function: Callable[[int], Any]) -> None:
    with Executor(max_workers=1) as executor:
        found = list(executor.map(function, range(40), chunksize=20))
    assert [int(np.ravel(one[0])[0]) for one in found] == list(range(40))


class TestExecutor:
    def test_results_and_errors(self, executor: Executor) -> None:
        assert executor.submit(square, 3).result(PATIENCE_S) == 9
        assert executor.submit(pid).result(PATIENCE_S) != os.getpid()
        assert executor.submit(divmod, 7, 2).result(PATIENCE_S) == (3, 1)
        with pytest.raises(KeyError) as caught:
            executor.submit(odd_fails, 1).result(PATIENCE_S)
        assert "odd_fails" in str(caught.value.__cause__ or caught.value)

    def test_an_asynchronous_generator_becomes_an_iterator(self, executor: Executor, tmp_path: Path) -> None:
        ended, closed = tmp_path / "ended", tmp_path / "closed"
        numbers: Any = executor.submit(numbers_in_a_loop, str(ended)).result(PATIENCE_S)
        assert [next(numbers), next(numbers), next(numbers)] == [0, 1, 2]
        with pytest.raises(OSError, match="after the last"):
            next(numbers)
        assert ended.read_text() == "closed"
        (numbers,) = executor.map(numbers_in_a_loop, [str(closed)])
        assert next(numbers) == 0
        assert numbers.send("sent") == "sent"
        assert numbers.throw(KeyError("thrown")) == "KeyError('thrown')"
        numbers.close()
        assert closed.read_text() == "closed"

    def test_map_is_ordered_and_its_first_error_ends_it(self, executor: Executor) -> None:
        assert list(executor.map(square, range(1000))) == [n * n for n in range(1000)]
        assert list(executor.map(pow, [2, 3, 4], [3, 2])) == [8, 9]
        results = executor.map(odd_fails, [0, 2, 3, 4])
        assert [next(results), next(results)] == [0, 2]
        with pytest.raises(KeyError):
            next(results)
        assert list(results) == []

    def test_a_map_is_closed_by_a_with_statement(self, executor: Executor) -> None:
        with executor.map(square, itertools.count(), buffersize=4) as results:
            assert next(results) == 0
        assert list(results) == []

    def test_map_raises_an_error_of_the_items_source_at_once(self, executor: Executor) -> None:
        with pytest.raises(OSError, match="disk"):
            executor.map(square, numbers_and_an_error())

    @pytest.mark.parametrize("chunksize", [None, 1, 7, 5000])
    def test_any_chunksize_gives_the_same(self, executor: Executor, chunksize: int | None) -> None:
        assert list(executor.map(square, range(1000), chunksize=chunksize)) == [n * n for n in range(1000)]

    def test_map_starts_at_once_and_takes_as_many_items_as_its_buffer(self, executor: Executor, tmp_path: Path) -> None:
        started = executor.map(deadly_once, [1], [str(tmp_path / "none")])
        items = itertools.count()
        results = executor.map(square, items, buffersize=4)
        assert next(items) == 4
        assert next(results) == 0
        assert next(results) == 1
        assert next(items) in {6, 7}
        assert list(started) == [1]

    def test_results_that_are_not_iterated_do_not_hold_up_a_shutdown(self, shared_cluster: None) -> None:
        executor = Executor(2)
        items = itertools.count()
        executor.map(square, items, buffersize=4)
        shutdown = threading.Thread(target=executor.shutdown, daemon=True)
        shutdown.start()
        shutdown.join(PATIENCE_S)
        assert not shutdown.is_alive()
        assert next(items) == 4

    @pytest.mark.parametrize(("items", "refused"), [(itertools.count(), True), (range(7), False), (range(100), True)])
    def test_results_that_are_half_read_hold_no_shutdown_up(
        self, shared_cluster: None, items: Iterable[int], refused: bool
    ) -> None:
        with Executor(2) as executor:
            results = executor.map(square, items, buffersize=4)
            read = [next(results) for _ in range(3)]
        with pytest.raises(RuntimeError, match="after shutdown") if refused else contextlib.nullcontext():
            for result in results:
                read.append(result)  # noqa: PERF402  # those before the error count
        assert read == [square(number) for number in range(7)]

    def test_a_late_result_raises_timeout(self, executor: Executor, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        results = executor.map(hold, [str(gate)], timeout=0.2)
        with pytest.raises(TimeoutError):
            next(results)
        writer = os.open(gate, os.O_RDWR)  # which does not wait for a reader: the item may not have begun
        gate.unlink()
        os.close(writer)

    def test_with_a_timeout_no_result_waits_for_a_later_one(self, executor: Executor, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        assert list(executor.map(hold_if, [""] * 20_000)) == [""] * 20_000  # it is known to be quick
        results = executor.map(hold_if, ["", "", str(gate)], timeout=PATIENCE_S)
        assert [next(results), next(results)] == ["", ""]
        gate.write_text("late")
        assert next(results) == "late"

    def test_max_workers_counts_calls_and_maps_together(self, shared_cluster: None, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "gate")
        with Executor(1) as executor:
            held = executor.submit(hold, str(tmp_path / "gate"))
            while not held.running():
                time.sleep(0.001)
            results = executor.map(square, range(3), timeout=0.2)
            with pytest.raises(TimeoutError):
                next(results)
            (tmp_path / "gate").write_text("")

    def test_each_executor_has_its_workers_whatever_others_do(
        self, connect: Callable[..., None], tmp_path: Path
    ) -> None:
        connect(cpu_num=1)
        gates = [tmp_path / "0", tmp_path / "1"]
        for gate in gates:
            os.mkfifo(gate)
        with Executor(2) as first, Executor(2) as second:
            held = [first.submit(hold, str(gate)) for gate in gates]
            while not all(future.running() for future in held):
                time.sleep(0.001)
            opened = [second.submit(gate.write_text, "open") for gate in gates]
            assert [future.result(PATIENCE_S) for future in opened] == [4, 4]
            assert [future.result(PATIENCE_S) for future in held] == ["open", "open"]

    def test_an_executor_has_its_workers_while_functions_have_all_others(
        self, connect: Callable[..., None], tmp_path: Path
    ) -> None:
        connect(cpu_num=1)
        os.mkfifo(tmp_path / "gate")
        held = parl_remote.remote_function(hold).submit(str(tmp_path / "gate"))
        with open(tmp_path / "gate", "w"), Executor(1) as executor:  # once it waits there
            there = executor.submit(os.getpid).result(PATIENCE_S)
            later = [parl_remote.remote_function(os.getpid).submit() for _ in range(3)]
            assert executor.submit(square, 3).result(PATIENCE_S) == 9
        held.result(PATIENCE_S)
        assert there not in {future.result(PATIENCE_S) for future in later}  # it is not a CPU more for the others

    def test_an_executor_has_its_workers_at_once_though_functions_have_just_found_no_cpu(
        self, connect: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found_none, not_made = threading.Event(), Workers._not_made

        def noted(*given: Any, **named: Any) -> None:
            not_made(*given, **named)
            found_none.set()

        monkeypatch.setattr("parl_remote._functions.workers._FULL_S", 10 * PATIENCE_S)
        monkeypatch.setattr(Workers, "_not_made", noted)
        connect(cpu_num=1)
        os.mkfifo(tmp_path / "gate")
        held = parl_remote.remote_function(hold).submit(str(tmp_path / "gate"))
        with open(tmp_path / "gate", "w"):  # once it waits there
            waiting = parl_remote.remote_function(square).submit(2)
            assert found_none.wait(PATIENCE_S)
            with Executor(1) as executor:
                assert executor.submit(square, 3).result(PATIENCE_S) == 9
        assert [held.result(PATIENCE_S), waiting.result(PATIENCE_S)] == ["", 4]

    def test_functions_have_a_worker_although_only_one_of_an_executor_is_left(
        self, connect: Callable[..., None], tmp_path: Path
    ) -> None:
        connect(cpu_num=1)
        gates = [str(tmp_path / name) for name in ("function", "executor")]
        for gate in gates:
            os.mkfifo(gate)
        held = parl_remote.remote_function(hold).submit(gates[0])
        with Executor(1) as executor, contextlib.ExitStack() as opened:
            with open(gates[0], "w"):  # once it waits there
                executor.submit(hold, gates[1])
                opened.enter_context(open(gates[1], "w"))
            held.result(PATIENCE_S)
            counter: Any = Counter()  # ends the worker that has the CPU
            assert parl_remote.remote_function(square).submit(3).result(PATIENCE_S) == 9
            assert counter.add(1) == 1

    def test_waiting_calls_can_be_cancelled(self, shared_cluster: None, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "gate")
        with Executor(max_workers=1) as executor:
            first = executor.submit(hold, str(tmp_path / "gate"))
            second = executor.submit(square, 2)
            while not first.running():
                time.sleep(0.001)
            assert not first.cancel()
            assert second.cancel()
            (tmp_path / "gate").write_text("through")
            assert first.result(PATIENCE_S) == "through"
        assert second.cancelled()

    def test_shutdown_cancels_what_waits(self, shared_cluster: None, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "gate")
        executor = Executor(max_workers=1)
        first = executor.submit(hold, str(tmp_path / "gate"))
        while not first.running():
            time.sleep(0.001)
        others = [executor.submit(square, n) for n in range(10)]
        results = executor.map(square, range(10))
        executor.shutdown(wait=False, cancel_futures=True)
        assert all(other.cancelled() for other in others)
        (tmp_path / "gate").write_text("through")
        executor.shutdown()
        assert first.result(0) == "through"
        with pytest.raises(concurrent.futures.CancelledError):
            list(results)
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(square, 1)
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.map(square, [1])

    def test_a_call_does_not_begin_while_it_is_cancelled(
        self, shared_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun: list[Any] = []
        settle: Any = RemoteFuture._settle

        def settle_when_taken(future: RemoteFuture[Any], *outcome: Any, cancelled: bool = False) -> None:
            if cancelled and pool._calls is not None:
                with pool._calls.workers.lock:
                    begun.append(pool._calls.take(1))  # as another thread does at this moment
            settle(future, *outcome, cancelled=cancelled)

        os.mkfifo(tmp_path / "gate")
        pool = Executor(max_workers=1)
        first = pool.submit(hold, str(tmp_path / "gate"))
        while not first.running():
            time.sleep(0.001)
        second = pool.submit(square, 1)
        monkeypatch.setattr(RemoteFuture, "_settle", settle_when_taken)
        pool.shutdown(wait=False, cancel_futures=True)
        (tmp_path / "gate").write_text("through")
        pool.shutdown()
        assert second.cancelled()
        assert begun == [None]

    def test_each_worker_is_initialized(self, shared_cluster: None) -> None:
        with Executor(2, initializer=remember, initargs=("kept",)) as executor:
            assert set(executor.map(recall, range(20), chunksize=1)) == {"kept"}
        with Executor(2) as executor:
            assert executor.submit(recall).result(PATIENCE_S) is None

    def test_an_initializer_that_cannot_be_sent_is_named(self, shared_cluster: None) -> None:
        with pytest.raises(SerializationError, match=r"argument 'value' \(a lock\) of remember\(\) cannot be sent"):
            Executor(1, initializer=remember, initargs=(threading.Lock(),)).submit(square, 2)
        lock = threading.Lock()
        with pytest.raises(SerializationError, match=r"<lambda> cannot be sent to a worker"):
            Executor(1, initializer=lambda: lock).submit(square, 2)
        with pytest.raises(TypeError, match="initargs must be a tuple of arguments, not 3"):
            Executor(1, initializer=remember, initargs=3)  # type: ignore[arg-type]

    def test_a_failing_initializer_breaks_it(self, shared_cluster: None, caplog: pytest.LogCaptureFixture) -> None:
        executor = Executor(2, initializer=fail_to_start)
        future = executor.submit(square, 2)
        with pytest.raises(concurrent.futures.BrokenExecutor, match="error in initializer"):
            future.result(PATIENCE_S)
        with pytest.raises(ExecutorBroken):
            executor.submit(square, 2)
        executor.shutdown()

    def test_an_initializer_that_fails_in_several_workers_is_logged_once(
        self, connect: Callable[..., None], caplog: pytest.LogCaptureFixture
    ) -> None:
        connect(cpu_num=2)
        executor = Executor(2, initializer=fail_to_start)
        with pytest.raises(ExecutorBroken):
            list(executor.map(square, range(2), chunksize=1))
        for thread in threading.enumerate():
            if thread.name == "parl-worker":
                thread.join(PATIENCE_S)
        executor.shutdown()
        assert [record.getMessage() for record in caplog.records] == ["Exception in initializer:"]
        assert "in fail_to_start" in caplog.text
        assert "/_functions/" not in caplog.text

    @pytest.mark.parametrize(("arguments", "kind"), [({"max_workers": 0}, ValueError), ({"retries": -1}, ValueError),
        ({"max_workers": 1.5}, TypeError), ({"cpus": 2}, TypeError), ({"timeout_s": 0}, ValueError)])  # fmt: skip
    def test_bad_arguments_are_refused(self, arguments: dict[str, Any], kind: type[Exception]) -> None:
        with pytest.raises(kind):
            Executor(**arguments)

    def test_it_works_with_asyncio(self, executor: Executor) -> None:
        import asyncio

        async def main() -> list[int]:
            loop = asyncio.get_running_loop()
            direct = await executor.submit(square, 5)
            return [direct, *await asyncio.gather(*(loop.run_in_executor(executor, square, n) for n in range(10)))]

        assert asyncio.run(main()) == [25, *(n * n for n in range(10))]

    def test_awaiting_a_call_that_raised_stop_iteration_raises(self, executor: Executor) -> None:
        import asyncio

        async def main() -> object:
            return await executor.submit(next, iter(()))

        with pytest.raises(RuntimeError, match="StopIteration"):
            asyncio.run(main())

    def test_workers_are_kept_and_shared(self, shared_cluster: None) -> None:
        pids = set()
        for _ in range(12):  # one that a test before this one asked for may become idle at any time
            with Executor(1) as executor:
                pids.add(executor.submit(pid).result(PATIENCE_S))
        assert len(pids) <= 6

    def test_nothing_is_kept_of_what_is_done(self, executor: Executor) -> None:
        class Argument:
            def __reduce__(self) -> Any:
                return str, ()

        argument = Argument()
        seen = weakref.ref(argument)
        future = executor.submit(str, argument)
        del argument
        future.result(PATIENCE_S)
        gc.collect()
        assert seen() is None


class TestWorkersThatEnd:
    def test_their_items_are_run_again(self, executor: Executor, tmp_path: Path) -> None:
        path = str(tmp_path / "died")
        call = functools.partial(deadly_once, path=path)
        assert list(executor.map(call, range(100))) == list(range(100))
        assert os.path.exists(path)
        os.remove(path)
        assert executor.submit(call, 3).result(PATIENCE_S) == 3

    @pytest.mark.slow
    @pytest.mark.parametrize(("retries", "deaths"), [(0, "1 worker died"), (1, "2 workers died")])
    def test_the_one_that_ends_them_is_named_and_the_others_are_done(
        self, shared_cluster: None, retries: int, deaths: str
    ) -> None:
        results = parl_remote.map(deadly, range(100), retries=retries)
        done = []
        lost: list[ItemLost] = []
        while True:
            try:
                done.append(next(results))
            except StopIteration:
                break
            except ItemLost as error:
                lost.append(error)
        assert done == [n for n in range(100) if n != 37]
        assert [(error.index, error.attempts) for error in lost] == [(37, retries + 1)]
        assert f"{deaths} while working on it alone" in str(lost[0])
        assert isinstance(lost[0], concurrent.futures.BrokenExecutor)

    def test_a_call_that_waits_to_be_run_again_ends_with_the_calls_of_its_executor(
        self, shared_cluster: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        executor = Executor(1)
        assert executor.submit(square, 3).result(PATIENCE_S) == 9
        calls: Any = executor._calls
        give_back = calls.give_back

        def give_back_and_end(chunks: list[Any]) -> bool:
            wanted: bool = give_back(chunks)
            executor._end_calls()
            return wanted

        monkeypatch.setattr(calls, "give_back", give_back_and_end)
        with pytest.raises(ActorError, match=r"a call of deadly\(\) was given up with the calls beside it"):
            executor.submit(deadly, 37).result(PATIENCE_S)

    def test_an_item_that_is_done_is_not_lost_with_the_one_that_waits_behind_it(self, shared_cluster: None) -> None:
        lost = []
        for _ in range(5):
            results = parl_remote.map(deadly, range(50), retries=0, buffersize=2, max_workers=1)
            for number in range(50):
                try:
                    assert next(results) == number
                except ItemLost as error:
                    lost.append(error.index)
        assert lost == [37] * 5

    def test_a_call_that_runs_too_long_is_ended(self, shared_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
        ends: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # to be called when time is up
        after = Clock.after

        def limit(clock: Clock, seconds: float, action: Callable[[], None]) -> None:
            if seconds > 1e5:
                ends.put(action)
            else:
                after(clock, seconds, action)

        monkeypatch.setattr(Clock, "after", limit)
        with Executor(2, timeout_s=1e6) as executor:
            late = executor.submit(nap, 1000)
            quick = executor.submit(nap, 0)
            assert quick.result(PATIENCE_S) == 0
            looks = [ends.get(timeout=PATIENCE_S) for _ in (late, quick)]
            workers: Any = executor._workers
            for worker in workers._workers:
                for chunk in worker.chunks:
                    chunk.due = 0.0
            for look in looks:
                look()
            assert quick.result() == 0
            with pytest.raises(ResultTimeout):
                late.result(PATIENCE_S)

    def test_a_time_limit_holds_also_if_no_thread_can_be_started_at_once(
        self, shared_cluster: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

        def start_later(thread: threading.Thread) -> None:
            if thread.name == "parl-timeout" and failures:
                raise failures.pop()
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_later)
        monkeypatch.setattr("parl_remote._functions.workers._FULL_S", 0.01)
        with Executor(1, timeout_s=0.1) as executor, pytest.raises(ResultTimeout):
            executor.submit(nap, 1000).result(PATIENCE_S)
        assert failures == []

    def test_an_action_that_raises_does_not_stop_the_timer(self, caplog: pytest.LogCaptureFixture) -> None:
        clock, came = Clock(), threading.Event()
        clock.start()
        clock.after(0.0, deque[Any]().pop)
        clock.after(0.0, came.set)
        assert came.wait(PATIENCE_S)
        assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [IndexError]

    def test_a_time_that_never_comes_does_not_stop_the_timer(self) -> None:
        clock, came = Clock(), threading.Event()
        clock.start()
        clock.after(math.inf, deque[Any]().pop)
        clock.after(0.0, came.set)
        assert came.wait(PATIENCE_S)

    def test_a_worker_has_one_timer_for_all_its_calls(
        self, shared_cluster: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        after, timers = Clock.after, deque[float]()

        def noted(clock: Clock, seconds: float, action: Callable[[], None]) -> None:
            timers.append(seconds)
            after(clock, seconds, action)

        monkeypatch.setattr(Clock, "after", noted)
        with Executor(1, timeout_s=1e6) as executor:
            assert [executor.submit(square, number).result(PATIENCE_S) for number in range(20)][-1] == 361
        assert sum(seconds > 1e5 for seconds in timers) <= 1


class TestMap:
    def test_items_are_taken_as_results_are_asked_for(self, shared_cluster: None) -> None:
        taken = itertools.count()
        results = parl_remote.map(square, taken, chunksize=1, max_workers=2)
        assert next(taken) == 0
        assert [next(results) for _ in range(5)] == [1, 4, 9, 16, 25]
        assert next(taken) < 100
        results.close()
        assert list(results) == []

    @pytest.mark.parametrize("kind", ["map", "method", "executor", "two"])
    @pytest.mark.parametrize("end", ["with", "close", "error", "drop", "unread"])
    def test_a_generator_of_items_ends_with_their_results(self, shared_cluster: None, kind: str, end: str) -> None:
        ended: list[int] = []

        def numbers() -> Iterator[int]:
            try:
                yield from itertools.count()
            finally:
                ended.append(threading.get_ident())

        results: Any
        if kind == "map":
            results = parl_remote.map(square, numbers())
        elif kind == "method":
            results = parl_remote.remote_function(square).map(numbers())
        elif kind == "two":
            results = parl_remote.map(pow, numbers(), itertools.repeat(2))
        else:
            results = Executor().map(square, numbers(), buffersize=3)
        if end != "unread":
            assert [next(results), next(results)] == [0, 1]
        assert ended == []
        if end == "with":
            with results as same:
                assert next(same) == 4
                assert ended == []
        elif end == "error":
            with pytest.raises(KeyError), results:
                raise KeyError
        elif end == "close":
            results.close()
            results.close()
        if end in {"drop", "unread"}:
            del results
        else:
            assert list(results) == []
        if end == "unread" and kind != "executor":  # no item was taken, so the generator has not begun
            assert ended == []
        else:
            assert ended == [threading.get_ident()]

    def test_a_generator_of_items_that_the_program_holds_can_be_read_on(self, shared_cluster: None) -> None:
        numbers = (number for number in itertools.count())
        with parl_remote.map(square, numbers) as results:
            assert next(results) == 0
        assert next(numbers) > 0

    def test_an_item_is_begun_while_the_next_one_is_awaited(self, shared_cluster: None, tmp_path: Path) -> None:
        gates = [tmp_path / "first", tmp_path / "second"]
        for gate in gates:
            os.mkfifo(gate)

        def items() -> Iterator[str]:
            for gate in gates:
                yield str(gate)
                gate.write_text("x")  # once a worker waits there

        assert list(parl_remote.map(hold, items())) == ["x", "x"]

    @pytest.mark.parametrize("chunksize", [None, 1])
    def test_a_result_comes_before_an_item_that_is_expected_to_be_late(
        self, shared_cluster: None, monkeypatch: pytest.MonkeyPatch, chunksize: int | None
    ) -> None:
        monkeypatch.setattr("parl_remote._functions.sources.ItemReader", LateItems)
        came: list[int] = []

        def items() -> Iterator[int]:
            yield 2
            yield came[0]
            yield came[1]

        results = parl_remote.map(square, items(), chunksize=chunksize)
        while len(came) < 3:
            came.append(next(results))
        assert came == [4, 16, 256]

    def test_a_chosen_chunksize_waits_for_its_items(self, shared_cluster: None) -> None:
        results = parl_remote.map(pid, iter([()] * 7), chunksize=3, max_workers=1)
        sizes: list[int] = []
        take = results._reader.job.take

        def noting(workers: int) -> Any:
            chunk = take(workers)
            sizes.append(chunk.size)
            return chunk

        results._reader.job.take = noting  # type: ignore[method-assign]
        assert len(list(results)) == 7
        assert sizes == [3, 3, 1]

    def test_the_thread_that_iterates_reads_the_answers(
        self, shared_cluster: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert list(parl_remote.map(square, range(100))) == [square(number) for number in range(100)]
        monkeypatch.setattr("parl_remote._program.answer_reader.AnswerReader.watch", lambda *_: None)
        results = parl_remote.map(square, range(3), chunksize=3, timeout=PATIENCE_S)
        with concurrent.futures.ThreadPoolExecutor(1) as other:  # in this thread a handler may end the test
            assert other.submit(list, results).result() == [0, 1, 4]

    @pytest.mark.parametrize("is_map", [True, False])
    def test_a_handler_that_interrupts_the_waiting_thread_may_use_the_same_worker(
        self, connect: Callable[..., None], tmp_path: Path, is_map: bool
    ) -> None:
        connect(cpu_num=1)
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        assert list(parl_remote.map(square, [1])) == [1]  # the worker is made
        outcomes: list[object] = []
        submitted = threading.Event()

        def handler(*_: object) -> None:
            later = parl_remote.remote_function(square).submit(3)
            submitted.set()
            outcomes.append(later.result(PATIENCE_S))

        def interrupt() -> None:
            with open(gate, "w"):  # once the worker waits there
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                submitted.wait(PATIENCE_S)

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            with concurrent.futures.ThreadPoolExecutor(1) as other:
                interrupted = other.submit(interrupt)
                if is_map:
                    assert list(parl_remote.map(hold, [str(gate)])) == [""]
                else:
                    assert parl_remote.remote_function(hold)(str(gate)) == ""
                interrupted.result()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert outcomes == [9]

    @pytest.mark.parametrize("goes_on", [True, False])
    def test_a_thread_that_waits_for_closed_results_goes_on(
        self, shared_cluster: None, tmp_path: Path, goes_on: bool
    ) -> None:
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        results: Any = (parl_remote.map if goes_on else Executor(1).map)(hold, [str(gate)])
        with concurrent.futures.ThreadPoolExecutor(1) as other:
            waiting = other.submit(list, results)
            with open(gate, "w"):  # once the worker waits there
                results.close()
            assert waiting.result(PATIENCE_S) == []

    def test_threads_that_share_results_lose_none(self, shared_cluster: None, tmp_path: Path) -> None:
        gates = [tmp_path / "first", tmp_path / "second"]
        for gate in gates:
            os.mkfifo(gate)
        items = [str(gates[0]), "", str(gates[1]), ""]
        results = parl_remote.map(hold_if, items, chunksize=2)
        with concurrent.futures.ThreadPoolExecutor(2) as others:
            waiting = [others.submit(next, results) for _ in range(2)]
            with open(gates[1], "w") as second:
                open(gates[0], "w").close()
                assert [future.result(PATIENCE_S) for future in waiting] == ["", ""]
                second.write("later")
        assert list(results) == ["later", ""]

    @pytest.mark.parametrize("is_small", [True, False])
    def test_results_that_are_closed_as_they_arrive_end(
        self, shared_cluster: None, monkeypatch: pytest.MonkeyPatch, is_small: bool
    ) -> None:
        results: Any = parl_remote.map(square, range(4), chunksize=4)

        class ClosedMeanwhile(list[int]):
            def __len__(self) -> int:
                results.close()  # as another thread
                return super().__len__()

        part = results._reader.job.part

        def closed_meanwhile(*limits: Any) -> Any:
            values, failures = part(*limits)[0]
            return (ClosedMeanwhile(values), failures), is_small

        monkeypatch.setattr(results._reader.job, "part", closed_meanwhile)
        assert list(results) == []

    def test_a_loop_over_results_that_have_arrived_runs_no_python_code(self, shared_cluster: None) -> None:
        results = parl_remote.map(square, range(1000), chunksize=1000)
        assert iter(results) is results
        assert next(results) == 0
        called: list[str] = []
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
        try:
            rest = list(itertools.islice(results, 999))
        finally:
            sys.setprofile(None)
        assert rest == [square(number) for number in range(1, 1000)]
        assert called == []
        assert list(results) == []

    @pytest.mark.parametrize(
        ("items", "cost_s", "sizes"),
        [
            (10_000, 1e-7, [5000, 5000]),  # two workers save more than a second chunk costs
            (1000, 1e-7, [1000]),
            (3000, 1e-6, [1500, 1500]),
            (8, 1e-3, [2, 2, 2, 2]),
            (80, 1e-2, [5] * 13 + [4, 3, 2, 2, 1, 1, 1, 1]),
        ],
    )
    def test_chunks_share_the_items_but_are_worth_a_message(self, items: int, cost_s: float, sizes: list[int]) -> None:
        workers: Any = SimpleNamespace(lock=threading.RLock(), costs={b"": (cost_s, 0.0)}, look_at=lambda _: None)
        job = Items(
            workers,
            Code(b"", [b""], "", True),
            range(items),
            CallForm.ITEM,
            chunksize=None,
            quota=Quota(2),
            ahead=0,
            retries=0,
            timeout_s=None,
            total=items,
            on_end=lambda: None,
        )
        job.fill()
        taken = []
        while job.has_next():
            taken.append(job.take(2).size)
            job.running = min(job.running + 1, 2)
        assert taken == sizes

    def test_an_error_keeps_no_results_after_it(self, shared_cluster: None) -> None:
        with Executor(1) as executor:
            results = executor.map(result_or_error, range(2), chunksize=2)
            with pytest.raises(KeyError) as caught:
                next(results)
        held = [one for one in gc.get_objects() if isinstance(one, Result)]
        assert held == []
        del caught

    def test_messages_of_chunks_consist_of_built_in_types(self) -> None:
        (data,) = serialize.dumps(pack_items([1, "two", None], CallForm.ITEM))
        assert b"parl_remote" not in data  # where it is, the message is searched for references

    def test_results_that_are_dropped_wait_for_no_lock(self, shared_cluster: None) -> None:
        """A finalizer runs anywhere, also in a thread that whoever holds the lock waits for."""
        for make in (parl_remote.map, Executor(2).map):
            results: Any = make(square, itertools.count(), chunksize=1, buffersize=8)
            assert next(results) == 0
            job = results._reader.job
            lock, ended = job.workers.lock, weakref.ref(job)
            del job
            held, dropped = threading.Event(), threading.Event()

            def hold_lock(lock: Any = lock, held: Any = held, dropped: Any = dropped) -> bool:
                with lock:
                    held.set()
                    return bool(dropped.wait(PATIENCE_S))

            with concurrent.futures.ThreadPoolExecutor(1) as other:
                was_dropped = other.submit(hold_lock)
                held.wait()
                del results
                dropped.set()
                assert was_dropped.result()
            deadline = time.monotonic() + PATIENCE_S
            while ended() is not None:
                assert time.monotonic() < deadline
                gc.collect()
                time.sleep(0.01)

    def test_an_item_that_raises_does_so_at_its_place(self, shared_cluster: None) -> None:
        results = parl_remote.map(odd_fails, range(4))
        assert next(results) == 0
        with pytest.raises(KeyError):
            next(results)
        assert next(results) == 2
        with pytest.raises(KeyError):
            next(results)
        assert list(results) == []

    @pytest.mark.slow
    def test_an_item_of_many_that_does_not_end_is_found_by_its_time_limit(self, shared_cluster: None) -> None:
        # Longer than a busy machine takes for a quick item; a limit for each of the others would be an hour.
        results = parl_remote.map(endless_at_700, range(1000), timeout_s=8)
        came = [next(results) for _ in range(700)]
        with pytest.raises(ResultTimeout, match="item 700"):
            next(results)
        assert [*came, *results] == [n for n in range(1000) if n != 700]

    @pytest.mark.parametrize("buffersize", [None, 1])
    def test_an_error_of_the_items_source_comes_after_the_items(
        self, shared_cluster: None, buffersize: int | None
    ) -> None:
        results = parl_remote.map(square, numbers_and_an_error(), buffersize=buffersize)
        assert [next(results), next(results)] == [1, 4]
        with pytest.raises(OSError, match="disk"):
            next(results)
        assert list(results) == []

    def test_an_item_that_raises_stop_iteration_does_not_end_the_results(self, shared_cluster: None) -> None:
        results = parl_remote.map(next, [iter([1]), iter([]), iter([3])])
        assert next(results) == 1
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(results)
        assert list(results) == [3]

    def test_what_cannot_be_sent_is_named_and_the_rest_goes_on(self, shared_cluster: None) -> None:
        results = parl_remote.map(lock, range(4), chunksize=4)
        with pytest.raises(SerializationError, match="lock"):
            next(results)
        with pytest.raises(SerializationError):
            next(results)
        assert next(results) == 2
        results = parl_remote.map(str, [1, threading.Lock(), 3], chunksize=3)
        assert next(results) == "1"
        with pytest.raises(SerializationError, match=r"argument 1 \(a lock\) of str\(\) cannot be sent"):
            next(results)
        assert next(results) == "3"

    def test_an_item_that_can_neither_be_sent_nor_read_is_refused(self, executor: Executor) -> None:
        results = parl_remote.map(str, [1, ClosedFile(), 3], timeout=PATIENCE_S)
        assert next(results) == "1"
        with pytest.raises(SerializationError, match=r"argument 1 \(a ClosedFile\) of str\(\) cannot be sent"):
            next(results)
        assert list(results) == ["3"]
        with pytest.raises(SerializationError, match=r"argument 1 \(a ClosedFile\) of str\(\) cannot be sent"):
            executor.submit(str, ClosedFile()).result(PATIENCE_S)

    def test_an_error_while_work_is_handed_out_does_not_hold_up_later_work(
        self, executor: Executor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pick, thread = Workers._pick, threading.current_thread()

        def pick_elsewhere(workers: Workers) -> Any:
            if threading.current_thread() is thread:
                raise MemoryError("none is left")
            return pick(workers)

        def submit_until_it_is_this_threads_turn() -> None:
            while True:
                executor.submit(square, 3)

        with monkeypatch.context() as patched:
            patched.setattr(Workers, "_pick", pick_elsewhere)
            with pytest.raises(MemoryError):
                submit_until_it_is_this_threads_turn()
        assert executor.submit(square, 4).result(PATIENCE_S) == 16

    def test_the_ends_of_a_pipe_are_refused_in_words(self, shared_cluster: None) -> None:
        end, _ = multiprocessing.Pipe()
        said = r"argument 'number' \(a Connection\) of square\(\) cannot be sent to the function"
        with pytest.raises(SerializationError, match=f"{said}.* for processes that multiprocessing starts"):
            parl_remote.remote_function(square)(end)  # type: ignore[arg-type]

    def test_what_a_manager_holds_is_shared_with_workers(self, shared_cluster: None) -> None:
        with multiprocessing.Manager() as manager, Executor(2) as executor:
            numbers, table = manager.Queue(), manager.dict({"nested": manager.list()})
            list(executor.map(numbers.put, [1, 2, 3]))
            assert sorted(numbers.get(timeout=PATIENCE_S) for _ in range(3)) == [1, 2, 3]
            assert executor.submit(append_to, table, "nested", 4).result()[:] == [4]
            assert executor.submit(len, [table, table]).result() == 2
        with Tallies() as tallies, Executor(2) as executor:
            tally = tallies.Tally()  # type: ignore[attr-defined]  # that is how managers have them
            assert sorted(executor.map(raise_by_one, [tally] * 3)) == [1, 2, 3]

    @pytest.mark.parametrize(
        "wait",
        [
            lambda futures: futures[0].result("5"),
            lambda futures: futures[0].exception("5"),
            lambda futures: parl_remote.wait(futures, timeout="5"),  # type: ignore[arg-type]
            lambda _: parl_remote.map(square, [1], timeout="5"),  # type: ignore[arg-type]
            lambda _: Executor(1).map(square, [1], timeout="5"),  # type: ignore[arg-type]
            lambda _: Executor(1, timeout_s="5"),  # type: ignore[arg-type]
            lambda _: parl_remote.put(1).get("5"),  # type: ignore[arg-type]
            lambda _: parl_remote.get_actor("nobody", timeout_s="5"),  # type: ignore[arg-type]
            lambda _: parl_remote.Queue().get(timeout="5"),  # type: ignore[arg-type]
            lambda _: parl_remote.Queue().put_many([1], timeout="5"),  # type: ignore[arg-type]
            lambda _: parl_remote.Queue().join("5"),  # type: ignore[arg-type]
        ],
    )
    def test_a_timeout_that_is_no_number_is_refused_by_name(
        self, shared_cluster: None, tmp_path: Path, wait: Callable[[Any], Any]
    ) -> None:
        os.mkfifo(tmp_path / "gate")
        with Executor(1) as executor:
            future = executor.submit(hold, str(tmp_path / "gate"))
            try:
                with pytest.raises(TypeError, match=r"timeout(_s)? must be a number of seconds or None, not '5'"):
                    wait([future])
            finally:
                (tmp_path / "gate").write_text("open")

    def test_what_keeps_a_function_from_being_sent_is_named(self, shared_cluster: None) -> None:
        lock = threading.Lock()

        def helper() -> bool:
            return lock.locked()

        cause = r"The cause is the variable 'lock' around .*helper \(a lock\): make it inside the function"
        with pytest.raises(SerializationError, match=cause):
            parl_remote.remote_function(lambda: helper())()

    def test_a_coroutine_is_refused_with_advice(self, shared_cluster: None) -> None:
        async def add(number: int) -> int:
            return number + 1

        with pytest.raises(SerializationError, match=r"coroutine.*asyncio\.run"):
            parl_remote.remote_function(add)(1)  # type: ignore[unused-coroutine]

    def test_arrays_come_back_whole(self, shared_cluster: None) -> None:
        arrays = [np.full(200_000, n, np.float32) for n in range(20)]
        for n, array in enumerate(parl_remote.map(np.negative, arrays)):
            assert array.shape == (200_000,)
            assert (array == -n).all()

    def test_lambdas_closures_and_methods(self, shared_cluster: None) -> None:
        offset = 3
        assert list(parl_remote.map(lambda x: x + offset, range(3))) == [3, 4, 5]
        assert list(parl_remote.map("{}!".format, range(2))) == ["0!", "1!"]

    def test_handles_go_along(self, shared_cluster: None) -> None:
        counter = Counter()
        assert sum(1 for _ in parl_remote.map(functools.partial(tell, counter), range(10))) == 10
        assert counter.count == 45
        assert list(parl_remote.map(tell, [counter] * 2, [1, 1], chunksize=1))[-1] > 45

    @pytest.mark.parametrize(
        "items",
        [Loader(0), Loader(1), Loader(9), Loader(TypeError("has no len()")), Loader(NotImplementedError())],
        ids=["0", "1", "9", "TypeError", "NotImplementedError"],
    )
    def test_the_length_of_items_may_be_wrong_or_missing(self, executor: Executor, items: Loader) -> None:
        squares = [0, 1, 4, 9, 16]
        assert list(executor.map(square, items)) == squares
        assert list(executor.map(square, items, buffersize=2)) == squares
        assert list(parl_remote.map(square, items, timeout=PATIENCE_S)) == squares
        assert list(parl_remote.map(pow, items, itertools.repeat(2), timeout=PATIENCE_S)) == squares

    def test_numbers_that_are_too_large_for_indices_are_taken(self, shared_cluster: None) -> None:
        with contextlib.closing(parl_remote.map(square, range(10**20))) as results:
            assert list(itertools.islice(results, 5)) == [0, 1, 4, 9, 16]
        for items in (range(3), [0, 1, 2]):
            assert list(parl_remote.map(square, items, chunksize=sys.maxsize)) == [0, 1, 4]
            assert list(parl_remote.map(square, items, chunksize=10**20, buffersize=10**20)) == [0, 1, 4]

    def test_no_items(self, shared_cluster: None) -> None:
        assert list(parl_remote.map(square, [])) == []

    @pytest.mark.parametrize("map_of", [parl_remote.map, lambda *given: Executor(1).map(*given)])
    def test_an_event_loop_runs_while_it_waits_for_results(
        self, shared_cluster: None, tmp_path: Path, map_of: Any
    ) -> None:
        gate = tmp_path / "gate"
        os.mkfifo(gate)

        async def read() -> list[str]:
            return [result async for result in map_of(hold_if, ["", str(gate)])]

        async def open_gate() -> None:
            gate.write_text("opened")

        async def main() -> Any:
            return await asyncio.gather(read(), open_gate())

        assert asyncio.run(main())[0] == ["", "opened"]

    def test_async_for_goes_on_as_next_does(self, shared_cluster: None) -> None:
        async def main() -> None:
            results = parl_remote.map(odd_fails, range(3), chunksize=1)
            assert await anext(results) == 0
            with pytest.raises(KeyError):
                await anext(results)
            assert [result async for result in results] == [2]
            together = parl_remote.map(square, range(3))
            assert await asyncio.gather(*(anext(together) for _ in range(3))) == [0, 1, 4]
            with pytest.raises(ResultTimeout, match=r"within 0\.01 s"):
                await anext(parl_remote.map(nap, [1.0], timeout=0.01))

        asyncio.run(main())

    @pytest.mark.parametrize("is_sized", [True, False])
    @pytest.mark.parametrize("chunksize", [None, 1, 7])
    @pytest.mark.parametrize("buffersize", [None, 3])
    def test_a_progress_bar_counts_results_that_can_be_taken(
        self,
        shared_cluster: None,
        bars: list[CountingBar],
        is_sized: bool,
        chunksize: int | None,
        buffersize: int | None,
    ) -> None:
        items = range(20) if is_sized else iter(range(20))
        results = parl_remote.map(odd_fails, items, chunksize=chunksize, buffersize=buffersize, progress="odd")
        (bar,) = bars
        assert (bar.total, bar.desc) == (20 if is_sized else None, "odd")
        for number in range(20):
            with pytest.raises(KeyError) if number % 2 else contextlib.nullcontext():
                next(results)
            assert number < bar.count <= 20
            assert not bar.is_closed
        assert next(results, None) is None
        assert bar.count == 20
        assert bar.is_closed

    def test_a_progress_bar_counts_in_any_loop(self, shared_cluster: None, bars: list[CountingBar]) -> None:
        async def read() -> list[int]:
            return [result async for result in parl_remote.map(square, range(20), progress=True)]

        for _ in parl_remote.map(square, range(20), progress=True):
            pass
        list(parl_remote.map(square, range(20), progress=True))
        asyncio.run(read())
        assert [(bar.count, bar.is_closed) for bar in bars] == [(20, True)] * 3

    def test_a_progress_bar_is_shown_until_the_last_result(
        self, shared_cluster: None, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert list(parl_remote.map(square, range(20), progress="squares")) == [n * n for n in range(20)]
        last = capsys.readouterr().err.split("\r")[-1]
        assert "squares" in last
        assert "20/20" in last

    def test_a_map_within_a_map_does_not_wait_for_itself(self, shared_cluster: None) -> None:
        assert list(parl_remote.map(inner, range(6))) == [sum(n * n for n in range(m)) for m in range(6)]
        assert list(parl_remote.map(through_executor, range(4))) == [sum(n * n for n in range(m)) for m in range(4)]


class TestRemoteFunction:
    def test_it_waits_and_it_submits(self, shared_cluster: None) -> None:
        assert add(1, b=2) == 3
        futures = [add.submit(n) for n in range(20)]
        assert [future.result(PATIENCE_S) for future in futures] == list(range(1, 21))
        assert add.__doc__ == "Adds."
        assert list(add.map(range(3))) == [1, 2, 3]

    def test_the_thread_that_waits_for_a_call_reads_its_answer(
        self, shared_cluster: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert add(1, b=2) == 3
        monkeypatch.setattr("parl_remote._program.answer_reader.AnswerReader.watch", lambda *_: None)
        with concurrent.futures.ThreadPoolExecutor(1) as other:  # in this thread a handler may end the test
            future = add.submit(1, b=3)
            assert other.submit(future.result, PATIENCE_S).result() == 4
            assert future._answer is None  # else it would keep the answer's memory
            assert other.submit(Executor(1).submit(square, 5).result, PATIENCE_S).result() == 25

    def test_it_may_be_a_static_method(self, shared_cluster: None) -> None:
        assert Halves.half(3) == Halves().half(3) == 1.5
        assert Halves.third(3) == Halves().third(3) == 1

    def test_a_callable_that_is_no_method_is_none_in_a_class(self, shared_cluster: None) -> None:
        assert Halves.root(4) == Halves().root(4) == 2

    def test_futures_among_its_arguments_are_awaited(self, shared_cluster: None) -> None:
        submit: Any = add.submit
        first = submit(1)
        assert submit(submit(first, b=first), b=submit(5)).result(PATIENCE_S) == 10
        counter: Any = Counter()
        assert counter.add(add.submit(2)) == 3

    def test_references_of_put_arrive_as_their_values(self, shared_cluster: None) -> None:
        ref: Any = parl_remote.put(np.arange(100_000))
        with Executor(1, initializer=remember, initargs=(ref,)) as executor:
            assert executor.submit(recall).result(PATIENCE_S).sum() == 4_999_950_000
            assert executor.submit(np.sum, a=ref).result(PATIENCE_S) == 4_999_950_000
            assert list(executor.map(np.sum, [ref, np.ones(2)])) == [4_999_950_000, 2]
        assert list(parl_remote.map(np.add, [ref, 1], [1, ref]))[1][3] == 4
        assert list(parl_remote.map(type, [[ref]])) == [list]

    @pytest.mark.slow
    def test_it_may_call_itself(self, shared_cluster: None) -> None:
        assert fibonacci(4) == 3

    def test_a_method_gets_a_copy_of_its_object(self, shared_cluster: None) -> None:
        two = Scaled(2)
        value, pid = two.scaled(3, heavier=1)
        assert (value, pid != os.getpid()) == (9, True)
        assert two.weight == 2, "the worker's copy has changed"
        two.weight = 5
        assert two.scaled.submit(3).result(PATIENCE_S)[0] == 15
        assert [value for value, _ in two.scaled.map([1, 2])] == [5, 10]
        assert next(iter(parl_remote.map(two.scaled, [3])))[0] == 15
        assert two.scaled.options(retries=0)(2)[0] == 10
        assert Scaled.scaled(two, 4)[0] == 20
        with Executor(1) as executor:
            assert executor.submit(two.scaled, 2).result(PATIENCE_S)[0] == 10
        assert two.scaled.__doc__ == "Scales."

    def test_classes_are_refused(self) -> None:
        with pytest.raises(TypeError, match="remote_class"):
            parl_remote.remote_function(Counter)


class TestWait:
    def test_it_returns_as_many_as_were_asked_for(self, shared_cluster: None, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "gate")
        with Executor(4) as executor:
            held = executor.submit(hold, str(tmp_path / "gate"))
            futures: list[RemoteFuture[Any]] = [held, *(executor.submit(square, n) for n in range(3))]
            done, others = parl_remote.wait(futures, num_returns=2)
            assert len(done) == 2
            assert held in others
            assert parl_remote.wait([held], timeout=0.01) == ([], [held])
            (tmp_path / "gate").write_text("")
            assert parl_remote.wait(futures, num_returns=4) == (futures, [])
            assert parl_remote.wait([]) == ([], [])

    @pytest.mark.parametrize("is_call", [True, False])
    def test_a_future_that_is_cancelled_meanwhile_is_settled(
        self, shared_cluster: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_call: bool
    ) -> None:
        waits, found = threading.Event(), queue.SimpleQueue[Any]()

        class Noted(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                waits.set()
                return super().wait(timeout)

        monkeypatch.setattr("parl_remote._functions.executor.Event", Noted)
        os.mkfifo(tmp_path / "gate")
        with Executor(1) as executor:
            executor.submit(hold, str(tmp_path / "gate"))  # until the gate opens no other call has its turn
            future: Any = executor.submit(square, 2) if is_call else concurrent.futures.Future()
            threading.Thread(target=lambda: found.put(parl_remote.wait([future])), daemon=True).start()
            try:
                assert waits.wait(PATIENCE_S)
                assert future.cancel()
                assert found.get(timeout=PATIENCE_S) == ([future], [])
            finally:
                (tmp_path / "gate").write_text("")

    def test_it_refuses_what_makes_no_sense(self) -> None:
        future: RemoteFuture[int] = RemoteFuture(None)
        for futures, count in (([future], 2), ([future], 0), ([future, future], 1)):
            with pytest.raises(ValueError, match=r"once|num_returns"):
                parl_remote.wait(futures, num_returns=count)
        with pytest.raises(TypeError):
            parl_remote.wait(future)  # type: ignore[arg-type]


@pytest.fixture
def idle_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_remote._functions.workers._IDLE_S", 1000.0)


def test_idle_workers_give_their_slot_to_actors(connect: Callable[..., None], idle_for_long: None) -> None:
    connect(cpu_num=2, lease_timeout_s=PATIENCE_S)
    assert sorted(parl_remote.map(square, range(100))) == sorted(n * n for n in range(100))
    counters = [Counter(), Counter()]
    assert [counter.add(1) for counter in counters] == [1, 1]
    assert list(parl_remote.map(square, range(3))) == [0, 1, 4]  # though no CPU is free


def test_idle_workers_whose_items_had_a_time_limit_give_their_slot_to_actors(
    connect: Callable[..., None], idle_for_long: None
) -> None:
    connect(cpu_num=1, lease_timeout_s=PATIENCE_S)
    assert list(parl_remote.map(square, range(3), timeout_s=1000)) == [0, 1, 4]
    assert Counter().add(1) == 1


def test_a_map_that_is_read_in_part_gives_its_slot_to_actors(connect: Callable[..., None]) -> None:
    connect(cpu_num=1, lease_timeout_s=PATIENCE_S)
    results = parl_remote.map(square, range(300), chunksize=10)
    assert next(results) == 0
    assert Counter().add(1) == 1
    assert list(results) == [n * n for n in range(1, 300)]


@pytest.mark.parametrize("debug", [False, True])
def test_functions_have_a_worker_while_actors_have_every_cpu(connect: Callable[..., None], debug: bool) -> None:
    connect(cpu_num=2, debug=debug)
    counters = [Counter(), Counter()]
    assert list(parl_remote.map(square, range(3))) == [0, 1, 4]
    assert parl_remote.remote_function(square)(3) == 9
    with Executor(4) as executor:
        assert list(executor.map(square, range(8), chunksize=1)) == [n * n for n in range(8)]
    assert [counter.add(1) for counter in counters] == [1, 1]


def test_functions_wait_for_their_first_worker_as_long_as_it_takes(
    connect: Callable[..., None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parl_remote._functions.workers._FULL_S", 0.02)
    connect(cpu_num=2, lease_timeout_s=0.02)
    counter = Counter()
    future = parl_remote.remote_function(n_cpu=2)(square).submit(3)
    while sum("as long as it takes" in record.getMessage() for record in caplog.records) < 2:
        assert not future.done()
        time.sleep(0.001)
    parl_remote.kill(counter)
    assert future.result(PATIENCE_S) == 9
    with pytest.raises(ExecutorBroken, match="no single node is large enough"):
        parl_remote.remote_function(n_cpu=3)(square)(3)


def test_busy_workers_give_their_slot_up_when_they_become_idle(
    connect: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    idle_for_long: None,
) -> None:
    monkeypatch.setattr("parl_remote._program.master_client._QUIET_WAIT_S", 0.1)
    connect(cpu_num=1, lease_timeout_s=PATIENCE_S)
    os.mkfifo(tmp_path / "gate")
    with Executor(1) as executor, concurrent.futures.ThreadPoolExecutor(1) as other:
        held = executor.submit(hold, str(tmp_path / "gate"))
        with open(tmp_path / "gate", "w") as gate:  # once the worker has the CPU and opens its end
            counter = other.submit(Counter)
            while not any("waits for 1 CPU" in record.getMessage() for record in caplog.records):
                assert not counter.done()
                time.sleep(0.001)
            gate.write("open")
        assert held.result(PATIENCE_S) == "open"
        assert counter.result().add(1) == 1


def test_functions_have_a_worker_again_soon_after_the_last_one_was_needed_elsewhere(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("parl_remote._functions.workers._SHARED_S", 1000.0)
    connect(cpu_num=2)
    gates = [tmp_path / "first", tmp_path / "second"]
    for gate in gates:
        os.mkfifo(gate)
    with Executor(2) as executor:
        held = [executor.submit(hold, str(gate)) for gate in gates]
        with open(gates[0], "w"), open(gates[1], "w"):  # once both have a worker
            workers: Any = executor._workers
            workers.give_back(next(iter(workers._workers)).ref.place.lease_id)  # another program needs it
        for future in held:
            future.result(PATIENCE_S)
        workers.release_idle()  # and an actor of this program the other one
        assert not workers._workers
        assert executor.submit(square, 3).result(PATIENCE_S) == 9


@pytest.mark.slow
def test_a_program_gives_workers_back_between_items_when_another_one_waits(
    run_program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    program = """
        import parl_remote, sys
        parl_remote.connect(sys.argv[1], key_file=sys.argv[2])
        print(parl_remote.remote_function(lambda: "done")())
    """
    parl_remote.disconnect()
    with LoopbackCluster(1, cpus=2) as cluster, concurrent.futures.ThreadPoolExecutor(1) as other:
        cluster.connect()
        started = None
        for _ in parl_remote.map(time.sleep, itertools.repeat(0.01), chunksize=1):
            if started is None and parl_remote.get_global_client().actor_num == 2:
                command = ["-c", textwrap.dedent(program), cluster.address, str(cluster.key_file)]
                started = other.submit(run_program, *command)
            if started is not None and started.done():
                break
        assert started is not None
        assert started.result().stdout == "done\n", started.result().stderr
        parl_remote.disconnect()


PROGRAM = """
    import parl, time
    from dataclasses import dataclass

    @dataclass
    class Point:
        x: int

    class Kind:
        pass

    def classes(number):
        @dataclass
        class Inner:
            kind: Kind
            of: list["Kind"]
            times = factor
            class Deeper:
                kind: Kind
                times = factor
        return Inner.Deeper.times * number, Inner.__annotations__["kind"].__name__

    factor = 2
    def scaled(point):
        @dataclass
        class Inner:
            other: Point
        return Inner(Point(point.x * factor)).other.x

    def later(text):
        time.sleep(0.2)
        print(text, flush=True)

    if __name__ == "__main__":
        print(list(parl.map(scaled, [Point(1), Point(2)])))
        print(list(parl.map(classes, [1])))
        factor = 3
        print(list(parl.map(scaled, [Point(1), Point(2)])))
        with open({path!r}, "w"):
            pass
        ex = parl.Executor(2)
        ex.submit(Path.write_text, Path({path!r}), "done at exit")
"""


INITIALIZES = """
    import parl
    offset, table = None, {}

    class Shared:
        pass

    def initialize(value):
        global offset
        offset = value
        table["kind"] = Shared
        helper()

    def helper():
        global added
        added = "by a helper"

    def use(number):
        return offset + number, table["kind"] is Shared, added

    if __name__ == "__main__":
        offset = 7
        with parl.Executor(1, initializer=initialize, initargs=(100,)) as executor:
            print(list(executor.map(use, [1])), executor.submit(lambda: use(2)).result())
        with parl.Executor(1) as executor:
            print(executor.submit(eval, "offset", {"offset": 0}).result(), executor.submit(lambda: offset).result())
"""


SUBMITS_TOO_LATE = """
    import atexit, parl, time
    executor = parl.Executor(2)
    @atexit.register
    def too_late():
        try:
            executor.submit(abs, 1)
        except RuntimeError as error:
            print(error)
    if __name__ == "__main__":
        executor.submit(abs, 1)
"""

SHUTS_DOWN_WITHOUT_WAITING = """
    import parl, time
    if __name__ == "__main__":
        executor = parl.Executor(2)
        future = executor.submit(time.sleep, 0.5)
        executor.shutdown(wait=False)
        print("shut down", future.done())
"""


@pytest.mark.parametrize(
    ("program", "output"),
    [
        (SUBMITS_TOO_LATE, "cannot schedule new futures after interpreter shutdown\n"),
        (SHUTS_DOWN_WITHOUT_WAITING, "shut down False\n"),
        (INITIALIZES, "[(101, True, 'by a helper')] (102, True, 'by a helper')\n0 7\n"),
    ],
)
def test_a_program_that_ends_with_an_executor(tmp_path: Path, program: str, output: str) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == (output, "", 0)


ENDLESS = """
    import os, parl
    with open({log!r}, "a") as log:
        log.write("imported\\n")
    if os.path.getsize({log!r}) > 100:
        os._exit(9)

    def double(number):
        return 2 * number

    @parl.remote_class
    class Actor:
        pass

    {at_import}
"""


@pytest.mark.parametrize(
    ("at_import", "says"),
    [
        ("list(parl.map(double, [1]))", "calls functions in workers"),
        pytest.param(
            *("parl.Executor().submit(double, 1).result()", "calls functions in workers"), marks=pytest.mark.slow
        ),
        pytest.param(*("parl.remote_function(double)(1)", "calls functions in workers"), marks=pytest.mark.slow),
        ("Actor()", "makes Actor"),
    ],
)
def test_a_module_that_starts_processes_when_they_import_it_is_refused(
    tmp_path: Path, at_import: str, says: str
) -> None:
    log = str(tmp_path / "log")
    (tmp_path / "endless.py").write_text(textwrap.dedent(ENDLESS).format(log=log, at_import=at_import))
    (tmp_path / "program.py").write_text("import parl; parl.connect(cpu_num=8); import endless")
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert f"module endless {says} when it is imported" in ran.stderr
    assert len(Path(log).read_text().split()) <= 3


def test_a_module_may_make_objects_of_other_modules_when_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("import parl\nqueue = parl.Queue()\n\ndef double(x):\n    return 2 * x\n")
    (tmp_path / "program.py").write_text("import module, parl; print(list(parl.map(module.double, [1])))")
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.stdout, ran.stderr) == ("[2]\n", "")


FOUND_BY_NO_IMPORT = """
import parl

STEP = 3

def step(number):
    return number + STEP

@parl.remote_function
def double_step(number):
    return step(step(number))

@parl.remote_class
class Stepper:
    def step(self, number):
        return step(number)

print(list(parl.map(step, [1])), double_step(1), Stepper().step(1))
"""


@pytest.mark.parametrize(
    "program",
    [
        "import runpy; runpy.run_path('found.py')",
        pytest.param("import runpy; runpy.run_path('found.py', run_name='found_here')", marks=pytest.mark.slow),
        "import sys, types; sys.modules['made'] = types.ModuleType('made')\n"
        "exec(open('found.py').read(), vars(sys.modules['made']))",
    ],
)
def test_functions_and_classes_of_modules_that_no_import_finds(
    tmp_path: Path, run_program: Callable[..., Any], program: str
) -> None:
    (tmp_path / "found.py").write_text(FOUND_BY_NO_IMPORT)
    ran = run_program(program=program)
    assert (ran.stdout, ran.stderr) == ("[4] 7 4\n", "")


def test_a_program_needs_no_connection_and_ends_after_its_calls(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    program = "from pathlib import Path\n" + textwrap.dedent(PROGRAM).format(path=path)
    (tmp_path / "program.py").write_text(program)
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.stdout.split("\n")[:3], ran.stderr) == (["[2, 4]", "[(2, 'Kind')]", "[3, 6]"], "")
    assert Path(path).read_text() == "done at exit"


@pytest.mark.skipif(sys.version_info[:3] in {(3, 12, 0), (3, 12, 1)}, reason="this Python then starts no thread")
def test_a_thread_may_be_the_first_to_use_functions_after_the_main_thread_has_ended(
    run_program: Callable[..., Any],
) -> None:
    program = """
        import threading
        import parl

        def late():
            threading.main_thread().join()
            print(list(parl.map(str, range(3))), flush=True)

        parl.connect(cpu_num=1)
        threading.Thread(target=late).start()
    """
    ran = run_program(program=textwrap.dedent(program))
    assert (ran.stdout, ran.stderr) == ("['0', '1', '2']\n", "")


@pytest.mark.parametrize(
    "make",
    [
        Bumped,
        lambda: Bumped().bump,
        lambda: functools.partial(appended, []),
        bumped_closure,
        bumped_array,
        bumped_remote_function,
    ],
)
def test_no_call_sees_what_another_has_changed_in_the_callable(
    shared_cluster: None, make: Callable[[], Callable[..., Any]]
) -> None:
    function = make()
    with Executor(1) as executor:
        assert [executor.submit(function).result(PATIENCE_S) for _ in range(3)] == [1, 1, 1]
        assert list(executor.map(function, range(4), chunksize=2)) == [1, 2, 1, 2]


def test_no_call_sees_what_another_has_changed_in_a_callable_with_an_actor(shared_cluster: None) -> None:
    function = Bumped(parl_remote.Queue())
    with Executor(1) as executor:
        assert [executor.submit(function).result(PATIENCE_S) for _ in range(3)] == [1, 1, 1]


def test_calls_with_handles_are_serialized_when_they_are_submitted(shared_cluster: None, tmp_path: Path) -> None:
    queue: Any = parl_remote.Queue()
    settings: dict[str, int] = {}
    array = np.zeros(100_000)  # which travels outside of the pickle
    names: dict[str, Any] = {"__name__": "__main__", "queue": queue}
    exec("def read(): return queue.qsize() + number, number", names)
    os.mkfifo(tmp_path / "gate")
    calls = []
    with Executor(1) as executor:
        executor.submit(hold, str(tmp_path / "gate"))
        for number in range(3):
            settings["number"] = names["number"] = number
            array[0] = number
            calls += [
                executor.submit(lambda _, read, other: (read["number"], other[0]), queue, settings, array),
                executor.submit(lambda: (queue.qsize() + number, number)),  # noqa: B023  # sent at once
                executor.submit(names["read"]),
            ]
        (tmp_path / "gate").write_text("")
    assert [call.result(PATIENCE_S) for call in calls] == [(n, n) for n in range(3) for _ in range(3)]


def test_results_of_one_chunk_with_handles_arrive_as_each_was_returned(shared_cluster: None) -> None:
    queues: list[Any] = [parl_remote.Queue()] * 8
    with Executor(1) as executor:
        found = list(executor.map(changes_list_with_a_handle, range(8), queues, chunksize=8))
    assert found == [[number, queues[0]] for number in range(8)]


def test_functions_of_a_module_share_its_globals_from_call_to_call(shared_cluster: None) -> None:
    def setup() -> None:
        global assigned
        _state["calls"] = 10
        assigned = "a name that the module lacks"  # type: ignore[name-defined]

    with Executor(1, initializer=setup) as executor:
        assert [executor.submit(counted_in_its_module).result(PATIENCE_S) for _ in range(3)] == [11, 12, 13]
        assert executor.submit(global_of_its_module, "assigned").result(PATIENCE_S) == "a name that the module lacks"


def test_a_function_without_a_state_of_its_own_is_unpickled_once() -> None:
    code, runner = Code.of(square), FunctionWorker()
    runs = [
        runner.run(code.key, sent, code.name, pack_items([3], CallForm.ITEM), CallForm.ITEM, 1.0)
        for sent in (code.packed, None)
    ]
    assert [unpack(run[1]) for run in runs] == [[9], [9]]
    lazy = runner._functions[code.key]
    assert lazy.read() is lazy.read()


def test_a_function_is_digested_again_only_after_it_or_what_it_reads_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, digest = np.zeros(1_000_000), Mock(wraps=hashlib.blake2b)
    monkeypatch.setattr(hashlib, "blake2b", digest)

    def look(at: int) -> float:
        return float(table[at])

    first = Code.of(look)
    assert Code.of(look) is first
    assert digest.call_count == 1
    table[3] = 7.0
    changed = Code.of(look)
    assert changed.key != first.key
    assert digest.call_count == 2
    assert (unpack(first.packed)(3), unpack(changed.packed)(3)) == (0.0, 7.0)
    table[3] = 0.0
    assert Code.of(look).key == first.key


def test_a_worker_that_has_read_a_function_gets_changes_of_its_classes(shared_cluster: None) -> None:
    class Setting:
        rate = 1

    def current() -> int:
        return Setting.rate

    found = []
    with Executor(1) as executor:
        for Setting.rate in (1, 2, 1, 1):
            found.append((executor.submit(current).result(PATIENCE_S), executor.submit(lambda: Setting.rate).result()))
    assert found == [(1, 1), (2, 2), (1, 1), (1, 1)]
