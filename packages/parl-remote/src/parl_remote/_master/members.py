"""The members of a cluster: nodes and programs that join, disconnect, reconnect and leave, and their leases.

    NodeJoin --> a node, its running leases taken in --heartbeats--> alive --silence, a broken connection--> lost
                                                                              `- its leases are lost with it
    lost --it comes back, or its loss is acknowledged--> forgotten
    there when the master was killed --> awaited --it joins, or a node in its place--> alive    --in vain--> lost
    up --drain--> draining --the time is up--> its actors are asked to end --the last one has ended--> it is released
                      `-------------------------- the last one has ended ----------------------------^

    Hello --> a program --its connection breaks--> away --reconnects in time, lists its leases----> here
                `--Bye----> gone <--stays away-----'

A node that rejoins keeps its leases, except those already revoked or reported as lost. Orders to end actors are
repeated, because they may have been lost with its connection. Actors of a drained node with `max_restarts` are asked to
end at once, and are restarted on other nodes. A drain lasts as long as the node's process, which is identified by its
id: a node that was lost or released and comes back is drained again, even if the master was restarted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from parl_remote._master.cluster_tables import Client, ClusterTables, Instruction, Lease, ToClient, ToNode
from parl_remote._master.events import DrainRecord, LostNode, NodeRecord, record_of
from parl_remote._master.leases import LeaseEnds, LeaseGrants
from parl_remote._master.placement import Node
from parl_remote._messages import Bye, Heartbeat, LeaseRevoked, NodeJoin, RunningLease
from parl_remote._messages.overview import (
    ActorNumbers,
    DrainNode,
    DrainStarted,
    EndActor,
    EventKind,
    ForgetUnstarted,
    NodeDraining,
)
from parl_remote._resources import Resources
from parl_remote.errors import DeathCause, DeathKind, RemoteError, RemoteProtocolError

__all__ = ["Draining", "KnownClients", "KnownNodes"]


_LOST_LEASES_KEPT = 10_000  # a node that was cut off comes back within minutes, with what it had then


class KnownNodes:
    """The life of nodes in a cluster.

    Args:
        tables: The master's tables.
        ends: Ends leases.
        patience_s: The time in which nodes are to come back to a master that was started again.
    """

    def __init__(self, tables: ClusterTables, ends: LeaseEnds, *, patience_s: float) -> None:
        self._tables = tables
        self._ends = ends
        self._patience_s = patience_s
        # leases declared lost with their node, which must not come back with it
        self._lost_leases: dict[str, None] = {}
        self._awaited: dict[str, NodeRecord] = {}  # there before the master was started again, and not yet seen
        self._awaited_until = 0.0

    def restore(self, nodes: Iterable[NodeRecord], now: float) -> None:
        """Take over the nodes recorded by an earlier master: lost nodes, and nodes that are expected to return."""
        self.restart_wait(now)
        for one in nodes:
            if one.lost_at is None:
                self._awaited[one.joined.node_id] = one
            else:
                at = self._tables.events.on_the_clock(one.lost_at)
                self._tables.lost.add(LostNode(self._node_of(one), at, one.cause, one.actors))

    def joined(
        self, joined: NodeJoin, now: float, pid: int, versions: Mapping[str, str]
    ) -> tuple[Node, list[Instruction]]:
        """Add a worker that joins, and return its node with the instructions that follow."""
        revoked = {one.lease_id: one.ending for lease in joined.leases if (one := self._ends.left(lease.lease_id))}
        brought = {lease.lease_id: lease for lease in joined.leases if lease.lease_id not in revoked}
        if not joined.resources.fits(_sum(lease.resources for lease in brought.values())):
            raise RemoteProtocolError(f"{joined.node_id} has leases for more than the {joined.resources} it offers")
        if joined.gpus and len(joined.gpus) != joined.resources.gpu:
            raise RemoteProtocolError(f"{joined.node_id} offers {joined.resources.gpu:g} GPU and names {joined.gpus}")
        out: list[Instruction] = []
        orders = dict(revoked)  # those that the worker may not have got, because its connection broke
        if known := self._tables.pool.get(joined.node_id):
            kept = known.leases.keys() & brought.keys()
            orders.update((lease_id, self._tables.leases[lease_id].ending) for lease_id in kept)
            out += self._forget(known, "its worker came back without it", now, keep=kept)
        node = Node(joined, now, pid, versions)
        self._tables.pool.add(node)
        self._tables.alive.heard(joined.node_id, now)
        for lease in brought.values():
            out += self._take_in(node, lease, now)
        for lease_id, order in orders.items():
            if lease_id in node.leases:
                self._tables.leases[lease_id].ending = order
            if order is not None:
                out.append(ToNode(node.node_id, order))
        self._stop_awaiting(joined)
        self._tables.history.noted(record_of(node, self._tables.events.unix(now)))
        self._tables.events.node(EventKind.NODE_JOINED, node, self._join_text(node, known, now), now)
        return node, out

    def alive(self, node_id: str, beat: Heartbeat, now: float) -> None:
        """Record a heartbeat of a worker; unknown workers are ignored."""
        if node := self._tables.pool.get(node_id):
            node.beat = beat
            self._tables.alive.heard(node_id, now)

    def counted(self, node_id: str, numbers: Iterable[ActorNumbers]) -> None:
        """Record a worker's numbers on its actors; actors that have ended are ignored."""
        for one in numbers:
            lease = self._tables.leases.get(one.lease_id)
            if lease is not None and lease.node.node_id == node_id:
                lease.numbers = one

    def lost(self, node: Node, reason: str, now: float) -> list[Instruction]:
        """Remove a node that disconnected or fell silent; list it as lost until it returns or is acknowledged."""
        self._list_as_lost(node, reason, now)
        return self._forget(node, reason, now)

    def left(self, node: Node, reason: str, now: float) -> list[Instruction]:
        """Remove a node that was stopped."""
        self._tables.history.gone(node.node_id)
        self._tables.events.node(EventKind.NODE_LEFT, node, f"has left{_with_actors(node)}: {reason}", now)
        return self._forget(node, reason, now)

    def drained(self, node: Node, now: float) -> list[Instruction]:
        """Remove a node whose last actor has ended after it was drained."""
        self._tables.history.gone(node.node_id)
        self._tables.events.node(EventKind.NODE_DRAINED, node, "is drained and leaves", now)
        return self._forget(node, "it was drained", now)

    def acknowledged(self, node_ids: Iterable[str], by: str, now: float) -> tuple[str, ...]:
        """Remove lost nodes from the list, or all if none is named; return those that were on the list."""
        named = tuple(node_ids) or tuple(lost.node.node_id for lost in self._tables.lost)
        removed = [lost for node_id in named if (lost := self._tables.lost.remove(node_id)) is not None]
        for lost in removed:
            self._tables.history.gone(lost.node.node_id)
            text = f"is no longer listed as lost: acknowledged by {by or 'a program that is gone'}"
            self._tables.events.node(EventKind.NODE_ACKNOWLEDGED, lost.node, text, now)
        return tuple(lost.node.node_id for lost in removed)

    def give_up_awaited(self, now: float) -> None:
        """List as lost the nodes that were there before the master was restarted and have not returned in time."""
        if self._awaited and self._awaited_until <= now:
            for one in self._awaited.values():
                self._list_as_lost(self._node_of(one), "it did not come back to a master that was started again", now)
            self._awaited.clear()

    def restart_wait(self, now: float) -> None:
        """Restart the time in which awaited nodes may come back."""
        self._awaited_until = now + self._patience_s

    def next_deadline(self) -> float | None:
        """Return when awaited nodes are given up, or None."""
        return self._awaited_until if self._awaited else None

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _node_of(self, kept: NodeRecord) -> Node:
        return Node(kept.joined, self._tables.events.on_the_clock(kept.at), kept.pid, kept.versions)

    def _list_as_lost(self, node: Node, reason: str, now: float) -> None:
        tables, count = self._tables, len(node.leases)
        tables.lost.add(LostNode(node, now, reason, count))
        kept = record_of(node, tables.events.unix(node.joined_at))
        tables.history.noted(replace(kept, lost_at=tables.events.unix(now), cause=reason, actors=count))
        tables.events.node(EventKind.NODE_LOST, node, f"is lost{_with_actors(node)}: {reason}", now)

    def _stop_awaiting(self, joined: NodeJoin) -> None:
        """Stop awaiting a node that has joined, or whose place on its host another node has taken."""
        place = joined.host_id, joined.addresses
        for node_id, one in list(self._awaited.items()):
            if node_id == joined.node_id or (one.joined.host_id, one.joined.addresses) == place:
                del self._awaited[node_id]
                if node_id != joined.node_id:
                    self._tables.history.gone(node_id)

    def _join_text(self, node: Node, known: Node | None, now: float) -> str:
        lost = self._tables.lost.remove(node.node_id)
        if lost is not None:
            return f"came back after {now - lost.at:.0f} s, with {len(node.leases)} actors"
        return f"connected again, with {len(node.leases)} actors" if known else f"joined with {node.total}"

    def _forget(self, node: Node, reason: str, now: float, keep: Iterable[str] = ()) -> list[Instruction]:
        """Remove a node; leases in `keep` are dropped without a report, because the caller records them anew."""
        out: list[Instruction] = []
        silently = set(keep)
        for lease_id in list(node.leases):
            if lease_id in silently:
                self._tables.free(lease_id)
                continue
            self._lost_leases[lease_id] = None
            out += self._ends.lose(lease_id, self._cause(node, self._tables.leases[lease_id], reason, now))
        while len(self._lost_leases) > _LOST_LEASES_KEPT:
            del self._lost_leases[next(iter(self._lost_leases))]
        self._tables.pool.remove(node)
        self._tables.alive.forget(node.node_id)
        return out

    def _cause(self, node: Node, lease: Lease, reason: str, now: float) -> DeathCause:
        numbers = lease.numbers
        return DeathCause(
            DeathKind.NODE_LOST,
            detail=f"{node.label}: {reason}",
            last_call=numbers.busy_with if numbers is not None else "",
            node=node.name,
            pid=numbers.pid if numbers is not None else 0,
            at=self._tables.events.unix(now),
            lease_id=lease.lease_id,
            class_name=lease.class_name,
            name=lease.actor_name,
            restarts=lease.restarts,
        )

    def _take_in(self, node: Node, brought: RunningLease, now: float) -> list[Instruction]:
        """Adopt a lease that runs on a joining node, unless its owner was already told that it is lost.

        The owner may have no connection to the master, but has one to the worker; if that breaks, the worker reports
        the end of the lease.
        """
        tables = self._tables
        if brought.lease_id in self._lost_leases or brought.lease_id in tables.leases:
            return [ToNode(node.node_id, LeaseRevoked(brought.lease_id, "it was reported as lost"))]
        if brought.client_id not in tables.clients:
            unknown = Client(brought.client_id, since=now, is_absent=True, is_known=False)
            tables.clients[brought.client_id] = unknown
        lease = Lease(
            lease_id=brought.lease_id,
            client_id=brought.client_id,
            node=node,
            resources=brought.resources,
            class_name=brought.class_name,
            actor_name=brought.actor_name,
            detached=brought.detached,
            restarts=brought.restarts,
            max_restarts=brought.max_restarts,
            since=now - brought.age_s,
        )
        tables.record(lease, brought.gpus)
        if brought.actor_name and tables.names.get(brought.actor_name) is None:
            tables.names.assign(brought.actor_name, brought.client_id, brought.lease_id)
        return []


def _with_actors(node: Node) -> str:
    count = len(node.leases)
    return f", with {count} actor{'s' * (count != 1)}" if count else ""


def _sum(amounts: Iterable[Resources]) -> Resources:
    total = Resources()
    for amount in amounts:
        total += amount
    return total


class KnownClients:
    """The life of programs in a cluster.

    Args:
        tables: The master's tables.
        grants: The pending requests.
        ends: Ends leases.
        grace_s: The time in which a disconnected program may reconnect; 0 for none.
    """

    def __init__(self, tables: ClusterTables, grants: LeaseGrants, ends: LeaseEnds, *, grace_s: float) -> None:
        self._tables = tables
        self._grants = grants
        self._ends = ends
        self._grace_s = grace_s
        # programs whose connection broke, with the time until which they may reconnect
        self._away: dict[str, float] = {}

    def joined(self, client_id: str, name: str, pid: int, now: float, host_id: str) -> None:
        """Add a program that connects, or one that reconnects with its leases."""
        before = self._tables.clients.get(client_id)
        if before is not None and not before.is_absent:
            raise RemoteProtocolError(f"a client with id {client_id} is already connected")
        self._away.pop(client_id, None)
        leases = before.leases if before is not None else {}
        self._tables.clients[client_id] = Client(client_id, name, pid, host_id, now, leases)

    def away(self, client_id: str, now: float) -> list[Instruction]:
        """Record that a program's connection broke without a Bye; an unknown program is ignored."""
        client = self._tables.clients.get(client_id)
        if client is None:
            return []
        if not client.leases or not self._grace_s:
            return self.lost(client_id, "its connection closed")
        self._grants.given_up(client_id)
        client.is_absent = True
        self._away[client_id] = now + self._grace_s
        return self._check_unstarted(client)

    def holds(self, client_id: str, held: Iterable[str]) -> list[Instruction]:
        """End the leases that a reconnected program does not know of."""
        client = self._tables.clients.get(client_id)
        unknown = set(client.leases).difference(held) if client is not None else set()
        return self._end(sorted(unknown), "its owner does not know of it")

    def lost(self, client_id: str, reason: str) -> list[Instruction]:
        """End a program that is gone, and its actors; see `ClusterState.client_lost`."""
        self._away.pop(client_id, None)
        client = self._tables.clients.get(client_id)
        if client is None:
            return []
        self._grants.given_up(client_id)
        revoked = self._end(list(client.leases), reason)
        self._tables.clients.pop(client_id, None)
        self._tables.cancel_restarts(client_id)
        return revoked

    def expire(self, now: float) -> list[Instruction]:
        """Give up programs that have been away for too long."""
        gone = [client_id for client_id, until in self._away.items() if until <= now]
        reason = f"it did not come back within {self._grace_s:g} s"
        return [instruction for client_id in gone for instruction in self.lost(client_id, reason)]

    def restart_grace(self, now: float) -> None:
        """Restart the time in which disconnected programs may reconnect."""
        self._away = dict.fromkeys(self._away, now + self._grace_s)

    def next_deadline(self) -> float | None:
        """Return when the next program is given up, or None."""
        return min(self._away.values(), default=None)

    def _end(self, lease_ids: Iterable[str], reason: str) -> list[Instruction]:
        out: list[Instruction] = []
        for lease_id in lease_ids:
            if not self._tables.leases[lease_id].detached:
                out += self._ends.revoke(lease_id, reason)
        return out

    def _check_unstarted(self, client: Client) -> list[Instruction]:
        """Return instructions to forget leases that an absent client may never have used."""

        leases = (self._tables.leases[lease_id] for lease_id in client.leases)
        return [ToNode(one.node.node_id, ForgetUnstarted(one.lease_id)) for one in leases if one.numbers is None]


_ABSENT_KEPT = 10_000  # a node that missed its Bye, or was cut off, comes back within minutes
# seconds for an actor to finish its calls; one that takes longer is killed, as its owner had time to react
_GRACE_S = 10.0


@dataclass(slots=True)
class _Drain:
    request: DrainNode
    deadline: float | None
    is_done: bool = False  # only for the master's own node, whose drain does not end with its leaving


class Draining:
    """The nodes that are being drained.

    Args:
        tables: The master's tables.
        own_node_id: The node that the master runs in, which cannot leave.
    """

    def __init__(self, tables: ClusterTables, own_node_id: str) -> None:
        self._tables = tables
        self._own_node_id = own_node_id
        self._drains: dict[str, _Drain] = {}  # of nodes that are there
        self._absent: dict[str, _Drain] = {}  # of nodes that may come back

    def restore(self, drains: Iterable[DrainRecord]) -> None:
        """Take over the drains recorded by an earlier master."""
        for one in drains:
            deadline = None if one.until is None else self._tables.events.on_the_clock(one.until)
            self._absent[one.node_id] = _Drain(one.request, deadline)

    def requested(self, client_id: str, request: DrainNode, now: float) -> list[Instruction]:
        """Close a node; a second request for it sets a new deadline.

        Raises:
            RemoteError: There is no such node, or more than one of that name.
            RemoteProtocolError: The time is negative.
        """
        if request.timeout_s is not None and request.timeout_s < 0:
            raise RemoteProtocolError(f"timeout_s must be 0 or more, not {request.timeout_s}")
        node = self._node_called(request.node)
        deadline = None if request.timeout_s is None else now + request.timeout_s
        self._drains[node.node_id] = _Drain(request, deadline)
        until = None if deadline is None else self._tables.events.unix(deadline)
        self._tables.history.draining(DrainRecord(node.node_id, request, until))
        self._tables.pool.close(node)
        why = f": {request.reason}" if request.reason else ""
        self._tables.events.node(EventKind.NODE_DRAINING, node, f"is being drained{_with_actors(node)}{why}", now)
        leaves = node.node_id != self._own_node_id
        started = DrainStarted(request.request_id, node.node_id, node.name, len(node.leases), leaves)
        out: list[Instruction] = [ToClient(client_id, started)]
        owners: dict[str, list[str]] = {}
        for lease in self._leases_on(node):
            owners.setdefault(lease.client_id, []).append(lease.lease_id)
        for owner, lease_ids in owners.items():
            notice = NodeDraining(node.node_id, node.name, tuple(lease_ids), request.timeout_s, request.reason)
            out.append(ToClient(owner, notice))
        for lease in self._leases_on(node):
            if lease.may_restart:
                out += _ask_to_end(lease, request)
        return [*out, *self.due(now)]

    def rejoined(self, node: Node) -> None:
        """Close a node again that rejoined and was being drained."""
        if (drain := self._absent.pop(node.node_id, None)) is not None:
            self._drains[node.node_id] = drain
        if node.node_id in self._drains:
            self._tables.pool.close(node)

    def gone(self, node_id: str) -> None:
        """Suspend the drain of a node that was lost or released, until the node returns."""
        if (drain := self._drains.pop(node_id, None)) is not None:
            self._absent[node_id] = drain
        while len(self._absent) > _ABSENT_KEPT:
            del self._absent[next(iter(self._absent))]

    def due(self, now: float) -> list[Instruction]:
        """Request the end of actors on nodes past their deadline."""
        out: list[Instruction] = []
        for node_id, drain in self._drains.items():
            node = self._tables.pool.get(node_id)
            if node is not None and drain.deadline is not None and drain.deadline <= now:
                drain.deadline = None
                for lease in self._leases_on(node):
                    out += _ask_to_end(lease, drain.request)
        return out

    def next_deadline(self) -> float | None:
        """Return the next deadline of a node, or None."""
        return min((drain.deadline for drain in self._drains.values() if drain.deadline is not None), default=None)

    def note_own(self, now: float) -> None:
        """Add an event when the master's own node, which does not leave, has no actors left."""
        drain, node = self._drains.get(self._own_node_id), self._tables.pool.get(self._own_node_id)
        if drain is not None and node is not None and not drain.is_done and not node.leases:
            drain.is_done = True
            self._tables.events.node(EventKind.NODE_DRAINED, node, "is drained and stays: the master runs in it", now)

    def empty(self) -> list[Node]:
        """Return the drained nodes without actors, which may leave."""
        nodes = [self._tables.pool.get(node_id) for node_id in self._drains if node_id != self._own_node_id]
        return [node for node in nodes if node is not None and not node.leases]

    def let_go(self, node: Node) -> Instruction:
        """Return the Bye to a node, which ends its worker."""
        reason = self._drains[node.node_id].request.reason
        self.gone(node.node_id)
        return ToNode(node.node_id, Bye("it was drained" + (f": {reason}" if reason else "")))

    def _node_called(self, text: str) -> Node:
        found = self._tables.pool.called(text)
        if not found:
            names = ", ".join(f"{node.name} ({node.node_id})" for node in self._tables.pool) or "none"
            raise RemoteError(f"there is no node {text!r}; the cluster has: {names}")
        if len(found) > 1:
            ids = ", ".join(node.node_id for node in found)
            raise RemoteError(f"{len(found)} nodes are called {text!r}; name one by its id: {ids}")
        return found[0]

    def _leases_on(self, node: Node) -> list[Lease]:
        return [self._tables.leases[lease_id] for lease_id in node.leases]


def _ask_to_end(lease: Lease, request: DrainNode) -> list[Instruction]:
    if lease.ending is not None:
        return []
    lease.ending = EndActor(lease.lease_id, DeathKind.DRAINED, request.reason, _GRACE_S)
    return [ToNode(lease.node.node_id, lease.ending)]
