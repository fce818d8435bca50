"""`max_pending_calls`: how many calls of this process to one actor may be unanswered.

    submit --enter--> a slot in the Slots --full? wait for an answer, or raise--> sent
                      the slot is free again when the call's future is settled

Who waits for resources reads answers meanwhile, as a thread that waits for a result does: nothing else might.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from parl_remote.errors import TooManyPendingCalls
from parl_remote.future import Carrier, RemoteFuture
from parl_remote.options import ActorOptions
from parl_remote.program.actor_ref import ActorPlace, ActorRef, HeldCalls

__all__ = ["BoundedRef", "Slots", "kind_of_reference"]

_MOMENT_S = 0.005  # others that have a slot are about to send; they have no future yet that could be waited for


class _Slot:
    """One call's place; what a future wakes when it is settled."""

    __slots__ = ("_slots_of_actor", "future")

    def __init__(self, room: Slots) -> None:
        self._slots_of_actor = room
        self.future: RemoteFuture[Any] | None = None

    def wake(self) -> None:
        """The future is settled; a second call does nothing."""
        self._slots_of_actor.leave(self)


class Slots:
    """The slots of one actor. To those who wait it looks like a future that is settled while there is a free slot.

    Args:
        limit: How many slots there are.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slots: dict[_Slot, None] = {}
        self._changed = threading.Condition(threading.Lock())
        self._blocked: list[Any] = []

    @property
    def settled(self) -> bool:
        """Return whether a slot is free."""
        return len(self._slots) < self._limit

    def enter(self, *, wait: Callable[[], bool]) -> _Slot:
        """Take a slot.

        Args:
            wait: Asked when there is none; true to wait for one.

        Raises:
            TooManyPendingCalls: There is none, and `wait` said no.
        """
        slot = _Slot(self)
        while True:
            with self._changed:
                if len(self._slots) < self._limit:
                    self._slots[slot] = None
                    return slot
                oldest = next((one.future for one in self._slots if one.future is not None), None)
            if not wait():
                raise TooManyPendingCalls(
                    f"{self._limit} calls are unanswered, which is what max_pending_calls allows; wait for a result "
                    'before the next call, or leave out when_full="raise"',
                    limit=self._limit,
                )
            self._await_answer(oldest)

    def until(self, slot: _Slot, future: RemoteFuture[Any]) -> None:
        """Keep a slot until a future is settled."""
        slot.future = future
        if future._blocked is None:
            future._blocked = [slot]
        else:
            future._blocked.append(slot)
        if future.settled:  # looked at after the slot can be seen: one of both frees it
            self.leave(slot)

    def leave(self, slot: _Slot) -> None:
        """Free a slot; a second call does nothing."""
        with self._changed:
            if self._slots.pop(slot, self) is not self:
                self._changed.notify()
        for waiter in tuple(self._blocked):
            waiter.wake()

    def _await_answer(self, oldest: RemoteFuture[Any] | None) -> None:
        carrier: Carrier | None = None if oldest is None else oldest._carrier
        if oldest is None or carrier is None:
            with self._changed:
                self._changed.wait_for(lambda: self.settled, _MOMENT_S)
        elif isinstance(carrier, HeldCalls):
            carrier.wait_for(oldest, None)
        else:
            carrier.wait_for(self, None)  # type: ignore[arg-type]  # all that is asked of a future there, it answers


class BoundedRef(ActorRef):
    """A reference whose unanswered calls have a limit; attributes are read and written whether there is room or not.

    Args:
        limit: How many calls may be unanswered.
        waits: Whether a call above the limit waits; if not, it raises `TooManyPendingCalls`.
        others: See `ActorRef`.
    """

    def __init__(self, *arguments: Any, limit: int, waits: bool, **others: Any) -> None:
        super().__init__(*arguments, **others)
        if isinstance(self.place, ActorPlace):
            self.place = self.place._replace(limit=limit, waits=waits)  # handles take it along
        self._slots_of_actor = Slots(limit)
        self._waits = waits

    def submit(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RemoteFuture[Any]:
        """See `ActorRef.submit`.

        Raises:
            TooManyPendingCalls: There is no room, and calls are not to wait.
            SerializationError: An argument cannot be sent.
        """
        slot = self._slots_of_actor.enter(wait=lambda: self._waits)
        try:
            future = super().submit(name, args, kwargs)
        except BaseException:
            self._slots_of_actor.leave(slot)
            raise
        self._slots_of_actor.until(slot, future)
        return future


def kind_of_reference(options: ActorOptions | None, place: object = None) -> Callable[..., ActorRef]:
    """Return the kind of reference to make: one with a limit if the options or the handle say so."""
    if options is not None and options.max_pending_calls is not None:
        return functools.partial(BoundedRef, limit=options.max_pending_calls, waits=options.when_full == "wait")
    if options is None and isinstance(place, ActorPlace) and place.limit:
        return functools.partial(BoundedRef, limit=place.limit, waits=place.waits)
    return ActorRef
