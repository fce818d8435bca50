"""Between client and worker: having actors started and stopped, hearing of their ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from parl_remote.death import DeathCause
from parl_remote.messages.base import Message
from parl_remote.records import record

__all__ = [
    "ActorDied",
    "ActorFailed",
    "ActorStarted",
    "AttachActor",
    "StartActor",
    "StopActor",
]


@record
class StartActor(Message):
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


@record
class StopActor(Message):
    """A client asks the worker to end an actor's process at once."""

    lease_id: str
    reason: str = ""


@record
class AttachActor(Message):
    """A client on another host turns this link into its connection to an actor; everything after is for the actor."""

    lease_id: str


@record
class ActorStarted(Message):
    """The process waits for its caller at `address`, a unix socket's path on the worker's host."""

    lease_id: str
    address: str
    pid: int


@record
class ActorFailed(Message):
    """No process could be started on the lease."""

    lease_id: str
    reason: str


@record
class ActorDied(Message):
    """The process on the lease has ended."""

    lease_id: str
    cause: DeathCause
