"""Requests to a peer that answers with the same `request_id`, on a client's links or on a link of their own.

    Requests.ask(...) --make(request_id)--> peer --answer with the request_id--> answered(...)

The thread that asks sleeps until the loop has read the answer; `arrived_messages` reads for the loop. A
`RequestConnection` sends the requests of a command line, one after the other, on a link that it opens and closes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from types import TracebackType
from typing import TypeVar

from parl_remote._config import Limits
from parl_remote._links.handshake import greet
from parl_remote._links.identity import host_id, new_id, versions
from parl_remote._messages import PROTOCOL_MAX, PROTOCOL_MIN, Bye, Failed, Hello, Message, Role, Welcome
from parl_remote._messages.wire import decode, encode, request_number
from parl_remote._system.interrupts import Condition, is_in_finalizer
from parl_remote._transport import Channel, CutMessage
from parl_remote.errors import WAITS_IN_FINALIZER, ChannelClosed, RemoteError, RemoteProtocolError, ResultTimeout

__all__ = ["PeerEnded", "PendingAnswer", "RequestConnection", "Requests", "arrived_messages"]

_Answer = TypeVar("_Answer", bound=Message)


class PendingAnswer(Future[_Answer]):
    """An answer that a thread waits for; a signal's handler may end the wait."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = Condition()

    def wait(self, timeout_s: float) -> bool:
        """Return whether the answer or an error came within `timeout_s` seconds.

        Raises:
            RemoteError: A finalizer waits here that may have interrupted the thread that reads the answer.
        """
        if is_in_finalizer():
            raise RemoteError(WAITS_IN_FINALIZER)
        with self._condition:
            return self._condition.wait_for(self.done, timeout_s)


class Requests:
    """The requests that are not answered yet, over any number of links.

    Attributes:
        numbers: Gives each request an id that no other has.
    """

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self._open: dict[int, tuple[str, PendingAnswer[Message]]] = {}

    def ask(
        self, peer: str, make: Callable[[int], Message], send: Callable[[Message], None], timeout_s: float | None
    ) -> Message:
        """Send a request and wait for its answer; must not run in the loop's own thread, which reads it.

        Args:
            peer: The peer's name, for `lost`.
            make: Makes the request from its request_id.
            send: Sends it.
            timeout_s: The time to wait; None for no limit while the peer lives.

        Raises:
            RemoteError: The request failed; the text is the peer's reason. Or a finalizer waits here, see
                `PendingAnswer.wait`.
            ResultTimeout: The peer did not answer in time.
        """
        number = next(self.numbers)
        answer: PendingAnswer[Message] = PendingAnswer()
        self._open[number] = peer, answer
        try:
            request = make(number)
            send(request)
            if is_in_finalizer():
                raise RemoteError(WAITS_IN_FINALIZER)
            try:
                message = answer.result(timeout_s)
            except NotYet:
                asked = type(request).__name__
                raise ResultTimeout(f"{peer} did not answer {asked} within {timeout_s:g} s") from None
            if isinstance(message, Failed):
                raise RemoteError(message.reason)
            return message
        finally:
            self._open.pop(number, None)
            del answer  # it may hold an error, whose traceback holds this frame

    def answered(self, message: Message) -> bool:
        """Pass an answer to its caller; return False if no caller waits for it."""
        number = getattr(message, "request_id", None)
        asked = self._open.pop(number, None) if isinstance(number, int) else None
        if asked is None:
            return False
        asked[1].set_result(message)
        return True

    def lost(self, peer: str, error: Exception) -> None:
        """Fail all pending requests to a peer that is gone."""
        for number, (asked, answer) in list(self._open.items()):
            if asked == peer and self._open.pop(number, None) is not None:
                answer.set_exception(error)

    def lose_all(self, error: Exception) -> None:
        """Fail all pending requests, to whichever peer."""
        for peer in {asked for asked, _ in list(self._open.values())}:
            self.lost(peer, error)


def arrived_messages(channel: Channel) -> list[Message | None]:
    """Return all control messages that have arrived; with None at the end if the peer is gone or broke the protocol.

    An answer for which there is no memory is `Failed`.
    """
    messages: list[Message | None] = []
    try:
        while True:
            messages.append(_message_of(channel.receive(0.0)))
    except ResultTimeout:
        pass
    except (ChannelClosed, RemoteProtocolError):
        messages.append(None)
    return messages


def _message_of(frames: list[memoryview]) -> Message:
    if type(frames) is not CutMessage:
        return decode(frames[0])
    number = request_number(frames[0])
    if number is None:
        raise RemoteProtocolError(str(frames.shortage))
    return Failed(number, str(frames.shortage))


class PeerEnded(ChannelClosed):
    """The peer has ended the connection, and sent the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the peer ended the connection: {reason}")
        self.reason = reason


class RequestConnection:
    """A connection to a master or a worker for blocking requests.

    Args:
        channel: A fresh channel to it; it is closed with the connection.
        to: The role of the peer.
        limits: The time to wait for an answer unless a request says otherwise.
        name: The displayed name of this client; the master's tables leave out names that begin with "xparl ".

    Attributes:
        welcome: The peer's answer to Hello.

    Raises:
        RemoteError: The peer refuses the link; see `handshake.greet`.
    """

    def __init__(self, channel: Channel, to: Role, limits: Limits, name: str) -> None:
        self._channel = channel
        self._limits = limits
        self._numbers = itertools.count(1)
        hello = Hello(
            Role.CLIENT,
            to,
            new_id("client"),
            PROTOCOL_MIN,
            PROTOCOL_MAX,
            host_id(),
            os.getpid(),
            {"parl_remote": versions()["parl_remote"]},  # it sends no objects, so any version of Python is accepted
            name,
        )
        self.welcome: Welcome = greet(channel, hello, limits.connect_timeout_s)

    def ask(self, make: Callable[[int], Message], kind: type[_Answer], timeout_s: float | None = None) -> _Answer:
        """Send a request and wait for the answer.

        Args:
            make: Makes the request from its number.
            kind: The expected class of the answer.
            timeout_s: The time to wait.

        Raises:
            RemoteError: The request failed; the text is the peer's reason. Or a finalizer waits here, see
                `PendingAnswer.wait`.
            ResultTimeout: The peer does not answer in time.
            PeerEnded: The peer has ended the connection by itself.
            ChannelClosed: The peer is gone.
            RemoteProtocolError: The answer is of another class.
        """
        number = next(self._numbers)
        patience_s = self._limits.connect_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + patience_s
        question = make(number)
        self._channel.send([encode(question)], patience_s)
        while True:
            answer = self._receive(deadline)
            if getattr(answer, "request_id", None) != number:
                continue  # the answer to a request that was given up, or a notification for other clients
            if isinstance(answer, Failed):
                raise RemoteError(answer.reason)
            if not isinstance(answer, kind):
                raise RemoteProtocolError(f"the peer answered {type(question).__name__} with {type(answer).__name__}")
            return answer

    def rest(self, seconds: float) -> None:
        """Wait between requests.

        Raises:
            PeerEnded: The peer has ended the connection by itself.
            ChannelClosed: The peer is gone.
        """
        deadline = time.monotonic() + seconds
        with contextlib.suppress(ResultTimeout):
            while True:
                self._receive(deadline)

    def _receive(self, deadline: float) -> Message:
        message = _message_of(self._channel.receive(max(0.0, deadline - time.monotonic())))
        if isinstance(message, Bye):
            raise PeerEnded(message.reason)
        return message

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> RequestConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
