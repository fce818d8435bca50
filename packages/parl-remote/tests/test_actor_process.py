"""Messages that arrive at an actor's process while a reply cannot leave."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parl_remote._actor import process
from parl_remote._actor.host import How
from parl_remote._actor.process import ActorProcess, Outbox
from parl_remote._actor.state import ActorState
from parl_remote._links.call_messages import Kind, header_of, pack
from parl_remote._system.facilities import IN, wait_once
from parl_remote._transport.unix import UnixChannel, listen_at, private_directory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets of other systems take any amount at once")

LARGE = bytes(2**25)  # more than a socket takes
SMALL_ONE, LARGE_ONE, SAVES = 0, 1, 2  # what a call does


class Host:
    """Answers calls: with a large reply, with a small one, or with a small one after a large state for the owner."""

    def __init__(self) -> None:
        self.machine = SimpleNamespace(state=ActorState.READY)
        self.concurrency = SimpleNamespace(how=How.SERIAL)
        self.meter = SimpleNamespace(has_waiting=False, waiting=lambda _: None)
        self.on_state: Callable[[list[Any]], None] = print
        self.become_copy = bool

    def handle(self, frames: list[memoryview]) -> list[Any]:
        _, _, index, number = header_of(frames[0])
        if index == SAVES:
            self.on_state(pack(Kind.STATE, 0, 0, 0, [LARGE]))
        return pack(Kind.RESULT, 0, 0, number, [LARGE] if index == LARGE_ONE else [])


class Serving:
    """A process that serves in a thread, in which every call counts as a quick one."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        host: Any = Host()
        self.process = ActorProcess(listen_at(self.path), host)
        self.thread = threading.Thread(target=self.process.run, daemon=True)
        self.thread.start()
        self.owner = self.connect()
        self.owner.send(pack(Kind.CREATE, 0, SMALL_ONE, 1))
        assert self.answers(self.owner, 1) == [1]

    def connect(self) -> UnixChannel:
        before = len(self.process._callers)
        channel = UnixChannel.connect(self.path)
        until(lambda: len(self.process._callers) > before)
        return channel

    def answers(self, channel: UnixChannel, count: int) -> list[int]:
        """The numbers of the next messages."""
        return [header_of(channel.receive()[0])[3] for _ in range(count)]

    @property
    def owners_end(self) -> UnixChannel:
        return next(iter(self.process._callers.values())).channel

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


def until(holds: Callable[[], object]) -> None:
    while not holds():
        time.sleep(0.001)


def test_a_call_that_the_flush_timer_reads_while_it_writes_is_carried_out(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, flush_all = Outbox.flush, serving.process.flush_all
    both_answered = threading.Event()

    def flush_when_both_are_answered(outbox: Outbox) -> None:
        if threading.current_thread() is not serving.thread:
            both_answered.wait()
        flush(outbox)

    def flush_all_late() -> None:
        """Flush only when the timer has taken all replies, waits for the owner, and has read its next call."""
        monkeypatch.setattr(serving.process, "flush_all", flush_all)
        outbox = next(iter(serving.process._callers.values())).outbox
        both_answered.set()
        until(lambda: not outbox.held)
        serving.owner.send(pack(Kind.CALL, 0, SMALL_ONE, 4))
        until(lambda: serving.owners_end.has_read_ahead)
        read_ahead.set()
        flush_all()

    read_ahead = threading.Event()
    monkeypatch.setattr(Outbox, "flush", flush_when_both_are_answered)
    monkeypatch.setattr(serving.process, "flush_all", flush_all_late)
    serving.owner.send_batch([pack(Kind.CALL, 0, LARGE_ONE, 2), pack(Kind.CALL, 0, SMALL_ONE, 3)])
    read_ahead.wait()
    assert serving.answers(serving.owner, 3) == [2, 3, 4]
    serving.end()


def test_a_call_that_is_read_while_a_state_is_written_to_its_caller_is_carried_out(serving: Serving) -> None:
    others = [serving.connect(), serving.connect()]
    others[0].send(pack(Kind.CALL, 0, SAVES, 5))
    until(
        lambda: wait_once(serving.owner.fileno(), IN, 0)
    )  # the state has begun to come, and the owner reads none of it
    serving.owner.send(pack(Kind.CALL, 0, SMALL_ONE, 6))
    until(lambda: serving.owners_end.has_read_ahead)
    assert serving.answers(serving.owner, 2) == [0, 6]
    assert serving.answers(others[0], 1) == [5]
    for other in others:
        other.close()
    serving.end()
