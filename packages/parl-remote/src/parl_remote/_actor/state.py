"""The life of an actor as one table, used on both ends of its connection, and the holders that keep it alive.

    IDLE --Lease--> LEASED --Create--> CREATING --Finished--> READY <--> BUSY
                                           |Failed
    any --Close, LeaseExpired, MemoryExceeded--> CLOSED

The machine maps events to effects and counts outstanding requests; it has no side effects. An event that is not in the
table closes the actor and raises.

An actor ends when it has no more holders:

    the owner        holds it from CREATE to CLOSE
    a borrower       holds it before it connects, from HOLD (sent by the worker before it gives the actor's address) to
                     RELEASE; then until CLOSE or the end of its connection
    the cluster      holds a detached actor forever

If the owner's connection breaks without CLOSE, the owner is dead or cut off; the worker is notified and ends the
actor, with the cause. This module has no sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from parl_remote.errors import ProtocolError, RemoteProtocolError

__all__ = ["TABLE", "ActorEvent", "ActorMachine", "ActorState", "Effect", "Holders"]


class ActorState(Enum):
    """The states of an actor's life."""

    __hash__ = object.__hash__  # members are looked up in TABLE for every call; Enum's own is written in Python

    IDLE = "idle"
    LEASED = "leased"
    CREATING = "creating"
    READY = "ready"
    BUSY = "busy"
    CLOSED = "closed"


class ActorEvent(Enum):
    """The events of an actor's life."""

    __hash__ = object.__hash__  # as above

    LEASE = "lease"
    CREATE = "create"
    CALL = "call"
    GET_ATTR = "get_attr"
    SET_ATTR = "set_attr"
    CANCEL = "cancel"
    FINISHED = "finished"
    FAILED = "failed"
    CLOSE = "close"
    LEASE_EXPIRED = "lease_expired"
    MEMORY_EXCEEDED = "memory_exceeded"


class Effect(Enum):
    """The effects that the machine's driver has to carry out."""

    PREPARE = "unpack files, set limits and visible GPUs"
    CONSTRUCT = "run the constructor"
    REPLY_CREATED = "reply with attribute names"
    REPLY_CREATE_FAILED = "reply with the constructor's error, then exit"
    QUEUE = "queue it; start in order per caller, `max_concurrency` (1) run at a time"
    DROP_IF_QUEUED = "drop it if it is still queued, cancel it if it is a coroutine; reply either way"
    REPLY_VALUE = "reply with the value"
    REPLY_ERROR = "reply with the error; the actor keeps running"
    EXIT = "reply if asked, exit, tell the worker why"


_S, _E = ActorState, ActorEvent
_Moves: TypeAlias = Mapping[ActorEvent, tuple[ActorState, Effect]]
_QUEUEING: _Moves = dict.fromkeys((_E.CALL, _E.GET_ATTR, _E.SET_ATTR), (_S.BUSY, Effect.QUEUE))
_ENDINGS: _Moves = dict.fromkeys((_E.CLOSE, _E.LEASE_EXPIRED, _E.MEMORY_EXCEEDED), (_S.CLOSED, Effect.EXIT))

TABLE: Mapping[ActorState, _Moves] = MappingProxyType(
    {
        _S.IDLE: {_E.LEASE: (_S.LEASED, Effect.PREPARE), **_ENDINGS},
        _S.LEASED: {_E.CREATE: (_S.CREATING, Effect.CONSTRUCT), **_ENDINGS},
        _S.CREATING: {
            _E.FINISHED: (_S.READY, Effect.REPLY_CREATED),
            _E.FAILED: (_S.CLOSED, Effect.REPLY_CREATE_FAILED),
            **_ENDINGS,
        },
        _S.READY: {
            **_QUEUEING,
            _E.CANCEL: (_S.READY, Effect.DROP_IF_QUEUED),  # it crossed the reply of the call to cancel
            **_ENDINGS,
        },
        _S.BUSY: {
            **_QUEUEING,
            _E.CANCEL: (_S.BUSY, Effect.DROP_IF_QUEUED),
            _E.FINISHED: (_S.BUSY, Effect.REPLY_VALUE),  # READY instead when nothing else is outstanding
            _E.FAILED: (_S.BUSY, Effect.REPLY_ERROR),
            **_ENDINGS,
        },
        _S.CLOSED: {},
    }
)

# The same as a fast attribute: it is read twice for every call.
_MOVES: dict[ActorState, dict[ActorEvent, tuple[ActorState, Effect]]] = {s: dict(moves) for s, moves in TABLE.items()}
_QUEUE, _VALUE, _ERROR, _READY = Effect.QUEUE, Effect.REPLY_VALUE, Effect.REPLY_ERROR, ActorState.READY


class ActorMachine:
    """The state of one actor.

    Attributes:
        state: The current state.
        outstanding: Calls, reads and writes that were queued and have not been answered.
    """

    __slots__ = ("outstanding", "state")

    def __init__(self, state: ActorState = ActorState.IDLE) -> None:
        self.state = state
        self.outstanding = 0

    def on(self, event: ActorEvent, error: type[ProtocolError] = RemoteProtocolError) -> Effect:
        """Apply an event and return its effect.

        Args:
            event: The event.
            error: The exception to raise if the event is not allowed now; `LocalProtocolError` where this side caused
                it.

        Raises:
            ProtocolError: The table has no such move; the state is CLOSED afterwards.
        """
        move = _MOVES[self.state].get(event)
        if move is None:
            state, self.state = self.state, ActorState.CLOSED
            raise error(f"an actor in state {state.name} cannot take {event.name}; the actor is closed")
        self.state, effect = move
        if effect is _QUEUE:
            self.outstanding += 1
        elif effect is _VALUE or effect is _ERROR:
            self.outstanding -= 1
            if not self.outstanding:
                self.state = _READY
        return effect


class Holders:
    """Tracks the holders of one actor.

    Attributes:
        is_kept: Whether the actor lives without holders.
    """

    def __init__(self) -> None:
        self.is_kept = False
        self._more_expected = False
        self._here: set[object] = set()
        self._owner_has_left = False

    def connected(self, caller: object) -> None:
        """Count a new connection as a holder until it declares that it is not one, or leaves."""
        self._here.add(caller)

    def exclude(self, caller: object) -> None:
        """Stop counting a caller that is not a holder: the worker, or the actor itself through its own handle."""
        self._here.discard(caller)

    def expect(self) -> None:
        """Expect a borrower to connect."""
        self._more_expected = True

    def stop_expecting(self) -> None:
        """Stop expecting a borrower: it has connected, or will not connect."""
        self._more_expected = False

    def left(self, caller: object, *, closed: bool) -> None:
        """Remove a caller that is gone; `closed` means that it declared that it no longer needs the actor."""
        self._here.discard(caller)
        self._owner_has_left |= closed

    @property
    def is_abandoned(self) -> bool:
        """Return whether the actor may end."""
        return self._owner_has_left and not (self._here or self._more_expected or self.is_kept)
