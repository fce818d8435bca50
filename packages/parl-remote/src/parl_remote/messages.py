"""The control plane: every message between client, master and worker, as one frozen dataclass each.

    any link          Hello -> Welcome | Refused, then Bye from whoever ends it
    client -> master  LeaseRequest, LeaseCancel, LeaseRelease, StatusRequest, Shutdown
    master -> client  LeaseGranted, LeaseRefused, LeaseLost, Status
    worker -> master  NodeJoin, LeaseEnded, Heartbeat
    master -> worker  LeaseAssigned, LeaseRevoked, Heartbeat
    client -> worker  StartActor, StopActor, or on a link of its own AttachActor, after which calls follow
    worker -> client  ActorStarted, ActorFailed, ActorDied

A message is one frame of JSON: `{"is": "LeaseRequest", "request_id": 7, ...}`. What users pass and get (pickles)
travels in further frames, opaque to everything in between. A field with a default may be missing, so that a later
version can add one without a new protocol number. Unknown messages are errors of the peer, and so are unknown fields,
save in the messages that begin and end a link: those must be readable by peers of any version.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from parl_remote.codec import from_json, to_json
from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import LocalProtocolError, RemoteProtocolError
from parl_remote.resources import Resources

__all__ = [
    "PROTOCOL_MAX",
    "PROTOCOL_MIN",
    "ActorDied",
    "ActorFailed",
    "ActorStarted",
    "AttachActor",
    "Bye",
    "ClientStatus",
    "DeathCause",
    "DeathKind",
    "Heartbeat",
    "Hello",
    "LeaseAssigned",
    "LeaseCancel",
    "LeaseEnded",
    "LeaseGranted",
    "LeaseLost",
    "LeaseRefused",
    "LeaseRelease",
    "LeaseRequest",
    "LeaseRevoked",
    "Message",
    "NodeJoin",
    "NodeStatus",
    "RefusalCode",
    "Refused",
    "Role",
    "RunningLease",
    "Shutdown",
    "StartActor",
    "Status",
    "StatusRequest",
    "StopActor",
    "Welcome",
    "decode",
    "encode",
]

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1


class Role(Enum):
    """Who speaks."""

    CLIENT = "client"
    MASTER = "master"
    WORKER = "worker"


class RefusalCode(Enum):
    """Why a peer or a request is refused."""

    VERSION = "version"
    NOT_HERE = "not_here"
    PROTOCOL = "protocol"
    TOO_LARGE = "too_large"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    STOPPING = "stopping"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message on every link.

    Attributes:
        role: Who is speaking.
        to: Whom it wants to speak to; a node's one port serves master and worker.
        id: The speaker's id, unique in time and space.
        protocol_min: Lowest protocol version spoken.
        protocol_max: Highest protocol version spoken.
        host_id: Equal on two processes exactly if they can reach each other's unix sockets' host.
        pid: The speaker's process number on its host.
        versions: Versions of parl_remote, python and so on, for messages to people.
        name: What people call the speaker: a program's name, a host's name.
    """

    role: Role
    to: Role
    id: str
    protocol_min: int
    protocol_max: int
    host_id: str
    pid: int
    versions: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The peer accepts; `protocol` is the version both will speak, `id` its own id."""

    protocol: int
    id: str
    cluster_id: str
    host_id: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """The peer does not accept; it closes the link after this."""

    code: RefusalCode
    reason: str
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender ends the link on purpose."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A client wants room for one actor.

    Attributes:
        request_id: The client's number for it.
        resources: What the actor needs.
        timeout_s: How long to queue while the cluster is full; None waits as long as it takes, 0 does not queue.
        class_name: The actor's class, for status.
    """

    request_id: int
    resources: Resources
    timeout_s: float | None = None
    class_name: str = ""


@dataclass(frozen=True, slots=True)
class LeaseCancel:
    """The client does not want it any more; answered by LeaseRefused(CANCELLED) unless it was answered before."""

    request_id: int


@dataclass(frozen=True, slots=True)
class LeaseRelease:
    """The client is done with a lease; the worker ends the actor."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class LeaseGranted:
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


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    """No room: `reason` says what was asked and what the cluster has."""

    request_id: int
    code: RefusalCode
    reason: str
    asked: str = ""
    available: str = ""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A granted lease is gone, and the actor with it."""

    lease_id: str
    cause: DeathCause


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """Asks for Status; `detail` adds one entry a node and a client."""

    request_id: int
    detail: bool = True


@dataclass(frozen=True, slots=True)
class NodeStatus:
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


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """One program that uses the cluster."""

    client_id: str
    name: str
    pid: int
    leases: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Status:
    """The cluster at one moment; resources are sums over all nodes."""

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


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Ends the cluster; answered by Bye."""

    request_id: int


@dataclass(frozen=True, slots=True)
class RunningLease:
    """A lease that a worker brings along when it rejoins, because its client is connected to the worker."""

    lease_id: str
    client_id: str
    resources: Resources
    class_name: str = ""


@dataclass(frozen=True, slots=True)
class NodeJoin:
    """A worker offers its resources, and names the leases that already run on it."""

    node_id: str
    host_id: str
    addresses: tuple[str, ...]
    socket_dir: str
    resources: Resources
    leases: tuple[RunningLease, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class LeaseAssigned:
    """The master gives a worker's room to a client."""

    lease_id: str
    client_id: str
    resources: Resources
    class_name: str = ""


@dataclass(frozen=True, slots=True)
class LeaseRevoked:
    """The worker shall end the lease's actor, if there is one, and forget the lease.

    The room is free for the master at once and the worker ends the process at once, so no answer is needed.
    """

    lease_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """A lease's actor ended on the worker, for whatever cause."""

    lease_id: str
    cause: DeathCause


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life in both directions.

    Attributes:
        seq: Counts up on each link.
        load: The node's load average over one minute, 0 from a master.
        memory_free: Bytes that the node could still give, 0 from a master.
    """

    seq: int
    load: float = 0.0
    memory_free: int = 0


@dataclass(frozen=True, slots=True)
class StartActor:
    """A client asks the worker for a process on its lease; the class itself follows in the call path.

    Attributes:
        lease_id: The lease.
        class_name: For logs and status.
        memory_limit: Bytes of resident memory after which the worker ends the actor; None has no limit.
        environment: Variables to set in the actor's process.
        working_dir: Directory to run in, None for the worker's own.
    """

    lease_id: str
    class_name: str = ""
    memory_limit: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None


@dataclass(frozen=True, slots=True)
class StopActor:
    """A client asks the worker to end an actor's process at once."""

    lease_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AttachActor:
    """A client on another host turns this link into its connection to an actor; everything after is for the actor."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class ActorStarted:
    """The process waits for its caller at `address`, a unix socket's path on the worker's host."""

    lease_id: str
    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class ActorFailed:
    """No process could be started on the lease."""

    lease_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ActorDied:
    """The process on the lease has ended."""

    lease_id: str
    cause: DeathCause


Message: TypeAlias = (
    Hello
    | Welcome
    | Refused
    | Bye
    | LeaseRequest
    | LeaseCancel
    | LeaseRelease
    | LeaseGranted
    | LeaseRefused
    | LeaseLost
    | StatusRequest
    | Status
    | Shutdown
    | NodeJoin
    | LeaseAssigned
    | LeaseRevoked
    | LeaseEnded
    | Heartbeat
    | StartActor
    | StopActor
    | AttachActor
    | ActorStarted
    | ActorFailed
    | ActorDied
)

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in Message.__args__}
_ANY_VERSION: dict[str, frozenset[str]] = {
    kind.__name__: frozenset(f.name for f in dataclasses.fields(kind)) for kind in (Hello, Welcome, Refused, Bye)
}


def encode(message: Message) -> bytes:
    """One message as one frame."""
    name = type(message).__name__
    if name not in _KINDS:
        raise LocalProtocolError(f"{name} is no message of the control plane")
    return json.dumps({"is": name, **to_json(message)}, separators=(",", ":"), allow_nan=False).encode()


def decode(frame: bytes | bytearray | memoryview) -> Message:
    """Read one frame, checking everything.

    Raises:
        RemoteProtocolError: It is no JSON object, no known message, or a field is missing, unknown or wrong.
    """
    try:
        fields = json.loads(bytes(frame), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a control message of {len(frame)} bytes is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RemoteProtocolError(f"a control message must be an object, not a {type(fields).__name__}")
    name = fields.pop("is", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise RemoteProtocolError(f"unknown message {str(name)[:80]!r}")
    if known := _ANY_VERSION.get(kind.__name__):
        fields = {key: value for key, value in fields.items() if key in known}
    message: Message = from_json(kind, fields, kind.__name__)
    return message


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")
