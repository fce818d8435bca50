"""Master and reception over the in-memory transport: what peers are told, and that nothing they send ends it."""

from __future__ import annotations

import itertools
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.repeated_examples import examples
from parl_remote._config import Limits
from parl_remote._links.handshake import PeerAcceptor, greet
from parl_remote._links.loop import Loop
from parl_remote._master.cluster_state import ClusterState
from parl_remote._master.master import Master
from parl_remote._messages import (
    Bye,
    Heartbeat,
    Hello,
    LeaseAssigned,
    LeaseCancel,
    LeaseEnded,
    LeaseGranted,
    LeaseLost,
    LeaseRefused,
    LeaseRelease,
    LeaseRequest,
    LeaseRevoked,
    LeasesHeld,
    Message,
    NodeJoin,
    RefusalCode,
    Refused,
    Role,
    RunningLease,
    Shutdown,
    Status,
    StatusRequest,
    Welcome,
)
from parl_remote._messages.overview import (
    ActorList,
    ActorNumbers,
    ActorPhase,
    ActorStatus,
    DrainNode,
    ExplainWaiting,
    KillActor,
    ListActors,
    ListDeaths,
    ListNodes,
    NodeList,
    NodeNumbers,
    NodePhase,
)
from parl_remote._messages.parts import FindActor
from parl_remote._messages.wire import decode, encode
from parl_remote._resources import Resources
from parl_remote._transport.memory import MemoryChannel, MemoryListener
from parl_remote._worker.master_link import MasterLink
from parl_remote.errors import ChannelClosed, DeathCause, DeathKind, RemoteProtocolError, ResultTimeout, VersionMismatch

ONE = Resources(cpu=1)


@dataclass
class Peer:
    """One end of a connection, as a client or worker has it."""

    cluster: Cluster
    channel: MemoryChannel

    def say(self, message: Message) -> None:
        self.channel.send([encode(message)])
        self.cluster.settle()

    def hear(self) -> Message:
        return decode(self.channel.receive(0)[0])

    def heard(self) -> list[Message]:
        messages = []
        while True:
            try:
                messages.append(self.hear())
            except (ResultTimeout, ChannelClosed):
                return messages

    def is_dropped(self) -> bool:
        self.heard()
        try:
            self.channel.receive(0)
        except ChannelClosed:
            return True
        except ResultTimeout:
            return False
        raise AssertionError


class Cluster:
    """A master on a loop that the test turns by hand, with a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.loop = Loop(clock=lambda: self.now)
        self.limits = Limits()
        self.listener = MemoryListener("master")
        self.reception = PeerAcceptor(
            self.loop, node_id="node-0", cluster_id="cluster-0", host_id="host", limits=self.limits
        )
        ids = itertools.count(1)
        state = ClusterState(
            cluster_id="cluster-0",
            new_lease_id=lambda: f"lease{next(ids)}",
            started=0.0,
            liveness_limit_s=self.limits.liveness_limit_s,
        )
        self.stopped = False
        self.master = Master(self.loop, self.reception, state, limits=self.limits, on_shutdown=self.note_stop)
        self.reception.listen(self.listener)

    def note_stop(self) -> None:
        self.stopped = True

    def settle(self, seconds: float = 0.0) -> None:
        """Let time pass, in steps as of a process that runs."""
        while seconds > 0:
            step = min(seconds, self.limits.heartbeat_interval_s)
            self.sleep(step)
            seconds -= step
        self.sleep(0.0)

    def sleep(self, seconds: float) -> None:
        """Let time pass at once, as for a process that is stopped."""
        self.now += seconds
        for _ in range(3):
            self.loop.run_once(0.0)

    def connect(self) -> Peer:
        peer = Peer(self, self.listener.connect())
        self.settle()
        return peer

    def client(self, name: str) -> Peer:
        peer = self.connect()
        peer.say(hello(Role.CLIENT, name))
        assert isinstance(peer.hear(), Welcome)
        return peer

    def worker(self, name: str, cpu: float = 1) -> Peer:
        peer = self.connect()
        peer.say(hello(Role.WORKER, name))
        assert isinstance(peer.hear(), Welcome)
        peer.say(NodeJoin(name, "host", (f"{name}:1",), "/run", Resources(cpu=cpu), name=name))
        return peer


def hello(role: Role, name: str) -> Hello:
    return Hello(role, Role.MASTER, name, 1, 1, "host", 42, {"parl_remote": "0"}, name)


def linked(cluster: Cluster, listener: MemoryListener, ends: list[str]) -> MasterLink:
    """A worker's own end of a connection; `ends` gets the reason when it is lost."""
    offer = NodeJoin("own", "host", (), "/run", ONE, name="own")
    return MasterLink(
        cluster.loop,
        listener.connect(),
        joined=lambda: offer,
        on_message=lambda _: None,
        on_lost=ends.append,
        limits=cluster.limits,
    )


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    one = Cluster()
    yield one
    one.listener.close()
    one.loop.close()


def test_a_lease_goes_from_request_to_release(cluster: Cluster) -> None:
    worker, client = cluster.worker("w"), cluster.client("c")
    client.say(LeaseRequest(1, ONE, None, "Actor"))
    assert worker.hear() == LeaseAssigned("lease1", "c", ONE, "Actor")
    assert client.hear() == LeaseGranted(1, "lease1", "w", ("w:1",), "/run", "host")
    client.say(LeaseRelease("lease1"))
    assert worker.hear() == LeaseRevoked("lease1", "released by its owner")


def test_the_end_of_an_actor_reaches_its_owner(cluster: Cluster) -> None:
    worker, client = cluster.worker("w"), cluster.client("c")
    client.say(LeaseRequest(1, ONE))
    client.heard()
    cause = DeathCause(DeathKind.SIGNAL, signal=9, log_tail=("bye",))
    worker.say(LeaseEnded("lease1", cause))
    assert client.hear() == LeaseLost("lease1", cause)


def test_a_request_out_of_time_is_refused_when_its_time_comes(cluster: Cluster) -> None:
    client = cluster.client("c")
    client.say(LeaseRequest(1, ONE, 5.0))
    cluster.settle(4.9)
    assert client.heard() == []
    cluster.settle(0.2)
    (refused,) = client.heard()
    assert isinstance(refused, LeaseRefused)
    assert refused.code is RefusalCode.TOO_LARGE


def test_a_cancelled_request_is_answered(cluster: Cluster) -> None:
    client = cluster.client("c")
    client.say(LeaseRequest(1, ONE))
    client.say(LeaseCancel(1))
    (refused,) = client.heard()
    assert isinstance(refused, LeaseRefused)
    assert refused.code is RefusalCode.CANCELLED


def test_a_client_whose_connection_closes_gives_back_everything(cluster: Cluster) -> None:
    worker, client = cluster.worker("w"), cluster.client("c")
    client.say(LeaseRequest(1, ONE))
    worker.heard()
    client.channel.close()
    cluster.settle()
    assert worker.hear() == LeaseRevoked("lease1", "its connection closed")


def test_a_client_that_says_goodbye_gives_back_everything(cluster: Cluster) -> None:
    worker, client = cluster.worker("w"), cluster.client("c")
    client.say(LeaseRequest(1, ONE))
    worker.heard()
    client.say(Bye("done"))
    assert worker.hear() == LeaseRevoked("lease1", "it has disconnected")
    assert client.is_dropped()


def test_a_worker_whose_connection_closes_is_lost_with_its_actors(cluster: Cluster) -> None:
    worker, client = cluster.worker("w"), cluster.client("c")
    client.say(LeaseRequest(1, ONE))
    client.heard()
    worker.channel.close()
    cluster.settle()
    lost = client.hear()
    assert isinstance(lost, LeaseLost)
    assert lost.cause.kind is DeathKind.NODE_LOST


def test_a_master_that_was_stopped_does_not_take_silence_for_death(cluster: Cluster) -> None:
    """A paused virtual machine, a frozen container, a debugger: no message could be received meanwhile."""
    worker, client = cluster.worker("w"), cluster.client("c")
    client.say(LeaseRequest(1, ONE))
    client.heard()
    cluster.sleep(600.0)
    assert client.heard() == []
    cluster.settle(14.9)
    assert client.heard() == []
    cluster.settle(5.2)
    assert isinstance(client.hear(), LeaseLost), "who does not speak afterwards is lost all the same"
    assert worker.is_dropped()


def given_up_while_asleep(cluster: Cluster) -> Peer:
    """Return a client whose actor is on a node that has closed its connection to the master while that slept."""
    worker, client = cluster.worker("w"), cluster.client("c")
    client.say(LeaseRequest(1, ONE))
    client.heard()
    worker.channel.close()
    cluster.sleep(600.0)
    return client


def test_what_a_stopped_master_was_given_up_by_comes_back_with_all_its_actors(cluster: Cluster) -> None:
    """Nodes and programs that heard nothing of it for the limit have closed their connections meanwhile."""
    client = given_up_while_asleep(cluster)
    client.say(LeaseRequest(2, Resources(cpu=0)))
    assert client.heard() == [], "nothing is lost yet, and no actor is placed on a node that is away"
    back = cluster.connect()
    back.say(hello(Role.WORKER, "w"))
    back.say(NodeJoin("w", "host", ("w:1",), "/run", ONE, (RunningLease("lease1", "c", ONE, "Actor"),), name="w"))
    assert [type(message) for message in back.heard()] == [Welcome, LeaseAssigned]
    assert [type(message) for message in client.heard()] == [LeaseGranted]


def test_a_node_that_a_stopped_master_was_given_up_by_is_lost_if_it_stays_away(cluster: Cluster) -> None:
    client = given_up_while_asleep(cluster)
    cluster.settle(14.9)
    assert client.heard() == []
    client.say(ListNodes(2))
    (listed,) = client.heard()
    assert isinstance(listed, NodeList)
    assert [node.phase for node in listed.nodes] == [NodePhase.UP]
    cluster.settle(5.2)
    assert isinstance(client.hear(), LeaseLost)


def test_a_node_that_was_stopped_as_a_whole_keeps_its_own_worker(cluster: Cluster) -> None:
    ends: list[str] = []
    link = linked(cluster, cluster.listener, ends)
    client = cluster.client("c")
    client.say(LeaseRequest(1, ONE))
    assert isinstance(client.hear(), LeaseGranted)
    for _ in range(3):
        cluster.sleep(600.0)
        cluster.settle(20.0)
    assert not ends
    assert client.heard() == []
    link.close()


def test_what_ends_while_a_worker_comes_back_does_not_turn_it_away(cluster: Cluster) -> None:
    ends: list[str] = []
    link = linked(cluster, cluster.listener, ends)
    link.tell(LeaseEnded("lease7", DeathCause(DeathKind.EXIT)))  # it has said Hello, and was not welcomed yet
    cluster.settle()
    client = cluster.client("c")
    client.say(LeaseRequest(1, ONE))
    assert isinstance(client.hear(), LeaseGranted)
    assert not ends
    link.close()


def test_a_worker_that_is_never_welcomed_gives_the_connection_up(cluster: Cluster) -> None:
    ends: list[str] = []
    linked(cluster, MemoryListener("a port without a server"), ends)
    cluster.settle(cluster.limits.liveness_limit_s - 0.5)
    assert not ends
    cluster.settle(1.0)
    assert [end.rpartition(" for ")[0] for end in ends] == ["the master gave no sign of life"]


def test_a_silent_worker_is_lost_after_the_limit_and_dropped(cluster: Cluster) -> None:
    worker, client = cluster.worker("w"), cluster.client("c")
    client.say(LeaseRequest(1, ONE))
    cluster.settle(10.0)
    worker.say(Heartbeat(1))
    client.heard()
    cluster.settle(14.9)
    assert client.heard() == []
    cluster.settle(0.2)
    lost = client.hear()
    assert isinstance(lost, LeaseLost)
    assert "no sign of life for more than 15 s" in lost.cause.detail
    assert not [one for one in worker.heard() if isinstance(one, Bye)]  # if it lives after all, it shall come back
    assert worker.is_dropped()


def test_heartbeats_are_answered_so_that_workers_know_their_master_lives(cluster: Cluster) -> None:
    worker = cluster.worker("w")
    worker.say(Heartbeat(7, load=1.5, memory_free=10))
    assert worker.hear() == Heartbeat(7)


def test_a_worker_that_connects_again_takes_the_place_of_its_former_self(cluster: Cluster) -> None:
    old = cluster.worker("w")
    new = cluster.worker("w")
    assert old.is_dropped()
    client = cluster.client("c")
    client.say(LeaseRequest(1, ONE))
    assert isinstance(new.hear(), LeaseAssigned)


def test_status_answers_with_nodes_and_clients(cluster: Cluster) -> None:
    cluster.worker("w", cpu=4)
    client = cluster.client("c")
    client.say(StatusRequest(9))
    status = client.hear()
    assert isinstance(status, Status)
    assert (status.request_id, status.total, [one.name for one in status.nodes]) == (9, Resources(cpu=4), ["w"])


def test_a_shutdown_tells_everyone_and_ends_the_master(cluster: Cluster) -> None:
    worker, client = cluster.worker("w"), cluster.client("c")
    client.say(Shutdown(1))
    assert worker.hear() == client.hear() == Bye("the cluster was stopped")
    assert cluster.stopped


def test_a_client_that_connects_again_takes_the_place_of_its_old_connection(cluster: Cluster) -> None:
    first = cluster.client("c")
    second = cluster.connect()
    second.say(hello(Role.CLIENT, "c"))
    second.say(StatusRequest(1))
    assert [type(one) for one in second.heard()] == [Welcome, Status]
    assert first.is_dropped()
    assert not second.is_dropped()


# -- peers that do not behave ---------------------------------------------------------------------------------------


def still_works(cluster: Cluster) -> bool:
    client = cluster.client(f"probe{cluster.now}{cluster.reception.dropped}")
    client.say(StatusRequest(1))
    return isinstance(client.hear(), Status)


@pytest.mark.parametrize(
    "frames",
    [[b""], [b"GET / HTTP/1.1"], [b"{}"], [encode(Heartbeat(1))], [b"x", b"y"], [b'{"is":"Hello"}'], [b"[" * 10_000]],
)
def test_a_peer_that_does_not_begin_with_hello_is_refused_dropped_and_counted(
    cluster: Cluster, frames: list[bytes]
) -> None:
    peer = cluster.connect()
    peer.channel.send(frames)
    cluster.settle()
    refused = peer.hear()
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.PROTOCOL
    assert peer.is_dropped()
    assert cluster.reception.dropped == 1
    assert still_works(cluster)


def test_a_peer_that_never_sends_hello_is_dropped_after_a_while(cluster: Cluster) -> None:
    first = cluster.connect()
    cluster.settle(3.0)
    second = cluster.connect()
    cluster.settle(2.1)
    assert first.is_dropped()
    assert not second.is_dropped()
    cluster.settle(3.0)
    assert second.is_dropped()


def test_a_flood_of_silent_connections_pushes_out_the_oldest_ones(cluster: Cluster) -> None:
    first = cluster.connect()
    for _ in range(cluster.limits.max_pending_hellos):
        cluster.connect()
    assert first.is_dropped()
    assert still_works(cluster)


def test_another_protocol_version_is_refused_with_both_named(cluster: Cluster) -> None:
    peer = cluster.connect()
    peer.channel.send([encode(replace(hello(Role.CLIENT, "c"), protocol_min=7, protocol_max=8))])
    cluster.settle()
    refused = peer.hear()
    assert isinstance(refused, Refused)
    assert (refused.code, refused.protocol_min, refused.protocol_max) == (RefusalCode.VERSION, 1, 1)
    assert peer.is_dropped()


def test_greet_says_both_versions() -> None:
    listener = MemoryListener()
    channel = listener.connect()
    listener.send(1, [encode(Refused(RefusalCode.VERSION, "The peer is parl-remote 9.9.", 7, 8))])
    with pytest.raises(
        VersionMismatch, match=r"speaks version 1, the peer versions 7 to 8; .*parl-remote 9\.9"
    ) as caught:
        greet(channel, hello(Role.CLIENT, "c"), 1.0)
    assert (caught.value.ours, caught.value.theirs) == ((1, 1), (7, 8))
    with pytest.raises(ChannelClosed):
        channel.send([b"x"])


@pytest.mark.parametrize("role", [Role.CLIENT, Role.WORKER])
def test_another_minor_version_of_python_is_refused_at_the_door(cluster: Cluster, role: Role) -> None:
    ours = platform.python_version()
    for theirs, fits in ((ours, True), (f"{ours.rpartition('.')[0]}.99", True), ("3.9.1", False), ("4.11.7", False)):
        peer = cluster.connect()
        peer.say(replace(hello(role, f"peer of {theirs}"), versions={"python": theirs}))
        cluster.settle()
        answer = peer.hear()
        if fits:
            assert isinstance(answer, Welcome)
            continue
        assert isinstance(answer, Refused)
        assert answer.code is RefusalCode.PYTHON
        assert f"this side runs Python {theirs}, the peer Python {ours};" in answer.reason
        assert peer.is_dropped()


def test_greet_tells_of_another_python() -> None:
    listener = MemoryListener()
    channel = listener.connect()
    listener.send(1, [encode(Refused(RefusalCode.PYTHON, "this side runs Python 3.9.1, the peer Python 3.11.7"))])
    with pytest.raises(VersionMismatch, match=r"Python 3\.9\.1, the peer Python 3\.11\.7"):
        greet(channel, hello(Role.CLIENT, "c"), 1.0)


def test_greet_gives_up_on_what_is_no_node() -> None:
    listener = MemoryListener()
    for answer in (b"SSH-2.0", encode(Heartbeat(1))):
        channel = listener.connect()
        listener.send(listener.poll()[-1].peer, [answer])
        with pytest.raises(RemoteProtocolError):
            greet(channel, hello(Role.CLIENT, "c"), 1.0)


def test_a_request_for_a_missing_worker_is_refused(cluster: Cluster) -> None:
    peer = cluster.connect()
    peer.say(replace(hello(Role.CLIENT, "c"), to=Role.WORKER))
    assert peer.hear() == Refused(RefusalCode.NOT_HERE, "there is no worker here")


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat(1),
        LeaseEnded("x", DeathCause(DeathKind.EXIT)),
        NodeJoin("another", "host", (), "/", ONE),
        StatusRequest(1),
        Welcome(1, "x", "y"),
    ],
)
def test_a_worker_may_only_send_what_workers_send_when_they_may(cluster: Cluster, message: Message) -> None:
    peer = cluster.connect()
    peer.say(hello(Role.WORKER, "w"))
    peer.say(message)
    assert isinstance(peer.heard()[-1], Refused)
    assert peer.is_dropped()
    assert still_works(cluster)


@pytest.mark.parametrize(
    "frames",
    [
        [encode(NodeJoin("c", "host", (), "/", ONE))],
        [encode(LeaseRequest(1, ONE, -1.0))],
        [b"garbage"],
        [encode(StatusRequest(1)), b"more"],
        [],
        [b"x" * (5 * 2**20)],
    ],
)
def test_a_client_that_sends_a_forbidden_message_loses_only_its_own_leases(
    cluster: Cluster, frames: list[bytes]
) -> None:
    worker, client, other = cluster.worker("w", cpu=2), cluster.client("c"), cluster.client("other")
    client.say(LeaseRequest(1, ONE))
    other.say(LeaseRequest(1, ONE))
    worker.heard()
    client.channel.send(frames)
    cluster.settle()
    assert worker.heard() == [LeaseRevoked("lease1", "its connection closed")]
    assert isinstance(client.heard()[-1], Refused)
    assert client.is_dropped()
    assert not other.is_dropped()


valid = [
    encode(message)
    for message in (
        hello(Role.CLIENT, "c"),
        hello(Role.WORKER, "w"),
        LeaseRequest(1, ONE, 5.0, "A"),
        LeaseCancel(1),
        LeaseRelease("lease1"),
        StatusRequest(1),
        NodeJoin("w", "host", ("a:1",), "/run", ONE),
        Heartbeat(1),
        LeaseEnded("lease1", DeathCause(DeathKind.EXIT, exit_code=0)),
        Bye("x"),
    )
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(data) - 1))
        data[position] = draw(st.integers(0, 255))
    return bytes(data)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.binary(max_size=40) | mutated(), max_size=2)), max_size=30))
def test_no_sequence_of_frames_ends_the_master(story: list[tuple[int, list[bytes]]]) -> None:
    cluster = Cluster()
    peers: dict[int, Peer] = {}
    for number, frames in story:
        peer = peers.setdefault(number, cluster.connect())
        if peer.is_dropped():
            peer = peers[number] = cluster.connect()
        peer.channel.send(frames)
        cluster.settle(0.1)
    assert still_works(cluster)
    cluster.settle(100.0)
    assert still_works(cluster)
    cluster.loop.close()
    cluster.listener.close()


NAMES = st.sampled_from(["n0", "n1", "n2", "nobody", "", "\x00", "n" * 300])
LEASES = st.sampled_from(["lease2", "lease3", "lease4", "lease5", "nothing", ""])
AMOUNTS = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 1e6])
NEEDS = st.builds(
    Resources, cpu=AMOUNTS, gpu=st.sampled_from([0.0, 0.5, 1.0, 2.0]), memory=st.sampled_from([0, 1, 2**40])
)
NUMBERS = st.integers(-2, 3) | st.sampled_from([2**31, -(2**63), 2**63])
SECONDS = st.sampled_from([None, 0.0, 1.0, -1.0, 1e300])
BROUGHT = st.builds(RunningLease, LEASES, st.sampled_from(["c3", "c4", "c5", "gone"]), NEEDS, actor_name=NAMES)
FROM_ANYBODY: dict[Role, st.SearchStrategy[Message]] = {
    Role.CLIENT: st.one_of(
        st.builds(
            LeaseRequest,
            NUMBERS,
            NEEDS,
            SECONDS,
            NAMES,
            actor_name=NAMES,
            detached=st.booleans(),
            max_restarts=NUMBERS,
            restarts=NUMBERS,
            node=NAMES,
            replaces=LEASES,
        ),
        st.builds(LeaseCancel, NUMBERS),
        st.builds(LeaseRelease, LEASES),
        st.builds(LeasesHeld, st.lists(LEASES, max_size=3).map(tuple)),
        st.builds(ListActors, NUMBERS, NUMBERS, NUMBERS, NAMES, NAMES),
        st.builds(ListNodes, NUMBERS, NUMBERS, NUMBERS),
        st.builds(ListDeaths, NUMBERS, NUMBERS, NAMES, LEASES, st.booleans()),
        st.builds(KillActor, NUMBERS, LEASES | NAMES, NAMES),
        st.builds(DrainNode, NUMBERS, NAMES, SECONDS, NAMES),
        st.builds(ExplainWaiting, NUMBERS, NUMBERS),
        st.builds(FindActor, NUMBERS, NAMES, LEASES),
    ),
    Role.WORKER: st.one_of(
        st.builds(
            NodeJoin,
            NAMES,
            st.just("host"),
            st.just(("a:1",)),
            st.just("/run"),
            NEEDS,
            st.lists(BROUGHT, max_size=3).map(tuple),  # more than it has, too
            name=NAMES,
            gpus=st.sampled_from([(), ("0",), ("0", "1"), ("0", "0")]),
        ),
        st.builds(LeaseEnded, LEASES, st.just(DeathCause(DeathKind.EXIT, exit_code=0))),
        st.builds(NodeNumbers, st.lists(st.builds(ActorNumbers, LEASES, st.sampled_from(ActorPhase))).map(tuple)),
        st.builds(Heartbeat, NUMBERS),
    ),
}


@st.composite
def deeds(draw: st.DrawFn) -> tuple[Role, int, Message, float]:
    """Draw a member's role, its number among several, its message, and the time that passes afterwards."""
    role = draw(st.sampled_from(list(FROM_ANYBODY)))
    return role, draw(st.integers(0, 2)), draw(FROM_ANYBODY[role]), draw(st.sampled_from([0.0, 0.0, 0.0, 0.5, 20.0]))


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(st.lists(deeds(), max_size=25))
def test_whatever_members_say_the_books_are_right_and_others_keep_what_they_have(
    story: list[tuple[Role, int, Message, float]],
) -> None:
    cluster = Cluster()
    worker, owner = cluster.worker("bystander", cpu=1), cluster.client("owner")
    owner.say(LeaseRequest(1, ONE, None, "Kept", node="bystander"))
    assert isinstance(owner.hear(), LeaseGranted)
    members: dict[tuple[Role, int], Peer] = {}
    for role, number, message, seconds in story:
        member = members.get((role, number))
        if member is None or member.is_dropped():
            member = cluster.client(f"c{number + 3}") if role is Role.CLIENT else cluster.worker(f"n{number}", cpu=2)
            members[role, number] = member
        if not member.is_dropped():  # a node that is drained and empty may leave at once
            member.say(message)
        for _ in range(4):
            cluster.sleep(seconds / 4 + 0.001)  # never at the very moment when something is due
            worker.say(Heartbeat(1))
            owner.say(Heartbeat(1))
        books_are_right(cluster)
    assert not worker.is_dropped()
    assert not [one for one in owner.heard() if isinstance(one, LeaseLost | Refused)]
    cluster.loop.close()
    cluster.listener.close()


def books_are_right(cluster: Cluster) -> None:
    """Lists agree with each other, whatever their pages, and no slot is given twice."""
    looker = cluster.client("looker")
    looker.say(StatusRequest(1))
    looker.say(ListNodes(2))
    looker.say(ListActors(3))
    status, nodes, actors = looker.heard()
    assert isinstance(status, Status)
    assert isinstance(nodes, NodeList)
    assert isinstance(actors, ActorList)
    assert len(nodes.nodes) == status.node_count
    assert actors.total == len(actors.actors) == status.leases
    for node in nodes.nodes:
        here = [actor for actor in actors.actors if actor.node_id == node.node_id]
        assert len(here) == node.actors
        assert node.free.cpu >= 0
        assert node.free.gpu >= 0
        assert node.free.cpu + sum(actor.resources.cpu for actor in here) == pytest.approx(node.total.cpu)
    paged: list[ActorStatus] = []
    after: int | None = 0
    number = 4
    while after is not None:
        looker.say(ListActors(number, after=after, limit=1))
        (page,) = looker.heard()
        assert isinstance(page, ActorList)
        assert page.next is None or page.next > after
        paged += page.actors
        after, number = page.next, number + 1
    assert [actor.lease_id for actor in paged] == [actor.lease_id for actor in actors.actors]
    looker.say(Bye("seen"))


def test_status_is_json_that_other_programs_can_read(cluster: Cluster) -> None:
    client = cluster.client("c")
    client.channel.send([encode(StatusRequest(1))])
    cluster.settle()
    fields = json.loads(bytes(client.channel.receive(0)[0]))
    assert fields["is"] == "Status"
    assert fields["cluster_id"] == "cluster-0"
