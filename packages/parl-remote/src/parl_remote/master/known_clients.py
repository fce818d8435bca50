"""Programs that come, break off, come back and go; their leases with them.

Hello --> here --its connection breaks--> away --comes back in time, says what it holds--> here
            `--Bye----> gone <--stays away-'
"""

from __future__ import annotations

from collections.abc import Iterable

from parl_remote.errors import RemoteProtocolError
from parl_remote.master.cluster_tables import Client, ClusterTables
from parl_remote.master.instructions import Instruction, ToNode
from parl_remote.master.lease_ends import LeaseEnds
from parl_remote.master.lease_grants import LeaseGrants

__all__ = ["KnownClients"]


class KnownClients:
    """What happens to programs.

    Args:
        tables: What the master knows.
        grants: Knows who waits.
        ends: Ends leases.
        grace_s: How long one that broke off may come back; 0 for not at all.
    """

    def __init__(self, tables: ClusterTables, grants: LeaseGrants, ends: LeaseEnds, *, grace_s: float) -> None:
        self._tables = tables
        self._grants = grants
        self._ends = ends
        self._grace_s = grace_s
        self._away: dict[str, float] = {}  # those that broke off, and until when they may come back

    def joined(self, client_id: str, name: str, pid: int, now: float, host_id: str) -> None:
        """See `ClusterState.client_joined`."""
        before = self._tables.clients.get(client_id)
        if before is not None and not before.is_absent:
            raise RemoteProtocolError(f"a client with id {client_id} is already connected")
        self._away.pop(client_id, None)
        leases = before.leases if before is not None else {}
        self._tables.clients[client_id] = Client(client_id, name, pid, host_id, now, leases)

    def away(self, client_id: str, now: float) -> list[Instruction]:
        """See `ClusterState.client_away`."""
        client = self._tables.clients.get(client_id)
        if client is None:
            return []
        if not client.leases or not self._grace_s:
            return self.lost(client_id)
        self._grants.given_up(client_id)
        client.is_absent = True
        self._away[client_id] = now + self._grace_s
        return self._check_unstarted(client)

    def holds(self, client_id: str, held: Iterable[str]) -> list[Instruction]:
        """See `ClusterState.client_holds`."""
        client = self._tables.clients.get(client_id)
        unknown = set(client.leases).difference(held) if client is not None else set()
        return self._end(sorted(unknown), "its owner does not know of it")

    def lost(self, client_id: str) -> list[Instruction]:
        """See `ClusterState.client_lost`."""
        self._away.pop(client_id, None)
        client = self._tables.clients.get(client_id)
        if client is None:
            return []
        self._grants.given_up(client_id)
        revoked = self._end(list(client.leases), "the program that owned it is gone")
        self._tables.clients.pop(client_id, None)
        self._tables.names.forget_client(client_id)
        self._tables.will_not_come_back(client_id)
        return revoked

    def out_of_time(self, now: float) -> list[Instruction]:
        """Give up those that have been away for too long."""
        gone = [client_id for client_id, until in self._away.items() if until <= now]
        return [instruction for client_id in gone for instruction in self.lost(client_id)]

    def next_deadline(self) -> float | None:
        """When the next one is given up."""
        return min(self._away.values(), default=None)

    def _end(self, lease_ids: Iterable[str], reason: str) -> list[Instruction]:
        out: list[Instruction] = []
        for lease_id in lease_ids:
            if not self._tables.leases[lease_id].detached:
                out += self._ends.revoke(lease_id, reason)
        return out

    def _check_unstarted(self, client: Client) -> list[Instruction]:
        """Room of a client that is away and may never have come to its workers is not kept for it."""
        from parl_remote.messages.overview import ForgetUnstarted

        leases = (self._tables.leases[lease_id] for lease_id in client.leases)
        return [ToNode(one.node.node_id, ForgetUnstarted(one.lease_id)) for one in leases if one.numbers is None]
