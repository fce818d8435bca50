"""The outbox of an actor's reference: random histories against a simple model, and single steps."""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import socket
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from faults.another_actor import AnotherActor
from faults.narrow import Narrow
from parl_remote import RemoteError, RemoteFuture, SerializationError, TooManyPendingCalls
from parl_remote._data import serialize
from parl_remote._data.calls import Call, FuturePlaceholder
from parl_remote._links.call_messages import HEADER_BYTES, pack
from parl_remote._links.loop import Loop
from parl_remote._program import connection
from parl_remote._program.connection import Connection
from parl_remote._program.outbox import Outbox
from parl_remote._program.outbox_state import TABLE, OutboxEvent, OutboxMachine, OutboxState
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import ChannelClosed

PATIENCE_S = 60.0
HISTORIES = 3_000
STEPS = 60
CROSSINGS = 400


class Path:
    """An actor's end that does what the test says, and writes down what it was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, RemoteFuture[Any]]] = []
        self.calls: list[Call] = []
        self.unanswered: dict[str, RemoteFuture[Any]] = {}
        self.room = 10**9
        self.is_closed = False
        self.losses = 0
        self.outbox: Outbox | None = None

    def send(self, call: Call, future: RemoteFuture[Any]) -> bool:
        if self.is_closed:
            raise ChannelClosed("closed")
        if not self.room:
            return False
        self.room -= 1
        self.sent.append((call.method, future))
        self.calls.append(call)
        self.unanswered[call.method] = future
        future._carrier = self
        return True

    def is_full(self) -> bool:
        return not self.room

    def is_sending_here(self) -> bool:
        return False

    def report_loss(self) -> None:
        self.losses += 1

    def read_unawaited(self) -> None:
        pass

    # -- future.Carrier, as far as it is used

    def cancel(self, future: RemoteFuture[Any]) -> bool:
        if self.unanswered.pop(future.method, None) is None:
            return False
        future._settle(None, cancelled=True)
        return True

    def watch(self, future: RemoteFuture[Any]) -> None:
        pass

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> None:
        raise NotImplementedError

    def await_in(self, loop: Any, future: RemoteFuture[Any]) -> None:
        raise NotImplementedError

    def look(self) -> None:
        pass

    def lose(self, error: Exception) -> None:
        self.is_closed = True
        while self.unanswered:
            self.unanswered.popitem()[1]._settle(None, error)


class Reported:
    """Counts how often a future's end is told."""

    def __init__(self, future: RemoteFuture[Any]) -> None:
        self.future = future
        self.times = 0
        future.add_done_callback(self._count)

    def _count(self, _: object) -> None:
        self.times += 1

    _count.__module__ = RemoteFuture.__module__  # it runs at once, as the package's own


class History:
    """One random history of an outbox, and what the model says of it.

    The model: calls are a list in the order in which they were made. A call leaves when all before it have left or were
    cancelled, its futures are settled, and there is an actor that takes it. Each ends exactly once.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.path: Path | None = Path()
        self.paths = [self.path]
        self.outbox = Outbox(self.path)
        self.waiting: list[tuple[str, list[RemoteFuture[Any]]]] = []  # the model's queue: name, what it waits for
        self.should_be_sent: list[str] = []
        self.cancelled: set[str] = set()
        self.reported: dict[str, Reported] = {}
        self.dependencies: list[RemoteFuture[Any]] = []
        self.is_gone = False
        self.count = 0

    def run(self) -> None:
        steps: list[Callable[[], None]] = [
            *[self.call] * 6,
            *[self.call_with_futures] * 3,
            *[self.settle] * 3,
            *[self.cancel] * 2,
            *[self.answer] * 3,
            self.fill,
            self.drain,
            self.drain,
            self.lose,
            self.break_connection,
            self.make_again,
            self.make_again,
        ]
        for _ in range(STEPS):
            self.random.choice(steps)()
            self.check()
            if self.random.random() < 0.003:
                self.end()
                self.check()
        for dependency in self.dependencies:
            if not dependency._settled:
                dependency._settle(0)
        self.advance()
        self.check()
        if self.random.random() < 0.5:
            self.make_again()
            self.drain()
            self.check()
        self.end()
        for path in self.paths:
            path.lose(RuntimeError("lost"))
        self.check()
        assert all(one.times == 1 for one in self.reported.values())  # each reported, and once

    # -- steps

    def call(self, futures: tuple[RemoteFuture[Any], ...] = ()) -> None:
        self.count += 1
        name = f"call {self.count}"
        payload = serialize.dumps(tuple(FuturePlaceholder(i) for i in range(len(futures)))) if futures else ()
        future = self.outbox.submit(Call(2, 0, 0, payload, name), futures)
        self.reported[name] = Reported(future)
        if not self.is_gone:
            self.waiting.append((name, list(futures)))
        self.advance()

    def call_with_futures(self) -> None:
        for _ in range(self.random.randint(1, 2)):
            dependency: RemoteFuture[Any] = RemoteFuture(None)
            self.dependencies.append(dependency)
        self.call(tuple(self.random.sample(self.dependencies[-4:], min(2, len(self.dependencies)))))

    def settle(self) -> None:
        open_ones = [one for one in self.dependencies if not one._settled]
        if open_ones:
            one = self.random.choice(open_ones)
            if self.random.random() < 0.15:
                one._settle(None, ValueError("a dependency failed"))
            else:
                one._settle(1)
            self.advance()

    def cancel(self) -> None:
        name = self.random.choice([*self.reported, ""])
        if name and self.reported[name].future.cancel():
            self.cancelled.add(name)
            self.waiting = [one for one in self.waiting if one[0] != name]
            self.advance()

    def answer(self) -> None:
        if self.path is not None and self.path.unanswered:
            name = self.random.choice(list(self.path.unanswered))
            self.path.unanswered.pop(name)._settle(name)

    def fill(self) -> None:
        if self.path is not None:
            self.path.room = min(self.path.room, self.random.randint(0, 3))

    def drain(self) -> None:
        if self.path is not None and not self.path.is_closed:
            self.path.room = self.random.choice([1, 2, 10**9])
            self.advance()
            self.outbox.on_writable()

    def lose(self) -> None:
        if self.path is not None:
            self.outbox.lost()
            self.path.lose(RuntimeError("lost"))
            self.path = None

    def break_connection(self) -> None:
        """The calls meet the loss before anybody tells of it."""
        if self.path is not None:
            self.path.lose(RuntimeError("lost"))

    def make_again(self) -> None:
        if self.is_gone:
            return
        self.lose()
        self.path = Path()
        self.path.room = self.random.choice([0, 1, 10**9, 10**9])
        self.paths.append(self.path)
        self.advance()
        self.outbox.made(self.path)

    def end(self) -> None:
        self.is_gone = True
        self.waiting.clear()
        self.outbox.end(lambda: RuntimeError("gone"))
        if self.path is not None:
            self.path.lose(RuntimeError("lost"))
            self.path = None

    # -- the model

    def advance(self) -> None:
        """Let those calls leave, in the model, that can."""
        room = 0 if self.path is None or self.path.is_closed else self.path.room
        taken = len(self.should_be_sent) - sum(len(path.sent) for path in self.paths)
        room -= taken  # the path itself counts only what it has been sent already
        while self.waiting and all(one._settled for one in self.waiting[0][1]):
            name, futures = self.waiting[0]
            if not any(map(_failed, futures)):
                if room <= 0:
                    return
                room -= 1
                self.should_be_sent.append(name)
            self.waiting.pop(0)

    def check(self) -> None:
        sent = [name for path in self.paths for name, _ in path.sent]
        assert sent == self.should_be_sent  # in order, none lost, none doubled
        assert not self.cancelled & set(self.still_to_be_sent())
        assert all(one.times <= 1 for one in self.reported.values())
        for name, futures in self.waiting:
            assert any(map(_failed, futures)) or not self.reported[name].future._settled
        if self.path is None or not self.path.is_closed:  # else whichever call meets the loss finds it
            is_next = bool(self.waiting) and all(one._settled for one in self.waiting[0][1])
            assert self.outbox.is_sending == (is_next and self.path is not None)

    def still_to_be_sent(self) -> list[str]:
        return [name for name, _ in self.waiting]


def _failed(future: RemoteFuture[Any]) -> bool:
    return future._settled and future.exception(0) is not None


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 6))])
def test_random_histories_are_as_the_model_says(part: int) -> None:
    for seed in range(part * HISTORIES // 6, (part + 1) * HISTORIES // 6):
        try:
            History(seed).run()
        except AssertionError as error:
            error.add_note(f"(the history of seed {seed})")
            raise


class Crossing:
    """One random history of a connection that two threads fill, until the actor is lost and another one is made.

    The model: a call that the actor has whole is lost with it; all others go to the next actor, in order.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        ours, theirs = socket.socketpair()
        self.narrow = cast("Any", Narrow(ours))
        self.end = UnixChannel(theirs)
        self.loop = Loop()
        self.connection = Connection(
            UnixChannel(self.narrow),
            background=lambda: self.loop,
            lost=lambda _: RuntimeError("lost"),
            on_names=lambda _: None,
        )
        self.outbox = Outbox(self.connection)
        self.futures: dict[str, RemoteFuture[Any]] = {}
        self.between: list[Callable[[], None]] = []
        self.count = 0

    def run(self) -> None:
        self.narrow.takes = 0
        for _ in range(self.random.randint(1, 12)):
            self.random.choice([self.call, self.call_of_both, self.call_of_both, self.write])()
        self.connection.channel.close()
        got = self.received()
        self.outbox.lost()
        self.connection.lose()
        another = AnotherActor()
        self.outbox.made(another)
        assert got + [call.method for call in another.calls] == list(self.futures)  # in order, none lost, none doubled
        for name, future in self.futures.items():
            assert future._settled == (name in got)

    def call(self) -> None:
        self.count += 1
        name = f"call {self.count}"
        future = self.outbox.submit(Call(2, 0, 0, serialize.dumps((name,)), name))
        self.futures[name] = future  # now: what another thread called meanwhile was first

    def call_of_both(self) -> None:
        """Another thread makes a call when this one's is about to be written."""
        self.between.append(self.call)
        self.call()

    def write(self) -> None:
        self.narrow.takes = self.random.randint(0, 100)
        self.connection.write()

    def pack(self, *fields: Any) -> Any:
        if self.between:
            self.between.pop()()
        return pack(*fields)

    def close(self) -> None:
        self.connection.channel.close()
        self.end.close()
        self.loop.close()

    def received(self) -> list[str]:
        names = []
        with contextlib.suppress(ChannelClosed):
            while True:
                (data, *buffers) = self.end.receive(PATIENCE_S)
                names.append(serialize.loads(data[HEADER_BYTES:], buffers)[0])
        return names


@pytest.mark.parametrize("part", range(2))
def test_random_histories_of_two_threads_are_as_the_model_says(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(part * CROSSINGS // 2, (part + 1) * CROSSINGS // 2):
        history = Crossing(seed)
        monkeypatch.setattr(connection, "pack", history.pack)
        try:
            history.run()
        except AssertionError as error:
            error.add_note(f"(the history of seed {seed})")
            raise
        finally:
            history.close()


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_state_can_end_and_nothing_leaves_gone() -> None:
    assert set(TABLE) == set(OutboxState)
    assert all(TABLE[state][OutboxEvent.ENDED] is OutboxState.GONE for state in OutboxState if TABLE[state])
    assert not TABLE[OutboxState.GONE]


@pytest.mark.parametrize("state", OutboxState)
@pytest.mark.parametrize("event", OutboxEvent)
def test_an_event_that_is_not_listed_changes_nothing(state: OutboxState, event: OutboxEvent) -> None:
    machine: OutboxMachine[str] = OutboxMachine(state)
    assert machine.on(event) is (event in TABLE[state])
    assert machine.state is TABLE[state].get(event, state)


def test_slots_are_given_in_the_order_of_asking() -> None:
    machine: OutboxMachine[str] = OutboxMachine()
    machine.limit = 2
    assert [machine.enter(), machine.enter(), machine.enter()] == [True, True, False]
    for caller in "abc":
        machine.await_slot(caller)
    assert machine.give_up_slot("b")
    assert [machine.leave(), machine.enter(), machine.leave(), machine.leave()] == ["a", False, "c", None]
    assert not machine.give_up_slot("a")
    assert machine.enter()


def test_calls_that_wait_for_a_slot_proceed_when_the_actor_is_gone() -> None:
    machine: OutboxMachine[str] = OutboxMachine()
    machine.limit = 1
    assert machine.enter()
    machine.await_slot("a")
    assert machine.end() == []
    assert machine.admit_all() == ["a"]
    assert machine.enter()
    assert not machine.add("call")


# -- steps -------------------------------------------------------------------------------------------------------------


def submitted(outbox: Outbox, name: str = "call", payload: Any = ()) -> RemoteFuture[Any]:
    return outbox.submit(Call(2, 0, 0, payload, name))


def test_a_call_that_the_connection_could_not_send_goes_to_the_next_actor_first() -> None:
    first, second = Path(), Path()
    outbox = Outbox(first)
    taken = submitted(outbox, "taken")
    outbox.lost()
    waiting = submitted(outbox, "waiting")
    outbox.give_back(Call(2, 0, 0, (), "taken"), taken)
    outbox.made(second)
    assert [name for name, _ in second.sent] == ["taken", "waiting"]
    assert not taken._settled
    assert not waiting._settled


def test_a_call_that_a_full_path_refuses_when_it_is_replaced_leaves_by_the_new_one() -> None:
    """The refusal is about the lost actor's path, which never says that it takes calls again."""

    class ReplacedMeanwhile(Path):
        def send(self, call: Call, future: RemoteFuture[Any]) -> bool:
            if is_restart_quick:
                outbox.lost()
                outbox.made(second)
            return super().send(call, future)

    is_restart_quick = False
    first, second = ReplacedMeanwhile(), Path()
    outbox = Outbox(first)
    first.room = 0
    waiting = submitted(outbox, "waiting")
    is_restart_quick = True
    outbox.on_writable()
    assert [name for name, _ in second.sent] == ["waiting"]
    assert not waiting._settled
    submitted(outbox, "next")
    assert [name for name, _ in second.sent] == ["waiting", "next"]


def test_a_call_that_meets_the_loss_is_not_reported_before_the_fate_of_the_actor_is_known() -> None:
    path = Path()
    outbox = Outbox(path)
    path.is_closed = True
    futures = [submitted(outbox), submitted(outbox)]
    assert path.losses == 1
    assert not any(future._settled for future in futures)
    outbox.end(lambda: RuntimeError("the cause"))
    assert [str(future.exception(0)) for future in futures] == ["the cause"] * 2
    assert str(submitted(outbox).exception(0)) == "the cause"


def test_a_handler_may_call_where_the_loss_is_being_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path()
    outbox = Outbox(path)
    path.is_closed = True
    nested: list[RemoteFuture[Any]] = []
    on = OutboxMachine.on

    def interrupted(machine: OutboxMachine[Any], event: OutboxEvent) -> bool:
        if event is OutboxEvent.LOST and not nested:
            nested.append(submitted(outbox, "nested"))
        return on(machine, event)

    monkeypatch.setattr(OutboxMachine, "on", interrupted)
    first = submitted(outbox, "first")
    other = Path()
    outbox.made(other)
    assert [name for name, _ in other.sent] == ["first", "nested"]
    assert not first._settled


def test_a_handler_that_waits_where_a_call_leaves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path()
    path.room = 0
    outbox = Outbox(path)
    submitted(outbox, "first")
    has_left = OutboxMachine.has_left
    refused: list[str] = []

    def interrupted(machine: OutboxMachine[Any]) -> None:
        if not refused:
            with pytest.raises(RemoteError, match="signal handler") as caught:
                submitted(outbox, "nested").result(PATIENCE_S)
            refused.append(str(caught.value))
        has_left(machine)

    monkeypatch.setattr(OutboxMachine, "has_left", interrupted)
    path.room = 10
    outbox.on_writable()
    assert len(refused) == 1
    assert [name for name, _ in path.sent] == ["first", "nested"]


def test_an_array_is_copied_when_its_call_cannot_leave() -> None:
    path = Path()
    path.room = 0
    outbox = Outbox(path)
    array = np.zeros(100_000)
    call = Call(2, 0, 0, serialize.dumps((array,)), "call")
    outbox.submit(call)
    array[:] = 1
    path.room = 1
    outbox.on_writable()
    received = serialize.loads(path.calls[0].payload[0], path.calls[0].payload[1:])[0]
    assert received.sum() == 0
    received[:] = 2  # as writable as one that is sent at once


def test_results_of_futures_are_put_into_the_arguments_by_their_reader() -> None:
    same = np.arange(3.0)
    call = Call(2, 0, 0, serialize.dumps((same, FuturePlaceholder(1), {"in": same}, FuturePlaceholder(0))), "call")
    sent = call.completed([np.ones(100_000), "text"])
    first, text, inner, ones = serialize.loads(sent.payload[0], sent.payload[1:])
    assert text == "text"
    assert inner["in"] is first  # one pickle, in which what was the same stays the same
    assert ones.sum() == 100_000
    ones[0] = 5


def test_a_result_that_cannot_be_sent_on_fails_the_call_and_not_those_behind_it() -> None:
    path = Path()
    outbox = Outbox(path)
    dependency: RemoteFuture[Any] = RemoteFuture(None)
    failed = outbox.submit(Call(2, 0, 0, serialize.dumps((FuturePlaceholder(0),)), "call"), [dependency])
    behind = submitted(outbox, "behind")
    dependency._settle(threading.Lock())
    with pytest.raises(SerializationError, match="the awaited arguments of call"):
        failed.result(0)
    assert [name for name, _ in path.sent] == ["behind"]
    assert not behind._settled


def test_a_thread_that_waits_for_a_held_call_goes_on_at_the_connection() -> None:
    path = Path()
    path.room = 0
    outbox = Outbox(path)
    future = submitted(outbox)
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        moved = other.submit(outbox.wait_for, future, PATIENCE_S)
        while not future._blocked:
            pass
        path.room = 1
        outbox.on_writable()
        moved.result(PATIENCE_S)
    assert future._carrier is path


def test_threads_that_call_while_the_path_opens_and_closes_lose_nothing_and_keep_their_order() -> None:
    path = Path()
    outbox = Outbox(path)
    lock = threading.Lock()
    send = path.send

    def guarded(call: Call, future: RemoteFuture[Any]) -> bool:
        with lock:
            return send(call, future)

    path.send = guarded  # type: ignore[method-assign]
    stop = threading.Event()

    def open_and_close() -> None:
        while not stop.is_set():
            with lock:
                path.room = 3
            outbox.on_writable()

    def call(caller: int) -> None:
        for number in range(500):
            submitted(outbox, f"{caller} {number:03}")

    opener = threading.Thread(target=open_and_close)
    opener.start()
    with concurrent.futures.ThreadPoolExecutor(4) as callers:
        list(callers.map(call, range(4)))
    while outbox.unsent:
        pass
    stop.set()
    opener.join()
    names = [name for name, _ in path.sent]
    for caller in range(4):
        assert [n for n in names if n.startswith(f"{caller} ")] == [f"{caller} {i:03}" for i in range(500)]


def test_a_limit_refuses_where_it_is_not_to_wait() -> None:
    path = Path()
    outbox = Outbox(path)
    outbox.limit(1, waits=False)
    first = submitted(outbox)
    with pytest.raises(TooManyPendingCalls):
        submitted(outbox)
    assert first.cancel()
    submitted(outbox)
