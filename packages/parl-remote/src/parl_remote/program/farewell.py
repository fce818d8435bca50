"""Ending or letting go of actors that nobody here refers to any more: politely, and without waiting for it.

own actor       CLOSE after what was sent to it; it ends, unless others hold it too, and its worker says so
borrowed actor  CLOSE, then the connection closes, and its worker need not tell us of its end
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

from parl_remote.errors import ChannelClosed, RemoteProtocolError, ResultTimeout
from parl_remote.links.call_messages import Kind, pack
from parl_remote.links.loop import Loop
from parl_remote.program.actor_record import ActorRecord
from parl_remote.transport import Channel

__all__ = ["Farewell", "say_close"]

_RETRY_S = 0.01  # between attempts to say CLOSE to an actor whose socket is full


def say_close(channel: Channel, *, with_owner: bool = False) -> bool:
    """Tell an actor that it is not needed here after what was sent before; False if its socket is full just now.

    Args:
        channel: The way to it.
        with_owner: Whether it shall end although others may need it, because the program that made it ends.

    Raises:
        ChannelClosed: It has ended already.
    """
    try:
        channel.send(pack(Kind.CLOSE, 0, int(with_owner), 0), 0.0)
    except ResultTimeout:
        return False
    return True


class Farewell:
    """Takes leave of actors, in a client's loop.

    Args:
        loop: The client's loop.
        give_back: Gives a lease back whose actor cannot be told.
        forget: Forgets an actor that goes on without this program.
    """

    def __init__(
        self,
        loop: Loop,
        give_back: Callable[[ActorRecord], None],
        forget: Callable[[ActorRecord], None],
    ) -> None:
        self._loop = loop
        self._give_back = give_back
        self._forget = forget
        self._dropped: deque[tuple[ActorRecord, Channel | None]] = deque()
        self._parting: set[Channel] = set()

    def drop(self, record: ActorRecord, channel: Channel | None) -> None:
        """Nobody refers to an actor any more. Called in the middle of anything: takes no lock, waits for nothing.

        Args:
            record: The actor.
            channel: The way to it; by now there may be another one, for a handle that has come back meanwhile.
        """
        self._dropped.append((record, channel))
        self._loop.call_soon(self._collect)

    def hang_up(self) -> None:
        """Close what is left, once the loop has stopped."""
        for channel in self._parting:
            channel.close()
        self._parting.clear()

    def _collect(self) -> None:
        while self._dropped:
            record, channel = self._dropped.popleft()
            if record.channel is channel:
                record.channel = record.connection = None
            if channel is None or (record.has_ended and record.outlives_us):
                if channel is not None:
                    channel.close()
                (self._forget if record.outlives_us else self._give_back)(record)
            elif record.has_ended:  # or shall, because this program ends and found no way to it any more
                with contextlib.suppress(ChannelClosed):
                    say_close(channel, with_owner=True)
                channel.close()
            else:
                self._parting.add(channel)
                self._part(record, channel)

    def _part(self, record: ActorRecord, channel: Channel) -> None:
        try:
            said = say_close(channel)
        except ChannelClosed:  # it has ended already, and its worker says so
            self._done(record, channel)
            return
        if said and record.outlives_us:
            self._done(record, channel)
        elif said:
            self._loop.add(channel, lambda: self._read_on(record, channel))  # nobody else will
        elif self._discard_answers(record, channel):
            self._loop.call_later(_RETRY_S, lambda: self._part(record, channel))

    def _read_on(self, record: ActorRecord, channel: Channel) -> None:
        self._discard_answers(record, channel)

    def _discard_answers(self, record: ActorRecord, channel: Channel) -> bool:
        """Read what nobody wants; False if the connection is over."""
        try:
            while True:
                channel.receive(0.0)
        except ResultTimeout:
            return True
        except (ChannelClosed, RemoteProtocolError):
            self._done(record, channel)
            return False

    def _done(self, record: ActorRecord, channel: Channel) -> None:
        self._loop.remove(channel)
        self._parting.discard(channel)
        channel.close()
        if record.outlives_us:
            self._forget(record)
