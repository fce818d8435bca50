"""Processes that a worker forks ahead: how many, and what a rehearsal leaves behind."""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import parl_remote
from parl_remote import _current
from parl_remote._actor import process
from parl_remote._links.loop import Loop
from parl_remote._worker.actors import ActorProcesses

WITHIN_S = 60


class Zygote:
    """One that forks when told to, and counts."""

    def __init__(self, most_spares: int) -> None:
        self.most_spares = most_spares
        self.ordered: list[int] = []
        self._told: list[dict[str, object]] = []
        self.fileno = Mock(return_value=os.open(os.devnull, os.O_RDONLY))

    def pending(self) -> bool:
        return False

    def fork(self, number: int) -> None:
        self.ordered.append(number)

    def reports(self) -> list[dict[str, object]]:
        told, self._told = self._told, []
        return told


class Node:
    """The processes of a worker, on a clock that the test moves."""

    def __init__(self, slots: int, most_spares: int = 32) -> None:
        self.now = 0.0
        self.zygote = Zygote(most_spares)
        self.loop = Mock(spec=Loop)
        self.loop.now.side_effect = lambda: self.now
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.loop.call_at.side_effect = lambda when, action: self.due.append((when, action))
        self.loop.call_later.side_effect = lambda delay_s, action: self.due.append((self.now + delay_s, action))
        self.refused: list[str] = []
        self.processes = ActorProcesses(
            self.loop,
            slots=slots,
            directory=Path("/nowhere"),
            log_directory=Path("/nowhere"),
            zygote=self.zygote,  # type: ignore[arg-type]
            restart_zygote=Mock(),
            log_tail_lines=1,
            on_spare=lambda: self.processes.want(0),
            on_refused=self.refused.append,
            on_ended=Mock(),
        )
        self.processes.want(0)

    def told(self, **report: object) -> None:
        self.zygote._told.append(report)
        self.loop.add.call_args.args[1]()

    def fork_all(self) -> None:
        while self.zygote.ordered:
            number = self.zygote.ordered.pop(0)
            self.told(forked=number, pid=100_000_000 + number)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.due and min(self.due, key=lambda one: one[0])[0] <= until:
            first = min(self.due, key=lambda one: one[0])
            self.due.remove(first)
            self.now = max(self.now, first[0])
            first[1]()
            self.fork_all()
        self.now = until

    @property
    def spares(self) -> int:
        return len(self.processes._spares)


@pytest.mark.parametrize(("slots", "expected"), [(1, 1), (4, 4), (32, 32), (500, 32)])
def test_a_node_at_rest_has_a_process_for_each_slot(slots: int, expected: int) -> None:
    node = Node(slots)
    node.fork_all()
    assert node.spares == 1
    node.wait(5)
    assert node.spares == expected


def test_there_is_one_spare_beside_actors_that_are_in_use_and_where_each_is_a_program_of_its_own() -> None:
    node = Node(3)
    node.wait(5)
    assert [node.processes.take() is not None for _ in range(3)] == [True] * 3
    node.processes.want(0)
    node.fork_all()
    node.wait(5)
    assert node.spares == 1
    node = Node(3, most_spares=1)
    node.fork_all()
    node.wait(5)
    assert node.spares == 1


def test_no_further_spare_starts_while_actors_start_or_end() -> None:
    node = Node(8)
    node.wait(5)
    taken = []
    for _ in range(6):
        taken.append(node.processes.take())
        node.processes.want(0)
        node.wait(0.1)
    assert node.spares == 2
    for actor in taken:
        assert actor is not None
        node.told(ended=actor.number, status=0, peak=0)
        node.wait(0.1)
    assert node.spares == 2
    node.wait(5)
    assert node.spares == 8


def test_a_refused_spare_is_tried_again_later_and_refuses_no_request() -> None:
    node = Node(4)
    node.fork_all()
    node.now = 1.0
    due = [action for _, action in node.due]
    node.due.clear()
    due[0]()
    number = node.zygote.ordered.pop()
    node.told(refused=number, reason="no processes are left")
    assert (node.spares, node.zygote.ordered) == (1, [])
    node.wait(5)
    assert node.spares == 4


def test_a_rehearsal_makes_and_calls_an_object_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    called = Mock(return_value=1)
    monkeypatch.setattr(process._Rehearsed, "call", lambda _: called())
    process.write_rehearsal()
    before = os.listdir("/proc/self/fd"), threading.enumerate(), list(sys.path), list(sys.argv)
    for _ in range(3):
        process._rehearse()
    assert (os.listdir("/proc/self/fd"), threading.enumerate(), list(sys.path), list(sys.argv)) == before
    assert called.call_count == 3


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self) -> int:
        self.value += 1
        return self.value


def test_actors_of_rehearsed_spares_begin_with_nothing(connect: Callable[..., None]) -> None:
    connect(cpu_num=6)
    directory = _current.client()._cluster.directory  # type: ignore[attr-defined]
    deadline = time.monotonic() + WITHIN_S
    while len(list(directory.glob("a*.sock"))) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(4 * process._REST_S)  # the last ones rehearse; an earlier request would be served all the same
    remote: Any = parl_remote.remote_class(Counter)
    actors = [remote() for _ in range(6)]
    assert [actor.add() for actor in actors] == [1] * 6
    assert [actor.value for actor in actors] == [1] * 6
