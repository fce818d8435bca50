"""Who looks for an actor that is not there yet: it waits for room, or is about to be made again.

FindActor --there is one--> ActorFound
          --its name is taken, and nobody there--> waits --granted--> ActorFound
                                                         --the name is free again--> Failed
          --nobody has the name--> RemoteError
"""

from __future__ import annotations

import difflib

from parl_remote.errors import RemoteError
from parl_remote.master.cluster_tables import ClusterTables, Lease
from parl_remote.master.instructions import Instruction, ToClient
from parl_remote.messages import Failed
from parl_remote.messages.naming import ActorFound, FindActor

__all__ = ["ActorFinders"]


class ActorFinders:
    """Questions after actors that are open.

    Args:
        tables: What the master knows.
    """

    def __init__(self, tables: ClusterTables) -> None:
        self._tables = tables
        self._waiting: dict[str, list[tuple[str, int]]] = {}

    def ask(self, client_id: str, asked: FindActor) -> list[Instruction]:
        """Answer at once if that is possible.

        Raises:
            RemoteError: There is no such actor, and none will be.
        """
        sought = asked.actor_name or asked.lease_id
        lease = self._tables.called(sought)
        if lease is not None:
            return [_found(client_id, asked.request_id, lease)]
        if not self._is_expected(sought):
            raise RemoteError(self._nobody(sought))
        self._waiting.setdefault(sought, []).append((client_id, asked.request_id))
        return []

    def settle(self) -> list[Instruction]:
        """Answer those for whom something has changed."""
        out: list[Instruction] = []
        for sought in list(self._waiting):
            lease = self._tables.called(sought)
            if lease is None and self._is_expected(sought):
                continue
            for client_id, request_id in self._waiting.pop(sought):
                if lease is not None:
                    out.append(_found(client_id, request_id, lease))
                else:
                    out.append(ToClient(client_id, Failed(request_id, self._nobody(sought))))
        return out

    def _is_expected(self, sought: str) -> bool:
        return self._tables.names.get(sought) is not None or self._tables.is_coming_back(sought)

    def _nobody(self, sought: str) -> str:
        names = self._tables.names.all()
        near = difflib.get_close_matches(sought, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the cluster has {len(names)} named actors (`xparl list`)"
        return f"there is no actor called {sought!r}; {hint}"


def _found(client_id: str, request_id: int, lease: Lease) -> Instruction:
    at = lease.node.joined
    found = ActorFound(request_id, lease.lease_id, at.node_id, at.addresses, at.socket_dir, at.host_id)
    return ToClient(client_id, found)
