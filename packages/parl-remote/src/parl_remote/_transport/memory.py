"""The transport within one process: a master and a worker that share a loop, and tests.

    channel --deque--> listener's inbox     one wake-up pipe on each end
    channel <--deque-- listener.send

It behaves like the others, closing included, and copies nothing: a frame arrives as a view of the sent one.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from parl_remote._system.facilities import Waker
from parl_remote._system.interrupts import Condition
from parl_remote._system.texts import in_seconds
from parl_remote._transport import Buffer, Closed, Event, Opened, Received
from parl_remote.errors import ChannelClosed, ResultTimeout

__all__ = ["InboxChannel", "MemoryChannel", "MemoryListener"]


class MemoryListener:
    """The listening end, for channels of the same process, which `connect` makes."""

    def __init__(self, address: str = "memory") -> None:
        self._address = address
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._inbox: deque[Event] = deque()
        self._peers: dict[int, MemoryChannel] = {}
        self._waker = Waker()
        self._open = True

    @property
    def address(self) -> str:
        """The name given."""
        return self._address

    def connect(self) -> MemoryChannel:
        """Return a new channel to this listener.

        Raises:
            ChannelClosed: The listener is closed.
        """
        with self._lock:
            if not self._open:
                raise ChannelClosed(f"{self._address} is closed")
            peer = next(self._numbers)
            channel = self._peers[peer] = MemoryChannel(self, peer)
            self._post(Opened(peer))
        return channel

    def poll(self) -> list[Event]:
        """Return the events since the last call."""
        with self._lock:
            events = list(self._inbox)
            self._inbox.clear()
            if self._open:
                self._waker.clear()
        return events

    def send(self, peer: int, frames: Sequence[Buffer]) -> None:
        """Queue one message for a peer."""
        with self._lock:
            channel = self._peers.get(peer)
        if channel is None:
            raise ChannelClosed(f"peer {peer} of {self._address} is gone")
        channel.deliver([memoryview(frame) for frame in frames])

    def drop(self, peer: int) -> None:
        """Close the connection to a peer."""
        with self._lock:
            channel = self._peers.pop(peer, None)
        if channel is not None:
            channel.hang_up(f"{self._address} closed the connection")

    def fileno(self) -> int:
        """Return a descriptor that is readable while there are events."""
        return self._waker.fileno()

    def pending(self) -> bool:
        """Return False: the descriptor signals everything."""
        return False

    def close(self) -> None:
        """Drop all peers."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            peers = list(self._peers)
        for peer in peers:
            self.drop(peer)
        self._waker.close()

    def accept(self, peer: int, frames: Sequence[Buffer]) -> None:
        """Queue the event of a message from a channel; for `MemoryChannel`."""
        with self._lock:
            if peer not in self._peers:
                raise ChannelClosed(f"{self._address} closed the connection")
            self._post(Received(peer, [memoryview(frame) for frame in frames]))

    def lose(self, peer: int, reason: str) -> None:
        """Queue the event of a closed channel; for `MemoryChannel`."""
        with self._lock:
            if self._peers.pop(peer, None) is not None:
                self._post(Closed(peer, reason))

    def _post(self, event: Event) -> None:
        self._inbox.append(event)
        self._waker.wake()


class InboxChannel(ABC):
    """A channel whose messages another thread of this process delivers."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._inbox: deque[list[memoryview]] = deque()
        self._waker = Waker()
        self._over = ""  # the reason why nothing more will arrive

    @abstractmethod
    def send(self, frames: Sequence[Buffer], timeout_s: float | None = None) -> None:
        """Send one message."""

    def post(self, frames: Sequence[Buffer]) -> bool:
        """Send one message, which never has to wait."""
        self.send(frames)
        return True

    def freeze(self, frames: Sequence[Buffer] | None = None) -> None:
        """Do nothing: nothing is kept."""
        del frames

    def withdraw(self, frames: Sequence[Buffer]) -> bool:  # noqa: ARG002  # as the interface has it
        """Return False: it is sent."""
        return False

    def flush(self) -> bool:
        """Return True: nothing is kept."""
        return True

    def receive(self, timeout_s: float | None = None) -> list[memoryview]:
        """Wait for one message and return it."""
        taken: deque[list[memoryview]] = deque()
        self._take(taken, timeout_s, 1)
        return taken[0]

    def receive_all(self, into: deque[list[memoryview]], timeout_s: float | None = None) -> None:
        """Wait for one message and add all that have arrived; see `unix.UnixChannel`."""
        self._take(into, timeout_s, None)

    def _take(self, into: deque[list[memoryview]], timeout_s: float | None, most: int | None) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._inbox or self._over, timeout_s):
                raise ResultTimeout(f"nothing arrived within {in_seconds(timeout_s)}")
            if not self._inbox:
                raise ChannelClosed(self._over)
            for _ in range(most or len(self._inbox)):
                message = self._inbox[0]
                del self._inbox[0]  # no call before it is added, so no handler comes in between
                into.append(message)
            if not self._inbox and not self._over:
                self._waker.clear()

    def fileno(self) -> int:
        """Return a descriptor that is readable while there are messages, and permanently once the peer is gone."""
        return self._waker.fileno()

    def pending(self) -> bool:
        """Return False: the descriptor signals everything."""
        return False

    def deliver(self, frames: list[memoryview]) -> None:
        """Queue a message from the peer; for its listener."""
        with self._changed:
            if not self._over:
                self._inbox.append(frames)
                self._waker.wake()
                self._changed.notify_all()

    def hang_up(self, reason: str) -> None:
        """Record that the peer is gone; for its listener."""
        with self._changed:
            if not self._over:
                self._over = reason
                self._waker.wake()
                self._changed.notify_all()


class MemoryChannel(InboxChannel):
    """One connection to a `MemoryListener`, made by its `connect`."""

    def __init__(self, listener: MemoryListener, peer: int) -> None:
        super().__init__()
        self._listener = listener
        self._peer = peer
        self._closed = False

    def send(self, frames: Sequence[Buffer], timeout_s: float | None = None) -> None:  # noqa: ARG002 - never has to wait
        """Send one message."""
        if self._closed:
            raise ChannelClosed("this channel was closed")
        self._listener.accept(self._peer, frames)

    def close(self) -> None:
        """Close the channel; messages sent before still arrive."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._over = "this channel was closed"
            self._inbox.clear()
            self._waker.close()
            self._changed.notify_all()
        self._listener.lose(self._peer, "the peer closed the connection")
