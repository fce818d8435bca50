"""Nodes that come, live and go, and what they bring along.

    NodeJoin --> a node, its running leases taken in --heartbeats--> alive --silence, a broken connection--> lost
                                                                              `- its leases are lost with it

A node that comes back keeps what it brings, unless somebody was told already that it is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import RemoteProtocolError
from parl_remote.master.cluster_tables import Client, ClusterTables, Lease
from parl_remote.master.instructions import Instruction, ToNode
from parl_remote.master.lease_ends import LeaseEnds
from parl_remote.master.node_pool import Node
from parl_remote.messages import Heartbeat, LeaseRevoked, NodeJoin, RunningLease
from parl_remote.resources import Resources

if TYPE_CHECKING:
    from parl_remote.messages.overview import ActorNumbers

__all__ = ["KnownNodes"]

_LOST_LEASES_KEPT = 10_000  # a node that was cut off comes back within minutes, with what it had then


class KnownNodes:
    """What happens to nodes.

    Args:
        tables: What the master knows.
        ends: Ends leases.
        epoch: Unix time of the loop's zero, for records of deaths.
    """

    def __init__(self, tables: ClusterTables, ends: LeaseEnds, *, epoch: float) -> None:
        self._tables = tables
        self._ends = ends
        self._epoch = epoch
        self._lost_leases: dict[str, None] = {}  # declared lost with their node: must not come back with it

    def joined(
        self, joined: NodeJoin, now: float, pid: int, versions: Mapping[str, str]
    ) -> tuple[Node, list[Instruction]]:
        """See `ClusterState.node_joined`."""
        brought = {lease.lease_id: lease for lease in joined.leases}
        if not joined.resources.fits(_sum(lease.resources for lease in brought.values())):
            raise RemoteProtocolError(f"{joined.node_id} brings leases for more than the {joined.resources} it offers")
        if joined.gpus and len(joined.gpus) != joined.resources.gpu:
            raise RemoteProtocolError(f"{joined.node_id} offers {joined.resources.gpu:g} GPU and names {joined.gpus}")
        out: list[Instruction] = []
        if known := self._tables.pool.get(joined.node_id):
            kept = known.leases.keys() & brought.keys()
            out += self.forget(known, "its worker came back without it", now, keep=kept)
        node = Node(joined, now, pid, versions)
        self._tables.pool.add(node)
        self._tables.alive.heard(joined.node_id, now)
        for lease in brought.values():
            out += self._take_in(node, lease, now)
        return node, out

    def alive(self, node_id: str, beat: Heartbeat, now: float) -> None:
        """A worker gave a sign of life; unknown ones are ignored."""
        if node := self._tables.pool.get(node_id):
            node.beat = beat
            self._tables.alive.heard(node_id, now)

    def counted(self, node_id: str, numbers: Iterable[ActorNumbers]) -> None:
        """A worker says what its actors do; actors that are not there any more are ignored."""
        for one in numbers:
            lease = self._tables.leases.get(one.lease_id)
            if lease is not None and lease.node.node_id == node_id:
                lease.numbers = one

    def forget(self, node: Node, reason: str, now: float, keep: Iterable[str] = ()) -> list[Instruction]:
        """Remove a node; leases in `keep` vanish silently, because the caller records them anew."""
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

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _cause(self, node: Node, lease: Lease, reason: str, now: float) -> DeathCause:
        numbers = lease.numbers
        return DeathCause(
            DeathKind.NODE_LOST,
            detail=f"{node.name}: {reason}",
            last_call=numbers.busy_with if numbers is not None else "",
            node=node.name,
            pid=numbers.pid if numbers is not None else 0,
            at=round(self._epoch + now, 3),
            lease_id=lease.lease_id,
            class_name=lease.class_name,
            name=lease.actor_name,
            restarts=lease.restarts,
        )

    def _take_in(self, node: Node, brought: RunningLease, now: float) -> list[Instruction]:
        """Adopt a lease that runs on a joining node, unless its owner was already told that it is lost.

        The owner may not be connected here, but it is to the worker, which reports the lease's end when that breaks.
        """
        tables = self._tables
        if brought.lease_id in self._lost_leases or brought.lease_id in tables.leases:
            return [ToNode(node.node_id, LeaseRevoked(brought.lease_id, "it was reported as lost"))]
        if brought.client_id not in tables.clients:
            tables.clients[brought.client_id] = Client(brought.client_id, since=now, is_absent=True)
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


def _sum(amounts: Iterable[Resources]) -> Resources:
    total = Resources()
    for amount in amounts:
        total += amount
    return total
