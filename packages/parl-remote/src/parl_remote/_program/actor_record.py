"""A client's record of one lease: how to reach the actor and, once it has ended, why."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from parl_remote._data.calls import Call
from parl_remote._death import DeathCause, DeathKind
from parl_remote._future import RemoteFuture
from parl_remote._messages import LeaseGranted
from parl_remote._program.actor_ref import ActorPlace
from parl_remote._program.outbox import CallPath, Outbox
from parl_remote._transport import Channel
from parl_remote.errors import ActorLost, NotConnected

__all__ = [
    "CAUSE_PATIENCE_S",
    "NEWS_S",
    "ActorConnection",
    "ActorRecord",
    "Made",
    "RestartPolicy",
    "granted_at",
    "place_of",
]

NEWS_S = 1.0
"""News of an actor's end go from its worker to its owner and to the master, milliseconds apart; seconds."""

_UNKNOWN = "the connection to it broke without a reported cause; Ctrl-C in the middle of a transfer does that"
CAUSE_PATIENCE_S = 2.0  # a closed connection and the report of the death use different links, microseconds apart


def _nobody(names: tuple[str, ...]) -> None:
    """Ignore the names."""


class ActorConnection(CallPath, Protocol):
    """A connection to an actor over a channel; see `connection.Connection`."""

    is_read_out: threading.Event

    def submit(self, call: Call) -> RemoteFuture[Any]:
        """Send a call that comes before all others: that of the constructor."""

    def keep_states(self, on_state: Callable[[Sequence[memoryview]], None]) -> None:
        """Pass each state that the actor saves to `on_state`."""

    def join(self, *, holds: bool) -> None:
        """Announce this process to an actor that another one has made."""

    def read_out(self, timeout_s: float) -> None:
        """Read what the actor sent before it ended."""

    def write(self) -> None:
        """Write what the channel takes of what it did not take before."""

    def look(self) -> None:
        """Settle the futures whose answers have arrived, without waiting."""

    def hang_up(self) -> None:
        """Close the channel; calls without an answer fail."""


class RestartPolicy(Protocol):
    """The policy that restarts an actor when it is lost; see `restarts.Restarts`."""

    def lost(self, record: ActorRecord, cause: DeathCause) -> Callable[[], None]:
        """Handle the end of an actor before any caller learns of it; return what to do when the cause is recorded."""

    def connection_closed(self, record: ActorRecord) -> None:
        """Handle a broken connection of which no cause has become known in time."""


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
        restarts: Restarts it when it is lost; None for an actor that is not restarted.
        outbox: The way of calls to it, which ends with it unless it is restarted; None before there is one.
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
        self.restarts: RestartPolicy | None = None
        self.outbox: Outbox | None = None
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
            if self.restarts is None and self.outbox is not None:
                self.outbox.end(self.unsent)

    def cannot_be_reached(self, reason: str) -> None:
        """Record that this process has no connection to the actor, which lives on."""
        self.end(DeathCause(DeathKind.NODE_LOST, detail=f"it cannot be reached from here: {reason}"))

    def lose(self, cause: DeathCause) -> None:
        """Record that the actor ended without being asked to, and have it restarted if it is restartable."""
        proceed = None if self.restarts is None else self.restarts.lost(self, cause)
        self.end(cause)
        if proceed is not None:
            proceed()

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
        return self._ended.wait(CAUSE_PATIENCE_S)

    def end_without_news(self) -> None:
        """Fail the calls that met the actor's loss, because no news of its end has come in time."""
        if self.restarts is not None:
            self.restarts.connection_closed(self)
        elif self.outbox is not None:
            self.outbox.end(self.unsent)

    def error(self, running: str) -> ActorLost | NotConnected:
        """Return the error for a call that will not be answered; see `Connection`."""
        if not self.forked:
            self.await_end()
        return self._error_of(running)

    def _error_of(self, running: str) -> ActorLost | NotConnected:
        if self.forked:
            return NotConnected(
                f"this {self.class_name} belongs to the process that this one was forked from; "
                "make another one here, or send a handle of it to this process"
            )
        cause = self._cause or DeathCause(DeathKind.NODE_LOST, detail=_UNKNOWN)
        told = dataclasses.replace(cause, last_call=running or cause.last_call)
        return ActorLost(told, class_name=self.class_name, note=self._note, is_restarting=self._comes_back)

    def unsent(self) -> ActorLost | NotConnected:
        """Return the error for a call that did not reach the actor; does not wait for the cause."""
        return self._error_of("")

    def hang_up(self) -> None:
        """Close the connection or the channel to the actor."""
        if self.connection is not None:
            self.connection.hang_up()
        elif self.channel is not None:
            self.channel.close()


class Made(NamedTuple):
    """A newly made actor, the connection to it (None if it has ended already), and its address for others."""

    record: ActorRecord
    path: ActorConnection | None
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
