"""A worker's rates, which it computes from counters, and its choice of those to report."""

from __future__ import annotations

import os
import subprocess
import sys

from parl_remote._config import Limits
from parl_remote._links.loop import Loop
from parl_remote._messages.overview import ActorNumbers, ActorPhase
from parl_remote._worker.actors import WorkerLeases
from parl_remote._worker.watch import ActorWatch, WorkerNumbers, _differ


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def numbers(**counters: float) -> ActorNumbers:
    return ActorNumbers("lease-1", ActorPhase.BUSY, 7, **counters)  # type: ignore[arg-type]


def test_rates_are_those_since_the_look_before() -> None:
    clock = Clock()
    reports = WorkerNumbers(Loop(clock), WorkerLeases(), None, lambda _: None)  # type: ignore[arg-type]
    first = reports._paced(numbers(calls=10, busy_s=5.0, cpu_s=1.0))
    assert (first.calls_per_s, first.busy, first.cpu) == (0.0, 0.0, 0.0)
    clock.time += 2.0
    second = reports._paced(numbers(calls=30, busy_s=6.0, cpu_s=1.5))
    assert (second.calls_per_s, second.busy, second.cpu) == (10.0, 0.5, 0.25)
    clock.time += 2.0
    third = reports._paced(numbers(calls=30, busy_s=6.0, cpu_s=1.5))
    assert (third.calls_per_s, third.busy, third.cpu) == (0.0, 0.0, 0.0)


def test_a_look_that_comes_too_soon_keeps_the_rates() -> None:
    clock = Clock()
    reports = WorkerNumbers(Loop(clock), WorkerLeases(), None, lambda _: None)  # type: ignore[arg-type]
    reports._paced(numbers(calls=0))
    clock.time += 2.0
    reports._paced(numbers(calls=20))
    clock.time += 0.2
    assert reports._paced(numbers(calls=21)).calls_per_s == 10.0


def test_an_actor_that_became_idle_is_worth_telling_and_noise_is_not() -> None:
    told = numbers(calls=5, calls_per_s=10.0, busy=0.5, cpu=0.5)
    assert not _differ(told, numbers(calls=5, calls_per_s=10.0, busy=0.51, cpu=0.49, busy_s=3.0))
    assert _differ(told, numbers(calls=5, calls_per_s=0.0, busy=0.5, cpu=0.5))
    assert _differ(told, numbers(calls=5, calls_per_s=10.0, busy=0.0, cpu=0.5))


def test_a_process_that_has_ended_adds_no_size() -> None:
    ended: list[int] = []
    watch = ActorWatch(Loop(Clock()), Limits(), lambda number, _: ended.append(number))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    watch.add(1, child.pid, 2**40)
    watch.add(2, os.getpid(), None)
    watch._look()
    child.kill()
    child.wait()
    child.stdin.close()
    watch._look()
    gone, alive = watch.remove(1), watch.remove(2)
    assert gone is not None
    assert alive is not None
    assert (len(gone.memory), len(alive.memory)) == (2, 3)
    assert all(sample.resident for sample in gone.memory)
    assert ended == []
