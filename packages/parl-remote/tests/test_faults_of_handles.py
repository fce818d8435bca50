"""Handles, names and actors of actors when nodes, the master or programs are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import pytest

import parl_remote
from parl_remote import ActorLost, DeathKind, with_options
from parl_remote.testing import Direction, LoopbackCluster, Process

PATIENCE_S = 60.0


@parl_remote.remote_class
class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    def process(self) -> int:
        return os.getpid()


@parl_remote.remote_class
class Holder:
    def __init__(self) -> None:
        self.held: Any = None

    def put(self, held: Any) -> None:
        self.held = held

    def get(self) -> Any:
        return self.held

    def add(self, amount: int) -> Any:
        return self.held.add(amount)

    def make(self) -> Any:
        self.held = Counter()
        return self.held

    def find(self, name: str) -> Any:
        return parl_remote.get_actor(name).add(1)

    def process(self) -> int:
        return os.getpid()


@pytest.fixture
def cluster() -> Iterator[LoopbackCluster]:
    """Two nodes with four CPUs each; the master has none. Actors of one node reach the other one by its socket."""
    parl_remote.disconnect()
    with LoopbackCluster(2, cpus=4, variables={"PARL_FORCE_TCP": "0"}) as one:
        one.connect()
        yield one
        parl_remote.disconnect()


@pytest.mark.slow
def test_actors_of_all_nodes_reach_each_other_over_tcp() -> None:
    parl_remote.disconnect()
    with LoopbackCluster(2, cpus=4) as cluster:
        cluster.connect()
        one, two = cluster.nodes.values()

        def with_cpus() -> list[str]:
            return [node.node_id for node in cluster.status().nodes if node.total.cpu]

        ids = with_cpus()
        actors = {node: (with_options(Counter, node=node)(), with_options(Holder, node=node)()) for node in ids}
        for counter, _ in actors.values():
            for _, holder in actors.values():
                holder.put(counter)
                holder.add(1)
        assert [counter.add(0) for counter, _ in actors.values()] == [2, 2]
        passed = {pair: line.passed(Direction.BOTH) > 0 for pair, line in cluster._between.items()}
        assert passed == dict.fromkeys([(a.name, b.name) for a in (one, two) for b in (one, two)], True)
        two.kill()
        cluster.start_node(two)
        deadline = time.monotonic() + PATIENCE_S
        while not (again := [node for node in with_cpus() if node not in ids]):
            assert time.monotonic() < deadline, "the node that was started again has not joined"
        survivor = next(holder for node, (_, holder) in actors.items() if _is_alive(holder))
        survivor.put(with_options(Counter, node=again[0])())
        assert survivor.add(1) == 1
        parl_remote.disconnect()


def _is_alive(actor: Any) -> bool:
    with contextlib.suppress(ActorLost):
        return bool(actor.process())
    return False


def node_of(cluster: LoopbackCluster, pid: int) -> Any:
    """The node that a process runs on."""
    return next(node for node in cluster.nodes.values() if pid in {actor.pid for actor in node.actors})


@pytest.mark.slow
def test_a_restarted_master_knows_names_and_actors_make_actors_as_before(cluster: LoopbackCluster) -> None:
    named, lasting = with_options(Counter, name="named")(), with_options(Counter, name="lasting", detached=True)()
    holder = Holder()
    made = holder.make()
    assert (named.add(1), lasting.add(1), made.add(1)) == (1, 1, 1)
    del lasting
    cluster.master.kill()
    assert named.add(1) == 2  # actors go on without a master
    assert holder.add(1) == 2
    cluster.restart_master()
    cluster.wait_for_nodes(2)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            assert parl_remote.get_actor("named").add(1) == 3
            break
        except parl_remote.RemoteError:  # this program is not back yet
            assert time.monotonic() < deadline
    assert parl_remote.get_actor("named") == named
    assert parl_remote.get_actor("lasting").add(1) == 2
    with pytest.raises(parl_remote.NameTaken):
        with_options(Counter, name="lasting")()
    assert holder.find("named") == 4
    assert holder.make().add(1) == 1
    parl_remote.kill("lasting")
    assert with_options(Counter, name="lasting")().add(5) == 5


@pytest.mark.slow
def test_all_holders_of_an_actor_get_the_loss_of_its_node(cluster: LoopbackCluster) -> None:
    holders = [Holder() for _ in range(2)]
    counters = [Counter() for _ in range(2)]
    lost = counters[0]
    node = node_of(cluster, lost.process())
    here = next(holder for holder in holders if node_of(cluster, holder.process()) is not node)
    here.put(lost)
    assert here.add(1) == 1
    node.kill()
    for call in (lost.add, here.add):
        with pytest.raises(ActorLost) as error:
            call(1)
        assert error.value.cause.kind is DeathKind.NODE_LOST
    assert isinstance(here.process(), int)


@pytest.mark.slow
def test_a_killed_program_takes_the_actors_of_its_actors_along(cluster: LoopbackCluster) -> None:
    program = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        import parl_remote
        from test_faults_of_handles import Holder
        parl_remote.connect({cluster.address!r})
        holders = [Holder() for _ in range(2)]
        made = [holder.make() for holder in holders]
        print(*[one.process() for one in (*holders, *made)], flush=True)
        sys.stdin.read()
    """)
    environment = {**os.environ, **cluster.environment}
    driver = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    with driver:
        assert driver.stdout is not None
        actors = [Process(int(pid)) for pid in driver.stdout.readline().split()]
        assert len(actors) == 4
        driver.send_signal(signal.SIGKILL)
        for actor in actors:
            actor.wait_for_end(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while cluster.status().leases:
        assert time.monotonic() < deadline


def test_the_borrower_of_a_killed_actor_gets_the_cause(cluster: LoopbackCluster) -> None:
    holder, counter = Holder(), Counter()
    holder.put(counter)
    os.kill(counter.process(), signal.SIGKILL)
    with pytest.raises(ActorLost) as error:
        holder.add(1)
    assert error.value.cause.signal == signal.SIGKILL
    assert error.value.class_name == "Counter"
