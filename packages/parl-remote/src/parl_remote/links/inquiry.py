"""Questions to a node by somebody who has no actors and no loop: `xparl`, the doctor. One after the other, blocking."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from parl_remote.config import Limits
from parl_remote.errors import ChannelClosed, RemoteError, RemoteProtocolError
from parl_remote.links.handshake import greet
from parl_remote.links.identity import host_id, new_id, versions
from parl_remote.messages import PROTOCOL_MAX, PROTOCOL_MIN, Bye, Failed, Hello, Message, Role, Welcome
from parl_remote.messages.wire import decode, encode
from parl_remote.transport import Channel

__all__ = ["Inquiry"]

_Answer = TypeVar("_Answer", bound=Message)


class Inquiry:
    """A connection to a master or a worker, for questions.

    Args:
        channel: A fresh channel there; closed with the inquiry.
        to: Whom it leads to.
        limits: How long to wait for an answer unless a question says otherwise.
        name: What the peer shall call this client; the master's tables leave out names that begin with "xparl ".

    Attributes:
        welcome: What the peer said at the beginning.

    Raises:
        RemoteError: The peer does not want to talk; see `handshake.greet`.
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
            versions(),
            name,
        )
        self.welcome: Welcome = greet(channel, hello, limits.connect_timeout_s)

    def ask(self, make: Callable[[int], Message], kind: type[_Answer], timeout_s: float | None = None) -> _Answer:
        """Ask one thing and wait for the answer.

        Args:
            make: Makes the question from its number.
            kind: What the answer is.
            timeout_s: How long to wait.

        Raises:
            RemoteError: The peer cannot do it, and says why.
            ResultTimeout: It does not answer in time.
            ChannelClosed: It is gone.
            RemoteProtocolError: It answers with something else.
        """
        number = next(self._numbers)
        patience_s = self._limits.connect_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + patience_s
        question = make(number)
        self._channel.send([encode(question)], patience_s)
        while True:
            answer = decode(self._channel.receive(max(0.0, deadline - time.monotonic()))[0])
            if isinstance(answer, Bye):
                raise ChannelClosed(f"the peer ended the connection: {answer.reason}")
            if getattr(answer, "request_id", None) != number:
                continue  # the answer to a question that was given up, or news for other clients
            if isinstance(answer, Failed):
                raise RemoteError(answer.reason)
            if not isinstance(answer, kind):
                raise RemoteProtocolError(f"the peer answered {type(question).__name__} with {type(answer).__name__}")
            return answer

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def __enter__(self) -> Inquiry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
