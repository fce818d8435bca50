"""Ctrl-C in the steps of a call that a test can hit: the next call works or raises, and never hangs."""

from __future__ import annotations

import concurrent.futures
import socket
import threading
from typing import Any

import pytest

import parl_remote
from parl_remote import submit
from parl_remote._program.connection import Connection
from parl_remote._program.proxy import reference_of
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import ChannelClosed

PATIENCE_S = 60.0


@parl_remote.remote_class
class Echo:
    def echo(self, value: Any) -> Any:
        return value


class InterruptedLock:
    """A lock that is taken, once, just before Ctrl-C is noticed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._done = False

    def acquire(self, blocking: bool = True) -> bool:
        got = self._lock.acquire(blocking)
        if not self._done:
            self._done = True
            raise KeyboardInterrupt
        return got

    def release(self) -> None:
        self._lock.release()

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # not in its stub


def test_ctrl_c_before_the_first_read_lets_other_threads_read(
    shared_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = Echo()
    reference = reference_of(echo)
    assert reference is not None
    assert isinstance(reference.outbox.path, Connection)
    monkeypatch.setattr(reference.outbox.path, "_reading", InterruptedLock())
    with pytest.raises(KeyboardInterrupt):
        echo.echo(1)
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: submit(echo.echo, 2).result(PATIENCE_S)).result(PATIENCE_S) == 2
    assert echo.echo(3) == 3


def test_ctrl_c_in_the_middle_of_a_message_ends_the_connection() -> None:
    # What was read of the message is not known any more; what followed would be taken for its rest.
    interruptions = [KeyboardInterrupt()]

    def interrupted(size: int) -> bytearray:
        if interruptions:
            raise interruptions.pop()
        return bytearray(size)

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    reader, writer = UnixChannel(ours, allocate=interrupted), UnixChannel(theirs)
    sending = threading.Thread(target=_send_until_closed, args=(writer, bytes(4_000_000)))
    sending.start()
    with pytest.raises(KeyboardInterrupt):
        reader.receive(PATIENCE_S)
    with pytest.raises(ChannelClosed):
        reader.receive(PATIENCE_S)
    sending.join(PATIENCE_S)
    assert not sending.is_alive()
    reader.close()
    writer.close()


def _send_until_closed(channel: UnixChannel, frame: bytes) -> None:
    with pytest.raises(ChannelClosed):
        channel.send([frame], PATIENCE_S)
