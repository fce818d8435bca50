"""The caller's end of a channel to an actor on another host, through the relay of the actor's worker.

    caller --messages--> relay --> actor            at most `WINDOW` bytes are in flight in each direction:
           <--credit----                            the sender waits until the other end credits them
           <--messages-- relay <-- actor
           --credit---->

Without that a fast sender and a slow actor would fill the worker's memory. A credit is a message of one frame that no
call begins with; one for every quarter of the window keeps it off the path of small calls.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence

from parl_remote._links.call_messages import CREDIT, CREDIT_EVERY, WINDOW, credit, credit_of, size_of
from parl_remote._system.interrupts import Condition
from parl_remote._transport import Buffer, Channel, copied
from parl_remote.errors import ResultTimeout

__all__ = ["RelayedChannel"]

_LOOK_AGAIN_S = 0.05  # the reading thread may leave without a credit; then this one reads


class RelayedChannel:
    """A channel to an actor through a relay; see `transport.Channel`.

    Args:
        link: The channel to the worker, after AttachActor.
    """

    def __init__(self, link: Channel) -> None:
        self._link = link
        self._sending, self._receiving = threading.RLock(), threading.RLock()  # re-entrant, as those of `ZmqChannel`
        self._sent = 0  # bytes in all; only with `_sending`
        self._credit = 0  # bytes of it that were passed on; only with `_receiving`
        self._more_credit = Condition()
        self._inbox: deque[list[memoryview]] = deque()
        self._not_credited = 0
        self._unsent: deque[list[Buffer]] = deque()  # what `post` has kept; only with `_sending`

    def send(self, frames: Sequence[Buffer], timeout_s: float | None = None) -> None:
        """Send one message, blocking while the window is full; see `Channel.send`."""
        if not self._sending.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise ResultTimeout(f"another message has waited for the actor for {timeout_s} s")
        try:
            while self._unsent:
                timeout_s = self._send_in_window(self._unsent[0], timeout_s)
                self._unsent.popleft()
            self._send_in_window(frames, timeout_s)
        finally:
            self._sending.release()

    def _send_in_window(self, frames: Sequence[Buffer], timeout_s: float | None) -> float | None:
        """Send one message once the window has space for it; return the time that is left."""
        if self._sent - self._credit >= WINDOW:
            timeout_s = self._await_credit(timeout_s)
        self._link.send(frames, timeout_s)
        self._sent += size_of(frames)
        return timeout_s

    def post(self, frames: Sequence[Buffer]) -> bool:
        """Take one message without waiting; see `Channel.post`."""
        with self._sending:
            if self._unsent or self._sent - self._credit >= WINDOW:
                self._unsent.append([*frames])
                return False
            self._sent += size_of(frames)
            return self._link.post(frames)

    def freeze(self, frames: Sequence[Buffer] | None = None) -> None:
        """Refer to memory of the caller no more; see `Channel.freeze`."""
        with self._sending:
            if self._unsent:
                self._unsent[-1] = [*(map(copied, self._unsent[-1]) if frames is None else frames)]
            else:
                self._link.freeze(frames)

    def withdraw(self, frames: Sequence[Buffer]) -> bool:
        """Forget a message of which nothing has been sent; see `Channel.withdraw`."""
        with self._sending:
            if self._unsent:
                return bool(self._unsent.pop())
            is_forgotten = self._link.withdraw(frames)
            self._sent -= size_of(frames) if is_forgotten else 0
            return is_forgotten

    def flush(self) -> bool:
        """Send the rest of posted messages; see `Channel.flush`."""
        with self._sending:
            while self._unsent and self._sent - self._credit < WINDOW:
                frames = self._unsent.popleft()
                self._sent += size_of(frames)
                self._link.post(frames)
            return self._link.flush() and not self._unsent

    def receive(self, timeout_s: float | None = None) -> list[memoryview]:
        """Wait for one message; see `Channel.receive`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._receiving:
            while not self._inbox:
                frames = self._take(deadline)
                if frames is not None:
                    return frames
            return self._inbox.popleft()

    def fileno(self) -> int:
        """Return the link's descriptor, which is readable when `receive` may have a message."""
        return self._link.fileno()

    def pending(self) -> bool:
        """Return whether a message is available without waiting for the descriptor."""
        return bool(self._inbox) or self._link.pending()

    def close(self) -> None:
        """Send Bye and close."""
        self._link.close()

    def _take(self, deadline: float | None) -> list[memoryview] | None:
        """Read one message, or return None if it was a credit; called with `_receiving` held."""
        frames = self._link.receive(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if len(frames[0]) and frames[0][0] == CREDIT:
            self._credit += credit_of(frames)
            with self._more_credit:
                self._more_credit.notify_all()
            return None
        self._not_credited += size_of(frames)
        if self._not_credited >= CREDIT_EVERY:
            self._link.send([credit(self._not_credited)])
            self._not_credited = 0
        return frames

    def _await_credit(self, timeout_s: float | None) -> float | None:
        """Wait for space in the window, reading meanwhile if no other thread does; return the remaining time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._sent - self._credit >= WINDOW:
            if deadline is not None and time.monotonic() >= deadline:
                raise ResultTimeout(f"the actor received nothing for {timeout_s} s")
            if self._receiving.acquire(blocking=False):
                try:
                    with contextlib.suppress(ResultTimeout):
                        frames = self._take(deadline)
                        if frames is not None:
                            self._inbox.append(frames)
                finally:
                    self._receiving.release()
            else:
                with self._more_credit:
                    self._more_credit.wait(_LOOK_AGAIN_S)
        return None if deadline is None else max(0.0, deadline - time.monotonic())
