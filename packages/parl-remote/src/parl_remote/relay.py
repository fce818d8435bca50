"""The worker's relay: calls from other hosts come in at the node's one port and go on to the actor's unix socket.

    caller on another host --zmq link, after AttachActor--> Relay --unix--> actor
                           <-------- whole messages, unread --------------

It looks into nothing that passes: after AttachActor everything on the link belongs to caller and actor.
"""

from __future__ import annotations

from parl_remote.errors import ChannelClosed
from parl_remote.handshake import Link
from parl_remote.loop import Loop
from parl_remote.transport import Closed, Received
from parl_remote.transport_unix import UnixPeers

__all__ = ["Relay"]


class Relay:
    """Pairs of a caller's link and a connection to an actor.

    Args:
        loop: The node's loop.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._actors = UnixPeers()
        self._actor_of: dict[Link, int] = {}
        self._caller_of: dict[int, Link] = {}
        loop.add(self._actors, self._poll)

    def attach(self, link: Link, address: str) -> None:
        """From now on, carry everything between a link and the actor that listens at `address`."""
        try:
            actor = self._actors.connect(address)
        except ChannelClosed:
            link.drop()  # it died this moment; the caller hears of it on its own link to the worker
            return
        self._actor_of[link] = actor
        self._caller_of[actor] = link

    def carries(self, link: Link) -> bool:
        """Whether a link belongs to a caller and an actor."""
        return link in self._actor_of

    def forward(self, link: Link, frames: list[memoryview]) -> None:
        """Pass a caller's message on; if the actor is gone, the end of its connection follows."""
        try:
            self._actors.send(self._actor_of[link], frames)
        except ChannelClosed:
            self._part(self._actor_of[link])

    def closed(self, link: Link) -> None:
        """The caller is gone."""
        actor = self._actor_of.pop(link)
        del self._caller_of[actor]
        self._actors.drop(actor)

    def close(self) -> None:
        """Let go of everything."""
        self._loop.remove(self._actors)
        self._actors.close()

    def _poll(self) -> None:
        for event in self._actors.poll():
            match event:
                case Received(peer=actor, frames=frames) if actor in self._caller_of:
                    self._caller_of[actor].send(frames)
                case Closed(peer=actor) if actor in self._caller_of:
                    self._part(actor)

    def _part(self, actor: int) -> None:
        """The actor is gone."""
        link = self._caller_of.pop(actor)
        del self._actor_of[link]
        link.drop()
