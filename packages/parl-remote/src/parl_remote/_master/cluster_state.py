r"""The master's decisions about nodes, clients, leases and pending requests. Events in, instructions out.

    node joined, lost, alive     client joined, lost       lease requested, cancelled, released, ended       tick
                 \                      |                               |                                 /
            members: KnownNodes, Draining, KnownClients        leases: LeaseGrants, LeaseEnds, ActorFinders
                                   `-------------- ClusterTables ---------------' --> ClusterView: status and lists

No I/O and no clock of its own: the master's loop passes the time in and carries the instructions out, and tests do
without a network. Each event goes to its part; freed resources then go to pending requests (`placement`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from parl_remote._master.cluster_tables import ClusterTables, DropNode, Instruction, Lease
from parl_remote._master.events import History, LostNode
from parl_remote._master.leases import ActorFinders, LeaseEnds, LeaseGrants
from parl_remote._master.members import Draining, KnownClients, KnownNodes
from parl_remote._master.placement import Node, Waiting, reasons
from parl_remote._messages import ClientStatus, Heartbeat, LeaseRequest, NodeJoin, NodeStatus, Status, WaitingStatus
from parl_remote._messages.overview import (
    AcknowledgeNodes,
    ActorList,
    ActorNumbers,
    ActorPhase,
    ActorStatus,
    Deaths,
    DrainNode,
    Events,
    ExplainWaiting,
    KillActor,
    LeaseWaiting,
    ListActors,
    ListDeaths,
    ListEvents,
    ListNodes,
    NodeDetail,
    NodeList,
    NodePhase,
    NodesAcknowledged,
)
from parl_remote._messages.parts import FindActor
from parl_remote._resources import Resources
from parl_remote.errors import DeathCause, RemoteError

__all__ = ["ClusterState", "ClusterView"]


_LIMITS_TO_COME_BACK = 2  # a node may notice only after the limit that the master is gone
_LONGEST_PAGE = 2000
_MOST_DEATHS = 1000
_MOST_EVENTS = 1000
_LONGEST_QUEUE = 100


class ClusterState:
    """The cluster's bookkeeping.

    Args:
        cluster_id: The cluster's id, for status.
        new_lease_id: Returns a fresh id.
        started: The time at which the cluster started, on the loop's clock.
        liveness_limit_s: A node that is silent for longer counts as lost.
        client_grace_s: The time in which a program whose connection broke may reconnect; 0 for none.
        nodes_may_join: Whether a request that no present node can hold may wait for a node that can. A private cluster
            gets no further nodes.
        own_node_id: The node that the master runs in.
        epoch: Unix time of the loop's zero, for events and records of deaths.
        history: Keeps events and lost nodes for a master that is killed and started again.

    Attributes:
        view: The queries about it.
        tables: Its tables; read-only for others.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        new_lease_id: Callable[[], str],
        started: float,
        liveness_limit_s: float,
        client_grace_s: float = 0.0,
        nodes_may_join: bool = True,
        own_node_id: str = "",
        epoch: float = 0.0,
        history: History | None = None,
    ) -> None:
        self._now = started
        history = history or History()
        past = history.past()
        self.tables = tables = ClusterTables(liveness_limit_s, epoch=epoch, started=started, history=history, past=past)
        self.view = ClusterView(tables, cluster_id=cluster_id, started=started)
        self._grants = LeaseGrants(tables, new_lease_id, nodes_may_join=nodes_may_join)
        self._ends = LeaseEnds(tables, self._grants.refuse_restart)
        self._nodes = KnownNodes(tables, self._ends, patience_s=_LIMITS_TO_COME_BACK * liveness_limit_s)
        self._nodes.restore(past.nodes, started)
        self._clients = KnownClients(tables, self._grants, self._ends, grace_s=client_grace_s)
        self._draining = Draining(tables, own_node_id)
        self._draining.restore(past.drains)
        self._finders = ActorFinders(tables)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def node_joined(
        self, joined: NodeJoin, now: float, *, pid: int = 0, versions: Mapping[str, str] = MappingProxyType({})
    ) -> list[Instruction]:
        """Take in a worker that joins: a new one, one that comes back, or one from before the master was restarted.

        Raises:
            RemoteProtocolError: Its running leases do not fit into its resources.
        """
        self._now = now
        node, out = self._nodes.joined(joined, now, pid, versions)
        self._draining.rejoined(node)
        return self._settled(out)

    def node_alive(self, node_id: str, beat: Heartbeat, now: float) -> None:
        """Record a heartbeat of a worker; unknown workers are ignored."""
        self._nodes.alive(node_id, beat, now)

    def node_counted(self, node_id: str, numbers: Iterable[ActorNumbers]) -> None:
        """Record a worker's numbers on its actors; actors that have ended are ignored."""
        self._nodes.counted(node_id, numbers)

    def node_lost(self, node_id: str, reason: str, now: float | None = None) -> list[Instruction]:
        """Handle the loss of a worker and its actors; unknown workers are ignored."""
        self._now = self._now if now is None else now
        node = self.tables.pool.get(node_id)
        if node is None:
            return []
        self._draining.gone(node_id)
        return self._settled(self._nodes.lost(node, reason, self._now))

    def node_away(self, node_id: str) -> None:
        """Record that a node disconnected, possibly because this process was suspended and the node gave it up.

        It keeps its actors and gets no further ones. It either joins again, or is lost after a silence like any other.
        """
        if node := self.tables.pool.get(node_id):
            self.tables.pool.close(node, is_away=True)

    def node_left(self, node_id: str, reason: str, now: float) -> list[Instruction]:
        """Handle a worker that was stopped, and the end of its actors; unknown workers are ignored."""
        self._now = now
        node = self.tables.pool.get(node_id)
        if node is None:
            return []
        self._draining.gone(node_id)
        return self._settled(self._nodes.left(node, reason, now))

    def nodes_acknowledged(self, asked: AcknowledgeNodes, by: str, now: float) -> NodesAcknowledged:
        """Remove lost nodes from the list, because their loss is known."""
        return NodesAcknowledged(asked.request_id, self._nodes.acknowledged(asked.node_ids, by, now))

    # -- clients -------------------------------------------------------------------------------------------------

    def client_joined(self, client_id: str, name: str, pid: int, now: float = 0.0, host_id: str = "") -> None:
        """Handle a program that connects, or reconnects with its leases.

        Raises:
            RemoteProtocolError: One with this id is connected already.
        """
        self._clients.joined(client_id, name, pid, now, host_id)

    def client_away(self, client_id: str, now: float) -> list[Instruction]:
        """Record that a program's connection broke without a Bye; unknown ones are ignored.

        Its actors go on until the program ends, which their workers detect at once by their own connections. A program
        that reconnects in time repeats its pending requests.
        """
        self._now = now
        return self._settled(self._clients.away(client_id, now))

    def client_holds(self, client_id: str, held: Iterable[str], now: float | None = None) -> list[Instruction]:
        """End the leases that a program which came back does not know of."""
        self._now = self._now if now is None else now
        return self._settled(self._clients.holds(client_id, held))

    def client_lost(self, client_id: str, now: float | None = None) -> list[Instruction]:
        """Handle the end of a program: its actors end, except detached ones; unknown programs are ignored."""
        self._now = self._now if now is None else now
        return self._settled(self._clients.lost(client_id, "it has disconnected"))

    # -- leases --------------------------------------------------------------------------------------------------

    def lease_requested(self, client_id: str, request: LeaseRequest, now: float) -> list[Instruction]:
        """Grant a client's request for resources, queue it, or refuse it with the reason.

        Raises:
            RemoteProtocolError: The request's number is in use, or its timeout is negative.
        """
        self._now = now
        return self._settled(self._grants.requested(client_id, request, now))

    def lease_cancelled(self, client_id: str, request_id: int) -> list[Instruction]:
        """Withdraw a request; if the answer is already on its way, it stands."""
        return self._settled(self._grants.cancelled(client_id, request_id))

    def lease_released(
        self, client_id: str, lease_id: str, now: float | None = None, *, replaces: str = ""
    ) -> list[Instruction]:
        """Release a client's lease; one that is already gone, or of another client, is ignored.

        Args:
            client_id: The client.
            lease_id: The lease, or a lost one whose actor the client does not make again.
            now: The time.
            replaces: See `LeaseRelease`.
        """
        self._now = self._now if now is None else now
        lease = self.tables.leases.get(lease_id)
        if lease is not None and lease.client_id != client_id:
            return []
        given_up = False
        if replaces:
            self.tables.restart_failed(client_id, lease_id, replaces)
        elif lease is None or self.tables.is_restarting(lease_id):
            given_up = self.tables.cancel_restarts(client_id, lease_id)
        if lease is None:
            return self._settled([]) if given_up else []  # to notify those who look for it
        return self._settled(self._ends.revoke(lease_id, "released by its owner"))

    def lease_ended(
        self, node_id: str, lease_id: str, cause: DeathCause, now: float | None = None
    ) -> list[Instruction]:
        """End the lease of an actor that ended on its worker; one of another node is ignored."""
        self._now = self._now if now is None else now
        return self._settled(self._ends.reported(node_id, lease_id, cause))

    # -- from outside (see `messages.overview`, `messages.parts`) -----------------------------------------------

    def find_requested(self, client_id: str, asked: FindActor, now: float | None = None) -> list[Instruction]:
        """Find an actor by its name, or the one that replaced another.

        Raises:
            RemoteError: There is no such actor.
        """
        self._now = self._now if now is None else now
        return self._finders.request(client_id, asked, self._now)

    def kill_requested(self, client_id: str, asked: KillActor) -> list[Instruction]:
        """End an actor; the answer follows when it has ended.

        Raises:
            RemoteError: There is no such actor.
        """
        return self._settled(self._ends.kill(client_id, asked))

    def drain_requested(self, client_id: str, asked: DrainNode, now: float) -> list[Instruction]:
        """Drain a node, so that it leaves.

        Raises:
            RemoteError: There is no such node, or more than one of that name.
            RemoteProtocolError: The time is negative.
        """
        self._now = now
        return self._settled(self._draining.requested(client_id, asked, now))

    # -- time ----------------------------------------------------------------------------------------------------

    def resumed(self, now: float) -> None:
        """Restart all liveness periods, because this process was suspended and messages are still to be read."""
        self.tables.alive.restart_silence(now)
        self._nodes.restart_wait(now)
        self._clients.restart_grace(now)

    def tick(self, now: float) -> list[Instruction]:
        """Handle due events: silent nodes, absent programs and requests out of time, nodes to be emptied."""
        self._now = now
        out: list[Instruction] = []
        for node_id in self.tables.alive.expired(now):
            reason = f"no sign of life for more than {self.tables.alive.limit_s:g} s"
            out.append(DropNode(node_id, reason))
            out += self.node_lost(node_id, reason)
        self._nodes.give_up_awaited(now)
        out += self._clients.expire(now)
        out += self._grants.expire(now)
        out += self._draining.due(now)
        return self._settled(out)

    def next_deadline(self) -> float | None:
        """Return the earliest time at which `tick` has something to do, None if there is none."""
        times = (
            self.tables.alive.next_check(),
            self._nodes.next_deadline(),
            self.tables.queue.next_deadline(),
            self._clients.next_deadline(),
            self._draining.next_deadline(),
        )
        return min((time for time in times if time is not None), default=None)

    def status(self, request_id: int, now: float, *, detail: bool, dropped: int, nodes: bool = True) -> Status:
        """Return the cluster's status, and the count of rejected peers."""
        return self.view.status(request_id, now, detail=detail, dropped=dropped, nodes=nodes)

    def _settled(self, out: list[Instruction]) -> list[Instruction]:
        """Return an event's instructions and those that follow: drained nodes leave, requests that wait are placed."""
        self._draining.note_own(self._now)
        for node in self._draining.empty():
            out.append(self._draining.let_go(node))
            out += self._nodes.drained(node, self._now)
        out += self._grants.place_waiting(self._now)
        out += self._finders.settle()
        out += self._ends.settle()
        return out


class ClusterView:
    """Answers to questions about a cluster.

    Args:
        tables: The master's tables.
        cluster_id: The cluster's id.
        started: The time of its start, on the loop's clock.
    """

    def __init__(self, tables: ClusterTables, *, cluster_id: str, started: float) -> None:
        self._tables = tables
        self._cluster_id = cluster_id
        self._started = started

    def status(self, request_id: int, now: float, *, detail: bool, dropped: int, nodes: bool = True) -> Status:
        """Return the cluster's status, see StatusRequest; `dropped` is the reception's count of rejected peers."""
        tables = self._tables
        total, free = self._tables.pool.amounts()
        absent = sum(client.is_absent for client in tables.clients.values())
        return Status(
            request_id=request_id,
            cluster_id=self._cluster_id,
            uptime_s=round(now - self._started, 3),
            total=total,
            free=free,
            leases=len(tables.leases),
            waiting=len(tables.queue),
            node_count=len(tables.pool),
            client_count=len(tables.clients) - absent,
            away_count=absent,
            dropped=dropped,
            nodes=tuple(self._node_status(node, now) for node in tables.pool) if detail and nodes else (),
            clients=self._clients(now) if detail else (),
            queue=self._queue(now) if detail else (),
            lost=tuple(self._lost_status(lost, now) for lost in tables.lost) if detail and nodes else (),
        )

    def actors(self, asked: ListActors, now: float) -> ActorList:
        """Return a page of actors."""

        limit = min(max(1, asked.limit), _LONGEST_PAGE)
        wanted = (
            lease
            for lease in self._tables.leases_after(asked.after)
            if asked.client_id in ("", lease.client_id) and (not asked.node or lease.node.is_called(asked.node))
        )
        page = list(itertools.islice(wanted, limit + 1))
        more = page[limit - 1].number if len(page) > limit else None
        rows = tuple(self._actor(lease, now) for lease in page[:limit])
        return ActorList(asked.request_id, rows, len(self._tables.leases), more)

    def nodes(self, asked: ListNodes, now: float, own_node_id: str) -> NodeList:
        """Return a page of nodes; the master runs in `own_node_id`."""

        present = len(self._tables.pool)
        count = present + (len(self._tables.lost) if asked.lost else 0)
        start = min(max(0, asked.after), count)
        end = min(start + max(1, asked.limit), count)
        page = itertools.islice(self._tables.pool, start, end)
        lost = itertools.islice(self._tables.lost, max(0, start - present), max(0, end - present))
        rows = (
            *(self._node_detail(node, now, own_node_id) for node in page),
            *(self._lost_detail(one, now, own_node_id) for one in lost),
        )
        return NodeList(asked.request_id, rows, end if end < count else None)

    def deaths(self, asked: ListDeaths) -> Deaths:
        """Return the latest lost actors."""

        log = self._tables.deaths
        limit = min(max(1, asked.limit), _MOST_DEATHS)
        latest = log.latest(limit, client_id=asked.client_id, lease_id=asked.lease_id, released=asked.released)
        return Deaths(asked.request_id, latest, log.total)

    def events(self, asked: ListEvents) -> Events:
        """Return events after a position, or the latest."""
        log = self._tables.events
        page = log.after(asked.after, min(max(1, asked.limit), _MOST_EVENTS))
        counts = {kind.value: count for kind, count in log.counts.items()}
        return Events(asked.request_id, page, log.latest, log.since, counts)

    def explain_waiting(self, client_id: str, asked: ExplainWaiting, now: float) -> LeaseWaiting:
        """Return why a request is not granted yet.

        Raises:
            RemoteError: It is not waiting.
        """

        queue = self._tables.queue
        waiting = queue.get((client_id, asked.waiting))
        if waiting is None:
            raise RemoteError(f"request {asked.waiting} does not wait (any more)")
        reason = reasons(self._tables.pool, queue)[waiting.shape]
        ahead, placement = queue.ahead_of(waiting), waiting.request.placement
        may_pass = self._tables.pool.could_hold(waiting.shape)
        return LeaseWaiting(asked.request_id, reason, ahead, round(now - waiting.since, 3), placement, may_pass)

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _lost_status(self, lost: LostNode, now: float) -> NodeStatus:
        return self._node_status(lost.node, now, lost)

    def _node_status(self, node: Node, now: float, lost: LostNode | None = None) -> NodeStatus:
        return NodeStatus(
            node_id=node.node_id,
            name=node.joined.name,
            addresses=node.joined.addresses,
            total=node.total,
            free=node.free,
            leases=len(node.leases) if lost is None else lost.actors,
            load=node.beat.load,
            memory_free=node.beat.memory_free,
            silent_s=self._silent_s(node, now, lost),
            is_draining=lost is None and node.is_draining,
            lost_at=None if lost is None else self._tables.events.unix(lost.at),
            cause="" if lost is None else lost.cause,
        )

    def _lost_detail(self, lost: LostNode, now: float, own_node_id: str) -> NodeDetail:
        return self._node_detail(lost.node, now, own_node_id, lost)

    def _silent_s(self, node: Node, now: float, lost: LostNode | None) -> float:
        return round(self._tables.alive.silent_s(node.node_id, now) if lost is None else now - lost.at, 3)

    def _node_detail(self, node: Node, now: float, own_node_id: str, lost: LostNode | None = None) -> NodeDetail:
        is_master = node.node_id == own_node_id
        closed = NodePhase.DRAINED if is_master and not node.leases else NodePhase.DRAINING
        return NodeDetail(
            node_id=node.node_id,
            name=node.name,
            addresses=node.joined.addresses,
            host_id=node.joined.host_id,
            pid=node.pid,
            phase=NodePhase.LOST if lost is not None else closed if node.is_draining else NodePhase.UP,
            is_master=is_master,
            total=node.total,
            free=node.free,
            gpus=node.gpu_names,
            gpus_free=node.gpus.free,
            actors=len(node.leases) if lost is None else lost.actors,
            load=node.beat.load,
            cpu_busy=node.beat.cpu_busy,
            gpu_use=node.beat.gpus,
            memory_total=node.beat.memory_total,
            memory_free=node.beat.memory_free,
            age_s=round(now - node.joined_at, 3),
            silent_s=self._silent_s(node, now, lost),
            versions=node.versions,
            lost_at=None if lost is None else self._tables.events.unix(lost.at),
            cause="" if lost is None else lost.cause,
        )

    def _clients(self, now: float) -> tuple[ClientStatus, ...]:
        return tuple(
            ClientStatus(
                client.client_id,
                client.name,
                client.pid,
                len(client.leases),
                self._tables.queue.count_of(client.client_id),
                client.host_id,
                round(now - client.since, 3),
            )
            for client in self._tables.clients.values()
            if not client.is_absent
        )

    def _queue(self, now: float) -> tuple[WaitingStatus, ...]:
        tables = self._tables
        alike: dict[tuple[str, str, Resources, str], list[Waiting]] = {}
        for waiting in tables.queue:
            request = waiting.request
            alike.setdefault((waiting.client_id, request.class_name, request.resources, request.node), []).append(
                waiting
            )
        why = reasons(tables.pool, tables.queue) if alike else {}
        return tuple(
            WaitingStatus(
                client_id=first.client_id,
                owner=tables.owner_of(first.client_id),
                class_name=first.request.class_name,
                resources=first.request.resources,
                count=len(group),
                waited_s=round(now - first.since, 3),
                reason=why[first.shape],
            )
            for group in itertools.islice(alike.values(), _LONGEST_QUEUE)
            for first in group[:1]
        )

    def _actor(self, lease: Lease, now: float) -> ActorStatus:

        return ActorStatus(
            lease_id=lease.lease_id,
            name=lease.actor_name,
            class_name=lease.class_name,
            client_id=lease.client_id,
            owner=self._tables.owner_of(lease.client_id),
            node_id=lease.node.node_id,
            node=lease.node.name,
            resources=lease.resources,
            gpus=lease.gpus,
            age_s=round(now - lease.since, 3),
            numbers=lease.numbers or ActorNumbers(lease.lease_id, ActorPhase.STARTING),
            restarts=lease.restarts,
            detached=lease.detached,
            node_address=lease.node.address,
        )
