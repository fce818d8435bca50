"""Between client and master: asking for room, giving it back, the cluster's status, its end."""

from __future__ import annotations

from parl_remote.death import DeathCause
from parl_remote.messages.base import Message
from parl_remote.messages.links import RefusalCode
from parl_remote.placement import Placement
from parl_remote.records import Record, record
from parl_remote.resources import Resources

__all__ = [
    "ClientStatus",
    "LeaseCancel",
    "LeaseGranted",
    "LeaseLost",
    "LeaseRefused",
    "LeaseRelease",
    "LeaseRequest",
    "LeasesHeld",
    "NodeStatus",
    "Shutdown",
    "Status",
    "StatusRequest",
    "WaitingStatus",
]


@record
class LeaseRequest(Message):
    """A client wants room for one actor.

    Attributes:
        request_id: The client's number for it.
        resources: What the actor needs.
        timeout_s: How long to queue while the cluster is full; None waits as long as it takes, 0 does not queue.
        class_name: The actor's class, for status.
        placement: Where to put it among the nodes that have room.
        actor_name: What `get_actor` finds it by, unique in the cluster; empty for an actor without a name.
        detached: Whether it outlives its client.
        replaces: The lease of the actor that this one is the restart of; empty for a new one. Names and handles of
            that one lead to this one from then on.
        restarts: How often the actor has been restarted by now.
        max_restarts: How often its client will make it again when it is lost; -1 for as often as needed.
        node: The only node that it may go to, by its name or id; empty for any.
    """

    request_id: int
    resources: Resources
    timeout_s: float | None = None
    class_name: str = ""
    placement: Placement = Placement.SPREAD
    actor_name: str = ""
    detached: bool = False
    replaces: str = ""
    restarts: int = 0
    max_restarts: int = 0
    node: str = ""


@record
class LeaseCancel(Message):
    """The client does not want it any more; answered by LeaseRefused(CANCELLED) unless it was answered before."""

    request_id: int


@record
class LeaseRelease(Message):
    """The client is done with a lease; the worker ends the actor."""

    lease_id: str


@record
class LeasesHeld(Message):
    """A client that comes back says which leases it has; others of its were granted by an answer that got lost."""

    leases: tuple[str, ...]


@record
class LeaseGranted(Message):
    """Room for one actor, and where.

    Attributes:
        request_id: Which request this answers.
        lease_id: The lease, named on every later message about it.
        node_id: The worker that holds the room.
        node_addresses: "host:port" of the worker, as peers on other hosts reach it.
        socket_dir: The worker's private directory of unix sockets, usable on its own host.
        host_id: The worker's host.
    """

    request_id: int
    lease_id: str
    node_id: str
    node_addresses: tuple[str, ...]
    socket_dir: str
    host_id: str


@record
class LeaseRefused(Message):
    """No room: `reason` says what was asked and what the cluster has."""

    request_id: int
    code: RefusalCode
    reason: str
    asked: str = ""
    available: str = ""


@record
class LeaseLost(Message):
    """A granted lease is gone, and the actor with it."""

    lease_id: str
    cause: DeathCause


@record
class StatusRequest(Message):
    """Asks for Status; `detail` adds one entry a client, one a node if `nodes` says so, and who waits."""

    request_id: int
    detail: bool = True
    nodes: bool = True


@record
class NodeStatus(Record):
    """One worker as the master sees it; `silent_s` is the time since its last sign of life."""

    node_id: str
    name: str
    addresses: tuple[str, ...]
    total: Resources
    free: Resources
    leases: int
    load: float
    memory_free: int
    silent_s: float
    is_draining: bool = False


@record
class ClientStatus(Record):
    """One program that uses the cluster; `host_id` is its host's, `age_s` the time since it connected."""

    client_id: str
    name: str
    pid: int
    leases: int
    waiting: int
    host_id: str = ""
    age_s: float = 0.0


@record
class WaitingStatus(Record):
    """Requests of one program that wait for the same.

    Attributes:
        client_id: Who asked.
        owner: That client for people: its program's name and process number.
        class_name: The actors' class.
        resources: What each of them needs.
        count: How many they are.
        waited_s: How long the first of them has been waiting.
        reason: Why it waits: which kind is short, with amounts, or behind whom it is.
    """

    client_id: str
    owner: str
    class_name: str
    resources: Resources
    count: int
    waited_s: float
    reason: str


@record
class Status(Message):
    """The cluster at one moment; resources are sums over all nodes.

    With detail, `queue` says who waits for what and why, the longest waiting first, up to 100 entries.
    """

    request_id: int
    cluster_id: str
    uptime_s: float
    total: Resources
    free: Resources
    leases: int
    waiting: int
    node_count: int
    client_count: int
    dropped: int
    nodes: tuple[NodeStatus, ...] = ()
    clients: tuple[ClientStatus, ...] = ()
    queue: tuple[WaitingStatus, ...] = ()


@record
class Shutdown(Message):
    """Ends the cluster; answered by Bye."""

    request_id: int
