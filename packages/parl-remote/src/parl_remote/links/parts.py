"""What a worker or a master does beside its main work, one part a topic: logs, files, values, names, overviews.

    frames --decode--> message --by its name--> Parts --the first time: make()--> Part.received(link, message, frames)

A part is made when the first of its messages comes, and with it everything that it imports: a private cluster that is
never asked for logs does not load what reads them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from parl_remote.errors import RemoteError, RemoteProtocolError
from parl_remote.links.handshake import Link
from parl_remote.messages import Failed, Message

__all__ = ["Part", "Parts"]

_log = logging.getLogger("parl.remote")


class Part(Protocol):
    """Answers some of the messages that reach a node."""

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:
        """Take a message; `frames` are those that came with it, its own first.

        Raises:
            RemoteProtocolError: The peer may not send that; it is dropped.
            RemoteError: It cannot be done; the peer is told so with `Failed` if the message has a `request_id`.
        """

    def closed(self, link: Link) -> None:
        """A peer is gone, one that this part may never have heard of."""

    def close(self) -> None:
        """The node ends: give everything back."""


class Parts:
    """The parts of one role of a node, by the names of the messages that they take."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], Part]] = {}
        self._made: dict[Callable[[], Part], Part] = {}

    def add(self, takes: Iterable[str], make: Callable[[], Part]) -> None:
        """Give messages of these names to the part that `make` will make."""
        for name in takes:
            if name in self._makers:
                raise ValueError(f"two parts want {name}")
            self._makers[name] = make

    def take(self, link: Link, message: Message, frames: Sequence[memoryview]) -> bool:
        """Give a message to its part; False if there is none.

        Raises:
            RemoteProtocolError: The peer may not send that.
        """
        make = self._makers.get(type(message).__name__)
        if make is None:
            return False
        if make not in self._made:
            self._made[make] = make()
        try:
            self._made[make].received(link, message, frames)
        except RemoteProtocolError:
            raise
        except (RemoteError, OSError) as error:
            request_id = getattr(message, "request_id", None)
            if request_id is None:
                _log.warning("%s of %s: %s", type(message).__name__, link.hello.id, error)
            else:
                link.tell(Failed(request_id, str(error)))
        return True

    def closed(self, link: Link) -> None:
        """Tell the parts that a peer is gone."""
        for part in self._made.values():
            part.closed(link)

    def close(self) -> None:
        """Tell the parts that the node ends."""
        for part in self._made.values():
            part.close()
