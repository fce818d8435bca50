"""Results that are still on their way."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import functools
import gc
import math
import os
import pickle
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import parl_remote
from parl_remote import ActorLost, RemoteFuture, ResultTimeout, SerializationError, submit
from parl_remote._options import seconds_of

PATIENCE_S = 60.0


class Leaves:
    """A value whose unpickling ends programs that do not take care."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


@parl_remote.remote_class(wait=False)
class Worker:
    """Waits on a pipe that tests hold open, so that nothing depends on time."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def note(self, number: int) -> int:
        self.order.append(number)
        return number

    def noted(self) -> list[int]:
        return self.order

    def hold(self, path: str) -> str:
        with open(path) as gate:  # a FIFO: opens when the test opens its end
            return gate.read()

    def announce_and_hold(self, started: str, path: str) -> str:
        with open(started, "w"):
            pass
        with open(path) as gate:
            self.read = gate.read()
        return self.read

    def fail(self) -> int:
        raise KeyError("no such thing")

    def big(self) -> bytes:
        return bytes(300_000)

    def leaves(self) -> Leaves:
        return Leaves()

    def take(self, data: bytes) -> int:
        return len(data)


def _set(event: threading.Event, _: object) -> None:
    event.set()


def future_of(call: Any) -> RemoteFuture[Any]:
    assert isinstance(call, RemoteFuture)
    return call


@pytest.fixture
def gate(tmp_path: Any) -> Any:
    """Calls `worker.hold(gate.path)` and `worker.announce_and_hold(...)` last until `gate.open()`."""

    class Gate:
        path = str(tmp_path / "gate")
        started = str(tmp_path / "started")

        def await_start(self) -> None:
            with open(self.started):
                pass

        def open(self, text: str = "through") -> None:
            with open(self.path, "w") as end:
                end.write(text)

    os.mkfifo(Gate.path)
    os.mkfifo(Gate.started)
    return Gate()


def test_a_call_returns_a_future_at_once(shared_cluster: None, gate: Any) -> None:
    future = future_of(Worker().hold(gate.path))
    assert not future.done()
    assert future.running()
    assert future.empty()
    gate.open()
    assert future.result(PATIENCE_S) == "through"
    assert future.done()


def test_any_number_of_calls_is_outstanding_and_they_run_in_order(shared_cluster: None, gate: Any) -> None:
    worker = Worker()
    held = future_of(worker.hold(gate.path))
    futures = [future_of(worker.note(i)) for i in range(2_000)]
    assert not futures[0].done()
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == list(range(2_000))
    assert held.result() == "through"
    assert future_of(worker.noted()).result(PATIENCE_S) == list(range(2_000))


def test_a_flood_of_large_calls_and_answers_does_not_block_itself(shared_cluster: None) -> None:
    worker = Worker()
    answers = [future_of(worker.big()) for _ in range(200)]
    sizes = [future_of(worker.take(bytes(300_000))) for _ in range(200)]
    assert {future.result(PATIENCE_S) for future in sizes} == {300_000}
    assert {len(future.result(PATIENCE_S)) for future in answers} == {300_000}


def test_a_result_can_be_taken_as_often_as_wanted(anywhere: str) -> None:
    future = future_of(Worker().note(3))
    assert [future.result(PATIENCE_S), future.get(), future.get_nowait(), future.result()] == [3, 3, 3, 3]


@pytest.mark.parametrize("use", [pickle.dumps, copy.copy])
def test_a_future_is_used_in_its_process_only(anywhere: str, use: Callable[[object], object]) -> None:
    with pytest.raises(SerializationError, match=r"the future of note\(\) belongs to its process .*: send its result"):
        use(Worker().note(1))


def test_waiting_ends_after_the_timeout_and_the_call_goes_on(shared_cluster: None, gate: Any) -> None:
    future = future_of(Worker().hold(gate.path))
    with pytest.raises(ResultTimeout, match=r"hold\(\) did not answer within 0.01 s"):
        future.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0.01)
    with pytest.raises(ResultTimeout, match="not there yet"):
        future.get_nowait()
    gate.open()
    assert future.get(timeout=PATIENCE_S) == "through"


def test_an_exception_is_kept_for_later_callers(anywhere: str) -> None:
    future = future_of(Worker().fail())
    assert isinstance(future.exception(PATIENCE_S), KeyError)
    with pytest.raises(KeyError, match="no such thing"):
        future.result()


class OwnError(Exception):
    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}")
        self.both = left, right


@pytest.mark.parametrize(
    ("kind", "args"), [(KeyError, ("no such thing",)), (OSError, (2, "no file", "name")), (OwnError, (1, 2))]
)
def test_an_exception_can_be_raised_again_and_again(
    anywhere: str, kind: type[Exception], args: tuple[Any, ...]
) -> None:
    @parl_remote.remote_class(wait=False)
    class Raiser:
        def fail(self) -> None:
            raised = kind(*args)
            raised.add_note("a note")
            raise raised

    error = kind(*args)
    future = future_of(Raiser().fail())  # type: ignore[func-returns-value]
    for _ in range(3):
        with pytest.raises(kind) as raised:
            future.result(PATIENCE_S)
        assert raised.value.args == error.args
        assert str(raised.value) == str(error)
        assert vars(raised.value).get("both") == vars(error).get("both")
        assert raised.value.__notes__ == ["a note"]
        assert "remote traceback" in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("debug", [False, True])
def test_actors_of_forgotten_objects_free_slots_when_it_is_wanted(connect: Callable[..., None], debug: bool) -> None:
    """In a circle they would stay until the garbage collector comes by, which may be never."""
    connect(cpu_num=1, debug=debug, lease_timeout_s=PATIENCE_S)
    gc.disable()
    try:
        circle: list[Any] = [Worker()]
        circle.append(circle)
        del circle
        assert future_of(Worker().note(1)).result(PATIENCE_S) == 1
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["call", "pool"])
def test_an_exception_that_was_caught_keeps_no_actor(anywhere: str, kind: str) -> None:
    """Its traceback holds the frames of all callers; a future that held it would keep them all, in a circle."""
    kept: list[weakref.ref[Any]] = []

    class Held:
        pass

    def use() -> None:
        held = Held()
        kept.append(weakref.ref(held))
        worker: Any = Worker()
        with parl_remote.ActorPool([worker]) as pool:
            future = future_of(worker.fail()) if kind == "call" else pool.submit(lambda one: one.fail())
            with contextlib.suppress(KeyError):
                future.result(PATIENCE_S)

    gc.collect()
    gc.disable()
    try:
        use()
        assert kept[0]() is None
    finally:
        gc.enable()


def test_wait_and_as_completed_of_concurrent_futures_work(shared_cluster: None, gate: Any) -> None:
    slow, quick = future_of(Worker().hold(gate.path)), future_of(Worker().note(1))
    done, pending = concurrent.futures.wait(
        [slow, quick], timeout=PATIENCE_S, return_when=concurrent.futures.FIRST_COMPLETED
    )
    assert (done, pending) == ({quick}, {slow})
    completed: Any = concurrent.futures.as_completed([slow, quick], timeout=PATIENCE_S)
    assert next(completed) is quick
    gate.open()
    assert next(completed) is slow


def test_wait_sees_exceptions(shared_cluster: None) -> None:
    failed = future_of(Worker().fail())
    done, _ = concurrent.futures.wait([failed], PATIENCE_S, concurrent.futures.FIRST_EXCEPTION)
    assert done == {failed}


def test_a_callback_runs_when_the_result_comes(shared_cluster: None, gate: Any) -> None:
    called = threading.Event()
    future = future_of(Worker().hold(gate.path))
    future.add_done_callback(lambda done: called.set() if done is future else None)
    assert not called.is_set()
    gate.open()
    assert called.wait(PATIENCE_S)


ACTS: dict[str, Callable[[Any], Any]] = {
    "wait": lambda future: len(concurrent.futures.wait([future]).done),
    "as_completed": lambda future: len(list(concurrent.futures.as_completed([future]))),
    "parl_wait": lambda future: len(parl_remote.wait([future])[0]),
    "another_actor": lambda _: future_of(Worker().note(1)).result(),
    "a_function": lambda _: next(iter(parl_remote.map(abs, [-1]))),
}


@pytest.mark.parametrize("act", list(ACTS))
def test_a_callback_may_wait_for_whatever_the_program_may_wait_for(shared_cluster: None, act: str) -> None:
    worker = Worker()
    done = threading.Event()
    found: list[Any] = []

    def wait(_: object) -> None:
        found.append(ACTS[act](worker.note(2)))
        done.set()

    future_of(worker.note(1)).add_done_callback(wait)
    assert done.wait(PATIENCE_S)
    assert found == [1]


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_answers_are_read_in_the_background_whatever_a_callback_raises(
    shared_cluster: None, gate: Any, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    worker = Worker()

    def fail(_: object) -> None:
        raise kind("of a callback")

    called = [threading.Event() for _ in range(2)]
    first = future_of(worker.hold(gate.path))
    first.add_done_callback(fail)
    first.add_done_callback(functools.partial(_set, called[0]))
    second = future_of(worker.note(2))
    second.add_done_callback(functools.partial(_set, called[1]))
    gate.open()
    assert all(event.wait(PATIENCE_S) for event in called)
    assert "of a callback" in caplog.text


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit])
def test_an_exit_that_a_callback_raises_is_not_raised_by_the_wait_for_another_call(
    shared_cluster: None, gate: Any, kind: type[BaseException]
) -> None:
    worker = Worker()

    def fail(_: object) -> None:
        raise kind("of a callback")

    first = future_of(worker.hold(gate.path))
    first.add_done_callback(fail)
    second = future_of(worker.note(2))
    gate.open()
    assert second.result(PATIENCE_S) == 2


def test_a_result_whose_unpickling_raises_an_exit_fails_its_call_alone(shared_cluster: None) -> None:
    worker = Worker()
    for is_watched in (False, True):
        future = future_of(worker.leaves())
        behind = future_of(worker.note(1))
        if is_watched:
            called = threading.Event()
            behind.add_done_callback(functools.partial(_set, called))
            assert called.wait(PATIENCE_S)
        with pytest.raises(SerializationError, match="SystemExit"):
            future.result(PATIENCE_S)
        assert behind.result(PATIENCE_S) == 1


def test_a_failed_call_fails_a_thousand_that_wait_for_one_another(anywhere: str) -> None:
    workers = [Worker(), Worker()]
    last = future_of(workers[0].fail())
    for number in range(1000):
        last = future_of(workers[number % 2].note(last))  # type: ignore[arg-type]  # awaited by the actor
    with pytest.raises(KeyError):
        last.result(PATIENCE_S)


def test_a_callback_on_a_finished_future_runs_at_once(anywhere: str) -> None:
    future = future_of(Worker().note(1))
    future.result(PATIENCE_S)
    called = threading.Event()
    future.add_done_callback(lambda _: called.set())
    assert called.is_set()


def test_a_blocking_wait_beside_callbacks_gets_its_result(shared_cluster: None) -> None:
    worker = Worker()
    called = [threading.Event() for _ in range(200)]
    for event in called:
        future = future_of(worker.note(0))
        future.add_done_callback(functools.partial(_set, event))
        assert future_of(worker.note(1)).result(PATIENCE_S) == 1
    assert all(event.wait(PATIENCE_S) for event in called)


def test_a_callback_may_call_the_actor_again(shared_cluster: None) -> None:
    worker = Worker()
    finished = threading.Event()

    def again(future: Any) -> None:
        assert future_of(worker.note(future.result() + 1)).result(PATIENCE_S) == 2
        finished.set()

    future_of(worker.note(1)).add_done_callback(again)
    assert finished.wait(PATIENCE_S)


def test_futures_can_be_awaited(anywhere: str) -> None:
    workers = [Worker() for _ in range(3)]

    async def gather() -> list[Any]:
        return await asyncio.gather(*(future_of(w.note(i)) for i in range(50) for w in workers))

    assert sorted(asyncio.run(gather())) == sorted(list(range(50)) * 3)


def test_an_awaited_exception_is_raised(anywhere: str) -> None:
    async def wait() -> Any:
        return await future_of(Worker().fail())

    with pytest.raises(KeyError):
        asyncio.run(wait())


def test_a_cancelled_call_that_has_not_started_never_runs(shared_cluster: None, gate: Any) -> None:
    worker = Worker()
    held = future_of(worker.announce_and_hold(gate.started, gate.path))
    gate.await_start()
    dropped = future_of(worker.note(1))
    kept = future_of(worker.note(2))
    assert dropped.cancel()
    assert dropped.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        dropped.result()
    gate.open()
    assert held.result(PATIENCE_S) == "through"
    assert kept.result(PATIENCE_S) == 2
    assert future_of(worker.noted()).result(PATIENCE_S) == [2]


def test_a_call_that_is_done_cannot_be_cancelled(anywhere: str) -> None:
    future = future_of(Worker().note(1))
    future.result(PATIENCE_S)
    assert not future.cancel()


def test_a_running_call_is_not_interrupted_and_its_result_is_thrown_away(shared_cluster: None, gate: Any) -> None:
    worker = Worker()
    running = future_of(worker.announce_and_hold(gate.started, gate.path))
    gate.await_start()
    assert running.cancel()
    gate.open()
    assert future_of(worker.note(5)).result(PATIENCE_S) == 5
    assert worker.read == "through"  # an attribute that the answer tells of


def test_waiters_of_several_threads_get_the_results_of_one_actor(shared_cluster: None) -> None:
    worker = Worker()
    futures = [future_of(worker.note(i)) for i in range(400)]
    got: dict[int, list[int]] = {}

    def take(part: int) -> None:
        got[part] = [future.result(PATIENCE_S) for future in futures[part::4]]

    threads = [threading.Thread(target=take, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert got == {part: list(range(part, 400, 4)) for part in range(4)}


def test_two_threads_may_wait_for_the_same_future(shared_cluster: None, gate: Any) -> None:
    future = future_of(Worker().hold(gate.path))
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(future.result(PATIENCE_S))) for _ in range(3)]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert got == ["through"] * 3


def test_an_outstanding_future_keeps_its_actor_alive(shared_cluster: None, gate: Any) -> None:
    future = future_of(Worker().hold(gate.path))  # the proxy is gone by now
    gate.open("still here")
    assert future.result(PATIENCE_S) == "still here"


def test_calls_whose_futures_were_thrown_away_still_run(shared_cluster: None, tmp_path: Any) -> None:
    @parl_remote.remote_class(wait=False)
    class Writer:
        def write(self, path: str) -> None:
            with open(path, "w") as gate:
                gate.write("written")

    os.mkfifo(tmp_path / "fifo")
    Writer().write(str(tmp_path / "fifo"))
    with open(tmp_path / "fifo") as end:
        assert end.read() == "written"


def test_submit_does_not_wait_whatever_the_class_says(anywhere: str) -> None:
    @parl_remote.remote_class
    class Blocking:
        def double(self, value: int) -> int:
            return 2 * value

    future = submit(Blocking().double, 4)
    assert isinstance(future, RemoteFuture)
    assert future.result(PATIENCE_S) == 8


def test_submit_takes_only_methods_of_remote_objects() -> None:
    with pytest.raises(TypeError, match="a method of a remote object"):
        submit(len, "abc")


def test_attributes_are_read_at_once_although_calls_do_not_wait(anywhere: str) -> None:
    assert Worker().order == []


def test_the_future_of_a_lost_actor_raises(shared_cluster: None, gate: Any) -> None:
    worker: Any = Worker()
    future = future_of(worker.hold(gate.path))
    called = threading.Event()
    future.add_done_callback(lambda _: called.set())
    worker.destroy()
    assert called.wait(PATIENCE_S)
    with pytest.raises(ActorLost, match="destroyed by its owner"):
        future.result(PATIENCE_S)


@pytest.mark.parametrize("timeout_s", [1e7, 1e18, float("inf")])
def test_a_timeout_of_any_length_is_taken(shared_cluster: None, timeout_s: float) -> None:
    future: Any = Worker().note(3)
    assert future.result(timeout_s) == 3


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(None, None), (2, 2), (0.5, 0.5), (Decimal(3), 3.0), (np.float32(0.5), 0.5), (-1, 0), (-math.inf, 0)],
)
def test_seconds_are_taken_in_any_type_of_number(given: Any, seconds: float | None) -> None:
    found = seconds_of("timeout", given)
    assert found == seconds
    assert found is None or type(found) in {int, float}


def test_an_infinite_time_is_one_that_a_lock_takes() -> None:
    lock = threading.Lock()
    for given in (math.inf, 10**400):
        assert lock.acquire(timeout=seconds_of("timeout", given) or 0)
        lock.release()


@pytest.mark.parametrize(
    ("given", "refusal"), [("5", TypeError), (2j, TypeError), ([1], TypeError), (math.nan, ValueError)]
)
def test_what_is_no_time_is_refused(given: Any, refusal: type[Exception]) -> None:
    with pytest.raises(refusal, match="timeout must be a number of seconds or None, not "):
        seconds_of("timeout", given)


def test_an_outcome_is_set_while_the_condition_is_held() -> None:
    """`wait` and `as_completed` look at the state under the condition, and must not be told of the same end again."""
    future: RemoteFuture[int] = RemoteFuture(None)
    settler = threading.Thread(target=future._settle, args=(1,))
    with future._condition:
        settler.start()
        settler.join(0.1)
        assert not future._settled
    settler.join(PATIENCE_S)
    assert future._settled


def test_waiters_count_each_future_once(shared_cluster: None) -> None:
    workers = [Worker() for _ in range(2)]
    for _ in range(200):
        futures = [future_of(workers[number % 2].note(number)) for number in range(16)]
        assert len(list(concurrent.futures.as_completed(futures))) == len(futures)
        futures = [future_of(workers[number % 2].note(number)) for number in range(16)]
        assert not concurrent.futures.wait(futures).not_done


def test_a_future_without_a_carrier_is_settled_by_its_maker() -> None:
    future: RemoteFuture[int] = RemoteFuture(None)
    assert not future.running()
    assert future.set_running_or_notify_cancel()
    assert future.running()
    assert not future.cancel()
    with pytest.raises(ResultTimeout):
        future.result(0.01)
    future.set_result(3)
    assert (future.result(), future.done(), future.cancelled()) == (3, True, False)
    other: RemoteFuture[int] = RemoteFuture(None)
    assert other.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        other.result()


@pytest.mark.parametrize("how", ["settled", "set", "cancelled", "settled before"])
def test_an_action_is_run_once_however_the_future_ends_and_takes_no_condition(how: str) -> None:
    future: RemoteFuture[int] = RemoteFuture(None)
    ended: list[RemoteFuture[int]] = []
    if how != "settled before":
        future._then(ended.append)
        assert not ended
    if how == "cancelled":
        assert future.cancel()
    else:
        assert future.set_running_or_notify_cancel()
        assert future._made_condition is None
        if how == "set":
            future.set_result(1)
        else:
            future._settle(1)
    if how == "settled before":
        future._then(ended.append)
    assert ended == [future]


def test_an_action_is_run_once_if_the_future_is_settled_while_it_is_given() -> None:
    class Settled(RemoteFuture[int]):
        looks = 0

        @property
        def _settled(self) -> bool:
            settled = super()._settled
            self.looks += 1
            if self.looks == 1:
                self._settle(1)  # by another thread, right after the look
            return settled

    future, ended = Settled(None), list[RemoteFuture[int]]()
    future._then(ended.append)
    assert ended == [future]


class _Hesitant:
    """A carrier whose waits end early, as when a call leaves for a connection and comes back."""

    def __init__(self) -> None:
        self.woken = 0

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> None:
        self.woken += 1
        if self.woken > 2 and timeout_s is None:
            future._settle(3)


def test_a_waiter_that_wakes_early_goes_on_waiting() -> None:
    future: RemoteFuture[int] = RemoteFuture(None)
    future._carrier = carrier = _Hesitant()  # type: ignore[assignment]
    with pytest.raises(ResultTimeout, match=r"did not answer within 0.01 s"):
        future.result(0.01)
    carrier.woken = 0
    assert future.result() == 3
    assert carrier.woken == 3


def test_a_future_shows_what_programs_use_beside_the_standard_library_s_methods() -> None:
    shown = {name for name in vars(RemoteFuture) if not name.startswith("_")} - set(vars(concurrent.futures.Future))
    assert shown == {"empty", "get", "get_nowait", "wait_any"}
