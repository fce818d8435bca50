"""Use of actors by a signal handler or a finalizer within another use of them, in the very same thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import parl_remote
from parl_core import _shared_memory
from parl_remote import RemoteFuture, _current, _future, submit
from parl_remote._data import large_frames, object_memory
from parl_remote._functions import executor
from parl_remote._links.loop import EventLoopReader
from parl_remote._program import client
from parl_remote._program.known_actors import Borrowing
from parl_remote._program.proxy import reference_of

PATIENCE_S = 60.0


@parl_remote.remote_class
class Echo:
    def echo(self, value: Any) -> Any:
        return value

    def child(self) -> Any:
        return Echo()


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Have something done, once, where a function begins; return the list that gets what came of it."""

    def at(owner: Any, name: str, act: Callable[[], Any]) -> list[Any]:
        interrupted, outcomes = getattr(owner, name), []
        pending = [act]

        def interruptible(*args: Any, **kwargs: Any) -> Any:
            if pending:
                outcomes.append(pending.pop()())
            return interrupted(*args, **kwargs)

        monkeypatch.setattr(owner, name, interruptible)
        return outcomes

    return at


def test_a_call_may_be_waited_for_where_a_future_gets_its_condition(
    shared_cluster: None, interrupting: Callable[..., list[Any]]
) -> None:
    echo = Echo()
    future = submit(echo.echo, 1)
    nested = interrupting(_future, "Condition", lambda: echo.echo(2))
    future.add_done_callback(lambda _: None)
    assert nested == [2]
    assert future.result(PATIENCE_S) == 1


@pytest.mark.parametrize("place", ["create", "address_of", "whole_size"])
def test_large_arrays_may_be_sent_where_large_arrays_are_sent(
    shared_cluster: None, interrupting: Callable[..., list[Any]], place: str
) -> None:
    echo, other = Echo(), Echo()
    inner, outer = np.full(300_000, 1.0), np.full(300_000, 2.0)
    nested = interrupting(_shared_memory, place, lambda: [submit(one.echo, inner) for one in (echo, other)])
    assert np.array_equal(echo.echo(outer), outer)
    for one in nested[0]:
        assert np.array_equal(one.result(PATIENCE_S), inner)


def test_the_memory_of_large_arrays_may_be_dropped_while_it_is_written(
    interrupting: Callable[..., list[Any]],
) -> None:
    segments = large_frames.Segments()
    interrupting(_shared_memory, "fill", segments.close)
    assert segments.place([bytes(300_000)]) is None


def test_values_may_be_put_where_values_are_put(shared_cluster: None, interrupting: Callable[..., list[Any]]) -> None:
    first = parl_remote.put(np.full(100_000, 1.0))
    del first  # so that there is memory to be used again
    nested = interrupting(object_memory.MemoryPool, "_find", lambda: parl_remote.put(np.full(100_000, 2.0)))
    outer = parl_remote.put(np.full(100_000, 3.0))
    assert nested[0].get().mean() == 2.0
    assert outer.get().mean() == 3.0


def test_a_handle_may_arrive_where_another_one_is_connected(
    shared_cluster: None, interrupting: Callable[..., list[Any]]
) -> None:
    echo, other = Echo(), Echo()
    nested = interrupting(Borrowing, "reach", other.child)
    assert echo.child().echo(1) == 1
    assert nested[0].echo(2) == 2


@pytest.mark.parametrize(
    "act",
    [
        lambda pool: pool.submit(abs, -2),
        lambda pool: pool.shutdown(wait=False, cancel_futures=True),
        lambda pool: list(pool.map(abs, [-2])),
    ],
)
def test_an_executor_may_be_used_where_it_takes_a_call(
    shared_cluster: None, interrupting: Callable[..., list[Any]], act: Callable[[Any], Any]
) -> None:
    with parl_remote.Executor(max_workers=1) as pool:
        nested = interrupting(executor, "shared_workers", lambda: act(pool))
        assert pool.submit(abs, -1).result(PATIENCE_S) == 1
    assert len(nested) == 1
    assert not isinstance(nested[0], RemoteFuture) or nested[0].result(PATIENCE_S) == 2


def test_the_background_starts_once_though_it_is_needed_where_it_starts(
    connect: Callable[..., None], interrupting: Callable[..., list[Any]]
) -> None:
    connect(cpu_num=1)
    maker: Any = _current.client()
    before = set(threading.enumerate())  # other tests' clients have such a thread, too
    nested = interrupting(client, "Loop", maker._background_loop)
    assert maker._background_loop() is nested[0]
    assert [thread.name for thread in set(threading.enumerate()) - before].count("parl-results") == 1


def test_two_event_loops_that_first_await_an_actor_at_the_same_time_share_its_connection(
    shared_cluster: None, interrupting: Callable[..., list[Any]]
) -> None:
    echo = Echo()

    async def ask(value: int) -> Any:
        return await submit(echo.echo, value)

    def other_loop() -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, ask(2)).result(PATIENCE_S), path._event_loop

    reference = reference_of(echo)
    assert reference is not None
    path: Any = reference.outbox.path
    others = interrupting(EventLoopReader, "resume", other_loop)
    assert asyncio.run(ask(1)) == 1
    ((answer, reader),) = others
    assert answer == 2
    assert path._event_loop is reader
