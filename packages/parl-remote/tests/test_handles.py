"""Handles travel, actors make actors, and an actor lives as long as anybody holds it: the same in this process, in a
private cluster and in a real one, over unix sockets and over TCP.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parl_remote
from faults.ports import unused_port
from parl_remote import ActorLost, ClusterUnreachable, DeathKind, SerializationError, _current, submit, with_options
from parl_remote._data import serialize
from parl_remote._links.requests import PendingAnswer
from parl_remote._program import known_actors
from parl_remote._program.client import Client
from parl_remote._program.connection import Connection
from parl_remote._program.proxy import reference_of
from parl_remote._program.worker_clients import WorkerClients
from parl_remote._system.interrupts import interruptible
from parl_remote.errors import ChannelClosed


@parl_remote.remote_class
class Cell:
    """Keeps something."""

    def __init__(self, content: Any = None) -> None:
        self.content = content

    def get(self) -> Any:
        return self.content

    def put(self, content: Any) -> None:
        self.content = content

    def name_it(self, name: str) -> None:
        setattr(self, name, True)

    def forget(self) -> None:
        self.content = None

    def process(self) -> int:
        return os.getpid()

    def add(self, first: Any, second: Any = 0) -> Any:
        return first + second

    def get_through(self) -> Any:
        return self.content.get()

    def append(self, item: Any) -> int:
        self.content.append(item)
        return len(self.content)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def fail(self) -> None:
        raise KeyError("on purpose")

    def fail_with_a_cell(self) -> None:
        error = ValueError("see the cell")
        error.cell = Cell("evidence")  # type: ignore[attr-defined]
        raise error

    def equals(self, other: Any) -> bool:
        return bool(self.content == other)

    def __len__(self) -> int:
        return 3


@parl_remote.remote_class
class Maker:
    """Makes actors."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def make(self, content: Any = None) -> Any:
        return Cell(content)

    def make_and_keep(self, content: Any = None) -> Any:
        self.kept.append(Cell(content))
        return self.kept[-1]

    def make_many(self, count: int) -> list[Any]:
        return [Cell(number) for number in range(count)]

    def make_named(self, name: str) -> Any:
        self.kept.append(with_options(Cell, name=name)())
        return self.kept[-1]

    def limit_of_named(self, name: str) -> tuple[int, bool]:
        ref: Any = reference_of(parl_remote.get_actor(name))
        return ref.place.limit, ref.place.waits

    def drop(self) -> None:
        self.kept.clear()

    def make_maker(self) -> Any:
        return Maker()

    def process(self) -> int:
        return os.getpid()

    def local_type(self) -> bool:
        return type(self) is Maker

    def fail_to_make(self) -> str:
        try:
            with_options(Cell, n_cpu=10_000, lease_timeout_s=0)()
        except parl_remote.NoResources as error:
            return str(error)
        return "made"


def _xparl(*arguments: object) -> None:
    command = [sys.executable, "-m", "parl_remote.cli", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)


def _look_up_to_the_end(name: str) -> None:
    while True:
        with contextlib.suppress(ActorLost):  # it is just ending
            parl_remote.get_actor(name)


def gone(pid: int, within_s: float = 60.0) -> bool:
    """Return whether a process ends within a time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        threading.Event().wait(0.005)
    return False


class Exit:
    """Ends the program when it is read."""

    def __reduce__(self) -> Any:
        return sys.exit, ()


def make_a_cell_beside_an_exit() -> Any:
    return with_options(Cell, name="beside an exit")(), Exit()


@pytest.mark.slow
def test_an_actor_gets_the_handle_of_another_one_and_calls_it(everywhere: str) -> None:
    cell, other = Cell(5), Cell()
    other.put(cell)
    assert other.get_through() == 5
    cell.put(6)
    assert other.get_through() == 6


def test_a_handle_that_comes_home_is_the_same_actor(everywhere: str) -> None:
    cell, other = Cell(1), Cell()
    other.put(cell)
    back = other.get()
    assert back == cell
    assert hash(back) == hash(cell)
    assert back != other
    assert back.process() == cell.process()
    assert isinstance(back, Cell)
    assert len(back) == 3
    assert other.equals(cell)


def test_handles_travel_in_containers_and_as_methods(everywhere: str) -> None:
    cells = [Cell(number) for number in range(3)]
    keeper = Cell({"cells": cells, "method": cells[1].get})
    kept = keeper.get()
    assert [cell.get() for cell in kept["cells"]] == [0, 1, 2]
    assert kept["method"]() == 1
    assert Cell().call(cells[2].get) == 2
    assert Cell().call(cells[0].add, 1, 2) == 3


def test_a_handle_keeps_its_wait(everywhere: str) -> None:
    cell = with_options(Cell, wait=False)(4)
    assert Cell(cell).get().get().result() == 4


def test_an_actor_makes_actors_of_their_own(everywhere: str) -> None:
    maker = Maker()
    assert maker.local_type()
    cell = maker.make_and_keep("made")
    assert isinstance(cell, Cell)
    assert cell.get() == "made"
    if everywhere != "debug":
        assert len({os.getpid(), maker.process(), cell.process()}) == 3


def test_actors_made_in_actors_make_actors(everywhere: str) -> None:
    maker = Maker()
    second = maker.make_maker()
    third = second.make_maker()
    assert third.make_and_keep(3).get() == 3


def test_an_exception_may_carry_a_handle(everywhere: str) -> None:
    with pytest.raises(ValueError, match="see the cell") as error:
        Cell().fail_with_a_cell()
    assert error.value.cell.get() == "evidence"  # type: ignore[attr-defined]


def test_many_handles_come_in_one_answer(everywhere: str) -> None:
    maker = Maker()
    cells = maker.make_many(4)
    assert [cell.get() for cell in cells] == [0, 1, 2, 3]


def test_an_actor_that_cannot_have_another_one_gets_the_error(everywhere: str) -> None:
    assert "10000" in Maker().fail_to_make()


def test_an_actor_lives_while_a_borrower_holds_it_and_ends_with_the_last_one(everywhere: str) -> None:
    cell, borrower = Cell(7), Cell()
    pid = cell.process()
    borrower.put(cell)
    del cell
    assert borrower.get_through() == 7
    borrower.forget()
    if everywhere != "debug":
        assert gone(pid)


def test_an_actor_whose_owner_holds_it_outlives_its_borrowers(everywhere: str) -> None:
    cell, borrower = Cell(7), Cell()
    borrower.put(cell)
    borrower.forget()
    del borrower
    assert cell.get() == 7


def test_a_handle_on_its_way_keeps_its_actor(everywhere: str) -> None:
    maker, keeper = Maker(), Cell()
    for number in range(10):
        keeper.put(maker.make(number))
        assert keeper.get_through() == number


def test_a_handle_comes_back_after_its_owner_dropped_it(everywhere: str) -> None:
    cell, keeper = Cell(8), Cell()
    keeper.put(cell)
    del cell
    again = keeper.get()
    keeper.forget()
    assert again.get() == 8


def test_a_handle_that_comes_back_at_once_leaves_the_end_of_the_former_connection_to_the_loop(
    clusters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: queue.Queue[Any] = queue.Queue()
    comes_back = threading.Event()

    def send_close(channel: Any, **how: Any) -> bool:
        try:
            done = say(channel, **how)
        except ChannelClosed as error:
            said.put(error)
            raise
        said.put(done)
        return done

    def reach(client: WorkerClients, *request: Any) -> Any:
        comes_back.set()
        return ask(client, *request)

    say, ask, client = known_actors.send_close, WorkerClients.ask, _current.client()
    assert isinstance(client, Client)
    cell: Any = Cell()
    keeper: Any = Cell(cell)
    assert keeper.get_through() is None
    monkeypatch.setattr(known_actors, "send_close", send_close)
    monkeypatch.setattr(WorkerClients, "ask", reach)
    client._loop.call_soon(comes_back.wait)
    del cell
    back = keeper.get()
    assert back.get() is None
    assert said.get(timeout=60) is True  # the loop may be late


def test_an_actor_may_hold_its_own_handle_without_living_for_ever(everywhere: str) -> None:
    cell = Cell()
    pid = cell.process()
    cell.put(cell)
    assert cell.get() == cell
    del cell
    if everywhere != "debug":
        assert gone(pid)


def test_an_actor_that_waits_for_itself_gets_an_error(clusters: str) -> None:
    cell = Cell(1)
    with pytest.raises(parl_remote.RemoteError, match=r"waits in a method for its own get\(\)"):
        cell.call(cell.get)
    assert cell.get() == 1
    free = with_options(Cell, max_concurrency=2)(2)
    assert free.call(free.get) == 2


def test_two_threads_receive_the_same_handle(everywhere: str) -> None:
    cell, keeper = Cell(2), Cell()
    keeper.put(cell)
    del cell
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(keeper.get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [one.get() for one in got] == [2, 2, 2, 2]


def test_what_a_dead_borrowed_actor_died_of_is_known_to_all(clusters: str) -> None:
    cell, borrower = Cell(), Cell()
    borrower.put(cell)
    assert borrower.get_through() is None
    os.kill(cell.process(), signal.SIGKILL)
    for call in (cell.get, borrower.get_through):
        with pytest.raises(ActorLost) as lost:
            call()
        assert lost.value.cause.kind is DeathKind.SIGNAL
        assert lost.value.cause.signal == signal.SIGKILL
    assert borrower.process() > 0


def test_a_handle_that_arrives_after_its_actor_died_says_of_what(clusters: str) -> None:
    cell, carrier, borrower = Cell(), Cell(), Cell()
    carrier.put(cell)
    os.kill(cell.process(), signal.SIGKILL)
    with pytest.raises(ActorLost):
        cell.get()
    borrower.put(cell)
    with pytest.raises(ActorLost) as lost:
        borrower.get_through()
    assert lost.value.cause.signal == signal.SIGKILL


def test_a_busy_actor_can_be_borrowed_any_number_of_times(clusters: str, tmp_path: Path) -> None:
    class Busy:
        def wait(self, path: str) -> str:
            return Path(path).read_text()

        def get(self) -> int:
            return os.getpid()

    busy_class = parl_remote.remote_class(Busy)
    busy, keeper = busy_class(), Cell()
    pid = busy.get()
    os.mkfifo(tmp_path / "gate")
    keeper.put(busy)
    waiting = submit(busy.wait, str(tmp_path / "gate"))
    asker = Cell()
    for _ in range(100):  # each makes it borrow and let go
        asker.put(keeper.get())
        asker.forget()
    assert not waiting.done()
    asker.put(busy)
    (tmp_path / "gate").write_text("done")
    assert waiting.result(30) == "done"
    del busy, waiting
    keeper.forget()
    assert asker.get_through() == pid
    asker.forget()
    assert gone(pid)


def test_actors_of_an_actor_end_with_it(clusters: str) -> None:
    maker = Maker()
    cell = maker.make_and_keep(1)
    pid = cell.process()
    os.kill(maker.process(), signal.SIGKILL)
    with pytest.raises(ActorLost):
        maker.process()
    assert gone(pid)
    with pytest.raises(ActorLost) as lost:
        cell.get()
    assert lost.value.cause.kind is DeathKind.CLIENT_GONE


def test_actors_of_an_actor_that_ends_in_order_end_with_it_and_say_so(clusters: str) -> None:
    maker = Maker()
    cell = maker.make_and_keep(1)
    pid = cell.process()
    del maker
    assert gone(pid)
    with pytest.raises(ActorLost) as lost:
        cell.get()
    assert lost.value.cause.kind is DeathKind.CLIENT_GONE


def test_destroying_through_a_borrowed_handle_ends_the_actor(everywhere: str) -> None:
    maker = Maker()
    cell = maker.make_and_keep(1)
    cell.destroy()
    with pytest.raises(ActorLost) as lost:
        cell.get()
    assert lost.value.cause.kind is DeathKind.KILLED_BY_USER


def test_a_borrower_knows_the_attributes_without_asking(everywhere: str) -> None:
    cell, keeper = Cell(), Cell()
    keeper.put(cell)
    borrowed = keeper.get()
    assert hasattr(borrowed, "content")
    assert hasattr(borrowed, "get")
    assert not hasattr(borrowed, "gte")
    cell.name_it("late")
    assert hasattr(borrowed, "late")
    keeper.call(cell.name_it, "later")
    assert hasattr(cell, "later")
    with pytest.raises(AttributeError, match="did you mean content"):
        borrowed.contents  # noqa: B018


def test_a_handle_that_comes_by_a_third_party_knows_what_has_changed_meanwhile(everywhere: str) -> None:
    cell, keeper, caller = Cell(), Cell(), Cell()
    keeper.put(cell)
    caller.call(cell.name_it, "new")  # the keeper's process has not heard of it
    assert hasattr(keeper.get(), "new")
    other = Cell(keeper).get().get()
    assert hasattr(other, "new")
    assert not hasattr(other, "newer")


def test_a_future_as_an_argument_arrives_as_its_value(everywhere: str) -> None:
    first, second = Cell(3), Cell()
    assert second.add(submit(first.get), second=submit(first.get)) == 6
    assert submit(second.add, submit(first.get), 4).result() == 7
    assert Cell(submit(first.get)).get() == 3


def test_futures_of_futures_form_a_pipeline(everywhere: str) -> None:
    cells = [Cell() for _ in range(3)]
    future = submit(cells[0].add, 1, 0)
    for number in range(12):
        future = submit(cells[number % 3].add, future, 1)
    assert future.result() == 13


def test_calls_after_one_that_waits_stay_behind_it(clusters: str, tmp_path: Path) -> None:
    class Gate:
        def wait(self, path: str) -> int:
            return int(Path(path).read_text())

    gate, cell = parl_remote.remote_class(Gate)(), Cell()
    os.mkfifo(tmp_path / "gate")
    put = submit(cell.put, submit(gate.wait, str(tmp_path / "gate")))
    get = submit(cell.get)
    assert not put.done()
    assert not get.done()
    (tmp_path / "gate").write_text("1")
    assert get.result(60) == 1
    assert put.result(60) is None
    assert cell.get() == 1


def test_a_future_as_a_result_comes_back_as_its_value(everywhere: str) -> None:
    cell, caller = with_options(Cell, wait=False)(3), Cell()
    assert caller.call(cell.get) == 3
    with pytest.raises(KeyError, match="on purpose"):
        caller.call(cell.fail)
    assert caller.call(cell.add, 1, 2) == 3


def test_the_order_of_calls_holds_whichever_wait(everywhere: str) -> None:
    source, log = Cell(), Cell([])
    futures = []
    for number in range(200):
        value = submit(source.add, number) if number % 3 == 0 else number
        futures.append(submit(log.append, value))
        if number % 50 == 49:
            futures[-1].result(30)
    assert log.get() == list(range(200))
    assert [future.result(30) for future in futures] == list(range(1, 201))


def test_the_error_of_a_future_becomes_that_of_the_call(everywhere: str) -> None:
    first, second = Cell(), Cell(2)
    with pytest.raises(KeyError, match="on purpose"):
        second.put(submit(first.fail))
    assert second.get() == 2


def test_a_call_that_waits_can_be_cancelled_and_timed_out(clusters: str) -> None:
    class Sleeper:
        def sleep(self, seconds: float) -> None:
            time.sleep(seconds)

    sleeper, cell = parl_remote.remote_class(Sleeper)(), Cell(1)
    slow = submit(sleeper.sleep, 0.6)
    waits = submit(cell.put, slow)
    with pytest.raises(parl_remote.ResultTimeout):
        waits.result(0.01)
    assert waits.cancel()
    assert waits.cancelled()
    assert cell.get() == 1


def test_a_future_in_a_container_is_refused_by_name(everywhere: str) -> None:
    cell = Cell()
    with pytest.raises(SerializationError, match=r"argument 'content' \(a list\) of Cell.put\(\).*pass it alone"):
        cell.put([submit(cell.get)])


def test_arrays_go_with_handles(everywhere: str) -> None:
    array = np.arange(300_000, dtype=np.float64)
    cell, keeper = Cell(array), Cell()
    keeper.put((cell, array))
    back, copy = keeper.get()
    np.testing.assert_array_equal(back.get(), copy)


def test_a_handle_can_be_pickled_by_hand_while_its_actor_lives(everywhere: str) -> None:
    cell = Cell(1)
    assert pickle.loads(pickle.dumps(cell)).get() == 1
    assert pickle.loads(pickle.dumps(cell.get))() == 1


def test_a_handle_that_was_pickled_by_hand_is_held_by_no_other_call(clusters: str) -> None:
    cells, other = [Cell(number) for number in range(3)], Cell()
    processes = [cell.process() for cell in cells]
    for cell in cells:
        pickle.dumps(cell)
    waits = submit(other.call, time.sleep, 600.0)
    del cell
    cells.clear()
    try:
        assert all(gone(process) for process in processes)
        assert not waits.done()
    finally:
        other.destroy()  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrap", [list, lambda refs: {"refs": refs, "fn": lambda: None}, lambda refs: lambda: refs])
def test_the_pickler_of_a_message_notes_the_references_in_it(any_cluster: _Clusters, wrap: Callable[..., Any]) -> None:
    any_cluster.use("debug")
    cell, value = Cell(), parl_remote.put(b"x" * 100_000)
    noted: list[object] = []
    serialize.dumps(wrap([cell, value, cell.get, "parl_remote"]), noted)
    assert {type(one).__name__ for one in noted} == {"ActorRef", "ObjectRef"}
    assert value in noted
    later: list[object] = []
    pickle.dumps(cell)
    serialize.dumps([1, "parl_remote"], later)
    assert not later


def test_a_named_actor_is_found_by_its_name(everywhere: str) -> None:
    cell = with_options(Cell, name="the cell")(5)
    found = parl_remote.get_actor("the cell")
    assert found == cell
    assert found.get() == 5

    @parl_remote.remote_class
    class Seeker:
        def seek(self, name: str) -> Any:
            return parl_remote.get_actor(name).get()

        def is_a_cell(self, name: str) -> bool:
            return isinstance(parl_remote.get_actor(name), Cell)

    seeker = Seeker()
    assert seeker.seek("the cell") == 5
    assert seeker.is_a_cell("the cell")


def test_an_unknown_name_is_reported_with_a_similar_one(everywhere: str) -> None:
    cell = with_options(Cell, name="weights")(5)
    with pytest.raises(parl_remote.NoSuchActor, match=r"'wieghts'.*weights"):
        parl_remote.get_actor("wieghts")
    with pytest.raises(LookupError):
        parl_remote.kill("wieghts")
    assert cell.get() == 5


def test_a_taken_name_is_refused_and_free_once_its_actor_is_gone(everywhere: str) -> None:
    cell = with_options(Cell, name="only one")(1)
    with pytest.raises(parl_remote.NameTaken, match="the name 'only one' is taken"):
        with_options(Cell, name="only one")(2)
    parl_remote.kill(cell)
    again = with_options(Cell, name="only one")(3)
    assert parl_remote.get_actor("only one").get() == 3
    del again


def test_a_named_actor_ends_with_its_handles(everywhere: str) -> None:
    cell = with_options(Cell, name="passing")(1)
    pid = cell.process()
    del cell
    if everywhere != "debug":
        assert gone(pid)
    with pytest.raises(parl_remote.NoSuchActor):
        _look_up_to_the_end("passing")


def test_a_named_actor_keeps_its_wait_and_its_attributes(everywhere: str) -> None:
    cell = with_options(Cell, name="pipelined", wait=False)(4)
    found = parl_remote.get_actor("pipelined")
    assert found.get().result() == 4
    assert hasattr(found, "content")
    assert not hasattr(found, "contents")
    del cell


def test_a_named_actor_keeps_its_limit_of_calls(clusters: str) -> None:
    limited = with_options(Cell, name="limited", max_pending_calls=3, when_full="raise")(4)
    assert Maker().limit_of_named("limited") == (3, False)
    del limited


def test_looking_an_actor_up_again_does_not_stop_news_to_its_holders(clusters: str) -> None:
    maker = Maker()
    held = maker.make_named("known")
    for _ in range(3):
        assert parl_remote.get_actor("known") == held
    os.kill(held.process(), signal.SIGKILL)
    with pytest.raises(ActorLost) as lost:
        held.get()
    assert lost.value.cause.kind is DeathKind.SIGNAL


def test_kill_ends_an_actor_by_handle_and_by_name(everywhere: str) -> None:
    one, two = Cell(1), with_options(Cell, name="second")(2)
    parl_remote.kill(one)
    parl_remote.kill("second")
    for cell in (one, two):
        with pytest.raises(ActorLost) as lost:
            cell.get()
        assert lost.value.cause.kind is DeathKind.KILLED_BY_USER
    with pytest.raises(TypeError, match="takes a remote object or the name of one"):
        parl_remote.kill(3)
    with pytest.raises(TypeError, match="not a method of it"):
        parl_remote.kill(one.get)


def test_an_actor_that_is_being_made_is_waited_for(clusters: str) -> None:
    class Slow:
        def __init__(self) -> None:
            time.sleep(0.2)
            self.ready = True

    made: list[Any] = []
    slow = parl_remote.remote_class(Slow)
    thread = threading.Thread(target=lambda: made.append(parl_remote.with_options(slow, name="slow")()))
    thread.start()
    deadline = time.monotonic() + 60.0
    while True:
        try:
            found = parl_remote.get_actor("slow")
            break
        except parl_remote.NoSuchActor:  # its name is not known yet
            assert time.monotonic() < deadline
    assert found.ready
    thread.join(60.0)


def test_an_actor_is_found_by_name_once_its_maker_holds_it(clusters: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one reference to an actor, and one connection, whoever asks for it first."""
    holding, go_on = threading.Event(), threading.Event()
    reference = Client._reference

    def held_back(client: Client, *args: Any) -> Any:
        if threading.current_thread() is maker:
            holding.set()
            assert go_on.wait(240.0)
        return reference(client, *args)

    monkeypatch.setattr(Client, "_reference", held_back)
    made: list[Any] = []
    found: list[Any] = []
    maker = threading.Thread(target=lambda: made.append(parl_remote.with_options(Cell, name="held back")(3)))
    finder = threading.Thread(target=lambda: found.append(parl_remote.get_actor("held back", timeout_s=240.0)))
    beside = with_options(Cell, name="beside")(4)
    maker.start()
    assert holding.wait(240.0)
    unanswered: Any = _current.client()._workers._requests._open  # type: ignore[attr-defined]
    finder.start()
    deadline = time.monotonic() + 240.0
    while not unanswered:  # the finder asks the actor's node, which answers once the maker has the actor
        assert time.monotonic() < deadline
    ((_, answer),) = unanswered.values()
    assert parl_remote.get_actor("beside", timeout_s=240.0) == beside
    assert not answer.done(), "the finder would make a connection of its own"
    go_on.set()
    for thread in (maker, finder):
        thread.join(240.0)
    assert found == made
    assert found[0].get() == 3


def test_a_look_up_that_is_interrupted_does_not_keep_the_actor(
    any_cluster: _Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    any_cluster.use("private")
    holding, go_on = threading.Event(), threading.Event()
    reference = Client._reference

    def held_back(client: Client, *args: Any) -> Any:
        holding.set()
        assert go_on.wait(240.0)
        return reference(client, *args)

    monkeypatch.setattr(Client, "_reference", held_back)
    made: list[Any] = []
    maker = threading.Thread(target=lambda: made.append(parl_remote.with_options(Cell, name="sought")()))
    maker.start()
    assert holding.wait(240.0)
    workers: Any = _current.client()._workers  # type: ignore[attr-defined]
    ask = workers.ask

    def interrupted(*_: object) -> None:
        with interruptible:
            signal.raise_signal(signal.SIGINT)

    def asked(*args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(PendingAnswer, "result", interrupted)  # where it waits for the answer to what it has sent
            return ask(*args)

    monkeypatch.setattr(workers, "ask", asked)
    with pytest.raises(KeyboardInterrupt):
        parl_remote.get_actor("sought")
    monkeypatch.undo()
    go_on.set()
    maker.join(240.0)
    pid = made[0].process()
    made.clear()
    assert gone(pid)


@pytest.mark.parametrize(("kind", "wait"), [(WorkerClients, "ask"), (Connection, "join")])
def test_a_handle_whose_arrival_is_interrupted_does_not_keep_the_actor(
    any_cluster: _Clusters, monkeypatch: pytest.MonkeyPatch, kind: type, wait: str
) -> None:
    any_cluster.use("private")
    maker = Maker()
    cell = maker.make_and_keep()
    pid, handle = cell.process(), pickle.dumps(cell)
    del cell
    waits = getattr(kind, wait)

    def interrupted(*args: Any, **options: Any) -> Any:
        answer = waits(*args, **options)
        with interruptible:
            signal.raise_signal(signal.SIGINT)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(kind, wait, interrupted)
        with pytest.raises(KeyboardInterrupt):
            pickle.loads(handle)
    maker.drop()
    assert gone(pid)


def test_an_actor_ends_although_the_result_with_its_handle_could_not_be_read(any_cluster: _Clusters) -> None:
    any_cluster.use("private")
    maker = Cell()
    with pytest.raises(SerializationError, match="SystemExit"):
        maker.call(make_a_cell_beside_an_exit)
    with pytest.raises(parl_remote.NoSuchActor):
        _look_up_to_the_end("beside an exit")


def test_a_detached_actor_is_refused_where_it_could_not_outlive_the_program(any_cluster: _Clusters) -> None:
    for kind in ("debug", "private"):
        any_cluster.use(kind)
        with pytest.raises(ValueError, match="would outlive this program"):
            with_options(Cell, detached=True)()


@pytest.mark.slow
def test_a_detached_actor_outlives_its_program_until_it_is_killed(real_cluster: str) -> None:
    with_options(Cell, name="lasting", detached=True)(7)
    pid = parl_remote.get_actor("lasting").process()
    address = _current.client().address
    program = (
        "import parl_remote as parl\n"
        f"parl.connect({address!r})\n"
        "cell = parl.get_actor('lasting')\n"
        "print(cell.get())\n"
        "cell.put('seen')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "7\n", done.stderr
    assert parl_remote.get_actor("lasting").get() == "seen"
    maker = subprocess.run(
        [
            sys.executable,
            "-c",
            "import parl_remote as parl\n"
            "@parl.remote_class(name='left behind', detached=True)\n"
            "class Left:\n"
            "    def answer(self): return 42\n"
            f"parl.connect({address!r})\n"
            "print(Left().answer())\n",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert maker.stdout == "42\n", maker.stderr
    left = parl_remote.get_actor("left behind")
    assert left.answer() == 42
    parl_remote.kill("left behind")
    parl_remote.kill("lasting")
    assert gone(pid)
    with pytest.raises(ActorLost):
        left.answer()


def test_the_page_s_examples_run(run_program: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "handles.md").read_text()
    program = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    done = run_program(program=program)
    assert done.stdout.split() == ["30", "30", "1", "3", "1"], done.stderr


class _Clusters:
    """Connections of every kind, each opened when a test first wants it and kept for the others."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._clients: dict[str, _current.ActorMaker] = {}
        self._ports: dict[str, int] = {}

    def use(self, kind: str) -> None:
        _current.clear()
        if kind not in self._clients:
            self._open(kind)
            self._clients[kind] = _current.client()
        _current.install(self._clients[kind])

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        _current.clear()
        for kind, port in self._ports.items():
            with self.environment(kind):
                _xparl("stop", "--port", port)

    def _open(self, kind: str) -> None:
        if kind in {"debug", "private"}:
            parl_remote.connect(cpu_num=24, debug=kind == "debug")
            return
        with self.environment(kind):
            port = self._ports[kind] = unused_port()
            _xparl("start", "--port", port, "--cpu_num", 24)
            parl_remote.connect(f"127.0.0.1:{port}")

    @contextlib.contextmanager
    def environment(self, kind: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PARL_RUN_DIR", str(self._directory / kind))
            patch.setenv("PARL_FORCE_TCP", "1" if kind == "tcp" else "0")
            yield


@pytest.fixture(scope="module")
def any_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Clusters]:
    clusters = _Clusters(tmp_path_factory.mktemp("run"))
    yield clusters
    clusters.close()


@pytest.fixture(params=["debug", "private", "unix", "tcp"])
def everywhere(request: pytest.FixtureRequest, any_cluster: _Clusters) -> str:
    """Actors in this process, in a private cluster, in a real one by unix sockets, and by TCP."""
    any_cluster.use(request.param)
    return str(request.param)


@pytest.fixture(params=["unix", "tcp"])
def real_cluster(request: pytest.FixtureRequest, any_cluster: _Clusters) -> Iterator[str]:
    """A cluster that outlives programs, with the environment that finds it."""
    any_cluster.use(request.param)
    with any_cluster.environment(request.param):
        yield str(request.param)


@pytest.fixture(params=["private", "unix", "tcp"])
def clusters(request: pytest.FixtureRequest, any_cluster: _Clusters) -> str:
    """Clusters of processes of every kind."""
    any_cluster.use(request.param)
    return str(request.param)


def squared(number: int) -> int:
    return number * number


def told(cell: Any, number: int) -> int:
    cell.put(number)
    return os.getpid()


@pytest.mark.slow
def test_plain_functions_run_on_every_kind_of_cluster(clusters: str) -> None:
    assert list(parl_remote.map(squared, range(300))) == [n * n for n in range(300)]
    arrays = [np.full(300_000, n, np.float32) for n in range(5)]
    assert [float(array[9]) for array in parl_remote.map(np.negative, arrays)] == [-float(n) for n in range(5)]
    cell = Cell()
    with parl_remote.Executor(2) as executor:
        assert executor.submit(told, cell, 7).result(60.0) != os.getpid()
    assert cell.get() == 7


def test_no_news_of_an_actor_is_awaited_from_a_worker_that_takes_no_connection(
    shared_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise ClusterUnreachable("it cannot take another connection")

    cell = Cell()
    monkeypatch.setattr(known_actors, "CAUSE_PATIENCE_S", 3600.0)
    monkeypatch.setattr(WorkerClients, "ask", refuse)
    with pytest.raises(ActorLost, match="it cannot take another connection"):
        cell.call(Cell).get()
