"""The actors of others that a process has handles of: reached, held while it has them, let go.

    handle --borrow--> WatchActor to the worker --> connection to the actor --JOIN--> it lives as long as we hold it
    ActorDied, or the worker gone --> every later call raises ActorLost with the cause

An actor that is gone when its handle arrives gives a reference all the same: the calls say why, not the unpickling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import RemoteError
from parl_remote.future import RemoteFuture
from parl_remote.messages import LeaseGranted
from parl_remote.program.actor_record import ActorRecord
from parl_remote.program.connection import Connection
from parl_remote.program.handles import ActorPlace
from parl_remote.program.worker_clients import WorkerClients
from parl_remote.transport import Channel
from parl_remote.transport.unix import UnixChannel

__all__ = ["Borrowing", "GonePath", "granted_at", "place_of"]


def place_of(granted: LeaseGranted) -> ActorPlace:
    """Where the actor on a lease is, to tell others."""
    return ActorPlace(
        granted.lease_id, granted.node_id, tuple(granted.node_addresses), granted.socket_dir, granted.host_id
    )


def granted_at(place: ActorPlace) -> LeaseGranted:
    """The same as the master told the one who made it."""
    return LeaseGranted(
        request_id=0,
        lease_id=place.lease_id,
        node_id=place.node_id,
        node_addresses=place.node_addresses,
        socket_dir=place.socket_dir,
        host_id=place.host_id,
    )


class GonePath:
    """The way to an actor that was gone before it could be reached; fills `actor_ref.CallPath`."""

    def __init__(self, record: ActorRecord) -> None:
        self._record = record

    def submit(
        self,
        kind: int,  # noqa: ARG002  # as the protocol has it
        flags: int,  # noqa: ARG002
        index: int,  # noqa: ARG002
        payload: object,  # noqa: ARG002
        method: str,
        owner: object,  # noqa: ARG002
        future: RemoteFuture[Any] | None = None,
    ) -> RemoteFuture[Any]:
        """Fail at once, with the cause."""
        if future is None:
            future = RemoteFuture(None)
            future.method = method
        future.settle(None, self._record.error(""))
        return future

    def names_changed(self) -> bool:
        """They will not."""
        return False


class Borrowing:
    """Borrowed actors of one client.

    Args:
        workers: The client's links to workers.
        connect: Makes a connection of a channel to the record's actor.
        own_lease: The lease of the actor that this process is; empty for a program.
        timeout_s: How long a worker may take to answer.

    Attributes:
        records: What is known of each borrowed actor, by lease.
    """

    def __init__(
        self,
        workers: WorkerClients,
        connect: Callable[[ActorRecord, Channel], Connection],
        *,
        own_lease: str,
        timeout_s: float,
    ) -> None:
        self._workers = workers
        self._connect = connect
        self._own_lease = own_lease
        self._timeout_s = timeout_s
        self.records: dict[str, ActorRecord] = {}

    def reach(self, place: ActorPlace, record: ActorRecord) -> Connection | None:
        """Connect to an actor and hold it; None if it is gone, and the record then says why.

        Not in the client's own loop, which reads the worker's answer.
        """
        from parl_remote.messages.naming import ActorReached, ActorWatched, WatchActor  # most programs borrow nothing

        try:
            granted = granted_at(place)
            answer = self._workers.ask(granted, lambda n: WatchActor(n, place.lease_id), self._timeout_s)
            if not isinstance(answer, ActorWatched):
                raise RemoteError(f"its worker answered with {type(answer).__name__}")
            if answer.cause is not None:
                record.end(answer.cause)
                return None
            record.channel = self._workers.dial_actor(granted, answer.address)
            record.connection = connection = self._connect(record, record.channel)
            connection.join(holds=place.lease_id != self._own_lease)
            if isinstance(record.channel, UnixChannel):  # else its worker sees it
                self._workers.tell(place.node_id, ActorReached(place.lease_id))
        except (RemoteError, OSError) as error:
            record.await_end()  # its worker may be telling why this moment
            record.end(DeathCause(DeathKind.NODE_LOST, detail=f"it cannot be reached from here: {error}"))
            record.hang_up()
            return None
        return connection

    def lost(self, lease_id: str, cause: DeathCause) -> None:
        """An actor has ended; unknown ones are ignored."""
        record = self.records.get(lease_id)
        if record is not None:
            record.lose(cause)
            record.hang_up()

    def unwatch(self, record: ActorRecord) -> None:
        """Its worker need not tell of the actor's end any more."""
        from parl_remote.messages.naming import UnwatchActor

        self._workers.tell(record.node_id, UnwatchActor(record.lease_id))

    def on_node(self, node_id: str) -> Iterable[str]:
        """The leases of borrowed actors on a node."""
        return [lease_id for lease_id, record in list(self.records.items()) if record.node_id == node_id]
