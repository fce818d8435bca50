"""Replies on their way out of an actor: those of quick calls leave together, and none waits for a slow one.

    loop    --add-->  held replies  --flush--> one write a caller
    loop    --hold--> "I run another call before I flush": wakes the watchman
    watchman (a thread, started when first needed): flushes what is still held a millisecond later

One write for sixty replies instead of sixty writes is what makes a hundred thousand calls a second possible. But nobody
knows how long the next call takes before it has run, so somebody else has to see to it that what is finished leaves.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque

from parl_remote.errors import ChannelClosed
from parl_remote.transport import Buffer
from parl_remote.transport.unix import UnixChannel

__all__ = ["Outbox", "Watchman"]

_HOLD_S = 0.001  # longer than sixty quick calls take, shorter than anyone notices


class Outbox:
    """The replies to one caller that are not written yet. Its owner adds; its owner and the watchman flush.

    Attributes:
        held: What is not written yet.
        guarded: Whether the watchman will flush it.
    """

    __slots__ = ("_channel", "_lock", "guarded", "held")

    def __init__(self, channel: UnixChannel) -> None:
        self._channel = channel
        self.held: deque[list[Buffer]] = deque()
        self.guarded = False
        self._lock = threading.Lock()  # keeps the order when both flush

    def add(self, reply: list[Buffer]) -> None:
        """Keep a reply until the next `flush`."""
        self.held.append(reply)

    def flush(self) -> None:
        """Write everything that is held.

        Raises:
            ChannelClosed: The caller is gone.
        """
        held = self.held
        with self._lock:
            if len(held) == 1:
                self._channel.send(held.popleft())
            elif held:
                self._channel.send_batch([held.popleft() for _ in range(len(held))])


class Watchman:
    """Flushes outboxes whose owner is busy with a call."""

    def __init__(self) -> None:
        self._posts: deque[Outbox] = deque()
        self._idle = True
        self._thread: threading.Thread | None = None

    def guard(self, outbox: Outbox) -> None:
        """See to it that what `outbox` holds leaves within a millisecond."""
        if outbox.guarded:
            return
        outbox.guarded = True
        self._posts.append(outbox)
        if self._idle:
            self._idle = False
            if self._thread is None:
                self._bell = threading.Semaphore(0)  # most actors never need it
                self._thread = threading.Thread(target=self._watch, name="parl-replies", daemon=True)
                self._thread.start()
            self._bell.release()

    def _watch(self) -> None:
        while True:
            self._bell.acquire()
            while self._posts:
                time.sleep(_HOLD_S)
                for _ in range(len(self._posts)):
                    outbox = self._posts.popleft()
                    outbox.guarded = False  # before the flush: what is added from now on needs another round
                    with contextlib.suppress(ChannelClosed):  # its owner will find out
                        outbox.flush()
                if not self._posts:
                    self._idle = True  # and look once more: `guard` may not have seen it
