"""`max_restarts`: an actor that was lost is made again behind the same handle, with its state if it saves one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import select
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parl_remote
from faults.polling import eventually
from parl_remote import ActorLost, ActorPool, DeathKind, RemoteFuture, ResultTimeout, _current, submit, with_options
from parl_remote._program import restarts
from parl_remote._program.client import Client
from parl_remote._transport.unix import UnixChannel

PATIENCE_S = 60.0


@parl_remote.remote_class(max_restarts=2)
class Counter:
    """Counts, and forgets when it dies."""

    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self.count = start
        self.step = step

    def add(self) -> int:
        self.count += self.step
        return self.count

    def pid(self) -> int:
        return os.getpid()

    def hold(self, path: str) -> str:
        with open(path) as gate:
            return gate.read()

    def leave(self) -> None:
        os._exit(3)

    def fail(self) -> None:
        raise ValueError("an exception is not a death")


@parl_remote.remote_class(max_restarts=-1)
class Saving:
    """Counts, and does not forget."""

    def __init__(self) -> None:
        self.count = 0
        self.big = np.zeros(300_000)
        self.loads = 0

    def __parl_save__(self) -> Any:
        return {"count": self.count, "big": self.big, "loads": self.loads}

    def __parl_load__(self, state: Any) -> None:
        self.count, self.big = state["count"], state["big"].copy()
        self.loads = state["loads"] + 1

    def add(self, n: int = 1) -> int:
        self.count += n
        self.big[:] = self.count
        return self.count

    def fail_after_adding(self) -> None:
        self.count += 100
        raise KeyError("after the fact")

    def what(self) -> tuple[int, float, int]:
        return self.count, float(self.big.sum()), self.loads

    def pid(self) -> int:
        return os.getpid()


@parl_remote.remote_class(max_restarts=3)
class SavesSometimes:
    def __init__(self) -> None:
        self.count = 0

    def __parl_save__(self) -> int | None:
        if self.count == 7:
            raise OSError("no more")
        return self.count if self.count % 5 == 0 else None

    def __parl_load__(self, state: int) -> None:
        self.count = state

    def add(self) -> int:
        self.count += 1
        return self.count

    def pid(self) -> int:
        return os.getpid()


@parl_remote.remote_class(max_restarts=3)
class AsyncSaving:
    def __init__(self) -> None:
        self.count = 0

    def __parl_save__(self) -> int:
        return self.count

    def __parl_load__(self, state: int) -> None:
        asyncio.get_running_loop()  # it is loaded where calls run
        self.count = state

    async def add(self) -> int:
        self.count += 1
        await asyncio.sleep(0)
        return self.count

    async def pid(self) -> int:
        return os.getpid()


@parl_remote.remote_class(max_restarts=1)
class HalfSaving:
    def __parl_save__(self) -> int:
        return 1


@parl_remote.remote_class(max_restarts=2)
class OnceOnly:
    """Its constructor works as often as there are marks in a file."""

    def __init__(self, path: str) -> None:
        marks = Path(path).read_text()
        if not marks:
            raise RuntimeError("no marks left")
        Path(path).write_text(marks[1:])

    def pid(self) -> int:
        return os.getpid()


@parl_remote.remote_class(max_restarts=-1)
class WaitsLater:
    """Its constructor waits at a gate, once there is one."""

    def __init__(self, gate: str) -> None:
        if os.path.exists(gate):
            with open(gate) as opened:
                opened.read()

    def pid(self) -> int:
        return os.getpid()


@parl_remote.remote_class
class Holder:
    def __init__(self, other: Any) -> None:
        self.other = other

    def add(self) -> Any:
        return self.other.add()


@parl_remote.remote_class(max_restarts=1)
class Sum:
    def __init__(self, array: Any) -> None:
        self.sum = float(array.sum())

    def told(self) -> float:
        return self.sum

    def pid(self) -> int:
        return os.getpid()


def kill(actor: Any, pid: int = 0) -> None:
    """End the actor's process; what is called later finds it gone, it is not merely on its way there."""
    pid = pid or actor.pid()
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([process], [], [], PATIENCE_S)
    os.close(process)


def lost(future: RemoteFuture[Any]) -> ActorLost:
    error = future.exception(PATIENCE_S)
    assert isinstance(error, ActorLost)
    return error


def test_the_handle_leads_to_a_new_actor_made_of_the_same_arguments(connect: Callable[..., None]) -> None:
    connect(cpu_num=1)
    counter = Counter(10, step=5)
    assert [counter.add(), counter.add()] == [15, 20]
    before = counter.pid()
    kill(counter)
    assert counter.add() == 15
    assert counter.pid() != before


def test_calls_in_flight_say_that_it_is_made_again_and_later_ones_wait_for_that(
    share_cluster: Callable[[int], None], tmp_path: Path
) -> None:
    share_cluster(1)
    counter = Counter()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    pid = counter.pid()
    held, queued = submit(counter.hold, str(gate)), submit(counter.add)
    os.kill(pid, signal.SIGKILL)
    for future in (held, queued):
        error = lost(future)
        assert error.is_restarting
        assert "SIGKILL" in str(error)
        assert "restart 1 of 2" in str(error)
    later = [submit(counter.add) for _ in range(3)]
    assert [future.result(PATIENCE_S) for future in later] == [1, 2, 3]


def make_it_wait(counter: Any, seconds: float) -> None:
    """Kill an actor whose resources another one takes for so long, and have it answer once that has ended."""
    client: Any = _current.client()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waits = pool.submit(with_options(Counter, lease_timeout_s=PATIENCE_S))
        eventually(lambda: client._status().waiting)  # it is asked for first
        kill(counter)
        later = submit(counter.add)
        other = waits.result(PATIENCE_S)
        with pytest.raises(ResultTimeout):
            later.result(seconds)
        del other, waits
    assert later.result(PATIENCE_S) == 1


@pytest.mark.slow
def test_a_restart_waits_for_resources_in_a_program_that_runs_functions(connect: Callable[..., None]) -> None:
    connect(cpu_num=2)
    assert list(parl_remote.map(abs, [-1])) == [1]
    counter = Counter()  # there is a CPU for it
    holder = Counter()  # the idle worker of functions makes way for it
    make_it_wait(counter, 2.0)
    assert holder.add() == 1


def test_a_restart_that_finds_no_resources_is_not_used_up(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    counter = with_options(Counter, max_restarts=1, lease_timeout_s=0.0)()
    make_it_wait(counter, 0.4)


def test_after_the_limit_the_last_cause_is_raised(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    counter = Counter()
    for _ in range(3):
        kill(counter)
    for _ in range(2):
        with pytest.raises(ActorLost, match="made again twice, as often as max_restarts allows") as caught:
            counter.add()
        assert caught.value.cause.signal == signal.SIGKILL
        assert not caught.value.is_restarting
    assert Counter().add() == 1  # its slot is free


def test_an_actor_that_exits_is_made_again_and_an_exception_is_no_death(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    counter = Counter()
    with pytest.raises(ValueError, match="not a death"):
        counter.fail()
    assert [counter.add(), counter.add()] == [1, 2]
    with pytest.raises(ActorLost, match="status 3"):
        counter.leave()
    assert counter.add() == 1


@parl_remote.remote_class
class Retiring:
    def retire(self) -> None:
        _current.end_actor()


def test_an_actor_that_nobody_needs_ends_itself_without_a_loss(shared_cluster: None) -> None:
    with pytest.raises(ActorLost) as caught:
        Retiring().retire()
    assert caught.value.cause.kind is DeathKind.RELEASED


def test_a_supervisor_whose_actor_was_not_made_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def end() -> None:
        ended.set()
        threading.Event().wait()  # as if this process had ended

    monkeypatch.setattr(restarts, "_LOOK_S", 0.001)
    monkeypatch.setattr(_current, "end_actor", end)
    restarts.Supervisor()
    assert ended.wait(60.0)


def test_without_max_restarts_nothing_is_made_again(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    counter = with_options(Counter, max_restarts=0)()
    kill(counter)
    with pytest.raises(ActorLost) as caught:
        counter.add()
    assert not caught.value.is_restarting


def test_it_can_be_made_again_as_often_as_needed(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    counter = with_options(Counter, max_restarts=-1)()
    for _ in range(6):
        kill(counter)
        assert counter.add() == 1


def test_destroying_it_is_final(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    counter: Any = Counter()
    counter.destroy()
    with pytest.raises(ActorLost) as caught:
        counter.add()
    assert caught.value.cause.kind is DeathKind.KILLED_BY_USER
    assert with_options(Counter, lease_timeout_s=PATIENCE_S)().add() == 1


def test_killing_it_while_it_is_made_again_is_final(share_cluster: Callable[[int], None], tmp_path: Path) -> None:
    share_cluster(1)
    gate = tmp_path / "gate"
    actor: Any = with_options(WaitsLater, name="killed twice")(str(gate))
    pid = actor.pid()
    os.mkfifo(gate)
    kill(actor, pid)
    with open(gate, "w"):  # once the constructor waits there
        parl_remote.kill("killed twice")
        with pytest.raises(ActorLost, match="it was being made again, and then it was destroyed") as caught:
            submit(actor.pid).result(PATIENCE_S)
    assert caught.value.cause.signal == signal.SIGKILL
    assert with_options(Counter, lease_timeout_s=PATIENCE_S)().add() == 1


def test_killing_it_while_it_waits_for_resources_is_final(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    counter: Any = with_options(Counter, name="waits")()
    pid = counter.pid()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        other = threads.submit(with_options(Counter, lease_timeout_s=PATIENCE_S))
        waits_for_the_slot()
        kill(counter, pid)
        taker = other.result(PATIENCE_S)  # its request was first
    parl_remote.kill("waits")
    with pytest.raises(ActorLost, match="it was being made again, and then it was destroyed: by"):
        submit(counter.add).result(PATIENCE_S)
    assert taker.add() == 1
    del taker, other
    assert with_options(Counter, name="waits", lease_timeout_s=PATIENCE_S)().add() == 1


def waits_for_the_slot() -> None:
    """Wait until a request is in the master's queue."""
    client: Any = _current.client()
    eventually(lambda: client._status().waiting)


def test_killing_it_before_its_process_is_there_is_final(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(cpu_num=1)
    client: Any = _current.client()
    places, of = client.actor_factory._places, client.actor_factory._places.of

    def killed_meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(places, "of", of)
        parl_remote.kill("early")
        return of(*args)

    monkeypatch.setattr(places, "of", killed_meanwhile)
    with pytest.raises(ActorLost, match="it was destroyed"):
        with_options(Counter, name="early")()
    counter: Any = with_options(Counter, name="early")()
    pid = counter.pid()
    monkeypatch.setattr(places, "of", killed_meanwhile)
    kill(counter, pid)
    with pytest.raises(ActorLost, match="it was being made again, and then it was destroyed"):
        submit(counter.pid).result(PATIENCE_S)


def test_dropping_the_handle_ends_the_actor_that_was_made_again(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    counter = Counter()
    kill(counter)
    assert counter.add() == 1
    del counter
    assert with_options(Counter, lease_timeout_s=PATIENCE_S)().add() == 1


def test_dropping_the_handle_while_it_is_made_again_leaves_nothing(connect: Callable[..., None]) -> None:
    connect(cpu_num=1)
    for _ in range(5):
        counter = with_options(Counter, lease_timeout_s=PATIENCE_S)()
        kill(counter)
        del counter
    assert with_options(Counter, lease_timeout_s=PATIENCE_S)().add() == 1


def test_a_busy_actor_is_not_made_again_when_its_program_disconnects(
    connect: Callable[..., None], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    connect(cpu_num=1)
    os.mkfifo(tmp_path / "gate")
    held = submit(Counter().hold, str(tmp_path / "gate"))
    with open(tmp_path / "gate", "w"):  # once it waits there
        parl_remote.disconnect()
    with pytest.raises(ActorLost, match="the program disconnected"):
        held.result(PATIENCE_S)
    assert "made again" not in caplog.text


def test_disconnecting_while_it_is_made_again_ends_the_calls_that_wait(connect: Callable[..., None]) -> None:
    connect(cpu_num=1)
    counter = Counter()
    kill(counter)
    future = submit(counter.add)
    parl_remote.disconnect()
    assert isinstance(future.exception(PATIENCE_S), ActorLost | None)


def test_a_constructor_that_fails_then_uses_up_a_restart(share_cluster: Callable[[int], None], tmp_path: Path) -> None:
    share_cluster(1)
    marks = tmp_path / "marks"
    marks.write_text("x")
    actor = OnceOnly(str(marks))
    kill(actor)
    with pytest.raises(ActorLost, match="RuntimeError: no marks left") as caught:
        actor.pid()
    assert caught.value.cause.signal == signal.SIGKILL
    assert "as often as max_restarts allows" in str(caught.value)


def test_arrays_among_the_arguments_are_those_of_the_first_time(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    array = np.ones(200_000)
    actor = Sum(array)
    array[:] = 7
    kill(actor)
    assert actor.told() == 200_000


def test_many_calls_under_way_are_answered_or_lost_and_all_that_follow_are_answered(
    share_cluster: Callable[[int], None],
) -> None:
    share_cluster(1)
    counter = with_options(Counter, max_restarts=-1)()
    pid = counter.pid()
    futures = [submit(counter.add) for _ in range(2_000)]
    os.kill(pid, signal.SIGKILL)
    concurrent.futures.wait(futures, PATIENCE_S)
    answered = [future for future in futures if future.exception(PATIENCE_S) is None]
    assert [future.result() for future in answered[:10]] == list(range(1, len(answered[:10]) + 1))
    later = [submit(counter.add) for _ in range(100)]
    assert all(isinstance(future.result(PATIENCE_S), int) for future in later)


def test_threads_that_call_meanwhile_all_get_answers(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    counter = with_options(Counter, max_restarts=-1)()
    stop = threading.Event()
    losses: list[ActorLost] = []

    def call() -> None:
        while not stop.is_set():
            try:
                counter.add()
            except ActorLost as error:
                losses.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        try:
            kill(counter)
        except ActorLost:  # between two deaths
            continue
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert all(error.is_restarting for error in losses)
    assert counter.add() > 0


# -- state -------------------------------------------------------------------------------------------------------------


def test_what_was_answered_is_not_forgotten(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    actor = Saving()
    assert [actor.add() for _ in range(5)] == [1, 2, 3, 4, 5]
    kill(actor)
    assert actor.what() == (5, 5 * 300_000, 1)
    with pytest.raises(KeyError):
        actor.fail_after_adding()
    kill(actor)
    assert actor.what()[0] == 105
    assert actor.what()[2] == 2


def test_an_attribute_that_was_written_is_not_forgotten(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    actor = Saving()
    actor.count = 42
    kill(actor)
    assert actor.count == 42


def test_none_keeps_what_was_saved_before_and_so_does_an_error(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    actor = SavesSometimes()
    assert [actor.add() for _ in range(8)] == list(range(1, 9))
    kill(actor)
    assert actor.add() == 6


def test_the_state_of_coroutines_is_kept(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    actor = AsyncSaving()
    futures = [submit(actor.add) for _ in range(20)]
    concurrent.futures.wait(futures, PATIENCE_S)
    kill(actor)
    assert submit(actor.add).result(PATIENCE_S) == 21


@pytest.mark.parametrize("is_saved_again", [True, False])
def test_an_actor_is_not_made_again_without_what_it_saved_last(
    share_cluster: Callable[[int], None], is_saved_again: bool
) -> None:
    def no_memory(size: int) -> Any:
        raise MemoryError

    share_cluster(1)
    actor = Saving()
    pid, client = actor.pid(), _current.client()
    assert isinstance(client, Client)
    (channel,) = [record.channel for record in client.own.records.values() if record.pid == pid]
    assert isinstance(channel, UnixChannel)
    assert actor.add() == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel._reader, "_allocate", no_memory)
        assert actor.add() == 2
    if is_saved_again:
        assert actor.add() == 3
        kill(actor, pid)
        assert actor.what() == (3, 3 * 300_000, 1)
        return
    kill(actor, pid)
    with pytest.raises(ActorLost, match=r"not made again, because the last state that it saved is lost: .*no memory"):
        actor.what()


@pytest.mark.slow
def test_calls_of_others_are_saved_too_although_the_owner_does_nothing(shared_cluster: None) -> None:
    actor = Saving()
    pid = actor.pid()
    holders = [Holder(actor) for _ in range(2)]
    for _ in range(50):
        for holder in holders:
            holder.add()
    kill(actor, pid)
    assert actor.what()[0] == 100


def test_the_connection_to_a_dropped_actor_that_saves_is_closed(connect: Callable[..., None]) -> None:
    connect(cpu_num=1)
    client: Any = _current.client()
    dropped: list[weakref.ref[Any]] = []
    for _ in range(5):
        saving = with_options(Saving, lease_timeout_s=PATIENCE_S)()
        saving.add()
        dropped.extend(weakref.ref(record.connection) for record in client.own.records.values())
        del saving
    assert len(dropped) >= 5
    until = time.monotonic() + PATIENCE_S
    while any(connection() is not None for connection in dropped):
        assert time.monotonic() < until
        gc.collect()
        threading.Event().wait(0.005)


def test_one_half_of_saving_is_refused(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    with pytest.raises(TypeError, match="__parl_save__ but no __parl_load__"):
        HalfSaving()


# -- with other things -------------------------------------------------------------------------------------------------


def test_a_pool_keeps_actors_that_are_made_again(shared_cluster: None, tmp_path: Path) -> None:
    once = tmp_path / "once"

    @parl_remote.remote_class(max_restarts=1)
    class Worker:
        def work(self, item: int) -> int:
            if item == 5 and not once.exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return item

    actors = [Worker(), Worker()]
    with ActorPool(actors) as pool:
        assert list(pool.map("work", range(30))) == list(range(30))
        assert len(pool) == 2


def test_other_holders_find_the_new_actor(shared_cluster: None) -> None:
    counter = with_options(Counter, max_restarts=-1)()
    holder = Holder(counter)
    assert holder.add() == 1
    for _ in range(3):
        kill(counter)
        for _ in range(50):
            try:
                assert holder.add() == 1
                break
            except ActorLost:
                continue
        else:
            pytest.fail("the holder did not find it")


def test_other_holders_learn_that_no_restart_is_left(shared_cluster: None) -> None:
    counter = with_options(Counter, max_restarts=1)()
    holder = Holder(counter)
    for _ in range(2):
        kill(counter)
    with pytest.raises(ActorLost):  # the holder may not have noticed before
        holder.add()
    with pytest.raises(ActorLost, match="its owner does not make it again") as caught:
        holder.add()
    assert not caught.value.is_restarting


def test_a_name_leads_to_the_new_actor(share_cluster: Callable[[int], None]) -> None:
    share_cluster(1)
    counter = with_options(Counter, name="the counter", max_restarts=-1)()
    kill(counter)
    assert counter.add() == 1
    found: Any = parl_remote.get_actor("the counter")
    assert found.add() == 2
    with pytest.raises(parl_remote.NameTaken):
        with_options(Counter, name="the counter", lease_timeout_s=0)()
