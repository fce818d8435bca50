"""Between worker and master: joining, leases that are given and end."""

from __future__ import annotations

from parl_remote.death import DeathCause
from parl_remote.messages.base import Message
from parl_remote.records import Record, record
from parl_remote.resources import Resources

__all__ = [
    "LeaseAssigned",
    "LeaseEnded",
    "LeaseRevoked",
    "NodeJoin",
    "RunningLease",
]


@record
class RunningLease(Record):
    """A lease that a worker brings along when it rejoins, because its client is connected to the worker.

    Attributes:
        lease_id: Its id.
        client_id: Who made the actor.
        resources: What is set aside for it.
        class_name: The actor's class.
        actor_name: The actor's name in the cluster.
        detached: Whether it outlives its client; it is brought along without one, too.
        restarts: How often it has been restarted.
        max_restarts: How often its client will do that.
        gpus: The GPUs that it sees.
        age_s: How long it has been there.
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
    """A worker offers its resources, and names the leases that already run on it.

    Attributes:
        node_id: The worker's id.
        host_id: The worker's host.
        addresses: "host:port", as peers on other hosts reach it.
        socket_dir: Its private directory of unix sockets, usable on its own host.
        resources: What it offers.
        leases: Those that run there.
        name: What people call it.
        gpus: Its GPUs, as CUDA_VISIBLE_DEVICES names them; as many as it offers.
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
    """The master gives a worker's room to a client; `gpus` are those that the actor will see."""

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
    """The worker shall end the lease's actor, if there is one, and forget the lease.

    The room is free for the master at once and the worker ends the process at once, so no answer is needed.
    """

    lease_id: str
    reason: str


@record
class LeaseEnded(Message):
    """A lease's actor ended on the worker, for whatever cause."""

    lease_id: str
    cause: DeathCause
