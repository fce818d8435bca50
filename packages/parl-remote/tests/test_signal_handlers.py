"""Programs whose signal handlers raise: the error is theirs, whatever its type, and the actor is not lost."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import parl_remote
from faults.polling import eventually
from parl_remote import ActorLost, RemoteError, RemoteFuture, submit
from parl_remote._data.calls import Call
from parl_remote._system.facilities import is_raised_by_handler
from parl_remote._transport import Buffer
from parl_remote._transport.unix import UnixChannel, channel, sockets
from parl_remote.errors import ChannelClosed


@parl_remote.remote_class
class Sleeper:
    def __init__(self) -> None:
        self._woken = threading.Event()

    def tell_and_wait(self, pid: int) -> bool:
        """Send the caller, who waits for this very answer, a signal, and wait a moment for nothing."""
        os.kill(pid, signal.SIGUSR1)
        return self._woken.wait(0.5)

    def echo(self, value: Any) -> Any:
        return value


@pytest.fixture(params=[TimeoutError, ConnectionResetError, InterruptedError, EOFError, ValueError])
def raised(request: pytest.FixtureRequest) -> Iterator[type[Exception]]:
    def handler(*_: object) -> None:
        raise request.param("from the handler")

    before = signal.signal(signal.SIGUSR1, handler)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


def test_what_a_handler_raises_reaches_the_program_and_the_actor_lives_on(
    shared_cluster: None, raised: type[Exception]
) -> None:
    sleeper = Sleeper()
    with pytest.raises(raised, match="from the handler"):
        sleeper.tell_and_wait(os.getpid())
    assert sleeper.echo(3) == 3


@parl_remote.remote_class
class Late:
    def __init__(self) -> None:
        self.calls = 0

    def alarm_later(self, path: str) -> None:
        """Set an alarm that comes when no call is running, as one that a method forgets to stop."""

        def handler(*_: object) -> None:
            Path(path).touch()
            raise TimeoutError("too late")

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1)

    def count(self) -> int:
        self.calls += 1
        return self.calls


@parl_remote.remote_class
class LateOnLoop(Late):
    async def serve(self) -> None:
        """Do nothing; the method makes the actor run its calls on an event loop."""


@pytest.mark.parametrize("cls", [Late, LateOnLoop])
def test_an_alarm_that_comes_while_an_actor_waits_for_a_call_does_not_end_it(
    shared_cluster: None, tmp_path: Path, cls: type[Late]
) -> None:
    late = cls()
    assert late.count() == 1
    late.alarm_later(str(tmp_path / "came"))
    eventually((tmp_path / "came").exists)
    assert late.count() == 2


def test_the_system_s_own_errors_are_not_taken_for_a_handler_s() -> None:
    assert not is_raised_by_handler(OSError("never raised"))
    mine, other = socket.socketpair()
    channel = UnixChannel(mine)
    other.close()
    with pytest.raises(ChannelClosed):
        channel.receive()
    channel.close()


@pytest.fixture
def handle() -> Iterator[Callable[[Callable[[], object]], list[object]]]:
    """Call it with what the signal's handler is to do; the returned list gets what came of that."""
    before = signal.getsignal(signal.SIGUSR1)

    def prepare(act: Callable[[], object]) -> list[object]:
        outcomes: list[object] = []

        def handler(*_: object) -> None:
            try:
                outcomes.append(act())
            except RemoteError as error:
                outcomes.append(error)

        signal.signal(signal.SIGUSR1, handler)
        return outcomes

    yield prepare
    signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_waits_for_the_actor_that_it_interrupted_is_refused(
    shared_cluster: None, handle: Callable[[Callable[[], object]], list[object]]
) -> None:
    sleeper, other = Sleeper(), Sleeper()
    outcomes = handle(lambda: (other.echo(1), sleeper.echo(2)))
    assert sleeper.tell_and_wait(os.getpid()) is False
    assert "signal handler" in str(*outcomes)
    outcomes = handle(lambda: submit(sleeper.echo, 4))
    assert sleeper.tell_and_wait(os.getpid()) is False
    (later,) = outcomes
    assert isinstance(later, RemoteFuture)
    assert later.result(60) == 4
    assert sleeper.echo(3) == 3


@pytest.mark.parametrize("where", ["in a send", "before a send"])
def test_a_handler_that_interrupts_the_sending_of_a_call_may_not_wait_for_the_actor(
    shared_cluster: None, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    sleeper = Sleeper()
    outcomes: list[object] = []

    def wait() -> None:  # a signal's handler may run between any two instructions
        if not outcomes:
            outcomes.append(None)
            try:
                outcomes.append(sleeper.echo(1))
            except RemoteError as error:
                outcomes.append(error)

    def after(parts: Sequence[Buffer], sent: int) -> list[Buffer]:
        wait()
        return sockets.after(parts, sent)

    def completed(call: Call, values: Sequence[Any]) -> Call:
        wait()
        return complete(call, values)

    complete = Call.completed
    if where == "in a send":
        monkeypatch.setattr(channel, "after", after)
        assert submit(sleeper.echo, bytearray(20_000)).result(60) == bytearray(20_000)
    else:
        monkeypatch.setattr(Call, "completed", completed)
        assert submit(sleeper.echo, submit(sleeper.echo, 5)).result(60) == 5
    assert "signal handler" in str(outcomes[1])
    assert sleeper.echo(3) == 3


def test_a_handler_may_end_the_actor_that_it_interrupted(
    shared_cluster: None, handle: Callable[[Callable[[], object]], list[object]]
) -> None:
    sleeper = Sleeper()
    outcomes = handle(lambda: parl_remote.kill(sleeper))
    with pytest.raises(ActorLost):
        sleeper.tell_and_wait(os.getpid())
    assert outcomes == [None]


def test_a_handler_may_disconnect(
    connect: Callable[..., None], handle: Callable[[Callable[[], object]], list[object]]
) -> None:
    connect()
    sleeper = Sleeper()
    outcomes = handle(parl_remote.disconnect)
    with contextlib.suppress(ActorLost):  # the answer may come while the connection ends
        sleeper.tell_and_wait(os.getpid())
    assert outcomes == [None]
    with pytest.raises(ActorLost):
        sleeper.echo(1)


def test_a_finalizer_may_call_the_actor_to_which_a_call_is_being_sent(
    shared_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = Sleeper()
    nested: list[RemoteFuture[int]] = []

    def after(parts: Sequence[Buffer], sent: int) -> list[Buffer]:  # the garbage collector may run where a list is made
        if not nested:
            nested.append(submit(sleeper.echo, 5))
        return sockets.after(parts, sent)

    monkeypatch.setattr(channel, "after", after)
    assert submit(sleeper.echo, bytearray(20_000)).result(60) == bytearray(20_000)
    assert nested[0].result(60) == 5
