"""How requests for room become leases, or are refused with the reason.

LeaseRequest --room now--> LeaseAssigned to the worker, LeaseGranted to the client
             --no room---> the queue --room--> the same
                              `- out of time, or hopeless, or its name is taken --> LeaseRefused
"""

from __future__ import annotations

from collections.abc import Callable

from parl_remote.errors import RemoteProtocolError
from parl_remote.master.cluster_tables import ClusterTables, Lease
from parl_remote.master.instructions import Instruction, ToClient, ToNode
from parl_remote.master.lease_queue import Waiting
from parl_remote.master.node_pool import Node
from parl_remote.master.placing import next_placement, reasons
from parl_remote.messages import LeaseAssigned, LeaseGranted, LeaseRefused, LeaseRequest, RefusalCode

__all__ = ["LeaseGrants"]


class LeaseGrants:
    """Requests and their answers.

    Args:
        tables: What the master knows.
        new_lease_id: Makes a fresh id.
        nodes_may_join: Whether what no present node can hold may wait for one that can.
    """

    def __init__(self, tables: ClusterTables, new_lease_id: Callable[[], str], *, nodes_may_join: bool) -> None:
        self._tables = tables
        self._new_lease_id = new_lease_id
        self._nodes_may_join = nodes_may_join

    def requested(self, client_id: str, request: LeaseRequest, now: float) -> list[Instruction]:
        """See `ClusterState.lease_requested`."""
        tables = self._tables
        if (client_id, request.request_id) in tables.queue:
            raise RemoteProtocolError(f"request_id {request.request_id} is already waiting")
        if request.timeout_s is not None and request.timeout_s < 0:
            raise RemoteProtocolError(f"timeout_s must be 0 or more, not {request.timeout_s}")
        if tables.names.in_the_way_of(client_id, request) is not None:
            return [ToClient(client_id, self._name_taken(request))]
        waiting = tables.queue.add(client_id, request, now)
        tables.names.ask(client_id, request)
        out = self.place_waiting(now)
        if waiting.gone:
            return out
        hopeless = not self._nodes_may_join and not tables.pool.could_hold(waiting.shape)
        if hopeless or request.timeout_s == 0:
            out.append(self._refuse(waiting))  # who was behind it has its turn with the next placing
        return out

    def cancelled(self, client_id: str, request_id: int) -> list[Instruction]:
        """See `ClusterState.lease_cancelled`."""
        waiting = self._tables.queue.remove((client_id, request_id))
        if waiting is None:
            return []
        self._tables.names.give_up(client_id, waiting.request)
        return [ToClient(client_id, LeaseRefused(request_id, RefusalCode.CANCELLED, "the request was cancelled"))]

    def given_up(self, client_id: str) -> None:
        """A client that is gone waits for nothing."""
        for waiting in self._tables.queue.remove_client(client_id):
            self._tables.names.give_up(client_id, waiting.request)

    def out_of_time(self, now: float) -> list[Instruction]:
        """Refuse what has waited for as long as it was willing to."""
        return [self._refuse(waiting) for waiting in self._tables.queue.due(now)]

    def place_waiting(self, now: float) -> list[Instruction]:
        """Give what is free to those whose turn it is."""
        out: list[Instruction] = []
        while choice := next_placement(self._tables.pool, self._tables.queue):
            out += self._grant(*choice, now)
        return out

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _grant(self, waiting: Waiting, node: Node, now: float) -> list[Instruction]:
        request, client_id, tables = waiting.request, waiting.client_id, self._tables
        tables.queue.remove(waiting.key)
        lease = Lease(
            lease_id=self._new_lease_id(),
            client_id=client_id,
            node=node,
            resources=request.resources,
            class_name=request.class_name,
            actor_name=request.actor_name,
            detached=request.detached,
            restarts=request.restarts,
            max_restarts=request.max_restarts,
            since=now,
        )
        tables.record(lease)
        tables.names.assign(lease.actor_name, client_id, lease.lease_id)
        if request.replaces:
            tables.replace(request.replaces, lease.lease_id)
        at = node.joined
        assigned = LeaseAssigned(
            lease_id=lease.lease_id,
            client_id=client_id,
            resources=lease.resources,
            class_name=lease.class_name,
            actor_name=lease.actor_name,
            detached=lease.detached,
            restarts=lease.restarts,
            max_restarts=lease.max_restarts,
            gpus=lease.gpus,
        )
        granted = LeaseGranted(
            request.request_id, lease.lease_id, node.node_id, at.addresses, at.socket_dir, at.host_id
        )
        return [ToNode(node.node_id, assigned), ToClient(client_id, granted)]

    def _refuse(self, waiting: Waiting) -> Instruction:
        """Take a request out of the queue and say why it got nothing."""
        request, pool, queue = waiting.request, self._tables.pool, self._tables.queue
        possible = pool.could_hold(waiting.shape)
        why = reasons(pool, queue)[waiting.shape]
        queue.remove(waiting.key)
        self._tables.names.give_up(waiting.client_id, request)
        code = RefusalCode.TIMEOUT if possible else RefusalCode.TOO_LARGE
        count = len(pool)
        kinds = request.resources.kinds() or pool.total.kinds()
        total, free = pool.total.only(kinds), pool.free.only(kinds)
        available = f"{total} on {count} node{'s' * (count != 1)}, {free} free"
        reason = f"{request.class_name or 'an actor'} asked for {request.resources}; the cluster has {available}; {why}"
        if possible and request.timeout_s:
            reason += f"; nothing became free within {request.timeout_s:g} s"
        return ToClient(
            waiting.client_id, LeaseRefused(request.request_id, code, reason, str(request.resources), available)
        )

    def _name_taken(self, request: LeaseRequest) -> LeaseRefused:
        lease = self._tables.called(request.actor_name)
        holder = self._tables.names.get(request.actor_name)
        owner = self._tables.owner_of(holder.client_id) if holder is not None else ""
        what = f"the {lease.class_name or 'actor'} {lease.lease_id}" if lease else "an actor that waits for room"
        reason = (
            f"the name {request.actor_name!r} is taken by {what}{f' of {owner}' if owner else ''}; "
            f"choose another, or use that one: parl.get_actor({request.actor_name!r})"
        )
        return LeaseRefused(request.request_id, RefusalCode.NAME_TAKEN, reason, str(request.resources))
