"""Calls that do not wait: whatever their actors do, who makes them goes on."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import parl_remote
from parl_remote import ActorLost, RemoteFuture, ResultTimeout, submit
from parl_remote._data.calls import Call
from parl_remote._links.call_messages import Kind, pack
from parl_remote._links.loop import Loop
from parl_remote._program.connection import Connection
from parl_remote._transport.unix import UnixChannel

PATIENCE_S = 120.0


@parl_remote.remote_class(wait=False)
class Peer:
    def __init__(self) -> None:
        self.got = 0

    def hold(self, path: str) -> str:
        with open(path) as gate:  # a FIFO: opens when the test opens its end
            return gate.read()

    def push(self, data: Any) -> Any:
        self.got += 1
        return data

    def push_to(self, others: list[Any], times: int, size: int) -> int:
        for _ in range(times):
            for other in others:
                other.push(bytes(size))
        return times

    def count(self) -> int:
        return self.got

    def make(self) -> None:
        self.made = "made"

    def total(self, array: Any, _: Any = None) -> float:
        return float(array.sum())

    def fail(self, size: int) -> None:
        raise ValueError(bytes(size))

    def pid(self) -> int:
        return os.getpid()


@parl_remote.remote_class(wait=False)
class SlowToMake:
    def __init__(self, path: str) -> None:
        with open(path) as gate:
            self.text = gate.read()

    def what(self) -> str:
        return self.text


@pytest.fixture
def gate(tmp_path: Any) -> str:
    path = str(tmp_path / "gate")
    os.mkfifo(path)
    return path


def open_gate(path: str) -> None:
    with open(path, "w"):
        pass


@pytest.mark.parametrize(
    ("peers", "times", "size"),
    [
        (2, 100, 100_000),
        (3, 1_000, 100),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in ((2, 5_000, 8), (3, 2_000, 100), (5, 500, 1_000))),
    ],
)
def test_actors_that_push_to_each_other_without_reading_make_progress(
    connect: Callable[..., None], peers: int, times: int, size: int
) -> None:
    connect(cpu_num=peers)
    actors: list[Any] = [Peer() for _ in range(peers)]
    started = [actor.push_to([other for other in actors if other is not actor], times, size) for actor in actors]
    assert [future.result(PATIENCE_S) for future in started] == [times] * peers
    deadline = time.monotonic() + PATIENCE_S
    counts: list[int] = []
    while counts != [times * (peers - 1)] * peers:  # what others push arrives on connections of theirs
        assert time.monotonic() < deadline, counts
        counts = [actor.count().result(PATIENCE_S) for actor in actors]


@pytest.mark.slow
def test_a_flood_of_calls_to_a_busy_actor_returns_and_arrives_in_order(shared_cluster: None, gate: str) -> None:
    peer: Any = Peer()
    peer.hold(gate)
    futures = [peer.push(number) for number in range(100_000)]
    assert not futures[0].done()
    open_gate(gate)
    assert [future.result(PATIENCE_S) for future in futures] == list(range(100_000))


def test_an_object_that_is_made_in_a_thread_leaves_the_event_loop_free(shared_cluster: None, gate: str) -> None:
    async def main() -> str:
        making = asyncio.create_task(asyncio.to_thread(SlowToMake, gate))
        await asyncio.to_thread(open_gate, gate)  # the constructor waits for it
        actor: Any = await making
        return str(await actor.what())

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == ""


def test_large_arrays_for_a_busy_actor_are_taken_as_they_are_now(shared_cluster: None, gate: str) -> None:
    peer: Any = Peer()
    peer.hold(gate)
    array = np.zeros(100_000)
    futures = []
    for number in range(50):
        array[:] = number
        futures.append(peer.total(array))
    open_gate(gate)
    assert [future.result(PATIENCE_S) for future in futures] == [number * 100_000 for number in range(50)]


def test_arrays_beside_a_future_are_taken_as_they_are_now(anywhere: str) -> None:
    peer: Any = Peer()
    other: Any = Peer()
    array = np.ones(100_000)
    future = peer.total(array, other.push(1))
    array[:] = 7
    assert future.result(PATIENCE_S) == 100_000


def test_cancelled_calls_of_a_flood_are_not_carried_out(shared_cluster: None, gate: str) -> None:
    peer: Any = Peer()
    peer.hold(gate)
    futures = [peer.push(bytes(2_000)) for _ in range(20_000)]  # more than sockets of TCP take
    unsent = peer._parl_ref.outbox.unsent
    assert unsent > 10_000
    assert all(future.cancel() for future in futures)
    assert peer._parl_ref.outbox.unsent == 0
    open_gate(gate)
    assert peer.count().result(PATIENCE_S) <= 20_000 - unsent  # what was on its way may have run


def test_many_calls_of_several_at_a_time_are_cancelled(shared_cluster: None, gate: str) -> None:
    peer: Any = parl_remote.with_options(Peer, max_concurrency=2)()
    held = [peer.hold(gate), peer.hold(gate)]
    futures = [peer.push(number) for number in range(5_000)]
    assert all(future.cancel() for future in futures)
    while not all(future.done() for future in held):
        with contextlib.suppress(OSError):  # it has no reader
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    assert peer.push(7).result(PATIENCE_S) == 7
    assert peer.count().result(PATIENCE_S) < 5_000  # those that had not begun when the actor learned of it


def test_an_attribute_that_a_pending_call_makes_can_be_read(anywhere: str) -> None:
    peer: Any = Peer()
    peer.make()
    assert peer.made == "made"
    with pytest.raises(AttributeError):
        _ = peer.never_made


def test_an_exception_that_holds_much_says_little(shared_cluster: None) -> None:
    peer: Any = Peer()
    error = peer.fail(20_000_000).exception(PATIENCE_S)
    assert isinstance(error, ValueError)
    assert len(error.args[0]) == 20_000_000
    assert "20000000 bytes" in str(error.__cause__)
    assert len(str(error.__cause__)) < 20_000


def test_calls_to_a_lost_actor_end_with_the_cause_at_once(shared_cluster: None, gate: str) -> None:
    peer: Any = Peer()
    pid = peer.pid().result(PATIENCE_S)
    peer.hold(gate)
    futures = [peer.push(bytes(1000)) for _ in range(5_000)]
    os.kill(pid, signal.SIGKILL)
    for future in futures:
        with pytest.raises(ActorLost, match="SIGKILL"):
            future.result(PATIENCE_S)
    with pytest.raises(ActorLost, match="SIGKILL"):
        peer.push(1).result(PATIENCE_S)


def test_answers_that_are_not_awaited_do_not_hold_up_the_actor(shared_cluster: None) -> None:
    peer: Any = Peer()
    kept = [peer.push(bytes(100_000)) for _ in range(200)]  # more than a socket holds, and it is not read
    counted = threading.Event()
    kept[-1].add_done_callback(lambda _: None)
    del kept
    submit(peer.count).add_done_callback(lambda _: counted.set())
    assert counted.wait(PATIENCE_S)


def test_a_program_that_reads_answers_itself_is_not_disturbed_by_the_background() -> None:
    now = [0.0]
    loop = Loop(clock=lambda: now[0])
    near, far = (UnixChannel(end) for end in socket.socketpair())
    connection = Connection(near, background=lambda: loop, lost=lambda _: AssertionError(), on_names=lambda _: None)
    futures = [connection.submit(Call(Kind.CALL, 0, 0)) for _ in range(2)]
    connection.read_unawaited()
    loop.run_once(0.0)

    far.send(pack(Kind.RESULT, 0, 0, futures[0]._call_id))
    assert futures[0].result() is None
    far.send(pack(Kind.RESULT, 0, 0, futures[1]._call_id))
    now[0] += 0.06
    loop.run_once(0.0)
    assert not futures[1]._settled  # who has read since the last look reads this as well
    now[0] += 0.06
    loop.run_once(0.0)
    assert futures[1]._settled
    connection.hang_up()
    far.close()
    loop.close()


def test_a_connection_that_is_closed_while_the_background_begins_to_watch_it_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop()
    near, far = (UnixChannel(end) for end in socket.socketpair())
    lost = ActorLost("closed")
    connection = Connection(near, background=lambda: loop, lost=lambda _: lost, on_names=lambda _: None)
    future = connection.submit(Call(Kind.CALL, 0, 0))
    closed = os.dup(near.fileno())
    os.close(closed)
    monkeypatch.setattr(connection, "fileno", lambda: closed)  # another thread closed it after it was asked for
    future.add_done_callback(lambda _: None)
    loop.run_once(0.0)
    assert future.exception(0.0) is lost
    connection.hang_up()
    far.close()
    loop.close()


def test_the_background_is_not_woken_to_watch_a_connection_nor_disturbed_while_a_thread_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop()
    near, far = (UnixChannel(end) for end in socket.socketpair())
    connection = Connection(near, background=lambda: loop, lost=lambda _: AssertionError(), on_names=lambda _: None)
    monkeypatch.setattr(loop, "call_soon", pytest.fail)
    first, second = (connection.submit(Call(Kind.CALL, 0, 0)) for _ in range(2))
    first.add_done_callback(lambda _: None)
    assert connection.lead()
    far.send(pack(Kind.RESULT, 0, 0, first._call_id))
    loop.run_once(0.0)
    assert not first._settled
    connection.leave()
    loop.run_once(0.0)
    assert first._settled
    far.send(pack(Kind.RESULT, 0, 0, second._call_id))
    loop.run_once(0.0)
    assert not second._settled  # nobody is to be told of it
    monkeypatch.undo()
    connection.hang_up()
    far.close()
    loop.close()


def test_the_background_rests_when_an_actor_whose_states_are_kept_is_lost() -> None:
    loop = Loop()
    near, far = (UnixChannel(end) for end in socket.socketpair())
    connection = Connection(near, background=lambda: loop, lost=lambda _: AssertionError(), on_names=lambda _: None)
    connection.keep_states(lambda _: None)
    loop.run_once(0.0)
    far.close()
    for _ in range(4):
        loop.run_once(0.0)
    assert not loop._calls
    connection.hang_up()
    loop.close()


# -- on event loops ----------------------------------------------------------------------------------------------------


def test_a_task_that_awaits_reads_in_its_own_thread(shared_cluster: None) -> None:
    peer: Any = Peer()

    async def main() -> list[int]:
        future: RemoteFuture[int] = peer.push(1)
        first = await future
        assert future._made_condition is None  # what others would tell of an answer by
        return [first, *await asyncio.gather(*(peer.push(number) for number in range(2, 500)))]

    for _ in range(3):  # another loop each
        assert asyncio.run(main()) == list(range(1, 500))


@pytest.mark.parametrize("who", ["thread", "task"])
def test_a_task_learns_of_an_end_that_came_while_another_was_reading(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    background = Loop()
    near, far = (UnixChannel(end) for end in socket.socketpair())
    lost = ActorLost("closed")
    connection = Connection(near, background=lambda: background, lost=lambda _: lost, on_names=lambda _: None)
    threading.Thread(target=background.run, daemon=True).start()

    def closed_meanwhile(timeout_s: float | None, *, one: bool = False) -> None:
        monkeypatch.undo()
        ends = threading.Thread(target=connection.hang_up)
        ends.start()
        ends.join()
        raise ResultTimeout("nothing has come, before the end")

    async def main() -> BaseException | None:
        waits = asyncio.wrap_future(threads.submit(connection.lead)) if who == "thread" else asyncio.sleep(0)
        future = connection.submit(Call(Kind.CALL, 0, 0))

        async def awaited() -> BaseException | None:
            return (await asyncio.gather(future_of(future), return_exceptions=True))[0]

        task = asyncio.ensure_future(awaited())
        await asyncio.sleep(0.01)
        await waits
        if who == "thread":
            connection.hang_up()
            threads.submit(connection.leave)
        else:
            monkeypatch.setattr(connection, "_take", closed_meanwhile)
            far.send(pack(Kind.RESULT, 0, 0, 2**20))
        return await asyncio.wait_for(task, PATIENCE_S)

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        assert asyncio.run(main()) is lost
    far.close()
    background.stop()


def test_an_answer_that_no_task_awaits_is_read_after_an_event_loop_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    background = Loop()
    near, far = (UnixChannel(end) for end in socket.socketpair())
    connection = Connection(near, background=lambda: background, lost=lambda _: AssertionError(), on_names=print)
    take = connection._take

    def take_beside_the_background(timeout_s: float | None, *, one: bool = False) -> None:
        threads.submit(background.run_once, 0.0).result()
        take(timeout_s, one=one)

    async def main() -> RemoteFuture[Any]:
        watched, awaited = (connection.submit(Call(Kind.CALL, 0, 0)) for _ in range(2))
        watched.add_done_callback(lambda _: None)
        background.run_once(0.0)
        monkeypatch.setattr(connection, "_take", take_beside_the_background)
        far.send(pack(Kind.RESULT, 0, 0, awaited._call_id))
        await asyncio.wait_for(future_of(awaited), PATIENCE_S)
        monkeypatch.undo()
        return watched

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        watched = asyncio.run(main())
    far.send(pack(Kind.RESULT, 0, 0, watched._call_id))
    for _ in range(2):
        background.run_once(0.0)
    assert watched._settled
    connection.hang_up()
    far.close()
    background.close()


def test_awaiting_a_call_on_a_connection_that_is_just_closed_tells_of_its_end() -> None:
    background = Loop()
    near, far = (UnixChannel(end) for end in socket.socketpair())
    lost = ActorLost("closed")
    connection = Connection(near, background=lambda: background, lost=lambda _: lost, on_names=lambda _: None)
    threading.Thread(target=background.run, daemon=True).start()

    async def main() -> None:
        future = connection.submit(Call(Kind.CALL, 0, 0))
        await asyncio.wrap_future(threads.submit(connection.lead))  # so that it does not notice the end itself
        connection.hang_up()
        with pytest.raises(ActorLost):
            await asyncio.wait_for(future_of(future), PATIENCE_S)
        threads.submit(connection.leave)

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        asyncio.run(main())
    far.close()
    background.stop()


async def future_of(future: RemoteFuture[Any]) -> Any:
    return await future


def test_tasks_and_threads_wait_for_the_same_actor(shared_cluster: None) -> None:
    peer: Any = Peer()
    stop = threading.Event()
    answers: list[int] = []

    def block() -> None:
        while not stop.is_set():
            answers.append(peer.push(1).result(PATIENCE_S))

    async def main() -> int:
        return sum([await peer.push(number) for number in range(300)])

    thread = threading.Thread(target=block)
    thread.start()
    try:
        assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == sum(range(300))
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert set(answers) == {1}


def test_two_event_loops_await_calls_of_one_actor(shared_cluster: None) -> None:
    peer: Any = Peer()

    async def main() -> int:
        return sum([await peer.push(number) for number in range(200)])

    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(asyncio.run(main()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert results == [sum(range(200))] * 3


def test_a_task_that_is_cancelled_cancels_its_call(shared_cluster: None, gate: str) -> None:
    peer: Any = Peer()

    async def main() -> RemoteFuture[int]:
        peer.hold(gate)
        future: RemoteFuture[int] = peer.push(1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_awaited(future), 0.05)
        return future

    future = asyncio.run(main())
    assert future.cancelled()
    open_gate(gate)
    assert peer.count().result(PATIENCE_S) == 0


async def _awaited(future: RemoteFuture[int]) -> int:
    return await future


def test_an_actor_that_dies_while_it_is_awaited_raises_its_cause(shared_cluster: None, gate: str) -> None:
    peer: Any = Peer()
    pid = peer.pid().result(PATIENCE_S)

    async def main() -> None:
        future = peer.hold(gate)
        asyncio.get_running_loop().call_later(0.05, os.kill, pid, signal.SIGKILL)
        with pytest.raises(ActorLost, match="SIGKILL"):
            await future

    asyncio.run(main())
