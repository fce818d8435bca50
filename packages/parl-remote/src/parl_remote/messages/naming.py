"""About actors that somebody else has made: finding them by name, holding them, hearing of their ends.

client -> master   FindActor -> ActorFound
client -> worker   WatchActor -> ActorWatched, then ActorReached; ActorDied comes back; UnwatchActor
                   DescribeActor from who has made it
"""

from __future__ import annotations

from parl_remote.death import DeathCause
from parl_remote.messages.base import Message
from parl_remote.records import record

__all__ = [
    "ActorFound",
    "ActorReached",
    "ActorWatched",
    "DescribeActor",
    "FindActor",
    "UnwatchActor",
    "WatchActor",
]


@record
class FindActor(Message):
    """Where is the actor of that name, or the one that took the place of the actor on that lease?"""

    request_id: int
    actor_name: str = ""
    lease_id: str = ""


@record
class ActorFound(Message):
    """It is there; the fields are those of LeaseGranted."""

    request_id: int
    lease_id: str
    node_id: str
    node_addresses: tuple[str, ...]
    socket_dir: str
    host_id: str


@record
class WatchActor(Message):
    """A client wants to talk to an actor that another one has made; the actor is held until it does, or is gone.

    Attributes:
        request_id: The client's number for it.
        lease_id: The actor's lease.
        described: Whether the client needs its description; the answer then waits until the actor has one.
    """

    request_id: int
    lease_id: str
    described: bool = False


@record
class ActorWatched(Message):
    """Where the actor is, or why it is not there any more.

    Attributes:
        request_id: Which request this answers.
        address: A unix socket's path on the worker's host.
        description: What DescribeActor said of it.
        cause: Why it ended, if it has.
    """

    request_id: int
    address: str = ""
    description: str = ""
    cause: DeathCause | None = None


@record
class ActorReached(Message):
    """The client is connected to the actor, by the actor's own socket."""

    lease_id: str


@record
class UnwatchActor(Message):
    """The client has let go of the actor."""

    lease_id: str


@record
class DescribeActor(Message):
    """What others need to know of a named actor that has been made: its class, opaque to the worker."""

    lease_id: str
    description: str
