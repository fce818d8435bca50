"""Finalizers that wait for results: they get them, or an error where the code that they interrupt would bring them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import parl_remote
from parl_remote import RemoteError, _current
from parl_remote._functions import workers
from parl_remote._future import CallbackThread
from parl_remote._options import ActorOptions

WITHIN_S = 60.0


@parl_remote.remote_class(n_cpu=0)
class Plain:
    def get(self) -> int:
        return 5


def double(value: int) -> int:
    return 2 * value


class Waiting:
    """An object that waits when it is dropped."""

    def __init__(self, wait: Callable[[], object], outcome: Future[object]) -> None:
        self._wait = wait
        self._outcome = outcome

    def __del__(self) -> None:
        try:
            self._outcome.set_result(self._wait())
        except BaseException as error:
            self._outcome.set_exception(error)


def in_the_loop(wait: Callable[[], object]) -> Future[object]:
    """Have a finalizer run in the client's thread, between two steps of ours: `list.clear` has no frame."""
    client: Any = _current.client()
    outcome: Future[object] = Future()
    held = [Waiting(wait, outcome)]
    client._loop.call_soon(held.clear)
    return outcome


def test_a_finalizer_in_the_clients_thread_gets_the_result_of_an_actor(shared_cluster: None) -> None:
    actor = Plain()
    assert in_the_loop(actor.get).result(WITHIN_S) == 5


class Noting:
    """An object whose method is a callback, and which waits when it is dropped with that."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting

    def note(self, _: object) -> None:
        pass


def test_an_object_that_its_callback_kept_may_wait(connect: Callable[..., None]) -> None:
    connect()
    function = parl_remote.remote_function(double)
    for wait, expected in ((lambda: function(2), 4), (lambda: Plain().get(), 5)):
        outcome: Future[object] = Future()
        future = function.submit(1)
        future.add_done_callback(Noting(Waiting(wait, outcome)).note)
        assert future.result(WITHIN_S) == 2
        del future
        assert outcome.result(WITHIN_S) == expected


def test_a_finalizer_in_the_clients_thread_cannot_wait_for_a_worker_that_is_to_be_made(
    connect: Callable[..., None],
) -> None:
    connect()
    function = parl_remote.remote_function(double)
    with pytest.raises(RemoteError, match="waits for a result"):
        in_the_loop(lambda: function(2)).result(WITHIN_S)
    assert function(4) == 8


def test_a_finalizer_in_the_clients_thread_cannot_make_an_actor(shared_cluster: None) -> None:
    with pytest.raises(RemoteError, match="waits for a result"):
        in_the_loop(Plain).result(WITHIN_S)
    assert Plain().get() == 5


def test_a_finalizer_cannot_wait_for_a_function_that_the_interrupted_thread_has_to_hand_out(
    connect: Callable[..., None],
) -> None:
    connect()
    function = parl_remote.remote_function(double)
    outcome: Future[object] = Future()
    held = [Waiting(lambda: function(2), outcome)]
    shared: Any = workers.shared_workers(_current.client(), ActorOptions())
    shared._grow = held.clear  # as if garbage were collected within it
    future = function.submit(3)
    with pytest.raises(RemoteError, match="waits for a result"):
        outcome.result(WITHIN_S)
    del shared._grow
    shared.dispatch()
    assert future.result(WITHIN_S) == 6


def test_a_finalizer_in_the_programs_own_code_gets_the_result_of_a_function(shared_cluster: None) -> None:
    function = parl_remote.remote_function(double)
    outcome: Future[object] = Future()
    waiting: Waiting | None = Waiting(lambda: function(2), outcome)
    assert waiting is not None
    waiting = None
    assert outcome.result(WITHIN_S) == 4


@parl_remote.remote_class(n_cpu=0)
class Parting:
    def __init__(self, file: str) -> None:
        self.file = file

    def get(self) -> int:
        return 5

    def __del__(self) -> None:
        Path(self.file).write_text(str(parl_remote.remote_function(double)(Plain().get())))


def test_the_finalizer_of_an_actor_gets_results(shared_cluster: None, tmp_path: Path) -> None:
    file = tmp_path / "result"
    actor: Any = Parting(str(file))
    assert actor.get() == 5
    pid = _current.client().own.records[next(reversed(_current.client().own.records))].pid  # type: ignore[attr-defined]
    del actor
    done = threading.Event()
    while not file.exists() and Path(f"/proc/{pid}").exists():
        done.wait(0.01)
    assert file.read_text() == "10"


def test_a_future_that_is_settled_while_the_thread_of_callbacks_starts_runs_its_callbacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    callbacks = CallbackThread(is_awaited=False)
    ran: list[str] = []
    over = threading.Event()
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.undo()
        assert callbacks.run(lambda: ran.append("finalizer"))  # as a finalizer does that garbage runs here
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    assert callbacks.run(lambda: ran.append("first"))
    assert callbacks.run(over.set)
    assert over.wait(WITHIN_S)
    assert ran == ["finalizer", "first"]
