"""Nodes that shall leave: no more actors there, owners are told, and what still runs when the time is up is ended.

    up --drain--> draining --the time is up--> its actors are asked to end --the last one has ended--> it is let go
                      `-------------------------- the last one has ended ----------------------------^

Actors whose owners make them again (`max_restarts`) are asked to end at once: they begin anew somewhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

from parl_remote.death import DeathKind
from parl_remote.errors import RemoteError, RemoteProtocolError
from parl_remote.master.cluster_tables import ClusterTables, Lease
from parl_remote.master.instructions import Instruction, ToClient, ToNode
from parl_remote.master.node_pool import Node
from parl_remote.messages import Bye
from parl_remote.messages.overview import DrainNode, DrainStarted, EndActor, NodeDraining

__all__ = ["Draining"]

_GRACE_S = 10.0  # to finish what an actor was sent; what takes longer is killed, as the caller has said enough by then


@dataclass(slots=True)
class _Drain:
    request: DrainNode
    deadline: float | None


class Draining:
    """All nodes that are being drained.

    Args:
        tables: What the master knows.
        own_node_id: The node that the master runs in, which cannot leave.
    """

    def __init__(self, tables: ClusterTables, own_node_id: str) -> None:
        self._tables = tables
        self._own_node_id = own_node_id
        self._drains: dict[str, _Drain] = {}

    def requested(self, client_id: str, request: DrainNode, now: float) -> list[Instruction]:
        """Close a node. A second request for it sets its time anew.

        Raises:
            RemoteError: There is no such node, or more than one of that name.
            RemoteProtocolError: The time makes no sense.
        """
        if request.timeout_s is not None and request.timeout_s < 0:
            raise RemoteProtocolError(f"timeout_s must be 0 or more, not {request.timeout_s}")
        node = self._node_called(request.node)
        deadline = None if request.timeout_s is None else now + request.timeout_s
        self._drains[node.node_id] = _Drain(request, deadline)
        self._tables.pool.close(node)
        leaves = node.node_id != self._own_node_id
        started = DrainStarted(request.request_id, node.node_id, node.name, len(node.leases), leaves)
        out: list[Instruction] = [ToClient(client_id, started)]
        owners: dict[str, list[str]] = {}
        for lease in self._leases_on(node):
            owners.setdefault(lease.client_id, []).append(lease.lease_id)
        for owner, lease_ids in owners.items():
            told = NodeDraining(node.node_id, node.name, tuple(lease_ids), request.timeout_s, request.reason)
            out.append(ToClient(owner, told))
        for lease in self._leases_on(node):
            if lease.may_come_back:
                out += _ask_to_end(lease, request)
        return [*out, *self.due(now)]

    def came_back(self, node: Node) -> None:
        """A node joined again that is still to be drained."""
        if node.node_id in self._drains:
            self._tables.pool.close(node)

    def forget(self, node_id: str) -> None:
        """A node is gone."""
        self._drains.pop(node_id, None)

    def due(self, now: float) -> list[Instruction]:
        """Ask the actors of nodes whose time is up to end."""
        out: list[Instruction] = []
        for node_id, drain in self._drains.items():
            node = self._tables.pool.get(node_id)
            if node is not None and drain.deadline is not None and drain.deadline <= now:
                drain.deadline = None
                for lease in self._leases_on(node):
                    out += _ask_to_end(lease, drain.request)
        return out

    def next_deadline(self) -> float | None:
        """When the next node's time is up."""
        return min((drain.deadline for drain in self._drains.values() if drain.deadline is not None), default=None)

    def empty(self) -> list[Node]:
        """Nodes that have no actors any more and may leave."""
        nodes = [self._tables.pool.get(node_id) for node_id in self._drains if node_id != self._own_node_id]
        return [node for node in nodes if node is not None and not node.leases]

    def let_go(self, node: Node) -> Instruction:
        """The goodbye to a node, which ends its worker."""
        reason = self._drains.pop(node.node_id).request.reason
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
    if lease.is_ending:
        return []
    lease.is_ending = True
    return [ToNode(lease.node.node_id, EndActor(lease.lease_id, DeathKind.DRAINED, request.reason, _GRACE_S))]
