"""Lease requests and their outcomes, the ends of leases and their notifications, and look-ups of actors.

LeaseRequest --fits now--> LeaseAssigned to the worker, LeaseGranted to the client
             --too large-> the queue --fits--> the same
                              `- out of time, or hopeless, or its name is taken --> LeaseRefused

             `- workers of functions hold what it waits for -> LeaseWanted to the client that has most of them

its owner releases it, or ends  -> LeaseRevoked to the worker; resources free at once, the end recorded when reported
its actor ends on its worker    -> LeaseLost to the owner
a client wants it killed        -> EndActor to the worker, and ActorKilled to the client once it has ended; between
                                   two attempts to restart it, this waits for the next one

Look-ups of actors that wait for resources, or are about to be restarted, are answered here as well.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from parl_remote._master.cluster_tables import ClusterTables, Instruction, Lease, ToClient, ToNode
from parl_remote._master.placement import Node, Waiting, next_placement, reasons
from parl_remote._messages import (
    Failed,
    LeaseAssigned,
    LeaseGranted,
    LeaseLost,
    LeaseRefused,
    LeaseRequest,
    LeaseRevoked,
    LeaseWanted,
    RefusalCode,
)
from parl_remote._messages.leases import FUNCTION_WORKER
from parl_remote._messages.overview import ActorKilled, DeathRecord, EndActor, KillActor
from parl_remote._messages.parts import ActorFound, FindActor
from parl_remote.errors import DeathCause, DeathKind, RemoteError, RemoteProtocolError

__all__ = ["ActorFinders", "LeaseEnds", "LeaseGrants"]


class LeaseGrants:
    """Handles lease requests.

    Args:
        tables: The master's tables.
        new_lease_id: Returns a fresh id.
        nodes_may_join: Whether a request that no present node can hold may wait for a node that can.
    """

    def __init__(self, tables: ClusterTables, new_lease_id: Callable[[], str], *, nodes_may_join: bool) -> None:
        self._tables = tables
        self._new_lease_id = new_lease_id
        self._nodes_may_join = nodes_may_join

    def requested(self, client_id: str, request: LeaseRequest, now: float) -> list[Instruction]:
        """Grant a client's request for resources, queue it, or refuse it with the reason."""
        tables = self._tables
        if (client_id, request.request_id) in tables.queue:
            raise RemoteProtocolError(f"request_id {request.request_id} is already waiting")
        if request.timeout_s is not None and request.timeout_s < 0:
            raise RemoteProtocolError(f"timeout_s must be 0 or more, not {request.timeout_s}")
        if tables.names.conflicting_holder(client_id, request) is not None:
            return [ToClient(client_id, self._name_taken(request))]
        waiting = tables.queue.add(client_id, request, now)
        tables.names.request(client_id, request)
        out = self.place_waiting(now)
        if waiting.gone:
            return out
        hopeless = not self._nodes_may_join and not tables.pool.could_hold(waiting.shape)
        if hopeless or request.timeout_s == 0:
            out.append(self._refuse(waiting))  # requests behind it have their turn with the next placing
        return out

    def cancelled(self, client_id: str, request_id: int) -> list[Instruction]:
        """Withdraw a request; a grant that is on its way stands."""
        waiting = self._tables.queue.remove((client_id, request_id))
        if waiting is None:
            return []
        self._tables.names.give_up(client_id, waiting.request)
        return [ToClient(client_id, LeaseRefused(request_id, RefusalCode.CANCELLED, "the request was cancelled"))]

    def refuse_restart(self, lost_lease_id: str, killed: str) -> list[Instruction]:
        """Refuse the request that waits to restart a lost actor.

        Args:
            lost_lease_id: The lease of that actor.
            killed: By whom it was killed, and the reason.
        """
        out: list[Instruction] = []
        for waiting in self._tables.queue:
            if waiting.request.replaces == lost_lease_id:
                self._tables.queue.remove(waiting.key)
                self._tables.names.give_up(waiting.client_id, waiting.request)
                refused = LeaseRefused(waiting.request.request_id, RefusalCode.KILLED, killed)
                out.append(ToClient(waiting.client_id, refused))
        return out

    def given_up(self, client_id: str) -> None:
        """Withdraw all requests of a client that is gone."""
        for waiting in self._tables.queue.remove_client(client_id):
            self._tables.names.give_up(client_id, waiting.request)

    def expire(self, now: float) -> list[Instruction]:
        """Refuse the requests past their deadlines."""
        return [self._refuse(waiting) for waiting in self._tables.queue.due(now)]

    def place_waiting(self, now: float) -> list[Instruction]:
        """Grant free resources to the requests whose turn it is."""
        out: list[Instruction] = []
        while choice := next_placement(self._tables.pool, self._tables.queue):
            out += self._grant(*choice, now)
        if self._tables.function_workers:
            for waiting in self._tables.queue.heads():
                out += self._ask_for_one(waiting)
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
            replaces=request.replaces,
            since=now,
        )
        tables.record(lease)
        tables.names.assign(lease.actor_name, client_id, lease.lease_id)
        if request.replaces:
            tables.replace(request.replaces, lease.lease_id)
            tables.note_restart(request.replaces, lease, now)
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

    def _ask_for_one(self, waiting: Waiting) -> list[Instruction]:
        """Request a worker that has what a request waits for from the client with the most workers of functions.

        Each client keeps one worker. If the requesting client runs functions as well, it gets no more workers than the
        other client keeps.
        """
        tables, request, shape = self._tables, waiting.request, waiting.shape
        if waiting.wants in tables.leases or not tables.pool.could_hold(shape):
            return []
        kinds, _ = tables.pool.awaited(shape)
        nodes = tables.pool.called(shape.node) if shape.node else tables.pool
        fitting = {node.node_id for node in nodes if node.total.fits(shape.resources)}
        of: dict[str, list[Lease]] = {}
        for lease in tables.function_workers.values():
            if not lease.is_wanted and lease.node.node_id in fitting and lease.resources.kinds().intersection(kinds):
                of.setdefault(lease.client_id, []).append(lease)
        own = len(of.pop(waiting.client_id, ())) * (request.class_name == FUNCTION_WORKER)
        most = max(of.values(), key=len, default=[])
        # it does not wait, so there is nothing to compare
        if len(most) < own + 2 or (request.timeout_s == 0 and not own):
            return []
        lease = most[-1]
        lease.is_wanted, waiting.wants = True, lease.lease_id
        return [ToClient(lease.client_id, LeaseWanted(lease.lease_id))]

    def _refuse(self, waiting: Waiting) -> Instruction:
        """Take a request out of the queue and return its refusal with the reason."""
        request, pool, queue = waiting.request, self._tables.pool, self._tables.queue
        possible = pool.could_hold(waiting.shape)
        why = reasons(pool, queue)[waiting.shape]
        queue.remove(waiting.key)
        self._tables.names.give_up(waiting.client_id, request)
        code = RefusalCode.TIMEOUT if possible else RefusalCode.TOO_LARGE
        count = len(pool)
        total, free = pool.amounts()
        kinds = request.resources.kinds() or total.kinds()
        total, free = total.only(kinds), free.only(kinds)
        available = f"{total} on {count} node{'s' * (count != 1)}, {free} free"
        needs = request.resources.as_request()
        reason = f"{request.class_name or 'an actor'} asked for {needs}; the cluster has {available}; {why}"
        if possible and request.timeout_s:
            reason += f"; nothing became free within {request.timeout_s:g} s"
        return ToClient(
            waiting.client_id, LeaseRefused(request.request_id, code, reason, str(request.resources), available)
        )

    def _name_taken(self, request: LeaseRequest) -> LeaseRefused:
        lease = self._tables.called(request.actor_name)
        holder = self._tables.names.get(request.actor_name)
        owner = self._tables.owner_of(holder.client_id) if holder is not None else ""
        what = f"the {lease.class_name or 'actor'} {lease.lease_id}" if lease else "an actor that waits for resources"
        reason = (
            f"the name {request.actor_name!r} is taken by {what}{f' of {owner}' if owner else ''}; "
            f"choose another, or use that one: parl.get_actor({request.actor_name!r})"
        )
        return LeaseRefused(request.request_id, RefusalCode.NAME_TAKEN, reason, str(request.resources))


class _Lookup(NamedTuple):
    """A pending look-up.

    Attributes:
        client_id: The client that asked.
        request_id: The client's number for it.
        until: The time until which the client waits.
    """

    client_id: str
    request_id: int
    until: float


class ActorFinders:
    """The pending look-ups of actors.

    Args:
        tables: The master's tables.
    """

    def __init__(self, tables: ClusterTables) -> None:
        self._tables = tables
        self._waiting: dict[str, list[_Lookup]] = {}

    def request(self, client_id: str, asked: FindActor, now: float) -> list[Instruction]:
        """Answer a look-up at once if possible, else queue it.

        Raises:
            RemoteError: There is no such actor, and none is expected.
        """
        sought = asked.actor_name or asked.lease_id
        lease = self._tables.called(sought)
        if lease is not None:
            return [_found(client_id, asked.request_id, lease)]
        if not self._is_expected(sought):
            raise RemoteError(self._not_found(sought))
        clients = self._tables.clients
        waiting = [one for one in self._waiting.get(sought, ()) if one.until >= now and one.client_id in clients]
        until = inf if asked.timeout_s is None else now + asked.timeout_s
        self._waiting[sought] = [*waiting, _Lookup(client_id, asked.request_id, until)]
        return []

    def settle(self) -> list[Instruction]:
        """Answer the look-ups whose outcome is known now."""
        out: list[Instruction] = []
        for sought in list(self._waiting):
            lease = self._tables.called(sought)
            if lease is None and self._is_expected(sought):
                continue
            for client_id, request_id, _ in self._waiting.pop(sought):
                if lease is not None:
                    out.append(_found(client_id, request_id, lease))
                else:
                    out.append(ToClient(client_id, Failed(request_id, self._not_found(sought))))
        return out

    def _is_expected(self, sought: str) -> bool:
        return self._tables.names.get(sought) is not None or self._tables.is_restarting(sought)

    def _not_found(self, sought: str) -> str:
        names = self._tables.names.all()
        near = difflib.get_close_matches(sought, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"named actors of the cluster: {len(names)} (`xparl list`)"
        return f"there is no actor called {sought!r}; {hint}"


def _found(client_id: str, request_id: int, lease: Lease) -> Instruction:
    at = lease.node.joined
    found = ActorFound(request_id, lease.lease_id, at.node_id, at.addresses, at.socket_dir, at.host_id)
    return ToClient(client_id, found)


_LEAVING_KEPT = 10_000


class LeaseEnds:
    """Handles the ends of leases.

    Args:
        tables: The master's tables.
        refuse_restart: See `LeaseGrants.refuse_restart`.
    """

    def __init__(self, tables: ClusterTables, refuse_restart: Callable[[str, str], list[Instruction]]) -> None:
        self._tables = tables
        self._refuse_restart = refuse_restart
        self._leaving: dict[str, Lease] = {}  # free already; their workers have yet to report how their actors ended
        self._kills: dict[str, list[tuple[str, int]]] = {}  # by lease: clients to notify of its end
        # Of actors that are being restarted but have no lease now, with the records of their loss.
        self._early_kills: list[tuple[str, KillActor, DeathRecord]] = []

    def revoke(self, lease_id: str, reason: str) -> list[Instruction]:
        """End a lease that its client no longer needs."""
        lease = self._tables.free(lease_id)
        self._leaving[lease_id] = lease
        if len(self._leaving) > _LEAVING_KEPT:
            del self._leaving[next(iter(self._leaving))]
        lease.ending = LeaseRevoked(lease_id, reason)
        revoked = ToNode(lease.node.node_id, lease.ending)
        return [revoked, *self._answer_kills(lease, DeathCause(DeathKind.RELEASED, detail=reason))]

    def left(self, lease_id: str) -> Lease | None:
        """Return a revoked lease whose worker has yet to report the end of its actor."""
        return self._leaving.get(lease_id)

    def lose(self, lease_id: str, cause: DeathCause) -> list[Instruction]:
        """End a lease that is lost, and notify its client."""
        lease = self._tables.free(lease_id, cause)
        return [ToClient(lease.client_id, LeaseLost(lease_id, cause)), *self._answer_kills(lease, cause)]

    def reported(self, node_id: str, lease_id: str, cause: DeathCause) -> list[Instruction]:
        """Handle a reported end of an actor: record that of a released actor, and ignore reports by other nodes."""
        left = self._leaving.get(lease_id)
        if left is not None and left.node.node_id == node_id:
            del self._leaving[lease_id]
            self._tables.deaths.add(self._tables.record_of(left, cause))
        lease = self._tables.leases.get(lease_id)
        return self.lose(lease_id, cause) if lease is not None and lease.node.node_id == node_id else []

    def kill(self, client_id: str, asked: KillActor) -> list[Instruction]:
        """End an actor, or its restart; the answer follows when it has ended.

        Raises:
            RemoteError: There is no such actor.
        """
        lease = self._tables.called(asked.actor)
        if lease is not None:
            return self._kill(lease, client_id, asked)
        lost = self._tables.lost_record(asked.actor)
        if lost is None:
            raise RemoteError(f"there is no actor {asked.actor!r}; `xparl list` shows those that there are")
        self._early_kills.append((client_id, asked, lost))
        return []

    def _kill(self, lease: Lease, client_id: str, asked: KillActor) -> list[Instruction]:
        self._kills.setdefault(lease.lease_id, []).append((client_id, asked.request_id))
        lease.ending = EndActor(lease.lease_id, DeathKind.KILLED_BY_USER, self._by(client_id, asked))
        return [ToNode(lease.node.node_id, lease.ending)]

    def _by(self, client_id: str, asked: KillActor) -> str:
        return f"by {self._tables.owner_of(client_id)}" + (f", {asked.reason}" if asked.reason else "")

    def settle(self) -> list[Instruction]:
        """End the restarts of actors to be killed: those that wait for resources, and those that have begun."""
        out: list[Instruction] = []
        early, self._early_kills = self._early_kills, []
        for client_id, asked, lost in early:
            lease = self._tables.called(lost.lease_id)
            if lease is not None:
                out += self._kill(lease, client_id, asked)
            elif self._tables.is_restarting(lost.lease_id):
                self._early_kills.append((client_id, asked, lost))
                out += self._refuse_restart(lost.lease_id, self._by(client_id, asked))
            else:
                out.append(ToClient(client_id, ActorKilled(asked.request_id, lost)))
        return out

    def _answer_kills(self, lease: Lease, cause: DeathCause) -> list[Instruction]:
        asked = self._kills.pop(lease.lease_id, None)
        if asked is None:
            return []

        record = self._tables.record_of(lease, cause)
        return [ToClient(client_id, ActorKilled(request_id, record)) for client_id, request_id in asked]
