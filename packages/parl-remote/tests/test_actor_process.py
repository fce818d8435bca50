"""Messages that arrive at an actor's process while a reply cannot leave."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import parl_remote
from faults.polling import eventually
from parl_remote import submit
from parl_remote._actor import process
from parl_remote._actor.host import ConcurrencyMode
from parl_remote._actor.process import ActorProcess
from parl_remote._actor.reports import ExitReport
from parl_remote._actor.state import ActorState
from parl_remote._links.call_messages import Kind, header_of, pack
from parl_remote._system.facilities import IN, wait_once
from parl_remote._transport.unix import UnixChannel, listen_at, private_directory
from parl_remote.errors import DeathKind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets of other systems take any amount at once")

LARGE = bytes(2**25)  # more than a socket takes
SMALL_ONE, LARGE_ONE, SAVES = 0, 1, 2  # what a call does


class Host:
    """Answers calls: with a large reply, with a small one, or with a small one after a large state for the owner."""

    def __init__(self) -> None:
        self.machine = SimpleNamespace(state=ActorState.READY)
        self.concurrency = SimpleNamespace(how=ConcurrencyMode.SERIAL)
        self.meter = SimpleNamespace(has_waiting=False, waiting=lambda _: None)
        self.on_state: Callable[[list[Any]], None] = print
        self.become_copy = bool
        self.sends_at_once = False
        self.done: list[int] = []
        self.refused: list[BaseException] = []

    def refuse(self, error: BaseException, number: int) -> list[Any]:
        self.refused.append(error)
        return pack(Kind.FAILURE, 0, 0, number)

    def handle(self, frames: list[memoryview]) -> list[Any]:
        _, _, index, number = header_of(frames[0])
        self.done.append(number)
        if index == SAVES:
            self.on_state(pack(Kind.STATE, 0, 0, 0, [LARGE]))
        return pack(Kind.RESULT, 0, 0, number, [LARGE] if index == LARGE_ONE else [])


class Serving:
    """A process that serves in a thread, in which every call counts as a quick one."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        host: Any = Host()
        self.host: Host = host
        self.process = ActorProcess(listen_at(self.path), host)
        self.thread = threading.Thread(target=self.process.run, daemon=True)
        self.thread.start()
        self.owner = self.connect()
        self.owner.send(pack(Kind.CREATE, 0, SMALL_ONE, 1))
        assert self.answers(self.owner, 1) == [1]

    def connect(self) -> UnixChannel:
        before = len(self.process._callers)
        channel = UnixChannel.connect(self.path)
        eventually(lambda: len(self.process._callers) > before)
        return channel

    def answers(self, channel: UnixChannel, count: int) -> list[int]:
        """The numbers of the next messages."""
        return [header_of(channel.receive()[0])[3] for _ in range(count)]

    @property
    def done(self) -> list[int]:
        """The numbers of the calls that were run."""
        return self.host.done

    def has_rest(self) -> bool:
        """Return whether a caller has not taken all answers."""
        return any(caller.outbox.is_full for caller in list(self.process._callers.values()))

    def end(self) -> None:
        self.owner.send(pack(Kind.CLOSE, 0, 0, 0))
        self.thread.join()
        self.process.abandon()
        for channel in (self.owner, *(one.channel for one in self.process._callers.values())):
            channel.close()


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    monkeypatch.setattr(process, "_SLOW_S", float("inf"))
    folder = private_directory(tmp_path)
    yield Serving(folder / "actor.sock")
    shutil.rmtree(folder)


def test_a_caller_that_takes_no_answers_keeps_no_other_one_waiting(serving: Serving) -> None:
    other = serving.connect()
    serving.owner.send(pack(Kind.CALL, 0, LARGE_ONE, 2))
    eventually(serving.has_rest)
    for number, what in ((3, LARGE_ONE), (4, SMALL_ONE)):
        serving.owner.send(pack(Kind.CALL, 0, what, number))
    for number in range(5, 8):
        other.send(pack(Kind.CALL, 0, SMALL_ONE, number))
        assert serving.answers(other, 1) == [number]
    assert serving.done == [1, 2, 5, 6, 7], "the answers of one that does not take them fill no memory"
    assert serving.answers(serving.owner, 3) == [2, 3, 4]
    other.close()
    serving.end()


def test_a_call_that_there_is_no_memory_to_receive_is_answered_with_that(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_large_memory(size: int) -> bytearray:
        if size >= len(LARGE):
            raise MemoryError
        return bytearray(size)

    monkeypatch.setattr(process, "allocate", no_large_memory)
    other = serving.connect()
    for number, content in ((2, b""), (3, LARGE), (4, b"")):
        other.send(pack(Kind.CALL, 0, SMALL_ONE, number, [b"", content]))
    assert sorted(serving.answers(other, 3)) == [2, 3, 4]
    assert serving.done == [1, 2, 4]
    (refused,) = serving.host.refused
    assert "no memory for a frame of 33554432 bytes" in str(refused)
    other.close()
    serving.end()


def test_what_a_caller_sent_before_it_left_is_done_though_it_took_no_answers(serving: Serving) -> None:
    other = serving.connect()
    other.send(pack(Kind.CALL, 0, LARGE_ONE, 2))
    eventually(serving.has_rest)
    for number in (3, 4):
        other.send(pack(Kind.CALL, 0, SMALL_ONE, number))
    serving.owner.send(pack(Kind.CALL, 0, SMALL_ONE, 7))
    assert serving.answers(serving.owner, 1) == [7]
    other.close()
    eventually(lambda: serving.done == [1, 2, 7, 3, 4])
    serving.end()


def test_a_call_that_is_read_while_a_state_is_written_to_its_caller_is_carried_out(serving: Serving) -> None:
    others = [serving.connect(), serving.connect()]
    others[0].send(pack(Kind.CALL, 0, SAVES, 5))
    eventually(
        lambda: wait_once(serving.owner.fileno(), IN, 0)
    )  # the state has begun to come, and the owner reads none of it
    serving.owner.send(pack(Kind.CALL, 0, SMALL_ONE, 6))
    assert serving.answers(serving.owner, 2) == [0, 6]
    assert serving.answers(others[0], 1) == [5]
    for other in others:
        other.close()
    serving.end()


class Maker:
    def make(self, size: int) -> bytes:
        return bytes(size)


@parl_remote.remote_class(n_cpu=0)
class Serial(Maker):
    pass


@parl_remote.remote_class(n_cpu=0, max_concurrency=3)
class InThreads(Maker):
    pass


@parl_remote.remote_class(n_cpu=0)
class InLoop(Maker):
    async def make(self, size: int) -> bytes:  # type: ignore[override]
        return bytes(size)


@parl_remote.remote_class(n_cpu=0)
class Asking:
    def __init__(self, maker: Any) -> None:
        self.maker = maker
        self.futures: list[Any] = []

    def pid(self) -> int:
        return os.getpid()

    def ask(self, count: int, size: int) -> None:
        self.futures = [submit(self.maker.make, size) for _ in range(count)]

    def got(self) -> list[int]:
        return [len(future.result()) for future in self.futures]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Serial, InThreads, InLoop])
@pytest.mark.usefixtures("shared_cluster")
def test_a_stopped_caller_keeps_no_other_one_waiting(kind: Any) -> None:
    maker = kind()
    asking: Any = Asking(maker)
    pid = asking.pid()
    asking.ask(100, 300_000)
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(10):
            assert len(submit(maker.make, 10).result(60)) == 10
    finally:
        os.kill(pid, signal.SIGCONT)
    assert asking.got() == [300_000] * 100


def test_a_process_that_has_too_little_to_start_tells_its_worker_why(tmp_path: Path) -> None:
    folder = private_directory(tmp_path)
    listening = listen_at(str(folder / "actor.sock"))
    worker = UnixChannel.connect(str(folder / "actor.sock"))
    child = os.fork()
    if not child:

        def refuse() -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        vars(process)["new_poller"] = refuse
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        process.run_actor(listening, os.getppid())
    listening.close()
    _, status = os.waitpid(child, 0)
    said = ExitReport.receive(worker)
    worker.close()
    shutil.rmtree(folder)
    assert status == 0
    assert said == ExitReport(DeathKind.EXIT, "its host could not start it (No space left on device)")


def test_cancelled_calls_that_a_runner_has_are_forgotten() -> None:
    process: Any = ActorProcess.__new__(ActorProcess)
    process._queue, process._callers, process.over = deque(), {}, False
    process._serving, process._cancelled = Mock(), {(Mock(), 1)}
    process._hand_to_runner()
    assert not process._cancelled
