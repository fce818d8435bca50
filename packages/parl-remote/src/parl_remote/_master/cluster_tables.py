"""The master's tables, kept consistent, and the instructions that follow from an event.

    client 1 --- n Lease n --- 1 Node        record() and free() keep both ends, the names and the amounts in step

Beside nodes, clients and leases: names of actors, pending requests, the last lost actors, events, and signs of life.
`ClusterState` applies events to the tables; `ClusterView` reads them for status and lists.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from parl_remote._master.events import ActorNamed, EventLog, History, LostNodes, PreviousHistory
from parl_remote._master.placement import LeaseQueue, Node, NodePool
from parl_remote._messages.leases import FUNCTION_WORKER, LeaseRequest, LeaseRevoked
from parl_remote._messages.overview import ActorNumbers, DeathRecord, EndActor
from parl_remote._records import Message, Record, record
from parl_remote._resources import Resources
from parl_remote.errors import DeathCause, DeathKind

__all__ = ["Client", "ClusterTables", "DropNode", "Instruction", "Lease", "Liveness", "ToClient", "ToNode"]


_Peer = TypeVar("_Peer", bound=Hashable)


class Liveness(Generic[_Peer]):
    """The time of each peer's last sign of life.

    Peers are kept in the order in which they were heard, so that recording a heartbeat and finding silent peers cost
    the same with ten peers as with ten thousand.
    """

    def __init__(self, limit_s: float) -> None:
        """Start with no peers.

        Args:
            limit_s: The silence after which a peer counts as lost, in seconds.
        """
        if not limit_s > 0:
            raise ValueError(f"the limit must be above 0 seconds, not {limit_s!r}")
        self.limit_s = limit_s
        self._heard: OrderedDict[_Peer, float] = OrderedDict()

    def heard(self, peer: _Peer, now: float) -> None:
        """Record a sign of life of a new or known peer."""
        self._heard[peer] = now
        self._heard.move_to_end(peer)

    def forget(self, peer: _Peer) -> None:
        """Stop watching a peer; unknown ones are ignored."""
        self._heard.pop(peer, None)

    def silent_s(self, peer: _Peer, now: float) -> float:
        """Return how long a watched peer has been silent, in seconds."""
        return now - self._heard[peer]

    def expired(self, now: float) -> list[_Peer]:
        """Remove and return the peers that were silent for longer than the limit."""
        dead = []
        while self._heard:
            peer, heard = next(iter(self._heard.items()))
            if now - heard <= self.limit_s:
                break
            del self._heard[peer]
            dead.append(peer)
        return dead

    def restart_silence(self, now: float) -> None:
        """Restart all periods of silence at `now`, because this process itself was suspended."""
        for peer in self._heard:
            self._heard[peer] = now

    def next_check(self) -> float | None:
        """Return the earliest time at which a peer could be lost, None if there is no peer."""
        return next(iter(self._heard.values())) + self.limit_s if self._heard else None


_LOST_KEPT = 1000
_RELEASED_KEPT = 200  # intended ends are many and of little interest


class DeathLog:
    """The latest death records.

    Attributes:
        total: The number of lost actors, including those no longer kept.
    """

    def __init__(self) -> None:
        self._lost: deque[tuple[int, DeathRecord]] = deque(maxlen=_LOST_KEPT)
        self._released: deque[tuple[int, DeathRecord]] = deque(maxlen=_RELEASED_KEPT)
        self._order = itertools.count()
        self.total = 0

    def add(self, record: DeathRecord) -> None:
        """Add a record."""
        if record.cause.kind.is_loss:
            self.total += 1
            self._lost.append((next(self._order), record))
        else:
            self._released.append((next(self._order), record))

    def latest(
        self, limit: int, *, client_id: str = "", lease_id: str = "", released: bool = False
    ) -> tuple[DeathRecord, ...]:
        """Return up to `limit` records, the latest first; see `messages.overview.ListDeaths`."""
        kept = sorted((*self._lost, *(self._released if released else ())), key=lambda entry: -entry[0])
        wanted = (
            record for _, record in kept if client_id in ("", record.client_id) and lease_id in ("", record.lease_id)
        )
        return tuple(itertools.islice(wanted, limit))


@dataclass(slots=True)
class NameHolder:
    """The holder of a name.

    Attributes:
        client_id: The client that requested it.
        request_id: Its pending lease request; None once it was granted.
        lease_id: The actor's lease; empty while the first one is pending.
        is_lost: Whether that actor was lost, and the name is kept for its restart.
    """

    client_id: str
    request_id: int | None
    lease_id: str = ""
    is_lost: bool = False


class ActorNames:
    """The names of a cluster's actors."""

    def __init__(self) -> None:
        self._holders: dict[str, NameHolder] = {}

    def get(self, name: str) -> NameHolder | None:
        """Return the holder of a name, or None."""
        return self._holders.get(name)

    def all(self) -> list[str]:
        """Return all names that are taken."""
        return list(self._holders)

    def conflicting_holder(self, client_id: str, request: LeaseRequest) -> NameHolder | None:
        """Return the holder that keeps a request from its name; None if the name is available to it.

        A restart takes over the name of the actor that it replaces, and a program the name of an actor that it has
        lost.
        """
        holder = self._holders.get(request.actor_name) if request.actor_name else None
        if holder is None:
            return None
        of_same_client = holder.client_id == client_id and holder.request_id is None
        if of_same_client and (holder.is_lost or (request.replaces and holder.lease_id == request.replaces)):
            return None
        return holder

    def request(self, client_id: str, request: LeaseRequest) -> None:
        """Reserve the name of a pending request, which must be available to it."""
        if request.actor_name:
            before = self._holders.get(request.actor_name)
            lease_id, is_lost = (before.lease_id, before.is_lost) if before else ("", False)
            self._holders[request.actor_name] = NameHolder(client_id, request.request_id, lease_id, is_lost)

    def give_up(self, client_id: str, request: LeaseRequest) -> None:
        """Release the name of a withdrawn request; an actor that it was to replace keeps it for the next attempt."""
        holder = self._holders.get(request.actor_name) if request.actor_name else None
        if holder is not None and (holder.client_id, holder.request_id) == (client_id, request.request_id):
            if holder.lease_id and (not holder.is_lost or request.replaces):
                holder.request_id = None
            else:
                del self._holders[request.actor_name]

    def assign(self, name: str, client_id: str, lease_id: str) -> None:
        """Assign a name to an actor that was granted a lease or reported by its worker."""
        if name:
            self._holders[name] = NameHolder(client_id, None, lease_id)

    def end(self, name: str, lease_id: str, *, is_restarting: bool) -> None:
        """Release the name of an actor that has ended, or keep it for the restart."""
        holder = self._holders.get(name) if name else None
        if holder is None or holder.lease_id != lease_id:
            return
        if is_restarting or holder.request_id is not None:
            holder.is_lost = True
        else:
            del self._holders[name]

    def forget_lost(self, client_id: str, is_over: Callable[[str], bool]) -> None:
        """Release the names that are kept for restarts by a program, those of leases that are over."""
        lost = [n for n, h in self._holders.items() if h.client_id == client_id and h.is_lost]
        for name in lost:
            if is_over(self._holders[name].lease_id):
                del self._holders[name]


_SUCCESSORS_KEPT = 10_000  # handles of an actor from many restarts ago are used again within minutes, if at all
_NEVER_MADE = frozenset((DeathKind.CONSTRUCTOR, DeathKind.IMPORT))


@dataclass(slots=True, eq=False)
class Client:
    """A program that uses the cluster.

    Attributes:
        client_id: Its id.
        name: Its displayed name.
        pid: Its process id on its host.
        host_id: Its host.
        since: The time at which it connected, on the loop's clock.
        leases: The ids of its leases.
        is_absent: Whether it is not connected; its workers watch it meanwhile.
        is_known: Whether this master has seen it; else a node has brought its leases, and it may never come back.
    """

    client_id: str
    name: str = ""
    pid: int = 0
    host_id: str = ""
    since: float = 0.0
    leases: dict[str, None] = field(default_factory=dict)
    is_absent: bool = False
    is_known: bool = True

    def __str__(self) -> str:
        return f"{self.name or self.client_id} (process {self.pid})" if self.pid else self.name or self.client_id


@dataclass(slots=True, eq=False)
class Lease:
    """The resources allocated to one actor.

    Attributes:
        lease_id: Its id.
        client_id: The client that requested it.
        node: Its node.
        resources: The amounts.
        class_name: The actor's class.
        actor_name: The actor's name for `get_actor`, empty for none.
        detached: Whether the actor outlives its client.
        restarts: The number of the actor's restarts.
        max_restarts: The maximum number of restarts; -1 for no limit.
        replaces: The lost lease whose actor was to be restarted on this one; empty for none, or if a worker brought it.
        gpus: The GPUs that the actor sees.
        since: The time at which it began, on the loop's clock.
        number: Leases count up, which is their order in lists.
        numbers: The worker's last numbers on the actor.
        ending: The order to the worker to end the actor, repeated when the worker joins again.
        is_wanted: Whether its client was requested to return it.
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
    replaces: str = ""
    gpus: tuple[str, ...] = ()
    since: float = 0.0
    number: int = 0
    numbers: ActorNumbers | None = None
    ending: EndActor | LeaseRevoked | None = None
    is_wanted: bool = False

    @property
    def may_restart(self) -> bool:
        """Return whether its client would restart the actor."""
        return self.max_restarts < 0 or self.restarts < self.max_restarts


class ClusterTables:
    """The tables, with the operations that touch more than one of them.

    Args:
        liveness_limit_s: A node that is silent for longer counts as lost.
        epoch: Unix time of the loop's zero, for records.
        started: The time at which the cluster started, on the loop's clock.
        history: Keeps nodes and events beyond the master's end.
        past: The records kept so far.
    """

    def __init__(
        self, liveness_limit_s: float, *, epoch: float, started: float, history: History, past: PreviousHistory
    ) -> None:
        self.history = history
        self.events = EventLog(epoch, started, history, past)
        self.lost = LostNodes(history)
        self.pool = NodePool()
        self.clients: dict[str, Client] = {}
        self.leases: dict[str, Lease] = {}
        self.function_workers: dict[str, Lease] = {}  # those among them that clients can give back
        self.names = ActorNames()
        self.queue = LeaseQueue()
        self.alive: Liveness[str] = Liveness(liveness_limit_s)
        self.deaths = DeathLog()
        self._successors: dict[str, str] = {}
        self._restarting: dict[str, str] = {}  # lost leases and the clients that restart their actors
        self._early: dict[str, tuple[Lease, float]] = {}  # restarts, by lease, of which the loss is not reported yet
        self._numbers = itertools.count(1)

    def record(self, lease: Lease, gpus: tuple[str, ...] | None = None) -> None:
        """Record a new lease; `gpus` are those that its actor has already, None selects them."""
        lease.number = next(self._numbers)
        lease.gpus = self.pool.take(lease.node, lease.resources, gpus)
        self.leases[lease.lease_id] = lease
        if lease.class_name == FUNCTION_WORKER:
            self.function_workers[lease.lease_id] = lease
        self.clients[lease.client_id].leases[lease.lease_id] = None
        lease.node.leases[lease.lease_id] = None

    def free(self, lease_id: str, cause: DeathCause | None = None) -> Lease:
        """End a lease: with its cause, or because its client released it."""
        lease = self.leases.pop(lease_id)
        self.function_workers.pop(lease_id, None)
        client = self.clients.get(lease.client_id)
        if client is not None:
            client.leases.pop(lease_id, None)
            if not client.is_known and not client.leases:
                del self.clients[lease.client_id]
        lost = cause is not None and cause.kind.is_loss and cause.kind is not DeathKind.KILLED_BY_USER
        if lost and lease.may_restart and client is not None and client.is_known:
            if cause is None or cause.kind not in _NEVER_MADE:
                if lease_id not in self._successors:  # else its client, which the worker notifies as well, was faster
                    self._restarting[lease_id] = lease.client_id
            elif lease.replaces:
                self.restart_failed(lease.client_id, lease_id, lease.replaces)
        self.names.end(lease.actor_name, lease_id, is_restarting=self.is_restarting(lease_id))
        lease.node.leases.pop(lease_id, None)
        self.pool.give(lease.node, lease.resources, lease.gpus)
        if cause is not None:
            death = self.record_of(lease, cause)
            self.deaths.add(death)
            self.events.death(death, lease.node)
        if early := self._early.pop(lease_id, None):
            self._add_restart(*early)
        return lease

    def record_of(self, lease: Lease, cause: DeathCause) -> DeathRecord:
        """Return the death record of a lease's actor."""
        return DeathRecord(
            lease_id=lease.lease_id,
            class_name=lease.class_name,
            name=lease.actor_name,
            client_id=lease.client_id,
            owner=self.owner_of(lease.client_id),
            node_id=lease.node.node_id,
            restarts=lease.restarts,
            cause=cause,
            node_address=lease.node.address,
        )

    def owner_of(self, client_id: str) -> str:
        """Return a client's displayed name, empty if it is gone."""
        client = self.clients.get(client_id)
        return str(client) if client is not None and not client.is_absent else ""

    def called(self, text: str) -> Lease | None:
        """Return the actor with that name or lease; a replaced lease leads to its replacement."""
        holder = self.names.get(text)
        return self.leases.get(self._latest(holder.lease_id if holder is not None and not holder.is_lost else text))

    def _latest(self, lease_id: str) -> str:
        for _ in range(_SUCCESSORS_KEPT):
            if lease_id in self.leases or lease_id not in self._successors:
                break
            lease_id = self._successors[lease_id]
        return lease_id

    def is_restarting(self, text: str) -> bool:
        """Return whether the actor with that name or lease, or its latest replacement, is lost and being restarted."""
        holder = self.names.get(text)
        return self._latest(text if holder is None else holder.lease_id) in self._restarting

    def lost_record(self, text: str) -> DeathRecord | None:
        """Return the death record of the actor with that name or lease if it is being restarted, else None."""
        holder = self.names.get(text)
        lease_id = self._latest(text if holder is None else holder.lease_id)
        client_id = self._restarting.get(lease_id)
        if client_id is None:
            return None
        unknown = DeathRecord(
            lease_id=lease_id,
            class_name="",
            name="" if holder is None else text,
            client_id=client_id,
            owner=self.owner_of(client_id),
            node_id="",
            restarts=0,
            cause=DeathCause(DeathKind.EXIT, detail="its record is no longer kept"),
        )
        return next(iter(self.deaths.latest(1, lease_id=lease_id)), unknown)

    def cancel_restarts(self, client_id: str, lease_id: str | None = None) -> bool:
        """Record that a client does not restart an actor, or any of its actors; return whether it was going to."""
        given_up = [old for old, whose in self._restarting.items() if whose == client_id and lease_id in {None, old}]
        for old in given_up:
            del self._restarting[old]
        self.names.forget_lost(client_id, lambda held: lease_id is None or self._latest(held) == lease_id)
        return bool(given_up)

    def replace(self, lost_lease_id: str, new_lease_id: str) -> None:
        """Redirect handles of a lost actor to its replacement."""
        self._restarting.pop(lost_lease_id, None)
        self._redirect(lost_lease_id, new_lease_id)

    def restart_failed(self, client_id: str, lease_id: str, lost_lease_id: str) -> None:
        """Record that a client restarts a lost actor after a failed attempt on a lease; look-ups of that one wait."""
        self._restarting.pop(lease_id, None)
        self._restarting[lost_lease_id] = client_id
        self._successors.pop(lost_lease_id, None)
        self._redirect(lease_id, lost_lease_id)

    def _redirect(self, lease_id: str, to: str) -> None:
        self._successors.pop(lease_id, None)  # so that it is the newest
        self._successors[lease_id] = to
        while len(self._successors) > _SUCCESSORS_KEPT:
            del self._successors[next(iter(self._successors))]

    def note_restart(self, lost_lease_id: str, lease: Lease, now: float) -> None:
        """Add the restart of a lost actor, which has got this lease, to the events, once its loss is among them."""
        if lost_lease_id in self.leases:  # its client, which hears from the worker as well, was faster
            self._early[lost_lease_id] = lease, now
        else:
            self._add_restart(lease, now)

    def _add_restart(self, lease: Lease, now: float) -> None:
        actor = ActorNamed(lease.lease_id, lease.class_name, lease.actor_name, self.owner_of(lease.client_id))
        self.events.restart(actor, lease.node, lease.restarts, lease.max_restarts, now)

    def leases_after(self, number: int) -> Iterator[Lease]:
        """Yield leases in order, from the one after `number`."""
        return (lease for lease in self.leases.values() if lease.number > number)


@record
class ToClient(Record):
    """Send a message to a client."""

    client_id: str
    message: Message


@record
class ToNode(Record):
    """Send a message to a worker."""

    node_id: str
    message: Message


@record
class DropNode(Record):
    """Close the connection to a lost worker."""

    node_id: str
    reason: str


Instruction: TypeAlias = ToClient | ToNode | DropNode
