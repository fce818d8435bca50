"""Ctrl-C in the steps of a call that a test can hit: the next call works or raises, and never hangs."""

from __future__ import annotations

import concurrent.futures
import dis
import socket
import sys
import threading
from types import FrameType
from typing import Any

import pytest

import parl_remote
from parl_remote import submit
from parl_remote._program import answer_reader, connection
from parl_remote._program.connection import Connection
from parl_remote._program.proxy import reference_of
from parl_remote._system.facilities import wait_for_input, waiting_bytes
from parl_remote._transport.unix import UnixChannel, channel, sockets

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


def test_a_message_in_whose_middle_ctrl_c_comes_is_read_on() -> None:
    interruptions = [KeyboardInterrupt()]

    def interrupted(size: int) -> bytearray:
        if interruptions:
            raise interruptions.pop()
        return bytearray(size)

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    reader, writer = UnixChannel(ours, allocate=interrupted), UnixChannel(theirs)
    sending = threading.Thread(target=writer.send, args=([bytes(4_000_000)], PATIENCE_S))
    sending.start()
    with pytest.raises(KeyboardInterrupt):
        reader.receive(PATIENCE_S)
    assert reader.receive(PATIENCE_S) == [bytes(4_000_000)]
    sending.join(PATIENCE_S)
    reader.close()
    writer.close()


class Interruption:
    """Ctrl-C at one of the steps where Python looks for signals, in the code that reads answers; see `sys.settrace`.

    Args:
        at: The number of the step.
    """

    _FILES = tuple(module.__file__ for module in (answer_reader, connection, channel, sockets))
    _CALLS = frozenset(dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD") if name in dis.opmap)

    def __init__(self, at: int) -> None:
        self._left = at
        self._after_call: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        self._after_call = None
        if frame.f_code.co_filename not in self._FILES:
            return None
        frame.f_trace_opcodes = True
        self._step()
        return self._in_frame

    def _in_frame(self, frame: FrameType, event: str, _: object) -> Any:
        before, self._after_call = self._after_call, None
        if event == "opcode":
            if before is frame:  # of something written in C: there was no frame in between
                self._step()
            if frame.f_code.co_code[frame.f_lasti] in self._CALLS:
                self._after_call = frame
        return self._in_frame

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("size", [0, 3_000, 30_000])
def test_ctrl_c_at_any_step_of_reading_loses_no_answer(shared_cluster: None, size: int) -> None:
    echo: Any = parl_remote.remote_class(wait=False)(Echo)()
    reference = reference_of(echo)
    assert reference is not None
    path = reference.outbox.path
    assert isinstance(path, Connection)
    at, interrupted = 0, True
    while interrupted or at <= 20:  # where the background has read the answers, which it may, there is no step to try
        futures = [echo.echo(bytes(size + number)) for number in range(3)]
        while waiting_bytes(path.fileno()) < 3 * size + 3 and not any(future.settled for future in futures):
            wait_for_input([path.fileno()], 1000)
        interrupted = False
        before = sys.gettrace()
        sys.settrace(Interruption(at))
        try:
            futures[1].result()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(before)
        assert [len(future.result(PATIENCE_S)) for future in futures] == [size, size + 1, size + 2], f"at step {at}"
        at += 1
