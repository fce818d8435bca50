"""Scaling of a cluster: a real master with simulated workers and clients, which use the real protocol.

python benchmarks/cluster/scale.py
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from parl_remote._config import Environment, environment
from parl_remote._links.handshake import greet
from parl_remote._links.identity import new_id
from parl_remote._links.requests import RequestConnection
from parl_remote._messages import (
    Heartbeat,
    Hello,
    LeaseAssigned,
    LeaseEnded,
    LeaseGranted,
    LeaseRelease,
    LeaseRequest,
    LeaseRevoked,
    NodeJoin,
    Role,
    Status,
    StatusRequest,
)
from parl_remote._messages.overview import (
    ActorKilled,
    ActorList,
    ActorNumbers,
    ActorPhase,
    Deaths,
    DrainNode,
    DrainStarted,
    EndActor,
    KillActor,
    ListActors,
    ListDeaths,
    ListNodes,
    NodeList,
    NodeNumbers,
)
from parl_remote._messages.wire import decode, encode
from parl_remote._program.rendezvous import ClusterAddress
from parl_remote._resources import Resources
from parl_remote._run_files import RunFiles
from parl_remote._transport import Channel
from parl_remote._worker.master_link import worker_hello
from parl_remote.cli._session import actors_of, ask_status
from parl_remote.errors import ChannelClosed, DeathCause, DeathKind, ResultTimeout

SLOTS = 10
ONE = Resources(cpu=1)
MIB = 2**20


class Workers:
    """Simulated workers on one thread, which join, send heartbeats and carry out the master's instructions.

    Args:
        cluster: The cluster to join.
        count: Number of workers.
        interval_s: Time between two heartbeats of a worker.
        busy: True if their actors work, so that each heartbeat reports new numbers.
    """

    def __init__(self, cluster: ClusterAddress, count: int, interval_s: float, *, busy: bool = False) -> None:
        self._workers: list[Worker] = []
        self._poller = select.epoll()
        self._by_fd: dict[int, Worker] = {}
        self._interval_s = interval_s
        self.busy = busy
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        offer = Resources(cpu=SLOTS, memory=64 * 2**30)
        for number in range(count):
            channel = cluster.connect_master()
            where = (f"10.0.0.1:{number + 1}",)
            joined = NodeJoin(new_id("worker"), f"host{number}", where, "/nowhere", offer, name=f"host{number}")
            greet(channel, worker_hello(joined), 10.0)
            channel.send([encode(joined)])
            worker = self._by_fd[channel.fileno()] = Worker(channel)
            self._workers.append(worker)
            self._poller.register(channel.fileno(), select.EPOLLIN)

    def _live(self) -> None:
        beat = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            beat += 1
            frame = encode(Heartbeat(beat, 0.5, 2**30, 64 * 2**30, 0.5))
            for number, worker in enumerate(self._workers):  # spread over the interval, like real workers
                self._obey_until(began + self._interval_s * number / len(self._workers))
                with suppress(ChannelClosed):  # a drained worker has left
                    worker.channel.send([frame])
                    worker.obey()
                    worker.report(beat if self.busy else 0)
            self._obey_until(began + self._interval_s)

    def _obey_until(self, when: float) -> None:
        """Carry out the master's instructions until a time."""
        while not self._stopping.is_set() and (left_s := when - time.monotonic()) > 0:
            for fd, _ in self._poller.poll(min(left_s, 0.1)):
                self._by_fd[fd].obey()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        for worker in self._workers:
            worker.channel.close()


class Worker:
    """One simulated worker."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._told: dict[str, int] = {}  # the last report of each actor

    def obey(self) -> None:
        """Carry out new instructions of the master."""
        with suppress(ResultTimeout, ChannelClosed):
            while True:
                match decode(self.channel.receive(0.0)[0]):
                    case LeaseAssigned(lease_id=lease_id):
                        self._told[lease_id] = -1
                    case LeaseRevoked(lease_id=lease_id):
                        self._end(lease_id, DeathCause(DeathKind.CLIENT_GONE))
                    case EndActor(lease_id=lease_id, kind=kind, detail=detail):
                        self._end(lease_id, DeathCause(kind, detail=detail, log_tail=("last words",) * 50))

    def report(self, calls: int) -> None:
        """Report changes."""
        changed = [lease_id for lease_id, told in self._told.items() if told != calls]
        for lease_id in changed:
            self._told[lease_id] = calls
        if changed:
            numbers = (
                ActorNumbers(one, ActorPhase.BUSY, 4711, calls, busy_with="learn", memory=2**28) for one in changed
            )
            with suppress(ChannelClosed):
                self.channel.send([encode(NodeNumbers(tuple(numbers)))])

    def _end(self, lease_id: str, cause: DeathCause) -> None:
        if self._told.pop(lease_id, None) is not None:
            self.channel.send([encode(LeaseEnded(lease_id, cause))])


class Program:
    """A client that asks for leases."""

    def __init__(self, cluster: ClusterAddress) -> None:
        self._channel = cluster.connect_master()
        hello = Hello(Role.CLIENT, Role.MASTER, new_id("client"), 1, 1, "host", os.getpid(), {}, "benchmark")
        greet(self._channel, hello, 10.0)
        self.leases: list[str] = []

    def lease(self, count: int) -> None:
        """Request so many leases at once, and wait for all of them."""
        for number in range(count):
            self._channel.send([encode(LeaseRequest(number, ONE, None, "Actor"))])
        for _ in range(count):
            answer = decode(self._channel.receive(60.0)[0])
            assert isinstance(answer, LeaseGranted), answer
            self.leases.append(answer.lease_id)

    def release(self) -> None:
        for lease_id in self.leases:
            self._channel.send([encode(LeaseRelease(lease_id))])
        self.leases.clear()

    def close(self) -> None:
        self._channel.close()


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@contextmanager
def master(port: int, **extra: str) -> Iterator[tuple[ClusterAddress, Environment, psutil.Process]]:
    with tempfile.TemporaryDirectory() as home:
        variables = {**os.environ, "PARL_MONITOR": "0", "PARL_RUN_DIR": f"{home}/run", **extra}
        xparl = [sys.executable, "-m", "parl_remote.cli"]
        start = [*xparl, "start", "--port", str(port), "--cpu_num", "0"]
        subprocess.run(start, env=variables, check=True, stdout=subprocess.DEVNULL)
        try:
            found = environment(variables)
            ((_, record),) = RunFiles(Path(home) / "run").clusters()
            yield ClusterAddress(f"127.0.0.1:{port}", found), found, psutil.Process(record.process.pid)
        finally:
            subprocess.run([*xparl, "stop", "--port", str(port)], env=variables, check=True, stdout=subprocess.DEVNULL)


def placement_us(port: int, workers: int, placements: int) -> float:
    """Return the master's CPU time to place an actor and to free its slot again, in microseconds."""
    with master(port, PARL_LIVENESS_LIMIT="3600") as (cluster, found, process):  # heartbeats are measured separately
        simulated = Workers(cluster, workers, 3600.0)
        program = Program(cluster)
        batch = min(workers * SLOTS, 1000)
        before = cpu_s(process)
        for _ in range(placements // batch):
            program.lease(batch)
            program.release()
        ask_status(cluster.connect_master, found.limits)  # answered after all earlier messages
        used = cpu_s(process) - before
        program.close()
        simulated.close()
    return used / (placements // batch * batch) * 1e6


def share_of_core(process: psutil.Process, seconds: float, ask: Callable[[], object]) -> float:
    """Return the master's CPU time in percent of a core, with heartbeats and one status request per second."""
    before, began = cpu_s(process), time.monotonic()
    while time.monotonic() < began + seconds:
        ask()
        time.sleep(1.0)
    return (cpu_s(process) - before) / (time.monotonic() - began) * 100


def slowest_s(ask: Callable[[], object], until: Callable[[], bool]) -> float:
    """Return the longest response time of repeated requests."""
    slowest = 0.0
    while not until():
        asked = time.monotonic()
        ask()
        slowest = max(slowest, time.monotonic() - asked)
    return slowest


def took_s(ask: Callable[[], object]) -> float:
    began = time.monotonic()
    ask()
    return time.monotonic() - began


def big_cluster(port: int, workers: int, programs: int, watch_s: float) -> None:
    with master(port) as (cluster, found, process):
        empty = process.memory_info().rss
        simulated = Workers(cluster, workers, found.limits.heartbeat_interval_s)
        clients = [Program(cluster) for _ in range(programs)]
        looker = RequestConnection(cluster.connect_master(), Role.MASTER, found.limits, "xparl benchmark")

        def status() -> object:
            return looker.ask(StatusRequest, Status)

        share = share_of_core(process, watch_s, status)
        memory = process.memory_info().rss
        print(f"| {workers} workers: heartbeats and a status a second, % of a core | {share:.1f} | <= 15 |")
        print(f"| the same: memory of the master, MB | {memory / MIB:.0f} (empty {empty / MIB:.0f}) | <= 250 |")

        each = workers * SLOTS // programs
        threads = [threading.Thread(target=client.lease, args=(each,)) for client in clients]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        slowest = slowest_s(status, lambda: not any(thread.is_alive() for thread in threads))
        seconds = time.monotonic() - began
        leases = sum(len(client.leases) for client in clients)
        print(f"| {leases} actors asked for at once by {programs} programs: all placed, s | {seconds:.1f} | <= 10 |")
        print(f"| the same: slowest status meanwhile, s | {slowest:.2f} | <= 1 |")
        while any(row.numbers.phase is ActorPhase.STARTING for row in actors_of(looker)):
            time.sleep(1.0)  # the workers report their actors gradually
        per_lease = (process.memory_info().rss - memory) / leases
        print(f"| memory of the master for one actor, what it does included, KB | {per_lease / 1024:.1f} | <= 5 |")

        listed = min(took_s(lambda: len(list(actors_of(looker)))) for _ in range(3))
        rows = list(actors_of(looker))
        assert len(rows) == leases
        print(f"| all {leases} actors listed, s | {listed:.2f} | <= 1 |")
        page = max(took_s(lambda: looker.ask(ListActors, ActorList)) for _ in range(5))
        print(f"| one page of 1,000 of them, slowest of five, s | {page:.3f} | |")
        print(f"| all {workers} nodes in detail, s | {took_s(lambda: looker.ask(ListNodes, NodeList)):.2f} | <= 1 |")
        killed = [took_s(partial(kill, looker, row.lease_id)) for row in rows[:20]]
        print(f"| one of them killed, until its worker says so, slowest of twenty, s | {max(killed):.2f} | <= 1 |")
        deaths = looker.ask(lambda number: ListDeaths(number, limit=1000), Deaths)
        assert len(deaths.deaths) == len(killed)
        drained = took_s(lambda: looker.ask(lambda number: DrainNode(number, rows[-1].node_id, 0.0), DrainStarted))
        print(f"| a node told to drain, s | {drained:.3f} | <= 1 |")
        simulated.busy = True
        time.sleep(found.limits.heartbeat_interval_s)
        share = share_of_core(process, watch_s, status)
        print(f"| all {leases} actors report new numbers every 5 s, % of a core | {share:.1f} | |")
        for client in clients:
            client.close()
        looker.close()
        simulated.close()


def kill(looker: RequestConnection, lease_id: str) -> None:
    looker.ask(lambda number: KillActor(number, lease_id, "for the benchmark"), ActorKilled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--port", type=int, default=8951)
    parser.add_argument("--watch", type=float, default=20.0, help="seconds to watch heartbeats")
    options = parser.parse_args()
    print("| what | measured | target |\n| --- | --- | --- |")
    few = placement_us(options.port, 10, 5000)
    many = placement_us(options.port, options.workers, 5000)
    print(f"| CPU time to place one actor and free it, 10 workers, us | {few:.0f} | |")
    print(f"| the same with {options.workers} workers, us | {many:.0f} ({many / few:.2f}x) | <= 300, <= 2x |")
    big_cluster(options.port, options.workers, 10, options.watch)


if __name__ == "__main__":
    main()
