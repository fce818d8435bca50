r"""What the master decides about nodes, clients, leases and who waits. Events in, instructions out.

    node joined, lost, alive     client joined, lost       lease requested, cancelled, released, ended       tick
                 \                      |                               |                                 /
                                       ClusterState -> [ToClient | ToNode | DropNode, ...]

No I/O and no clock of its own: the master's loop passes the time in and carries the instructions out, and tests do
without a network. What it knows is in `ClusterTables`; who gets room next, and why others wait, is in `placing`; what
can be asked about it in `ClusterView`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from parl_remote.cluster_tables import Client, ClusterTables, Lease
from parl_remote.cluster_view import ClusterView
from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import RemoteError, RemoteProtocolError
from parl_remote.instructions import DropNode, Instruction, ToClient, ToNode
from parl_remote.lease_queue import Waiting
from parl_remote.messages import (
    Heartbeat,
    LeaseAssigned,
    LeaseGranted,
    LeaseLost,
    LeaseRefused,
    LeaseRequest,
    LeaseRevoked,
    NodeJoin,
    RefusalCode,
    RunningLease,
    Status,
)
from parl_remote.node_pool import Node
from parl_remote.placing import next_placement, reasons
from parl_remote.resources import Resources

if TYPE_CHECKING:
    from parl_remote.actor_finders import ActorFinders
    from parl_remote.draining import Draining
    from parl_remote.messages.naming import FindActor
    from parl_remote.messages.overview import ActorNumbers, DrainNode, KillActor, LeaseWaiting, WhyWaiting

__all__ = ["ClusterState", "DropNode", "Instruction", "ToClient", "ToNode"]

_LOST_LEASES_KEPT = 10_000  # a node that was cut off comes back within minutes, with what it had then


class ClusterState:
    """The cluster's bookkeeping.

    Args:
        cluster_id: The cluster's id, for status.
        new_lease_id: Makes a fresh id.
        started: The time at which the cluster started, on the loop's clock.
        liveness_limit_s: A node that is silent for longer is lost.
        client_grace_s: How long a program whose connection broke may take to come back; its workers watch it as well.
        nodes_may_join: Whether what no present node can hold may wait for one that can. A private cluster has all the
            nodes that it will ever have.
        own_node_id: The node that the master runs in.
        epoch: Unix time of the loop's zero, for records of deaths.

    Attributes:
        view: What can be asked about it.
        tables: What it knows; only to be read from outside.
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
        self._new_lease_id = new_lease_id
        self._nodes_may_join = nodes_may_join
        self._client_grace_s = client_grace_s
        self._own_node_id = own_node_id
        self._epoch = epoch
        self._now = started
        self.tables = ClusterTables(liveness_limit_s)
        self.view = ClusterView(self.tables, cluster_id=cluster_id, started=started)
        self._draining: Draining | None = None
        self._finders: ActorFinders | None = None
        self._kills: dict[str, list[tuple[str, int]]] = {}  # by lease: clients that want to know when it has ended
        self._away: dict[str, float] = {}  # programs whose connection broke, and until when they may come back
        self._leaving: dict[str, Lease] = {}  # free already, and their workers have yet to say how their actors ended
        self._lost_leases: dict[str, None] = {}  # declared lost with their node: must not come back with it

    # -- nodes ---------------------------------------------------------------------------------------------------

    def node_joined(
        self, joined: NodeJoin, now: float, *, pid: int = 0, versions: Mapping[str, str] = MappingProxyType({})
    ) -> list[Instruction]:
        """A worker offers itself: a new one, one that comes back, or one of the master's former life.

        Raises:
            RemoteProtocolError: The leases that it brings along do not fit into what it offers.
        """
        self._now = now
        brought = {lease.lease_id: lease for lease in joined.leases}
        if not joined.resources.fits(_sum(lease.resources for lease in brought.values())):
            raise RemoteProtocolError(f"{joined.node_id} brings leases for more than the {joined.resources} it offers")
        if joined.gpus and len(joined.gpus) != joined.resources.gpu:
            raise RemoteProtocolError(f"{joined.node_id} offers {joined.resources.gpu:g} GPU and names {joined.gpus}")
        out: list[Instruction] = []
        if known := self.tables.pool.get(joined.node_id):
            out += self._forget_node(
                known, "its worker came back without it", keep=known.leases.keys() & brought.keys()
            )
        node = Node(joined, now, pid, versions)
        self.tables.pool.add(node)
        if self._draining is not None:
            self._draining.came_back(node)
        self.tables.alive.heard(joined.node_id, now)
        for lease in brought.values():
            out += self._take_in(node, lease)
        return out + self._room_may_be_free()

    def node_alive(self, node_id: str, beat: Heartbeat, now: float) -> None:
        """A worker gave a sign of life; unknown ones are ignored."""
        if node := self.tables.pool.get(node_id):
            node.beat = beat
            self.tables.alive.heard(node_id, now)

    def node_counted(self, node_id: str, numbers: Iterable[ActorNumbers]) -> None:
        """A worker says what its actors do; actors that are not there any more are ignored."""
        for one in numbers:
            lease = self.tables.leases.get(one.lease_id)
            if lease is not None and lease.node.node_id == node_id:
                lease.numbers = one

    def node_lost(self, node_id: str, reason: str, now: float | None = None) -> list[Instruction]:
        """A worker is gone, and its actors with it; unknown ones are ignored."""
        self._now = self._now if now is None else now
        node = self.tables.pool.get(node_id)
        if node is None:
            return []
        if self._draining is not None:
            self._draining.forget(node_id)
        return self._forget_node(node, reason)

    # -- clients -------------------------------------------------------------------------------------------------

    def client_joined(self, client_id: str, name: str, pid: int, now: float = 0.0, host_id: str = "") -> None:
        """A program connected, or one that has leases came back."""
        before = self.tables.clients.get(client_id)
        if before is not None and not before.is_absent:
            raise RemoteProtocolError(f"a client with id {client_id} is already connected")
        self._away.pop(client_id, None)
        leases = before.leases if before is not None else {}
        self.tables.clients[client_id] = Client(client_id, name, pid, host_id, now, leases)

    def client_away(self, client_id: str, now: float) -> list[Instruction]:
        """A program's connection broke without a goodbye; unknown ones are ignored.

        Its actors go on until it is really gone: their workers, to which it is connected as well, see that at once. One
        that comes back in time asks again for what it waited for.
        """
        self._now = now
        client = self.tables.clients.get(client_id)
        if client is None:
            return []
        if not client.leases or not self._client_grace_s:
            return self.client_lost(client_id)
        for waiting in self.tables.queue.remove_client(client_id):
            self.tables.names.give_up(client_id, waiting.request)
        client.is_absent = True
        self._away[client_id] = now + self._client_grace_s
        return [*self._check_unstarted(client), *self._place_waiting()]

    def client_holds(self, client_id: str, held: Iterable[str]) -> list[Instruction]:
        """A program that came back says which leases it knows of: the others are free."""
        client = self.tables.clients.get(client_id)
        unknown = set(client.leases).difference(held) if client is not None else set()
        out: list[Instruction] = []
        for lease_id in sorted(unknown):
            if not self.tables.leases[lease_id].detached:
                out += self._revoke(self.tables.free(lease_id), "its owner does not know of it")
        return [*out, *self._room_may_be_free()]

    def client_lost(self, client_id: str) -> list[Instruction]:
        """A program is gone: its actors end, save detached ones, and its room is free; unknown ones are ignored."""
        self._away.pop(client_id, None)
        client = self.tables.clients.get(client_id)
        if client is None:
            return []
        for waiting in self.tables.queue.remove_client(client_id):
            self.tables.names.give_up(client_id, waiting.request)
        reason = "the program that owned it is gone"
        revoked: list[Instruction] = []
        for lease_id in list(client.leases):
            if not self.tables.leases[lease_id].detached:
                revoked += self._revoke(self.tables.free(lease_id), reason)
        self.tables.clients.pop(client_id, None)
        self.tables.names.forget_client(client_id)
        self.tables.will_not_come_back(client_id)
        return [*revoked, *self._room_may_be_free()]

    # -- leases --------------------------------------------------------------------------------------------------

    def lease_requested(self, client_id: str, request: LeaseRequest, now: float) -> list[Instruction]:
        """A client wants room for an actor: grant it, queue it, or say why not.

        Raises:
            RemoteProtocolError: The request's number is in use, or its timeout is negative.
        """
        self._now = now
        tables = self.tables
        if (client_id, request.request_id) in tables.queue:
            raise RemoteProtocolError(f"request_id {request.request_id} is already waiting")
        if request.timeout_s is not None and request.timeout_s < 0:
            raise RemoteProtocolError(f"timeout_s must be 0 or more, not {request.timeout_s}")
        if tables.names.in_the_way_of(client_id, request) is not None:
            return [ToClient(client_id, self._name_taken(request))]
        waiting = tables.queue.add(client_id, request, now)
        tables.names.ask(client_id, request)
        out = self._place_waiting()
        if waiting.gone:
            return out
        hopeless = not self._nodes_may_join and not tables.pool.could_hold(waiting.shape)
        if hopeless or request.timeout_s == 0:
            out.append(self._refuse(waiting))
            out += self._place_waiting()  # it may have held somebody back
        return out

    def lease_cancelled(self, client_id: str, request_id: int) -> list[Instruction]:
        """A client no longer waits; if the answer is already on its way, it stands."""
        waiting = self.tables.queue.remove((client_id, request_id))
        if waiting is None:
            return []
        self.tables.names.give_up(client_id, waiting.request)
        cancelled = LeaseRefused(request_id, RefusalCode.CANCELLED, "the request was cancelled")
        return [ToClient(client_id, cancelled), *self._place_waiting()]

    def lease_released(self, client_id: str, lease_id: str) -> list[Instruction]:
        """A client is done with a lease; one that is already gone, or of another client, is ignored."""
        lease = self.tables.leases.get(lease_id)
        if lease is None and self.tables.will_not_come_back(client_id, lease_id):
            return self._room_may_be_free()  # to tell those who look for it
        if lease is None or lease.client_id != client_id:
            return []
        return [*self._revoke(self.tables.free(lease_id), "released by its owner"), *self._room_may_be_free()]

    def lease_ended(self, node_id: str, lease_id: str, cause: DeathCause) -> list[Instruction]:
        """An actor ended on its worker; one of another node is ignored, and one that was released is only recorded."""
        left = self._leaving.get(lease_id)
        if left is not None and left.node.node_id == node_id:
            del self._leaving[lease_id]
            self.tables.deaths.add(self.tables.record_of(left, cause))
        lease = self.tables.leases.get(lease_id)
        if lease is None or lease.node.node_id != node_id:
            return []
        told = ToClient(lease.client_id, LeaseLost(lease_id, cause))
        self.tables.free(lease_id, cause)
        return [told, *self._answer_kills(lease, cause), *self._room_may_be_free()]

    # -- from outside (see `messages.overview`) ------------------------------------------------------------------

    def why_waiting(self, client_id: str, asked: WhyWaiting, now: float) -> LeaseWaiting:
        """Why a request is not granted yet.

        Raises:
            RemoteError: It is not waiting.
        """
        from parl_remote.messages.overview import LeaseWaiting

        queue = self.tables.queue
        waiting = queue.get((client_id, asked.waiting))
        if waiting is None:
            raise RemoteError(f"request {asked.waiting} does not wait (any more)")
        reason = reasons(self.tables.pool, queue)[waiting.shape]
        ahead, placement = queue.ahead_of(waiting), waiting.request.placement
        return LeaseWaiting(asked.request_id, reason, ahead, round(now - waiting.since, 3), placement)

    def find_requested(self, client_id: str, asked: FindActor) -> list[Instruction]:
        """Somebody looks for an actor by its name, or for the one that took the place of another.

        Raises:
            RemoteError: There is none.
        """
        if self._finders is None:
            from parl_remote.actor_finders import ActorFinders

            self._finders = ActorFinders(self.tables)
        return self._finders.ask(client_id, asked)

    def kill_requested(self, client_id: str, asked: KillActor) -> list[Instruction]:
        """Somebody wants an actor ended; the answer comes once it has.

        Raises:
            RemoteError: There is no such actor.
        """
        from parl_remote.messages.overview import EndActor

        lease = self.tables.called(asked.actor)
        if lease is None:
            raise RemoteError(f"there is no actor {asked.actor!r}; `xparl list` shows those that there are")
        self._kills.setdefault(lease.lease_id, []).append((client_id, asked.request_id))
        lease.is_ending = True
        detail = f"by {self.tables.owner_of(client_id)}" + (f", {asked.reason}" if asked.reason else "")
        return [ToNode(lease.node.node_id, EndActor(lease.lease_id, DeathKind.KILLED_BY_USER, detail))]

    def drain_requested(self, client_id: str, asked: DrainNode, now: float) -> list[Instruction]:
        """Somebody wants a node to leave.

        Raises:
            RemoteError: There is no such node, or more than one of that name.
            RemoteProtocolError: The time makes no sense.
        """
        if asked.timeout_s is not None and asked.timeout_s < 0:
            raise RemoteProtocolError(f"timeout_s must be 0 or more, not {asked.timeout_s}")
        found = self.tables.pool.called(asked.node)
        if not found:
            names = ", ".join(f"{node.name} ({node.node_id})" for node in self.tables.pool) or "none"
            raise RemoteError(f"there is no node {asked.node!r}; the cluster has: {names}")
        if len(found) > 1:
            ids = ", ".join(node.node_id for node in found)
            raise RemoteError(f"{len(found)} nodes are called {asked.node!r}; name one by its id: {ids}")
        if self._draining is None:
            from parl_remote.draining import Draining

            self._draining = Draining(self.tables, self._own_node_id)
        out = self._draining.start(client_id, asked, found[0], now)
        return [*out, *self._draining.due(now), *self._room_may_be_free()]

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Instruction]:
        """Whatever is due by now: silent nodes, requests out of time, nodes that should have emptied."""
        self._now = now
        out: list[Instruction] = []
        for node_id in self.tables.alive.expired(now):
            reason = f"no sign of life for more than {self.tables.alive.limit_s:g} s"
            out.append(DropNode(node_id, reason))
            out += self.node_lost(node_id, reason)
        for client_id in [client_id for client_id, until in self._away.items() if until <= now]:
            out += self.client_lost(client_id)
        for waiting in self.tables.queue.due(now):
            out.append(self._refuse(waiting))
        if self._draining is not None:
            out += self._draining.due(now)
        return out + self._place_waiting()

    def next_deadline(self) -> float | None:
        """When `tick` has something to do at the earliest, None if nothing is in sight."""
        draining = self._draining.next_deadline() if self._draining is not None else None
        back = min(self._away.values(), default=None)
        times = (self.tables.alive.next_check(), self.tables.queue.next_deadline(), draining, back)
        return min((time for time in times if time is not None), default=None)

    def status(self, request_id: int, now: float, *, detail: bool, dropped: int) -> Status:
        """See `ClusterView.status`."""
        return self.view.status(request_id, now, detail=detail, dropped=dropped)

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _room_may_be_free(self) -> list[Instruction]:
        """After leases have ended: drained nodes leave, and who waits may have its turn."""
        out: list[Instruction] = []
        for node in self._draining.empty() if self._draining is not None else ():
            assert self._draining is not None  # it named the node
            out.append(self._draining.let_go(node))
            out += self._forget_node(node, "it was drained")
        return out + self._place_waiting()

    def _place_waiting(self) -> list[Instruction]:
        out: list[Instruction] = []
        while choice := next_placement(self.tables.pool, self.tables.queue):
            out += self._grant(*choice)
        return out + self._finders.settle() if self._finders is not None else out

    def _grant(self, waiting: Waiting, node: Node) -> list[Instruction]:
        request, client_id, tables = waiting.request, waiting.client_id, self.tables
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
            since=self._now,
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

    def _check_unstarted(self, client: Client) -> list[Instruction]:
        """Room of a client that is away and may never have come to its workers is not kept for it."""
        from parl_remote.messages.overview import ForgetUnstarted

        leases = (self.tables.leases[lease_id] for lease_id in client.leases)
        return [ToNode(one.node.node_id, ForgetUnstarted(one.lease_id)) for one in leases if one.numbers is None]

    def _revoke(self, lease: Lease, reason: str) -> list[Instruction]:
        self._leaving[lease.lease_id] = lease
        if len(self._leaving) > _LOST_LEASES_KEPT:
            del self._leaving[next(iter(self._leaving))]
        revoked = ToNode(lease.node.node_id, LeaseRevoked(lease.lease_id, reason))
        return [revoked, *self._answer_kills(lease, DeathCause(DeathKind.RELEASED, detail=reason))]

    def _answer_kills(self, lease: Lease, cause: DeathCause) -> list[Instruction]:
        """Tell whoever wanted an actor to end that it has."""
        asked = self._kills.pop(lease.lease_id, None)
        if asked is None:
            return []
        from parl_remote.messages.overview import ActorKilled

        record = self.tables.record_of(lease, cause)
        return [ToClient(client_id, ActorKilled(request_id, record)) for client_id, request_id in asked]

    def _forget_node(self, node: Node, reason: str, keep: Iterable[str] = ()) -> list[Instruction]:
        """Remove a node; leases in `keep` vanish silently, because the caller records them anew."""
        out: list[Instruction] = []
        silently = set(keep)
        for lease_id in list(node.leases):
            if lease_id in silently:
                self.tables.free(lease_id)
                continue
            cause = self._node_lost(node, self.tables.leases[lease_id], reason)
            lease = self.tables.free(lease_id, cause)
            self._lost_leases[lease_id] = None
            out += [ToClient(lease.client_id, LeaseLost(lease_id, cause)), *self._answer_kills(lease, cause)]
        while len(self._lost_leases) > _LOST_LEASES_KEPT:
            del self._lost_leases[next(iter(self._lost_leases))]
        self.tables.pool.remove(node)
        self.tables.alive.forget(node.node_id)
        return out

    def _node_lost(self, node: Node, lease: Lease, reason: str) -> DeathCause:
        numbers = lease.numbers
        return DeathCause(
            DeathKind.NODE_LOST,
            detail=f"{node.name}: {reason}",
            last_call=numbers.busy_with if numbers is not None else "",
            node=node.name,
            pid=numbers.pid if numbers is not None else 0,
            at=round(self._epoch + self._now, 3),
            lease_id=lease.lease_id,
            class_name=lease.class_name,
            name=lease.actor_name,
            restarts=lease.restarts,
        )

    def _take_in(self, node: Node, brought: RunningLease) -> list[Instruction]:
        """Adopt a lease that runs on a joining node, unless its owner was already told that it is lost.

        The owner may not be connected here, but it is to the worker, which reports the lease's end when that breaks.
        """
        tables = self.tables
        if brought.lease_id in self._lost_leases or brought.lease_id in tables.leases:
            return [ToNode(node.node_id, LeaseRevoked(brought.lease_id, "it was reported as lost"))]
        if brought.client_id not in tables.clients:
            tables.clients[brought.client_id] = Client(brought.client_id, since=self._now, is_absent=True)
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
            since=self._now - brought.age_s,
        )
        tables.record(lease, brought.gpus)
        if brought.actor_name and tables.names.get(brought.actor_name) is None:
            tables.names.assign(brought.actor_name, brought.client_id, brought.lease_id)
        return []

    def _name_taken(self, request: LeaseRequest) -> LeaseRefused:
        lease = self.tables.called(request.actor_name)
        holder = self.tables.names.get(request.actor_name)
        owner = self.tables.owner_of(holder.client_id) if holder is not None else ""
        what = f"the {lease.class_name or 'actor'} {lease.lease_id}" if lease else "an actor that waits for room"
        reason = (
            f"the name {request.actor_name!r} is taken by {what}{f' of {owner}' if owner else ''}; "
            f"choose another, or use that one: parl.get_actor({request.actor_name!r})"
        )
        return LeaseRefused(request.request_id, RefusalCode.NAME_TAKEN, reason, str(request.resources))

    def _refuse(self, waiting: Waiting) -> Instruction:
        """Take a request out of the queue and say why it got nothing."""
        request, pool, queue = waiting.request, self.tables.pool, self.tables.queue
        possible = pool.could_hold(waiting.shape)
        why = reasons(pool, queue)[waiting.shape]
        queue.remove(waiting.key)
        self.tables.names.give_up(waiting.client_id, request)
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


def _sum(amounts: Iterable[Resources]) -> Resources:
    total = Resources()
    for amount in amounts:
        total += amount
    return total
