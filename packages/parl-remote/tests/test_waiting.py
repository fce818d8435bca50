"""Waiting for the first of several calls, which the caller's own thread does where it can."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import parl_remote
from faults.polling import eventually
from parl_remote import ActorLost, RemoteFuture, submit
from parl_remote._data.calls import Call
from parl_remote._program import known_actors
from parl_remote._program.connection import Connection
from parl_remote._program.proxy import reference_of
from parl_remote.errors import ChannelClosed

PATIENCE_S = 60.0


@parl_remote.remote_class(wait=False)
class Worker:
    """Waits on a pipe that tests hold open, so that nothing depends on time."""

    def note(self, number: int) -> int:
        return number

    def hold(self, path: str) -> str:
        with open(path) as gate:  # a FIFO: opens when the test opens its end
            return gate.read()

    def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def gates(tmp_path: Path) -> Callable[[], Any]:
    """Makes gates; calls `worker.hold(gate.path)` last until `gate.open()`."""

    class Gate:
        count = 0

        def __init__(self) -> None:
            Gate.count += 1
            self.path = str(tmp_path / f"gate{Gate.count}")
            os.mkfifo(self.path)

        def open(self) -> None:
            with open(self.path, "w") as end:
                end.write("through")

    return Gate


def connection_of(worker: Any) -> Connection:
    reference = reference_of(worker)
    assert reference is not None
    assert isinstance(reference.outbox.path, Connection)
    return reference.outbox.path


def wait_any(futures: list[Any], timeout_s: float | None = PATIENCE_S) -> list[Any]:
    """Waits until one is done, as `parl_core.actors.wait_any` does."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        if done := [future for future in reversed(futures) if future.done()]:
            return done[::-1]
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return []
        RemoteFuture.wait_any(futures, left)


def test_the_first_answer_ends_it_and_no_other_thread_has_read(shared_cluster: None, gates: Callable[[], Any]) -> None:
    workers: list[Any] = [Worker() for _ in range(3)]
    held_gates = [gates() for _ in workers]
    futures = [worker.hold(gate.path) for worker, gate in zip(workers, held_gates, strict=True)]
    for index in (1, 2, 0):
        opener = threading.Thread(target=held_gates[index].open)
        opener.start()
        assert wait_any(futures) == [futures[index]]
        assert all(future._made_condition is None for future in futures)  # what others would tell of an answer by
        opener.join()
        futures[index] = workers[index].hold(gates().path)
    for worker in workers:
        worker.destroy()


def test_of_one_actor_the_answers_come_in_order(shared_cluster: None) -> None:
    worker: Any = Worker()
    futures = [worker.note(number) for number in range(100)]
    seen = 0
    while futures:
        done = wait_any(futures)
        assert done == futures[: len(done)]
        assert [future.result() for future in done] == list(range(seen, seen + len(done)))
        seen, futures = seen + len(done), futures[len(done) :]


def test_it_ends_when_the_time_has_passed(shared_cluster: None, gates: Callable[[], Any]) -> None:
    gate, worker = gates(), Worker()
    future: Any = worker.hold(gate.path)
    began = time.monotonic()
    assert wait_any([future], 0.2) == []
    assert time.monotonic() - began >= 0.2
    gate.open()
    assert wait_any([future]) == [future]


def test_a_killed_actor_ends_it(shared_cluster: None, gates: Callable[[], Any]) -> None:
    workers: list[Any] = [Worker() for _ in range(2)]
    pid = workers[0].pid().result(PATIENCE_S)
    futures = [worker.hold(gates().path) for worker in workers]
    killer = threading.Timer(0.1, os.kill, (pid, signal.SIGKILL))
    killer.start()
    assert wait_any(futures) == [futures[0]]
    killer.join()
    with pytest.raises(ActorLost):
        futures[0].result()
    workers[1].destroy()


@pytest.mark.parametrize("first", ["blocking", "any"])
def test_threads_that_wait_for_the_same_actors_all_get_their_answers(
    shared_cluster: None, gates: Callable[[], Any], first: str
) -> None:
    workers: list[Any] = [Worker() for _ in range(2)]
    held_gates = [gates() for _ in workers]
    held = [worker.hold(gate.path) for worker, gate in zip(workers, held_gates, strict=True)]
    later = [worker.note(number) for number, worker in enumerate(workers)]
    waits: list[Callable[[], Any]] = [
        lambda: held[0].result(PATIENCE_S),
        lambda: wait_any(held[1:]),
        lambda: wait_any(later),
        lambda: wait_any([*held, *later]),
        lambda: later[1].result(PATIENCE_S),
    ]
    with concurrent.futures.ThreadPoolExecutor(len(waits)) as threads:
        found = [threads.submit(wait) for wait in (waits if first == "blocking" else waits[::-1])]
        for gate in held_gates:
            gate.open()
        results = [one.result(PATIENCE_S) for one in found]
    assert all(results)
    assert [future.result(PATIENCE_S) for future in later] == [0, 1]


def test_a_callback_may_wait_for_others(shared_cluster: None) -> None:
    worker: Any = Worker()
    called = threading.Event()
    first, second = worker.note(1), worker.note(2)

    def wait_for_second(_: Any) -> None:
        assert wait_any([second]) == [second]
        called.set()

    first.add_done_callback(wait_for_second)
    assert wait_any([first]) == [first]
    assert called.wait(PATIENCE_S)
    assert worker.note(3).result(PATIENCE_S) == 3


def read(path: str) -> str:
    with open(path) as gate:
        return gate.read()


def steps(*all_of_them: Callable[[], object]) -> Callable[[object], None]:
    """A callback that takes steps, one after the other."""

    def take(_: object) -> None:
        for step in all_of_them:
            step()

    return take


WAITS: dict[str, Callable[[Any], object]] = {
    "wait": lambda future: concurrent.futures.wait([future]),
    "as_completed": lambda future: next(concurrent.futures.as_completed([future])),
    "parl_wait": lambda future: parl_remote.wait([future]),
    "a_function": lambda _: parl_remote.remote_function(abs).submit(-1).result(),
}


@pytest.mark.parametrize("how", list(WAITS))
def test_a_callback_may_wait_although_a_thread_in_result_reads(
    shared_cluster: None, gates: Callable[[], Any], how: str
) -> None:
    worker, gate, called = Worker(), gates(), threading.Event()
    first: Any = worker.hold(gate.path)
    second: Any = worker.note(2)
    first.add_done_callback(steps(lambda: WAITS[how](second), called.set))
    leader = threading.Thread(target=first.result, daemon=True)
    leader.start()
    eventually(lambda: connection_of(worker)._reader == leader.ident)
    gate.open()
    assert called.wait(PATIENCE_S)
    leader.join(PATIENCE_S)
    assert second.result(PATIENCE_S) == 2


def test_a_callback_may_wait_although_an_event_loop_reads(shared_cluster: None, gates: Callable[[], Any]) -> None:
    worker, gate, called = Worker(), gates(), threading.Event()
    first: Any = worker.hold(gate.path)
    second: Any = worker.note(2)

    async def main() -> object:
        waiting = asyncio.ensure_future(first)
        await asyncio.sleep(0)
        first.add_done_callback(steps(lambda: concurrent.futures.wait([second]), called.set))
        await asyncio.to_thread(gate.open)
        return await waiting

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == "through"
    assert called.wait(PATIENCE_S)


def test_a_callback_may_shut_down_the_executor_that_settles_its_future(
    shared_cluster: None, gates: Callable[[], Any]
) -> None:
    gate, called = gates(), threading.Event()
    executor = parl_remote.Executor(1)
    future = executor.submit(read, gate.path)
    future.add_done_callback(steps(executor.shutdown, called.set))
    gate.open()
    assert called.wait(PATIENCE_S)


ENDS = """
import threading
import parl_remote as parl

@parl.remote_class(wait=False)
class Worker:
    def note(self, number):
        return number

def save(future):
    more.result()
    print(future.result(), flush=True)

parl.connect(cpu_num=1)
worker = Worker()
future, more = worker.note(1), worker.note(2)
future.add_done_callback(save)
"""


def test_a_program_that_ends_waits_for_its_callbacks(
    run_program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_program(program=ENDS)
    assert (done.stderr, done.stdout, done.returncode) == ("", "1\n", 0)


def test_actors_that_are_not_reached_by_a_connection_can_be_among_them(anywhere: str) -> None:
    workers: list[Any] = [Worker() for _ in range(2)]
    futures = [submit(worker.note, number) for number, worker in enumerate(workers)]
    while len(wait_any(futures)) < 2:
        pass
    assert [future.result() for future in futures] == [0, 1]


def test_ctrl_c_leaves_no_thread_waiting(shared_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = Worker()
    worker.note(0).result(PATIENCE_S)
    future = worker.note(1)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "has_read_ahead", interrupted)
        with pytest.raises(KeyboardInterrupt):
            RemoteFuture.wait_any([future])
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        assert other.submit(future.result, PATIENCE_S).result(PATIENCE_S) == 1


def test_an_endless_time_is_as_none(shared_cluster: None) -> None:
    worker: Any = Worker()
    futures = [worker.note(1), parl_remote.Executor(1).submit(abs, -1)]
    assert parl_remote.wait(futures, num_returns=2, timeout=math.inf) == (futures, [])
    again = [worker.note(1), parl_remote.Executor(1).submit(abs, -1)]
    assert [future.result(math.inf) for future in again] == [1, 1]


@pytest.fixture
def no_news_of_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for the reason of an end; a connection that a test closes has none."""
    monkeypatch.setattr(known_actors, "CAUSE_PATIENCE_S", 0.1)


@pytest.mark.usefixtures("no_news_of_ends")
def test_a_connection_that_is_closed_meanwhile_ends_it(shared_cluster: None, gates: Callable[[], Any]) -> None:
    worker: Any = Worker()
    future = worker.hold(gates().path)
    closer = threading.Timer(0.1, connection_of(worker).hang_up)
    closer.start()
    assert wait_any([future]) == [future]
    closer.join()
    with pytest.raises(ActorLost):
        future.result()


def test_what_an_actor_answered_before_its_end_is_not_lost_with_it(
    shared_cluster: None, gates: Callable[[], Any]
) -> None:
    worker: Any = Worker()
    connection, pid = connection_of(worker), worker.pid().result(PATIENCE_S)
    note, hold = worker.note, worker.hold  # looking for a method reads the answers that are there
    answered, running = note(7), hold(gates().path)
    # The answer has come; the background may read it, too.
    eventually(lambda: answered._settled or select.select([connection.channel], [], [], 0)[0])
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: connection.channel.fileno() < 0)  # the news of the end has come, by another way than the answer
    assert answered.result(PATIENCE_S) == 7
    with pytest.raises(ActorLost, match="SIGKILL"):
        running.result(PATIENCE_S)


@pytest.mark.usefixtures("no_news_of_ends")
def test_a_callback_runs_although_another_thread_read_while_the_connection_was_closed(
    shared_cluster: None, gates: Callable[[], Any]
) -> None:
    worker: Any = Worker()
    connection, settled, loop_may_go_on = connection_of(worker), threading.Event(), threading.Event()
    worker.hold(gates().path).add_done_callback(lambda _: settled.set())
    loop, loop_is_busy = connection._background(), threading.Event()
    eventually(lambda: connection._loop is loop)
    loop.call_soon(loop_is_busy.set)
    loop.call_soon(lambda: loop_may_go_on.wait(PATIENCE_S))
    assert loop_is_busy.wait(PATIENCE_S)
    with concurrent.futures.ThreadPoolExecutor(1) as reader:
        assert reader.submit(connection.lead).result(PATIENCE_S)
        connection.hang_up()
        reader.submit(connection.leave).result(PATIENCE_S)  # it leaves the rest to the loop, which still watches
    loop_may_go_on.set()
    assert settled.wait(PATIENCE_S)


def test_a_call_that_a_closed_connection_gives_back_is_not_waited_for_there(shared_cluster: None) -> None:
    """Nor is it reported as lost: it did not reach the actor, and another one may follow."""
    worker: Any = Worker()
    assert worker.note(1).result(PATIENCE_S) == 1
    connection, outbox = connection_of(worker), worker._parl_ref.outbox
    connection._background().call_soon(outbox.lost)  # as if the actor were made again
    connection.hang_up()
    future: RemoteFuture[Any] = RemoteFuture(outbox)
    with pytest.raises(ChannelClosed):
        connection.send(Call(1, 0, 0, (), "note"), future)
    assert not future._settled
    threading.Timer(0.1, future._settle, ("by another connection",)).start()
    connection.wait_for(future, PATIENCE_S)  # as a thread does that has waited there since before
    assert future.result(PATIENCE_S) == "by another connection"
