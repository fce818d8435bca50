"""A process that gets no connection to a living actor for a shortage: the call fails with it, and a later one works."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import parl_remote
from faults.another_actor import AnotherActor
from faults.polling import eventually
from parl_remote import ActorLost, DeathKind, RemoteCallError, RemoteFuture, _current
from parl_remote._data.calls import Call
from parl_remote._messages.parts import ActorWatched
from parl_remote._program import known_actors, restarts
from parl_remote._program.actor_ref import ActorPlace
from parl_remote._program.creation import CreationRequest
from parl_remote._program.known_actors import ActorRecord, Borrowing, OwnActors, Unreached
from parl_remote._program.outbox import Outbox
from parl_remote._program.worker_clients import WorkerClients
from parl_remote.errors import ChannelClosed, DeathCause

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits descriptors")

PATIENCE_S = 60.0
_MOST = 256


class Short:
    """A process that can use up its descriptors."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def use_up(self) -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with contextlib.suppress(OSError):
            while True:
                self.kept.append(os.dup(0))

    def give_back(self) -> int:
        while self.kept:
            os.close(self.kept.pop())
        return os.getpid()


@parl_remote.remote_class(n_cpu=0)
class Keeper(Short):
    """An actor that others call."""

    def get(self) -> int:
        return os.getpid()


@parl_remote.remote_class(n_cpu=0)
class Asker(Short):
    """A second caller of a `Keeper`."""

    def ask(self, keeper: Any) -> int:
        return int(keeper.get())

    def ask_later(self, keeper: Any) -> int:
        return int(parl_remote.submit(keeper.get).result())

    def connect(self, keeper: Any) -> int:
        """Be connected to the cluster, by an actor whose connection stays: the end of one would free a descriptor."""
        self.first = keeper
        return int(keeper.get())

    def keep(self, keeper: Any) -> None:
        self.keeper = keeper

    def give(self) -> Any:
        return self.keeper

    def ask_kept(self) -> int:
        return int(self.keeper.get())

    def cannot_reach_workers(self) -> None:
        def ask(*_: object) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        self.without = pytest.MonkeyPatch()
        self.without.setattr(WorkerClients, "ask", ask)

    def can_reach_workers(self) -> None:
        self.without.undo()


@parl_remote.remote_class(n_cpu=0)
class Owner(Asker):
    """Makes a `Keeper`, leaves it to an `Asker`, and gets it back."""

    def make(self, restarts: int, asker: Any) -> int:
        keeper: Any = parl_remote.with_options(Keeper, max_restarts=restarts)()
        asker.keep(keeper)
        self.asker = asker
        return int(keeper.get())

    def is_let_go(self) -> bool:
        client: Any = _current.client()
        return not client._releaser._dropped and not client._releaser._closing

    def get_back(self) -> int:
        self.keeper = self.asker.give()
        return int(self.keeper.get())


def lacks_descriptors(call: Any, *args: Any) -> None:
    with pytest.raises(ActorLost, match=r"Keeper cannot be reached: .*: Too many open files") as lost:
        call(*args)
    assert lost.value.cause.kind is DeathKind.UNREACHABLE
    assert lost.value.from_outside
    assert isinstance(lost.value, RemoteCallError), "the caller of the caller gets it"


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("is_short", [Keeper, Asker])
def test_without_descriptors_at_either_end_a_call_fails_and_a_later_one_works(
    shared_cluster: None, is_short: type, restarts: int
) -> None:
    keeper: Any = parl_remote.with_options(Keeper, max_restarts=restarts)()
    asker: Any = Asker()
    asker.connect(Keeper())
    short = keeper if is_short is Keeper else asker
    short.use_up()
    lacks_descriptors(asker.ask, keeper)
    lacks_descriptors(asker.ask_later, keeper)
    asker.keep(keeper)
    lacks_descriptors(asker.ask_kept)
    assert keeper.get() == keeper.give_back(), "it lives"
    asker.give_back()
    assert asker.ask_kept() == asker.ask(keeper) == keeper.get()
    parl_remote.kill(keeper)
    with pytest.raises(ActorLost, match="destroyed"):
        asker.ask_kept()


def answer_of_the_next(keeper: Any, killed: int) -> int:
    """Return the answer of the actor that is made again; calls that the killed one has taken are lost."""
    while True:
        try:
            if (pid := int(keeper.ask_kept() if hasattr(keeper, "ask_kept") else keeper.get())) != killed:
                return pid
        except ActorLost as error:
            if not error.is_restarting:
                raise


@pytest.mark.parametrize("limit", [0, 1])
def test_an_own_actor_whose_handle_comes_back_without_descriptors_lives_on(shared_cluster: None, limit: int) -> None:
    asker: Any = Asker()
    owner: Any = Owner()
    pid = owner.make(limit, asker)
    eventually(owner.is_let_go)
    owner.use_up()
    lacks_descriptors(owner.get_back)
    lacks_descriptors(owner.ask_kept)
    owner.give_back()
    assert owner.ask_kept() == asker.ask_kept() == pid
    os.kill(pid, signal.SIGKILL)
    if limit:
        assert answer_of_the_next(owner, pid) == asker.ask_kept()
    else:
        for one in (owner, asker):
            with pytest.raises(ActorLost, match="SIGKILL"):
                one.ask_kept()


def test_a_call_of_an_own_actor_that_dies_while_its_handle_comes_back_fails(
    shared_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker: Any = Asker()
    keeper: Any = parl_remote.with_options(Keeper, max_restarts=1)()
    asker.keep(keeper)
    pid = keeper.get()
    client: Any = _current.client()
    del keeper
    eventually(lambda: not client._releaser._dropped and not client._releaser._closing)
    reach, forget, is_forgotten = Borrowing.reach, OwnActors.forget, threading.Event()

    def reach_and_kill(borrowing: Borrowing, *args: Any) -> Any:
        path = reach(borrowing, *args)
        os.kill(pid, signal.SIGKILL)
        assert is_forgotten.wait(PATIENCE_S)
        return path

    def note_forgotten(own: OwnActors, record: ActorRecord, cause: DeathCause) -> None:
        forget(own, record, cause)
        if cause.signal == signal.SIGKILL:  # not one that an earlier test has dropped
            is_forgotten.set()

    monkeypatch.setattr(Borrowing, "reach", reach_and_kill)
    monkeypatch.setattr(OwnActors, "forget", note_forgotten)
    returned = parl_remote.submit(asker.give).result(PATIENCE_S)
    with pytest.raises(ActorLost, match="SIGKILL"):
        parl_remote.submit(returned.get).result(PATIENCE_S)


def test_an_own_actor_that_came_back_unreached_and_was_dropped_is_left_to_the_others(shared_cluster: None) -> None:
    asker: Any = Asker()
    owner: Any = Owner()
    pid = owner.make(0, asker)
    eventually(owner.is_let_go)
    owner.use_up()
    lacks_descriptors(owner.get_back)
    owner.keep(None)
    owner.give_back()
    eventually(owner.is_let_go)
    assert asker.ask_kept() == pid


@pytest.mark.parametrize("limit", [1, -1])
@pytest.mark.parametrize(
    "shortage",
    [
        OSError(errno.EMFILE, "Too many open files"),
        MemoryError(),
        ActorLost(DeathCause(DeathKind.EXIT, detail=f"its host could not start it ({os.strerror(errno.ENOMEM)})")),
        ActorLost(DeathCause(DeathKind.UNREACHABLE, detail="Too many open files")),
    ],
)
def test_a_restart_waits_until_there_are_descriptors_and_memory(
    shared_cluster: None, shortage: Exception, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper: Any = parl_remote.with_options(Keeper, max_restarts=limit)()
    killed, tries = keeper.get(), iter(range(4))

    def connect_actor(*arguments: Any) -> Any:
        if next(tries, None) is not None:
            raise shortage
        return connect(*arguments)

    connect = WorkerClients.connect_actor
    monkeypatch.setattr(WorkerClients, "connect_actor", connect_actor)
    monkeypatch.setattr(restarts, "_FIRST_DELAY_S", 0.0)
    os.kill(killed, signal.SIGKILL)
    assert answer_of_the_next(keeper, killed) != killed
    assert next(tries, None) is None, "all tries have been made"


def test_a_restart_does_not_wait_for_ever_for_memory(shared_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> Any:
        raise MemoryError("the arguments are too large")

    keeper: Any = parl_remote.with_options(Keeper, max_restarts=1)()
    killed = keeper.get()
    monkeypatch.setattr(CreationRequest, "message", no_memory)
    monkeypatch.setattr(restarts, "_FIRST_DELAY_S", 0.0)
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(ActorLost, match="the arguments are too large"):
        answer_of_the_next(keeper, killed)


@parl_remote.remote_class(n_cpu=0, max_restarts=1)
class Large:
    """Has no memory the second time."""

    def __init__(self, mark: str) -> None:
        if os.path.exists(mark):
            raise MemoryError("a large array")
        with open(mark, "w"):
            pass

    def get(self) -> int:
        return os.getpid()


def test_a_constructor_that_has_no_memory_counts_as_a_restart(shared_cluster: None, tmp_path: Path) -> None:
    large: Any = Large(str(tmp_path / "made"))
    os.kill(killed := large.get(), signal.SIGKILL)
    with pytest.raises(ActorLost, match="a large array"):
        answer_of_the_next(large, killed)


def test_an_actor_that_is_made_again_while_it_cannot_be_reached_is_found(shared_cluster: None) -> None:
    keeper: Any = parl_remote.with_options(Keeper, max_restarts=1)()
    asker: Any = Asker()
    asker.connect(Keeper())
    asker.cannot_reach_workers()
    asker.keep(keeper)
    lacks_descriptors(asker.ask_kept)
    os.kill(killed := keeper.get(), signal.SIGKILL)
    made_again = answer_of_the_next(keeper, killed)
    asker.can_reach_workers()
    assert asker.ask_kept() == made_again


def test_a_connection_for_which_there_is_no_memory_fails_for_that() -> None:
    def ask(*_: object) -> ActorWatched:
        raise MemoryError("no memory is left")

    unused: Any = None
    workers: Any = SimpleNamespace(ask=ask)
    record = ActorRecord("lease", "node", "Keeper", is_borrowed=True)
    path = Borrowing(unused, workers, unused, own_lease="", timeout_s=1.0).reach(
        ActorPlace("lease", "node", (), "", ""), record
    )
    assert isinstance(path, Unreached)
    assert "no memory is left" in str(record.unsent())
    assert not record.has_ended


def test_while_it_connects_again_calls_of_the_refused_connection_fail_with_the_shortage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_actors, "CAUSE_PATIENCE_S", 0.0)
    record = ActorRecord("lease", "node", "Keeper", is_borrowed=True)
    record.refuse("Too many open files")
    errors: list[Any] = []

    def ask(*_: object) -> ActorWatched:
        errors.append(record.error("get"))
        return ActorWatched(1, cause=DeathCause(DeathKind.EXIT))

    unused: Any = None
    workers: Any = SimpleNamespace(ask=ask)
    borrowing = Borrowing(unused, workers, unused, own_lease="", timeout_s=1.0)
    assert borrowing.connect(ActorPlace("lease", "node", (), "", ""), record) is None
    assert errors[0].cause.kind is DeathKind.UNREACHABLE
    errors.append(record.error("get"))
    assert errors[1].cause.kind is DeathKind.EXIT, "the end is the last word"


class Attempts:
    """Connects once the test says how that ends."""

    def __init__(self) -> None:
        self.ends: queue.Queue[AnotherActor | None] = queue.Queue()
        self.record = ActorRecord("lease", "node", "Keeper", is_borrowed=True)
        self.record.place = ActorPlace("lease", "node", (), "", "")
        self.record.refuse("Too many open files")
        self.path = Unreached(cast("Borrowing", self), self.record)
        self.outbox = self.record.outbox = Outbox(self.path)

    def connect(self, place: ActorPlace, record: ActorRecord) -> Any:
        reached = self.ends.get()
        if reached is not None:
            record.refusal = None
        return reached

    def reconnect_if_refused(self, record: ActorRecord) -> None:
        Borrowing.reconnect_if_refused(cast("Borrowing", self), record)

    def submit(self, name: str) -> RemoteFuture[Any]:
        return self.outbox.submit(Call(2, 0, 0, (), name))


def test_a_call_does_not_wait_for_the_connection() -> None:
    attempts = Attempts()
    futures = [attempts.submit("first"), attempts.submit("second")]
    assert not any(future._settled for future in futures)
    attempts.ends.put(None)
    for future in futures:
        with pytest.raises(ActorLost, match="Too many open files"):
            future.result(PATIENCE_S)
    later = attempts.submit("third")
    assert not later._settled
    attempts.ends.put(reached := AnotherActor())
    eventually(lambda: attempts.outbox.path is reached and not attempts.outbox.unsent)
    attempts.submit("fourth")
    assert [call.method for call in reached.calls] == ["third", "fourth"]


def test_a_call_that_is_cancelled_meanwhile_is_not_sent() -> None:
    attempts = Attempts()
    cancelled, other = attempts.submit("cancelled"), attempts.submit("other")
    assert cancelled.cancel()
    attempts.ends.put(reached := AnotherActor())
    eventually(lambda: not attempts.outbox.unsent)
    assert [call.method for call in reached.calls] == ["other"]
    assert not other._settled


def test_a_connection_that_is_refused_before_calls_leave_by_it_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_and_lose() -> None:
        monkeypatch.undo()
        attempts.record.refuse("Too many open files")
        attempts.reconnect_if_refused(attempts.record)
        attempts.outbox.lost()

    def send(*_: object) -> bool:
        raise ChannelClosed("it was refused")

    attempts, refused, reached = Attempts(), AnotherActor(), AnotherActor()
    monkeypatch.setattr(attempts.outbox, "lost", refuse_and_lose)
    vars(refused).update(send=send, hang_up=bool)
    future = attempts.submit("first")
    attempts.ends.put(refused)
    attempts.ends.put(reached)
    eventually(lambda: reached.calls)
    assert [call.method for call in reached.calls] == ["first"]
    assert not future._settled


def test_without_a_thread_for_the_connection_the_call_fails_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    attempts = Attempts()
    with monkeypatch.context() as patch:
        patch.setattr(known_actors, "start_daemon", no_thread)
        with pytest.raises(ActorLost, match="Too many open files"):
            attempts.submit("first").result(PATIENCE_S)
    attempts.submit("second")
    attempts.ends.put(reached := AnotherActor())
    eventually(lambda: bool(reached.calls))
    assert [call.method for call in reached.calls] == ["second"]
