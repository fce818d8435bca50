"""Requests to a peer that answers with the same `request_id`; the thread that asks sleeps until the answer is read.

    ask(...) --make(request_id)--> peer --answer with the request_id--> answered(...) wakes the thread

`arrived_messages` reads control messages from a channel within a loop.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet

from parl_remote.errors import ChannelClosed, RemoteError, RemoteProtocolError, ResultTimeout
from parl_remote.messages import Failed, Message
from parl_remote.messages.wire import decode
from parl_remote.transport import Channel

__all__ = ["Requests", "arrived_messages"]


class Requests:
    """The requests that are not answered yet, over any number of links.

    Attributes:
        numbers: Gives each request an id that no other has.
    """

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self._open: dict[int, tuple[str, Future[Message]]] = {}
        self._lock = threading.Lock()

    def ask(
        self, peer: str, make: Callable[[int], Message], send: Callable[[Message], None], timeout_s: float | None
    ) -> Message:
        """Send a request and wait for its answer; not in the loop's own thread, which reads it.

        Args:
            peer: Whom it goes to, for `lost`.
            make: Makes the request from its request_id.
            send: Sends it.
            timeout_s: How long to wait; None as long as the peer lives.

        Raises:
            RemoteError: The peer could not do it, and says why.
            ResultTimeout: It did not answer in time.
        """
        number = next(self.numbers)
        answer: Future[Message] = Future()
        with self._lock:
            self._open[number] = peer, answer
        try:
            request = make(number)
            send(request)
            try:
                message = answer.result(timeout_s)
            except NotYet:
                asked = type(request).__name__
                raise ResultTimeout(f"{peer} did not answer {asked} within {timeout_s:g} s") from None
            if isinstance(message, Failed):
                raise RemoteError(message.reason)
            return message
        finally:
            with self._lock:
                self._open.pop(number, None)
            del answer  # it may hold an error, whose traceback holds this frame

    def answered(self, message: Message) -> bool:
        """Hand an answer to who asked; False if nobody did, or does not wait any more."""
        number = getattr(message, "request_id", None)
        with self._lock:
            asked = self._open.pop(number, None) if isinstance(number, int) else None
        if asked is None:
            return False
        asked[1].set_result(message)
        return True

    def lost(self, peer: str, error: Exception) -> None:
        """A peer is gone: whoever waits for it gets the error."""
        with self._lock:
            numbers = [number for number, (asked, _) in self._open.items() if asked == peer]
            waiting = [self._open.pop(number)[1] for number in numbers]
        for answer in waiting:
            answer.set_exception(error)


def arrived_messages(channel: Channel) -> list[Message | None]:
    """Return all control messages that have arrived; None at the end if the peer is gone or talks nonsense."""
    messages: list[Message | None] = []
    try:
        while True:
            messages.append(decode(channel.receive(0.0)[0]))
    except ResultTimeout:
        pass
    except (ChannelClosed, RemoteProtocolError):
        messages.append(None)
    return messages
