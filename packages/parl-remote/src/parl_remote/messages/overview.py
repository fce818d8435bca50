"""The cluster looked at and steered from outside, by `xparl`, the monitor and whoever asks: all of it to the master.

    who asks -> master   ListActors   -> ActorList      a page of actors, with what their workers say of them
                         ListNodes    -> NodeList       every worker in detail
                         ListDeaths   -> Deaths         the latest actors that were lost, each with its record
                         KillActor    -> ActorKilled    once it has ended
                         DrainNode    -> DrainStarted   no new actors there; it leaves when its last one has ended
                         WhyWaiting   -> LeaseWaiting   why a request is not granted yet
    master -> client     NodeDraining                   to the owners of actors there, unasked
    worker -> master     NodeNumbers                    what its actors do, only those where something has changed
    master -> worker     EndActor                       on behalf of whoever asked for it; LeaseEnded answers
                         ForgetUnstarted                a lease whose client is away, unless its actor runs

What cannot be done is answered by `Failed`, with the reason. Times of day are Unix times in seconds, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from parl_remote.death import DeathKind, DeathRecord
from parl_remote.messages.links import GpuUse
from parl_remote.records import Message, record
from parl_remote.resources import Placement, Resources

__all__ = [
    "ActorKilled",
    "ActorList",
    "ActorNumbers",
    "ActorPhase",
    "ActorStatus",
    "Deaths",
    "DrainNode",
    "DrainStarted",
    "EndActor",
    "ForgetUnstarted",
    "KillActor",
    "LeaseWaiting",
    "ListActors",
    "ListDeaths",
    "ListNodes",
    "NodeDetail",
    "NodeDraining",
    "NodeList",
    "NodeNumbers",
    "NodePhase",
    "WhyWaiting",
]


class ActorPhase(Enum):
    """What an actor does, as its worker saw it last.

    STARTING: it has resources, and no process yet. IDLE: it waits for calls. BUSY: it runs its constructor or a call.
    STOPPED: somebody has stopped its process with a signal. ENDING: it was asked to end.
    """

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    STOPPED = "stopped"
    ENDING = "ending"


class NodePhase(Enum):
    """Whether a node takes actors.

    UP: it does. DRAINING: no more, and it leaves when the last one has ended. DRAINED: it has none left and takes none,
    but cannot leave, because the master runs in it.
    """

    UP = "up"
    DRAINING = "draining"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class ActorNumbers:
    """What a worker says of one actor; counters that it cannot know are 0.

    Attributes:
        lease_id: Which one.
        phase: What it does.
        pid: Its process on the worker's host, 0 before it has one.
        calls: How many calls it has answered.
        errors: How many of them raised.
        queued: How many calls wait in it.
        busy_with: The method that runs (the one that began last, where several do), empty if none does.
        busy_since: When that began; 0 if none runs.
        busy_s: Seconds that it has spent in calls so far, added up over calls that ran at the same time.
        cpu_s: CPU time that its process has used.
        calls_per_s: Calls that it has answered per second of late, some two seconds.
        busy: Seconds that it has spent in calls per second of late; above 1 where calls run at the same time.
        cpu: CPUs that its process has used of late.
        memory: Bytes of its process in memory.
        memory_limit: Bytes that its process may grow by, None for no limit.
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
    """A worker tells the master what its actors do: those of which something has changed since it told last."""

    actors: tuple[ActorNumbers, ...]


@record
class ListActors(Message):
    """Asks for ActorList.

    Attributes:
        request_id: The asker's number for it.
        after: Where the page before ended (`ActorList.next`), 0 for the first one.
        limit: How many at most, 1 to 2,000; a thousand take some tens of milliseconds.
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
        name: What `get_actor` finds it by, empty for none.
        class_name: Its class.
        client_id: The client that made it.
        owner: That client for people: its program's name and process number; empty where it is gone.
        node_id: The worker that it runs on.
        node: That worker's name.
        resources: What is set aside for it.
        gpus: The GPUs that it sees, as its node names them.
        age_s: Seconds since it got its resources, or since the master learned of it.
        numbers: What its worker said last.
        restarts: How often it was made again.
        detached: Whether it outlives its program.
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


@record
class ActorList(Message):
    """A page of actors, the oldest first.

    Attributes:
        request_id: Which request this answers.
        actors: Those of this page.
        total: How many actors the cluster has.
        next: What to give as `after` for the next page; None if this is the last one.
    """

    request_id: int
    actors: tuple[ActorStatus, ...]
    total: int
    next: int | None = None


@record
class ListNodes(Message):
    """Asks for NodeList.

    Attributes:
        request_id: The asker's number for it.
        after: Where the page before ended (`NodeList.next`), 0 for the first one.
        limit: How many at most; a hundred take some milliseconds.
    """

    request_id: int
    after: int = 0
    limit: int = 1_000_000


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """One worker as the master sees it.

    Attributes:
        node_id: Its id.
        name: Its host's name.
        addresses: "host:port", as peers on other hosts reach it.
        host_id: Equal for nodes of one host.
        pid: Its process number there.
        phase: Whether it takes actors.
        is_master: Whether the master runs in it.
        total: Its resources.
        free: What of that is free.
        gpus: Its GPUs, as CUDA_VISIBLE_DEVICES names them.
        gpus_free: The free share of each, 0 to 1.
        actors: How many run there.
        load: Its load average over one minute.
        cpu_busy: The share of its host's CPUs that was busy between its last two heartbeats, 0 to 1.
        memory_total: Its host's memory.
        memory_free: What of that could still be given.
        age_s: Seconds since it joined.
        silent_s: Seconds since its last sign of life.
        versions: Versions of parl_remote and python there.
        gpu_use: How busy its GPUs are, those of which that is known.
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


@record
class NodeList(Message):
    """A page of workers, in the order in which they joined; `next` begins the next one, None after the last."""

    request_id: int
    nodes: tuple[NodeDetail, ...]
    next: int | None = None


@record
class ListDeaths(Message):
    """Asks for Deaths.

    Attributes:
        request_id: The asker's number for it.
        limit: How many at most, 1 to 1,000.
        client_id: Only those of actors that this client had made; empty for all.
        lease_id: Only this actor's; empty for all.
        released: Whether to list, too, actors that their program had let go of; the last 200 of these are kept.
    """

    request_id: int
    limit: int = 100
    client_id: str = ""
    lease_id: str = ""
    released: bool = False


@record
class Deaths(Message):
    """Actors that were lost, the latest first; the master keeps the last 1,000.

    Those whose program ended are not among them, and those that it let go of only if asked for.

    Attributes:
        request_id: Which request this answers.
        deaths: Their records.
        total: How many actors have been lost since the master started, also those that it no longer keeps.
    """

    request_id: int
    deaths: tuple[DeathRecord, ...]
    total: int


@record
class KillActor(Message):
    """Asks for the end of an actor: at once, for good (it is not restarted), whoever owns it.

    Attributes:
        request_id: The asker's number for it.
        actor: Its lease_id, or its name.
        reason: For whoever is told of its end; empty for none.
    """

    request_id: int
    actor: str
    reason: str = ""


@record
class ActorKilled(Message):
    """It has ended, and its resources are free; the record says so, or that it had died of something else just then."""

    request_id: int
    death: DeathRecord


@record
class DrainNode(Message):
    """Asks that a worker takes no more actors, and leaves the cluster when the last one has ended.

    Programs with actors there are told (NodeDraining); those with `max_restarts` may move at once. What still runs when
    the time is up is asked to finish what it was sent and end, and killed if it does not.

    Attributes:
        request_id: The asker's number for it.
        node: Its id, or its name if no other node has that.
        timeout_s: Seconds until actors are asked to end, 0 for at once; None waits as long as they take.
        reason: For whoever is told; empty for none.
    """

    request_id: int
    node: str
    timeout_s: float | None = None
    reason: str = ""


@record
class DrainStarted(Message):
    """The node takes no more actors; ListNodes shows how far it is, and no longer shows it once it has left.

    Attributes:
        request_id: Which request this answers.
        node_id: Its id.
        node: Its name.
        actors: How many it still runs.
        leaves: Whether it leaves; the node that the master runs in stays, without actors.
    """

    request_id: int
    node_id: str
    node: str
    actors: int
    leaves: bool


@record
class NodeDraining(Message):
    """To the owner of actors on a node that is being drained.

    Attributes:
        node_id: The node.
        node: Its name.
        lease_ids: The owner's actors there.
        timeout_s: Seconds until they are asked to end; None if they may take as long as they like.
        reason: What whoever asked for it said.
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
        lease_id: Which one.
        kind: The cause to report.
        detail: The cause in words.
        grace_s: How long it may take to finish what it was sent; 0 kills it at once.
    """

    lease_id: str
    kind: DeathKind
    detail: str = ""
    grace_s: float = 0.0


@record
class ForgetUnstarted(Message):
    """The lease's client broke off: end the lease if nobody has asked for its actor, or does so within a second.

    Of clients with running actors the worker knows by itself whether they live; this one may never have come to it.
    """

    lease_id: str


@record
class WhyWaiting(Message):
    """Asks why this client's LeaseRequest `waiting` is not granted yet; Failed if it is not waiting."""

    request_id: int
    waiting: int


@record
class LeaseWaiting(Message):
    """Why a request waits.

    Attributes:
        request_id: Which request this answers.
        reason: Which kind is short, with amounts, or behind whom it waits.
        ahead: How many requests of the same shape came earlier.
        waited_s: Seconds since it came.
        placement: Where it wants to go.
    """

    request_id: int
    reason: str
    ahead: int
    waited_s: float
    placement: Placement
