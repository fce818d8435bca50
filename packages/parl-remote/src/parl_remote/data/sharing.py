"""Which frames of a call's messages go through shared memory, and what stands in the messages instead.

    stow    [header, frame, LARGE FRAME, ...]  -->  [header with Flag.TICKETS, frame, ticket, ..., marks]
    unstow  the way back; marks has one byte for each frame after the first: 1 where it is a ticket

The caller finds out whether it is possible and offers it with Flag.SHARES when it has the object made.
"""

from __future__ import annotations

from collections.abc import Sequence

from parl_remote.data.shared_memory import LARGE, Mappings, Segments, can_share
from parl_remote.errors import RemoteProtocolError
from parl_remote.links.call_messages import Flag
from parl_remote.transport import Buffer, Channel
from parl_remote.transport.unix import UnixChannel

__all__ = ["TICKETS", "Sharing"]

TICKETS = int(Flag.TICKETS)
_FLAGS_AT = 1  # of the header, see `call_messages`
_HEADER_AND_MARKS = 2  # frames


class Sharing:
    """Shared memory for the large frames of one connection, both ways."""

    def __init__(self) -> None:
        self._segments = Segments()
        self._mappings = Mappings()

    @classmethod
    def through(cls, channel: Channel) -> Sharing | None:
        """For the peer at the other end of a channel; None if it cannot see this process's memory."""
        return cls() if isinstance(channel, UnixChannel) and can_share(channel.peer_pid) else None

    def stow(self, frames: list[Buffer]) -> list[Buffer]:
        """Put large frames where the receiver finds them; what finds no room there stays in the message."""
        stowed: list[Buffer] = []
        marks = bytearray()
        for frame in frames[1:]:
            ticket = self._segments.place(frame) if len(frame) >= LARGE else None
            stowed.append(frame if ticket is None else ticket)
            marks.append(ticket is not None)
        if 1 not in marks:
            return frames
        header = bytearray(frames[0])
        header[_FLAGS_AT] |= TICKETS
        return [bytes(header), *stowed, bytes(marks)]

    def unstow(self, frames: Sequence[memoryview]) -> list[memoryview]:
        """The frames that were sent. Every message with `TICKETS` must come here, else its memory stays taken.

        Raises:
            ChannelClosed: The sender is gone, and the frames with it.
            RemoteProtocolError: The message is malformed.
        """
        if len(frames) < _HEADER_AND_MARKS:
            raise RemoteProtocolError("a message with tickets has marks for them")
        header, *rest, marks = frames
        if len(marks) != len(rest):
            raise RemoteProtocolError(f"a message of {len(rest)} frames has marks for {len(marks)}")
        opened = [
            self._mappings.open(frame) if marked else frame for frame, marked in zip(rest, bytes(marks), strict=True)
        ]
        return [header, *opened]

    def close(self) -> None:
        """Let the memory go; frames that the receiver has, stay with it."""
        self._segments.close()
        self._mappings.close()
