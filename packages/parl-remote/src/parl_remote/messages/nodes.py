"""Between worker and master: joining, leases that are given and end."""

from __future__ import annotations

from dataclasses import dataclass

from parl_remote.death import DeathCause
from parl_remote.messages.base import Message
from parl_remote.resources import Resources

__all__ = [
    "LeaseAssigned",
    "LeaseEnded",
    "LeaseRevoked",
    "NodeJoin",
    "RunningLease",
]


@dataclass(frozen=True, slots=True)
class RunningLease:
    """A lease that a worker brings along when it rejoins, because its client is connected to the worker."""

    lease_id: str
    client_id: str
    resources: Resources
    class_name: str = ""
    actor_name: str = ""
    detached: bool = False
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class NodeJoin(Message):
    """A worker offers its resources, and names the leases that already run on it."""

    node_id: str
    host_id: str
    addresses: tuple[str, ...]
    socket_dir: str
    resources: Resources
    leases: tuple[RunningLease, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class LeaseAssigned(Message):
    """The master gives a worker's room to a client."""

    lease_id: str
    client_id: str
    resources: Resources
    class_name: str = ""
    actor_name: str = ""
    detached: bool = False
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class LeaseRevoked(Message):
    """The worker shall end the lease's actor, if there is one, and forget the lease.

    The room is free for the master at once and the worker ends the process at once, so no answer is needed.
    """

    lease_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseEnded(Message):
    """A lease's actor ended on the worker, for whatever cause."""

    lease_id: str
    cause: DeathCause
