"""The actors that a client has made, until their ends are known and their last answers have been read.

add --> records --lost: its calls fail with the cause--> forget --> its connection closes
                                                           `--(through a relay) a second later: answers may follow
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from parl_remote.death import DeathCause, DeathKind
from parl_remote.links.loop import Loop
from parl_remote.program.actor_record import ActorRecord
from parl_remote.transport.unix import UnixChannel

__all__ = ["NEWS_S", "OwnActors"]

NEWS_S = 1.0
"""News of an actor's end go from its worker to its owner and to the master, milliseconds apart; seconds."""

# Ends before which an actor has answered what it was sent.
_ANSWERED_FIRST = frozenset((DeathKind.DRAINED, DeathKind.RELEASED, DeathKind.EXIT))


class OwnActors:
    """Actors that one client has made.

    Args:
        loop: The client's loop.
        in_loop: Whether the thread that asks is the loop's.

    Attributes:
        records: What is known of each, by lease.
    """

    def __init__(self, loop: Loop, in_loop: Callable[[], bool]) -> None:
        self._loop = loop
        self._in_loop = in_loop
        self._lock = threading.Lock()
        self._none_left = threading.Event()
        self._parting: set[ActorRecord] = set()  # ended, and their last answers may be on the way
        self.records: dict[str, ActorRecord] = {}

    def add(self, record: ActorRecord) -> None:
        """An actor that begins."""
        with self._lock:
            self.records[record.lease_id] = record
            self._none_left.clear()

    def on_node(self, node_id: str) -> list[str]:
        """The leases of those on a node."""
        return [lease_id for lease_id, record in list(self.records.items()) if record.node_id == node_id]

    def lost(self, lease_id: str, cause: DeathCause) -> None:
        """An actor has ended; unknown ones are ignored."""
        record = self.records.get(lease_id)
        if record is not None:
            record.lose(cause)
            if record.comeback is not None and record.connection is not None:
                record.connection.read_out(NEWS_S)
            self.forget(record, cause)

    def forget(self, record: ActorRecord, cause: DeathCause) -> None:
        """Let go of what leads to an actor; calls that have no answer fail with `cause`."""
        self.records.pop(record.lease_id, None)
        if not self.records:
            self._none_left.set()
        record.end(cause)
        if record.channel is not None and self._in_loop():
            self._loop.remove(record.channel)  # the farewell may still be reading from it
            if cause.kind in _ANSWERED_FIRST and not isinstance(record.channel, UnixChannel):
                # Through a relay, answers come by another way than the news of the end, and may come after it.
                self._parting.add(record)
                self._loop.call_later(NEWS_S, lambda: self._part_with(record))
                return
        record.hang_up()

    def await_none(self, timeout_s: float) -> None:
        """Wait until all have ended, but for those that outlive the program."""
        if not all(record.is_detached for record in self.records.values()):
            self._none_left.wait(timeout_s)

    def close(self, cause: DeathCause) -> None:
        """Let go of all, once the loop has stopped."""
        for record in list(self.records.values()):
            self.forget(record, cause)
        for record in list(self._parting):
            self._part_with(record)

    def _part_with(self, record: ActorRecord) -> None:
        self._parting.discard(record)
        record.hang_up()
