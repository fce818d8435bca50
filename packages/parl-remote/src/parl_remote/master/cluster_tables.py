"""All that the master knows, in tables that fit together: nodes, clients, leases, names, who waits, who was lost.

    client 1 --- n Lease n --- 1 Node        record() and free() keep both ends, the names and the amounts in step

`ClusterState` decides what events mean for them; `ClusterView` reads them for status and lists.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parl_remote.death import DeathCause, DeathKind, DeathRecord
from parl_remote.master.actor_names import ActorNames
from parl_remote.master.death_log import DeathLog
from parl_remote.master.lease_queue import LeaseQueue
from parl_remote.master.liveness import Liveness
from parl_remote.master.node_pool import Node, NodePool
from parl_remote.resources import Resources

if TYPE_CHECKING:
    from parl_remote.messages.overview import ActorNumbers

__all__ = ["Client", "ClusterTables", "Lease"]

_SUCCESSORS_KEPT = 10_000  # handles of an actor from many restarts ago are asked for again within minutes, if at all
_NEVER_MADE_AGAIN = frozenset((DeathKind.KILLED_BY_USER, DeathKind.CONSTRUCTOR, DeathKind.IMPORT))


@dataclass(slots=True, eq=False)
class Client:
    """A program that uses the cluster.

    Attributes:
        client_id: Its id.
        name: What people call it.
        pid: Its process on its host.
        host_id: Its host.
        since: When it came, on the loop's clock.
        leases: The ids of those that it holds.
        is_absent: Whether it has not come back yet since the master was restarted; its workers watch it meanwhile.
    """

    client_id: str
    name: str = ""
    pid: int = 0
    host_id: str = ""
    since: float = 0.0
    leases: dict[str, None] = field(default_factory=dict)
    is_absent: bool = False

    def __str__(self) -> str:
        return f"{self.name or self.client_id} (process {self.pid})" if self.pid else self.name or self.client_id


@dataclass(slots=True, eq=False)
class Lease:
    """Room for one actor.

    Attributes:
        lease_id: Its id.
        client_id: Who asked for it.
        node: Where it is.
        resources: How much it is.
        class_name: The actor's class.
        actor_name: What `get_actor` finds the actor by, empty for none.
        detached: Whether the actor outlives its client.
        restarts: How often the actor has been made again.
        max_restarts: How often its client will do that; -1 for as often as needed.
        gpus: The GPUs that the actor sees.
        since: When it began, on the loop's clock.
        number: Leases count up, which is their order in lists.
        numbers: What the worker said last of the actor.
        is_ending: Whether the worker was told to end the actor.
    """

    lease_id: str
    client_id: str
    node: Node
    resources: Resources
    class_name: str
    actor_name: str = ""
    detached: bool = False
    restarts: int = 0
    max_restarts: int = 0
    gpus: tuple[str, ...] = ()
    since: float = 0.0
    number: int = 0
    numbers: ActorNumbers | None = None
    is_ending: bool = False

    @property
    def may_come_back(self) -> bool:
        """Whether its client would make the actor again."""
        return self.max_restarts < 0 or self.restarts < self.max_restarts


class ClusterTables:
    """The tables, and the few steps that touch more than one of them.

    Args:
        liveness_limit_s: A node that is silent for longer is lost.
    """

    def __init__(self, liveness_limit_s: float) -> None:
        self.pool = NodePool()
        self.clients: dict[str, Client] = {}
        self.leases: dict[str, Lease] = {}
        self.names = ActorNames()
        self.queue = LeaseQueue()
        self.alive: Liveness[str] = Liveness(liveness_limit_s)
        self.deaths = DeathLog()
        self._successors: dict[str, str] = {}
        self._coming_back: dict[str, str] = {}  # lost leases and the clients that make their actors again
        self._numbers = itertools.count(1)

    def record(self, lease: Lease, gpus: tuple[str, ...] | None = None) -> None:
        """A lease begins; `gpus` are those that its actor has already, None chooses them."""
        lease.number = next(self._numbers)
        lease.gpus = self.pool.take(lease.node, lease.resources, gpus)
        self.leases[lease.lease_id] = lease
        self.clients[lease.client_id].leases[lease.lease_id] = None
        lease.node.leases[lease.lease_id] = None

    def free(self, lease_id: str, cause: DeathCause | None = None) -> Lease:
        """A lease ends: of itself, with its cause, or because its client let go of it."""
        lease = self.leases.pop(lease_id)
        client = self.clients.get(lease.client_id)
        if client is not None:
            client.leases.pop(lease_id, None)
            if client.is_absent and not client.leases:
                del self.clients[lease.client_id]
        lost = cause is not None and cause.kind.is_loss and cause.kind not in _NEVER_MADE_AGAIN
        comes_back = lost and lease.may_come_back and client is not None
        if comes_back:
            self._coming_back[lease_id] = lease.client_id
        self.names.end(lease.actor_name, lease_id, comes_back=comes_back)
        lease.node.leases.pop(lease_id, None)
        self.pool.give(lease.node, lease.resources, lease.gpus)
        if cause is not None:
            self.deaths.add(self.record_of(lease, cause))
        return lease

    def record_of(self, lease: Lease, cause: DeathCause) -> DeathRecord:
        """Whose end it was."""
        return DeathRecord(
            lease_id=lease.lease_id,
            class_name=lease.class_name,
            name=lease.actor_name,
            client_id=lease.client_id,
            owner=self.owner_of(lease.client_id),
            node_id=lease.node.node_id,
            restarts=lease.restarts,
            cause=cause,
        )

    def owner_of(self, client_id: str) -> str:
        """A client for people, empty if it is gone."""
        client = self.clients.get(client_id)
        return str(client) if client is not None and not client.is_absent else ""

    def called(self, text: str) -> Lease | None:
        """The actor of that name or lease; a lease that was replaced leads to the one that replaced it."""
        holder = self.names.get(text)
        return self.leases.get(self._latest(holder.lease_id if holder is not None and not holder.is_lost else text))

    def _latest(self, lease_id: str) -> str:
        for _ in range(_SUCCESSORS_KEPT):
            if lease_id in self.leases or lease_id not in self._successors:
                break
            lease_id = self._successors[lease_id]
        return lease_id

    def is_coming_back(self, lease_id: str) -> bool:
        """Whether the actor of that lease, or the last one in its place, was lost and is being made again."""
        return self._latest(lease_id) in self._coming_back

    def will_not_come_back(self, client_id: str, lease_id: str | None = None) -> bool:
        """A client makes an actor, or all of its, not again after all; whether it was to."""
        given_up = [old for old, whose in self._coming_back.items() if whose == client_id and lease_id in {None, old}]
        for old in given_up:
            del self._coming_back[old]
        return bool(given_up)

    def replace(self, old_lease_id: str, new_lease_id: str) -> None:
        """From now on handles of an actor that was lost lead to the one that was made in its place."""
        self._coming_back.pop(old_lease_id, None)
        self._successors[old_lease_id] = new_lease_id
        while len(self._successors) > _SUCCESSORS_KEPT:
            del self._successors[next(iter(self._successors))]

    def leases_after(self, number: int) -> Iterator[Lease]:
        """Leases in their order, from the one after `number`."""
        return (lease for lease in self.leases.values() if lease.number > number)
