"""What a client knows of one lease: where the actor is, how to reach it, and, later, why it ended."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import ActorLost, NotConnected
from parl_remote.future import RemoteFuture
from parl_remote.messages import LeaseGranted
from parl_remote.program.actor_ref import ActorPlace, CallPath
from parl_remote.transport import Channel

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

_UNKNOWN = "the connection to it broke, and nobody said why; Ctrl-C in the middle of a transfer does that"
_CAUSE_PATIENCE_S = 2.0  # a closed connection and the report of the death come by different ways, microseconds apart


def _nobody(names: tuple[str, ...]) -> None:
    """Nobody wants to know."""


class ActorConnection(CallPath, Protocol):
    """The way to an actor over a channel; see `connection.Connection`."""

    is_read_out: threading.Event

    def keep_states(self, on_state: Callable[[Sequence[memoryview]], None]) -> None:
        """Give each state that the actor saves to `on_state`."""

    def join(self, *, holds: bool) -> None:
        """Introduce this process to an actor that another one has made."""

    def read_out(self, timeout_s: float) -> None:
        """Read what the actor has still sent before it ended."""

    def hang_up(self) -> None:
        """Close the channel; calls without an answer fail."""


class RestartPolicy(Protocol):
    """What makes an actor again when it is lost; see `restarts.Comeback`."""

    def lost(self, record: ActorRecord, cause: DeathCause) -> None:
        """An actor has ended; called before anybody else learns of it."""


class ActorRecord:
    """One actor that this program has made or holds a handle of.

    Attributes:
        lease_id: Its lease.
        node_id: The worker that it runs on.
        class_name: Its class.
        pid: Its process on its host; 0 for one that somebody else has made.
        channel: The way to it, once there is one.
        connection: What uses that way.
        is_borrowed: Whether somebody else has made it.
        on_names: Told the names of its attributes when they change.
        is_detached: Whether it outlives this program.
        forked: Whether it belongs to the process that this one was forked from.
        comeback: What makes it again when it is lost; None for an actor that is lost once and for all.
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
        """Why it ended, None while it has not."""
        return self._cause

    @property
    def has_ended(self) -> bool:
        """Return whether its end is known."""
        return self._cause is not None

    @property
    def outlives_us(self) -> bool:
        """Return whether the actor may live longer than this program."""
        return self.is_borrowed or self.is_detached

    def end(self, cause: DeathCause) -> None:
        """Note the first cause that comes; later ones know less."""
        if self._cause is None:
            self._cause = dataclasses.replace(
                cause,
                lease_id=cause.lease_id or self.lease_id,
                class_name=cause.class_name or self.class_name,
                pid=cause.pid or self.pid,
                at=cause.at or round(time.time(), 3),
            )
            self._ended.set()

    def lose(self, cause: DeathCause) -> None:
        """It has ended without being asked to: note why, and have it made again where it comes back."""
        if self.comeback is not None:
            self.comeback.lost(self, cause)
        self.end(cause)

    def tell_of_restart(self, note: str, *, comes_back: bool = True) -> None:
        """Add to the errors of its calls what becomes of it; before `end`, so that no error goes without.

        Args:
            note: In words.
            comes_back: Whether it is made again.
        """
        self._note = note
        self._comes_back = comes_back

    def await_end(self) -> bool:
        """Wait for the cause, for a moment; whether it is known then."""
        return self._ended.wait(_CAUSE_PATIENCE_S)

    def error(self, running: str) -> ActorLost | NotConnected:
        """Return the error for a call that will not be answered; see `Connection`."""
        if self.forked:
            return NotConnected(
                f"this {self.class_name} belongs to the process that this one was forked from; "
                "call parl.connect() here and make another one"
            )
        self.await_end()
        cause = self._cause or DeathCause(DeathKind.NODE_LOST, detail=_UNKNOWN)
        told = dataclasses.replace(cause, last_call=running or cause.last_call)
        return ActorLost(told, class_name=self.class_name, note=self._note, is_restarting=self._comes_back)

    def hang_up(self) -> None:
        """Close the way to it."""
        if self.connection is not None:
            self.connection.hang_up()
        elif self.channel is not None:
            self.channel.close()


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


class Made(NamedTuple):
    """An actor that is there, the way to it, and where others find it."""

    record: ActorRecord
    path: CallPath
    place: ActorPlace


def place_of(granted: LeaseGranted) -> ActorPlace:
    """Return where the actor on a lease is, to tell others."""
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
