"""The events of the fault table, with the seconds from each event to the effect that its target limits.

Each event hits its own cluster on loopback, over TCP with a relay in front of each node, or a private cluster where its
name says so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from program import Counter

import parl_remote as parl
from faults.packet_network import PacketNetwork
from parl_remote.testing import (
    Conditions,
    Direction,
    FaultUnavailable,
    LoopbackCluster,
    Process,
    SmallDisk,
    processes_with,
)

PATIENCE_S = 60.0
GONE_S = 30.0
XPARL = (sys.executable, "-P", "-m", "parl_remote.cli")


@dataclass(frozen=True)
class Outcome:
    """One figure and its target; `seconds` is None if there is nothing to time."""

    what: str
    seconds: float | None
    target_s: float | None
    said: str = ""
    good: bool = True


def until(happened: Callable[[], bool], timeout_s: float = PATIENCE_S) -> float:
    began = time.perf_counter()
    while not happened():
        if time.perf_counter() - began > timeout_s:
            raise TimeoutError("it did not happen")
        time.sleep(0.002)
    return time.perf_counter() - began


def lost(future: parl.RemoteFuture[Any]) -> tuple[float, str]:
    """Return the seconds until a call fails with ActorLost, and its cause."""
    began = time.perf_counter()
    try:
        future.result(PATIENCE_S)
    except parl.ActorLost as error:
        return time.perf_counter() - began, error.cause.describe().split("; its last call")[0]
    raise AssertionError("the call was answered")


def gone(processes: list[Process]) -> float:
    began = time.perf_counter()
    for process in processes:
        process.wait_for_end(GONE_S)
    return time.perf_counter() - began


@contextmanager
def running_program(address: str, actors: int, state: str, **variables: str) -> Iterator[tuple[Process, list[Process]]]:
    """Start a program with actors, and return the processes of both."""
    command = [sys.executable, str(Path(__file__).with_name("program.py")), address, str(actors), state]
    running = subprocess.Popen(
        command, env={**os.environ, **variables}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert running.stdout is not None
    try:
        pids = [int(pid) for pid in running.stdout.readline().split()]
        assert running.stdout.readline() == "ready\n"
        yield Process(running.pid), [Process(pid) for pid in pids]
    finally:
        running.kill()
        running.communicate()


def killed_actor(_: LoopbackCluster) -> Iterator[Outcome]:
    actor = Counter()
    process = Process(actor.process())
    waiting = parl.submit(actor.sleep, 600)
    process.kill()
    seconds, said = lost(waiting)
    yield Outcome("SIGKILL of an actor, over TCP: error at the waiting call", seconds, 0.05, said)


def killed_actor_here() -> Iterator[Outcome]:
    parl.connect(cpu_num=1)
    actor = Counter()
    process = Process(actor.process())
    waiting = parl.submit(actor.sleep, 600)
    process.kill()
    seconds, said = lost(waiting)
    yield Outcome("the same in a private cluster", seconds, 0.05, said)
    parl.disconnect()


def killed_worker(cluster: LoopbackCluster) -> Iterator[Outcome]:
    node = cluster.add_node(1)
    cluster.wait_for_nodes(len(cluster.nodes))
    actors = [Counter() for _ in range(3)]  # the other node has two CPUs
    theirs = {process.pid: process for process in node.actors}
    (victim,) = [actor for actor in actors if actor.process() in theirs]
    waiting = parl.submit(victim.sleep, 600)
    node.process.kill()
    seconds, said = lost(waiting)
    yield Outcome("SIGKILL of a worker: error at the waiting call", seconds, 0.5, said)
    yield Outcome("the same: its actors are gone", seconds + gone(list(theirs.values())), 2.0)
    node.kill()
    began = time.perf_counter()
    cluster.start_node(node)
    again = Counter()
    again.add(1)
    yield Outcome(
        "the same worker started again: an actor that waited for it answers", time.perf_counter() - began, None
    )
    node.stop()
    del cluster.nodes[node.name]


def killed_driver(cluster: LoopbackCluster) -> Iterator[Outcome]:
    for state in ("idle", "busy"):
        with running_program(cluster.address, 2, state, **cluster.environment) as (program, actors):
            program.kill()
            began = time.perf_counter()
            yield Outcome(f"SIGKILL of a driver, actors {state}: its actors are gone", gone(actors), 0.1)
            until(lambda: cluster.status().leases == 0)
            yield Outcome("the same: the slots are free again", time.perf_counter() - began, 0.5)


def killed_driver_here() -> Iterator[Outcome]:
    marker = f"{os.getpid()}-{time.monotonic()}"
    for state in ("idle", "busy"):
        with running_program("local", 2, state, PARL_FAULTS=marker) as (program, actors):
            everybody = list(processes_with("PARL_FAULTS", marker))
            program.kill()
            began = time.perf_counter()
            yield Outcome(
                f"SIGKILL of a driver with a private cluster, actors {state}: they are gone", gone(actors), 0.1
            )
            gone(everybody)
            seconds = time.perf_counter() - began
            left = len(processes_with("PARL_FAULTS", marker))
            said = f"{len(everybody)} processes before, {left} after"
            yield Outcome("the same: no process of the cluster is left", seconds, 1.0, said, left == 0)


def killed_master(cluster: LoopbackCluster) -> Iterator[Outcome]:
    actors = [Counter() for _ in range(2)]
    before = [actor.add(1) for actor in actors]
    cluster.master.kill()
    meanwhile = [actor.add(1) for actor in actors]
    goes_on = (before, meanwhile) == ([1, 1], [2, 2])
    yield Outcome("SIGKILL of the master: running actors go on", None, None, "they do" if goes_on else "", goes_on)
    began = time.perf_counter()
    cluster.restart_master()
    nodes = len(cluster.nodes)
    until(lambda: (found := cluster.status()).node_count == nodes and found.leases == len(actors))
    yield Outcome("the master started again: it knows nodes and actors", time.perf_counter() - began, 5.0)
    until(lambda: any(client.pid == os.getpid() for client in cluster.status().clients))
    yield Outcome("the same: programs are back as well", time.perf_counter() - began, 5.0)
    good = [actor.add(1) for actor in actors] == [3, 3]
    yield Outcome("the same: the actors still have their state", None, None, "they do" if good else "", good)


def stopped_actor(_: LoopbackCluster, limit_s: float) -> Iterator[Outcome]:
    actor = Counter()
    with Process(actor.process()).being_paused():
        seconds, said = lost(parl.submit(actor.add, 1))
    yield Outcome("SIGSTOP of an actor: error at the waiting call", seconds, limit_s, said)


def stopped_worker(cluster: LoopbackCluster, limit_s: float) -> Iterator[Outcome]:
    (node,) = cluster.nodes.values()
    actor = Counter()
    with node.process.being_paused():
        seconds, said = lost(parl.submit(actor.sleep, 600))
    yield Outcome("SIGSTOP of a worker: error at the waiting call", seconds, limit_s, said)
    began = time.perf_counter()
    Counter().add(1)
    yield Outcome("the same worker goes on: an actor that waited for it answers", time.perf_counter() - began, None)


def cut(cluster: LoopbackCluster, limit_s: float) -> Iterator[Outcome]:
    (node,) = cluster.nodes.values()
    for way, how in ((Direction.BOTH, "both ways"), (Direction.IN, "towards the worker"), (Direction.OUT, "from it")):
        actor = Counter()
        actor.add(1)
        process = node.actors[0]
        node.cut(way)
        waiting = parl.submit(actor.sleep, 600)
        seconds, said = lost(waiting)
        yield Outcome(f"network cut {how}: error at the waiting call", seconds, limit_s, said)
        yield Outcome("the same: the actor on the other side is gone", seconds + gone([process]), 2 * limit_s)
        node.restore()
        began = time.perf_counter()
        Counter().add(1)
        yield Outcome("the same mended: an actor that waited answers", time.perf_counter() - began, None)


def memory(_: LoopbackCluster) -> Iterator[Outcome]:
    actor = parl.with_options(Counter, max_memory=64)()
    actor.add(1)
    seconds, said = lost(parl.submit(actor.grow, 256))
    yield Outcome("256 MiB allocated where 64 are allowed: error at the waiting call", seconds, 1.5, said)


def stopped_cluster() -> Iterator[Outcome]:
    with LoopbackCluster(0, master_cpus=1) as other:
        for how in ("xparl stop", "Ctrl-C"):
            with LoopbackCluster(1, cpus=1) as cluster:
                cluster.connect()
                actor = Counter()
                actor.add(1)
                waiting = parl.submit(actor.sleep, 600)
                everybody = list(cluster.processes())
                began = time.perf_counter()
                if how == "xparl stop":
                    variables = {**os.environ, **cluster.environment}
                    subprocess.run([*XPARL, "stop"], env=variables, check=True, stdout=subprocess.DEVNULL)
                else:
                    cluster.master.process.kill(signal.SIGINT)
                gone(everybody)
                seconds = time.perf_counter() - began
                _, said = lost(waiting)
                yield Outcome(f"{how}: no process of the cluster is left", seconds, 3.0, said)
                parl.disconnect()
        alive = other.status().node_count == 1
        yield Outcome("the same: another cluster of this user is untouched", None, None, "it is" * alive, alive)


BAD_LINE = """
import sys, time
import parl_remote as parl

@parl.remote_class
class Counter:
    def __init__(self): self.seen = []
    def add(self, number, data):
        self.seen.append(number)
        return number, data
    def all(self): return self.seen

parl.connect(sys.argv[1])
actor, began = Counter(), time.monotonic()
futures = [parl.submit(actor.add, number, bytes(number * 7 % 5000)) for number in range(500)]
right = [future.result(120) == (number, bytes(number * 7 % 5000)) for number, future in enumerate(futures)]
for number in range(500, 520):
    right.append(actor.add(number, b"")[0] == number)
print(sum(right), actor.all() == list(range(520)), time.monotonic() - began)
"""


def bad_line(home: Path) -> Iterator[Outcome]:
    """Use real packets: 5 % lost, 100 ms late, a quarter out of order and 1 % duplicated, in both directions."""
    what = "5 % loss, 100 ms delay, reordering: 520 calls, each answered and carried out once, in order"
    try:
        network = PacketNetwork(["a", "b"])
    except FaultUnavailable as error:
        yield Outcome(what, None, None, f"not possible here: {error}")
        return
    with network:
        a, b = network.host("a"), network.host("b")
        variables = {**os.environ, "PARL_MONITOR": "0", "PARL_RUN_DIR": str(home / "a"), "PARL_FORCE_TCP": "1"}
        start = [*XPARL, "start", "--port", "8037", "--cpu_num", "0", "--host", a.address]
        subprocess.run(a.command(*start), env=variables, check=True, stdout=subprocess.DEVNULL)
        (key,) = (home / "a").glob("*/key")
        variables["PARL_KEY_FILE"] = str(key)
        there = {**variables, "PARL_RUN_DIR": str(home / "b")}
        join = [*XPARL, "connect", "--address", f"{a.address}:8037", "--cpu_num", "1"]
        subprocess.run(b.command(*join), env=there, check=True, stdout=subprocess.DEVNULL)
        network.set(Conditions(delay_s=0.1, jitter_s=0.02, loss=0.05, reorder=0.25, duplicate=0.01))
        try:
            command = a.command(sys.executable, "-c", BAD_LINE, f"{a.address}:8037")
            done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True, timeout=300)
        finally:
            network.set(Conditions())
            for each in (variables, there):
                subprocess.run([*XPARL, "stop"], env=each, check=True, stdout=subprocess.DEVNULL)
        right, in_order, seconds = done.stdout.split()
        counts = network.counts
        said = (
            f"{counts.passed} packets passed, {counts.lost} lost, {counts.overtook} overtook, {counts.duplicated} twice"
        )
        yield Outcome(what, float(seconds), None, said, (right, in_order) == ("520", "True"))


def full_disk() -> Iterator[Outcome]:
    """Use a worker whose directories are on a disk of one MiB."""
    try:
        small = SmallDisk(1)
    except FaultUnavailable as error:
        yield Outcome("a worker's disk is full", None, None, f"not possible here: {error}")
        return
    with small, LoopbackCluster(1, cpus=2, variables={"TMPDIR": str(small.path)}) as cluster:
        cluster.connect()
        actor = Counter()
        began = time.perf_counter()
        try:
            actor.write(str(small.path / "much"), 4)
            said, good = "the call went through", False
        except OSError as error:
            said, good = f"{type(error).__name__}: {error.strerror}", True
        seconds = time.perf_counter() - began
        yield Outcome("a worker's disk is full: the call fails with the cause", seconds, None, said, good)
        good = actor.add(1) == 1 and Counter().add(2) == 2
        said = "both answer" if good else "no"
        yield Outcome("the same: the actor goes on, and others can be made", None, None, said, good)
        parl.disconnect()
