"""How large may a cluster be: a real master, and simulated workers and clients that speak the real protocol to it.

python benchmarks/cluster/scale.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from parl_remote.cli.ask import ask_status
from parl_remote.config import Environment, environment
from parl_remote.errors import ResultTimeout
from parl_remote.handshake import greet
from parl_remote.identity import new_id
from parl_remote.master_link import worker_hello
from parl_remote.messages import (
    Heartbeat,
    Hello,
    LeaseGranted,
    LeaseRelease,
    LeaseRequest,
    NodeJoin,
    Role,
    decode,
    encode,
)
from parl_remote.rendezvous import ClusterAddress
from parl_remote.resources import Resources
from parl_remote.run_files import RunFiles
from parl_remote.transport import Channel

SLOTS = 10
ONE = Resources(cpu=1)
MIB = 2**20


class Workers:
    """Simulated workers on one thread: they join, give signs of life, and take in what the master says."""

    def __init__(self, cluster: ClusterAddress, count: int, interval_s: float) -> None:
        self._channels: list[Channel] = []
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        for number in range(count):
            channel = cluster.connect_master()
            joined = NodeJoin(
                new_id("worker"), f"host{number}", (f"10.0.0.1:{number + 1}",), "/nowhere", Resources(cpu=SLOTS)
            )
            greet(channel, worker_hello(joined), 10.0)
            channel.send([encode(joined)])
            self._channels.append(channel)

    def _live(self) -> None:
        beat = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            beat += 1
            frame = encode(Heartbeat(beat, load=0.5, memory_free=2**30))
            for number, channel in enumerate(self._channels):  # spread over the interval, as real ones are
                self._stopping.wait(
                    max(0.0, began + self._interval_s * number / len(self._channels) - time.monotonic())
                )
                channel.send([frame])
                take_all(channel)
            self._stopping.wait(max(0.0, began + self._interval_s - time.monotonic()))

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        for channel in self._channels:
            channel.close()


class Program:
    """A client that asks for leases."""

    def __init__(self, cluster: ClusterAddress) -> None:
        self._channel = cluster.connect_master()
        hello = Hello(Role.CLIENT, Role.MASTER, new_id("client"), 1, 1, "host", os.getpid(), {}, "benchmark")
        greet(self._channel, hello, 10.0)
        self.leases: list[str] = []

    def lease(self, count: int) -> None:
        """Ask for that many at once and wait for all."""
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


def take_all(channel: Channel) -> None:
    try:
        while True:
            channel.receive(0.0)
    except ResultTimeout:
        pass


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
            ((_, record),) = RunFiles([Path(home) / "run"]).clusters()
            yield ClusterAddress(f"127.0.0.1:{port}", found), found, psutil.Process(record.process.pid)
        finally:
            subprocess.run([*xparl, "stop", "--port", str(port)], env=variables, check=True, stdout=subprocess.DEVNULL)


def placement_us(port: int, workers: int, placements: int) -> float:
    """The master's CPU time to place one actor and free its slot again, in microseconds."""
    with master(port, PARL_LIVENESS_LIMIT="3600") as (cluster, found, process):  # heartbeats are counted elsewhere
        simulated = Workers(cluster, workers, 3600.0)
        program = Program(cluster)
        batch = min(workers * SLOTS, 1000)
        before = cpu_s(process)
        for _ in range(placements // batch):
            program.lease(batch)
            program.release()
        ask_status(cluster.connect_master, found.limits)  # answered after everything before
        used = cpu_s(process) - before
        program.close()
        simulated.close()
    return used / (placements // batch * batch) * 1e6


def big_cluster(port: int, workers: int, programs: int, watch_s: float) -> None:
    with master(port) as (cluster, found, process):
        empty = process.memory_info().rss
        simulated = Workers(cluster, workers, found.limits.heartbeat_interval_s)
        clients = [Program(cluster) for _ in range(programs)]
        before, began = cpu_s(process), time.monotonic()
        looks = 0
        while time.monotonic() < began + watch_s:
            ask_status(cluster.connect_master, found.limits)
            looks += 1
            time.sleep(1.0)
        share = (cpu_s(process) - before) / (time.monotonic() - began)
        memory = process.memory_info().rss
        print(f"| {workers} workers: heartbeats and a status a second, % of a core | {share * 100:.1f} | <= 15 |")
        print(f"| the same: memory of the master, MB | {memory / MIB:.0f} (empty {empty / MIB:.0f}) | <= 250 |")

        each = workers * SLOTS // programs
        threads = [threading.Thread(target=client.lease, args=(each,)) for client in clients]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        slowest = 0.0
        while any(thread.is_alive() for thread in threads):
            asked = time.monotonic()
            ask_status(cluster.connect_master, found.limits)
            slowest = max(slowest, time.monotonic() - asked)
        seconds = time.monotonic() - began
        leases = sum(len(client.leases) for client in clients)
        print(f"| {leases} actors asked for at once by {programs} programs: all placed, s | {seconds:.1f} | <= 10 |")
        print(f"| the same: slowest status meanwhile, s | {slowest:.2f} | <= 1 |")
        per_lease = (process.memory_info().rss - memory) / leases
        print(f"| memory of the master for one lease, KB | {per_lease / 1024:.1f} | <= 5 |")
        for client in clients:
            client.close()
        simulated.close()


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
