"""Programs whose signal handlers raise: the error is theirs, whatever its type, and the actor is not lost."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

import parl_remote
from parl_remote._system.facilities import is_raised_by_handler
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import ChannelClosed


@parl_remote.remote_class
class Sleeper:
    def __init__(self) -> None:
        self._woken = threading.Event()

    def tell_and_wait(self, pid: int) -> bool:
        """Send the caller, who waits for this very answer, a signal, and wait a moment for nothing."""
        os.kill(pid, signal.SIGUSR1)
        return self._woken.wait(0.5)

    def echo(self, value: int) -> int:
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


def test_the_system_s_own_errors_are_not_taken_for_a_handler_s() -> None:
    assert not is_raised_by_handler(OSError("never raised"))
    mine, other = socket.socketpair()
    channel = UnixChannel(mine)
    other.close()
    with pytest.raises(ChannelClosed):
        channel.receive()
    channel.close()
