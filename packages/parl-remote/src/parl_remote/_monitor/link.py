"""The monitor's link to the cluster: a client of the master, and of workers for logs and stacks.

    Collector --snapshot--> ClusterSource --StatusRequest, ListNodes, ListActors, ListDeaths, ListEvents--> master
    requests  --read_log, dump_stack------> --ReadLog, DumpStack--> the actor's worker
              --kill, acknowledge---------> --KillActor, AcknowledgeNodes--> master

The answers are translated into the values of `model` by pure functions. Actors are requested a few hundred at a
time, so that a large cluster's list never keeps it from placing actors for longer than some milliseconds.
"""

from __future__ import annotations

import functools
import signal as signals
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeVar

from parl_remote._config import Limits
from parl_remote._links.requests import RequestConnection
from parl_remote._messages import Message, Role, Status, StatusRequest
from parl_remote._messages.leases import ClientStatus, WaitingStatus
from parl_remote._messages.overview import (
    AcknowledgeNodes,
    ActorKilled,
    ActorList,
    ActorStatus,
    ClusterEvent,
    DeathRecord,
    Deaths,
    Events,
    KillActor,
    ListActors,
    ListDeaths,
    ListEvents,
    ListNodes,
    NodeDetail,
    NodeList,
    NodePhase,
    NodesAcknowledged,
)
from parl_remote._messages.parts import DumpStack, LogText, ReadLog, StackDump
from parl_remote._monitor.model import (
    ActorInfo,
    ClusterInfo,
    DeathInfo,
    DriverInfo,
    EventInfo,
    GpuInfo,
    LogChunk,
    NodeInfo,
    Snapshot,
    SourceError,
    Unknown,
    Unreachable,
    WaitingInfo,
)
from parl_remote._program.rendezvous import ClusterAddress
from parl_remote._transport.addresses import advertised_by
from parl_remote.errors import ChannelClosed, DeathKind, RemoteError, ResultTimeout

__all__ = ["ClusterSource"]


_WANTED = frozenset({DeathKind.KILLED_BY_USER, DeathKind.DRAINED})


def node_info(node: NodeDetail, address: str, late_s: float) -> NodeInfo:
    """Return the info of a worker.

    Args:
        node: The master's record of it.
        address: Its address.
        late_s: The time without a sign of life after which it counts as silent.
    """
    lost = node.phase is NodePhase.LOST
    state = "alive" if node.phase is NodePhase.UP else node.phase.value
    known = node.memory_total > 0 and not lost
    seen = {gpu.name: GpuInfo(gpu.name, gpu.model, gpu.busy, gpu.memory_used, gpu.memory_total) for gpu in node.gpu_use}
    return NodeInfo(
        node_id=node.node_id,
        name=node.name or node.node_id,
        address=address,
        state="silent" if node.silent_s > late_s and not lost else state,
        cpus=node.total.cpu,
        cpus_used=round(node.total.cpu - node.free.cpu, 3),
        gpus=node.total.gpu,
        gpus_used=round(node.total.gpu - node.free.gpu, 3),
        cpu_busy=node.cpu_busy if known else None,
        load=None if lost else node.load,
        memory_total=node.memory_total if known else None,
        memory_used=node.memory_total - node.memory_free if known else None,
        actors=node.actors,
        silent_s=node.silent_s,
        devices=tuple(seen.get(name, GpuInfo(name)) for name in node.gpus),
        labels=tuple(f"{name}={amount:g}" for name, amount in node.total.labels.items()),
        host_id=node.host_id,
        label=_label(node.name or node.node_id, node.addresses),
        lost_at=node.lost_at,
        cause=node.cause,
    )


def actor_info(actor: ActorStatus, at: float) -> ActorInfo:
    """Return the info of a living actor at that time."""
    numbers = actor.numbers
    has_process = numbers.pid > 0
    return ActorInfo(
        actor_id=actor.lease_id,
        class_name=actor.class_name or "actor",
        name=actor.name,
        state=numbers.phase.value,
        node_id=actor.node_id,
        node_name=_label(actor.node or actor.node_id, (actor.node_address,)),
        owner_id=actor.client_id,
        owner_name=actor.owner,
        pid=numbers.pid,
        started_at=at - actor.age_s,
        detached=actor.detached,
        resources=_resources(actor),
        calls=numbers.calls if has_process else None,
        calls_per_s=numbers.calls_per_s if has_process else None,
        busy=numbers.busy if has_process else None,
        queued=numbers.queued if has_process else None,
        running=numbers.busy_with,
        running_s=max(0.0, at - numbers.busy_since) if numbers.busy_with else None,
        errors=numbers.errors if has_process else None,
        last_error=numbers.last_error,
        cpu=numbers.cpu if has_process else None,
        memory=numbers.memory or None,
        memory_limit=numbers.memory_limit,
        restarts=actor.restarts,
    )


def driver_info(client: ClientStatus, hosts: Mapping[str, str], at: float) -> DriverInfo:
    """Return the info of a program; its host has a name if a node of the cluster runs there."""
    return DriverInfo(
        client_id=client.client_id,
        name=client.name,
        pid=client.pid,
        host=hosts.get(client.host_id, ""),
        actors=client.leases,
        waiting=client.waiting,
        since=at - client.age_s,
    )


def waiting_info(waiting: WaitingStatus) -> WaitingInfo:
    """Return the info of a program's actors that wait for the same resources."""
    return WaitingInfo(
        class_name=waiting.class_name or "actor",
        owner_id=waiting.client_id,
        owner_name=waiting.owner,
        asked=waiting.resources.as_request(),
        reason=waiting.reason,
        since_s=waiting.waited_s,
        count=waiting.count,
    )


def death_info(death: DeathRecord, names: Mapping[str, str]) -> DeathInfo:
    """Return the info of a lost actor."""
    cause = death.cause
    end = cause.memory[-1].at if cause.memory else 0.0
    return DeathInfo(
        actor_id=death.lease_id,
        class_name=death.class_name or "actor",
        name=death.name,
        node_name=_label(cause.node or names.get(death.node_id, death.node_id), (death.node_address,)),
        node_id=death.node_id,
        owner_name=death.owner,
        at=cause.at,
        kind=cause.kind.value,
        expected=cause.kind in _WANTED or not cause.kind.is_loss,
        text=cause.describe(),
        exit_code=cause.exit_code,
        signal=_signal(cause.signal),
        last_call=cause.last_call,
        log_tail=cause.log_tail,
        memory_curve=tuple((round(end - one.at, 3), one.resident) for one in cause.memory),
        memory_limit=cause.memory_limit,
        memory_peak=cause.memory_peak or None,
    )


def event_info(event: ClusterEvent) -> EventInfo:
    """Return the info of an event."""
    return EventInfo(
        number=event.number,
        at=event.at,
        kind=event.kind.value,
        text=event.text,
        node_id=event.node_id,
        node_name=_label(event.node, (event.address,)),
        actor_id=event.lease_id,
        class_name=event.class_name,
        name=event.actor_name,
        owner_name=event.owner,
    )


def _label(name: str, addresses: tuple[str, ...]) -> str:
    """Return a node's name with its port."""
    _, colon, port = (addresses[0] if addresses else "").rpartition(":")
    return f"{name}{colon}{port}"


def _resources(actor: ActorStatus) -> str:
    text = str(actor.resources)
    return f"{text} (GPU {', '.join(actor.gpus)})" if actor.gpus else text


def _signal(number: int | None) -> str:
    if number is None:
        return ""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


_LOOKERS = "xparl "  # clients with such names are observers
_NAME = "xparl monitor"
_NODES_A_PAGE = 100
_ACTORS_A_PAGE = 250
_EVENTS_A_PAGE = 500
_FIRST_DEATHS = 200
_NODES_KEPT = 20_000
_IDLE_S = 60.0  # seconds for which a connection to a worker is kept after the last request
_STACK_S = 8.0  # a worker waits some seconds for the actor itself

_Answer = TypeVar("_Answer", bound=Message)


class _OnDemandConnection:
    """A connection opened on demand, for one request at a time."""

    def __init__(self, connect: Callable[[], RequestConnection]) -> None:
        self._connect = connect
        self._connection: RequestConnection | None = None
        self._lock = threading.Lock()
        self.used = time.monotonic()

    def ask(self, make: Callable[[int], Message], kind: type[_Answer], timeout_s: float | None = None) -> _Answer:
        """Send a request; reopen, once, a connection that was lost since the last request."""
        with self._lock:
            self.used = time.monotonic()
            fresh = self._connection is None
            try:
                return self._ask(make, kind, timeout_s)
            except ChannelClosed:
                if fresh:
                    raise
                return self._ask(make, kind, timeout_s)

    def _ask(self, make: Callable[[int], Message], kind: type[_Answer], timeout_s: float | None) -> _Answer:
        if self._connection is None:
            self._connection = self._connect()
        try:
            return self._connection.ask(make, kind, timeout_s)
        except (ChannelClosed, ResultTimeout):
            self._hang_up()  # a late answer must not be taken for that of another request
            raise

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._hang_up()

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class ClusterSource:
    """The source of a real cluster; implements `model.Source`.

    Args:
        cluster: Its address and key.
        limits: Times.
    """

    def __init__(self, cluster: ClusterAddress, limits: Limits) -> None:
        self._cluster = cluster
        self._limits = limits
        self._master = _OnDemandConnection(self._dial_master)
        self._steering = _OnDemandConnection(self._dial_master)
        self._workers: dict[str, _OnDemandConnection] = {}
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._node_of: OrderedDict[str, str] = OrderedDict()  # the node of each actor, including those that have ended
        self._version = ""
        self._deaths_known = -1
        self._events_known = (0.0, 0)  # the beginning of the master's count, and the latest number
        self._lock = threading.Lock()

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the cluster, from the master's answers."""
        try:
            status = self._master.ask(lambda number: StatusRequest(number, nodes=False), Status)
            nodes = self._nodes()
            actors = self._actors()
            deaths = self._new_deaths()
            events, counts = self._new_events()
        except (RemoteError, OSError) as error:
            raise Unreachable(str(error)) from error
        at = time.time()
        hosts = {node.host_id: node.name for node in nodes}
        names = {node.node_id: node.name for node in nodes}
        self._update_locations(nodes, actors)
        for death in deaths.deaths:
            self._place(death.lease_id, death.node_id)
        late_s = 2 * self._limits.heartbeat_interval_s
        return Snapshot(
            at=at,
            cluster=ClusterInfo(
                cluster_id=status.cluster_id,
                address=str(self._cluster),
                uptime_s=status.uptime_s,
                waiting=status.waiting,
                rejected_peers=status.dropped,
                version=self._version,
            ),
            nodes=tuple(node_info(node, str(self._reached(node)), late_s) for node in nodes),
            actors=tuple(actor_info(actor, at) for actor in actors),
            drivers=tuple(
                driver_info(client, hosts, at) for client in status.clients if not client.name.startswith(_LOOKERS)
            ),
            waiting=tuple(waiting_info(one) for one in status.queue),
            deaths=tuple(death_info(death, names) for death in deaths.deaths),
            events=tuple(event_info(event) for event in events),
            event_counts=counts,
        )

    def read_log(self, actor_id: str, position: int | None, most_bytes: int) -> LogChunk:
        """Return a piece of an actor's output, from its worker."""
        start = -1 if position is None else position
        text = self._ask_worker(actor_id, lambda n: ReadLog(n, actor_id, start, most_bytes=most_bytes), LogText)
        pieces = tuple((piece.text, piece.is_error) for piece in text.pieces)
        return LogChunk(pieces, text.end, text.start, text.ended)

    def dump_stack(self, actor_id: str) -> str:
        """Return the stacks of an actor's threads, from its worker."""
        return self._ask_worker(actor_id, lambda n: DumpStack(n, actor_id), StackDump, _STACK_S).text

    def kill(self, actor_id: str, reason: str) -> None:
        """End an actor's process through the master."""
        try:
            self._steering.ask(lambda number: KillActor(number, actor_id, reason), ActorKilled)
        except (ChannelClosed, ResultTimeout, OSError) as error:
            raise Unreachable(str(error)) from error
        except RemoteError as error:
            raise Unknown(str(error)) from error

    def acknowledge(self, node_id: str) -> None:
        """Remove a lost node from the master's list."""
        try:
            done = self._steering.ask(lambda number: AcknowledgeNodes(number, (node_id,)), NodesAcknowledged)
        except (RemoteError, OSError) as error:
            raise Unreachable(str(error)) from error
        if not done.node_ids:
            raise Unknown(f"the node {node_id} is not lost, or its loss was acknowledged before")

    def close(self) -> None:
        """Close all connections."""
        self._master.close()
        self._steering.close()
        with self._lock:  # the collector may still drop some
            lines = list(self._workers.values())
        for line in lines:
            line.close()

    # -- the master --------------------------------------------------------------------------------------------------

    def _nodes(self) -> tuple[NodeDetail, ...]:
        """Return all nodes, distinguished by their ids: one that joins or leaves meanwhile moves the others."""
        nodes: dict[str, NodeDetail] = {}
        after: int | None = 0
        while after is not None:
            page = self._master.ask(functools.partial(_page_of_nodes, after=after), NodeList)
            nodes |= {node.node_id: node for node in page.nodes}
            after = page.next
        return tuple(nodes.values())

    def _actors(self) -> list[ActorStatus]:
        actors: list[ActorStatus] = []
        after: int | None = 0
        while after is not None:
            page = self._master.ask(functools.partial(_page_of_actors, after=after), ActorList)
            actors += page.actors
            after = page.next
        return actors

    def _new_deaths(self) -> Deaths:
        """Return the deaths since the last time and a few more; the store recognizes those that it has."""
        deaths = self._master.ask(lambda number: ListDeaths(number, limit=1), Deaths)
        if deaths.total != self._deaths_known:
            new = deaths.total - self._deaths_known
            limit = _FIRST_DEATHS if self._deaths_known < 0 or new < 0 else min(_FIRST_DEATHS, new + 5)
            deaths = self._master.ask(lambda number: ListDeaths(number, limit=limit), Deaths)
            self._deaths_known = deaths.total
        return deaths

    def _new_events(self) -> tuple[list[ClusterEvent], Mapping[str, int]]:
        """Return the events since the last time, at first all that the master keeps, and their counts."""
        since, latest = self._events_known
        new: list[ClusterEvent] = []
        while True:
            page = self._master.ask(functools.partial(_page_of_events, after=latest), Events)
            if page.since != since:  # another master, or the first question
                if latest:
                    since, latest = page.since, 0
                    continue
                since = page.since
            new += page.events
            latest = page.events[-1].number if page.events else page.latest
            if latest >= page.latest:
                self._events_known = (since, latest)
                return new, page.counts

    def _dial_master(self) -> RequestConnection:
        connection = RequestConnection(self._cluster.connect_master(), Role.MASTER, self._limits, _NAME)
        self._version = connection.welcome.versions.get("parl_remote", "")
        return connection

    # -- workers -----------------------------------------------------------------------------------------------------

    def _ask_worker(
        self, actor_id: str, make: Callable[[int], Message], kind: type[_Answer], timeout_s: float | None = None
    ) -> _Answer:
        node_id = self._node_of.get(actor_id)
        if node_id is None:
            raise Unknown(f"there is no actor {actor_id}")
        try:
            return self._connection_to(node_id).ask(make, kind, timeout_s)
        except (ChannelClosed, ResultTimeout, OSError) as error:
            raise Unreachable(f"the node {node_id} does not answer: {error}") from error
        except RemoteError as error:
            raise SourceError(str(error)) from error

    def _connection_to(self, node_id: str) -> _OnDemandConnection:
        with self._lock:
            addresses = self._addresses.get(node_id)
            if addresses is None:
                raise Unreachable(f"the node {node_id} is not in the cluster any more")
            line = self._workers.get(node_id)
            if line is None:
                line = self._workers[node_id] = _OnDemandConnection(
                    lambda: RequestConnection(self._cluster.connect_node(addresses), Role.WORKER, self._limits, _NAME)
                )
            return line

    def _update_locations(self, nodes: tuple[NodeDetail, ...], actors: list[ActorStatus]) -> None:
        """Record the node of each actor and the addresses of nodes, and close worker connections that are idle."""
        for actor in actors:
            self._place(actor.lease_id, actor.node_id)
        now = time.monotonic()
        with self._lock:
            self._addresses = {node.node_id: node.addresses for node in nodes if node.lost_at is None}
            idle = [
                node_id
                for node_id, line in self._workers.items()
                if now - line.used > _IDLE_S or node_id not in self._addresses
            ]
            lines = [self._workers.pop(node_id) for node_id in idle]
        for line in lines:
            line.close()

    def _place(self, actor_id: str, node_id: str) -> None:
        self._node_of[actor_id] = node_id
        self._node_of.move_to_end(actor_id)
        while len(self._node_of) > _NODES_KEPT:
            self._node_of.popitem(last=False)

    def _reached(self, node: NodeDetail) -> str:
        return str(advertised_by(node.addresses[0], self._cluster.address)) if node.addresses else ""


def _page_of_nodes(request_id: int, after: int) -> ListNodes:
    return ListNodes(request_id, after, _NODES_A_PAGE, lost=True)


def _page_of_events(request_id: int, after: int) -> ListEvents:
    return ListEvents(request_id, after, _EVENTS_A_PAGE)


def _page_of_actors(request_id: int, after: int) -> ListActors:
    return ListActors(request_id, after, _ACTORS_A_PAGE)
