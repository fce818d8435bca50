"""Handlers of signals that raise, as Ctrl-C does, at any moment: nothing is lost, torn or stuck."""

from __future__ import annotations

import contextlib
import dis
import gc
import os
import queue
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import parl_remote
from parl_remote import RemoteFuture, SerializationError, _future, submit
from parl_remote._data import object_memory
from parl_remote._functions.sources import Calls
from parl_remote._functions.worker import CallForm, Code, Outcome, pack
from parl_remote._functions.workers import Chunk, Quota
from parl_remote._future import Waiter, leave_to_parent
from parl_remote._pools import pool as pool_module
from parl_remote._system import interrupts
from parl_remote._system.facilities import Waker, wait_for_input
from parl_remote._system.interrupts import interruptible, undisturbed, uninterrupted

PATIENCE_S = 60.0


@parl_remote.remote_class(n_cpu=0)
class Echo:
    def echo(self, value: Any) -> Any:
        return value

    def size(self, value: Any) -> int:
        return int(value.size)

    def zeros(self, size: int) -> Any:
        return np.zeros(size)

    def numbers(self, most: int) -> Iterator[int]:
        self.open = getattr(self, "open", 0) + 1
        try:
            yield from range(most)
        finally:
            self.open -= 1

    def opened(self) -> int:
        return getattr(self, "open", 0)

    def disturbing(self) -> Any:
        return Disturbing()


@parl_remote.remote_class
class Whole:
    def echo(self, value: Any) -> Any:
        return value


class Plain:
    def __init__(self, number: int) -> None:
        self.number = number


class Disturbing:
    """Is read by a function that waits, and Ctrl-C comes meanwhile."""

    def __reduce__(self) -> Any:
        return wait_while_ctrl_c_comes, ()


def wait_while_ctrl_c_comes() -> str:
    with uninterrupted, interruptible:
        signal.raise_signal(signal.SIGINT)
    return "read"


@pytest.fixture
def noted() -> Iterator[list[str]]:
    """The notes of a test's signal handlers; that of SIGUSR1 raises nothing, that of SIGUSR2 a KeyError."""
    notes: list[str] = []

    def harmless(*_: object) -> None:
        notes.append("harmless")

    def raising(*_: object) -> None:
        notes.append("raising")
        raise KeyError

    before = signal.signal(signal.SIGUSR1, harmless), signal.signal(signal.SIGUSR2, raising)
    yield notes
    signal.signal(signal.SIGUSR1, before[0])
    signal.signal(signal.SIGUSR2, before[1])


class TestPuttingOff:
    def test_a_handler_runs_when_the_steps_are_done(self, noted: list[str]) -> None:
        with uninterrupted:
            with uninterrupted:
                signal.raise_signal(signal.SIGUSR1)
            noted.append("done")
        assert noted == ["done", "harmless"]

    def test_what_a_handler_raises_comes_after_the_steps(self, noted: list[str]) -> None:
        def steps() -> None:
            with uninterrupted:
                signal.raise_signal(signal.SIGUSR2)
                noted.append("done")

        with pytest.raises(KeyError):
            steps()
        assert noted == ["done", "raising"]

    def test_in_a_wait_it_runs_at_once(self, noted: list[str]) -> None:
        with uninterrupted:
            with interruptible:
                signal.raise_signal(signal.SIGUSR1)
                noted.append("waited")
            signal.raise_signal(signal.SIGUSR1)
            noted.append("done")
        assert noted == ["harmless", "waited", "done", "harmless"]

    def test_one_that_came_before_a_wait_runs_where_it_begins(self, noted: list[str]) -> None:
        with uninterrupted:
            signal.raise_signal(signal.SIGUSR2)
            noted.append("before")
            with pytest.raises(KeyError), interruptible:
                noted.append("waits")
        assert noted == ["before", "raising"]

    def test_what_follows_an_ended_wait_is_not_interrupted(self, noted: list[str]) -> None:
        with uninterrupted:
            try:
                with interruptible:
                    try:
                        signal.raise_signal(signal.SIGUSR2)
                    finally:
                        signal.raise_signal(signal.SIGUSR1)
                        noted.append("left")
            except KeyError:
                signal.raise_signal(signal.SIGUSR1)
                noted.append("undone")
        assert noted == ["raising", "left", "undone", "harmless", "harmless"]

    def test_a_wait_within_undisturbed_steps_ends_before_a_handler_runs(self, noted: list[str]) -> None:
        def steps() -> None:
            with uninterrupted:
                signal.raise_signal(signal.SIGUSR1)
                with undisturbed, interruptible:
                    signal.raise_signal(signal.SIGUSR2)
                    noted.append("waited")
                noted.append("done")

        with pytest.raises(KeyError):
            steps()
        assert noted == ["waited", "done", "harmless", "raising"]

    def test_a_handler_may_use_the_package(self, noted: list[str]) -> None:
        def nested(*_: object) -> None:
            with uninterrupted:
                signal.raise_signal(signal.SIGUSR1)
                noted.append("nested")

        before = signal.signal(signal.SIGTERM, nested)
        with uninterrupted, interruptible:
            signal.raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
        assert noted == ["nested", "harmless"]

    def test_a_signal_that_comes_again_is_not_put_off_for_ever(
        self, noted: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def insist() -> None:
            with uninterrupted:
                signal.raise_signal(signal.SIGUSR2)
                signal.raise_signal(signal.SIGUSR2)
                noted.append("put off")
                monkeypatch.setattr(interrupts, "_LONGEST_DEFERRAL_S", 0.0)
                signal.raise_signal(signal.SIGUSR2)
                noted.append("never")

        with pytest.raises(KeyError):
            insist()
        assert noted[:2] == ["put off", "raising"]
        assert "never" not in noted

    def test_a_signal_that_insists_lets_a_finalizer_end(
        self, noted: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Held:
            def __del__(self) -> None:
                signal.raise_signal(signal.SIGUSR2)
                noted.append("done")

        monkeypatch.setattr(interrupts, "_LONGEST_DEFERRAL_S", 0.0)

        @uninterrupted
        def collect() -> None:
            held = Held()
            held.__dict__["itself"] = held  # as a traceback holds what its frames have
            del held
            gc.collect()
            noted.append("behind")

        with pytest.raises(KeyError):
            collect()
        assert noted == ["done", "behind", "raising"]

    def test_the_program_s_handlers_are_in_place_outside(self, noted: list[str]) -> None:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)]
        with uninterrupted, contextlib.suppress(KeyError), interruptible:
            signal.raise_signal(signal.SIGUSR2)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)] == handlers
        with uninterrupted:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN

    def test_other_threads_leave_the_handlers_alone(self, noted: list[str]) -> None:
        inside, leave = threading.Event(), threading.Event()

        def other() -> None:
            with uninterrupted:
                inside.set()
                leave.wait(PATIENCE_S)

        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(PATIENCE_S)
        signal.raise_signal(signal.SIGUSR1)
        assert noted == ["harmless"]
        leave.set()
        thread.join(PATIENCE_S)

    def test_the_child_of_a_fork_by_another_thread_has_handlers_of_its_own(self, noted: list[str]) -> None:
        codes: list[int] = []

        def fork() -> None:
            pid = os.fork()
            if not pid:
                with uninterrupted:
                    os.kill(os.getpid(), signal.SIGUSR1)
                    code = len(noted)
                os._exit(10 * code + len(noted))
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

        with uninterrupted:
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join(PATIENCE_S)
        assert codes == [1]


class Interruption:
    """A signal at one of the steps at which Python looks for signals, in one file or everywhere."""

    _CALLS = frozenset(dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD") if name in dis.opmap)

    def __init__(self, at: int, file: str | None = None) -> None:
        self.left = at
        self._file = file
        self._after_call: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        self._after_call = None
        if self._file is not None and frame.f_code.co_filename != self._file:
            return None
        frame.f_trace_opcodes = True
        self._step()
        return self._in_frame

    def _in_frame(self, frame: FrameType, event: str, _: object) -> Any:
        before, self._after_call = self._after_call, None
        if event == "opcode":
            if before is frame:  # of something written in C: there was no frame in between
                self._step()
            if frame.f_code.co_code[frame.f_lasti] in self._CALLS:
                self._after_call = frame
        return self._in_frame

    def _step(self) -> None:
        self.left -= 1
        if self.left == -1:
            signal.raise_signal(signal.SIGUSR2)


def at_each_step(
    noted: list[str], act: Callable[[], object], look: Callable[[], object], file: str | None = None
) -> int:
    """Do something with a handler that raises at each of its steps, look at what is left, and return their number.

    Args:
        noted: What the handler notes, emptied before each of them.
        act: What is done.
        look: Looks at what is left.
        file: Count the steps of this file alone.
    """
    # The first time without an interruption: Python 3.14 traces no instruction of the first call that asks for it.
    at, reached = -1, True
    while reached:
        noted.clear()
        interruption, before = Interruption(at if at >= 0 else sys.maxsize, file), sys.gettrace()
        sys.settrace(interruption)
        try:
            act()
        except KeyError:
            pass
        finally:
            sys.settrace(before)
        reached = interruption.left < 0
        assert noted.count("raising") == reached, f"at step {at}"
        look()
        reached, at = reached or at < 0, at + 1
    assert at > 1
    return at


def test_at_any_step_of_putting_off_a_handler_runs_once_and_the_next_steps_are_whole(noted: list[str]) -> None:
    def act() -> None:
        with uninterrupted:
            noted.append("began")
            with interruptible:
                noted.append("waited")
            noted.append("done")

    def look() -> None:
        with uninterrupted:
            signal.raise_signal(signal.SIGUSR1)
            noted.append("whole")
        assert noted[-2:] == ["whole", "harmless"]
        assert signal.getsignal(signal.SIGUSR1) is not interrupts._defer

    assert at_each_step(noted, act, look, interrupts.__file__) >= 10


def test_a_handler_that_equals_the_one_before_is_given_back_itself() -> None:
    class Handler:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Handler)

        def __hash__(self) -> int:
            return 0

        def __call__(self, *_: object) -> None:
            pass

    former = signal.getsignal(signal.SIGUSR1)
    try:
        for handler in (Handler(), Handler()):
            signal.signal(signal.SIGUSR1, handler)
            with uninterrupted:
                pass
            assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_a_waker_that_was_interrupted_wakes_the_next_time(noted: list[str]) -> None:
    waker = Waker()

    def look() -> None:
        waker.wake()
        assert wait_for_input([waker.fileno()], 0)
        waker.clear()

    at_each_step(noted, waker.wake, look)
    waker.close()


def test_a_condition_is_free_after_a_with_statement_that_was_interrupted(noted: list[str]) -> None:
    condition = interrupts.Condition()

    def enter() -> None:
        with condition:
            pass

    def look() -> None:
        assert not condition._is_owned()  # type: ignore[attr-defined]

    at_each_step(noted, enter, look)


def test_a_child_that_awaits_a_call_of_its_parent_is_interrupted_before_or_after_it_fails(noted: list[str]) -> None:
    made: list[tuple[RemoteFuture[int], Waiter]] = []

    def act() -> None:
        made.clear()
        future, waiter = RemoteFuture[int](None), Waiter()
        leave_to_parent([future], lambda: ValueError("the parent's"))
        future._block(waiter)
        made.append((future, waiter))
        future._carrier.await_in(Mock(), future)  # type: ignore[union-attr]

    def look() -> None:
        for future, waiter in made:
            if future._settled:
                assert future._carrier is None
                assert waiter._lock.acquire(blocking=False), "who waits for it is woken"

    at_each_step(noted, act, look, _future.__file__)


Alarm = Callable[[float, Callable[[], object]], None]


class TimeIsUp(Exception):
    """The exception of a program's time limit."""


def time_is_up(*_: object) -> None:
    raise TimeIsUp


@pytest.fixture(params=[signal.default_int_handler, time_is_up])
def alarmed(request: pytest.FixtureRequest) -> Iterator[Alarm]:
    """Run something with what Ctrl-C, or a time limit, does at some moment within so many seconds."""
    time_limit, _ = signal.setitimer(signal.ITIMER_REAL, 0)  # of the test
    before = signal.signal(signal.SIGALRM, request.param)
    chance = random.Random(7)

    def alarm(within_s: float, action: Callable[[], object]) -> None:
        try:
            # Again after a second: one just before a system call that waits does not end it, as everywhere in Python.
            signal.setitimer(signal.ITIMER_REAL, chance.random() * within_s + 1e-5, 1.0)
            try:
                action()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (KeyboardInterrupt, TimeIsUp):
            pass

    yield alarm
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, time_limit)


def read_all(alarmed: Alarm, results: Iterator[Any]) -> list[Any]:
    """Read an iterator to its end, with an alarm after each moment."""
    came: list[Any] = []
    ends: list[bool] = []

    def take() -> None:
        for value in results:
            came.append(value)  # noqa: PERF402  # Python looks for signals neither before this nor in between
        ends.append(True)

    for _ in range(100_000):
        if ends:
            break
        alarmed(0.001, take)
    assert ends
    return came


def test_a_callback_whose_wait_is_interrupted_ends_the_wait_that_ran_it() -> None:
    future: RemoteFuture[int] = RemoteFuture(None)
    later: list[object] = []

    def waits(_: object) -> None:
        with interruptible:
            signal.raise_signal(signal.SIGINT)

    def note(done: object) -> None:
        later.append(done)

    for callback in (waits, note):
        callback.__module__ = RemoteFuture.__module__  # users' callbacks run in another thread, where no handler runs
        future.add_done_callback(callback)

    def settle() -> None:
        with uninterrupted:
            future._settle(1)

    with pytest.raises(KeyboardInterrupt):
        settle()
    assert later == [future]
    assert future.result() == 1


def test_ctrl_c_that_insists_while_the_result_of_a_function_is_read_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_LONGEST_DEFERRAL_S", 0.0)
    calls = Calls(Mock(lock=threading.RLock()), Quota(None), 0, None)
    future: RemoteFuture[Any] = RemoteFuture(None)
    calls.begin(future)
    chunk = Chunk(calls, Code.of(abs), None, 1, CallForm.CALL, 0)
    chunk.future = future
    with uninterrupted, pytest.raises(KeyboardInterrupt):
        calls.settle(chunk, Outcome(0.0, pack([Disturbing()]), None, []))
    with pytest.raises(SerializationError, match="KeyboardInterrupt"):
        future.result()
    calls.await_all()


# What a handler raises in a finalizer is printed, and lost: Python has no other place for it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestPrograms:
    def test_calls_with_large_arrays(self, shared_cluster: None, alarmed: Alarm) -> None:
        echo, large = Echo(), np.arange(200_000)

        def calls() -> None:
            assert echo.echo(large).shape == large.shape
            assert echo.size(large) == large.size
            assert echo.zeros(200_000).shape == large.shape

        for n in range(150):
            alarmed(0.003, calls)
            assert submit(echo.echo, n).result(PATIENCE_S) == n

    def test_functions_and_maps(self, shared_cluster: None, alarmed: Alarm) -> None:
        def maps() -> None:
            assert list(parl_remote.map(abs, range(-20, 0))) == list(range(20, 0, -1))

        def calls() -> None:
            with parl_remote.Executor(2) as executor:
                assert executor.submit(abs, -1).result(PATIENCE_S) == 1

        for n in range(150):
            alarmed(0.003, maps)
            alarmed(0.001, calls)
            assert next(parl_remote.map(abs, [-n], timeout=PATIENCE_S)) == n

    @pytest.mark.parametrize("buffersize", [None, 3])
    def test_a_map_goes_on_where_it_was(self, shared_cluster: None, alarmed: Alarm, buffersize: int | None) -> None:
        results = parl_remote.map(abs, iter(range(1000)), buffersize=buffersize)
        assert read_all(alarmed, results) == list(range(1000))

    def test_ctrl_c_while_a_result_is_read_is_raised_and_the_result_is_whole(self, shared_cluster: None) -> None:
        echo = Echo()
        read, other = submit(echo.disturbing), submit(echo.echo, 3)
        with pytest.raises(KeyboardInterrupt):
            other.result()  # the other one comes first
        assert read.result() == "read"
        assert other.result() == 3
        results = parl_remote.map(lambda _: Disturbing(), [1])
        with pytest.raises(KeyboardInterrupt):
            next(results)
        assert list(results) == ["read"]

    def test_ctrl_c_that_insists_while_a_result_is_read_is_raised_and_concerns_no_other(
        self, shared_cluster: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        echo = Echo()
        read, other = submit(echo.disturbing), submit(echo.echo, 3)
        monkeypatch.setattr(interrupts, "_LONGEST_DEFERRAL_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            other.result()
        with pytest.raises(SerializationError, match="KeyboardInterrupt"):
            read.result()
        assert other.result() == 3
        results = parl_remote.map(lambda _: Disturbing(), [1])
        with pytest.raises(KeyboardInterrupt):
            next(results)
        with pytest.raises(SerializationError, match="KeyboardInterrupt"):
            next(results)

    def test_a_queue_keeps_its_items(self, shared_cluster: None, alarmed: Alarm) -> None:
        items: parl_remote.Queue[int] = parl_remote.Queue()
        items.put_many(range(1000))
        came: list[int] = []

        def take() -> None:
            while len(came) < 1000:
                came.append(items.get(timeout=PATIENCE_S))

        for n in range(100_000):
            if len(came) == 1000:
                break
            alarmed(0.002 * (1 + n // 1000), take)
        assert came == list(range(1000))
        alarmed(0.002, lambda: items.get(timeout=PATIENCE_S))  # there is nothing to get
        items.put(1)
        assert items.get(timeout=PATIENCE_S) == 1
        with pytest.raises(queue.Empty):
            items.get_nowait()

    def test_an_interrupted_call_that_waits_in_the_actor_is_cancelled(
        self, shared_cluster: None, alarmed: Alarm
    ) -> None:
        items: parl_remote.Queue[str] = parl_remote.Queue(maxsize=1)
        items.put("first")
        for _ in range(20):
            alarmed(0.02, lambda: items.put("never"))
        assert items.get(timeout=PATIENCE_S) == "first"
        with pytest.raises(queue.Empty):
            items.get(timeout=0.1)

    def test_a_generator_goes_on_where_it_was_and_is_closed(self, shared_cluster: None, alarmed: Alarm) -> None:
        echo = Echo()
        for _ in range(20):
            assert read_all(alarmed, echo.numbers(60)) == list(range(60))
        for _ in range(60):
            alarmed(0.002, lambda: list(echo.numbers(10**9)))
        gc.collect()
        assert echo.opened() == 0

    @pytest.mark.parametrize("method", ["map", "map_unordered"])
    def test_a_pool_returns_each_result(self, shared_cluster: None, alarmed: Alarm, method: str) -> None:
        with parl_remote.ActorPool([Echo(), Echo()]) as pool:
            results = getattr(pool, method)("echo", iter(range(500)))
            assert sorted(read_all(alarmed, results)) == list(range(500))

    def test_a_pool_is_closed_or_can_be_at_whatever_step_a_handler_raises(
        self, shared_cluster: None, noted: list[str]
    ) -> None:
        echo = Echo()
        pools = [parl_remote.ActorPool([echo])]
        dispatchers = [pools[0]._dispatcher]

        def look() -> None:
            pool, dispatcher = pools.pop(), dispatchers.pop()
            assert dispatcher is not None
            assert dispatcher._is_stopped or pool._dispatcher is dispatcher
            pool.close()
            pools.append(parl_remote.ActorPool([echo]))
            dispatchers.append(pools[0]._dispatcher)

        at_each_step(noted, lambda: pools[0].close(), look, pool_module.__file__)
        pools[0].close()

    @pytest.mark.parametrize("of_pool", [True, False])
    def test_ctrl_c_while_an_iterator_of_results_closes_the_items_is_raised(
        self, shared_cluster: None, of_pool: bool
    ) -> None:
        def source() -> Iterator[int]:
            try:
                while True:
                    yield 1
            finally:
                signal.raise_signal(signal.SIGINT)

        with parl_remote.ActorPool([Echo()]) as pool:
            results = pool.map("echo", source()) if of_pool else parl_remote.map(abs, source())
            assert next(results) == 1
            with pytest.raises(KeyboardInterrupt):
                results.close()
            assert list(results) == []

    def test_what_a_handler_raises_is_not_taken_for_a_value_that_cannot_be_sent(
        self, shared_cluster: None, alarmed: Alarm
    ) -> None:
        echo: Any = Echo()
        many = [Plain(n) for n in range(300)]

        def set_attribute() -> None:
            echo.many = many

        for _ in range(60):
            alarmed(0.003, lambda: parl_remote.put(many))
            alarmed(0.003, set_attribute)
            alarmed(0.003, lambda: list(parl_remote.map(len, [many, many])))

    def test_making_actors_loses_neither_a_cpu_nor_a_name(self, connect: Callable[..., None], alarmed: Alarm) -> None:
        connect(cpu_num=1, lease_timeout_s=PATIENCE_S)
        named = parl_remote.with_options(Whole, name="whole")
        for _ in range(60):
            alarmed(0.03, lambda: Whole().echo(1))
            alarmed(0.03, lambda: named().echo(1))
        assert Whole().echo(1) == 1
        assert named().echo(1) == 1

    def test_a_cpu_comes_back_whatever_a_handler_raises_at_the_end_of_a_handle(
        self, connect: Callable[..., None], noted: list[str]
    ) -> None:
        connect(cpu_num=1, lease_timeout_s=PATIENCE_S)
        handles = [Whole()]
        at_each_step(noted, handles.clear, lambda: handles.append(Whole()), interrupts.__file__)

    def test_memory_of_put_comes_back_whatever_a_handler_raises_at_the_end_of_a_reference(
        self, shared_cluster: None, noted: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def inode(one: parl_remote.ObjectRef[Any]) -> int:
            assert one._memory is not None
            return one._memory.inode

        monkeypatch.setattr(object_memory, "_KEPT_S", PATIENCE_S)
        value = np.zeros(1_234_567)
        refs = [parl_remote.put(value)]
        memory = inode(refs[0])

        def look() -> None:
            refs.append(parl_remote.put(value))
            assert inode(refs[0]) == memory

        at_each_step(noted, refs.clear, look)

    def test_a_source_that_is_interrupted_is_over_and_its_items_come_first(self, shared_cluster: None) -> None:
        def source() -> Iterator[int]:
            yield from range(5)
            signal.raise_signal(signal.SIGINT)
            yield 5

        results = parl_remote.map(abs, source())
        came: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            came.extend(results)  # in the first step, unless results have come before all items were taken
        with pytest.raises(KeyboardInterrupt):
            came.extend(results)
        assert came == list(range(5))
        assert list(results) == []
