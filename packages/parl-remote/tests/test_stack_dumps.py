"""Stacks of actors that are busy, hang or are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parl_remote._actor.reports import STACK_SIGNAL, CallMeter, StackFile, read_stats
from parl_remote._links.loop import Loop
from parl_remote._messages import Failed
from parl_remote._messages.parts import DumpStack, StackDump
from parl_remote._worker.actors import ActorProcess
from parl_remote._worker.watch import WorkerStacks
from parl_remote.errors import RemoteError

BUSY = """
import ctypes, sys, threading
from parl_remote._actor.reports import CallMeter
from parl_remote._actor.reports import allow_stack_dumps, ignore_stack_signal
ignore_stack_signal()
meter = CallMeter()
meter.publish(sys.argv[1])
allow_stack_dumps(sys.argv[1])

def deep_in_c():
    print("ready", flush=True)
    ctypes.PyDLL(None).pause()  # in C code, with the interpreter's lock: no other Python thread can run

def waits_for_ever():
    threading.Event().wait()

threading.Thread(target=waits_for_ever, daemon=True).start()
while True:
    deep_in_c()
"""


class Listener:
    """A link that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def tell(self, message: object) -> None:
        self.told.append(message)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[ActorProcess]:
    page = tmp_path / "a1.calls"
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(page)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield ActorProcess(1, process.pid, "", tmp_path / "log", str(page))
    process.kill()
    process.wait()
    process.stdout.close()


def ask(actor: ActorProcess | None, *links: Listener, loop: Loop | None = None) -> None:
    loop = loop or Loop()
    part = WorkerStacks(loop, lambda _: actor, lambda one: os.kill(one.pid, STACK_SIGNAL))
    for link in links:
        part.received(link, DumpStack(7, "lease-1"), [])  # type: ignore[arg-type]
    while not all(link.told for link in links):
        loop.run_once(10.0)
    loop.close()


def test_an_actor_that_is_busy_in_c_code_prints_all_its_threads(busy: ActorProcess) -> None:
    link = Listener()
    ask(busy, link)
    (answer,) = link.told
    assert isinstance(answer, StackDump)
    assert answer.request_id == 7
    assert "in deep_in_c" in answer.text
    assert "in waits_for_ever" in answer.text
    assert read_stats(busy.stats) is not None, "the page of its calls is still there"


def test_a_second_dump_does_not_show_the_first_one_again(busy: ActorProcess) -> None:
    first, second = Listener(), Listener()
    ask(busy, first)
    ask(busy, second)
    assert isinstance(second.told[0], StackDump)
    assert second.told[0].text.count("most recent call first") == 2  # its two threads


def test_two_simultaneous_requests_get_the_same_dump(busy: ActorProcess) -> None:
    links = Listener(), Listener()
    ask(busy, *links)
    assert links[0].told == links[1].told


def test_a_stopped_actor_is_reported_as_stopped(busy: ActorProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_remote._worker.watch._PRINT_TIMEOUT_S", 0.1)
    os.kill(busy.pid, signal.SIGSTOP)
    link = Listener()
    ask(busy, link)
    (answer,) = link.told
    assert isinstance(answer, Failed)
    assert "stopped by a signal" in answer.reason
    assert str(busy.pid) in answer.reason


def test_there_is_no_stack_of_an_actor_that_has_ended() -> None:
    part = WorkerStacks(Loop(), lambda _: None, lambda _: None)
    with pytest.raises(RemoteError, match="no actor runs on lease lease-1"):
        part.received(Listener(), DumpStack(7, "lease-1"), [])  # type: ignore[arg-type]


def test_a_long_dump_is_cut(tmp_path: Path) -> None:
    CallMeter().publish(tmp_path / "page")
    with open(tmp_path / "page", "ab") as file:
        file.write(b"x" * 2**20)
    assert 256 * 1024 <= len(StackFile(tmp_path / "page").read()) <= 256 * 1024 + 1


def test_how_an_actor_came_to_its_loop_is_left_out(tmp_path: Path) -> None:
    CallMeter().publish(tmp_path / "page")
    with open(tmp_path / "page", "a") as file:
        file.write(
            'Thread 0x2 (most recent call first):\n  File "user.py", line 1 in other\n\n'
            'Current thread 0x1 (most recent call first):\n  File "user.py", line 2 in step\n'
            '  File "actor/process.py", line 3 in run_actor\n  File "zygote_loop.py", line 4 in _fork\n'
        )
    text = StackFile(tmp_path / "page").read()
    assert "in other" in text
    assert text.endswith('  File "actor/process.py", line 3 in run_actor\n')
