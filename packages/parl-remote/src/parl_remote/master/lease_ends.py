"""How leases end, and who is told: owner, worker, the log of deaths, and whoever wanted it so.

its owner lets go, or is gone   -> LeaseRevoked to the worker; room free at once, the end recorded when it comes
its actor ends on its worker    -> LeaseLost to the owner
somebody wants it killed        -> EndActor to the worker, and ActorKilled to the asker once it has ended
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import RemoteError
from parl_remote.master.cluster_tables import ClusterTables, Lease
from parl_remote.master.instructions import Instruction, ToClient, ToNode
from parl_remote.messages import LeaseLost, LeaseRevoked

if TYPE_CHECKING:
    from parl_remote.messages.overview import KillActor

__all__ = ["LeaseEnds"]

_LEAVING_KEPT = 10_000


class LeaseEnds:
    """Ends of leases.

    Args:
        tables: What the master knows.
    """

    def __init__(self, tables: ClusterTables) -> None:
        self._tables = tables
        self._leaving: dict[str, Lease] = {}  # free already, and their workers have yet to say how their actors ended
        self._kills: dict[str, list[tuple[str, int]]] = {}  # by lease: who wants to know when it has ended

    def revoke(self, lease_id: str, reason: str) -> list[Instruction]:
        """Its client needs a lease no more."""
        lease = self._tables.free(lease_id)
        self._leaving[lease_id] = lease
        if len(self._leaving) > _LEAVING_KEPT:
            del self._leaving[next(iter(self._leaving))]
        revoked = ToNode(lease.node.node_id, LeaseRevoked(lease_id, reason))
        return [revoked, *self._answer_kills(lease, DeathCause(DeathKind.RELEASED, detail=reason))]

    def lose(self, lease_id: str, cause: DeathCause) -> list[Instruction]:
        """A lease is gone, and its client has to be told."""
        lease = self._tables.free(lease_id, cause)
        return [ToClient(lease.client_id, LeaseLost(lease_id, cause)), *self._answer_kills(lease, cause)]

    def reported(self, node_id: str, lease_id: str, cause: DeathCause) -> list[Instruction]:
        """An actor ended on its worker; one of another node is ignored, and one that was released is only recorded."""
        left = self._leaving.get(lease_id)
        if left is not None and left.node.node_id == node_id:
            del self._leaving[lease_id]
            self._tables.deaths.add(self._tables.record_of(left, cause))
        lease = self._tables.leases.get(lease_id)
        return self.lose(lease_id, cause) if lease is not None and lease.node.node_id == node_id else []

    def kill(self, client_id: str, asked: KillActor) -> list[Instruction]:
        """Somebody wants an actor ended; the answer comes once it has.

        Raises:
            RemoteError: There is no such actor.
        """
        from parl_remote.messages.overview import EndActor

        lease = self._tables.called(asked.actor)
        if lease is None:
            raise RemoteError(f"there is no actor {asked.actor!r}; `xparl list` shows those that there are")
        self._kills.setdefault(lease.lease_id, []).append((client_id, asked.request_id))
        lease.is_ending = True
        detail = f"by {self._tables.owner_of(client_id)}" + (f", {asked.reason}" if asked.reason else "")
        return [ToNode(lease.node.node_id, EndActor(lease.lease_id, DeathKind.KILLED_BY_USER, detail))]

    def _answer_kills(self, lease: Lease, cause: DeathCause) -> list[Instruction]:
        asked = self._kills.pop(lease.lease_id, None)
        if asked is None:
            return []
        from parl_remote.messages.overview import ActorKilled

        record = self._tables.record_of(lease, cause)
        return [ToClient(client_id, ActorKilled(request_id, record)) for client_id, request_id in asked]
