"""A million random messages to every port and socket of a cluster: does it survive, leak memory or admit anyone?

PYTHONPATH=tests python benchmarks/fuzz/run.py --messages 1000000 --seed 0
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time

import parl_remote as parl
from faults.strange_messages import Dice
from faults.ways_in import WAYS, Target
from parl_remote.testing import LoopbackCluster

MIB = 2**20
MOST_MIB = 10.0
SETTLE_S = 20.0


@parl.remote_class
class Bystander:
    """An actor of an unrelated program."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self) -> int:
        self.calls += 1
        return self.calls


class Fuzz:
    """A cluster with an actor of an unrelated program, and the generators of messages to it."""

    def __init__(self, cluster: LoopbackCluster, seed: int) -> None:
        self._cluster = cluster
        self._seed = seed
        self._throws = 0
        self._actor = Bystander()
        self._calls = 0
        members = [cluster.master, *cluster.nodes.values()]
        self.processes = {member.name: member.process for member in members}
        for member in members:
            for actor in member.actors:
                self.processes[f"actor of {member.name}"] = actor
        monitors = [one for one in cluster.processes() if "parl_remote._monitor" in one.command]
        if monitors:
            self.processes["monitor"] = monitors[0]
        client = parl.get_global_client()
        self.target = Target.of(cluster, client.own.records)  # type: ignore[attr-defined]

    def throw(self, way: str, count: int) -> tuple[int, float]:
        """Send messages from a child process, whose allocations do not count; return their number and seconds."""
        self._throws += 1
        began = time.monotonic()
        reading, writing = os.pipe()
        gc.freeze()
        child = os.fork()
        if not child:
            signal.alarm(3600)
            status = 1
            try:
                thrown = WAYS[way][0](Dice(f"{self._seed} {way} {self._throws}"), self.target, count)
                os.write(writing, str(thrown).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(writing)
        with open(reading) as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"throwing {way} failed")
        return int(said), time.monotonic() - began

    def check(self) -> None:
        """Check that processes, nodes, leases, and the unrelated actor with its state are unchanged."""
        for name, process in self.processes.items():
            if not process.alive:
                if name.startswith("actor"):
                    self._actor.call()  # says why
                raise AssertionError(f"{name} has ended")
        self._calls += 1
        assert self._actor.call() == self._calls, "another process has called the actor"
        deadline = time.monotonic() + SETTLE_S
        while True:
            status = self._cluster.status()
            good = (status.node_count, status.leases, status.waiting) == (len(self._cluster.nodes), 1, 0)
            if good:
                break
            assert time.monotonic() < deadline, f"the cluster has changed: {status}"
            time.sleep(0.1)
        another = Bystander()
        assert another.call() == 1
        del another

    def sizes(self) -> dict[str, float]:
        return {name: process.own_bytes / MIB for name, process in self.processes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--way", choices=list(WAYS), help="send all messages this way only")
    options = parser.parse_args()
    shares = {options.way: 1.0} if options.way else {way: share for way, (_, share) in WAYS.items()}
    variables = {"PARL_MONITOR": "1"} if has_monitor() else {}
    print(
        "| way in | messages | seconds | MiB before | half-way | after | |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    total, good = 0, True
    with LoopbackCluster(1, cpus=2, liveness_limit_s=15.0, variables=variables) as cluster:
        cluster.connect()
        fuzz = Fuzz(cluster, options.seed)
        fuzz.check()
        for way, share in shares.items():
            count = max(200, int(options.messages * share / 2))
            before = fuzz.sizes()
            first, some_s = fuzz.throw(way, count)
            fuzz.check()
            half = fuzz.sizes()
            second, more_s = fuzz.throw(way, count)
            fuzz.check()
            after = fuzz.sizes()
            worst = max(after, key=lambda name: after[name] - before[name])
            grows = after[worst] - half[worst] > MOST_MIB / 2  # memory of the peak load does not count
            good &= not grows
            total += first + second
            verdict = "**grows**" if grows else "alive"
            sizes = f"{before[worst]:.1f} | {half[worst]:.1f} | {after[worst]:.1f} ({worst})"
            print(f"| {way} | {first + second} | {some_s + more_s:.0f} | {sizes} | {verdict} |", flush=True)
        parl.disconnect()
    print(f"\n{total} messages; seed {options.seed}, Python {sys.version.split()[0]}, {time.strftime('%Y-%m-%d')}")
    raise SystemExit(not good)


def has_monitor() -> bool:
    try:
        import flask  # noqa: F401
        import waitress  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
