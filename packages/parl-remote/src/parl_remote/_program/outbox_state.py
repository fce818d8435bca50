"""The states of calls to one actor before they are sent, as one table.

    LIVE --refused--> FULL --writable--> LIVE            the connection takes nothing more for now
    LIVE --awaits--> WAITING --ready--> LIVE             the first call waits for the futures among its arguments
    LIVE, FULL, WAITING --lost--> RESTARTING --made--> LIVE
    any --ended--> GONE                                  every call that was not sent fails with the cause

The machine holds the calls that have not left, in order, and counts slots of a limit on unanswered calls. It has no
sockets, threads or clock. Its driver, `outbox.Outbox`, asks for the `next` call, hands it to the actor's connection,
and reports the outcome. Calls leave one at a time and in order; a cancelled one never leaves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Generic, TypeAlias, TypeVar

__all__ = ["TABLE", "OutboxEvent", "OutboxMachine", "OutboxState"]


class OutboxState(Enum):
    """The states of the way to an actor."""

    __hash__ = object.__hash__  # members are looked up in TABLE for every call; Enum's own is written in Python

    LIVE = "live"
    WAITING = "waiting for a dependency"
    FULL = "full"
    RESTARTING = "restarting"
    GONE = "gone"


class OutboxEvent(Enum):
    """The events on the way to an actor."""

    __hash__ = object.__hash__  # as above

    AWAITS = "the first call waits for futures"
    READY = "the first call waits for nothing any more"
    REFUSED = "the connection took nothing"
    WRITABLE = "the connection takes calls again"
    LOST = "the actor is lost; another one, or news of its end, will follow"
    MADE = "another actor is there"
    ENDED = "no actor will follow"


_S, _E = OutboxState, OutboxEvent
_Moves: TypeAlias = Mapping[OutboxEvent, OutboxState]
_ENDS: _Moves = {_E.LOST: _S.RESTARTING, _E.ENDED: _S.GONE}

TABLE: Mapping[OutboxState, _Moves] = MappingProxyType(
    {
        _S.LIVE: {_E.AWAITS: _S.WAITING, _E.REFUSED: _S.FULL, **_ENDS},
        _S.WAITING: {_E.READY: _S.LIVE, **_ENDS},
        _S.FULL: {_E.WRITABLE: _S.LIVE, **_ENDS},
        _S.RESTARTING: {_E.MADE: _S.LIVE, **_ENDS},
        _S.GONE: {},
    }
)
"""The moves. An event that a state does not list changes nothing: reports on an actor arrive in any order."""

C = TypeVar("C", bound=Hashable)


class OutboxMachine(Generic[C]):
    """The calls to one actor that have not been sent.

    Args:
        state: The state at first.

    Attributes:
        state: The current state.
        leaving: The call that the driver is handing to the connection, None if there is none.
        limit: The maximum number of unanswered calls; None for no limit.
    """

    __slots__ = ("_entering", "_queue", "_slots", "leaving", "limit", "state")

    def __init__(self, state: OutboxState = OutboxState.LIVE) -> None:
        self.state = state
        self.leaving: C | None = None
        self.limit: int | None = None
        self._queue: OrderedDict[C, int] = OrderedDict()  # with the number of futures that each waits for
        self._slots = 0
        self._entering: OrderedDict[C, None] = OrderedDict()

    def on(self, event: OutboxEvent) -> bool:
        """Apply an event; return False if the state does not list it, and nothing has changed."""
        state = TABLE[self.state].get(event)
        if state is None:
            return False
        self.state = state
        return True

    # -- the queue ---------------------------------------------------------------------------------------------------

    @property
    def is_direct(self) -> bool:
        """Return whether a new call may be sent at once, because none waits."""
        return self.state is _S.LIVE and not self._queue

    @property
    def is_sending(self) -> bool:
        """Return whether the first call waits for nothing but the connection."""
        is_reachable = self.state not in (_S.RESTARTING, _S.GONE)
        return is_reachable and bool(self._queue) and not next(iter(self._queue.values()))

    def add(self, call: C, waits_for: int = 0) -> bool:
        """Queue a call that waits for `waits_for` futures; return False if the actor is gone, and the call fails."""
        if self.state is _S.GONE:
            return False
        self._queue[call] = waits_for
        return True

    def give_back(self, call: C) -> bool:
        """Queue a call before all others, since it did not reach the actor; return as `add` does."""
        if not self.add(call):
            return False
        self._queue.move_to_end(call, last=False)
        return True

    def settled(self, call: C) -> None:
        """Record that one of the futures that a call waits for is settled."""
        if self._queue.get(call):
            self._queue[call] -= 1

    def next(self) -> C | None:
        """Return the call to hand to the connection now, which is `leaving` from now on; None if none can leave."""
        if self.leaving is not None or not self._queue or self.state not in (_S.LIVE, _S.WAITING):
            return None
        call = next(iter(self._queue))
        if self._queue[call]:
            self.on(_E.AWAITS)
            return None
        self.on(_E.READY)
        self.leaving = call
        return call

    def has_left(self) -> None:
        """Record that the leaving call is sent, or failed."""
        assert self.leaving is not None
        del self._queue[self.leaving]
        self.leaving = None

    def stays(self) -> bool:
        """Record that the leaving call was not sent; return False if the actor is gone, and the call fails."""
        if self.state is _S.GONE:
            self.has_left()
            return False
        self.leaving = None
        return True

    def cancel(self, call: C) -> bool:
        """Remove a call that has not left; return False if it has, or is about to."""
        if call is self.leaving or call not in self._queue:
            return False
        del self._queue[call]
        return True

    def end(self) -> list[C]:
        """Enter GONE; return the calls that fail, all but the one that is leaving."""
        self.on(_E.ENDED)
        failed = [call for call in self._queue if call is not self.leaving]
        for call in failed:
            del self._queue[call]
        return failed

    # -- slots -------------------------------------------------------------------------------------------------------

    def enter(self) -> bool:
        """Take a slot for a call; return False if all are taken, or others wait for one."""
        if self.limit is not None and self.state is not _S.GONE and (self._slots >= self.limit or self._entering):
            return False
        self._slots += 1
        return True

    def await_slot(self, caller: C) -> None:
        """Queue for the next free slot."""
        self._entering[caller] = None

    def leave(self) -> C | None:
        """Free a slot; return who has it now, None if no call waited."""
        if self._entering:
            return self._entering.popitem(last=False)[0]
        self._slots -= 1
        return None

    def give_up_slot(self, caller: C) -> bool:
        """Stop waiting for a slot; return False if the caller has one already."""
        return self._entering.pop(caller, caller) is None

    def admit_all(self) -> list[C]:
        """Give a slot to every call that waits for one, because the actor is gone and their calls fail."""
        admitted = list(self._entering)
        self._entering.clear()
        self._slots += len(admitted)
        return admitted
