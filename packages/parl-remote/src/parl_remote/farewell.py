"""Ending actors that nobody refers to any more: politely, after what was sent to them, and without waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from parl_remote.actor_record import ActorRecord
from parl_remote.call_messages import Kind, pack
from parl_remote.errors import ChannelClosed, RemoteProtocolError, ResultTimeout
from parl_remote.loop import Loop
from parl_remote.transport import Channel

__all__ = ["Farewell", "say_close"]

_RETRY_S = 0.01  # between attempts to say CLOSE to an actor whose socket is full


def say_close(channel: Channel) -> bool:
    """Tell an actor to end after what was sent before; False if its socket is full just now.

    Raises:
        ChannelClosed: It has ended already.
    """
    try:
        channel.send(pack(Kind.CLOSE, 0, 0, 0), 0.0)
    except ResultTimeout:
        return False
    return True


class Farewell:
    """Takes leave of actors, in a client's loop.

    Args:
        loop: The client's loop.
        find: The actor on a lease, None if it is gone.
        give_back: Gives a lease back whose actor cannot be told.
    """

    def __init__(
        self, loop: Loop, find: Callable[[str], ActorRecord | None], give_back: Callable[[ActorRecord], None]
    ) -> None:
        self._loop = loop
        self._find = find
        self._give_back = give_back
        self._dropped: deque[str] = deque()

    def drop(self, lease_id: str) -> None:
        """Nobody refers to an actor any more. Called in the middle of anything: takes no lock, waits for nothing."""
        self._dropped.append(lease_id)
        self._loop.call_soon(self._collect)

    def _collect(self) -> None:
        while self._dropped:
            record = self._find(self._dropped.popleft())
            if record is not None:
                self._part(record)

    def _part(self, record: ActorRecord) -> None:
        channel = record.channel
        if channel is None or record.has_ended:
            self._give_back(record)
            return
        try:
            if say_close(channel):
                self._loop.add(channel, lambda: self._discard_answers(channel))  # nobody else will read them
                return
        except ChannelClosed:
            return  # it has ended already, and its worker says so
        self._discard_answers(channel)
        self._loop.call_later(_RETRY_S, lambda: self._part(record))

    def _discard_answers(self, channel: Channel) -> None:
        try:
            while True:
                channel.receive(0.0)
        except ResultTimeout:
            pass
        except (ChannelClosed, RemoteProtocolError):
            self._loop.remove(channel)
            channel.close()
