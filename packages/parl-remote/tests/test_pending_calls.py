"""`max_pending_calls`: calls above the limit wait for an answer, or raise."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import threading
from typing import Any

import pytest

import parl_remote
from parl_remote import ActorLost, RemoteFuture, ResultTimeout, TooManyPendingCalls, submit, with_options
from parl_remote._program.outbox import Outbox

PATIENCE_S = 60.0


@parl_remote.remote_class(wait=False, max_pending_calls=4)
class Worker:
    """Waits on a pipe that tests hold open."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    def hold(self, path: str) -> str:
        with open(path) as gate:
            return gate.read()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(self) -> None:
        raise KeyError("nothing there")


@parl_remote.remote_class(wait=False, max_pending_calls=3, max_concurrency=4)
class Threads:
    def __init__(self) -> None:
        self.gate = threading.Event()

    def hold(self) -> None:
        self.gate.wait(PATIENCE_S)

    def open_gate(self) -> None:
        self.gate.set()

    def quick(self, n: int) -> int:
        return n


@parl_remote.remote_class(wait=False)
class Source:
    def number(self, path: str = "") -> int:
        if path:
            with open(path) as gate:
                gate.read()
        return 5


class Gate:
    def __init__(self, path: str) -> None:
        self.path = path
        os.mkfifo(path)

    def open(self) -> None:
        with open(self.path, "w"):
            pass


@pytest.fixture
def gate(tmp_path: Any) -> Gate:
    return Gate(str(tmp_path / "gate"))


def add(worker: Any, n: int = 1) -> RemoteFuture[int]:
    future: RemoteFuture[int] = worker.add(n)
    return future


def fill(worker: Any, gate: Gate) -> list[RemoteFuture[Any]]:
    """All four places taken: the first call waits at the gate."""
    return [worker.hold(gate.path), *(add(worker) for _ in range(3))]


def test_a_call_above_the_limit_waits_until_one_is_answered(
    shared_cluster: None, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker()
    futures = fill(worker, gate)
    later: list[RemoteFuture[int]] = []
    unanswered: list[int] = []

    def one_more() -> None:
        later.append(add(worker))
        unanswered.append(sum(not future.done() for future in futures))

    waits = threading.Event()
    await_answer = Outbox._await_answer

    def waiting(outbox: Outbox, slot: Any) -> None:
        waits.set()
        await_answer(outbox, slot)

    monkeypatch.setattr(Outbox, "_await_answer", waiting)
    thread = threading.Thread(target=one_more)
    thread.start()
    assert waits.wait(PATIENCE_S)
    assert not later
    gate.open()
    thread.join(PATIENCE_S)
    assert unanswered[0] < 4
    assert [future.result(PATIENCE_S) for future in [*futures, *later]] == ["", 1, 2, 3, 4]


def test_answers_need_no_other_reader(anywhere: str) -> None:
    worker = Worker()
    futures = [add(worker) for _ in range(5_000)]
    assert [future.result(PATIENCE_S) for future in futures] == list(range(1, 5_001))


@pytest.mark.slow
def test_memory_stays_bounded_while_results_are_thrown_away(shared_cluster: None) -> None:
    worker: Any = with_options(Worker, max_pending_calls=100)()
    most = 0
    for _ in range(20_000):
        add(worker)
        most = max(most, len(worker._parl_ref.outbox.path._pending))
    assert most <= 100
    assert add(worker).result(PATIENCE_S) == 20_001


def test_a_call_above_the_limit_raises_where_that_was_chosen(shared_cluster: None, gate: Gate) -> None:
    worker = with_options(Worker, when_full="raise")()
    futures = fill(worker, gate)
    with pytest.raises(TooManyPendingCalls, match="4 calls are unanswered") as caught:
        add(worker)
    assert caught.value.limit == 4
    gate.open()
    concurrent.futures.wait(futures, PATIENCE_S)
    assert add(worker).result(PATIENCE_S) == 4


def test_a_cancelled_call_frees_a_slot(shared_cluster: None, gate: Gate) -> None:
    worker = with_options(Worker, when_full="raise")()
    futures = fill(worker, gate)
    assert futures[2].cancel()
    last = add(worker, 10)
    with pytest.raises(TooManyPendingCalls):
        add(worker)
    gate.open()
    assert last.result(PATIENCE_S) in {12, 13}  # the actor may have begun with it before it heard of that


def test_a_call_whose_result_came_too_late_still_has_its_place(shared_cluster: None, gate: Gate) -> None:
    worker = with_options(Worker, when_full="raise")()
    futures = fill(worker, gate)
    with pytest.raises(ResultTimeout):
        futures[0].result(0.05)
    with pytest.raises(TooManyPendingCalls):
        add(worker)
    gate.open()
    assert futures[3].result(PATIENCE_S) == 3


def test_answers_of_a_pool_of_threads_free_slots_in_any_order(anywhere: str) -> None:
    worker = Threads()
    held = [submit(worker.hold) for _ in range(2)]
    futures = [submit(worker.quick, i) for i in range(100)]
    assert [future.result(PATIENCE_S) for future in futures] == list(range(100))
    submit(worker.open_gate).result(PATIENCE_S)
    concurrent.futures.wait(held, PATIENCE_S)


def test_exceptions_and_arguments_that_cannot_be_sent_free_slots(anywhere: str) -> None:
    worker = with_options(Worker, when_full="raise")()
    for _ in range(10):
        with pytest.raises(parl_remote.SerializationError):
            worker.add(threading.Lock())  # type: ignore[arg-type]
        with pytest.raises(KeyError):
            submit(worker.fail).result(PATIENCE_S)
    assert add(worker).result(PATIENCE_S) == 1


def test_a_call_that_waits_for_a_slot_fails_at_the_death(shared_cluster: None, gate: Gate) -> None:
    worker = Worker()
    pid = os.getpid()
    futures: list[Any] = [submit(worker.die), *(add(worker) for _ in range(10))]
    assert pid == os.getpid()
    for future in futures:
        with pytest.raises(ActorLost, match="SIGKILL"):
            future.result(PATIENCE_S)


def test_many_threads_share_the_limit(shared_cluster: None) -> None:
    worker = Worker()
    with concurrent.futures.ThreadPoolExecutor(8) as callers:
        results = list(callers.map(lambda _: add(worker).result(PATIENCE_S), range(2_000)))
    assert sorted(results) == list(range(1, 2_001))


def test_wait_as_completed_and_await_work_with_a_limit(shared_cluster: None) -> None:
    worker = Worker()
    assert len(concurrent.futures.wait([add(worker) for _ in range(50)], PATIENCE_S).done) == 50
    completed = concurrent.futures.as_completed([add(worker) for _ in range(50)], PATIENCE_S)
    assert sorted(future.result() for future in completed) == list(range(51, 101))

    async def main() -> list[int]:
        return [number for _ in range(10) for number in await asyncio.gather(*(add(worker) for _ in range(4)))]

    assert asyncio.run(main()) == list(range(101, 141))


def test_an_event_loop_is_not_kept_from_turning(shared_cluster: None, gate: Gate) -> None:
    worker = Worker()

    async def main() -> None:
        futures = fill(worker, gate)
        with pytest.raises(TooManyPendingCalls, match=r"4 calls are unanswered.*event loop"):
            add(worker)
        await asyncio.to_thread(gate.open)
        assert [await future for future in futures] == ["", 1, 2, 3]
        assert await add(worker) == 4

    asyncio.run(main())


def test_a_callback_may_call_again(shared_cluster: None) -> None:
    worker = Worker()
    done = threading.Event()
    last: list[RemoteFuture[int]] = []

    def again(_: object) -> None:
        last.append(add(worker))
        done.set()

    add(worker).add_done_callback(again)
    assert done.wait(PATIENCE_S)
    assert last[0].result(PATIENCE_S) == 2


def test_calls_that_wait_for_futures_have_places_as_well(shared_cluster: None, gate: Gate) -> None:
    source = Source()
    worker = with_options(Worker, when_full="raise")()
    number: Any = source.number(gate.path)
    futures = [add(worker, number) for _ in range(4)]
    with pytest.raises(TooManyPendingCalls):
        add(worker)
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [5, 10, 15, 20]
    assert add(worker).result(PATIENCE_S) == 21


def test_calls_behind_a_future_go_on_when_there_is_a_slot(shared_cluster: None) -> None:
    source = Source()
    worker = Worker()
    futures = [add(worker, source.number() if i % 3 == 0 else 1) for i in range(60)]  # type: ignore[arg-type]
    assert futures[-1].result(PATIENCE_S) == 20 * 5 + 40


@parl_remote.remote_class
class Borrower:
    """Calls another actor, of which it was given a handle."""

    def fill(self, worker: Any, path: str) -> str:
        futures = [worker.hold(path), *(worker.add(1) for _ in range(3))]
        try:
            worker.add(1)
        except TooManyPendingCalls as error:
            return f"{error.limit} of {len(futures)}"
        return "no limit"


def test_handles_take_the_limit_along(shared_cluster: None, gate: Gate) -> None:
    worker: Any = with_options(Worker, when_full="raise")()
    assert Borrower().fill(worker, gate.path) == "4 of 4"
    opener = threading.Thread(target=gate.open)
    opener.start()
    assert add(worker).result(PATIENCE_S) > 0
    opener.join()
