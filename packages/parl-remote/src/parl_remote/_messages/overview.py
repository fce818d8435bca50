"""Messages to the master for inspecting and controlling the cluster, by `xparl`, the monitor and other clients.

    client -> master     ListActors   -> ActorList      a page of actors, with their workers' numbers
                         ListNodes    -> NodeList       every worker in detail
                         ListDeaths   -> Deaths         the latest actors that were lost, each with its record
                         KillActor    -> ActorKilled    once it has ended
                         DrainNode    -> DrainStarted   no new actors there; it leaves when its last one has ended
                         ExplainWaiting   -> LeaseWaiting   the reason why a request is not granted yet
                         ListEvents   -> Events         the events from a position on, or the latest
                         AcknowledgeNodes -> NodesAcknowledged   lost nodes leave the list of nodes
    master -> client     NodeDraining                   to the owners of actors there, unsolicited
    worker -> master     NodeNumbers                    the state of its actors, only of those that have changed
    master -> worker     EndActor                       on behalf of a client; answered by LeaseEnded
                         ForgetUnstarted                a lease whose client is away, unless its actor runs

A request that fails is answered by `Failed`, with the reason. Times of day are Unix times in seconds, sizes are
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from parl_remote._messages.links import GpuUse
from parl_remote._records import Message, Record, record
from parl_remote._resources import Placement, Resources
from parl_remote.errors import DeathCause, DeathKind

__all__ = [
    "AcknowledgeNodes",
    "ActorKilled",
    "ActorList",
    "ActorNumbers",
    "ActorPhase",
    "ActorStatus",
    "ClusterEvent",
    "DeathRecord",
    "Deaths",
    "DrainNode",
    "DrainStarted",
    "EndActor",
    "EventKind",
    "Events",
    "ExplainWaiting",
    "ForgetUnstarted",
    "KillActor",
    "LeaseWaiting",
    "ListActors",
    "ListDeaths",
    "ListEvents",
    "ListNodes",
    "NodeDetail",
    "NodeDraining",
    "NodeList",
    "NodeNumbers",
    "NodePhase",
    "NodesAcknowledged",
]


class ActorPhase(Enum):
    """The state of an actor as its worker last saw it.

    STARTING: it has resources, and no process yet. IDLE: it waits for calls. BUSY: it runs its constructor or a call.
    STOPPED: its process is stopped by a signal. ENDING: it was asked to end.
    """

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    STOPPED = "stopped"
    ENDING = "ending"


class NodePhase(Enum):
    """The state of a node, which decides whether it takes actors.

    UP: it does. DRAINING: no more, and it leaves when the last one has ended. DRAINED: it has none left and takes none,
    but cannot leave, because the master runs in it. LOST: it broke off or fell silent, and is not in the cluster now.
    """

    UP = "up"
    DRAINING = "draining"
    DRAINED = "drained"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class ActorNumbers:
    """A worker's numbers on one actor; unknown counters are 0.

    Attributes:
        lease_id: The actor's lease.
        phase: Its state.
        pid: Its process id on the worker's host, 0 before it has one.
        calls: The number of calls that it has answered.
        errors: The number of them that raised.
        queued: The number of calls queued in it.
        busy_with: The method that runs (the one that began last, where several do), empty if none does.
        busy_since: The time at which that method began; 0 if none runs.
        busy_s: Seconds spent in calls so far, summed over concurrent calls.
        cpu_s: CPU time that its process has used.
        calls_per_s: Recent rate of answered calls per second, over some two seconds.
        busy: Recent seconds in calls per second; above 1 with concurrent calls.
        cpu: Recent CPU usage of its process, in CPUs.
        memory: Resident memory of its process in bytes.
        memory_limit: The growth that its process is allowed, in bytes; None for no limit.
        last_error: The last exception that a call of it raised, in one line; empty if none did.
    """

    lease_id: str
    phase: ActorPhase
    pid: int = 0
    calls: int = 0
    errors: int = 0
    queued: int = 0
    busy_with: str = ""
    busy_since: float = 0.0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    calls_per_s: float = 0.0
    busy: float = 0.0
    cpu: float = 0.0
    memory: int = 0
    memory_limit: int | None = None
    last_error: str = ""


@record
class NodeNumbers(Message):
    """A worker's numbers on its actors: those that have changed since the last message."""

    actors: tuple[ActorNumbers, ...]


@record
class ListActors(Message):
    """Request ActorList.

    Attributes:
        request_id: The client's number for it.
        after: The end of the previous page (`ActorList.next`), 0 for the first one.
        limit: The maximum number, 1 to 2,000; a thousand take some tens of milliseconds.
        node: Only those on this node, by its id or its name; empty for all.
        client_id: Only those of this client; empty for all.
    """

    request_id: int
    after: int = 0
    limit: int = 1000
    node: str = ""
    client_id: str = ""


@dataclass(frozen=True, slots=True)
class ActorStatus:
    """One actor of a cluster.

    Attributes:
        lease_id: Its id.
        name: Its name for `get_actor`, empty for none.
        class_name: Its class.
        client_id: The client that made it.
        owner: That client for display: its program's name and process id; empty if it is gone.
        node_id: The worker that it runs on.
        node: That worker's name.
        resources: The resources allocated to it.
        gpus: The GPUs that it sees, as its node names them.
        age_s: Seconds since it got its resources, or since the master learned of it.
        numbers: Its worker's last numbers on it.
        restarts: The number of its restarts.
        detached: Whether it outlives its program.
        node_address: That worker's address, "host:port"; empty in a private cluster.
    """

    lease_id: str
    name: str
    class_name: str
    client_id: str
    owner: str
    node_id: str
    node: str
    resources: Resources
    gpus: tuple[str, ...]
    age_s: float
    numbers: ActorNumbers
    restarts: int
    detached: bool
    node_address: str = ""


@record
class ActorList(Message):
    """A page of actors, the oldest first.

    Attributes:
        request_id: The number of the request.
        actors: The actors of this page.
        total: The number of actors of the cluster.
        next: The `after` of the next page; None if this is the last one.
    """

    request_id: int
    actors: tuple[ActorStatus, ...]
    total: int
    next: int | None = None


@record
class ListNodes(Message):
    """Request NodeList.

    Attributes:
        request_id: The client's number for it.
        after: The end of the previous page (`NodeList.next`), 0 for the first one.
        limit: The maximum number; a hundred take some milliseconds.
        lost: Whether to include lost nodes whose loss is not acknowledged.
    """

    request_id: int
    after: int = 0
    limit: int = 1_000_000
    lost: bool = False


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """The master's view of one worker.

    Attributes:
        node_id: Its id.
        name: Its host's name.
        addresses: "host:port", as peers on other hosts reach it.
        host_id: Equal for nodes of one host.
        pid: Its process id there.
        phase: Whether it takes actors.
        is_master: Whether the master runs in it.
        total: Its resources.
        free: Its free resources.
        gpus: Its GPUs, as CUDA_VISIBLE_DEVICES names them.
        gpus_free: The free share of each, 0 to 1.
        actors: The number of actors that run there; of a lost node, of those lost with it.
        load: Its load average over one minute.
        cpu_busy: The utilization of its host's CPUs between its last two heartbeats, 0 to 1.
        memory_total: Its host's memory.
        memory_free: Its host's available memory.
        age_s: Seconds since it joined.
        silent_s: Seconds since its last sign of life.
        versions: Versions of parl_remote and python there.
        gpu_use: The utilization of its GPUs, as far as known.
        lost_at: The time of its loss, Unix time; None while it is in the cluster. The numbers of a lost node are its
            last.
        cause: The cause of its loss.
    """

    node_id: str
    name: str
    addresses: tuple[str, ...]
    host_id: str
    pid: int
    phase: NodePhase
    is_master: bool
    total: Resources
    free: Resources
    gpus: tuple[str, ...]
    gpus_free: tuple[float, ...]
    actors: int
    load: float
    cpu_busy: float
    memory_total: int
    memory_free: int
    age_s: float
    silent_s: float
    versions: Mapping[str, str] = field(default_factory=dict)
    gpu_use: tuple[GpuUse, ...] = ()
    lost_at: float | None = None
    cause: str = ""


@record
class NodeList(Message):
    """A page of workers in the order in which they joined, then of lost ones; `next` begins the next page, if any."""

    request_id: int
    nodes: tuple[NodeDetail, ...]
    next: int | None = None


@record
class DeathRecord(Record):
    """The record of one actor's end, for status displays.

    Attributes:
        lease_id: The actor's id.
        class_name: Its class.
        name: Its name for `get_actor`, empty for none.
        client_id: The client that made it.
        owner: That client for display: its program's name and process id.
        node_id: The worker that it ran on.
        restarts: The number of its restarts.
        cause: The cause, place and time of its end.
        node_address: That worker's address, "host:port"; empty in a private cluster.
    """

    lease_id: str
    class_name: str
    name: str
    client_id: str
    owner: str
    node_id: str
    restarts: int
    cause: DeathCause
    node_address: str = ""


@record
class ListDeaths(Message):
    """Request Deaths.

    Attributes:
        request_id: The client's number for it.
        limit: The maximum number, 1 to 1,000.
        client_id: Only those of actors that this client made; empty for all.
        lease_id: Only this actor's; empty for all.
        released: Whether to include actors that their program released; the last 200 of these are kept.
    """

    request_id: int
    limit: int = 100
    client_id: str = ""
    lease_id: str = ""
    released: bool = False


@record
class Deaths(Message):
    """Lost actors, the latest first; the master keeps the last 1,000.

    Actors whose program ended are not among them, and those that it released only if requested.

    Attributes:
        request_id: The number of the request.
        deaths: Their records.
        total: The number of actors lost since the master started, including those no longer kept.
    """

    request_id: int
    deaths: tuple[DeathRecord, ...]
    total: int


@record
class KillActor(Message):
    """Request the end of an actor: at once, for good (it is not restarted), whatever program owns it.

    Attributes:
        request_id: The client's number for it.
        actor: Its lease_id, or its name.
        reason: The reason reported with its end; empty for none.
    """

    request_id: int
    actor: str
    reason: str = ""


@record
class ActorKilled(Message):
    """The actor has ended and its resources are free; `death` has the actual cause, which may be an earlier one."""

    request_id: int
    death: DeathRecord


@record
class DrainNode(Message):
    """Request that a worker takes no more actors, and leaves the cluster when the last one has ended.

    Programs with actors there are notified (NodeDraining); actors with `max_restarts` may move at once. Actors that
    still run at the deadline are asked to finish their calls and end, and killed if they do not.

    Attributes:
        request_id: The client's number for it.
        node: Its id, or its name if no other node has that.
        timeout_s: Seconds until actors are asked to end, 0 for at once; None waits without limit.
        reason: The reason reported to programs; empty for none.
    """

    request_id: int
    node: str
    timeout_s: float | None = None
    reason: str = ""


@record
class DrainStarted(Message):
    """The node takes no more actors; ListNodes shows its progress until it has left.

    Attributes:
        request_id: The number of the request.
        node_id: Its id.
        node: Its name.
        actors: The number of actors that it still runs.
        leaves: Whether it leaves; the node that the master runs in stays, without actors.
    """

    request_id: int
    node_id: str
    node: str
    actors: int
    leaves: bool


@record
class NodeDraining(Message):
    """Notification to the owner of actors on a node that is being drained.

    Attributes:
        node_id: The node.
        node: Its name.
        lease_ids: The owner's actors there.
        timeout_s: Seconds until they are asked to end; None for no limit.
        reason: The reason given with the request.
    """

    node_id: str
    node: str
    lease_ids: tuple[str, ...]
    timeout_s: float | None
    reason: str


@record
class EndActor(Message):
    """The worker shall end a lease's actor; the resources become free with the LeaseEnded that follows.

    Attributes:
        lease_id: The lease.
        kind: The cause to report.
        detail: The cause as text.
        grace_s: The time that it has to finish its calls; 0 kills it at once.
    """

    lease_id: str
    kind: DeathKind
    detail: str = ""
    grace_s: float = 0.0


@record
class ForgetUnstarted(Message):
    """End the lease of a disconnected client unless its actor has been requested, or is within a second.

    The worker itself detects the end of clients with running actors; this one may never have connected to it.
    """

    lease_id: str


@record
class ExplainWaiting(Message):
    """Request LeaseWaiting for this client's LeaseRequest `waiting`; answered by Failed if that is not waiting."""

    request_id: int
    waiting: int


@record
class LeaseWaiting(Message):
    """The reason why a lease request waits.

    Attributes:
        request_id: The number of the request.
        reason: The kind that is short, with amounts, or the request ahead of it.
        ahead: The number of earlier requests of the same shape.
        waited_s: Seconds since it arrived.
        placement: Its placement policy.
        may_pass: Whether a node is large enough; else it waits for one that joins.
    """

    request_id: int
    reason: str
    ahead: int
    waited_s: float
    placement: Placement
    may_pass: bool = True


class EventKind(Enum):
    """The kinds of events.

    NODE_JOINED: a node joined, or one that was lost came back. NODE_LOST: it broke off or fell silent. NODE_LEFT: it
    was stopped. NODE_DRAINING: it takes no more actors. NODE_DRAINED: its last actor has ended. NODE_ACKNOWLEDGED: its
    loss was acknowledged. ACTOR_LOST: an actor ended without being asked to. OUT_OF_MEMORY: an actor ended because it
    passed its memory limit, or its host ran out of memory. ACTOR_RESTARTED: a lost actor has got resources again.
    """

    NODE_JOINED = "node_joined"
    NODE_LOST = "node_lost"
    NODE_LEFT = "node_left"
    NODE_DRAINING = "node_draining"
    NODE_DRAINED = "node_drained"
    NODE_ACKNOWLEDGED = "node_acknowledged"
    ACTOR_LOST = "actor_lost"
    OUT_OF_MEMORY = "out_of_memory"
    ACTOR_RESTARTED = "actor_restarted"


@record
class ClusterEvent(Record):
    """One event.

    Attributes:
        number: Its number; events count up from 1.
        at: The time of the event.
        kind: The kind of event.
        text: The same in a sentence, with the cause.
        node_id: The node concerned.
        node: That node's displayed name.
        address: That node's address, "host:port"; empty in a private cluster.
        lease_id: The actor concerned; this and the following are empty where none is.
        class_name: Its class.
        actor_name: Its name for `get_actor`.
        owner: The program that made it, for display.
    """

    number: int
    at: float
    kind: EventKind
    text: str
    node_id: str = ""
    node: str = ""
    address: str = ""
    lease_id: str = ""
    class_name: str = ""
    actor_name: str = ""
    owner: str = ""


@record
class ListEvents(Message):
    """Request Events.

    Attributes:
        request_id: The client's number for it.
        after: The number of the last event that is known; below 0 for as many of the latest ones.
        limit: The maximum number, 1 to 1,000.
    """

    request_id: int
    after: int = 0
    limit: int = 500


@record
class Events(Message):
    """Events, the oldest first; the master keeps the last 5,000.

    Attributes:
        request_id: The number of the request.
        events: The events.
        latest: The number of the latest event of all, 0 if there was none.
        since: The time at which the count began; a master that was killed and started again continues, another cluster
            counts anew.
        counts: The number of events of each kind, including those no longer kept.
    """

    request_id: int
    events: tuple[ClusterEvent, ...]
    latest: int
    since: float
    counts: Mapping[str, int] = field(default_factory=dict)


@record
class AcknowledgeNodes(Message):
    """Remove lost nodes from the list of nodes; answered by NodesAcknowledged.

    Attributes:
        request_id: The client's number for it.
        node_ids: The nodes; empty for all that are lost. One that is not lost (any more) is ignored.
    """

    request_id: int
    node_ids: tuple[str, ...] = ()


@record
class NodesAcknowledged(Message):
    """The nodes that were removed from the list."""

    request_id: int
    node_ids: tuple[str, ...]
