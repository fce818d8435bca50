r"""The master's decisions about nodes, clients, leases and pending requests. Events in, instructions out.

    node joined, lost, alive     client joined, lost       lease requested, cancelled, released, ended       tick
                 \                      |                               |                                 /
            members: KnownNodes, Draining, KnownClients        leases: LeaseGrants, LeaseEnds, ActorFinders
                                   `-------------- ClusterTables ---------------' --> ClusterView

No I/O and no clock of its own: the master's loop passes the time in and carries the instructions out, and tests do
without a network. Each event goes to its part; freed resources then go to pending requests (`placing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from parl_remote._death import DeathCause
from parl_remote._master.cluster_tables import ClusterTables, DropNode, Instruction
from parl_remote._master.cluster_view import ClusterView
from parl_remote._master.leases import ActorFinders, LeaseEnds, LeaseGrants
from parl_remote._master.members import Draining, KnownClients, KnownNodes
from parl_remote._messages import Heartbeat, LeaseRequest, NodeJoin, Status
from parl_remote._messages.events import AcknowledgeNodes, NodesAcknowledged
from parl_remote._messages.overview import ActorNumbers, DrainNode, KillActor
from parl_remote._messages.parts import FindActor

__all__ = ["ClusterState"]


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
    ) -> None:
        self._now = started
        self.tables = tables = ClusterTables(liveness_limit_s, epoch=epoch, started=started)
        self.view = ClusterView(tables, cluster_id=cluster_id, started=started)
        self._grants = LeaseGrants(tables, new_lease_id, nodes_may_join=nodes_may_join)
        self._ends = LeaseEnds(tables)
        self._nodes = KnownNodes(tables, self._ends)
        self._clients = KnownClients(tables, self._grants, self._ends, grace_s=client_grace_s)
        self._draining = Draining(tables, own_node_id)
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
        self._draining.came_back(node)
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
        self._draining.forget(node_id)
        return self._settled(self._nodes.lost(node, reason, self._now))

    def node_left(self, node_id: str, reason: str, now: float) -> list[Instruction]:
        """Handle a worker that was stopped, and the end of its actors; unknown workers are ignored."""
        self._now = now
        node = self.tables.pool.get(node_id)
        if node is None:
            return []
        self._draining.forget(node_id)
        return self._settled(self._nodes.left(node, reason, now))

    def nodes_acknowledged(self, asked: AcknowledgeNodes, by: str, now: float) -> NodesAcknowledged:
        """Remove lost nodes from the list, because somebody knows of them."""
        return NodesAcknowledged(asked.request_id, self._nodes.acknowledged(asked.node_ids, by, now))

    # -- clients -------------------------------------------------------------------------------------------------

    def client_joined(self, client_id: str, name: str, pid: int, now: float = 0.0, host_id: str = "") -> None:
        """Handle a program that connects, or reconnects with its leases.

        Raises:
            RemoteProtocolError: One with this id is connected already.
        """
        self._clients.joined(client_id, name, pid, now, host_id)

    def client_away(self, client_id: str, now: float) -> list[Instruction]:
        """Note that a program's connection broke without a goodbye; unknown ones are ignored.

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
        return self._settled(self._clients.lost(client_id))

    # -- leases --------------------------------------------------------------------------------------------------

    def lease_requested(self, client_id: str, request: LeaseRequest, now: float) -> list[Instruction]:
        """Grant a client's request for room, queue it, or refuse it with the reason.

        Raises:
            RemoteProtocolError: The request's number is in use, or its timeout is negative.
        """
        self._now = now
        return self._settled(self._grants.requested(client_id, request, now))

    def lease_cancelled(self, client_id: str, request_id: int) -> list[Instruction]:
        """Withdraw a request; if the answer is already on its way, it stands."""
        return self._settled(self._grants.cancelled(client_id, request_id))

    def lease_released(self, client_id: str, lease_id: str, now: float | None = None) -> list[Instruction]:
        """Release a client's lease; one that is already gone, or of another client, is ignored."""
        self._now = self._now if now is None else now
        lease = self.tables.leases.get(lease_id)
        if lease is None:
            given_up = self.tables.will_not_come_back(client_id, lease_id)
            return self._settled([]) if given_up else []  # to tell those who look for it
        if lease.client_id != client_id:
            return []
        return self._settled(self._ends.revoke(lease_id, "released by its owner"))

    def lease_ended(
        self, node_id: str, lease_id: str, cause: DeathCause, now: float | None = None
    ) -> list[Instruction]:
        """End the lease of an actor that ended on its worker; one of another node is ignored."""
        self._now = self._now if now is None else now
        return self._settled(self._ends.reported(node_id, lease_id, cause))

    # -- from outside (see `messages.overview`, `messages.parts`) -----------------------------------------------

    def find_requested(self, client_id: str, asked: FindActor) -> list[Instruction]:
        """Look for an actor by its name, or for the one that replaced another.

        Raises:
            RemoteError: There is no such actor.
        """
        return self._finders.request(client_id, asked)

    def kill_requested(self, client_id: str, asked: KillActor) -> list[Instruction]:
        """End an actor; the answer follows when it has ended.

        Raises:
            RemoteError: There is no such actor.
        """
        return self._ends.kill(client_id, asked)

    def drain_requested(self, client_id: str, asked: DrainNode, now: float) -> list[Instruction]:
        """Drain a node, so that it leaves.

        Raises:
            RemoteError: There is no such node, or more than one of that name.
            RemoteProtocolError: The time is negative.
        """
        self._now = now
        return self._settled(self._draining.requested(client_id, asked, now))

    # -- time ----------------------------------------------------------------------------------------------------

    def slept(self, now: float) -> None:
        """Restart all liveness periods, because this process was suspended and messages are still to be read."""
        self.tables.alive.pardon(now)

    def tick(self, now: float) -> list[Instruction]:
        """Handle what is due: silent nodes, absent programs and requests out of time, nodes to be emptied."""
        self._now = now
        out: list[Instruction] = []
        for node_id in self.tables.alive.expired(now):
            reason = f"no sign of life for more than {self.tables.alive.limit_s:g} s"
            out.append(DropNode(node_id, reason))
            out += self.node_lost(node_id, reason)
        out += self._clients.out_of_time(now)
        out += self._grants.out_of_time(now)
        out += self._draining.due(now)
        return self._settled(out)

    def next_deadline(self) -> float | None:
        """Return the earliest time at which `tick` has something to do, None if there is none."""
        times = (
            self.tables.alive.next_check(),
            self.tables.queue.next_deadline(),
            self._clients.next_deadline(),
            self._draining.next_deadline(),
        )
        return min((time for time in times if time is not None), default=None)

    def status(self, request_id: int, now: float, *, detail: bool, dropped: int, nodes: bool = True) -> Status:
        """See `ClusterView.status`."""
        return self.view.status(request_id, now, detail=detail, dropped=dropped, nodes=nodes)

    def _settled(self, out: list[Instruction]) -> list[Instruction]:
        """Return an event's instructions and those that follow: drained nodes leave, requests that wait are placed."""
        self._draining.note_own(self._now)
        for node in self._draining.empty():
            out.append(self._draining.let_go(node))
            out += self._nodes.drained(node, self._now)
        out += self._grants.place_waiting(self._now)
        out += self._finders.settle()
        return out
