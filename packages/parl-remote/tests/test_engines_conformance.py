"""Remote classes as a user sees them, the same everywhere: in this process, on a private cluster, over TCP, on Ray.

A test here may not know where it runs. Where an engine differs, `DIFFERS` says so with the reason, and only there.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import parl_remote as parl
from faults.ports import unused_port
from parl_remote import _current

SLOTS = 4
WITHIN_S = 60.0

DIFFERS = {
    ("debug", "test_a_killed_actor_is_lost_with_its_last_call"): "the actor's process would be this one",
    ("debug", "test_an_actor_that_ends_its_process_is_lost"): "the actor's process would be this one",
    ("debug", "test_calls_do_not_wait_for_each_other_between_actors"): "a call runs in the thread that makes it",
    ("debug", "test_a_result_that_takes_too_long_times_out_and_comes_later"): "a call runs in the thread that makes it",
    ("debug", "test_a_call_that_has_not_started_can_be_cancelled"): "a call runs in the thread that makes it",
    ("debug", "test_a_lost_actor_is_made_again_as_often_as_was_asked_for"): "the actor's process would be this one",
    ("debug", "test_a_cancelled_call_is_not_run"): "a call runs in the thread that makes it",
    ("ray", "test_a_cancelled_call_is_not_run"): "Ray runs what is queued all the same and drops the result",
    ("debug", "test_the_actor_knows_that_it_is_one"): "the actor's environment would be this one",
}


class OwnError(Exception):
    """An exception of the user's."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.hint = hint


@parl.remote_class
class Counter:
    """Counts."""

    STEP = 1

    def __init__(self, value: int = 0, *, step: int = STEP) -> None:
        if value < 0:
            raise OwnError(value, hint="not below zero")
        self.value = value
        self.step = step

    def add(self, amount: int | None = None) -> int:
        """Adds."""
        self.value += self.step if amount is None else amount
        return self.value

    @property
    def double(self) -> int:
        return 2 * self.value

    @staticmethod
    def name() -> str:
        return "counter"

    def grow(self, name: str) -> None:
        setattr(self, name, 1)

    def fail(self, code: int) -> None:
        raise OwnError(code, hint="on purpose")

    def fail_strangely(self) -> None:
        class Unknown(Exception):
            def __reduce__(self) -> Any:
                raise TypeError("not me")

        raise Unknown("of this process")

    def echo(self, value: Any) -> Any:
        return value

    def lock(self) -> Any:
        return threading.Lock()

    def fill(self, array: Any, number: float) -> Any:
        array[0] = number
        return array

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def pid(self) -> int:
        return os.getpid()

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def exit(self, code: int) -> None:
        os._exit(code)

    def __len__(self) -> int:
        return self.value

    def __getitem__(self, key: int) -> int:
        return self.value + key

    def __contains__(self, key: int) -> bool:
        return key == self.value

    def __call__(self, amount: int) -> int:
        return self.add(amount)

    def __enter__(self) -> Counter:
        self.value += 100
        return self

    def __exit__(self, *_: object) -> bool:
        self.value -= 100
        return False


@parl.remote_class
class Manager:
    """Holds and makes other actors."""

    def __init__(self, worker: Any = None) -> None:
        self._worker = worker

    def make(self, value: int) -> Any:
        return Counter(value)

    def make_and_keep(self, value: int) -> int:
        self._worker = Counter(value)
        return int(self._worker.add())

    def keep(self, worker: Any) -> None:
        self._worker = worker

    def drop(self) -> None:
        self._worker = None

    def add(self, amount: int) -> int:
        return int(self._worker.add(amount))

    def add_to(self, workers: dict[str, Any]) -> dict[str, int]:
        return {name: worker.add() for name, worker in workers.items()}

    def look_up(self, name: str) -> int:
        return int(parl.get_actor(name).add())

    def fails(self) -> int:
        try:
            self._worker.fail(3)
        except OwnError as error:
            return error.code
        return 0


@parl.remote_class
class Meeting:
    """Calls that wait for each other: they have to run at the same time."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)

    def come(self) -> int:
        return self._barrier.wait(WITHIN_S)


@parl.remote_class(wait=False)
class Switchboard:
    def __init__(self) -> None:
        self._lines: dict[str, asyncio.Event] = {}

    def _line(self, name: str) -> asyncio.Event:
        return self._lines.setdefault(name, asyncio.Event())

    async def listen(self, name: str) -> str:
        await asyncio.wait_for(self._line(name).wait(), WITHIN_S)
        return name

    async def ring(self, name: str) -> None:
        self._line(name).set()


# -- the engines -----------------------------------------------------------------------------------------------------


def _open(engine: str) -> Iterator[None]:
    if engine == "ray":
        if importlib.util.find_spec("ray") is None:
            pytest.skip("ray is not installed")
        parl.connect("ray", cpu_num=SLOTS, lease_timeout_s=WITHIN_S)
        yield
    elif engine == "cluster":
        with tempfile.TemporaryDirectory(prefix="parl-engines-") as home, pytest.MonkeyPatch.context() as patch:
            patch.setenv("PARL_RUN_DIR", home)
            patch.setenv("PARL_FORCE_TCP", "1")
            address = _start_cluster()
            try:
                parl.connect(address, lease_timeout_s=WITHIN_S)
                yield
            finally:
                _xparl("stop", "--all")
    else:
        parl.connect(cpu_num=SLOTS, debug=engine == "debug", lease_timeout_s=WITHIN_S)
        yield


def _start_cluster() -> str:
    port = unused_port()
    _xparl("start", "--port", str(port), "--cpu_num", str(SLOTS), "--monitor_port", "0")
    return f"127.0.0.1:{port}"


def _xparl(*arguments: str) -> None:
    command = [sys.executable, "-m", "parl_remote.cli", *arguments]
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module", params=["debug", "local", "cluster", "ray"])
def connected(request: pytest.FixtureRequest) -> Iterator[str]:
    _current.clear()  # what other modules keep open, they put in place again
    opening = _open(request.param)
    next(opening)
    yield request.param
    parl.disconnect()
    for _ in opening:
        pass


@pytest.fixture(autouse=True)
def engine(connected: str, request: pytest.FixtureRequest) -> str:
    reason = DIFFERS.get((connected, request.node.originalname))
    if reason is not None:
        pytest.skip(reason)
    return connected


def eventually(holds: Callable[[], bool]) -> None:
    """Wait for what has no event that a program could wait for."""
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come true"
        gc.collect()
        time.sleep(0.01)


# -- objects ---------------------------------------------------------------------------------------------------------


def test_an_object_is_made_with_its_arguments_and_keeps_its_state() -> None:
    counter = Counter(10, step=5)
    assert (counter.add(), counter.add(1), counter.value) == (15, 16, 16)


def test_it_passes_for_an_object_of_its_class() -> None:
    counter = Counter()
    assert isinstance(counter, Counter)
    assert counter.add.__doc__ == "Adds."
    assert {"add", "value", "double"} <= set(dir(counter))


def test_objects_do_not_share_their_state() -> None:
    first, second = Counter(), Counter()
    first.add(5)
    assert (first.value, second.value) == (5, 0)


def test_attributes_are_read_and_written() -> None:
    counter = Counter(1)
    counter.value = 7
    counter.note = "new"
    assert (counter.value, counter.double, counter.STEP, counter.name(), counter.note) == (7, 14, 1, "counter", "new")


def test_hasattr_tells_the_truth() -> None:
    counter = Counter()
    assert hasattr(counter, "value")
    assert not hasattr(counter, "grown")
    counter.grow("grown")
    assert hasattr(counter, "grown")


def test_a_mistyped_name_is_refused_with_the_right_one() -> None:
    with pytest.raises(AttributeError, match="did you mean"):
        Counter().valeu  # noqa: B018  # reading it is the test


def test_special_methods_work() -> None:
    counter = Counter(3)
    assert (len(counter), counter[2], 3 in counter, counter(4)) == (3, 5, True, 7)


def test_a_with_statement_works() -> None:
    with Counter(1) as counter:
        assert counter.value == 101
    assert counter.value == 1


def test_what_the_constructor_raises_is_raised_here() -> None:
    before = parl.get_global_client().actor_num
    with pytest.raises(OwnError, match="code -1") as raised:
        Counter(-1)
    assert raised.value.hint == "not below zero"
    eventually(lambda: parl.get_global_client().actor_num <= before)  # it is released in the background


def test_an_exception_keeps_type_and_attributes_and_the_actor_lives_on() -> None:
    counter = Counter(1)
    with pytest.raises(OwnError) as raised:
        counter.fail(7)
    assert (raised.value.code, raised.value.hint) == (7, "on purpose")
    assert isinstance(raised.value.__cause__, parl.RemoteCallError)
    assert "in fail" in str(raised.value.__cause__)
    assert counter.add() == 2


def test_an_exception_that_refuses_to_be_pickled_arrives_as_its_type() -> None:
    with pytest.raises(parl.RemoteCallError, match="of this process") as caught:
        Counter().fail_strangely()
    assert "Unknown" in [kind.__name__ for kind in type(caught.value).__mro__]


def test_what_cannot_be_sent_is_named() -> None:
    counter = Counter(1)
    with pytest.raises(parl.SerializationError, match=r"argument 'value' \(a lock\) of Counter\.echo"):
        counter.echo(threading.Lock())
    with pytest.raises(parl.SerializationError, match=r"what Counter\.lock\(\) returned"):
        counter.lock()
    with pytest.raises(TypeError, match="unexpected keyword"):
        counter.add(nothing=1)
    assert counter.add() == 2


def test_the_actor_knows_that_it_is_one() -> None:
    counter = Counter()
    assert counter.environment("XPARL") == "True"
    assert counter.environment("CUDA_VISIBLE_DEVICES") == ""


# -- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 5_000, 2_000_000])
def test_arrays_come_and_go_and_belong_to_their_holder(size: int) -> None:
    counter = Counter()
    array = np.arange(size, dtype=np.float64)
    back = counter.fill(array, -1.0)
    assert array[0] == 0.0
    assert back[0] == -1.0
    assert np.array_equal(back[1:], array[1:])
    back[0] = 5.0
    assert counter.fill(back, 6.0)[0] == 6.0


@pytest.mark.parametrize("value", [None, b"", "ü" * 20_000, {"a": [1, (2, {3})]}, Ellipsis, float("inf"), OwnError])
def test_values_come_back_as_they_were(value: Any) -> None:
    assert Counter().echo(value) == value


@pytest.mark.parametrize("size", [10, 500_000])
def test_a_stored_value_arrives_as_the_value_and_within_others_as_the_reference(size: int) -> None:
    stored = parl.put(np.arange(size))
    counters = [Counter(), Counter()]
    for counter in counters:
        assert np.array_equal(counter.echo(stored), np.arange(size))
    (inner,) = counters[0].echo([stored])
    assert isinstance(inner, parl.ObjectRef)
    assert np.array_equal(inner.get(), np.arange(size))


# -- futures ---------------------------------------------------------------------------------------------------------


def test_calls_of_one_caller_run_in_order() -> None:
    counter = Counter.options(wait=False)()
    futures = [counter.add(1) for _ in range(300)]
    assert [future.result(WITHIN_S) for future in futures] == list(range(1, 301))


def test_submit_does_not_wait_whatever_the_class_says() -> None:
    counter = Counter()
    future = parl.submit(counter.add, 3)
    assert isinstance(future, parl.RemoteFuture)
    assert future.get() == 3


def test_an_error_waits_in_its_future() -> None:
    future = parl.submit(Counter().fail, 9)
    assert isinstance(future.exception(WITHIN_S), OwnError)
    with pytest.raises(OwnError):
        future.result()


def test_futures_work_with_the_standard_library() -> None:
    counters = [Counter(number) for number in range(3)]
    futures = [parl.submit(counter.add) for counter in counters]
    done, left = concurrent.futures.wait(futures, WITHIN_S)
    assert not left
    assert sorted(future.result() for future in done) == [1, 2, 3]
    again = [parl.submit(counter.add) for counter in counters]
    assert sorted(future.result() for future in concurrent.futures.as_completed(again, WITHIN_S)) == [2, 3, 4]


def test_futures_can_be_awaited() -> None:
    counter = Counter()

    async def both() -> list[int]:
        return list(await asyncio.gather(parl.submit(counter.add), parl.submit(counter.add)))

    assert asyncio.run(both()) == [1, 2]


def test_a_callback_may_call_the_actor_again() -> None:
    counter = Counter()
    called: concurrent.futures.Future[int] = concurrent.futures.Future()
    parl.submit(counter.add).add_done_callback(lambda future: called.set_result(counter.add(future.result())))
    assert called.result(WITHIN_S) == 2


def test_a_result_that_takes_too_long_times_out_and_comes_later() -> None:
    future = parl.submit(Counter().sleep, 0.3)
    with pytest.raises(parl.ResultTimeout):
        future.get_nowait()
    with pytest.raises(parl.ResultTimeout, match=r"sleep\(\) did not answer within 0.01 s"):
        future.result(0.01)
    assert future.result(WITHIN_S) == 0.3


def test_a_call_that_has_not_started_can_be_cancelled() -> None:
    counter = Counter()
    busy = parl.submit(counter.sleep, 0.3)
    waiting = parl.submit(counter.add)
    assert waiting.cancel()
    assert waiting.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result()
    assert busy.result(WITHIN_S) == 0.3


def test_a_cancelled_call_is_not_run() -> None:
    counter = Counter()
    busy = parl.submit(counter.sleep, 0.3)
    assert parl.submit(counter.add).cancel()
    busy.result(WITHIN_S)
    assert counter.value == 0


def test_calls_do_not_wait_for_each_other_between_actors() -> None:
    slow, quick = Counter(), Counter()
    waiting = parl.submit(slow.sleep, 1.0)
    assert quick.add() == 1
    assert not waiting.done()
    assert waiting.result(WITHIN_S) == 1.0


def test_threads_may_call_one_actor() -> None:
    counter = Counter()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: counter.add(), range(80)))
    assert sorted(results) == list(range(1, 81))


def test_more_calls_than_allowed_wait_for_answers() -> None:
    counter = Counter.options(wait=False, max_pending_calls=3)()
    futures = [counter.add() for _ in range(30)]
    assert [future.result(WITHIN_S) for future in futures] == list(range(1, 31))


def test_a_future_as_an_argument_is_waited_for() -> None:
    first, second = Counter(), Counter()
    future = parl.submit(second.add, parl.submit(first.add, 5))
    after = parl.submit(second.add, 1)
    assert (future.result(WITHIN_S), after.result(WITHIN_S)) == (5, 6)
    failed = parl.submit(second.add, parl.submit(first.fail, 4))
    with pytest.raises(OwnError, match="code 4"):
        failed.result(WITHIN_S)
    inner = parl.submit(first.add)
    with pytest.raises(parl.SerializationError, match="a future cannot be sent inside other things"):
        second.echo([inner])
    assert inner.result(WITHIN_S) == 6


# -- handles ---------------------------------------------------------------------------------------------------------


def test_an_actor_calls_another_one() -> None:
    counter, manager = Counter(1), Manager()
    manager.keep(counter)
    assert (manager.add(2), counter.value, manager.fails()) == (3, 3, 3)


def test_handles_travel_within_other_things_and_into_constructors() -> None:
    first, second = Counter(1), Counter(2)
    assert Manager().add_to({"first": first, "second": second}) == {"first": 2, "second": 3}
    assert Manager(first).add(5) == 7


def test_an_actor_makes_actors_and_gives_them_away() -> None:
    manager = Manager()
    assert manager.make_and_keep(4) == 5
    made = manager.make(10)
    assert isinstance(made, Counter)
    assert (made.add(), made.value) == (11, 11)


def test_an_actor_lives_while_a_handle_exists() -> None:
    counter, manager = Counter(1), Manager()
    manager.keep(counter)
    del counter
    gc.collect()
    assert manager.add(1) == 2


def test_a_handle_comes_home_as_what_it_was() -> None:
    counter = Counter(3)
    assert counter.echo(counter).add() == 4
    assert Manager().make(1).add() == 2


# -- names -----------------------------------------------------------------------------------------------------------


def test_a_named_actor_is_found_by_its_name_here_and_in_actors() -> None:
    counter = Counter.options(name="found by name")(5)
    assert parl.get_actor("found by name").add() == 6
    assert Manager().look_up("found by name") == 7
    assert counter.value == 7
    counter.destroy()


def test_a_name_is_unique_and_free_again_afterwards() -> None:
    first = Counter.options(name="unique")()
    with pytest.raises(parl.NameTaken, match="'unique' is taken"):
        Counter.options(name="unique")()
    first.destroy()
    del first
    eventually(lambda: not _exists("unique"))
    second = Counter.options(name="unique")(4)
    assert parl.get_actor("unique").add() == 5
    second.destroy()


def _exists(name: str) -> bool:
    try:
        parl.get_actor(name, timeout_s=60)
    except (parl.NoSuchActor, parl.ActorLost):
        return False
    return True


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(parl.NoSuchActor, match="no actor called 'nobody'"):
        parl.get_actor("nobody")


# -- slots -----------------------------------------------------------------------------------------------------------


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(parl.NoResources, match=r"Counter asked for .*1000"):
        Counter.options(n_cpu=1000, lease_timeout_s=0.5)()


def test_a_full_cluster_has_a_slot_again_once_an_actor_is_dropped(engine: str) -> None:
    counters = [Counter.options(n_cpu=SLOTS / 2)() for _ in range(2)]
    with pytest.raises(parl.NoResources):
        Counter.options(n_cpu=SLOTS / 2, lease_timeout_s=0.2)()
    del counters[0]
    gc.collect()
    assert Counter.options(n_cpu=SLOTS / 2)(1).add() == 2
    assert counters[0].add() == 1


def test_an_answer_that_is_not_awaited_keeps_no_actor() -> None:
    for _ in range(2):
        counters = [Counter.options(n_cpu=SLOTS / 2)() for _ in range(2)]
        for counter in counters:
            parl.submit(counter.add)
        del counter, counters
        gc.collect()


def test_an_actor_that_was_looked_up_ends_with_its_handles() -> None:
    for number in range(3):
        counter = Counter.options(n_cpu=SLOTS / 2, name=f"looked up {number}")()
        assert parl.get_actor(f"looked up {number}").add() == 1
        del counter
        gc.collect()


def test_actors_may_share_a_cpu() -> None:
    counters = [Counter.options(n_cpu=0.25)(number) for number in range(6)]
    assert [counter.value for counter in counters] == list(range(6))


def test_the_client_counts_its_actors() -> None:
    eventually(lambda: parl.get_global_client().actor_num == 0)  # those of other tests are on their way
    counter = Counter()
    assert parl.get_global_client().actor_num == 1
    del counter
    eventually(lambda: parl.get_global_client().actor_num == 0)


# -- several calls at a time -----------------------------------------------------------------------------------------


def test_so_many_calls_run_at_once_as_were_asked_for() -> None:
    meeting = Meeting.options(max_concurrency=3, wait=False)(3)
    assert sorted(future.result(WITHIN_S) for future in [meeting.come() for _ in range(3)]) == [0, 1, 2]


def test_async_methods_run_on_one_loop() -> None:
    board = Switchboard()
    listening = [board.listen(name) for name in "abc"]
    for name in "cba":
        board.ring(name).result(WITHIN_S)
    assert [future.result(WITHIN_S) for future in listening] == ["a", "b", "c"]


def test_a_pool_maps_in_order_over_its_actors() -> None:
    pool = parl.ActorPool([Counter.options(n_cpu=0.5)() for _ in range(3)])
    assert list(pool.map(lambda actor, value: parl.submit(actor.echo, value), range(20))) == list(range(20))


# -- ends ------------------------------------------------------------------------------------------------------------


def test_a_destroyed_actor_is_lost_by_the_users_will() -> None:
    counter = Counter()
    counter.destroy()
    with pytest.raises(parl.ActorLost) as lost:
        counter.add()
    assert lost.value.cause.kind is parl.DeathKind.KILLED_BY_USER
    assert lost.value.class_name == "Counter"


def test_an_actor_that_ends_its_process_is_lost() -> None:
    counter, other = Counter(), Counter()
    with pytest.raises(parl.ActorLost) as lost:
        counter.exit(3)
    assert lost.value.cause.last_call == "exit"
    with pytest.raises(parl.ActorLost):
        counter.add()
    assert other.add() == 1


def test_a_killed_actor_is_lost_with_its_last_call() -> None:
    counter = Counter()
    pid = counter.pid()
    assert pid != os.getpid()
    future = parl.submit(counter.sleep, WITHIN_S)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(parl.ActorLost) as lost:
        future.result(WITHIN_S)
    assert lost.value.cause.last_call == "sleep"
    assert lost.value.cause.describe()


def test_a_lost_actor_is_made_again_as_often_as_was_asked_for() -> None:
    counter = Counter.options(max_restarts=1)(5)
    assert counter.add() == 6
    with pytest.raises(parl.ActorLost):
        counter.exit(1)
    assert counter.add() == 6
    with pytest.raises(parl.ActorLost):
        counter.exit(1)
    with pytest.raises(parl.ActorLost):
        counter.add()


def test_a_handle_of_a_lost_actor_says_so_in_other_actors() -> None:
    counter, manager = Counter(), Manager()
    manager.keep(counter)
    counter.destroy()
    with pytest.raises(parl.ActorLost):
        manager.add(1)
    assert manager.make_and_keep(1) == 2
