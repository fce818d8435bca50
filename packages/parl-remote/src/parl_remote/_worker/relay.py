"""The worker's relay: forwards calls from other hosts, which arrive at the node's port, to the actors' unix sockets.

    caller on another host --zmq link, after AttachActor--> Relay --unix--> actor
                           <-------- whole messages, unread --------------

It does not read the messages. After AttachActor all traffic on the link is between caller and actor, except credits,
which keep both from filling the worker's memory (see `relayed_channel`): a caller that is ahead of its actor waits for
credit, an actor that is ahead of its caller is not read from.

A shortage of the system while something of a pair is moved, in either direction, ends that pair and nothing else: the
caller gets the cause, the actor the end of the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parl_remote._links.call_messages import CREDIT, CREDIT_EVERY, WINDOW, credit, credit_of, refusal_of, size_of
from parl_remote._links.handshake import Link
from parl_remote._links.loop import Loop
from parl_remote._system.shortage import is_shortage, shortage_of
from parl_remote._transport import Closed, CutMessage, Received
from parl_remote._transport.unix import UnixPeers
from parl_remote.errors import ChannelClosed, RemoteProtocolError

__all__ = ["Relay"]


class _Pair:
    """A caller's link and the connection to its actor, with the bytes in flight between them."""

    __slots__ = ("actor", "held", "link", "not_credited", "to_caller")

    def __init__(self, link: Link, actor: int) -> None:
        self.link = link
        self.actor = actor
        self.not_credited = 0  # bytes that came from the caller since the last credit to it
        self.to_caller = 0  # bytes to the caller for which it has not given credit
        self.held = False  # whether the actor is not read from


class Relay:
    """The pairs of a caller's link and a connection to an actor.

    Args:
        loop: The node's loop.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._actors = UnixPeers()
        self._by_link: dict[Link, _Pair] = {}
        self._by_actor: dict[int, _Pair] = {}
        self._behind: set[_Pair] = set()  # pairs whose callers get credit once their actors have taken enough
        loop.add(self._actors, self._poll)

    def attach(self, link: Link, address: str) -> None:
        """Forward all messages between a link and the actor that listens at `address`, from now on."""
        try:
            actor = self._actors.connect(address)
        except ChannelClosed:
            link.drop()  # the actor has just died; the caller is notified on its own link to the worker
        except Exception as error:
            if not is_shortage(error):
                raise
            _refuse(link, shortage_of(error))
        else:
            self._by_link[link] = self._by_actor[actor] = _Pair(link, actor)

    def carries(self, link: Link) -> bool:
        """Return whether a link is paired with an actor."""
        return link in self._by_link

    def forward(self, link: Link, frames: list[memoryview]) -> None:
        """Forward a caller's message; if the actor is gone, the end of its connection follows.

        Raises:
            RemoteProtocolError: The message is a credit for more than was sent.
        """
        self._move(self._by_link[link], self._from_caller, frames)

    def closed(self, link: Link) -> None:
        """Drop the pair of a caller that is gone."""
        pair = self._by_link[link]
        self._forget(pair)
        self._actors.drop(pair.actor)

    def close(self) -> None:
        """Close all connections to actors."""
        self._loop.remove(self._actors)
        self._actors.close()

    def _poll(self) -> None:
        by_actor = self._by_actor
        for event in self._actors.poll():
            pair = by_actor.get(event.peer)
            if pair is None:
                continue
            if type(event) is Received:
                self._move(pair, self._from_actor, event.frames)
            elif type(event) is Closed and event.shortage:
                self._end(pair, event.shortage)
            elif type(event) is Closed:
                self._part(pair)
        if self._behind:
            self._catch_up()

    def _move(self, pair: _Pair, how: Callable[..., None], *what: Any) -> None:
        """Forward data of a pair, and end the pair if there is a shortage, or was one when it was read."""
        try:
            how(pair, *what)
        except Exception as error:
            if not is_shortage(error):
                raise
            self._end(pair, shortage_of(error))

    def _from_caller(self, pair: _Pair, frames: list[memoryview]) -> None:
        if type(frames) is CutMessage:
            raise frames.shortage
        if frames[0] and frames[0][0] == CREDIT:
            self._take_credit(pair, credit_of(frames))
            return
        try:
            self._actors.send(pair.actor, frames)
        except ChannelClosed:
            self._part(pair)
            return
        pair.not_credited += size_of(frames)
        if pair.not_credited >= CREDIT_EVERY:
            self._behind.add(pair)
            self._catch_up()

    def _from_actor(self, pair: _Pair, frames: list[memoryview]) -> None:
        if type(frames) is CutMessage:
            raise frames.shortage
        pair.link.send(frames)
        pair.to_caller += size_of(frames)
        if pair.to_caller >= WINDOW and not pair.held:
            pair.held = True
            self._actors.pause(pair.actor)

    def _catch_up(self) -> None:
        """Send credit to callers whose actors have received enough."""
        for pair in list(self._behind):
            self._move(pair, self._give_credit)

    def _give_credit(self, pair: _Pair) -> None:
        taken = pair.not_credited - self._actors.backlog(pair.actor)
        if taken >= CREDIT_EVERY:
            pair.not_credited -= taken
            pair.link.send([credit(taken)])
        if pair.not_credited < CREDIT_EVERY:
            self._behind.discard(pair)

    def _take_credit(self, pair: _Pair, taken: int) -> None:
        if taken > pair.to_caller:
            raise RemoteProtocolError(f"credit for {taken} bytes, and only {pair.to_caller} were sent")
        pair.to_caller -= taken
        if pair.held and pair.to_caller < WINDOW:
            pair.held = False
            self._actors.resume(pair.actor)

    def _part(self, pair: _Pair) -> None:
        """Drop the pair of an actor that is gone."""
        self._forget(pair)
        pair.link.drop()

    def _end(self, pair: _Pair, shortage: str) -> None:
        """End a pair for a shortage."""
        self._forget(pair)
        _if_possible(self._actors.drop, pair.actor)
        _refuse(pair.link, shortage)

    def _forget(self, pair: _Pair) -> None:
        del self._by_actor[pair.actor]
        del self._by_link[pair.link]
        self._behind.discard(pair)


def _refuse(link: Link, shortage: str) -> None:
    """Send a caller the reason why its connection ends, and end it; either may fail because of the shortage."""
    _if_possible(lambda: link.send(refusal_of(shortage)))
    _if_possible(link.drop)


def _if_possible(step: Callable[..., object], *arguments: Any) -> None:
    try:
        step(*arguments)
    except Exception as error:
        if not is_shortage(error):
            raise
