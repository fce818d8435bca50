"""A client's record of one lease: how to reach the actor and, once it has ended, why."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from parl_remote._death import DeathCause, DeathKind
from parl_remote._future import RemoteFuture
from parl_remote._messages import LeaseGranted
from parl_remote._program.actor_ref import ActorPlace, CallPath
from parl_remote._transport import Channel
from parl_remote.errors import ActorLost, NotConnected

__all__ = [
    "NEWS_S",
    "ActorConnection",
    "ActorRecord",
    "GonePath",
    "Made",
    "RestartPolicy",
    "granted_at",
    "place_of",
]

NEWS_S = 1.0
"""News of an actor's end go from its worker to its owner and to the master, milliseconds apart; seconds."""

_UNKNOWN = "the connection to it broke without a reported cause; Ctrl-C in the middle of a transfer does that"
_CAUSE_PATIENCE_S = 2.0  # a closed connection and the report of the death use different links, microseconds apart


def _nobody(names: tuple[str, ...]) -> None:
    """Ignore the names."""


class ActorConnection(CallPath, Protocol):
    """A connection to an actor over a channel; see `connection.Connection`."""

    is_read_out: threading.Event

    def keep_states(self, on_state: Callable[[Sequence[memoryview]], None]) -> None:
        """Pass each state that the actor saves to `on_state`."""

    def join(self, *, holds: bool) -> None:
        """Announce this process to an actor that another one has made."""

    def read_out(self, timeout_s: float) -> None:
        """Read what the actor sent before it ended."""

    def look(self) -> None:
        """Read what has arrived, unless another thread does."""

    def hang_up(self) -> None:
        """Close the channel; calls without an answer fail."""


class RestartPolicy(Protocol):
    """The policy that restarts an actor when it is lost; see `restarts.Comeback`."""

    def lost(self, record: ActorRecord, cause: DeathCause) -> None:
        """Handle the end of an actor, before any caller learns of it."""


class ActorRecord:
    """An actor that this program has made or holds a handle of.

    Attributes:
        lease_id: Its lease.
        node_id: The worker that it runs on.
        class_name: Its class.
        pid: Its process id on its host; 0 for an actor that another process has made.
        channel: The channel to it, once there is one.
        connection: The connection that uses the channel.
        is_borrowed: Whether another process has made it.
        on_names: Called with the names of its attributes when they change.
        is_detached: Whether it outlives this program.
        forked: Whether it belongs to the process that this one was forked from.
        comeback: Restarts it when it is lost; None for an actor that is not restarted.
    """

    def __init__(
        self, lease_id: str, node_id: str, class_name: str, *, is_borrowed: bool = False, is_detached: bool = False
    ) -> None:
        self.is_borrowed = is_borrowed
        self.is_detached = is_detached
        self.lease_id = lease_id
        self.node_id = node_id
        self.class_name = class_name
        self.pid = 0
        self.channel: Channel | None = None
        self.connection: ActorConnection | None = None
        self.forked = False
        self.on_names: Callable[[tuple[str, ...]], None] = _nobody
        self.comeback: RestartPolicy | None = None
        self._note = ""
        self._comes_back = False
        self._cause: DeathCause | None = None
        self._ended = threading.Event()

    @property
    def cause(self) -> DeathCause | None:
        """Return why the actor ended, or None while it lives."""
        return self._cause

    @property
    def has_ended(self) -> bool:
        """Return whether the actor's end is known."""
        return self._cause is not None

    @property
    def outlives_us(self) -> bool:
        """Return whether the actor may live longer than this program."""
        return self.is_borrowed or self.is_detached

    def end(self, cause: DeathCause) -> None:
        """Record the cause of the actor's end, unless one is recorded already: the first cause is the most specific."""
        if self._cause is None:
            self._cause = dataclasses.replace(
                cause,
                lease_id=cause.lease_id or self.lease_id,
                class_name=cause.class_name or self.class_name,
                pid=cause.pid or self.pid,
                at=cause.at or round(time.time(), 3),
            )
            self._ended.set()

    def cannot_be_reached(self, reason: str) -> None:
        """Record that this process has no connection to the actor, which lives on."""
        self.end(DeathCause(DeathKind.NODE_LOST, detail=f"it cannot be reached from here: {reason}"))

    def lose(self, cause: DeathCause) -> None:
        """Record that the actor ended without being asked to, and have it restarted if it is restartable."""
        if self.comeback is not None:
            self.comeback.lost(self, cause)
        self.end(cause)

    def tell_of_restart(self, note: str, *, comes_back: bool = True) -> None:
        """Set the note on restarts in errors of the actor's calls; called before `end`, so that no error lacks it.

        Args:
            note: The text.
            comes_back: Whether the actor is restarted.
        """
        self._note = note
        self._comes_back = comes_back

    def await_end(self) -> bool:
        """Wait a moment for the cause of the end, and return whether it is known."""
        return self._ended.wait(_CAUSE_PATIENCE_S)

    def error(self, running: str) -> ActorLost | NotConnected:
        """Return the error for a call that will not be answered; see `Connection`."""
        if self.forked:
            return NotConnected(
                f"this {self.class_name} belongs to the process that this one was forked from; "
                "make another one here, or send a handle of it to this process"
            )
        self.await_end()
        cause = self._cause or DeathCause(DeathKind.NODE_LOST, detail=_UNKNOWN)
        told = dataclasses.replace(cause, last_call=running or cause.last_call)
        return ActorLost(told, class_name=self.class_name, note=self._note, is_restarting=self._comes_back)

    def hang_up(self) -> None:
        """Close the connection or the channel to the actor."""
        if self.connection is not None:
            self.connection.hang_up()
        elif self.channel is not None:
            self.channel.close()


class GonePath:
    """The path to an actor that ended before it could be reached; implements `actor_ref.CallPath`."""

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
        """Return a future that has failed with the cause."""
        if future is None:
            future = RemoteFuture(None)
            future.method = method
        future.settle(None, self._record.error(""))
        return future

    def names_changed(self) -> bool:
        """Return False: the names cannot change any more."""
        return False


class Made(NamedTuple):
    """A newly made actor, the path to it, and its address for others."""

    record: ActorRecord
    path: CallPath
    place: ActorPlace


def place_of(granted: LeaseGranted) -> ActorPlace:
    """Return the address of the actor on a lease, to be sent to other processes."""
    return ActorPlace(
        granted.lease_id, granted.node_id, tuple(granted.node_addresses), granted.socket_dir, granted.host_id
    )


def granted_at(place: ActorPlace) -> LeaseGranted:
    """Return a grant of the lease at `place`, equal to the one that the master sent to the actor's owner."""
    return LeaseGranted(
        request_id=0,
        lease_id=place.lease_id,
        node_id=place.node_id,
        node_addresses=place.node_addresses,
        socket_dir=place.socket_dir,
        host_id=place.host_id,
    )
