"""`parl.Queue`: a queue that programs and actors share."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import parl_remote
from faults.polling import eventually
from parl_remote import ActorLost, NoSuchActor, Queue, QueueClosed, SerializationError, submit, with_options
from parl_remote._pools.queue import _of

PATIENCE_S = 60.0


@parl_remote.remote_class(n_cpu=0)
class Hand:
    """Puts and takes in a process of its own."""

    def __init__(self, shared: Queue[Any]) -> None:
        self.shared = shared

    def put(self, items: list[Any]) -> None:
        for item in items:
            self.shared.put(item)

    def take(self, number: int) -> list[Any]:
        return [self.shared.get(timeout=PATIENCE_S) for _ in range(number)]

    def drain(self) -> list[Any]:
        return list(self.shared)

    def work_off(self) -> int:
        number = 0
        for _ in self.shared:
            self.shared.task_done()
            number += 1
        return number


def test_items_come_out_in_the_order_in_which_they_were_put(anywhere: str) -> None:
    shared: Queue[Any] = Queue()
    for item in (1, "two", np.arange(3), {"four": None}):
        shared.put(item)
    assert (shared.qsize(), shared.empty(), shared.full()) == (4, False, False)
    first, second, third, fourth = (shared.get() for _ in range(4))
    assert (first, second, third.tolist(), fourth) == (1, "two", [0, 1, 2], {"four": None})
    assert shared.empty()


def test_without_an_item_or_slot_the_standard_library_s_errors_are_raised(anywhere: str) -> None:
    shared: Queue[int] = Queue(maxsize=1)
    with pytest.raises(queue.Empty):
        shared.get_nowait()
    with pytest.raises(queue.Empty):
        shared.get(timeout=0.01)
    shared.put(1)
    assert (shared.full(), shared.maxsize) == (True, 1)
    with pytest.raises(queue.Full):
        shared.put_nowait(2)
    with pytest.raises(queue.Full, match="0 of 1"):
        shared.put(2, timeout=0.01)
    with_one_place: Queue[int] = Queue(maxsize=1)
    with pytest.raises(queue.Full, match="1 of 3"):
        with_one_place.put_many([1, 2, 3], timeout=0.01)
    assert shared.get(block=False) == 1


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="maxsize"):
        Queue(maxsize=-1)


@pytest.mark.usefixtures("shared_cluster")
def test_actors_share_a_queue_that_was_passed_to_them() -> None:
    shared: Queue[int] = Queue(maxsize=3)
    producers = [Hand(shared) for _ in range(2)]
    consumer = Hand(shared)
    put = [submit(one.put, list(range(i * 100, i * 100 + 50))) for i, one in enumerate(producers)]
    taken = consumer.take(100)
    for future in put:
        future.result(PATIENCE_S)
    assert sorted(taken) == [*range(50), *range(100, 150)]
    for i in range(2):
        of_one = [item for item in taken if item // 100 == i]
        assert of_one == sorted(of_one), "items of one producer keep their order"


@pytest.mark.usefixtures("shared_cluster")
def test_handles_of_one_queue_are_equal_and_have_the_same_hash(anywhere: str) -> None:
    shared: Queue[Any] = Queue()
    shared.put(shared)
    back = shared.get()
    other: Queue[Any] = Queue()
    assert back is not shared
    assert back == shared
    assert {back, shared} == {shared}
    assert other != shared
    assert shared != shared._actor


def test_any_number_of_getters_may_wait_and_a_put_is_still_heard() -> None:
    shared: Queue[int] = Queue()
    got: list[int] = []
    futures = [submit(shared._actor.lend, bytes(1), 1, None, []) for _ in range(2000)]
    shared.put_many(range(2000))
    for future in futures:
        got += future.result(PATIENCE_S)[0]
    assert sorted(got) == list(range(2000))


@pytest.mark.usefixtures("shared_cluster")
def test_a_getter_that_gave_up_takes_nothing() -> None:
    shared: Queue[int] = Queue()
    waiting = submit(shared._actor.lend, bytes(1), 1, None, [])
    assert shared.qsize() == 0  # calls begin in order: the getter waits now
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(queue.Empty):
        shared.get(timeout=0.01)
    shared.put(7)
    assert shared.get(timeout=PATIENCE_S) == 7


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cluster")
def test_a_getter_that_is_given_up_before_the_queue_is_made_takes_nothing() -> None:
    for _ in range(20):
        shared: Queue[int] = Queue()
        submit(shared._actor.lend, bytes(1), 1, None, []).cancel()
        shared.put(7)
        assert shared.qsize() == 1


@pytest.mark.usefixtures("shared_cluster")
def test_an_actor_that_was_killed_while_it_waited_takes_nothing() -> None:
    shared: Queue[int] = Queue()
    victim = Hand(shared)
    waiting = submit(victim.take, 1)
    parl_remote.kill(victim)
    with pytest.raises(ActorLost):
        waiting.result(PATIENCE_S)
    for item in range(5):
        shared.put(item)
    assert [shared.get(timeout=PATIENCE_S) for _ in range(5)] == list(range(5))


@pytest.mark.usefixtures("shared_cluster")
def test_a_closed_queue_gives_what_it_has_and_ends_loops() -> None:
    shared: Queue[int] = Queue(maxsize=2)
    consumer = Hand(shared)
    everything = submit(consumer.drain)
    shared.put_many(range(10))
    shared.close()
    assert everything.result(PATIENCE_S) == list(range(10))
    with pytest.raises(QueueClosed):
        shared.get()
    with pytest.raises(QueueClosed, match="0 of 1"):
        shared.put(1)
    assert list(shared) == []


@pytest.mark.usefixtures("shared_cluster")
def test_closing_wakes_waiting_threads() -> None:
    empty: Queue[int] = Queue()
    full: Queue[int] = Queue(maxsize=1)
    full.put(1)
    getting, putting = submit(empty._actor.lend, bytes(1), 1, None, []), submit(full._actor.put, [2], None)
    empty.close()
    full.close()
    assert getting.result(PATIENCE_S) == ([], True)
    assert putting.result(PATIENCE_S) == (0, True)


@pytest.mark.usefixtures("shared_cluster")
def test_join_waits_for_all_that_was_put() -> None:
    shared: Queue[int] = Queue()
    shared.put_many(range(20))
    assert shared.join(timeout=0.01) is False
    workers = [Hand(shared) for _ in range(2)]
    done = [submit(worker.work_off) for worker in workers]
    assert shared.join(timeout=PATIENCE_S) is True
    shared.close()
    assert sum(future.result(PATIENCE_S) for future in done) == 20
    with pytest.raises(ValueError, match="too many times"):
        shared.task_done()


@pytest.mark.usefixtures("shared_cluster")
def test_many_items_go_with_one_call() -> None:
    shared: Queue[int] = Queue()
    shared.put_many(range(10))
    assert shared.get_many(4) == [0, 1, 2, 3]
    assert shared.get_many(100) == [4, 5, 6, 7, 8, 9]
    with pytest.raises(queue.Empty):
        shared.get_many(5, timeout=0.01)


@pytest.mark.usefixtures("shared_cluster")
def test_an_event_loop_is_not_blocked_by_a_queue() -> None:
    async def both() -> list[int]:
        shared: Queue[int] = Queue(maxsize=1)

        async def produce() -> None:
            for item in range(20):
                await shared.put_async(item)
            shared.close()

        task = asyncio.ensure_future(produce())
        found = [item async for item in shared]
        await task
        with pytest.raises(QueueClosed):
            await shared.get_async(timeout=0)
        return found

    assert asyncio.run(both()) == list(range(20))


@pytest.mark.parametrize("is_read", [True, False])
def test_what_a_cancelled_getter_would_have_got_comes_next(anywhere: str, is_read: bool) -> None:
    async def program() -> list[int]:
        shared: Queue[int] = Queue()
        hand = Hand(shared)
        getting = asyncio.ensure_future(shared.get_async())
        await asyncio.sleep(0)  # until it waits
        hand.put([1, 2])  # type: ignore[func-returns-value]
        if is_read:
            assert shared.qsize() == 1
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        return [shared.get(timeout=PATIENCE_S), await shared.get_async(PATIENCE_S)]

    assert asyncio.run(program()) == [1, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cluster")
@pytest.mark.parametrize("getters", [1, 3])
def test_cancelled_getters_and_putters_lose_and_repeat_nothing(getters: int) -> None:
    chance = random.Random(getters)
    over = threading.Event()

    async def get_all(shared: Queue[tuple[int, int]], found: list[tuple[int, int]]) -> None:
        while not over.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                found.append(await asyncio.wait_for(shared.get_async(), chance.random() * 0.003))

    async def put(shared: Queue[tuple[int, int]], putter: int, sure: set[tuple[int, int]]) -> None:
        for number in range(100):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(shared.put_async((putter, number)), chance.random() * 0.01)
                sure.add((putter, number))

    async def program() -> None:
        shared: Queue[tuple[int, int]] = Queue(maxsize=3)
        sure: set[tuple[int, int]] = set()
        found: list[list[tuple[int, int]]] = [[] for _ in range(getters)]
        getting = [asyncio.ensure_future(get_all(shared, one)) for one in found]
        await asyncio.gather(*(put(shared, putter, sure) for putter in range(2)))
        over.set()
        await asyncio.gather(*getting)
        rest = [shared.get() for _ in range(shared.qsize())]
        everything = [item for one in (*found, rest) for item in one]
        assert len(everything) == len(set(everything))
        assert sure <= set(everything)
        if getters == 1:  # else one may have got the next item before another one gave up
            for putter in range(2):
                of_one = [number for by, number in everything if by == putter]
                assert of_one == sorted(of_one)

    asyncio.run(program())


@pytest.mark.usefixtures("shared_cluster")
def test_handles_and_put_values_travel_through_a_queue() -> None:
    shared: Queue[Any] = Queue()
    shared.put(Hand(Queue()))
    reference = parl_remote.put(np.ones(300_000))
    shared.put(reference)
    del reference
    hand = shared.get()
    hand.put([1])
    assert hand.take(1) == [1]
    assert shared.get().get().sum() == 300_000


@pytest.mark.usefixtures("shared_cluster")
def test_threads_of_one_program_share_a_handle() -> None:
    shared: Queue[int] = Queue(maxsize=2)
    taken: list[int] = []
    threads = [threading.Thread(target=lambda: taken.extend(shared)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for item in range(100):
        shared.put(item)
    shared.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(taken) == list(range(100))


class Lender:
    """Stands in for the queue's actor; `meanwhile` runs as another thread would while a call is in progress."""

    def __init__(self) -> None:
        self.lent: set[bytes] = set()
        self.meanwhile: Callable[[], object] | None = None

    def lend(self, ticket: bytes, most: int, timeout_s: float | None, got: list[bytes]) -> tuple[list[int], bool]:
        self.lent.difference_update(got)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        self.lent.add(ticket)
        return [most], False


def test_items_that_two_threads_take_with_one_handle_are_confirmed() -> None:
    lender = Lender()
    shared = _of(lender)
    shared.get()
    lender.meanwhile = shared.get
    shared.get()
    shared.get()
    assert len(lender.lent) == 1


def test_the_end_of_a_handle_confirms_what_it_has_got(anywhere: str) -> None:
    shared: Queue[int] = Queue()
    other = _of(shared._actor)
    shared.put(1)
    assert other.get() == 1
    del other
    eventually(lambda: not shared._actor._lent)


def test_a_named_queue_is_found_and_killed(connect: Callable[..., None]) -> None:
    connect(cpu_num=1)
    shared: Queue[int] = Queue(name="samples")
    shared.put(3)
    assert Queue.named("samples").get() == 3
    with pytest.raises(NoSuchActor):
        Queue.named("sample")
    shared.kill()
    with pytest.raises(ActorLost):
        shared.put(1)


def test_an_actor_that_is_not_a_queue_is_no_named_queue(anywhere: str) -> None:
    shared: Queue[int] = Queue()
    hand = with_options(Hand, name="hand")(shared)
    with pytest.raises(NoSuchActor, match="'hand' is not a queue, but <remote Hand"):
        Queue.named("hand")
    del hand


def test_an_item_that_cannot_be_sent_is_named_as_in_the_call(anywhere: str) -> None:
    shared: Queue[Any] = Queue()
    lock = threading.Lock()
    for put, told in (
        (lambda: shared.put(lock), r"argument 'item' \(a lock\) of Queue.put\(\) cannot be sent to the receiver"),
        (
            lambda: shared.put_nowait({"a": lock}),
            r"argument 'item' \(a dict\) of Queue.put\(\) .*item\['a'\] is a lock",
        ),
        (
            lambda: shared.put_many([1, lock]),
            r"argument 'items' \(a list\) of Queue.put_many\(\) .*items\[1\] is a lock",
        ),
        (lambda: asyncio.run(shared.put_async(lock)), r"argument 'item' \(a lock\) of Queue.put_async\(\)"),
        (lambda: shared.put(submit(shared._actor.size)), r"argument 'item' .*of Queue.put\(\): the future of size\(\)"),
    ):
        with pytest.raises(SerializationError, match=told):
            put()
    assert shared.empty()


def test_a_queue_takes_no_slot(connect: Callable[..., None]) -> None:
    connect(cpu_num=1)
    shared: Queue[int] = Queue()
    one = with_options(Hand, n_cpu=1, lease_timeout_s=PATIENCE_S)(shared)
    one.put([1])
    assert shared.get() == 1


def test_a_program_that_only_makes_a_queue_needs_no_connect() -> None:
    program = """
        import parl_remote as parl
        shared = parl.Queue()
        shared.put(1)
        print(shared.get())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr
