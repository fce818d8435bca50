"""Looking at a cluster and steering it: lists, deaths, names, kills and drains, in the master's bookkeeping."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, TypeVar

import pytest

from parl_remote._master.cluster_state import ClusterState
from parl_remote._master.cluster_tables import Instruction, ToClient, ToNode
from parl_remote._messages import (
    Bye,
    Failed,
    LeaseGranted,
    LeaseLost,
    LeaseRefused,
    LeaseRequest,
    LeaseRevoked,
    Message,
    NodeJoin,
    RefusalCode,
    RunningLease,
)
from parl_remote._messages.overview import (
    ActorKilled,
    ActorNumbers,
    ActorPhase,
    DrainNode,
    DrainStarted,
    EndActor,
    KillActor,
    ListActors,
    ListDeaths,
    ListNodes,
    NodeDraining,
    NodePhase,
)
from parl_remote._messages.parts import ActorFound, FindActor
from parl_remote._resources import Resources
from parl_remote.errors import DeathCause, DeathKind, RemoteError

ONE = Resources(cpu=1)
KILLED = DeathCause(DeathKind.SIGNAL, signal=9)
M = TypeVar("M", bound=Message)


def cluster(*nodes: str, cpu: float = 2, own_node_id: str = "", client_grace_s: float = 0.0) -> ClusterState:
    ids = itertools.count(1)
    state = ClusterState(
        cluster_id="test",
        new_lease_id=lambda: f"lease{next(ids)}",
        started=0.0,
        liveness_limit_s=15.0,
        client_grace_s=client_grace_s,
        own_node_id=own_node_id,
        epoch=1000.0,
    )
    for client_id in ("c", "d"):
        state.client_joined(client_id, f"{client_id}.py", 7)
    for node_id in nodes:
        join(state, node_id, cpu)
    return state


def join(state: ClusterState, node_id: str, cpu: float = 2, *leases: RunningLease) -> list[Instruction]:
    resources = Resources(cpu=cpu)
    joined = NodeJoin(node_id, "host", (f"{node_id}:1",), "/run", resources, leases, name=f"host {node_id}")
    return state.node_joined(joined, 0.0)


numbers = itertools.count(1)


def ask(state: ClusterState, client: str = "c", **more: Any) -> list[Instruction]:
    return state.lease_requested(client, LeaseRequest(next(numbers), ONE, None, "Actor", **more), 0.0)


def to_client(out: list[Instruction], kind: type[M], client: str = "c") -> list[M]:
    return [
        one.message
        for one in out
        if isinstance(one, ToClient) and one.client_id == client and isinstance(one.message, kind)
    ]


def to_node(out: list[Instruction], kind: type[M]) -> list[M]:
    return [one.message for one in out if isinstance(one, ToNode) and isinstance(one.message, kind)]


def lease(state: ClusterState, client: str = "c", **more: Any) -> str:
    (granted,) = to_client(ask(state, client, **more), LeaseGranted, client)
    return granted.lease_id


# -- names -----------------------------------------------------------------------------------------------------------


def test_a_name_that_is_taken_is_refused_with_whose_it_is() -> None:
    state = cluster("n")
    held = lease(state, actor_name="boss")
    (refused,) = to_client(ask(state, "d", actor_name="boss"), LeaseRefused, "d")
    assert refused.code is RefusalCode.NAME_TAKEN
    assert refused.reason.startswith(f"the name 'boss' is taken by the Actor {held} of c.py (process 7)")
    assert "parl.get_actor('boss')" in refused.reason


def test_a_name_is_taken_from_the_request_on_and_free_once_it_is_given_up() -> None:
    state = cluster("n", cpu=1)
    held = lease(state)
    ask(state, actor_name="boss")
    assert to_client(ask(state, "d", actor_name="boss"), LeaseRefused, "d")
    state.client_lost("c")
    assert lease(state, "d", actor_name="boss") != held


def test_a_name_is_free_when_its_actor_is_gone_for_good() -> None:
    state = cluster("n")
    held = lease(state, actor_name="boss")
    state.lease_ended("n", held, KILLED)
    assert lease(state, "d", actor_name="boss")


def test_the_name_of_an_actor_that_will_be_made_again_is_kept_for_it() -> None:
    state = cluster("n")
    held = lease(state, actor_name="boss", max_restarts=1)
    state.lease_ended("n", held, KILLED)
    assert to_client(ask(state, "d", actor_name="boss"), LeaseRefused, "d")
    assert state.find_requested("d", FindActor(5, "boss")) == []
    out = ask(state, actor_name="boss", max_restarts=1, restarts=1, replaces=held)
    (granted,) = to_client(out, LeaseGranted)
    assert to_client(out, ActorFound, "d") == [ActorFound(5, granted.lease_id, "n", ("n:1",), "/run", "host")]
    (found,) = to_client(state.find_requested("d", FindActor(6, lease_id=held)), ActorFound, "d")
    assert found.lease_id == granted.lease_id, "a handle of the lost one leads to the one in its place"
    state.lease_ended("n", granted.lease_id, KILLED)
    assert lease(state, "d", actor_name="boss"), "its restarts are used up"


@pytest.mark.parametrize("what_fails", ["constructor", "placement"])
def test_a_restart_that_fails_keeps_the_name_and_those_who_look_for_the_actor(what_fails: str) -> None:
    state = cluster("n")
    held = lease(state, actor_name="boss", max_restarts=2)
    state.lease_ended("n", held, KILLED)
    failed = lease(state, actor_name="boss", max_restarts=2, restarts=1, replaces=held)
    if what_fails == "constructor":
        state.lease_ended("n", failed, DeathCause(DeathKind.CONSTRUCTOR))
    state.lease_released("c", failed, replaces=held)
    assert to_client(ask(state, "d", actor_name="boss"), LeaseRefused, "d")
    for number, sought in enumerate((FindActor(1, "boss"), FindActor(2, lease_id=held), FindActor(3, lease_id=failed))):
        assert state.find_requested("d", sought) == [], number
    out = ask(state, actor_name="boss", max_restarts=2, restarts=2, replaces=held)
    (granted,) = to_client(out, LeaseGranted)
    assert [found.lease_id for found in to_client(out, ActorFound, "d")] == [granted.lease_id] * 3
    state.lease_released("c", granted.lease_id, replaces=held)
    assert state.find_requested("d", FindActor(4, lease_id=failed)) == []
    assert to_client(state.lease_released("c", held), Failed, "d"), "its program gives up"
    assert not to_client(ask(state, "d", actor_name="boss"), LeaseRefused, "d")


def test_failed_restarts_leave_a_link_each_however_many_there_are() -> None:
    state = cluster("n")
    held = lease(state, actor_name="boss", max_restarts=-1)
    state.lease_ended("n", held, KILLED)
    for number in range(1, 10_100):
        failed = lease(state, actor_name="boss", max_restarts=-1, restarts=number, replaces=held)
        state.lease_released("c", failed, replaces=held)
    assert state.find_requested("d", FindActor(1, lease_id=held)) == []
    assert state.find_requested("d", FindActor(2, lease_id=failed)) == []
    assert len(to_client(state.lease_released("c", held), Failed, "d")) == 2


def test_a_program_gives_up_a_restart_of_which_a_new_master_knows_only_the_attempt() -> None:
    state = cluster("n")
    attempt = lease(state, actor_name="boss", max_restarts=1, restarts=1)  # as a worker brings it
    state.lease_released("c", attempt, replaces="lost before")
    assert state.find_requested("d", FindActor(1, "boss")) == []
    assert to_client(state.lease_released("c", "lost before"), Failed, "d")
    assert not to_client(ask(state, "d", actor_name="boss"), LeaseRefused, "d")


def test_a_program_gives_up_an_actor_before_its_loss_is_reported() -> None:
    state = cluster("n")
    held = lease(state, actor_name="boss", max_restarts=1)
    failed = lease(state, actor_name="boss", max_restarts=1, restarts=1, replaces=held)
    state.lease_released("c", failed, replaces=held)
    state.lease_released("c", held)
    with pytest.raises(RemoteError, match="there is no actor called"):
        state.find_requested("d", FindActor(1, lease_id=failed))
    assert not to_client(ask(state, "d", actor_name="boss"), LeaseRefused, "d")


def test_a_loss_that_is_reported_after_the_restart_awaits_no_other() -> None:
    state = cluster("n")
    held = lease(state, max_restarts=2)
    second = lease(state, max_restarts=2, restarts=1, replaces=held)
    state.lease_ended("n", held, KILLED)
    state.lease_released("c", second)
    with pytest.raises(RemoteError, match="there is no actor called"):
        state.find_requested("d", FindActor(1, lease_id=held))


def test_a_restart_that_finds_no_resources_keeps_the_name_until_it_is_given_up() -> None:
    state = cluster("n", cpu=1)
    held = lease(state, actor_name="boss", max_restarts=1)
    ask(state)
    state.lease_ended("n", held, KILLED)  # the other one has its place
    attempt = LeaseRequest(next(numbers), ONE, 0.0, "Actor", actor_name="boss", replaces=held)
    assert to_client(state.lease_requested("c", attempt, 0.0), LeaseRefused)
    assert state.find_requested("d", FindActor(5, "boss")) == []
    assert to_client(ask(state, "d", actor_name="boss"), LeaseRefused, "d")
    assert to_client(state.lease_released("c", held), Failed, "d")
    assert not to_client(ask(state, "d", actor_name="boss"), LeaseRefused, "d")


def test_a_look_up_of_an_actor_whose_program_gives_up_fails() -> None:
    state = cluster("n")
    held = lease(state, actor_name="boss", max_restarts=-1)
    state.lease_ended("n", held, KILLED)
    state.find_requested("d", FindActor(5, "boss"))
    (failed,) = to_client(state.client_lost("c"), Failed, "d")
    assert failed == Failed(5, "there is no actor called 'boss'; named actors of the cluster: 0 (`xparl list`)")


def test_look_ups_that_nobody_waits_for_any_more_are_dropped() -> None:
    state = cluster("n", cpu=1)
    held = lease(state)
    ask(state, actor_name="boss")
    state.client_joined("gone", "gone.py", 8)
    state.find_requested("gone", FindActor(1, "boss"))
    state.client_lost("gone")
    for number in range(1, 100):
        state.find_requested("d", FindActor(number, "boss", timeout_s=1.0), 2.0 * number)
    state.find_requested("d", FindActor(100, "boss"), 300.0)
    found = to_client(state.lease_released("c", held), ActorFound, "d")
    assert [one.request_id for one in found] == [100]


def test_an_unknown_name_is_refused_with_a_similar_one() -> None:
    state = cluster("n")
    lease(state, actor_name="learner")
    with pytest.raises(RemoteError, match="no actor called 'lerner'; did you mean 'learner'"):
        state.find_requested("d", FindActor(1, "lerner"))


def test_a_detached_actor_outlives_its_program_and_keeps_its_name() -> None:
    state = cluster("n")
    kept, other = lease(state, actor_name="boss", detached=True), lease(state)
    out = state.client_lost("c")
    assert [one.lease_id for one in to_node(out, LeaseRevoked)] == [other]
    (found,) = to_client(state.find_requested("d", FindActor(1, "boss")), ActorFound, "d")
    assert found.lease_id == kept
    assert to_client(ask(state, "d", actor_name="boss"), LeaseRefused, "d")


def test_a_restarted_master_learns_names_and_detached_actors_from_the_nodes() -> None:
    state = cluster()
    brought = RunningLease("old", "gone", ONE, "Actor", actor_name="boss", detached=True, restarts=2, age_s=60.0)
    join(state, "n", 2, brought)
    (found,) = to_client(state.find_requested("d", FindActor(1, "boss")), ActorFound, "d")
    assert found.lease_id == "old"
    (row,) = state.view.actors(ListActors(1), 5.0).actors
    assert (row.name, row.detached, row.restarts, row.age_s, row.owner) == ("boss", True, 2, 65.0, "")
    state.client_joined("gone", "back.py", 9)
    (row,) = state.view.actors(ListActors(1), 5.0).actors
    assert row.owner == "back.py (process 9)"


# -- lists -----------------------------------------------------------------------------------------------------------


def test_actors_are_listed_in_pages_with_what_their_workers_say() -> None:
    state = cluster("n", "m", cpu=10)
    leases = [lease(state) for _ in range(5)]
    busy = ActorNumbers(leases[0], ActorPhase.BUSY, pid=3, calls=8, busy_with="learn", memory=100)
    home = state.tables.leases[leases[0]].node.node_id
    state.node_counted(home, [busy, ActorNumbers("unknown", ActorPhase.IDLE)])
    state.node_counted("m" if home == "n" else "n", [ActorNumbers(leases[0], ActorPhase.IDLE)])  # not its worker
    first = state.view.actors(ListActors(1, limit=2), 9.0)
    second = state.view.actors(ListActors(2, after=first.next or 0, limit=2), 9.0)
    third = state.view.actors(ListActors(3, after=second.next or 0, limit=2), 9.0)
    assert [row.lease_id for page in (first, second, third) for row in page.actors] == leases
    assert (first.total, third.next) == (5, None)
    assert first.actors[0].numbers == busy
    assert first.actors[1].numbers.phase is ActorPhase.STARTING
    on_m = state.view.actors(ListActors(4, node="host m"), 9.0).actors
    assert {row.node for row in on_m} == {"host m"}
    assert state.view.actors(ListActors(5, client_id="d"), 9.0).actors == ()


def test_every_lost_actor_leaves_a_record_with_its_owner_and_cause() -> None:
    state = cluster("n", "m")
    killed, on_lost_node = lease(state, actor_name="boss", restarts=3), lease(state)
    homes = {one: state.tables.leases[one].node.node_id for one in (killed, on_lost_node)}
    state.lease_ended(homes[killed], killed, KILLED)
    state.node_lost(homes[on_lost_node], "its connection was closed", 50.0)
    deaths = state.view.deaths(ListDeaths(1))
    assert deaths.total == 2
    second, first = deaths.deaths
    assert (first.lease_id, first.name, first.restarts, first.owner) == (killed, "boss", 3, "c.py (process 7)")
    assert first.cause == KILLED
    assert (second.cause.kind, second.cause.at) == (DeathKind.NODE_LOST, 1050.0)
    assert second.cause.detail == f"host {homes[on_lost_node]}:1: its connection was closed"


def test_the_end_of_a_released_actor_is_kept_apart_and_its_failure_is_not_lost() -> None:
    state = cluster("n")
    let_go, failed = lease(state), lease(state)
    for one in (let_go, failed):
        state.lease_released("c", one)
    state.lease_ended("n", let_go, DeathCause(DeathKind.RELEASED))
    state.lease_ended("n", failed, DeathCause(DeathKind.CONSTRUCTOR, detail="ValueError: no"))
    assert [one.lease_id for one in state.view.deaths(ListDeaths(1)).deaths] == [failed]
    assert [one.lease_id for one in state.view.deaths(ListDeaths(1, released=True)).deaths] == [failed, let_go]


def test_the_last_thousand_deaths_are_kept() -> None:
    state = cluster("n")
    for _ in range(1010):
        state.lease_ended("n", lease(state), KILLED)
    deaths = state.view.deaths(ListDeaths(1, limit=5000))
    assert (len(deaths.deaths), deaths.total) == (1000, 1010)
    assert deaths.deaths[0].lease_id == "lease1010"


def test_a_name_is_free_when_its_actor_is_lost_and_its_program_stays_away() -> None:
    state = cluster("n", client_grace_s=5.0)
    held = lease(state, actor_name="boss", max_restarts=-1)
    state.client_away("c", 1.0)
    state.node_lost("n", "gone", 2.0)
    join(state, "m")
    state.tick(6.0)
    assert lease(state, "d", actor_name="boss") != held


def test_a_name_stays_taken_while_a_program_that_is_away_may_come_back_and_restart_its_actor() -> None:
    state = cluster("n", client_grace_s=5.0)
    lease(state, actor_name="boss", max_restarts=-1)
    state.client_away("c", 1.0)
    state.node_lost("n", "gone", 2.0)
    (refused,) = to_client(ask(state, "d", actor_name="boss"), LeaseRefused, "d")
    assert refused.code is RefusalCode.NAME_TAKEN


def test_a_name_is_free_when_its_actor_is_lost_and_its_program_was_never_seen() -> None:
    state = cluster("m")
    running = RunningLease("old", "owner", ONE, "Actor", "boss", restarts=0, max_restarts=-1)
    join(state, "n", 2, running)
    assert to_client(ask(state, "d", actor_name="boss"), LeaseRefused, "d")
    state.node_lost("n", "gone")
    assert lease(state, "d", actor_name="boss") != "old"


# -- kill ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_name", [True, False])
def test_a_kill_goes_to_the_worker_and_is_answered_when_the_actor_has_ended(by_name: bool) -> None:
    state = cluster("n")
    held = lease(state, actor_name="boss", max_restarts=-1)
    out = state.kill_requested("d", KillActor(4, "boss" if by_name else held, "it hangs"))
    assert out == [ToNode("n", EndActor(held, DeathKind.KILLED_BY_USER, "by d.py (process 7), it hangs"))]
    cause = DeathCause(DeathKind.KILLED_BY_USER)
    out = state.lease_ended("n", held, cause)
    (killed,) = to_client(out, ActorKilled, "d")
    assert (killed.request_id, killed.death.lease_id, killed.death.cause) == (4, held, cause)
    assert to_client(out, LeaseLost) == [LeaseLost(held, cause)]
    assert lease(state, "d", actor_name="boss"), "it is not restarted, so its name is free"


@pytest.mark.parametrize("by_name", [True, False])
def test_a_kill_between_two_attempts_to_restart_an_actor_ends_the_next_one(by_name: bool) -> None:
    state = cluster("n")
    held = lease(state, actor_name="boss", max_restarts=-1)
    state.lease_ended("n", held, KILLED)
    failed = lease(state, actor_name="boss", max_restarts=-1, restarts=1, replaces=held)
    state.lease_ended("n", failed, DeathCause(DeathKind.CONSTRUCTOR))
    state.lease_released("c", failed, replaces=held)
    assert state.kill_requested("d", KillActor(4, "boss" if by_name else failed)) == []
    out = ask(state, actor_name="boss", max_restarts=-1, restarts=2, replaces=held)
    (granted,), (order,) = to_client(out, LeaseGranted), to_node(out, EndActor)
    assert (order.lease_id, order.kind) == (granted.lease_id, DeathKind.KILLED_BY_USER)
    out = state.lease_ended("n", granted.lease_id, DeathCause(DeathKind.KILLED_BY_USER))
    assert [killed.request_id for killed in to_client(out, ActorKilled, "d")] == [4]
    assert lease(state, "d", actor_name="boss"), "it is not restarted, so its name is free"


@pytest.mark.parametrize("waits_already", [True, False])
def test_a_kill_ends_an_attempt_to_restart_an_actor_that_waits_for_resources(waits_already: bool) -> None:
    state = cluster("n", cpu=1)
    held = lease(state, actor_name="boss", max_restarts=-1)
    state.lease_ended("n", held, KILLED)
    assert lease(state, "d")
    attempt = partial(ask, state, actor_name="boss", max_restarts=-1, restarts=1, replaces=held)
    if waits_already:
        assert attempt() == []
    out = state.kill_requested("d", KillActor(4, "boss", "it hangs"))
    if not waits_already:
        assert out == []
        out = attempt()
    (refused,) = to_client(out, LeaseRefused)
    assert (refused.code, refused.reason) == (RefusalCode.KILLED, "by d.py (process 7), it hangs")
    (killed,) = to_client(state.lease_released("c", held), ActorKilled, "d")
    assert (killed.request_id, killed.death.lease_id, killed.death.cause) == (4, held, KILLED)
    assert ask(state, "d", actor_name="boss") == [], "its name is free, and nothing of it waits"
    assert len(state.tables.queue) == 1


def test_a_kill_between_two_attempts_is_answered_if_there_is_no_other_attempt() -> None:
    state = cluster("n")
    held = lease(state, actor_name="boss", max_restarts=1)
    state.lease_ended("n", held, KILLED)
    assert state.kill_requested("d", KillActor(4, "boss")) == []
    (killed,) = to_client(state.lease_released("c", held), ActorKilled, "d")
    assert (killed.request_id, killed.death.lease_id) == (4, held)


def test_a_kill_is_answered_also_when_the_node_is_lost_or_the_owner_let_go() -> None:
    state = cluster("n", cpu=1)
    held = lease(state)
    state.kill_requested("d", KillActor(4, held))
    assert to_client(state.lease_released("c", held), ActorKilled, "d")
    held = lease(state)
    state.kill_requested("d", KillActor(5, held))
    (killed,) = to_client(state.node_lost("n", "gone"), ActorKilled, "d")
    assert killed.death.cause.kind is DeathKind.NODE_LOST


def test_a_kill_is_repeated_to_a_node_that_joins_again() -> None:
    state = cluster("n")
    held = lease(state)
    (order,) = to_node(state.kill_requested("d", KillActor(4, held)), EndActor)
    for _ in range(2):
        assert to_node(join(state, "n", 2, RunningLease(held, "c", ONE, "Actor")), EndActor) == [order]
    assert to_client(state.lease_ended("n", held, DeathCause(DeathKind.KILLED_BY_USER)), ActorKilled, "d")


def test_a_release_is_repeated_to_a_node_that_joins_again_with_the_lease() -> None:
    state = cluster("n", cpu=1)
    held = lease(state)
    (order,) = to_node(state.lease_released("c", held), LeaseRevoked)
    for _ in range(2):
        assert join(state, "n", 1, RunningLease(held, "c", ONE, "Actor")) == [ToNode("n", order)]
    assert lease(state, "d"), "its slot is free"
    state.lease_ended("n", held, KILLED)
    assert [one.lease_id for one in state.view.deaths(ListDeaths(1, released=True)).deaths] == [held]


def test_killing_an_unknown_actor_is_an_error() -> None:
    with pytest.raises(RemoteError, match="there is no actor 'ghost'; `xparl list` shows"):
        cluster("n").kill_requested("d", KillActor(1, "ghost"))


# -- drain -----------------------------------------------------------------------------------------------------------


def test_a_drained_node_takes_nothing_more_and_leaves_when_its_last_actor_has_ended() -> None:
    state = cluster("n", "m")
    first = lease(state)
    home = state.tables.leases[first].node.node_id
    away = "m" if home == "n" else "n"
    out = state.drain_requested("d", DrainNode(4, f"host {home}", None, "new kernel"), 0.0)
    assert to_client(out, DrainStarted, "d") == [DrainStarted(4, home, f"host {home}", 1, True)]
    assert to_client(out, NodeDraining) == [NodeDraining(home, f"host {home}", (first,), None, "new kernel")]
    assert not to_node(out, EndActor)
    assert [state.tables.leases[lease(state)].node.node_id for _ in range(2)] == [away, away]
    assert not to_client(ask(state), LeaseGranted), "the slot of the drained node is not given away"
    out = state.lease_ended(home, first, KILLED)
    assert ToNode(home, Bye("it was drained: new kernel")) in out
    assert [node.node_id for node in state.tables.pool] == [away]


def test_when_the_time_is_up_actors_are_asked_to_end_and_those_that_come_back_at_once() -> None:
    state = cluster("n")
    stays, moves = lease(state), lease(state, max_restarts=1)
    out = state.drain_requested("d", DrainNode(4, "n", 30.0), 100.0)
    assert [one.lease_id for one in to_node(out, EndActor)] == [moves]
    assert state.next_deadline() is not None
    assert not to_node(state.tick(10.0), EndActor)
    state.tables.alive.heard("n", 130.0)
    (asked,) = to_node(state.tick(130.0), EndActor)
    assert (asked.lease_id, asked.kind) == (stays, DeathKind.DRAINED)
    assert asked.grace_s > 0
    assert not to_node(state.tick(131.0), EndActor), "no node is asked twice"


def test_a_request_for_a_draining_node_is_refused() -> None:
    state = cluster("n")
    lease(state)
    state.drain_requested("d", DrainNode(4, "n"), 0.0)
    ask(state, node="host n")
    (waiting,) = state.status(1, 0.0, detail=True, dropped=0).queue
    assert waiting.reason == "node host n is being drained"


def test_a_request_to_a_drained_cluster_is_refused() -> None:
    state = cluster("n", own_node_id="n")
    state.drain_requested("d", DrainNode(4, "n"), 0.0)
    ask(state)
    (waiting,) = state.status(1, 0.0, detail=True, dropped=0).queue
    assert waiting.reason == "every node is being drained"


def test_an_empty_node_leaves_at_once() -> None:
    state = cluster("n")
    out = state.drain_requested("d", DrainNode(4, "n"), 0.0)
    assert to_node(out, Bye) == [Bye("it was drained")]
    assert len(state.tables.pool) == 0


def test_the_master_s_own_node_is_emptied_and_stays() -> None:
    state = cluster("n", own_node_id="n")
    held = lease(state)
    (started,) = to_client(state.drain_requested("d", DrainNode(4, "n", 0.0), 0.0), DrainStarted, "d")
    assert not started.leaves
    assert not to_node(state.lease_ended("n", held, DeathCause(DeathKind.DRAINED)), Bye)
    (node,) = state.view.nodes(ListNodes(1), 1.0, "n").nodes
    assert (node.phase, node.is_master) == (NodePhase.DRAINED, True)
    assert not to_client(ask(state), LeaseGranted)


def test_a_draining_node_that_comes_back_is_still_draining() -> None:
    state = cluster("n")
    held = lease(state)
    state.drain_requested("d", DrainNode(4, "n"), 0.0)
    join(state, "n", 2, RunningLease(held, "c", ONE, "Actor"))
    assert not to_client(ask(state), LeaseGranted)
    (node,) = state.view.nodes(ListNodes(1), 1.0, "").nodes
    assert (node.phase, node.actors) == (NodePhase.DRAINING, 1)


def test_a_draining_node_that_comes_back_is_asked_again_to_end_its_actors() -> None:
    state = cluster("n")
    held = lease(state)
    (order,) = to_node(state.drain_requested("d", DrainNode(4, "n", 0.0), 0.0), EndActor)
    assert to_node(join(state, "n", 2, RunningLease(held, "c", ONE, "Actor")), EndActor) == [order]
    assert not to_node(state.tick(1.0), EndActor)
    assert to_node(state.lease_ended("n", held, KILLED), Bye)


def test_a_node_that_is_lost_while_it_drains_takes_no_actors_when_it_comes_back() -> None:
    state = cluster("n")
    lease(state)
    state.drain_requested("d", DrainNode(4, "n", reason="new disk"), 0.0)
    state.node_lost("n", "cut")
    assert to_node(join(state, "n"), Bye) == [Bye("it was drained: new disk")]
    assert not to_client(ask(state), LeaseGranted)


def test_a_drained_node_that_missed_its_bye_is_released_again() -> None:
    state = cluster("n")
    said = to_node(state.drain_requested("d", DrainNode(4, "n"), 0.0), Bye)
    assert to_node(join(state, "n"), Bye) == said
    assert not to_client(ask(state), LeaseGranted)


def test_the_deadline_of_a_lost_node_is_none_until_it_comes_back() -> None:
    state = cluster("n", own_node_id="n")
    state.drain_requested("d", DrainNode(4, "n", 30.0), 0.0)
    state.node_lost("n", "cut")
    assert state.next_deadline() is None
    join(state, "n")
    assert not to_client(ask(state), LeaseGranted)


def test_a_node_that_is_not_there_or_not_the_only_one_of_its_name_is_refused_by_name() -> None:
    state = cluster("n")
    twin = NodeJoin("n2", "host", (), "/run", ONE, name="host n")
    state.node_joined(twin, 0.0)
    with pytest.raises(RemoteError, match=r"there is no node 'x'; the cluster has: host n \(n\), host n \(n2\)"):
        state.drain_requested("d", DrainNode(1, "x"), 0.0)
    with pytest.raises(RemoteError, match="2 nodes are called 'host n'; name one by its id: n, n2"):
        state.drain_requested("d", DrainNode(1, "host n"), 0.0)


def test_nodes_are_listed_page_by_page() -> None:
    state = cluster("a", "b", "c", "d", "e")
    seen: list[str] = []
    after = 0
    while True:
        page = state.view.nodes(ListNodes(1, after, 2), 1.0, "")
        seen += [node.node_id for node in page.nodes]
        if page.next is None:
            break
        after = page.next
    assert len(seen) == len(set(seen)) == 5
    assert len(page.nodes) == 1
