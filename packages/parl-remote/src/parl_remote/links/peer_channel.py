"""One peer of a listener as a channel: what the connecting end has by nature, for the end that was connected to.

    any thread --send--> the listener's loop --> peer        peer --> the listener's loop --deliver--> receive

So the calls of a `Connection` can go to somebody who dialled in.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from parl_remote.errors import ChannelClosed, ResultTimeout
from parl_remote.links.loop import Loop
from parl_remote.system.polling import Waker
from parl_remote.transport import Buffer, Listener

__all__ = ["PeerChannel"]


class PeerChannel:
    """Fills `transport.Channel`.

    Args:
        loop: Where the listener is served.
        listener: Where the peer has connected.
        peer: Its number there.
    """

    def __init__(self, loop: Loop, listener: Listener, peer: int) -> None:
        self._loop = loop
        self._listener = listener
        self._peer = peer
        self._inbox: deque[list[memoryview]] = deque()
        self._changed = threading.Condition()
        self._waker = Waker()
        self._over = ""

    def send(self, frames: Sequence[Buffer], timeout_s: float | None = None) -> None:  # noqa: ARG002  # it never waits
        """Send one message: it is copied, because it leaves a moment later."""
        if self._over:
            raise ChannelClosed(self._over)
        copied = [bytes(frame) for frame in frames]
        self._loop.call_soon(lambda: self._send(copied))

    def receive(self, timeout_s: float | None = None) -> list[memoryview]:
        """Wait for one message."""
        return self._take(timeout_s)[0]

    def receive_all(self, timeout_s: float | None = None) -> list[list[memoryview]]:
        """Wait for one message and take all that are there."""
        return self._take(timeout_s, most=len(self._inbox) or 1)

    def _take(self, timeout_s: float | None, most: int = 1) -> list[list[memoryview]]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._inbox or self._over, timeout_s):
                raise ResultTimeout(f"nothing came within {timeout_s} s")
            if not self._inbox:
                raise ChannelClosed(self._over)
            taken = [self._inbox.popleft() for _ in range(min(most, len(self._inbox)))]
            if not self._inbox and not self._over:
                self._waker.clear()
        return taken

    def fileno(self) -> int:
        """Readable while there are messages, and for good once the peer is gone."""
        return self._waker.fileno()

    def pending(self) -> bool:
        """Always false: the descriptor says it all."""
        return False

    def close(self) -> None:
        """Close; what was sent before still leaves."""
        if not self._over:
            self.hang_up("this channel was closed")
            self._loop.call_soon(lambda: self._listener.drop(self._peer))

    # -- in the listener's loop --------------------------------------------------------------------------------------

    def deliver(self, frames: list[memoryview]) -> None:
        """Take a message from the peer."""
        with self._changed:
            self._inbox.append(frames)
            self._waker.wake()
            self._changed.notify_all()

    def hang_up(self, reason: str) -> None:
        """The peer is gone."""
        with self._changed:
            self._over = self._over or reason
            self._waker.wake()
            self._changed.notify_all()

    def _send(self, frames: list[bytes]) -> None:
        try:
            self._listener.send(self._peer, frames)
        except ChannelClosed as error:
            self.hang_up(str(error))
