"""The transport interface: messages of frames over a connection of any kind.

    Channel                    Listener
    one peer, blocking   <-->  many peers, never blocks, driven by one loop

A child that this process forks inherits its descriptors. It closes its copies, so that peers see the end of the parent:

    channel, listener, actor's process --abandoned_in_children--> a weak registry --os.fork--> child: abandon() of each

`subprocess` and other ways to start a program close all descriptors by themselves and do not come here.

Three implementations: `transport.memory` (one process, for tests and for a master and worker that share one),
`transport.unix` (one host) and `transport.zmq` (between hosts). No socket and no zmq type appears here. A message is
one or more frames; it arrives whole, once, in order, with its frames as they were cut, or the connection is reported as
closed. A frame is flat bytes: memory of another shape is cast first (`view.cast("B")`, `PickleBuffer.raw()`), so that
no transport has to look.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

from parl_remote._records import Record, record

__all__ = [
    "KEPT_OF_CUT",
    "Buffer",
    "Channel",
    "Closed",
    "CutMessage",
    "Event",
    "Inheritable",
    "Listener",
    "Opened",
    "Pollable",
    "Received",
    "abandoned_in_children",
    "allocate",
    "copied",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

KEPT_OF_CUT = 64  # bytes kept of a frame for which there is no memory: enough to identify the call or request

_LARGE = 2**22  # from here on numpy asks the kernel for huge pages, which come in a quarter of the time


class CutMessage(list[memoryview]):
    """A message some of whose frames are cut, because there was no memory for them.

    Args:
        lengths: The lengths of its frames.
        frames: The frames, each with its first `KEPT_OF_CUT` bytes.

    Attributes:
        shortage: What was missing.
        lengths: The lengths of its frames before they were cut.
    """

    def __init__(self, lengths: Sequence[int], frames: Iterable[memoryview] = ()) -> None:
        super().__init__(frames)
        self.lengths = lengths
        self.shortage = MemoryError(f"there is no memory for a frame of {max(lengths)} bytes")


@record
class Opened(Record):
    """A peer has connected; its number `peer` is unique at this listener and never reused."""

    peer: int


@record
class Received(Record):
    """A peer has sent a message; a `CutMessage` if there is no memory for it."""

    peer: int
    frames: list[memoryview]


@record
class Closed(Record):
    """A peer is gone: it closed, its process ended, it was silent for too long, or it was given up.

    Attributes:
        peer: Its number.
        reason: The reason.
        shortage: The shortage of this side's system for which it was given up; empty for every other reason.
    """

    peer: int
    reason: str
    shortage: str = ""


Event: TypeAlias = Opened | Received | Closed


class Pollable(Protocol):
    """A source that an event loop can wait for."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when there is something to do."""

    def pending(self) -> bool:
        """Return whether there is something to do even if the descriptor is not readable.

        A loop calls this before it waits, because a transport may have read ahead.
        """


class Channel(Pollable, Protocol):
    """A connection to one peer."""

    def send(self, frames: Sequence[Buffer], timeout_s: float | None = None) -> None:
        """Send one message; callable from any thread.

        Args:
            frames: One frame or more.
            timeout_s: The time to wait while the peer does not keep up; None waits without limit.

        Raises:
            ChannelClosed: The peer is gone.
            ResultTimeout: The time has passed and nothing was sent.
        """

    def post(self, frames: Sequence[Buffer]) -> bool:
        """Take one message without waiting for the peer; callable from any thread.

        Returns:
            False if a part of it is kept here for `flush`; messages that follow come after it. What is kept refers to
            the frames: call `freeze` before anything may write to them.

        Raises:
            ChannelClosed: The peer is gone.
        """

    def freeze(self, frames: Sequence[Buffer] | None = None) -> None:
        """Keep the message that `post` took last, if a part of it is still here, in memory that nothing writes to.

        Args:
            frames: A copy of its frames; by default the part that is still here is copied.

        Raises:
            MemoryError: There is no memory for a copy; what is kept still refers to the frames.
        """

    def withdraw(self, frames: Sequence[Buffer]) -> bool:
        """Forget the message that `post` took last, unless a part of it has been sent; return whether it is forgotten.

        Args:
            frames: Its frames.
        """

    def flush(self) -> bool:
        """Send the rest of posted messages, without waiting; return whether nothing is left.

        Raises:
            ChannelClosed: The peer is gone.
        """

    def receive(self, timeout_s: float | None = None) -> list[memoryview]:
        """Wait for one message and return its frames; one thread at a time.

        Args:
            timeout_s: The time to wait; 0 does not wait, None waits without limit.

        Returns:
            The frames; of some channels a `CutMessage`, if there is no memory for them.

        Raises:
            ChannelClosed: The peer is gone and everything it had sent was received.
            ResultTimeout: The time has passed.
        """

    def close(self) -> None:
        """Deliver the messages already sent, then close; a second call does nothing."""


class Listener(Pollable, Protocol):
    """The end that peers connect to."""

    @property
    def address(self) -> str:
        """The address that peers connect to: "host:port", a path, or a name within this process."""

    def poll(self) -> list[Event]:
        """Return the events since the last call, in order for each peer, without waiting."""

    def send(self, peer: int, frames: Sequence[Buffer]) -> None:
        """Queue one message for a peer, without waiting.

        Raises:
            ChannelClosed: The peer is gone.
        """

    def drop(self, peer: int) -> None:
        """Close the connection to a peer after the queued messages; no event follows. Unknown peers are ignored."""

    def close(self) -> None:
        """Drop all peers and stop listening; a second call does nothing."""


def allocate(size: int) -> memoryview:
    """Return writable memory that is not zeroed, because every byte is about to be written."""
    import numpy as np  # imported here, because a node never needs it and stays small

    return np.empty(size, np.uint8).data


def copied(frame: Buffer) -> Buffer:
    """Return a copy of a frame, which can be written to if the frame can."""
    if type(frame) is bytes:
        return frame
    view = memoryview(frame)
    if len(view) < _LARGE:
        return bytes(view) if view.readonly else bytearray(view)
    copy = allocate(len(view))
    copy[:] = view
    return copy.toreadonly() if view.readonly else copy


class Inheritable(Protocol):
    """An object with descriptors that belong to the process that opened them."""

    def abandon(self) -> None:
        """Close the copies of the descriptors, without sending anything and without taking a lock of the parent."""


_owners: weakref.WeakSet[Inheritable] = weakref.WeakSet()


abandoned_in_children = _owners.add
"""Call `abandon()` of an object in every child that this process forks while the object lives."""


def _abandon_all() -> None:
    for owner in list(_owners):
        with contextlib.suppress(Exception):  # each of the others is still to be closed
            owner.abandon()
    _owners.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
