"""`parl.ActorPool`: items to whichever actor is free, and none is lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import itertools
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import parl_remote
from parl_remote import ActorError, ActorLost, ActorPool, ItemLost, RemoteFuture, ResultTimeout, with_options
from parl_remote._item_reader import ItemReader
from parl_remote._pools import dispatcher

PATIENCE_S = 60.0


@parl_remote.remote_class
class Worker:
    """Does what items say."""

    def __init__(self, offset: int = 0, *, factor: int = 1) -> None:
        self.offset = offset
        self.factor = factor
        self.done = 0

    def work(self, item: int, more: int = 0) -> int:
        self.done += 1
        return (item + self.offset) * self.factor + more

    def both(self, settings: dict[str, int], array: Any) -> tuple[int, float]:
        return settings["item"], float(array[-1])

    def last_of(self, array: Any) -> float:
        return float(array[-1])

    def odd_fails(self, item: int) -> int:
        if item % 2:
            raise KeyError(item)
        return item

    def next_of(self, items: list[int]) -> int:
        return next(iter(items))

    def pid(self, _: object = None) -> int:
        return os.getpid()

    def die_once(self, item: tuple[int, str]) -> int:
        """Kills its actor the first time that an item with a path comes."""
        number, path = item
        if path and not os.path.exists(path):
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    def deadly(self, item: int, log: str = "") -> int:
        if item == 3:
            if log:
                with open(log, "a") as file:
                    file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    def tell_and_hold(self, out: str, path: str) -> str:
        Path(out).write_text(str(os.getpid()))
        return self.hold(path)

    def hold(self, path: str) -> str:
        with open(path) as gate:
            return gate.read()


@parl_remote.remote_class
class OwnMethod:
    def __init__(self) -> None:
        self.number = 1
        self.own = self._last

    def _last(self, array: Any, more: int) -> float:
        return float(array[-1]) + more


@parl_remote.remote_class(wait=False, max_concurrency=8)
class Threads:
    def __init__(self) -> None:
        self.barrier = threading.Barrier(4)

    def meet(self, item: int) -> int:
        self.barrier.wait(PATIENCE_S)
        return item


@parl_remote.remote_class
class Gone:
    def lost(self, item: int) -> int:
        from parl_remote import DeathCause, DeathKind

        raise ActorLost(DeathCause(DeathKind.EXIT), class_name=f"another one, of item {item}")


@parl_remote.remote_class(wait=False, max_pending_calls=1, when_full="raise")
class Bounded:
    def work(self, item: int) -> int:
        return item


class Broken:
    """A class whose objects can be made twice."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> Any:
        self.made += 1
        if self.made > 1:
            raise OSError("no more of them")
        return Worker()


class LateItems(ItemReader):
    """Expects every item to be late, after all results that have been begun."""

    patience_s = property(lambda _: PATIENCE_S, lambda *_: None)  # type: ignore[assignment]

    def is_late(self, now: float) -> bool:
        return True


def counted(items: Any, taken: list[Any]) -> Iterator[Any]:
    for item in items:
        taken.append(item)
        yield item


# -- map ---------------------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_items(anywhere: str) -> None:
    with ActorPool(Worker, 3, args=(10,), kwargs={"factor": 2}) as pool:
        assert list(pool.map("work", range(100))) == [2 * (i + 10) for i in range(100)]


def test_all_actors_take_part(shared_cluster: None) -> None:
    with ActorPool([Worker() for _ in range(3)]) as pool:
        assert len(set(pool.map("pid", range(60)))) == 3


def test_items_are_taken_as_they_are_needed_and_may_be_endless(anywhere: str) -> None:
    taken: list[int] = []
    with ActorPool(Worker, 2) as pool:
        results = pool.map("work", counted(itertools.count(), taken), ahead=5)
        assert not taken
        assert list(itertools.islice(results, 3)) == [0, 1, 2]
        assert len(taken) <= 3 + 5


def test_items_may_have_no_length_although_their_class_has(anywhere: str) -> None:
    with ActorPool(Worker, 2, args=(10,)) as pool:
        assert list(itertools.islice(pool.map("work", range(10**20)), 3)) == [10, 11, 12]


@pytest.mark.parametrize("name", ["map", "map_unordered"])
def test_a_result_comes_before_an_item_that_is_expected_to_be_late(
    anywhere: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("parl_remote._pools.pool.ItemReader", LateItems)
    came: list[int] = []

    def items() -> Iterator[int]:
        yield 2
        yield came[0] + 1
        yield came[1] + 1

    with ActorPool(Worker, 2) as pool:
        results = getattr(pool, name)("work", items())
        while len(came) < 3:
            came.append(next(results))
    assert came == [2, 3, 4]


def test_nothing_comes_of_nothing(anywhere: str) -> None:
    with ActorPool(Worker, 1) as pool:
        assert list(pool.map("work", [])) == []
        assert list(pool.map_unordered("work", iter(()))) == []


def test_unordered_results_are_all_there(anywhere: str) -> None:
    with ActorPool(Worker, 3) as pool:
        assert sorted(pool.map_unordered("work", range(200))) == list(range(200))


def test_unordered_results_do_not_wait_for_a_slow_item(shared_cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def call(actor: Any, item: int) -> Any:
        return actor.hold(str(gate)) if item == 0 else actor.work(item)

    with ActorPool(Worker, 2, per_actor=1) as pool:
        results = pool.map_unordered(call, range(10))
        assert sorted(itertools.islice(results, 9)) == list(range(1, 10))
        gate.write_text("late")
        assert list(results) == ["late"]


@pytest.mark.parametrize("map_name", ["map", "map_unordered"])
def test_an_event_loop_runs_while_it_waits_for_results(shared_cluster: None, tmp_path: Path, map_name: str) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    async def open_gate() -> None:
        gate.write_text("opened")

    async def main() -> None:
        with ActorPool(Worker, 1) as pool:
            results = getattr(pool, map_name)("hold", [str(gate)], timeout_s=0.01)
            with pytest.raises(ResultTimeout, match=r"within 0\.01 s; ask again"):
                await anext(results)
            waiting = asyncio.ensure_future(anext(getattr(pool, map_name)("work", [3])))
            await asyncio.gather(waiting, open_gate())
            assert (waiting.result(), [result async for result in results]) == (3, ["opened"])

    asyncio.run(main())


@pytest.mark.parametrize("call", ["work", Worker.work, lambda actor, item: actor.work(item)])
def test_work_is_a_name_a_method_or_a_function(anywhere: str, call: Any) -> None:
    with ActorPool(Worker, 2) as pool:
        assert list(pool.map(call, range(5))) == list(range(5))


def test_a_function_may_give_more_than_the_item(anywhere: str) -> None:
    with ActorPool(Worker, 2) as pool:
        assert list(pool.map(lambda actor, item: actor.work(item, more=100), range(3))) == [100, 101, 102]


def test_a_function_that_waits_is_refused_with_what_to_return(anywhere: str) -> None:
    with ActorPool(Worker, 1) as pool, pytest.raises(TypeError, match="must return the call's future"):
        list(pool.map(lambda actor, item: actor.work(item).result(), [1]))


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_an_item_raises_at_its_place_and_the_others_are_there(anywhere: str) -> None:
    with ActorPool(Worker, 2) as pool:
        results = pool.map("odd_fails", range(6))
        found: list[Any] = []
        for _ in range(6):
            try:
                found.append(next(results))
            except KeyError as error:
                found.append(str(error))
        assert found == [0, "1", 2, "3", 4, "5"]
        assert next(results, "end") == "end"


def test_an_item_that_raises_stop_iteration_does_not_end_the_results(anywhere: str) -> None:
    with ActorPool(Worker, 1) as pool:
        results = pool.map("next_of", [[1], [], [3]])
        assert next(results) == 1
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(results)
        assert list(results) == [3]


@pytest.mark.parametrize("ahead", [1, 5])
def test_items_that_raise_while_they_are_made_raise_there(anywhere: str, ahead: int) -> None:
    def items() -> Iterator[int]:
        yield from (1, 2)
        raise OSError("the disk is gone")

    with ActorPool(Worker, 1) as pool:
        results = pool.map("work", items(), ahead=ahead)
        assert [next(results), next(results)] == [1, 2]
        with pytest.raises(OSError, match="disk"):
            next(results)
        assert list(results) == []


def test_no_item_is_lost_when_actors_die(share_cluster: Callable[[int], None], tmp_path: Path) -> None:
    share_cluster(3)
    items = [(i, str(tmp_path / str(i)) if i % 7 == 0 else "") for i in range(50)]
    with ActorPool(Worker, 3) as pool:
        assert list(pool.map("die_once", items)) == list(range(50))
        assert len(pool) <= 3


def test_actors_that_were_given_and_die_are_not_replaced(shared_cluster: None, tmp_path: Path) -> None:
    actors = [Worker() for _ in range(3)]
    items = [(i, str(tmp_path / "once") if i == 4 else "") for i in range(30)]
    with ActorPool(actors) as pool:
        assert sorted(pool.map_unordered("die_once", items)) == list(range(30))
        assert len(pool) == 2


@pytest.mark.parametrize(
    ("retries", "per_actor", "deaths"), [(0, 1, "1 actor died"), (2, 1, "3 actors died"), (2, 2, "3 actors died")]
)
def test_an_item_that_kills_actors_is_given_up_with_its_index_and_the_cause(
    share_cluster: Callable[[int], None], tmp_path: Path, retries: int, per_actor: int, deaths: str
) -> None:
    share_cluster(2)
    log = tmp_path / "log"
    with ActorPool(Worker, 2, retries=retries, per_actor=per_actor) as pool:
        results = pool.map(lambda actor, item: actor.deadly(item, str(log)), range(8))
        assert list(itertools.islice(results, 3)) == [0, 1, 2]
        with pytest.raises(ItemLost, match=f"item 3 was given up: {deaths} while") as caught:
            next(results)
        assert list(results) == [4, 5, 6, 7]
    assert (caught.value.index, caught.value.attempts) == (3, retries + 1)
    assert isinstance(caught.value.__cause__, ActorLost)
    assert caught.value.__cause__.cause.signal == signal.SIGKILL
    once_in_company = per_actor > 1
    assert retries + 1 <= len(log.read_text()) <= retries + 1 + once_in_company


def test_an_item_is_not_lost_with_an_idle_actor_that_is_dead(
    share_cluster: Callable[[int], None], await_end: Callable[..., float]
) -> None:
    share_cluster(1)
    with ActorPool(Worker, 1, retries=0) as pool:
        for _ in range(3):
            number = pool.submit("pid").result(PATIENCE_S)
            os.kill(number, signal.SIGKILL)
            await_end([number])
            assert pool.submit("work", 1).result(PATIENCE_S) == 1


def test_without_actors_every_item_says_so(shared_cluster: None) -> None:
    with ActorPool([Worker()], retries=5) as pool:
        with pytest.raises(ActorError, match="no actors any more") as caught:
            list(pool.map("deadly", [3, 1]))
        assert isinstance(caught.value.__cause__, ActorLost)
        assert len(pool) == 0
        pool.push(Worker())
        assert pool.submit("work", 7).result(PATIENCE_S) == 7


def test_a_pool_that_cannot_replace_its_actors_says_why(shared_cluster: None) -> None:
    with ActorPool(Broken(), 1, retries=1) as pool:
        with pytest.raises(ActorError, match="no actors any more") as caught:
            list(pool.map("deadly", [3]))
        assert isinstance(caught.value.__cause__, OSError)


def test_the_items_of_a_program_that_disconnects_fail_and_nothing_is_replaced(
    connect: Callable[..., None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    connect()
    with contextlib.closing(ActorPool(Worker, 1)) as pool:
        future = pool.submit("hold", str(gate))
        parl_remote.disconnect()
        with pytest.raises(ActorError, match="no actors any more") as caught:
            future.result(PATIENCE_S)
    assert isinstance(caught.value.__cause__, ActorLost)
    assert "could not replace" not in caplog.text


def test_an_actors_own_report_of_another_actors_death_is_an_exception_like_any(shared_cluster: None) -> None:
    with ActorPool(Gone, 1) as pool:
        with pytest.raises(ActorLost, match="another one"):
            list(pool.map("lost", [1]))
        assert len(pool) == 1


def test_a_result_that_comes_too_late_can_be_waited_for_again(shared_cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with ActorPool(Worker, 1) as pool:
        for mapped in (pool.map, pool.map_unordered):
            results = mapped("hold", [str(gate)], timeout_s=0.05)
            with pytest.raises(ResultTimeout, match="ask again"):
                next(results)
            opener = threading.Thread(target=gate.write_text, args=("now",))
            opener.start()
            for _ in range(400):
                try:
                    assert next(results) == "now"
                    break
                except ResultTimeout:
                    pass
            else:
                pytest.fail("the result never came")
            opener.join()


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: ActorPool(Worker), ValueError, "needs the number of its actors"),
        (lambda: ActorPool([]), ValueError, "at least one"),
        (lambda: ActorPool([1, 2]), TypeError, "not 1"),
        (lambda: ActorPool(cast(Any, 5)), TypeError, "not of 5"),
        (lambda: ActorPool(Worker, 0), ValueError, "size"),
        (lambda: ActorPool([Worker()], 2), ValueError, "a pool that makes its actors itself"),
        (lambda: ActorPool(cast(Any, Worker())), TypeError, "list of remote objects"),
        (lambda: ActorPool([Worker()], per_actor=0), ValueError, "per_actor"),
        (lambda: ActorPool([Worker()], retries=-1), ValueError, "retries"),
        (lambda: ActorPool([Worker()]).map(cast(Any, 7), []), TypeError, "not 7"),
        (lambda: ActorPool([Worker()]).map("work", [], ahead=0), ValueError, "ahead"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(
    shared_cluster: None, make: Callable[[], object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        make()


# -- single items ------------------------------------------------------------------------------------------------------


def test_a_single_item_gives_a_future(anywhere: str) -> None:
    with ActorPool(Worker, 2) as pool:
        futures = [pool.submit("work", i, more=1) for i in range(10)]
        assert [future.result(PATIENCE_S) for future in futures] == list(range(1, 11))
        assert futures[0].get() == 1

        async def main() -> Any:
            return await asyncio.gather(*(pool.submit("work", i) for i in range(5)))

        assert asyncio.run(main()) == list(range(5))


def test_what_has_not_begun_can_be_cancelled(shared_cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with ActorPool(Worker, 1, per_actor=1) as pool:
        held = pool.submit("hold", str(gate))
        last = pool.submit("work", 1)
        assert last.cancel()
        gate.write_text("x")
        assert held.result(PATIENCE_S) == "x"
        assert concurrent.futures.wait([last], PATIENCE_S).done == {last}


def test_arguments_that_cannot_be_sent_are_the_items_own_trouble(anywhere: str) -> None:
    with ActorPool(Worker, 1) as pool:
        with pytest.raises(parl_remote.SerializationError):
            pool.submit("work", threading.Lock()).result(PATIENCE_S)
        assert pool.submit("work", 2).result(PATIENCE_S) == 2


def test_arguments_are_those_of_the_call(anywhere: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    settings, array = {"item": 0}, np.zeros(1_000_000)
    with ActorPool(Worker, 1, per_actor=1) as pool:
        held = pool.submit("hold", str(gate))
        futures = []
        for number in range(3):
            settings["item"] = number
            array[:] = number
            futures.append(pool.submit("both", settings, array=array))
        gate.write_text("x")
        assert held.result(PATIENCE_S) == "x"
        assert [future.result(PATIENCE_S) for future in futures] == [(0, 0.0), (1, 1.0), (2, 2.0)]


@pytest.mark.parametrize("name", ["map", "map_unordered"])
def test_items_may_share_a_buffer(anywhere: str, name: str) -> None:
    def items() -> Iterator[Any]:
        array = np.zeros(100_000)
        for number in range(20):
            array[:] = number
            yield array

    with ActorPool(Worker, 2) as pool:
        assert sorted(getattr(pool, name)("last_of", items())) == [float(number) for number in range(20)]


def test_an_item_that_runs_again_is_the_one_that_was_taken(shared_cluster: None, tmp_path: Path) -> None:
    item = [7, str(tmp_path / "died")]
    with ActorPool(Worker, 1) as pool:
        future = pool.submit("die_once", item)
        item[:] = [8, ""]
        assert future.result(PATIENCE_S) == 7


def test_arguments_may_be_futures_and_handles(anywhere: str) -> None:
    with ActorPool(Worker, 1) as pool:
        seven = pool.submit("work", 7)
        assert pool.submit("work", seven, more=pool.submit("work", 1)).result(PATIENCE_S) == 8
        assert pool.submit("pid", parl_remote.put(np.zeros(1_000_000))).result(PATIENCE_S)
        with pytest.raises(parl_remote.SerializationError, match="a future cannot be sent inside other things"):
            pool.submit("work", [seven]).result(PATIENCE_S)


def test_a_method_that_only_the_object_has_gets_the_arguments_of_the_call(anywhere: str) -> None:
    with ActorPool([OwnMethod()]) as pool:
        array = np.zeros(100_000)
        future = pool.submit("own", array, more=1)
        array[:] = 5
        assert future.result(PATIENCE_S) == 1.0
        with pytest.raises(TypeError, match="'number' is no method of"):
            pool.submit("number", 1).result(PATIENCE_S)


def test_two_maps_and_single_items_share_the_actors(anywhere: str) -> None:
    with ActorPool(Worker, 2) as pool:
        first, second = pool.map("work", range(0, 50)), pool.map_unordered("work", range(50, 100))
        found = [*itertools.chain.from_iterable(zip(first, second, strict=True))]
        single = pool.submit("work", 100).result(PATIENCE_S)
        assert sorted([*found, single]) == list(range(101))


def test_threads_may_use_one_pool(shared_cluster: None) -> None:
    with ActorPool(Worker, 2) as pool, concurrent.futures.ThreadPoolExecutor(4) as threads:
        sums = list(threads.map(lambda k: sum(pool.map("work", range(k, k + 100))), range(8)))
    assert sums == [sum(range(k, k + 100)) for k in range(8)]


# -- members -----------------------------------------------------------------------------------------------------------


def test_actors_come_and_go(anywhere: str) -> None:
    pool = ActorPool([Worker(1), Worker(2)])
    assert len(pool) == 2
    taken = pool.pop(PATIENCE_S)
    assert taken.offset in {1, 2}
    assert len(pool) == 1
    pool.push(taken)
    assert len(pool) == len(pool.actors) == 2
    pool.close()


def test_an_actor_is_taken_out_when_it_has_finished(shared_cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with ActorPool([Worker()]) as pool:
        held = pool.submit("hold", str(gate))
        with pytest.raises(ResultTimeout, match="became free"):
            pool.pop(0.05)
        gate.write_text("done")
        assert pool.pop(PATIENCE_S).work(3) == 3
        assert held.result(PATIENCE_S) == "done"
        with pytest.raises(ActorError, match="no actor"):
            pool.pop(PATIENCE_S)
        pool.push(Worker())


def test_an_actor_that_nobody_waits_for_after_an_interrupt_stays(
    shared_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with ActorPool(Worker, 1) as pool:
        held = pool.submit("hold", str(gate))

        def interrupted(self: Any, timeout: float | None = None) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(concurrent.futures.Future, "result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.pop()
        gate.write_text("done")
        assert held.result(PATIENCE_S) == "done"
        assert pool.submit("work", 1).result(PATIENCE_S) == 1
        idle = pool.actors

        def late(self: Any, timeout: float | None = None) -> Any:
            concurrent.futures.wait([self], PATIENCE_S)
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(concurrent.futures.Future, "result", late)
        with pytest.raises(KeyboardInterrupt):
            pool.pop()
        assert pool.actors == idle


def test_an_interrupt_of_the_wait_at_its_end_ends_a_pool(
    share_cluster: Callable[[int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_cluster(1)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    pool = ActorPool(Worker, 1)
    held = pool.submit("hold", str(gate))

    def interrupted(self: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dispatcher.Dispatcher, "await_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.close()
    with pytest.raises((ActorError, concurrent.futures.CancelledError)):
        held.result(PATIENCE_S)
    assert Worker().work(1) == 1, "the pool's actor has given its CPU back"


def test_what_comes_beside_the_end_of_a_pool_is_refused(anywhere: str) -> None:
    pool = ActorPool(Worker, 1)
    ending = pool._open()
    ending.stop()
    for late in (
        lambda: ending.do(dispatcher.Task(0, lambda _: None)),
        ending.take_out,
        lambda: pool.submit("work", 1),
    ):
        with pytest.raises(ActorError, match="closed"):
            late()
    pool.close(wait=False)


@pytest.mark.parametrize("name", ["map", "map_unordered"])
def test_a_generator_of_items_ends_with_their_results(anywhere: str, name: str) -> None:
    ended: list[int] = []

    def numbers() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            ended.append(threading.get_ident())

    with ActorPool(Worker, 1) as pool, getattr(pool, name)("work", numbers()) as results:
        assert next(results) == 0
        assert ended == []
        results.close()
        assert ended == [threading.get_ident()]
        assert list(results) == []


def test_a_thread_that_waits_for_an_actor_of_a_closed_pool_is_told(shared_cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    pool = ActorPool(Worker, 1)
    pool.submit("hold", str(gate))
    with concurrent.futures.ThreadPoolExecutor() as other:
        popped = other.submit(pool.pop)
        while not (pool._dispatcher and pool._dispatcher._requests):
            time.sleep(0.001)
        pool.close(wait=False)
        with pytest.raises(ActorError, match="closed"):
            popped.result(PATIENCE_S)
    gate.write_text("done")


def test_an_item_goes_on_when_nobody_waits_for_the_actor_any_more(shared_cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with ActorPool([Worker()]) as pool, concurrent.futures.ThreadPoolExecutor(1) as other:
        held = pool.submit("hold", str(gate))
        popped = other.submit(pool.pop, 0.2)
        dispatcher = pool._dispatcher
        assert dispatcher is not None
        while not popped.done() and not next(iter(dispatcher._members)).is_reserved:
            time.sleep(0.001)
        last = pool.submit("work", 1)
        with pytest.raises(ResultTimeout, match="became free"):
            popped.result(PATIENCE_S)
        gate.write_text("done")
        assert held.result(PATIENCE_S) == "done"
        assert last.result(PATIENCE_S) == 1


def test_a_closed_pool_says_so(anywhere: str) -> None:
    pool = ActorPool(Worker, 1)
    pool.close()
    pool.close()
    assert len(pool) == 0
    for use in (lambda: pool.submit("work", 1), lambda: pool.map("work", [1]), lambda: pool.push(Worker()), pool.pop):
        with pytest.raises(ActorError, match="closed"):
            use()


def test_leaving_the_block_waits_for_what_was_submitted(anywhere: str) -> None:
    with ActorPool(Worker, 2) as pool:
        futures = [pool.submit("work", i) for i in range(50)]
    assert all(future.done() for future in futures)


def test_an_error_in_the_block_cancels_what_has_not_begun(shared_cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    futures: list[Any] = []

    def leave_early() -> None:
        with ActorPool(Worker, 1, per_actor=1) as pool:
            futures.extend((pool.submit("hold", str(gate)), pool.submit("work", 1)))
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        leave_early()
    held, last = futures
    concurrent.futures.wait([held, last], PATIENCE_S)
    with pytest.raises((ActorError, concurrent.futures.CancelledError)):
        held.result()
    with pytest.raises(concurrent.futures.CancelledError):
        last.result()


def test_a_callback_may_wait_for_the_pool(shared_cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    followed: concurrent.futures.Future[int] = concurrent.futures.Future()
    with ActorPool(Worker, 2) as pool:
        held = pool.submit("hold", str(gate))
        held.add_done_callback(lambda _: followed.set_result(pool.submit("work", 7).result(PATIENCE_S)))
        gate.write_text("open")
        assert followed.result(PATIENCE_S) == 7


def test_without_threads_an_actor_that_died_is_not_replaced(
    shared_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def no_thread(thread: threading.Thread) -> None:
        if thread.name == "parl-pool-actor":
            raise RuntimeError("can't start new thread")
        start(thread)

    with ActorPool(Worker, 1) as pool:
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(ActorError, match="has no actors any more"):
            pool.submit("deadly", 3).result(PATIENCE_S)


def test_a_pool_that_is_dropped_lets_its_actors_go(share_cluster: Callable[[int], None]) -> None:
    share_cluster(2)
    pool = ActorPool(Worker, 2)
    assert sum(pool.map("work", range(10))) == 45
    del pool
    again = [with_options(Worker, lease_timeout_s=PATIENCE_S)() for _ in range(2)]
    assert [actor.work(1) for actor in again] == [1, 1]


def test_actors_with_threads_get_as_many_items_as_documented(anywhere: str) -> None:
    with ActorPool([Threads()], per_actor=4) as pool:
        assert sorted(pool.map_unordered("meet", range(8))) == list(range(8))


def test_options_of_one_object_and_limits_of_calls_go_with_pools(anywhere: str) -> None:
    chosen: Any = with_options(Worker, n_cpu=0.5, wait=False)
    with ActorPool(chosen, 2) as pool:
        assert list(pool.map("work", range(10))) == list(range(10))
    with ActorPool(Bounded, 2, per_actor=3) as pool:
        assert list(pool.map("work", range(30))) == list(range(30))


def test_a_full_actor_is_tried_again_without_another_thread(
    shared_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    with ActorPool(Bounded, 1, per_actor=3) as pool:
        assert pool.submit("work", 0).result(PATIENCE_S) == 0
        monkeypatch.setattr(threading.Timer, "start", no_thread)
        assert list(pool.map("work", range(30), timeout_s=PATIENCE_S)) == list(range(30))


def test_an_actor_that_is_killed_from_outside_is_no_death_of_its_item(shared_cluster: None, tmp_path: Path) -> None:
    out, gate = tmp_path / "out", tmp_path / "gate"
    os.mkfifo(out)
    os.mkfifo(gate)
    with ActorPool(Worker, 1, retries=0) as pool:
        result = pool.submit("tell_and_hold", str(out), str(gate))
        first = out.read_text()
        parl_remote.kill(pool.actors[0])
        assert out.read_text() != first
        gate.write_text("through")
        assert result.result(PATIENCE_S) == "through"


def test_handles_of_actors_keep_their_ways_outside(anywhere: str) -> None:
    actor = Worker()
    with ActorPool([actor]) as pool:
        assert list(pool.map("work", [1])) == [1]
        assert actor.work(2) == 2  # it waits, as its class says
        assert not isinstance(actor.work(2), RemoteFuture)


def test_progress_is_shown_where_tqdm_is_there(
    anywhere: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ActorPool(Worker, 1) as pool:
        assert len(list(pool.map("work", range(7), progress="seven"))) == 7
        shown = capsys.readouterr().err
        assert "seven" in shown
        assert "7/7" in shown
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        assert len(list(pool.map("work", range(7), progress=True))) == 7
        assert "pip install tqdm" in caplog.text


def test_a_closed_pool_lets_go_of_actors_that_were_still_being_replaced(shared_cluster: None) -> None:
    gc.collect()
    gc.disable()  # what holds itself would be found by chance
    try:
        with ActorPool(Worker, 2) as pool:
            handles = [weakref.ref(actor) for actor in pool.actors]
            dispatcher = pool._dispatcher
            assert dispatcher is not None
            end = dispatcher._thread
            late: list[weakref.ref[Any]] = []

            def make_slowly() -> Any:
                end.join(PATIENCE_S)
                late.append(weakref.ref(actor := Worker()))
                return actor

            making = threading.Thread(target=dispatcher._make, args=(make_slowly,))
            making.start()
        making.join(PATIENCE_S)
        del dispatcher, pool, making
        assert [ref() for ref in (*handles, *late)] == [None, None, None]
    finally:
        gc.enable()
