"""Leases and actors: between client and master, client and worker, worker and master.

client <-> master   a request for resources, the grant or refusal, their release; the cluster's status and end
client <-> worker   starting and stopping the actor of a lease, and its end
worker <-> master   a node that joins with its resources; leases that are assigned, revoked, ended
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from parl_remote._messages.links import RefusalCode
from parl_remote._records import Message, Record, record
from parl_remote._resources import Placement, Resources
from parl_remote.errors import DeathCause

__all__ = [
    "FUNCTION_WORKER",
    "ActorAttached",
    "ActorDied",
    "ActorFailed",
    "ActorStarted",
    "AttachActor",
    "ClientStatus",
    "LeaseAssigned",
    "LeaseCancel",
    "LeaseEnded",
    "LeaseGranted",
    "LeaseLost",
    "LeaseRefused",
    "LeaseRelease",
    "LeaseRequest",
    "LeaseRevoked",
    "LeaseWanted",
    "LeasesHeld",
    "NodeJoin",
    "NodeStatus",
    "RunningLease",
    "Shutdown",
    "StartActor",
    "Status",
    "StatusRequest",
    "StopActor",
    "WaitingStatus",
]

FUNCTION_WORKER = "FunctionWorker"  # the class of the actors that run functions, which their clients can give back


@record
class LeaseRequest(Message):
    """A client requests resources for one actor.

    Attributes:
        request_id: The client's number for it.
        resources: The resources that the actor needs.
        timeout_s: The time to queue while the cluster is full; None waits without limit, 0 does not queue.
        class_name: The actor's class, for status.
        placement: The policy that selects among the nodes that have enough.
        actor_name: The actor's name for `get_actor`, unique in the cluster; empty for an actor without a name.
        detached: Whether it outlives its client.
        replaces: The lease of the actor that this one restarts; empty for a new one. Name and handles of that actor
            lead to this one from then on.
        restarts: The number of restarts so far.
        max_restarts: The maximum number of restarts by its client; -1 for no limit.
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
    """Withdraw a lease request; answered by LeaseRefused(CANCELLED) unless it was answered before."""

    request_id: int


@record
class LeaseRelease(Message):
    """Release a lease; the worker ends the actor.

    Attributes:
        lease_id: The lease.
        replaces: The lost lease whose actor the client restarts on another lease, because that failed on this one; else
            empty.
    """

    lease_id: str
    replaces: str = ""


@record
class LeasesHeld(Message):
    """The leases of a client that reconnects; its others were granted by an answer that got lost."""

    leases: tuple[str, ...]


@record
class LeaseGranted(Message):
    """The grant of a lease, and its worker.

    Attributes:
        request_id: The number of the request.
        lease_id: The lease, named on every later message about it.
        node_id: The worker that holds the resources.
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
    """The refusal of a lease; `reason` has the requested resources and those of the cluster."""

    request_id: int
    code: RefusalCode
    reason: str
    asked: str = ""
    available: str = ""


@record
class LeaseLost(Message):
    """A granted lease and its actor are lost."""

    lease_id: str
    cause: DeathCause


@record
class LeaseWanted(Message):
    """A worker of functions is to be given back between two items, because another client waits for its resources."""

    lease_id: str


@record
class StatusRequest(Message):
    """Request Status; `detail` adds the clients, the queue and, if `nodes` is set, the nodes."""

    request_id: int
    detail: bool = True
    nodes: bool = True


@record
class NodeStatus(Record):
    """The master's view of one worker; `silent_s` is the time since its last sign of life.

    Of a lost node `lost_at` is the Unix time of the loss, `cause` its cause, and `leases` the number of actors lost
    with it.
    """

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
    lost_at: float | None = None
    cause: str = ""


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
    """Pending requests of one program for equal resources.

    Attributes:
        client_id: The client.
        owner: That client for display: its program's name and process id.
        class_name: The actors' class.
        resources: The resources that each of them needs.
        count: The number of requests.
        waited_s: The time for which the first of them has been waiting.
        reason: The reason: the kind that is short, with amounts, or the request ahead of it.
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
    """A snapshot of the cluster; resources are sums over all nodes, the memory of one host counted once.

    `away_count` is the number of programs whose connection broke and whose actors wait for their return; they are not
    in `client_count`. With detail, `queue` has the pending requests with the reasons, the longest waiting first, up to
    100 entries. `lost` has the lost nodes whose loss is not acknowledged; they are not among `nodes`.
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
    lost: tuple[NodeStatus, ...] = ()
    away_count: int = 0


@record
class Shutdown(Message):
    """Request the end of the cluster; answered by Bye."""

    request_id: int


@record
class StartActor(Message):
    """Request to a worker to start a process on the client's lease; the class itself follows in the call path.

    Attributes:
        lease_id: The lease.
        class_name: The actor's class, for logs and status.
        memory_limit: Bytes of resident memory after which the worker ends the actor; None has no limit.
        environment: Variables to set in the actor's process.
        working_dir: Directory to run in, None for the worker's own.
    """

    lease_id: str
    class_name: str = ""
    memory_limit: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None


@record
class StopActor(Message):
    """Request to a worker to end an actor's process at once."""

    lease_id: str
    reason: str = ""


@record
class AttachActor(Message):
    """Turn this link into a connection to an actor, for a client on another host; later messages are for it."""

    lease_id: str


@record
class ActorAttached(Message):
    """The last message on a sealed link before its socket goes to the actor; until then nothing may follow AttachActor.

    On other links, whose messages the worker relays, there is no answer.
    """

    lease_id: str


@record
class ActorStarted(Message):
    """The process on the lease listens at `address`, a unix socket's path on the worker's host."""

    lease_id: str
    address: str
    pid: int


@record
class ActorFailed(Message):
    """The report that no process could be started on the lease."""

    lease_id: str
    reason: str


@record
class ActorDied(Message):
    """The process on the lease has ended."""

    lease_id: str
    cause: DeathCause


@record
class RunningLease(Record):
    """A running lease that a worker reports when it rejoins, because its client is connected to the worker.

    Attributes:
        lease_id: Its id.
        client_id: The client that made the actor.
        resources: The resources allocated to it.
        class_name: The actor's class.
        actor_name: The actor's name in the cluster.
        detached: Whether it outlives its client; it is reported without one, too.
        restarts: The number of its restarts.
        max_restarts: The maximum number of restarts by its client.
        gpus: The GPUs that it sees.
        age_s: The time since it began.
    """

    lease_id: str
    client_id: str
    resources: Resources
    class_name: str = ""
    actor_name: str = ""
    detached: bool = False
    restarts: int = 0
    max_restarts: int = 0
    gpus: tuple[str, ...] = ()
    age_s: float = 0.0


@record
class NodeJoin(Message):
    """A worker states its resources and names the leases that already run on it.

    Attributes:
        node_id: The worker's id.
        host_id: The worker's host.
        addresses: "host:port", as peers on other hosts reach it.
        socket_dir: Its private directory of unix sockets, usable on its own host.
        resources: Its resources.
        leases: Its running leases.
        name: Its displayed name.
        gpus: Its GPUs, as CUDA_VISIBLE_DEVICES names them; as many as it shares.
    """

    node_id: str
    host_id: str
    addresses: tuple[str, ...]
    socket_dir: str
    resources: Resources
    leases: tuple[RunningLease, ...] = ()
    name: str = ""
    gpus: tuple[str, ...] = ()


@record
class LeaseAssigned(Message):
    """A client's lease on a worker; `gpus` are those that the actor will see."""

    lease_id: str
    client_id: str
    resources: Resources
    class_name: str = ""
    actor_name: str = ""
    detached: bool = False
    restarts: int = 0
    max_restarts: int = 0
    gpus: tuple[str, ...] = ()


@record
class LeaseRevoked(Message):
    """Command to a worker to end the lease's actor, if there is one, and forget the lease.

    The resources are free for the master at once and the worker ends the process at once, so no answer is needed.
    """

    lease_id: str
    reason: str


@record
class LeaseEnded(Message):
    """A lease's actor has ended on the worker."""

    lease_id: str
    cause: DeathCause
