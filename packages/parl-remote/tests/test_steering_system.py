"""Looking at and steering clusters of real processes: records of deaths, live numbers, kills, drains, GPUs, threads."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import parl_remote
from faults.polling import eventually
from parl_remote import ActorLost, DeathKind, NoResources, _current, submit, with_options
from parl_remote._config import environment
from parl_remote._links.requests import RequestConnection
from parl_remote._messages import Message, Role
from parl_remote._messages.overview import (
    ActorKilled,
    ActorList,
    ActorPhase,
    ActorStatus,
    DeathRecord,
    Deaths,
    DrainNode,
    DrainStarted,
    EventKind,
    Events,
    KillActor,
    ListActors,
    ListDeaths,
    ListEvents,
    ListNodes,
    NodeDetail,
    NodeList,
    NodePhase,
)
from parl_remote._program.client import Client
from parl_remote._program.rendezvous import ClusterAddress
from parl_remote.testing import LoopbackCluster

PATIENCE_S = 60.0
M = TypeVar("M", bound=Message)


@parl_remote.remote_class
class Victim:
    def __init__(self, fail: bool = False) -> None:
        self.hoard: list[bytes] = []
        if fail:
            raise ValueError("it will not be made\nfor a reason")

    def process(self) -> int:
        return os.getpid()

    def node(self) -> int:
        with open(f"/proc/{os.getppid()}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])

    def say(self, text: str) -> None:
        sys.stdout.write(text + "\n")

    def exit_with(self, code: int) -> None:
        os._exit(code)

    def die_by(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def crash(self) -> None:
        ctypes.string_at(0)

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def wait_for(self, gate: str) -> str:
        while not os.path.exists(gate):
            time.sleep(0.01)
        return "open"

    def grow(self, mib: int) -> int:
        self.hoard.append(bytes(bytearray(mib * 2**20)))
        return len(self.hoard)

    def grow_and_sleep(self, mib: int) -> None:
        self.grow(mib)
        time.sleep(PATIENCE_S)


@parl_remote.remote_class
class Patient:
    async def sleep(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"


def ask(make: Callable[[int], Message], kind: type[M]) -> M:
    client = _current.client()
    assert isinstance(client, Client)
    answer = client._master.ask(make, PATIENCE_S)
    assert isinstance(answer, kind)
    return answer


def deaths() -> tuple[DeathRecord, ...]:
    return ask(ListDeaths, Deaths).deaths


def actors() -> tuple[ActorStatus, ...]:
    return ask(ListActors, ActorList).actors


# -- records of deaths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "argument", "kind", "exit_code", "number"),
    [
        ("exit_with", 0, DeathKind.EXIT, 0, None),
        ("exit_with", 3, DeathKind.EXIT, 3, None),
        ("die_by", signal.SIGTERM, DeathKind.SIGNAL, None, signal.SIGTERM),
        ("die_by", signal.SIGKILL, DeathKind.SIGNAL, None, signal.SIGKILL),
        ("crash", None, DeathKind.SIGNAL, None, signal.SIGSEGV),
    ],
)
def test_the_exception_and_the_master_describe_a_death_in_the_same_words(
    shared_cluster: None, method: str, argument: int | None, kind: DeathKind, exit_code: int, number: int
) -> None:
    victim: Any = Victim()
    victim.say("my last words")
    pid, began = victim.process(), time.time()
    with pytest.raises(ActorLost) as lost:
        getattr(victim, method)(*([] if argument is None else [argument]))
    cause = lost.value.cause
    assert (cause.kind, cause.exit_code, cause.signal) == (kind, exit_code, number)
    assert (cause.last_call, cause.pid, cause.log_tail[0]) == (method, pid, "my last words")
    assert began - 1 < cause.at < time.time() + 1
    assert cause.memory[0].resident > 2**20
    assert cause.memory_peak >= cause.memory[0].resident // 2
    (record,) = eventually(lambda: [record for record in deaths() if record.cause.pid == pid])
    assert record.cause == cause
    assert (record.class_name, record.restarts) == ("Victim", 0)
    assert record.owner.endswith(f"(process {os.getpid()})")


def test_a_memory_limit_leaves_the_limit_the_size_and_the_curve(shared_cluster: None) -> None:
    victim = with_options(Victim, max_memory=64)()
    victim.grow(8)
    growing = submit(victim.grow_and_sleep, 128)
    with pytest.raises(ActorLost, match=r"it used \d+ MiB, its limit is 64 MiB") as lost:
        growing.result(PATIENCE_S)
    cause = lost.value.cause
    assert (cause.kind, cause.memory_limit) == (DeathKind.MEMORY, 64 * 2**20)
    assert cause.memory[-1].resident - cause.memory[0].resident > 64 * 2**20
    assert cause.memory_peak >= cause.memory[-1].resident * 0.9
    assert "MiB" in cause.describe_memory()


def test_a_constructor_that_fails_is_recorded_as_that(connect: Callable[..., None]) -> None:
    connect()
    with pytest.raises(ValueError, match="it will not be made"):
        Victim(fail=True)
    (record,) = eventually(deaths)
    assert (record.cause.kind, record.cause.detail) == (DeathKind.CONSTRUCTOR, "ValueError: it will not be made")
    assert record.cause.last_call == "__init__"


def test_an_actor_that_is_let_go_of_is_no_death(connect: Callable[..., None]) -> None:
    connect()
    victim = Victim()
    victim.process()
    del victim
    (record,) = eventually(lambda: ask(lambda number: ListDeaths(number, released=True), Deaths).deaths)
    assert record.cause.kind is DeathKind.RELEASED
    assert deaths() == ()


# -- live numbers ------------------------------------------------------------------------------------------------------


def test_the_master_knows_what_actors_do(connect: Callable[..., None]) -> None:
    connect()
    idle, busy = Victim(), with_options(Victim, max_memory=500)()
    for _ in range(5):
        idle.process()
    pids = [idle.process(), busy.process()]
    waiting = submit(busy.sleep, PATIENCE_S)
    first, second = eventually(
        lambda: (
            rows if len(rows := actors()) == 2 and rows[1].numbers.busy_with and rows[0].numbers.calls == 6 else None
        )
    )
    assert [first.numbers.pid, second.numbers.pid] == pids
    assert (first.numbers.phase, first.numbers.busy_with) == (ActorPhase.IDLE, "")
    assert (second.numbers.phase, second.numbers.busy_with) == (ActorPhase.BUSY, "sleep")
    assert time.time() - 60 < second.numbers.busy_since <= time.time()
    assert (second.numbers.calls, second.numbers.memory_limit) == (1, 500 * 2**20)
    assert first.numbers.memory > 2**20
    (node,) = ask(ListNodes, NodeList).nodes
    assert (node.phase, node.is_master, node.actors) == (NodePhase.UP, True, 2)
    assert 0 < node.memory_free <= node.memory_total
    assert node.total.memory > 0
    del waiting


def test_an_actor_can_be_bound_to_a_node_by_its_name(connect: Callable[..., None]) -> None:
    connect()
    (node,) = ask(ListNodes, NodeList).nodes
    assert with_options(Victim, node=node.name)().process() > 0
    with pytest.raises(NoResources, match="there is no node 'nowhere'"):
        with_options(Victim, node="nowhere")()


# -- kill and drain ----------------------------------------------------------------------------------------------------


def test_the_owner_of_an_actor_killed_by_another_program_gets_the_killer_and_the_reason(
    connect: Callable[..., None],
) -> None:
    connect()
    victim = Victim()
    waiting = submit(victim.sleep, PATIENCE_S)
    (row,) = actors()
    killed = ask(lambda number: KillActor(number, row.lease_id, "it hangs"), ActorKilled)
    assert (killed.death.lease_id, killed.death.cause.kind) == (row.lease_id, DeathKind.KILLED_BY_USER)
    with pytest.raises(ActorLost, match=rf"it was destroyed: by .*\(process {os.getpid()}\), it hangs"):
        waiting.result(PATIENCE_S)
    assert actors() == ()


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[LoopbackCluster]:
    with LoopbackCluster(2, cpus=2, master_cpus=1) as cluster:
        yield cluster


@pytest.fixture
def connected(two_nodes: LoopbackCluster) -> Iterator[RequestConnection]:
    two_nodes.connect()
    found = environment({**os.environ, **two_nodes.environment})
    address = ClusterAddress(two_nodes.address, found)
    with RequestConnection(address.connect_master(), Role.MASTER, found.limits, "xparl test") as master:
        yield master
    parl_remote.disconnect()


def node_of(master: RequestConnection, victim: Any) -> NodeDetail:
    pid = victim.node()
    return next(node for node in master.ask(ListNodes, NodeList).nodes if node.pid == pid)


def test_a_drained_node_s_actors_finish_what_they_were_sent_and_the_worker_ends(
    two_nodes: LoopbackCluster, connected: RequestConnection, tmp_path: Path
) -> None:
    master, gate = connected, tmp_path / "gate"
    before = master.ask(ListNodes, NodeList).nodes
    victims: list[Any] = [Victim() for _ in range(5)]
    homes = [node_of(master, victim) for victim in victims]
    leaving = next(home for home in homes if not home.is_master)
    on_it = [victim for victim, home in zip(victims, homes, strict=True) if home.node_id == leaving.node_id]
    others = [victim for victim, home in zip(victims, homes, strict=True) if home.node_id != leaving.node_id]
    sent = [submit(victim.wait_for, str(gate)) for victim in on_it]
    eventually(lambda: [row.numbers.busy_with for row in actors()].count("wait_for") == len(on_it))
    started = master.ask(lambda number: DrainNode(number, leaving.node_id, 0.0, "new kernel"), DrainStarted)
    assert (started.actors, started.leaves) == (len(on_it), True)
    gate.touch()
    assert [future.result(PATIENCE_S) for future in sent] == ["open"] * len(on_it)
    with pytest.raises(ActorLost, match="its node was drained: new kernel"):
        eventually(lambda: not on_it[0].process())  # what it has not read yet when it ends is lost
    eventually(lambda: len(master.ask(ListNodes, NodeList).nodes) == len(before) - 1)
    assert all(victim.process() > 0 for victim in others)
    left = next(member for member in two_nodes.nodes.values() if member.process.pid == leaving.pid)
    eventually(lambda: not left.process.alive)
    record = next(one for one in master.ask(ListDeaths, Deaths).deaths if one.node_id == leaving.node_id)
    assert record.cause.kind is DeathKind.DRAINED


def test_running_calls_of_threads_and_coroutines_are_finished_when_a_node_is_drained() -> None:
    with LoopbackCluster(1, cpus=2) as cluster:
        cluster.connect()
        on_it: list[Any] = [with_options(Victim, max_concurrency=3)(), Patient()]
        sent = [submit(victim.sleep, 1.0) for victim in on_it for _ in range(2)]
        assert [victim.sleep(0.0) for victim in on_it] == ["slept", "slept"], "those before it have begun"
        (node,) = ask(ListNodes, NodeList).nodes
        ask(lambda number: DrainNode(number, node.node_id, 0.0), DrainStarted)
        assert [future.result(PATIENCE_S) for future in sent] == ["slept"] * len(sent)
        assert {one.cause.kind for one in eventually(lambda: len(deaths()) == len(on_it) and deaths())} == {
            DeathKind.DRAINED
        }
        parl_remote.disconnect()


@pytest.mark.slow
def test_an_actor_with_restarts_moves_from_a_drained_node_and_keeps_its_name(
    two_nodes: LoopbackCluster, connected: RequestConnection
) -> None:
    master = connected
    two_nodes.add_node(4)
    eventually(lambda: any(node.total.cpu == 4 for node in master.ask(ListNodes, NodeList).nodes))
    mover = with_options(Victim, max_restarts=1, n_cpu=1, name="mover")()
    before = node_of(master, mover)
    assert before.total.cpu == 4, "it spreads to the node with the most free slots"
    master.ask(lambda number: DrainNode(number, before.node_id), DrainStarted)
    eventually(lambda: before.node_id not in {node.node_id for node in master.ask(ListNodes, NodeList).nodes})
    after = node_of(master, mover)
    assert after.node_id != before.node_id
    (row,) = [row for row in actors() if row.name == "mover"]
    assert (row.restarts, row.node_id) == (1, after.node_id)


@pytest.mark.slow
def test_a_master_that_was_killed_lists_and_kills_after_its_restart_what_it_had_before(
    two_nodes: LoopbackCluster, connected: RequestConnection
) -> None:
    two_nodes.add_node(2)
    eventually(lambda: [node for node in connected.ask(ListNodes, NodeList).nodes if node.free.cpu == 2])
    keeper = with_options(Victim, n_cpu=2, name="keeper")()  # the master's own node has only one
    pid = keeper.process()
    (before,) = eventually(lambda: [row for row in actors() if row.name == "keeper" and row.numbers.pid])
    two_nodes.master.kill()
    two_nodes.restart_master()
    found = environment({**os.environ, **two_nodes.environment})

    def seen() -> ActorStatus | None:
        address = ClusterAddress(two_nodes.address, found)
        with RequestConnection(address.connect_master(), Role.MASTER, found.limits, "xparl test") as master:
            rows = master.ask(ListActors, ActorList).actors
        return next((row for row in rows if row.name == "keeper" and row.numbers.pid and row.owner), None)

    after = eventually(seen)
    assert (after.lease_id, after.node_id, after.client_id) == (before.lease_id, before.node_id, before.client_id)
    assert (after.numbers.pid, after.owner, after.resources) == (pid, before.owner, before.resources)
    assert after.age_s > before.age_s
    assert keeper.process() == pid
    # `connected` is the link to the master that is gone; what that one had recorded is still there.
    address = ClusterAddress(two_nodes.address, found)
    with RequestConnection(address.connect_master(), Role.MASTER, found.limits, "xparl test") as master:
        joined = [one.node_id for one in master.ask(ListEvents, Events).events if one.kind is EventKind.NODE_JOINED]
    assert joined.count(before.node_id) == 2
    assert ask(lambda number: KillActor(number, "keeper"), ActorKilled).death.lease_id == before.lease_id
    with pytest.raises(ActorLost, match="it was destroyed"):
        keeper.process()
