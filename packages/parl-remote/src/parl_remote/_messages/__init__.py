"""The control plane: every message between client, master and worker, as one frozen dataclass each.

    any link          Hello -> Welcome | Refused, then Bye from the side that ends it
    client -> master  LeaseRequest, LeaseCancel, LeaseRelease, LeasesHeld, StatusRequest, Shutdown
    master -> client  LeaseGranted, LeaseRefused, LeaseLost, LeaseWanted, Status
    worker -> master  NodeJoin, LeaseEnded, Heartbeat
    master -> worker  LeaseAssigned, LeaseRevoked, Heartbeat
    client -> worker  StartActor, StopActor, or on a link of its own AttachActor, after which calls follow
    worker -> client  ActorStarted, ActorFailed, ActorDied
    answers           a message with a `request_id` is answered by one with the same id, or by Failed

A message is one frame of JSON (see `wire`). Arguments and results of users (pickles) are further frames, opaque to
everything in between. Messages that most processes never meet are in `parts` (a node's other services: files, logs,
values, named actors, health, stacks) and `overview`, which are imported with their first message and not re-exported
here. `wire.encode` and `wire.decode` convert messages to bytes and back.
"""

from __future__ import annotations

from parl_remote._messages.leases import (
    ActorAttached,
    ActorDied,
    ActorFailed,
    ActorStarted,
    AttachActor,
    ClientStatus,
    LeaseAssigned,
    LeaseCancel,
    LeaseEnded,
    LeaseGranted,
    LeaseLost,
    LeaseRefused,
    LeaseRelease,
    LeaseRequest,
    LeaseRevoked,
    LeasesHeld,
    LeaseWanted,
    NodeJoin,
    NodeStatus,
    RunningLease,
    Shutdown,
    StartActor,
    Status,
    StatusRequest,
    StopActor,
    WaitingStatus,
)
from parl_remote._messages.links import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Bye,
    Done,
    Failed,
    GpuUse,
    Heartbeat,
    Hello,
    RefusalCode,
    Refused,
    Role,
    Welcome,
)
from parl_remote._records import Message
from parl_remote.errors import DeathCause, DeathKind

__all__ = [
    "PROTOCOL_MAX",
    "PROTOCOL_MIN",
    "ActorAttached",
    "ActorDied",
    "ActorFailed",
    "ActorStarted",
    "AttachActor",
    "Bye",
    "ClientStatus",
    "DeathCause",
    "DeathKind",
    "Done",
    "Failed",
    "GpuUse",
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
    "LeaseWanted",
    "LeasesHeld",
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
    "WaitingStatus",
    "Welcome",
]
