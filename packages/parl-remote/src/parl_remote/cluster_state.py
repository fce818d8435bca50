r"""What the master knows and decides: nodes, clients, leases and who waits. Events in, instructions out.

    node joined, lost, alive     client joined, lost       lease requested, cancelled, released, ended       tick
                 \                      |                               |                                 /
                                       ClusterState -> [ToClient | ToNode | DropNode, ...]

No I/O and no clock of its own: the master's loop passes the time in and carries the instructions out, and tests do
without a network. Room that becomes free goes to whoever waited longest and fits; who waits for a kind that is short
holds back everybody behind who wants the same kind, and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import RemoteProtocolError
from parl_remote.lease_queue import LeaseQueue, Waiting
from parl_remote.liveness import Liveness
from parl_remote.messages import (
    ClientStatus,
    Heartbeat,
    LeaseAssigned,
    LeaseGranted,
    LeaseLost,
    LeaseRefused,
    LeaseRequest,
    LeaseRevoked,
    Message,
    NodeJoin,
    NodeStatus,
    RefusalCode,
    RunningLease,
    Status,
)
from parl_remote.node_pool import Node, NodePool
from parl_remote.resources import Resources

__all__ = ["ClusterState", "DropNode", "Instruction", "ToClient", "ToNode"]


@dataclass(frozen=True, slots=True)
class ToClient:
    """Send this to a client."""

    client_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class ToNode:
    """Send this to a worker."""

    node_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class DropNode:
    """Close the connection to a worker that is lost."""

    node_id: str
    reason: str


Instruction: TypeAlias = ToClient | ToNode | DropNode


@dataclass(slots=True)
class _Lease:
    lease_id: str
    client_id: str
    node: Node
    resources: Resources
    class_name: str


@dataclass(slots=True)
class _Client:
    name: str
    pid: int
    leases: set[str]


class ClusterState:
    """The cluster's bookkeeping.

    Args:
        cluster_id: The cluster's id, for status.
        new_lease_id: Makes a fresh id.
        started: The time at which the cluster started.
        liveness_limit_s: A node that is silent for longer is lost.
        nodes_may_join: Whether what no present node can hold may wait for one that can. A private cluster has all the
            nodes that it will ever have.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        new_lease_id: Callable[[], str],
        started: float,
        liveness_limit_s: float,
        nodes_may_join: bool = True,
    ) -> None:
        self._cluster_id = cluster_id
        self._new_lease_id = new_lease_id
        self._started = started
        self._nodes_may_join = nodes_may_join
        self._pool = NodePool()
        self._clients: dict[str, _Client] = {}
        self._leases: dict[str, _Lease] = {}
        self._queue = LeaseQueue()
        self._alive: Liveness[str] = Liveness(liveness_limit_s)
        self._absent: set[str] = set()  # owners of adopted leases that have not come back; their workers watch them
        self._lost_leases: dict[str, None] = {}  # declared lost with their node: must not come back with it

    # -- nodes ---------------------------------------------------------------------------------------------------

    def node_joined(self, joined: NodeJoin, now: float) -> list[Instruction]:
        """A worker offers itself: a new one, one that comes back, or one of the master's former life.

        Raises:
            RemoteProtocolError: The leases that it brings along do not fit into what it offers.
        """
        brought = {lease.lease_id: lease for lease in joined.leases}
        if not joined.resources.fits(_sum(lease.resources for lease in brought.values())):
            raise RemoteProtocolError(f"{joined.node_id} brings leases for more than the {joined.resources} it offers")
        out: list[Instruction] = []
        if known := self._pool.get(joined.node_id):
            out += self._forget_node(known, "its worker came back without it", keep=known.leases & brought.keys())
        node = self._pool.add(joined)
        self._alive.heard(joined.node_id, now)
        for lease in brought.values():
            out += self._take_in(node, lease)
        return out + self._place_waiting()

    def node_alive(self, node_id: str, beat: Heartbeat, now: float) -> None:
        """A worker gave a sign of life; unknown ones are ignored."""
        if node := self._pool.get(node_id):
            node.load, node.memory_free = beat.load, beat.memory_free
            self._alive.heard(node_id, now)

    def node_lost(self, node_id: str, reason: str) -> list[Instruction]:
        """A worker is gone, and its actors with it; unknown ones are ignored."""
        node = self._pool.get(node_id)
        return self._forget_node(node, reason) if node else []

    # -- clients -------------------------------------------------------------------------------------------------

    def client_joined(self, client_id: str, name: str, pid: int) -> None:
        """A program connected, or one that has leases came back."""
        if client_id in self._clients and client_id not in self._absent:
            raise RemoteProtocolError(f"a client with id {client_id} is already connected")
        self._absent.discard(client_id)
        leases = self._clients[client_id].leases if client_id in self._clients else set()
        self._clients[client_id] = _Client(name, pid, leases)

    def client_lost(self, client_id: str) -> list[Instruction]:
        """A program is gone: its actors end and its room is free; unknown ones are ignored."""
        client = self._clients.pop(client_id, None)
        if client is None:
            return []
        self._absent.discard(client_id)
        self._queue.remove_client(client_id)
        reason = "the program that owned it is gone"
        revoked = [self._revoke(self._free(lease_id), reason) for lease_id in sorted(client.leases)]
        return [*revoked, *self._place_waiting()]

    # -- leases --------------------------------------------------------------------------------------------------

    def lease_requested(self, client_id: str, request: LeaseRequest, now: float) -> list[Instruction]:
        """A client wants room for an actor: grant it, queue it, or say why not.

        Raises:
            RemoteProtocolError: The request's number is in use, or its timeout is negative.
        """
        if (client_id, request.request_id) in self._queue:
            raise RemoteProtocolError(f"request_id {request.request_id} is already waiting")
        if request.timeout_s is not None and request.timeout_s < 0:
            raise RemoteProtocolError(f"timeout_s must be 0 or more, not {request.timeout_s}")
        waiting = self._queue.add(client_id, request, now)
        out = self._place_waiting()
        if waiting.gone:
            return out
        hopeless = not self._nodes_may_join and not self._pool.could_hold(request.resources)
        if hopeless or request.timeout_s == 0:
            self._queue.remove(waiting.key)
            out.append(self._refuse(waiting))
        return out

    def lease_cancelled(self, client_id: str, request_id: int) -> list[Instruction]:
        """A client no longer waits; if the answer is already on its way, it stands."""
        waiting = self._queue.remove((client_id, request_id))
        if waiting is None:
            return []
        cancelled = LeaseRefused(request_id, RefusalCode.CANCELLED, "the request was cancelled")
        return [ToClient(client_id, cancelled), *self._place_waiting()]

    def lease_released(self, client_id: str, lease_id: str) -> list[Instruction]:
        """A client is done with a lease; one that is already gone, or of another client, is ignored."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.client_id != client_id:
            return []
        return [self._revoke(self._free(lease_id), "released by its owner"), *self._place_waiting()]

    def lease_ended(self, node_id: str, lease_id: str, cause: DeathCause) -> list[Instruction]:
        """An actor ended on its worker; one that was released meanwhile, or of another node, is ignored."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.node.node_id != node_id:
            return []
        self._free(lease_id)
        return [ToClient(lease.client_id, LeaseLost(lease_id, cause)), *self._place_waiting()]

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Instruction]:
        """Whatever is due by now: silent nodes, requests out of time."""
        out: list[Instruction] = []
        for node_id in self._alive.expired(now):
            reason = f"no sign of life for more than {self._alive.limit_s:g} s"
            out.append(DropNode(node_id, reason))
            out += self.node_lost(node_id, reason)
        for waiting in self._queue.expired(now):
            out.append(self._refuse(waiting))
        return out + self._place_waiting()

    def next_deadline(self) -> float | None:
        """When `tick` has something to do at the earliest, None if nothing is in sight."""
        times = (self._alive.next_check(), self._queue.next_deadline())
        return min((time for time in times if time is not None), default=None)

    # -- status --------------------------------------------------------------------------------------------------

    def status(self, request_id: int, now: float, *, detail: bool, dropped: int) -> Status:
        """The cluster at this moment; `dropped` is the reception's count of bad peers."""
        waiting: dict[str, int] = {}
        for one in self._queue if detail else ():
            waiting[one.client_id] = waiting.get(one.client_id, 0) + 1
        return Status(
            request_id=request_id,
            cluster_id=self._cluster_id,
            uptime_s=round(now - self._started, 3),
            total=self._pool.total,
            free=self._pool.free,
            leases=len(self._leases),
            waiting=len(self._queue),
            node_count=len(self._pool),
            client_count=len(self._clients) - len(self._absent),
            dropped=dropped,
            nodes=tuple(self._node_status(node, now) for node in self._pool) if detail else (),
            clients=tuple(
                ClientStatus(client_id, client.name, client.pid, len(client.leases), waiting.get(client_id, 0))
                for client_id, client in (self._clients.items() if detail else ())
            ),
        )

    def _node_status(self, node: Node, now: float) -> NodeStatus:
        return NodeStatus(
            node_id=node.node_id,
            name=node.joined.name,
            addresses=node.joined.addresses,
            total=node.total,
            free=node.free,
            leases=len(node.leases),
            load=node.load,
            memory_free=node.memory_free,
            silent_s=round(self._alive.silent_s(node.node_id, now), 3),
        )

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _place_waiting(self) -> list[Instruction]:
        out: list[Instruction] = []
        while choice := self._next_placement():
            out += self._grant(*choice)
        return out

    def _next_placement(self) -> tuple[Waiting, Node] | None:
        short: frozenset[str] = frozenset()
        for waiting in self._queue.heads():
            need = waiting.request.resources
            if need.kinds() & short or not self._pool.could_hold(need):
                continue  # behind an older one that wants the same, or waiting for a larger node and in nobody's way
            if node := self._pool.pick(need):
                return waiting, node
            short |= self._pool.short_of(need)
        return None

    def _grant(self, waiting: Waiting, node: Node) -> list[Instruction]:
        request, client_id = waiting.request, waiting.client_id
        self._queue.remove(waiting.key)
        lease = _Lease(self._new_lease_id(), client_id, node, request.resources, request.class_name)
        self._record(lease)
        at = node.joined
        return [
            ToNode(node.node_id, LeaseAssigned(lease.lease_id, client_id, request.resources, request.class_name)),
            ToClient(
                client_id,
                LeaseGranted(request.request_id, lease.lease_id, node.node_id, at.addresses, at.socket_dir, at.host_id),
            ),
        ]

    def _record(self, lease: _Lease) -> None:
        self._leases[lease.lease_id] = lease
        self._clients[lease.client_id].leases.add(lease.lease_id)
        lease.node.leases.add(lease.lease_id)
        self._pool.take(lease.node, lease.resources)

    def _free(self, lease_id: str) -> _Lease:
        lease = self._leases.pop(lease_id)
        if client := self._clients.get(lease.client_id):
            client.leases.discard(lease_id)
            if not client.leases and lease.client_id in self._absent:
                self._absent.discard(lease.client_id)
                del self._clients[lease.client_id]
        lease.node.leases.discard(lease_id)
        self._pool.give(lease.node, lease.resources)
        return lease

    def _revoke(self, lease: _Lease, reason: str) -> Instruction:
        return ToNode(lease.node.node_id, LeaseRevoked(lease.lease_id, reason))

    def _forget_node(self, node: Node, reason: str, keep: Iterable[str] = ()) -> list[Instruction]:
        """Remove a node; leases in `keep` vanish silently, because the caller records them anew."""
        out: list[Instruction] = []
        cause = DeathCause(DeathKind.NODE_LOST, detail=f"{node.joined.name or node.node_id}: {reason}")
        silently = set(keep)
        for lease_id in sorted(node.leases):
            lease = self._free(lease_id)
            if lease_id not in silently:
                self._lost_leases[lease_id] = None
                out.append(ToClient(lease.client_id, LeaseLost(lease_id, cause)))
        while len(self._lost_leases) > _LOST_LEASES_KEPT:
            del self._lost_leases[next(iter(self._lost_leases))]
        self._pool.remove(node)
        self._alive.forget(node.node_id)
        return out

    def _take_in(self, node: Node, brought: RunningLease) -> list[Instruction]:
        """Adopt a lease that runs on a joining node, unless its owner was already told that it is lost.

        The owner may not be connected here, but it is to the worker, which reports the lease's end when that breaks.
        """
        if brought.lease_id in self._lost_leases or brought.lease_id in self._leases:
            return [ToNode(node.node_id, LeaseRevoked(brought.lease_id, "it was reported as lost"))]
        if brought.client_id not in self._clients:
            self._clients[brought.client_id] = _Client("", 0, set())
            self._absent.add(brought.client_id)
        self._record(_Lease(brought.lease_id, brought.client_id, node, brought.resources, brought.class_name))
        return []

    def _refuse(self, waiting: Waiting) -> Instruction:
        request = waiting.request
        possible = self._pool.could_hold(request.resources)
        code = RefusalCode.TIMEOUT if possible else RefusalCode.TOO_LARGE
        count = len(self._pool)
        available = f"{self._pool.total} on {count} node{'s' * (count != 1)}, {self._pool.free} free"
        reason = f"{request.class_name or 'an actor'} asked for {request.resources}; the cluster has {available}"
        if not possible:
            reason += "; no single node is large enough"
        elif request.timeout_s:
            reason += f"; nothing became free within {request.timeout_s:g} s"
        return ToClient(
            waiting.client_id, LeaseRefused(request.request_id, code, reason, str(request.resources), available)
        )


_LOST_LEASES_KEPT = 10_000  # a node that was cut off comes back within minutes, with what it had then


def _sum(amounts: Iterable[Resources]) -> Resources:
    total = Resources()
    for amount in amounts:
        total += amount
    return total
