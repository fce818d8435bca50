"""The master's bookkeeping, driven without a network: examples first, then its promises under any order of events."""

from __future__ import annotations

import dataclasses
import itertools
import random
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from faults.repeated_examples import examples
from parl_remote._master.cluster_state import ClusterState
from parl_remote._master.cluster_tables import DropNode, Instruction, ToClient, ToNode
from parl_remote._master.events import DrainRecord, History, NodeRecord, PreviousHistory
from parl_remote._messages import (
    Bye,
    Heartbeat,
    LeaseAssigned,
    LeaseGranted,
    LeaseLost,
    LeaseRefused,
    LeaseRequest,
    LeaseRevoked,
    LeaseWanted,
    Message,
    NodeJoin,
    RefusalCode,
    RunningLease,
)
from parl_remote._messages.overview import (
    AcknowledgeNodes,
    ActorNumbers,
    ActorPhase,
    ClusterEvent,
    DrainNode,
    EndActor,
    ForgetUnstarted,
    ListEvents,
    ListNodes,
    NodePhase,
    NodesAcknowledged,
)
from parl_remote._resources import Resources
from parl_remote.errors import DeathCause, DeathKind, RemoteProtocolError

ONE = Resources(cpu=1)
EXITED = DeathCause(DeathKind.EXIT, exit_code=1)


def cluster(
    *nodes: tuple[str, Resources],
    clients: tuple[str, ...] = ("c",),
    nodes_may_join: bool = True,
    client_grace_s: float = 0.0,
) -> ClusterState:
    ids = itertools.count(1)
    state = ClusterState(
        cluster_id="test",
        new_lease_id=lambda: f"lease{next(ids)}",
        started=0.0,
        liveness_limit_s=15.0,
        client_grace_s=client_grace_s,
        nodes_may_join=nodes_may_join,
    )
    for client_id in clients:
        state.client_joined(client_id, client_id, 1)
    for node_id, resources in nodes:
        state.node_joined(node(node_id, resources), 0.0)
    return state


def node(node_id: str, resources: Resources, *leases: RunningLease) -> NodeJoin:
    return NodeJoin(node_id, "host", (f"{node_id}:1",), f"/run/{node_id}", resources, leases, name=f"the {node_id}")


def ask(
    state: ClusterState,
    number: int,
    need: Resources = ONE,
    timeout_s: float | None = None,
    client: str = "c",
    now: float = 0.0,
) -> list[Message]:
    return answers(state.lease_requested(client, LeaseRequest(number, need, timeout_s, "Actor"), now))


def ask_as_new(state: ClusterState, client: str) -> list[Message]:
    state.client_joined(client, client, 1)
    return ask(state, 1, client=client)


def answers(instructions: list[Instruction]) -> list[Message]:
    return [one.message for one in instructions if isinstance(one, ToClient)]


def granted(messages: list[Message]) -> list[LeaseGranted]:
    return [one for one in messages if isinstance(one, LeaseGranted)]


def test_a_request_is_granted_where_there_is_a_slot_after_the_worker_has_it() -> None:
    state = cluster(("n", Resources(cpu=2)))
    out = state.lease_requested("c", LeaseRequest(7, ONE, None, "Actor"), 0.0)
    assert out == [
        ToNode("n", LeaseAssigned("lease1", "c", ONE, "Actor")),
        ToClient("c", LeaseGranted(7, "lease1", "n", ("n:1",), "/run/n", "host")),
    ]


def happened(state: ClusterState, after: int = 0) -> list[tuple[str, str]]:
    listed = state.view.events(ListEvents(1, after))
    return [(event.kind.value, event.text) for event in listed.events]


def test_a_lost_node_is_listed_with_time_and_cause_until_it_is_acknowledged() -> None:
    state = cluster(("a", ONE), ("b", ONE))
    ask(state, 1)
    ask(state, 2)
    state.node_alive("a", Heartbeat(1), 14.0)
    state.tick(16.0)
    (lost,) = state.view.nodes(ListNodes(1, lost=True), 20.0, "").nodes[1:]
    assert (lost.node_id, lost.phase.value, lost.lost_at, lost.actors, lost.silent_s) == ("b", "lost", 16.0, 1, 4.0)
    assert lost.cause == "no sign of life for more than 15 s"
    assert len(state.view.nodes(ListNodes(1), 20.0, "").nodes) == 1
    status = state.status(1, 20.0, detail=True, dropped=0)
    assert (status.node_count, [(one.node_id, one.lost_at) for one in status.lost]) == (1, [("b", 16.0)])
    assert status.total == ONE
    assert state.nodes_acknowledged(AcknowledgeNodes(7, ("a", "b")), "xparl", 21.0) == NodesAcknowledged(7, ("b",))
    assert len(state.view.nodes(ListNodes(1, lost=True), 22.0, "").nodes) == 1
    assert [kind for kind, _ in happened(state)][-2:] == ["node_lost", "node_acknowledged"]


def test_a_lost_node_that_comes_back_is_no_longer_lost() -> None:
    state = cluster(("a", ONE))
    state.node_lost("a", "the connection broke", 5.0)
    state.node_joined(node("a", ONE), 9.0)
    assert not state.status(1, 9.0, detail=True, dropped=0).lost
    assert happened(state)[-1] == ("node_joined", "the a:1 came back after 4 s, with 0 actors")


class Kept(History):
    """A history in memory, which a second master reads."""

    def __init__(self) -> None:
        self.events: list[ClusterEvent] = []
        self.nodes: dict[str, NodeRecord] = {}
        self.drains: dict[str, DrainRecord] = {}

    def past(self) -> PreviousHistory:
        since = 900.0 if self.events else None
        kept = tuple(self.nodes.values()), tuple(self.drains.values())
        return PreviousHistory(since, tuple(self.events[2:]), {"node_joined": 2}, *kept)

    def happened(self, event: ClusterEvent) -> None:
        self.events.append(event)

    def noted(self, node: NodeRecord) -> None:
        self.nodes[node.joined.node_id] = node

    def draining(self, drain: DrainRecord) -> None:
        self.drains[drain.node_id] = drain

    def gone(self, node_id: str) -> None:
        self.nodes.pop(node_id, None)
        self.drains.pop(node_id, None)


def again(kept: Kept, epoch: float) -> ClusterState:
    """A master that is started while another one's history is there."""
    numbers = map("lease{}".format, itertools.count(1))
    return ClusterState(
        cluster_id="it",
        new_lease_id=lambda: next(numbers),
        started=0.0,
        liveness_limit_s=15.0,
        epoch=epoch,
        history=kept,
    )


def test_events_and_lost_nodes_survive_the_master() -> None:
    kept = Kept()
    state = again(kept, 1000.0)
    for name in "abcde":
        state.node_joined(node(name, ONE), 0.0)
    state.node_lost("a", "the cable was cut", 5.0)
    state.node_lost("b", "it burned", 6.0)
    state.nodes_acknowledged(AcknowledgeNodes(1, ("b",)), "xparl", 7.0)
    state.node_left("c", "it was stopped", 8.0)
    before = state.view.events(ListEvents(1)).events

    state = again(kept, 2000.0)
    told = state.view.events(ListEvents(1))
    assert told.events == before[2:]
    assert (told.since, told.counts["node_joined"], told.counts["node_lost"]) == (900.0, 5, 2)
    (lost,) = state.status(1, 1.0, detail=True, dropped=0).lost
    assert (lost.node_id, lost.lost_at, lost.cause) == ("a", 1005.0, "the cable was cut")
    state.node_joined(node("d", ONE), 2.0)  # e does not come back
    assert state.next_deadline() == 2.0 + 15.0
    state.node_alive("d", Heartbeat(1), 29.0)
    assert not state.tick(29.0)
    assert len(state.status(1, 29.0, detail=True, dropped=0).lost) == 1
    state.node_alive("d", Heartbeat(2), 30.0)
    state.tick(30.0)
    missed = state.status(1, 30.0, detail=True, dropped=0).lost
    assert [(one.node_id, one.lost_at) for one in missed] == [("a", 1005.0), ("e", 2030.0)]
    assert "did not come back" in missed[1].cause
    assert state.view.events(ListEvents(1, -1)).events[0].number == len(before) + 2
    state.nodes_acknowledged(AcknowledgeNodes(1), "xparl", 31.0)

    state = again(kept, 3000.0)
    assert not state.status(1, 1.0, detail=True, dropped=0).lost


def test_drains_survive_the_master() -> None:
    kept = Kept()
    state = again(kept, 1000.0)
    for name in "abc":
        state.node_joined(node(name, ONE, RunningLease(f"on {name}", "c", ONE, "Actor")), 0.0)
    state.drain_requested("d", DrainNode(1, "a", 50.0, "new disk"), 10.0)
    state.drain_requested("d", DrainNode(2, "b"), 10.0)
    state = again(kept, 1040.0)
    for name in "ab":
        state.node_joined(node(name, ONE, RunningLease(f"on {name}", "c", ONE, "Actor")), 0.0)
    assert [one.phase for one in state.view.nodes(ListNodes(1), 1.0, "").nodes] == [NodePhase.DRAINING] * 2
    for name in "ab":
        state.node_alive(name, Heartbeat(1), 14.0)
    assert state.next_deadline() == 20.0, "50 s after it was asked for"
    (asked,) = state.tick(20.0)
    assert isinstance(asked, ToNode)
    assert isinstance(asked.message, EndActor)
    assert (asked.node_id, asked.message.lease_id, asked.message.detail) == ("a", "on a", "new disk")
    for name in "ab":
        assert ToNode(name, Bye("it was drained" + ": new disk" * (name == "a"))) in state.lease_ended(
            name, f"on {name}", EXITED
        )
    assert not kept.drains


def test_lost_nodes_that_are_no_longer_listed_are_no_longer_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    state = again(kept, 1000.0)
    for name in "abc":
        state.node_joined(node(name, ONE), 0.0)
        state.node_lost(name, "it burned", 1.0)
    assert set(kept.nodes) == {"a", "b", "c"}
    monkeypatch.setattr("parl_remote._master.events._LOST_KEPT", 2)
    state = again(kept, 2000.0)
    assert set(kept.nodes) == {"b", "c"}, "a master that is started again drops those that are too many"
    state.node_joined(node("d", ONE), 2.0)
    state.node_lost("d", "it burned", 3.0)
    assert set(kept.nodes) == {one.node_id for one in state.status(1, 4.0, detail=True, dropped=0).lost} == {"c", "d"}


def test_a_node_in_the_place_of_an_awaited_one_is_its_successor() -> None:
    kept = Kept()
    again(kept, 1000.0).node_joined(node("a", ONE), 0.0)
    state = again(kept, 2000.0)
    successor = dataclasses.replace(node("b", ONE), addresses=("a:1",))
    state.node_joined(successor, 1.0)
    state.node_alive("b", Heartbeat(1), 40.0)
    state.tick(40.0)
    assert not state.status(1, 40.0, detail=True, dropped=0).lost
    assert set(kept.nodes) == {"b"}


def test_a_node_that_was_stopped_has_left_and_is_not_lost() -> None:
    state = cluster(("a", ONE))
    state.node_left("a", "the worker was stopped", 5.0)
    assert not state.status(1, 9.0, detail=True, dropped=0).lost
    assert happened(state)[-1] == ("node_left", "the a:1 has left: the worker was stopped")


def test_events_tell_of_actors_that_were_lost_ran_out_of_memory_or_started_again() -> None:
    state = cluster(("a", Resources(cpu=2)))
    state.lease_requested("c", LeaseRequest(1, ONE, None, "Actor", max_restarts=2), 0.0)
    state.lease_ended("a", "lease1", EXITED, 1.0)
    again = LeaseRequest(2, ONE, None, "Actor", max_restarts=2, restarts=1, replaces="lease1")
    state.lease_requested("c", again, 2.0)
    state.lease_ended("a", "lease2", DeathCause(DeathKind.MEMORY, detail="2 GiB"), 3.0)
    assert happened(state, after=1) == [
        ("actor_lost", "Actor was lost on the a:1: its process exited with status 1"),
        ("actor_restarted", "Actor starts again on the a:1, restart 1 of 2"),
        ("out_of_memory", "Actor was lost on the a:1: it passed its memory limit: 2 GiB"),
    ]
    counts = state.view.events(ListEvents(1)).counts
    assert counts == {"node_joined": 1, "actor_lost": 1, "actor_restarted": 1, "out_of_memory": 1}


def test_a_restart_follows_the_loss_even_if_the_program_was_quicker_than_the_worker() -> None:
    state = cluster(("n", Resources(cpu=2)))
    ask(state, 1)
    state.lease_requested("c", LeaseRequest(2, ONE, None, "Actor", replaces="lease1", restarts=1, max_restarts=1), 1.0)
    assert happened(state)[1:] == []
    state.lease_ended("n", "lease1", EXITED, 2.0)
    assert [kind for kind, _ in happened(state)[1:]] == ["actor_lost", "actor_restarted"]


def test_intended_ends_are_not_events() -> None:
    state = cluster(("a", Resources(cpu=2)))
    ask(state, 1)
    ask(state, 2)
    state.lease_released("c", "lease1")
    state.lease_ended("a", "lease2", DeathCause(DeathKind.KILLED_BY_USER))
    assert [kind for kind, _ in happened(state)] == ["node_joined"]


def test_events_are_read_from_a_position_or_from_the_end() -> None:
    state = cluster(*[(f"n{i}", ONE) for i in range(5)])
    assert [event.number for event in state.view.events(ListEvents(1, 3)).events] == [4, 5]
    assert [event.number for event in state.view.events(ListEvents(1, -2)).events] == [4, 5]
    assert [event.number for event in state.view.events(ListEvents(1, 0, 2)).events] == [1, 2]
    assert state.view.events(ListEvents(1, 5)).events == ()
    assert state.view.events(ListEvents(1, 2**80, 2**80)).events == ()
    assert len(state.view.events(ListEvents(1, -(2**80), 2**80)).events) == 5
    for i in range(6000):
        state.node_joined(node("n0", ONE), float(i))
    kept = state.view.events(ListEvents(1, 0, 10))
    assert (kept.events[0].number, kept.latest) == (1006, 6005)


def test_a_drained_node_is_reported_at_the_beginning_and_when_it_is_empty() -> None:
    state = cluster(("a", ONE))
    ask(state, 1)
    state.drain_requested("c", DrainNode(2, "the a:1", None, "new disk"), 1.0)
    state.lease_released("c", "lease1", 2.0)
    assert happened(state, after=1) == [
        ("node_draining", "the a:1 is being drained, with 1 actor: new disk"),
        ("node_drained", "the a:1 is drained and leaves"),
    ]


def test_memory_that_nodes_of_one_host_share_counts_once() -> None:
    state = cluster(("a", Resources(cpu=1, memory=100)), ("b", Resources(cpu=1, memory=100)))
    for name in ("a", "b"):
        state.node_alive(name, Heartbeat(1, 0.0, 60, 100), 1.0)
    ask(state, 1, Resources(cpu=1, memory=30))
    status = state.status(1, 2.0, detail=True, dropped=0)
    assert (status.total.memory, status.free.memory, status.total.cpu) == (100, 70, 2)


def test_a_full_cluster_queues_and_serves_first_come_first() -> None:
    state = cluster(("n", ONE), clients=("a", "b"))
    assert granted(ask(state, 1, client="a"))
    assert ask(state, 2, client="b") == []
    assert ask(state, 3, client="a") == []
    out = state.lease_released("a", "lease1")
    assert out[0] == ToNode("n", LeaseRevoked("lease1", "released by its owner"))
    assert [(type(one.message), one.client_id) for one in out if isinstance(one, ToClient)] == [(LeaseGranted, "b")]


def test_a_request_that_may_not_wait_is_refused_with_what_was_asked_and_what_there_is() -> None:
    state = cluster(("n", Resources(cpu=2)))
    ask(state, 1, Resources(cpu=2))
    (refused,) = ask(state, 2, timeout_s=0)
    assert isinstance(refused, LeaseRefused)
    assert (refused.request_id, refused.code) == (2, RefusalCode.TIMEOUT)
    assert refused.reason == (
        "Actor asked for 1 CPU; the cluster has 2 CPU on 1 node, nothing free; "
        "short of cpu: it needs 1 CPU and no node has any free"
    )


def test_a_request_is_refused_when_its_time_is_up_and_not_before() -> None:
    state = cluster(("n", ONE))
    ask(state, 1)
    assert ask(state, 2, timeout_s=5.0, now=1.0) == []
    assert state.next_deadline() == 6.0
    assert answers(state.tick(5.9)) == []
    (refused,) = answers(state.tick(6.0))
    assert isinstance(refused, LeaseRefused)
    assert refused.code is RefusalCode.TIMEOUT
    assert "nothing became free within 5 s" in refused.reason
    assert granted(answers(state.lease_released("c", "lease1"))) == []


def test_requests_that_were_given_up_are_not_kept_behind_one_that_waits() -> None:
    state = cluster(("n", ONE))
    ask(state, 1)
    ask(state, 2)
    for number in range(3, 1000):
        ask(state, number, timeout_s=1e6)
        state.lease_cancelled("c", number)
    queue = state.tables.queue
    assert sum(map(len, queue._lines.values())) == len(queue) == 1
    assert len(queue._deadlines) < 200
    assert granted(answers(state.lease_released("c", "lease1")))


def test_a_request_that_no_node_can_hold_waits_and_blocks_no_other() -> None:
    state = cluster(("n", ONE))
    assert ask(state, 1, Resources(cpu=4)) == []
    assert granted(ask(state, 2))
    out = answers(state.node_joined(node("big", Resources(cpu=8)), 0.0))
    assert [one.request_id for one in granted(out)] == [1]


def test_what_no_node_can_hold_is_refused_at_once_where_no_node_will_join() -> None:
    state = cluster(("n", ONE), nodes_may_join=False)
    (refused,) = ask(state, 1, Resources(cpu=2), timeout_s=100)
    assert isinstance(refused, LeaseRefused)
    assert refused.code is RefusalCode.TOO_LARGE
    assert "no single node is large enough" in refused.reason


def test_work_spreads_over_the_nodes() -> None:
    state = cluster(*((f"n{i}", Resources(cpu=3)) for i in range(4)))
    homes = [granted(ask(state, number))[0].node_id for number in range(8)]
    assert sorted(homes[:4]) == sorted(homes[4:]) == ["n0", "n1", "n2", "n3"]


def test_actors_without_gpus_leave_the_nodes_that_have_some_to_others() -> None:
    state = cluster(("gpu", Resources(cpu=8, gpu=2)), ("cpu", Resources(cpu=2)))
    homes = [granted(ask(state, number))[0].node_id for number in range(3)]
    assert homes == ["cpu", "cpu", "gpu"]
    assert granted(ask(state, 9, Resources(cpu=1, gpu=1)))[0].node_id == "gpu"


def test_a_request_for_a_gpu_does_not_hold_back_one_for_a_cpu() -> None:
    state = cluster(("n", Resources(cpu=4, gpu=1)))
    ask(state, 1, Resources(gpu=1))
    assert ask(state, 2, Resources(gpu=1)) == []
    assert granted(ask(state, 3))


def test_a_request_for_many_cpus_is_not_starved_by_those_for_one() -> None:
    state = cluster(("n", Resources(cpu=2)))
    ask(state, 1)
    assert ask(state, 2, Resources(cpu=2)) == []
    assert ask(state, 3) == []
    assert [one.request_id for one in granted(answers(state.lease_released("c", "lease1")))] == [2]


def test_fractions_of_a_cpu_add_up() -> None:
    state = cluster(("n", ONE))
    for number in range(10):
        assert granted(ask(state, number, Resources(cpu=0.1), timeout_s=0))
    assert not granted(ask(state, 11, Resources(cpu=0.001), timeout_s=0))


def test_a_cancelled_request_is_answered_and_leaves_the_queue() -> None:
    state = cluster(("n", ONE))
    ask(state, 1)
    ask(state, 2)
    (refused,) = answers(state.lease_cancelled("c", 2))
    assert isinstance(refused, LeaseRefused)
    assert refused.code is RefusalCode.CANCELLED
    assert state.lease_cancelled("c", 2) == []
    assert granted(answers(state.lease_released("c", "lease1"))) == []


def test_an_actor_that_ended_frees_its_slot_and_its_owner_learns_why() -> None:
    state = cluster(("n", ONE))
    ask(state, 1)
    assert answers(state.lease_ended("n", "lease1", EXITED)) == [LeaseLost("lease1", EXITED)]
    assert granted(ask(state, 2))
    assert state.lease_ended("n", "lease1", EXITED) == []


def test_a_lost_node_takes_its_leases_along_and_says_so() -> None:
    state = cluster(("n", ONE))
    ask(state, 1)
    (lost,) = answers(state.node_lost("n", "its connection was closed"))
    assert isinstance(lost, LeaseLost)
    assert lost.cause.kind is DeathKind.NODE_LOST
    assert lost.cause.detail == "the n:1: its connection was closed"
    assert state.status(1, 1.0, detail=True, dropped=0).node_count == 0


def test_a_silent_node_is_lost_after_the_limit_and_not_before() -> None:
    state = cluster(("n", ONE), ("m", ONE))
    state.node_alive("n", Heartbeat(1), 10.0)
    assert state.tick(15.0) == []
    (drop,) = state.tick(15.1)
    assert drop == DropNode("m", "no sign of life for more than 15 s")
    assert [one.node_id for one in state.status(1, 16.0, detail=True, dropped=0).nodes] == ["n"]


def test_a_lost_client_frees_its_slot_and_its_place_in_the_queue() -> None:
    state = cluster(("n", ONE), clients=("a", "b"))
    ask(state, 1, client="a")
    ask(state, 2, client="a")
    ask(state, 1, client="b")
    out = state.client_lost("a")
    assert out[0] == ToNode("n", LeaseRevoked("lease1", "it has disconnected"))
    assert [one.client_id for one in out if isinstance(one, ToClient)] == ["b"]


def test_a_client_whose_connection_broke_keeps_its_actors_if_it_comes_back_in_time() -> None:
    state = cluster(("n", Resources(cpu=2)), client_grace_s=15.0)
    ask(state, 1)
    ask(state, 2)
    state.node_counted("n", [ActorNumbers("lease1", ActorPhase.IDLE), ActorNumbers("lease2", ActorPhase.BUSY)])
    assert state.client_away("c", 1.0) == []
    assert state.tick(14.0) == []
    state.client_joined("c", "c", 1)
    assert state.client_holds("c", ["lease1", "lease2", "of a former life"]) == []
    state.node_alive("n", Heartbeat(1), 14.0)
    assert state.tick(28.0) == []


def test_a_client_whose_connection_broke_is_lost_if_it_stays_away() -> None:
    state = cluster(("n", ONE), client_grace_s=5.0)
    ask(state, 1)
    assert state.client_away("c", 10.0) == [ToNode("n", ForgetUnstarted("lease1"))]
    assert state.next_deadline() == 15.0
    assert state.tick(15.0)[-1] == ToNode("n", LeaseRevoked("lease1", "it did not come back within 5 s"))
    assert granted(ask_as_new(state, "d"))


def test_the_time_to_come_back_begins_anew_when_this_process_was_suspended() -> None:
    state = cluster(("n", ONE), client_grace_s=5.0)
    ask(state, 1)
    state.client_away("c", 10.0)
    state.resumed(100.0)
    assert state.tick(104.9) == []
    revoked = LeaseRevoked("lease1", "it did not come back within 5 s")
    assert revoked in [one.message for one in state.tick(105.0) if isinstance(one, ToNode)]


def test_a_client_that_is_away_is_not_listed() -> None:
    state = cluster(("n", ONE), client_grace_s=5.0)
    ask(state, 1)
    state.client_away("c", 0.0)
    status = state.status(1, 1.0, detail=True, dropped=0)
    assert (status.client_count, status.away_count, status.clients, status.leases) == (0, 1, (), 1)


def test_a_client_that_is_away_waits_for_nothing_and_asks_again() -> None:
    state = cluster(("n", ONE), client_grace_s=5.0)
    ask(state, 1)
    assert ask(state, 2) == []
    state.client_away("c", 0.0)
    state.client_joined("c", "c", 1)
    assert ask(state, 2) == []
    assert len(granted(answers(state.lease_released("c", "lease1")))) == 1


def test_a_lease_whose_grant_got_lost_is_free_when_its_client_comes_back_without_it() -> None:
    state = cluster(("n", Resources(cpu=2)), client_grace_s=5.0)
    ask(state, 1)
    ask(state, 2)
    state.client_away("c", 0.0)
    state.client_joined("c", "c", 1)
    (revoked,) = state.client_holds("c", ["lease1"])
    assert revoked == ToNode("n", LeaseRevoked("lease2", "its owner does not know of it"))


def test_a_client_cannot_release_what_belongs_to_another() -> None:
    state = cluster(("n", ONE), clients=("a", "b"))
    ask(state, 1, client="a")
    assert state.lease_released("b", "lease1") == []
    assert state.status(1, 0.0, detail=False, dropped=0).leases == 1


def test_a_worker_cannot_end_what_runs_on_another() -> None:
    state = cluster(("n", ONE), ("m", Resources()))
    ask(state, 1)
    assert state.lease_ended("m", "lease1", EXITED) == []
    assert state.status(1, 0.0, detail=False, dropped=0).leases == 1


def test_the_same_request_number_twice_is_an_error_of_the_client() -> None:
    state = cluster(("n", ONE))
    ask(state, 1)
    ask(state, 2)
    with pytest.raises(RemoteProtocolError, match="request_id 2"):
        ask(state, 2)


def test_a_restarted_master_learns_running_leases_from_the_nodes_that_bring_them() -> None:
    state = cluster(clients=())
    state.node_joined(node("n", Resources(cpu=2), RunningLease("old", "owner", ONE, "Actor")), 0.0)
    assert state.status(1, 0.0, detail=False, dropped=0).free == ONE
    state.client_joined("owner", "prog", 1)
    state.node_alive("n", Heartbeat(1), 99.0)
    assert state.tick(100.0) == []
    assert state.lease_released("owner", "old")[0] == ToNode("n", LeaseRevoked("old", "released by its owner"))


def test_the_slot_of_an_owner_that_never_came_back_is_free_when_its_worker_says_so() -> None:
    state = cluster()
    state.node_joined(node("n", ONE, RunningLease("old", "owner", ONE)), 0.0)
    assert ask(state, 1) == []
    state.node_alive("n", Heartbeat(1), 999.0)
    assert state.tick(1000.0) == []
    assert granted(answers(state.lease_ended("n", "old", EXITED)))
    assert state.status(1, 0.0, detail=True, dropped=0).client_count == 1


def test_a_node_that_was_cut_off_may_not_bring_back_what_was_reported_as_lost() -> None:
    state = cluster(("n", ONE))
    ask(state, 1)
    state.node_lost("n", "cut off")
    out = state.node_joined(node("n", ONE, RunningLease("lease1", "c", ONE)), 1.0)
    assert out == [ToNode("n", LeaseRevoked("lease1", "it was reported as lost"))]
    assert granted(ask(state, 2))


def test_a_node_that_joins_again_keeps_what_it_brings_and_loses_the_rest() -> None:
    state = cluster(("n", Resources(cpu=2)))
    ask(state, 1)
    ask(state, 2)
    out = state.node_joined(node("n", Resources(cpu=2), RunningLease("lease1", "c", ONE)), 1.0)
    assert [one.lease_id for one in answers(out) if isinstance(one, LeaseLost)] == ["lease2"]
    assert state.status(1, 1.0, detail=False, dropped=0).free == ONE


def test_a_node_cannot_bring_more_than_it_has() -> None:
    state = cluster()
    with pytest.raises(RemoteProtocolError, match="offers"):
        state.node_joined(node("n", ONE, RunningLease("x", "c", Resources(cpu=2))), 0.0)


def test_status_counts_what_is_there() -> None:
    state = cluster(("n", Resources(cpu=2)))
    ask(state, 1)
    ask(state, 2, Resources(cpu=2))
    status = state.status(5, 3.0, detail=True, dropped=7)
    assert (status.request_id, status.uptime_s, status.dropped) == (5, 3.0, 7)
    assert (status.total, status.free) == (Resources(cpu=2), ONE)
    assert (status.leases, status.waiting, status.node_count, status.client_count) == (1, 1, 1, 1)
    assert (status.nodes[0].leases, status.nodes[0].silent_s) == (1, 3.0)
    assert (status.clients[0].leases, status.clients[0].waiting) == (1, 1)


@dataclass
class Asked:
    """A request as its client sees it."""

    client_id: str
    request: LeaseRequest
    deadline: float | None
    answered: bool = False


@dataclass
class Held:
    """A lease as client and worker see it."""

    client_id: str
    node_id: str
    resources: Resources


SHAPES = [ONE, Resources(cpu=0.25), Resources(cpu=3), Resources(gpu=1), Resources(cpu=1, gpu=1), Resources()]
SIZES = [ONE, Resources(cpu=4), Resources(cpu=2, gpu=1), Resources()]


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Believes only what the instructions say, and checks the promises against that."""

    nodes = Bundle("nodes")
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.state = cluster(clients=())
        self.now = 0.0
        self.totals: dict[str, Resources] = {}
        self.here: set[str] = set()
        self.asked: list[Asked] = []
        self.held: dict[str, Held] = {}
        self.assigned: dict[str, str] = {}
        self.numbers = itertools.count(1)

    def carry_out(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, DropNode):
                self.totals.pop(one.node_id)
                continue
            message = one.message
            if isinstance(message, LeaseAssigned):
                assert isinstance(one, ToNode)
                assert message.lease_id not in self.assigned, "a lease was assigned twice"
                self.assigned[message.lease_id] = one.node_id
            elif isinstance(message, LeaseGranted):
                assert isinstance(one, ToClient)
                self.check_turn(one.client_id, message.request_id)
                asked = self.answer(one.client_id, message.request_id)
                assert self.assigned[message.lease_id] == message.node_id
                self.held[message.lease_id] = Held(one.client_id, message.node_id, asked.request.resources)
            elif isinstance(message, LeaseRefused):
                assert isinstance(one, ToClient)
                self.answer(one.client_id, message.request_id)
            elif isinstance(message, LeaseLost | LeaseRevoked):
                self.held.pop(message.lease_id)

    def answer(self, client_id: str, request_id: int) -> Asked:
        (asked,) = [a for a in self.asked if a.client_id == client_id and a.request.request_id == request_id]
        assert not asked.answered, "a request was answered twice"
        asked.answered = True
        return asked

    def waiting(self) -> list[Asked]:
        return [a for a in self.asked if not a.answered and a.client_id in self.here]

    def check_turn(self, client_id: str, request_id: int) -> None:
        """No older request of the same shape may still be waiting."""
        for asked in self.waiting():
            if (asked.client_id, asked.request.request_id) == (client_id, request_id):
                return
            mine = next(a for a in self.asked if a.request.request_id == request_id)
            assert asked.request.resources != mine.request.resources, "a younger request was served first"

    def free(self, node_id: str) -> Resources:
        left = self.totals[node_id]
        for lease in self.held.values():
            if lease.node_id == node_id:
                left -= lease.resources  # raises if more was given than there is
        return left

    @rule(target=nodes, size=st.sampled_from(SIZES), number=st.integers(0, 4))
    def node_joins(self, size: Resources, number: int) -> str:
        """A new node, or one that comes back having lost or kept its actors."""
        node_id = f"n{number}"
        kept = [] if number % 2 else [k for k, held in self.held.items() if held.node_id == node_id]
        if node_id in self.totals:
            size = self.totals[node_id]
        brought = tuple(RunningLease(k, self.held[k].client_id, self.held[k].resources) for k in kept)
        self.totals[node_id] = size
        self.carry_out(self.state.node_joined(node(node_id, size, *brought), self.now))
        return node_id

    @rule(node_id=nodes)
    def node_is_lost(self, node_id: str) -> None:
        self.totals.pop(node_id, None)
        self.carry_out(self.state.node_lost(node_id, "lost"))

    @rule(node_id=nodes)
    def node_beats(self, node_id: str) -> None:
        self.state.node_alive(node_id, Heartbeat(1), self.now)

    @rule(target=clients)
    def client_joins(self) -> str:
        client_id = f"c{next(self.numbers)}"
        self.state.client_joined(client_id, "prog", 1)
        self.here.add(client_id)
        return client_id

    @rule(client_id=consumes(clients))
    def client_is_lost(self, client_id: str) -> None:
        self.here.discard(client_id)
        self.carry_out(self.state.client_lost(client_id))
        assert all(lease.client_id != client_id for lease in self.held.values())

    @rule(client_id=clients, shape=st.sampled_from(SHAPES), timeout_s=st.sampled_from([None, 0.0, 5.0]))
    def client_asks(self, client_id: str, shape: Resources, timeout_s: float | None) -> None:
        request = LeaseRequest(next(self.numbers), shape, timeout_s, "Actor")
        self.asked.append(Asked(client_id, request, None if timeout_s is None else self.now + timeout_s))
        self.carry_out(self.state.lease_requested(client_id, request, self.now))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def client_cancels(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.asked))
        if asked.client_id in self.here:
            self.carry_out(self.state.lease_cancelled(asked.client_id, asked.request.request_id))
            assert asked.answered

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def client_releases(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.held)))
        self.carry_out(self.state.lease_released(self.held[lease_id].client_id, lease_id))
        assert lease_id not in self.held

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def actor_ends(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.held)))
        self.carry_out(self.state.lease_ended(self.held[lease_id].node_id, lease_id, EXITED))
        assert lease_id not in self.held

    @precondition(lambda self: self.totals)
    @rule(order=st.randoms(use_true_random=False))
    def others_keep_asking(self, order: random.Random) -> None:
        """A request for a whole node is served if leases end, although there is always another one of every shape."""
        stream = self.client_joins()
        shapes = [shape for shape in SHAPES if shape.kinds()]

        def ask() -> bool:
            pending = [asked.request.resources for asked in self.waiting() if asked.client_id == stream]
            missing = [shape for shape in shapes if shape not in pending]
            for shape in order.sample(missing, len(missing)):
                self.client_asks(stream, shape, None)
            return bool(missing)

        while ask():
            pass
        self.client_asks(stream, order.choice(list(self.totals.values())), None)
        large = self.asked[-1]
        # Each older one and this one wait for one kind after the other, until what is held at the time has ended.
        for _ in range(sum(len(asked.request.resources.kinds()) + 1 for asked in self.waiting())):
            lasting = list(self.held)
            for lease_id in order.sample(lasting, len(lasting)):
                if not large.answered:
                    self.carry_out(self.state.lease_released(self.held[lease_id].client_id, lease_id))
                    ask()
        assert large.answered, "a request starves"
        self.client_is_lost(stream)

    @rule(seconds=st.sampled_from([0.5, 4.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.state.tick(self.now))

    @invariant()
    def no_slot_is_given_twice_and_none_is_lost(self) -> None:
        status = self.state.status(1, self.now, detail=True, dropped=0)
        assert {one.node_id: one.free for one in status.nodes} == {name: self.free(name) for name in self.totals}
        total = free = Resources()
        for name, size in self.totals.items():
            total, free = total + size, free + self.free(name)
        assert (status.total, status.free, status.leases) == (total, free, len(self.held))

    @invariant()
    def nobody_waits_for_what_is_free(self) -> None:
        ahead: set[str] = set()
        for asked in self.waiting():
            need = asked.request.resources
            if any(self.totals[name].fits(need) for name in self.totals):
                fits = any(self.free(name).fits(need) for name in self.totals)
                assert not fits or need.kinds() & ahead, f"{need} waits although it fits"
                ahead |= need.kinds()

    @invariant()
    def nobody_waits_for_longer_than_he_wanted(self) -> None:
        for asked in self.waiting():
            assert asked.deadline is None or asked.deadline > self.now or self.now == 0.0

    def teardown(self) -> None:
        """However it went: with slots for all, every request that waits is served."""
        self.totals["rescue"] = Resources(cpu=10_000, gpu=10_000)
        self.carry_out(self.state.node_joined(node("rescue", self.totals["rescue"]), self.now))
        assert self.waiting() == []


class ManyOrdersOfEvents(AnyOrderOfEvents):
    """The same, for longer."""


AnyOrderOfEvents.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
ManyOrdersOfEvents.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
TestManyOrdersOfEvents = pytest.mark.slow(ManyOrdersOfEvents.TestCase)


def test_a_program_with_several_workers_of_functions_is_asked_for_one_that_another_waits_for() -> None:
    ids = itertools.count(1)
    state = ClusterState(cluster_id="c", new_lease_id=lambda: f"lease{next(ids)}", started=0.0, liveness_limit_s=15.0)
    state.node_joined(NodeJoin("n", "host", ("n:1",), "/run", Resources(cpu=4)), 0.0)
    numbers = itertools.count(1)

    def ask(client: str, timeout_s: float | None = None, name: str = "FunctionWorker") -> list[tuple[str, str]]:
        request = LeaseRequest(next(numbers), Resources(cpu=1), timeout_s, name)
        return wanted(state.lease_requested(client, request, 0.0))

    def wanted(out: list[Instruction]) -> list[tuple[str, str]]:
        told = [(one.client_id, one.message) for one in out if isinstance(one, ToClient)]
        return [(client, message.lease_id) for client, message in told if isinstance(message, LeaseWanted)]

    for client in ("many", "few", "actors"):
        state.client_joined(client, client, 1)
    assert [ask("many") for _ in range(4)] == [[]] * 4
    assert ask("few", 0.0) == []  # it does not wait, so that nothing could be kept for it
    assert ask("few") == [("many", "lease4")]
    assert wanted(state.lease_released("many", "lease4")) == []  # the one who waits has it
    assert ask("few", 0.0) == [("many", "lease3")]
    assert ask("few", 30.0) == []  # 2 and 1 would become 1 and 2
    assert ask("actors", name="Actor") == []  # it is behind that one
    state.client_lost("few")
    assert wanted(state.client_lost("actors")) == []
    assert ask("many") == []
    state.client_joined("actors", "actors", 1)
    assert ask("actors", name="Actor") == [("many", "lease7")]


def test_a_program_keeps_its_workers_of_functions_while_another_waits_for_what_they_do_not_have() -> None:
    state = cluster(("n", Resources(cpu=4, gpu=1)), clients=("many", "learner"))

    def ask(client: str, number: int, need: Resources, name: str) -> list[str]:
        out = answers(state.lease_requested(client, LeaseRequest(number, need, None, name), 0.0))
        return [one.lease_id for one in out if isinstance(one, LeaseWanted)]

    for number in range(4):
        ask("many", number, ONE, "FunctionWorker")
    ask("learner", 1, Resources(gpu=1), "Learner")
    assert ask("learner", 2, Resources(cpu=2, gpu=1), "Learner") == []
    out = answers(state.lease_released("learner", "lease5"))
    assert [one.lease_id for one in out if isinstance(one, LeaseWanted)] == ["lease4"]
