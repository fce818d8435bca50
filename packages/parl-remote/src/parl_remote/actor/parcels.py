"""Replies with handles of actors in them: their actors are held until the caller has connected to them.

reply with Flag.HANDLES --> caller connects to the actors in it --RECEIVED--> the actor that sent it lets go
"""

from __future__ import annotations

from parl_remote.links.call_messages import Flag
from parl_remote.program.handles import luggage
from parl_remote.transport import Buffer

__all__ = ["Parcel", "packed", "with_luggage"]

_FLAGS_AT = 1  # of the header, see `call_messages`
_HANDLES = int(Flag.HANDLES)

packed = luggage.notes  # empty unless `with_luggage` has something to do


class Parcel(list[Buffer]):
    """A reply's frames.

    Attributes:
        call_id: Which call it answers.
        refs: The actors to hold.
    """

    def __init__(self, frames: list[Buffer], refs: tuple[object, ...]) -> None:
        super().__init__(frames)
        self.refs = refs
        self.call_id = int.from_bytes(frames[0][4:8], "little")


def with_luggage(reply: list[Buffer]) -> list[Buffer]:
    """A reply together with the actors whose handles this thread has just pickled for it."""
    refs = luggage.take()
    if not refs:
        return reply
    header = bytearray(reply[0])
    header[_FLAGS_AT] |= _HANDLES
    return Parcel([bytes(header), *reply[1:]], refs)
