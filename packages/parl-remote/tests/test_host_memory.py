"""A node's view of its host's memory and CPUs, and the cause that it reports for a SIGKILL of unknown origin."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parl_remote._messages import LeaseAssigned
from parl_remote._resources import Resources
from parl_remote._system.host import HostLoad, OutOfMemoryHint, host_memory, usable_memory
from parl_remote._worker.actors import ActorProcess, WorkerLease
from parl_remote._worker.worker import ActorEnds
from parl_remote.errors import DeathCause, DeathKind, MemorySample

MIB = 2**20
SIGKILLED = DeathCause(DeathKind.SIGNAL, signal=9)


@pytest.fixture
def host(tmp_path: Path) -> Callable[..., Path]:
    """A host's /proc and /sys; call it to change them."""

    def write(available: int = 500, kills: int = 0, in_group: int | None = None, limit: str = "max") -> Path:
        group = tmp_path / "sys/fs/cgroup/user.slice/job"
        group.mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/meminfo").write_text(f"MemTotal: {1000 * 1024} kB\nMemAvailable: {available * 1024} kB\n")
        (tmp_path / "proc/vmstat").write_text(f"pgfault 7\noom_kill {kills}\n")
        (tmp_path / "proc/self/cgroup").write_text("0::/user.slice/job\n")
        if in_group is not None:
            (group / "memory.events").write_text(f"low 0\noom 3\noom_kill {in_group}\n")
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(limit)
        return tmp_path

    return write


def test_memory_is_that_of_the_host_or_of_the_container_around(host: Callable[..., Path]) -> None:
    root = host(available=300)
    assert host_memory(root) == (300 * MIB, 1000 * MIB)
    assert usable_memory(root) == 1000 * MIB
    assert usable_memory(host(limit=str(200 * MIB))) == 200 * MIB
    assert usable_memory(host(limit=str(2**63 - 1))) == 1000 * MIB


def test_a_host_that_tells_nothing_has_no_memory_and_gives_no_hint(tmp_path: Path) -> None:
    assert host_memory(tmp_path) == (0, 0)
    hint = OutOfMemoryHint(tmp_path)
    hint.look()
    assert hint() == ""


@pytest.mark.parametrize("counter", ["kills", "in_group"])
def test_a_counter_that_went_up_since_the_last_look_is_a_hint_once(host: Callable[..., Path], counter: str) -> None:
    root = host(**{counter: 4})
    hint = OutOfMemoryHint(root)
    hint.look()
    assert hint() == ""
    host(**{counter: 5})
    assert hint() == "the kernel has just killed for lack of memory"
    assert hint() == ""


def test_a_kill_is_a_hint_although_a_look_came_before_its_process_had_ended(host: Callable[..., Path]) -> None:
    hint = OutOfMemoryHint(host(kills=4))
    host(kills=5)
    hint.look()
    assert hint() == "the kernel has just killed for lack of memory"
    assert hint() == ""
    host(kills=6)
    hint.look()
    hint.look()
    assert hint() == ""  # too long ago


def test_kills_in_other_groups_are_no_hint(host: Callable[..., Path]) -> None:
    hint = OutOfMemoryHint(host(kills=4, in_group=1))
    host(kills=5, in_group=1)
    assert hint() == ""


def test_next_to_no_memory_just_before_is_a_hint(host: Callable[..., Path]) -> None:
    hint = OutOfMemoryHint(host(available=20))
    hint.look()
    assert hint() == "only 20 of its 1000 MiB were available just before"
    host(available=500)
    hint.look()
    assert hint() == ""


def lease_and_actor(tmp_path: Path) -> tuple[WorkerLease, ActorProcess]:
    assigned = LeaseAssigned("lease1", "c", Resources(cpu=1), "Actor", actor_name="boss", restarts=2)
    return WorkerLease(assigned, 0.0), ActorProcess(
        1, 4711, "", tmp_path / "log", str(tmp_path / "calls"), peak=300 * MIB
    )


def test_a_kill_for_lack_of_memory_is_told_apart_from_others_and_says_probably(
    host: Callable[..., Path], tmp_path: Path
) -> None:
    hint = OutOfMemoryHint(host())
    ends = ActorEnds("here", hint)
    lease, actor = lease_and_actor(tmp_path)
    plain = ends.report(SIGKILLED, lease, actor, None)
    assert (plain.kind, plain.signal, plain.detail) == (DeathKind.SIGNAL, 9, "")
    host(kills=1)
    starved = ends.report(SIGKILLED, lease, actor, None)
    assert (starved.kind, starved.signal) == (DeathKind.OUT_OF_MEMORY, 9)
    assert starved.describe() == (
        "its host ran out of memory, and the kernel probably killed it (SIGKILL): "
        "the kernel has just killed for lack of memory; it had used up to 300 MiB"
    )
    host(kills=2)
    crashed = ends.report(DeathCause(DeathKind.SIGNAL, signal=11), lease, actor, None)
    assert crashed.kind is DeathKind.SIGNAL
    actor.cause = DeathCause(DeathKind.KILLED_BY_USER)
    host(kills=3)
    assert ends.report(actor.cause, lease, actor, None).kind is DeathKind.KILLED_BY_USER


def test_a_report_has_everything_that_is_known_of_the_actor(tmp_path: Path) -> None:
    lease, actor = lease_and_actor(tmp_path)
    before = time.time()
    report = ActorEnds("here", OutOfMemoryHint(tmp_path)).report(SIGKILLED, lease, actor, None)
    assert before - 0.01 <= report.at <= time.time() + 0.01
    expected = DeathCause(
        DeathKind.SIGNAL,
        signal=9,
        node="here",
        pid=4711,
        at=report.at,
        memory_peak=300 * MIB,
        lease_id="lease1",
        class_name="Actor",
        name="boss",
        restarts=2,
    )
    assert dataclasses.replace(report) == expected


_HUNGRY = """
import os, sys
import parl_remote
from parl_remote import ActorLost

@parl_remote.remote_class
class Hungry:
    def eat(self):
        eaten = []
        while True:
            eaten.append(bytearray(b"x") * (8 * 2**20))

if __name__ == "__main__":
    with open(sys.argv[1], "w") as group:
        group.write(str(os.getpid()))
    parl_remote.connect()
    try:
        Hungry().eat()
    except ActorLost as lost:
        print(lost)
        print(lost.cause.kind.name, int(lost.cause.signal), lost.cause.memory_peak > 64 * 2**20)
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of the system that may use 400 MiB; the kernel kills in it as it does on a host that is full."""
    for parent, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(parent) / f"parl-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(400 * MIB))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        yield group
        until = time.monotonic() + 30.0
        while (group / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.05)
        group.rmdir()
        return
    pytest.skip("making a control group needs root and a writable /sys/fs/cgroup")


def test_what_the_kernel_really_kills_for_lack_of_memory_is_reported_as_that(small_group: Path, tmp_path: Path) -> None:
    program = tmp_path / "hungry.py"
    program.write_text(_HUNGRY)
    command = [sys.executable, str(program), str(small_group / "cgroup.procs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120.0, check=True)
    *said, cause = done.stdout.splitlines()
    assert "probably killed it" in "".join(said)
    assert cause == "OUT_OF_MEMORY 9 True"


def test_the_curve_of_memory_is_shown_in_a_few_steps_that_end_with_the_last() -> None:
    samples = tuple(MemorySample(100.0 + second, second * 10 * MIB) for second in range(60))
    shown = DeathCause(DeathKind.MEMORY, memory=samples).describe_memory().split(", ")
    assert shown[0] == "0 MiB -59.0 s"
    assert shown[-1] == "590 MiB +0.0 s"
    assert len(shown) < 10
    assert DeathCause(DeathKind.MEMORY).describe_memory() == ""


def test_the_share_of_busy_cpus_is_between_none_and_all() -> None:
    load = HostLoad()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert 0 < load.busy() <= 1
