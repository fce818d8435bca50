"""Random and mutated messages at every port and socket of a cluster, in a small, repeatable dose.

`benchmarks/fuzz` throws a million of them. What a member may do to a cluster on purpose is not thrown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

import parl_remote
from faults.strange_messages import Dice
from faults.ways_in import WAYS, Target
from parl_remote._messages.wire import all_kinds
from parl_remote.testing import LoopbackCluster, Process

MIB = 2**20
MOST_MIB = 10.0
SETTLE_S = 60.0
COUNTS = {"tcp, with another key": 3, "http, the monitor": 400}
COUNT = 2000


@parl_remote.remote_class
class Bystander:
    """An actor of a program that has nothing to do with what is thrown."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self) -> int:
        self.calls += 1
        return self.calls


class Scene:
    """A cluster with a bystander's actor."""

    def __init__(self, cluster: LoopbackCluster) -> None:
        self._cluster = cluster
        self._actor = Bystander()
        self._calls = 0
        self.check()
        client = parl_remote.get_global_client()
        self.target = Target.of(cluster, client.own.records)  # type: ignore[attr-defined]
        members = [cluster.master, *cluster.nodes.values()]
        self._processes = [process for member in members for process in (member.process, *member.actors)]

    def sizes(self) -> dict[Process, float]:
        return {process: process.own_bytes / MIB for process in self._processes}

    def check(self) -> None:
        """Nothing has changed: no other call of the actor, no new member or lease, and nothing has ended."""
        self._calls += 1
        assert self._actor.call() == self._calls
        deadline = time.monotonic() + SETTLE_S
        while True:
            status = self._cluster.status()
            if (status.node_count, status.leases, status.waiting) == (1, 1, 0):
                break
            assert time.monotonic() < deadline, status
            time.sleep(0.05)
        assert Bystander().call() == 1


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    parl_remote.disconnect()
    with LoopbackCluster(1, cpus=2) as cluster:
        cluster.connect()
        yield Scene(cluster)
        parl_remote.disconnect()


@pytest.mark.slow
@pytest.mark.parametrize("way", list(WAYS))
def test_strange_messages_end_nothing_change_nothing_and_leave_nothing(scene: Scene, way: str) -> None:
    throw, _ = WAYS[way]
    if way.startswith("sealed"):
        pytest.importorskip("cryptography")
    if way == "http, the monitor" and scene.target.monitor is None:
        pytest.skip("this cluster has no monitor; tests/monitor has its own fuzz")
    count = COUNTS.get(way, COUNT)
    throw(Dice(f"first {way}"), scene.target, count)
    scene.check()
    before = scene.sizes()
    assert throw(Dice(way), scene.target, count) >= count
    scene.check()
    for process, size in scene.sizes().items():
        assert process.alive
        assert size - before[process] < MOST_MIB, process


def test_the_same_seed_throws_the_same() -> None:
    one, two = Dice("x"), Dice("x")
    assert [one.frames(one.message) for _ in range(50)] == [two.frames(two.message) for _ in range(50)]
    assert Dice("y").frames(Dice("y").call) != Dice("z").frames(Dice("z").call)


@pytest.mark.slow
def test_every_message_there_is_is_thrown_but_the_one_that_stops_a_cluster() -> None:
    dice = Dice(0)
    thrown = [json.loads(dice.message()).get("is") for _ in range(5000)]
    assert {name for name in all_kinds() if name not in thrown} == {"Shutdown"}
