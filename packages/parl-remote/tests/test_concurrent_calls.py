"""Several calls at a time in one actor: threads for ordinary methods, an event loop for `async def`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import parl_remote
from faults.polling import eventually
from parl_remote import ActorLost, RemoteCallError, RemoteFuture, SerializationError, _current, _debug_client, submit
from parl_remote._actor.host import MANY, ActorHost, Concurrency, ConcurrencyMode, concurrency_of
from parl_remote._actor.runners import Job, ThreadRunner
from parl_remote._data import serialize
from parl_remote._data.answers import read_answer
from parl_remote._links.call_messages import Kind, pack

PATIENCE_S = 60.0


class Replies:
    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.answer = self.replies.append

    def flush(self) -> None:
        pass


class Plain:
    def quick(self, number: int) -> int:
        return number


@parl_remote.remote_class(max_concurrency=4)
class Pool:
    """Its calls meet each other, so they must run at the same time."""

    def __init__(self, parties: int = 4) -> None:
        self.barrier = threading.Barrier(parties)
        self.gate = threading.Event()
        self.started: list[int] = []
        self.main = threading.current_thread() is threading.main_thread()

    def meet(self, number: int) -> int:
        self.barrier.wait(PATIENCE_S)
        return number

    def hold(self) -> str:
        self.gate.wait(PATIENCE_S)
        return "through"

    def open_gate(self) -> None:
        self.gate.set()

    def note(self, number: int) -> None:
        self.started.append(number)
        self.gate.wait(PATIENCE_S)

    def quick(self, number: int) -> int:
        return number

    def asks(self, loop: Any) -> int:
        return int(loop.now_running())

    def thread(self) -> int:
        return threading.get_ident()

    def leave(self) -> None:
        sys.exit(3)

    def fail(self, text: str) -> None:
        raise KeyError(text)

    def grow(self, name: str) -> None:
        setattr(self, name, name)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@parl_remote.remote_class
class Loop:
    """Coroutines that wait for each other, and ordinary methods between them."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.running = 0
        self.most = 0
        self.cleaned: list[str] = []
        self.task = asyncio.get_running_loop().create_task(self._tick())
        self.ticks = 0

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            self.ticks += 1

    async def wait(self, number: int = 0) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.event.wait()
        finally:
            self.running -= 1
        return number

    async def patient(self, path: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            with open(path, "w") as file:
                file.write("cleaned up")

    def set(self) -> None:
        self.event.set()

    def now_running(self) -> int:
        return self.running

    async def add(self, a: int, b: int = 1) -> int:
        await asyncio.sleep(0)
        return a + b

    async def asked_by(self, pool: Any, here: Any) -> Any:
        return submit(pool.asks, here)

    async def fail(self) -> None:
        raise ValueError("on purpose")

    async def leave(self) -> None:
        sys.exit(4)

    async def background_leaves(self) -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 5)
        await asyncio.sleep(0)

    async def cancelled_inside(self) -> None:
        raise asyncio.CancelledError

    async def stream(self) -> AsyncIterator[int]:
        yield 1

    def not_awaited(self) -> Any:
        return self.add(2, 3)

    async def pid(self) -> int:
        return os.getpid()


@parl_remote.remote_class
class Forgetful:
    """Returns a coroutine although no method is `async def`."""

    def work(self) -> Any:
        return asyncio.sleep(0, 7)


def in_background(method: Callable[..., Any], *args: Any) -> RemoteFuture[Any]:
    return submit(method, *args)


# -- what is chosen ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "asked", "chosen"),
    [
        (Forgetful, None, Concurrency(ConcurrencyMode.SERIAL, 1)),
        (Forgetful, 1, Concurrency(ConcurrencyMode.SERIAL, 1)),
        (Forgetful, 5, Concurrency(ConcurrencyMode.THREADS, 5)),
        (Loop, None, Concurrency(ConcurrencyMode.LOOP, MANY)),
        (Loop, 1, Concurrency(ConcurrencyMode.LOOP, 1)),
    ],
)
def test_how_calls_run_follows_from_class_and_option(cls: type, asked: int | None, chosen: Concurrency) -> None:
    assert concurrency_of(cls, asked) == chosen


# -- threads -----------------------------------------------------------------------------------------------------------


def test_calls_run_at_the_same_time_in_threads(anywhere: str) -> None:
    pool = Pool()
    futures = [in_background(pool.meet, i) for i in range(8)]
    assert [future.result(PATIENCE_S) for future in futures] == list(range(8))
    assert pool.main or anywhere == "debug"


def test_a_result_comes_when_it_is_there_whatever_was_called_before(anywhere: str) -> None:
    pool = Pool()
    held = in_background(pool.hold)
    assert pool.quick(3) == 3
    assert not held.done()
    pool.open_gate()
    assert held.result(PATIENCE_S) == "through"


def test_calls_of_one_caller_start_in_order(anywhere: str) -> None:
    pool = Pool()
    futures = [in_background(pool.note, i) for i in range(3)]
    eventually(lambda: len(pool.started) == 3)
    assert pool.started == [0, 1, 2]
    pool.open_gate()
    concurrent.futures.wait(futures, PATIENCE_S)


def test_no_more_than_the_limit_run_at_once(anywhere: str) -> None:
    pool = Pool(5)  # five are to meet, and four may run
    futures = [in_background(pool.meet, i) for i in range(5)]
    assert not concurrent.futures.wait(futures, 0.2).done
    for future in futures:
        future.cancel()
    if anywhere == "debug":
        pool.destroy() if hasattr(pool, "destroy") else None


def test_threads_are_used_again(anywhere: str) -> None:
    pool = Pool()
    assert len({pool.thread() for _ in range(40)}) <= 4


def test_a_waiting_call_can_be_cancelled_and_a_running_one_goes_on(anywhere: str) -> None:
    pool = Pool()
    running = [in_background(pool.note, i) for i in range(3)]
    eventually(lambda: len(pool.started) == 3)
    last = in_background(pool.note, 3)
    until_taken = in_background(pool.note, 4)
    assert until_taken.cancel()
    pool_started = [last, *running]
    in_background(pool.open_gate).cancel()  # all four threads are taken, so this one waits, too
    assert not concurrent.futures.wait(pool_started, 0.1).done


def test_without_threads_calls_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that limits them: the process goes on."""

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    host = ActorHost()
    host.adopt(Plain(), "Plain", ("quick",))
    caller = Replies()
    runner = ThreadRunner(host, 4)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    for number in range(3):
        payload = serialize.dumps((number,))
        frames = [memoryview(frame) for frame in pack(int(Kind.CALL), 0, 0, number, payload)]
        runner.take(Job(host.accept(frames), caller))
    assert [read_answer([memoryview(frame) for frame in reply], "quick").value for reply in caller.replies] == [0, 1, 2]
    runner.drain()


def test_exceptions_and_exit_are_data_in_threads(anywhere: str) -> None:
    pool = Pool()
    with pytest.raises(KeyError, match="this one"):
        pool.fail("this one")
    with pytest.raises(SystemExit, match="3"):
        pool.leave()
    assert pool.quick(1) == 1


def test_new_attributes_are_known_at_once_however_many_threads_make_them(anywhere: str) -> None:
    pool = Pool()
    names = [f"name_{i}" for i in range(50)]
    for future in [in_background(pool.grow, name) for name in names]:
        future.result(PATIENCE_S)
    assert all(getattr(pool, name) == name for name in names)


def test_names_in_an_answer_that_is_read_late_replace_no_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    read, other_is_read, is_first = _debug_client.read_answer, threading.Event(), threading.Lock()

    def read_first_one_late(frames: list[memoryview], method: str) -> Any:
        if is_first.acquire(blocking=False):
            assert other_is_read.wait(PATIENCE_S)
        return read(frames, method)

    _current.clear()
    parl_remote.connect(debug=True)
    pool: Any = Pool()
    monkeypatch.setattr(_debug_client, "read_answer", read_first_one_late)
    futures = [submit(pool.grow, name) for name in ("one", "two")]
    concurrent.futures.wait(futures, PATIENCE_S, concurrent.futures.FIRST_COMPLETED)
    other_is_read.set()
    for future in futures:
        future.result(PATIENCE_S)
    assert (pool.one, pool.two) == ("one", "two")
    parl_remote.disconnect()


def test_many_calls_from_many_threads_are_all_answered(shared_cluster: None) -> None:
    pool = Pool()
    with concurrent.futures.ThreadPoolExecutor(8) as callers:
        results = list(callers.map(lambda i: pool.quick(i), range(400)))
    assert results == list(range(400))


def test_large_arguments_and_results_of_several_threads_do_not_mix(shared_cluster: None) -> None:
    import numpy as np

    pool = Pool()
    arrays = [np.full(300_000, i, np.uint8) for i in range(20)]
    futures = [in_background(pool.quick, array) for array in arrays]
    for future, array in zip(futures, arrays, strict=True):
        assert np.array_equal(future.result(PATIENCE_S), array)


def test_all_calls_in_flight_learn_of_the_death(shared_cluster: None) -> None:
    pool = Pool()
    held = [in_background(pool.hold) for _ in range(3)]
    in_background(pool.die)
    for future in held:
        with pytest.raises(ActorLost, match="SIGKILL"):
            future.result(PATIENCE_S)


# -- an event loop -----------------------------------------------------------------------------------------------------


def test_coroutines_run_at_the_same_time_and_ordinary_methods_between_them(anywhere: str) -> None:
    actor = Loop()
    futures = [in_background(actor.wait, i) for i in range(50)]
    eventually(lambda: actor.now_running() == 50)
    actor.set()
    assert [future.result(PATIENCE_S) for future in futures] == list(range(50))
    assert actor.most == 50


def test_a_constructor_may_start_tasks(anywhere: str) -> None:
    actor = Loop()
    eventually(lambda: actor.ticks > 3)


def test_a_coroutine_is_called_and_waited_for_as_any_method(anywhere: str) -> None:
    actor = Loop()
    assert actor.add(2, b=5) == 7
    assert actor.not_awaited() == 5


def test_max_concurrency_limits_coroutines(anywhere: str) -> None:
    actor = parl_remote.with_options(Loop, max_concurrency=3)()
    futures = [in_background(actor.wait, i) for i in range(6)]
    assert not concurrent.futures.wait(futures, 0.1).done
    for future in futures[:2]:
        assert future.cancel()
    in_background(actor.set)
    for future in futures[2:]:
        future.cancel()
    assert actor.most <= 3


def test_cancelling_a_running_coroutine_cancels_its_task(anywhere: str, tmp_path: Any) -> None:
    actor = Loop()
    path = tmp_path / "note"
    future = in_background(actor.patient, str(path))
    assert actor.now_running() == 0
    assert future.cancel()
    eventually(lambda: actor.now_running() == 0 and path.exists() and path.read_text() != "")
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(PATIENCE_S)


def test_the_loop_goes_on_while_a_coroutine_has_returned_a_call_of_another_actor(shared_cluster: None) -> None:
    loop = Loop()
    assert submit(loop.asked_by, Pool(), loop).result(PATIENCE_S) == 0


def test_a_coroutine_that_was_cancelled_before_it_began_leaves_no_warning(anywhere: str) -> None:
    actor = Loop()
    futures = [in_background(actor.wait, i) for i in range(20)]
    assert all(future.cancel() for future in futures)
    eventually(lambda: actor.now_running() == 0)


def test_exceptions_exit_and_cancellation_of_coroutines_are_data(anywhere: str) -> None:
    actor: Any = Loop()
    with pytest.raises(ValueError, match="on purpose"):
        actor.fail()
    with pytest.raises(SystemExit, match="4"):
        actor.leave()
    with pytest.raises(RemoteCallError, match="CancelledError"):
        actor.cancelled_inside()
    assert actor.add(1) == 2


def test_a_background_task_cannot_end_the_actor(shared_cluster: None) -> None:
    actor: Any = Loop()
    before = actor.pid()
    actor.background_leaves()
    assert actor.pid() == before


def test_a_coroutine_where_nothing_is_async_is_refused_with_what_to_do(anywhere: str) -> None:
    with pytest.raises(SerializationError, match="async def"):
        Forgetful().work()


def test_what_runs_when_the_program_lets_go_is_cancelled_and_cleans_up(
    connect: Callable[..., None], tmp_path: Any
) -> None:
    connect()
    actor: Any = Loop()
    path = tmp_path / "note"
    future = in_background(actor.patient, str(path))
    assert actor.now_running() == 0
    parl_remote.disconnect()
    with pytest.raises(ActorLost):
        future.result(PATIENCE_S)
    assert path.read_text() == "cleaned up"


def test_async_results_are_awaited_together(anywhere: str) -> None:
    actor: Any = Loop()

    async def main() -> list[int]:
        return await asyncio.gather(*(in_background(actor.add, i) for i in range(30)))

    assert asyncio.run(main()) == [i + 1 for i in range(30)]
