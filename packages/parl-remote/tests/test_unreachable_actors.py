"""A process that gets no connection to a living actor for a shortage: the call fails with it, and a later one works."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import parl_remote
from parl_remote import ActorLost, DeathKind, RemoteCallError
from parl_remote._messages.parts import ActorWatched
from parl_remote._program import known_actors
from parl_remote._program.actor_ref import ActorPlace
from parl_remote._program.known_actors import ActorRecord, Borrowing
from parl_remote._program.worker_clients import WorkerClients
from parl_remote.errors import DeathCause

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits descriptors")

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

    def keep(self, keeper: Any) -> None:
        self.keeper = keeper

    def ask_kept(self) -> int:
        return int(self.keeper.get())

    def cannot_reach_workers(self) -> None:
        def ask(*_: object) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        self.without = pytest.MonkeyPatch()
        self.without.setattr(WorkerClients, "ask", ask)

    def can_reach_workers(self) -> None:
        self.without.undo()


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
    asker.ask(Keeper())  # so that it is connected to the cluster
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
        with contextlib.suppress(ActorLost):
            if (pid := int(keeper.get())) != killed:
                return pid


def test_an_actor_that_is_made_again_while_it_cannot_be_reached_is_found(shared_cluster: None) -> None:
    keeper: Any = parl_remote.with_options(Keeper, max_restarts=1)()
    asker: Any = Asker()
    asker.ask(Keeper())
    asker.cannot_reach_workers()
    asker.keep(keeper)
    lacks_descriptors(asker.ask_kept)
    os.kill(killed := keeper.get(), signal.SIGKILL)
    made_again = answer_of_the_next(keeper, killed)
    asker.can_reach_workers()
    assert asker.ask_kept() == made_again


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
