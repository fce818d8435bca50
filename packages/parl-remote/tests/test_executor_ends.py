"""Executors whose workers die or that are shut down: every future ends, and what waits is run or cancelled."""

from __future__ import annotations

import concurrent.futures
import functools
import gc
import math
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import parl_remote
from parl_remote import Executor, ExecutorBroken
from parl_remote._functions import sources, worker
from parl_remote._functions.worker import CallForm, Code, FunctionWorker, Outcome, pack_items
from parl_remote._functions.workers import Chunk, Workers
from parl_remote._program.actor_ref import ActorRef

PATIENCE_S = 60.0
_state: dict[str, Any] = {}


def square(number: int) -> int:
    return number * number


def pid(_: object = None) -> int:
    return os.getpid()


def hold(path: str) -> str:
    with open(path) as gate:  # a FIFO: opens when the test opens its end
        return gate.read()


def tell_and_hold(out: str, gate: str) -> str:
    if out:
        Path(out).write_text(str(os.getpid()))
        hold(gate)
    return out


def deadly_once(path: str) -> str:
    if not os.path.exists(path):
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "again"


def remember(value: Any) -> None:
    _state["value"] = value


def recall(_: object = None) -> Any:
    return _state.get("value")


def refuse() -> Any:
    raise ValueError("it cannot be read")


class Unreadable:
    """Can be pickled, but not be read."""

    def __reduce__(self) -> Any:
        return refuse, ()


def unreadable_third(number: int) -> Any:
    return Unreadable() if number == 2 else number


@pytest.fixture(scope="module", autouse=True)
def _end() -> Iterator[None]:
    yield
    parl_remote.disconnect()


def shut_down(executor: Executor, *, cancel_futures: bool = False) -> None:
    """Shut an executor down; fail if that does not end."""
    ending = threading.Thread(target=executor.shutdown, kwargs={"cancel_futures": cancel_futures}, daemon=True)
    ending.start()
    ending.join(PATIENCE_S)
    assert not ending.is_alive()


@pytest.mark.parametrize("dropped", [False, True])
def test_what_waits_is_run_with_its_initializer_after_the_executors_end(
    shared_cluster: None, tmp_path: Path, dropped: bool
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    later: concurrent.futures.Future[int] = concurrent.futures.Future()
    executor = Executor(1, initializer=remember, initargs=("kept",))
    held = executor.submit(hold, str(gate))
    waiting = [executor.submit(recall) for _ in range(2)]
    last = executor.submit(recall, later)
    workers = executor._workers
    assert workers is not None
    if dropped:
        del executor
        gc.collect()
    else:
        executor.shutdown(wait=False)
    closed = threading.Event()
    workers.soon(closed.set)
    assert closed.wait(PATIENCE_S)
    gate.write_text("")
    assert held.result(PATIENCE_S) == ""
    assert [one.result(PATIENCE_S) for one in waiting] == ["kept", "kept"]
    later.set_result(1)
    assert last.result(PATIENCE_S) == "kept"


def test_a_worker_that_dies_after_the_end_of_its_map_holds_no_shutdown_up(shared_cluster: None, tmp_path: Path) -> None:
    out, gate = tmp_path / "out", tmp_path / "gate"
    os.mkfifo(out)
    os.mkfifo(gate)
    executor = Executor(1, initializer=remember, initargs=(0,))
    results: Any = executor.map(tell_and_hold, ["", str(out)], [str(gate)] * 2, chunksize=1)
    assert next(results) == ""
    number = int(out.read_text())
    results.close()
    closed = threading.Event()
    assert executor._workers is not None
    executor._workers.soon(closed.set)
    assert closed.wait(PATIENCE_S)
    os.kill(number, signal.SIGKILL)
    shut_down(executor)


def test_a_worker_that_is_ended_because_its_call_takes_too_long_gets_no_other_call(
    shared_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, out = tmp_path / "gate", tmp_path / "out"
    os.mkfifo(gate)
    os.mkfifo(out)
    executor = Executor(1, initializer=remember, initargs=(0,), timeout_s=600)
    held = executor.submit(tell_and_hold, str(out), str(gate))
    number = int(out.read_text())
    assert executor._workers is not None
    (worker,) = executor._workers._workers
    monkeypatch.setattr(ActorRef, "destroy", lambda _: None)  # it comes too late
    worker.chunks[0].due = 0.0
    executor._workers._end_if_overdue(weakref.ref(worker), worker.next_look)
    gate.write_text("")
    held.result(PATIENCE_S)
    assert executor.submit(os.getpid).result(PATIENCE_S) != number
    shut_down(executor)


def test_a_shutdown_does_not_cancel_a_call_that_is_retried(
    shared_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    making, go_on = threading.Event(), threading.Event()
    leased = Workers._leased

    def leased_later(self: Workers, is_first: bool, insist: bool) -> Any:
        if (tmp_path / "died").exists():
            making.set()
            go_on.wait(PATIENCE_S)
        return leased(self, is_first, insist)

    monkeypatch.setattr(Workers, "_leased", leased_later)
    executor = Executor(1, initializer=remember, initargs=(0,))
    call = executor.submit(deadly_once, str(tmp_path / "died"))
    other = executor.submit(square, 2)
    assert making.wait(PATIENCE_S)
    executor.shutdown(wait=False, cancel_futures=True)
    go_on.set()
    assert call.result(PATIENCE_S) == "again"
    assert other.cancelled()
    shut_down(executor)


def test_a_shutdown_cancels_calls_that_wait_for_futures(shared_cluster: None) -> None:
    never: Any = concurrent.futures.Future()
    late: Any = concurrent.futures.Future()
    executor = Executor(1)
    calls = [executor.submit(square, one) for one in (never, late, late)]
    assert calls[2].cancel()
    shut_down(executor, cancel_futures=True)
    assert concurrent.futures.wait(calls, PATIENCE_S).not_done == set()
    late.set_result(2)
    assert all(call.cancelled() for call in calls)


@pytest.mark.parametrize("settles", [True, False])
def test_a_call_that_is_cancelled_while_it_waits_for_a_future_ends_at_once(shared_cluster: None, settles: bool) -> None:
    late: Any = concurrent.futures.Future()
    executor = Executor(1)
    call = executor.submit(square, late)
    assert call.cancel()
    assert concurrent.futures.wait([call], PATIENCE_S).not_done == set()
    if settles:
        late.set_result(2)
    shut_down(executor)
    assert call.cancelled()


@pytest.mark.parametrize("chunksize", [None, 3, 6])
def test_an_item_that_cannot_be_read_is_the_only_one_that_fails(shared_cluster: None, chunksize: int | None) -> None:
    _check_third(parl_remote.map(str, [0, 1, Unreadable(), 3, 4, 5], chunksize=chunksize), ["0", "1", "3", "4", "5"])


@pytest.mark.parametrize("chunksize", [None, 3, 6])
def test_a_result_that_cannot_be_read_is_the_only_one_that_fails(shared_cluster: None, chunksize: int | None) -> None:
    _check_third(parl_remote.map(unreadable_third, range(6), chunksize=chunksize), [0, 1, 3, 4, 5])


def _check_third(results: Iterator[Any], expected: list[Any]) -> None:
    found = [next(results), next(results)]
    with pytest.raises((ValueError, parl_remote.SerializationError), match="it cannot be read"):
        next(results)
    assert [*found, *results] == expected


@parl_remote.remote_class(n_cpu=0)
class Nothing:
    pass


def noted(path: str, *values: Any) -> Any:
    with open(path, "a") as runs:
        runs.write("run ")
    return values


def noted_unreadable(path: str, handle: Any) -> Any:
    return noted(path, handle, Unreadable())


@pytest.mark.parametrize("what", ["argument", "function", "result"])
def test_what_cannot_be_read_beside_a_handle_ends_no_worker(shared_cluster: None, tmp_path: Path, what: str) -> None:
    path, handle = str(tmp_path / "runs"), Nothing()
    calls: dict[str, Any] = {
        "argument": (noted, path, handle, Unreadable()),
        "function": (functools.partial(noted, path, handle, Unreadable()),),
        "result": (noted_unreadable, path, handle),
    }
    Path(path).touch()
    executor = Executor(1, initializer=remember, initargs=(0,))
    number = executor.submit(os.getpid).result(PATIENCE_S)
    with pytest.raises((ValueError, parl_remote.SerializationError), match="it cannot be read"):
        executor.submit(*calls[what]).result(PATIENCE_S)
    assert Path(path).read_text() == "run " * (what == "result")
    assert executor.submit(os.getpid).result(PATIENCE_S) == number
    shut_down(executor)


def test_what_cannot_be_read_keeps_nothing_of_the_chunks_that_met_it() -> None:
    unreadable = worker.Unreadable(ValueError("it cannot be read"))
    for _ in range(3):
        with pytest.raises(ValueError, match="it cannot be read") as raised:
            worker.unpack((unreadable,))
    assert len(raised.traceback) == 2  # this test, and `unpack`


def test_a_function_that_cannot_be_read_says_so_for_each_chunk() -> None:
    code = Code.of(functools.partial(divmod, Unreadable()))
    runner = FunctionWorker()
    for sent in (code.packed, None):
        outcome = Outcome(
            *runner.run(code.key, sent, code.name, pack_items([1], CallForm.ITEM), CallForm.ITEM, math.inf)
        )
        assert outcome.failures is not None
        assert "it cannot be read" in str(outcome.failures)


class Ticks:
    """A clock that goes on by what an item takes."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_a_worker_gives_back_the_items_for_which_it_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Ticks()
    monkeypatch.setattr(worker, "time", clock)

    def item(number: int) -> int:
        clock.now += 1e-6 if number < 100 else 0.1
        if number == 101:
            raise ValueError
        return number

    code = Code.of(len)
    runner = FunctionWorker()
    runner._functions.add(code.key, worker._LazyFunction((item,)))

    def run(items: Sequence[int]) -> Outcome:
        return Outcome(*runner.run(code.key, None, "item", pack_items(items, CallForm.ITEM), CallForm.ITEM, 0.45))

    quick = run(range(100))
    assert (worker.unpack(quick.values), quick.left) == (list(range(100)), 0)
    slow = run(range(100, 200))
    assert (worker.unpack(slow.values), list(slow.failures or ()), slow.left) == ([100, None, 102, 103, 104], [1], 95)
    both = run(range(200))
    assert both.left > 200 - 100 - 64 - 5


def test_items_that_were_given_back_are_done_in_their_places(
    shared_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def part(chunk: Chunk, first: int, end: int) -> Chunk:
        sizes.append(end - first)
        return made(chunk, first, end)

    made = Chunk.part
    monkeypatch.setattr(Chunk, "part", part)
    monkeypatch.setattr(sources, "_SLACK", 1e-6)  # so that there is time for few items
    assert list(parl_remote.map(abs, range(-2000, 0))) == list(range(2000, 0, -1))
    assert sizes


def test_a_call_is_not_lost_with_an_idle_worker_that_is_dead(
    shared_cluster: None, await_end: Callable[..., float]
) -> None:
    with Executor(1, retries=0, initializer=remember, initargs=(0,)) as executor:
        for _ in range(3):
            number = executor.submit(pid).result(PATIENCE_S)
            os.kill(number, signal.SIGKILL)
            await_end([number])
            assert executor.submit(square, 3).result(PATIENCE_S) == 9


def test_a_worker_that_dies_in_its_initializer_is_replaced(shared_cluster: None, tmp_path: Path) -> None:
    with Executor(1, initializer=deadly_once, initargs=(str(tmp_path / "died"),)) as executor:
        assert executor.submit(square, 3).result(PATIENCE_S) == 9


def test_calls_fail_while_no_thread_can_be_had(shared_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "parl-worker":
            raise RuntimeError("can't start new thread")
        start(thread)

    with Executor(1, n_cpu=0.5) as executor:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ExecutorBroken, match="can't start new thread"):
            executor.submit(square, 3).result(PATIENCE_S)
        monkeypatch.undo()
        assert executor.submit(square, 3).result(PATIENCE_S) == 9


PROGRAM = """
import parl_remote, sys
from pathlib import Path

def touch(name):
    (Path(sys.argv[1]) / name).touch()

if __name__ == "__main__":
    first, second = parl_remote.Executor(1), parl_remote.Executor(1)
    for name in "abc":
        first.submit(touch, name)
    del first
    second.map(touch, "def")
"""


def test_a_program_ends_after_the_calls_of_dropped_executors_and_maps(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "done").mkdir()
    subprocess.run([sys.executable, str(tmp_path / "program.py"), str(tmp_path / "done")], timeout=120, check=True)
    assert sorted(path.name for path in (tmp_path / "done").iterdir()) == list("abcdef")


WAITS_NO_LONGER = """
import os, signal, sys, threading, time
from parl_remote import Executor

def hold(path):
    open(path).close()

def interrupt(main=threading.get_ident()):
    while True:
        frame = sys._current_frames()[main]
        while frame is not None and frame.f_code.co_name != "_await_all":
            frame = frame.f_back
        if frame is not None:
            return os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)

if __name__ == "__main__":
    try:
        with Executor(1) as executor:
            executor.submit(hold, sys.argv[1])
            executor.map(hold, [sys.argv[1]])
            threading.Thread(target=interrupt).start()
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_a_program_that_is_interrupted_while_it_waits_for_an_executor_does_not_wait_again(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WAITS_NO_LONGER)
    os.mkfifo(tmp_path / "gate")
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "gate")]
    assert subprocess.run(command, timeout=100, check=True, capture_output=True, text=True).stdout == "interrupted\n"
