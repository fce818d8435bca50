"""The worker's service for borrowers, clients that hold a handle of an actor that they did not make.

    client --WatchActor--> Borrowers --HOLD--> actor               it cannot end before the client has connected
           <-ActorWatched(address)--
           --JOIN, on a connection of its own--> actor
           --ActorReached--> Borrowers --RELEASE--> actor           no other borrower is expected
           <-ActorDied-- when it has ended, with the cause
           --UnwatchActor--> Borrowers --RELEASE--> actor         instead of ActorReached, if it does not come after all

An actor that is busy for long reads no messages meanwhile. So there is one HOLD for all expected borrowers, and no
RELEASE before the actor has read earlier messages: at most two short messages wait for it.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence

from parl_remote._links.call_messages import Kind, pack
from parl_remote._links.handshake import Link
from parl_remote._links.loop import Loop
from parl_remote._messages import ActorDied, Message
from parl_remote._messages.parts import ActorReached, ActorWatched, DescribeActor, UnwatchActor, WatchActor
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import ChannelClosed, DeathCause, DeathKind, RemoteError, RemoteProtocolError, ResultTimeout

__all__ = ["Borrowers"]

_LOOK_AGAIN_S = 0.05  # whether a busy actor has read what it was sent; until then it does not end anyway


class Borrowers:
    """The borrowers of a worker's actors; implements `handshake.Part`.

    Args:
        find: Returns the socket's path and the worker's connection of the actor on a lease, while it lives.
        ended: Returns why the actor on a lease ended, if that was recent.
        is_owner: Returns whether a client has made the actor on a lease.
        loop: The node's loop.
    """

    def __init__(
        self,
        find: Callable[[str], tuple[str, UnixChannel] | None],
        ended: Callable[[str], DeathCause | None],
        is_owner: Callable[[str, str], bool],
        loop: Loop,
    ) -> None:
        self._loop = loop
        self._find = find
        self._ended = ended
        self._is_owner = is_owner
        self._watching: defaultdict[str, set[Link]] = defaultdict(set)
        self._on_their_way: defaultdict[str, dict[Link, set[int]]] = defaultdict(dict)  # the requests of each client
        self._looking: set[str] = set()  # the actors that will be checked again
        self._held: set[str] = set()  # the actors that were told HOLD and not yet RELEASE
        self._descriptions: dict[str, str] = {}
        self._undescribed: defaultdict[str, list[tuple[Link, WatchActor]]] = defaultdict(list)

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:  # noqa: ARG002
        """Process a message of a borrower: watch an actor, describe it, or stop watching it."""
        match message:
            case WatchActor(described=True, lease_id=lease_id) if lease_id not in self._descriptions:
                if self._find(lease_id) is None and self._ended(lease_id) is not None:
                    self._watch(link, message)
                else:
                    self._undescribed[lease_id].append((link, message))
            case WatchActor():
                self._watch(link, message)
            case ActorReached(lease_id=lease_id):
                self._arrived(link, lease_id)
            case UnwatchActor(lease_id=lease_id, watch_id=0):
                self._let_go(link, lease_id)
            case UnwatchActor(lease_id=lease_id, watch_id=number):
                self._give_up(link, lease_id, number)
            case DescribeActor(lease_id=lease_id, description=description):
                if not self._is_owner(lease_id, link.hello.id):
                    raise RemoteError(f"{link.hello.id} describes {lease_id}, which it has not made")
                self._descriptions[lease_id] = description
                for waiting, request in self._undescribed.pop(lease_id, ()):
                    self._watch(waiting, request)
            case _:
                raise RemoteProtocolError(f"borrowers do not send {type(message).__name__}")

    def closed(self, link: Link) -> None:
        """Stop watching and holding actors for a client that is gone."""
        for lease_id in [lease_id for lease_id, links in self._watching.items() if link in links]:
            self._let_go(link, lease_id)
        for lease_id, waiting in list(self._undescribed.items()):
            self._undescribed[lease_id] = [(other, request) for other, request in waiting if other is not link]
            if not self._undescribed[lease_id]:
                del self._undescribed[lease_id]

    def actor_ended(self, lease_id: str, cause: DeathCause) -> None:
        """Notify all clients that watch the actor of its end."""
        self._held.discard(lease_id)
        self._on_their_way.pop(lease_id, None)
        self._descriptions.pop(lease_id, None)
        for link in self._watching.pop(lease_id, ()):
            link.tell(ActorDied(lease_id, cause))
        for link, request in self._undescribed.pop(lease_id, ()):
            link.tell(ActorWatched(request.request_id, cause=cause))

    def close(self) -> None:
        """Do nothing: actors and links end with the node."""

    def attached(self, client_id: str, lease_id: str) -> None:
        """Handle a client on another host that has reached an actor through the worker's relay."""
        for link in [link for link in self._on_their_way.get(lease_id, ()) if link.hello.id == client_id]:
            self._arrived(link, lease_id)

    def _watch(self, link: Link, request: WatchActor) -> None:
        lease_id = request.lease_id
        actor = self._find(lease_id)
        if actor is None or not self._hold(lease_id, actor[1]):
            unknown = DeathCause(DeathKind.EXIT, detail="it ended long ago, or before this worker was started")
            link.tell(ActorWatched(request.request_id, cause=self._ended(lease_id) or unknown))
            return
        self._watching[lease_id].add(link)
        self._on_their_way[lease_id].setdefault(link, set()).add(request.request_id)
        link.tell(ActorWatched(request.request_id, actor[0], self._descriptions.get(lease_id, "")))

    def _hold(self, lease_id: str, channel: UnixChannel) -> bool:
        """Keep the actor from ending; return False if it has just ended."""
        if lease_id not in self._held and _send_notice(channel, Kind.HOLD):
            self._held.add(lease_id)
        return lease_id in self._held

    def _arrived(self, link: Link, lease_id: str) -> None:
        """Expect a client no longer: its one connection serves all of its requests."""
        on_their_way = self._on_their_way.get(lease_id)
        if on_their_way is not None:
            on_their_way.pop(link, None)
            self._release(lease_id)

    def _release(self, lease_id: str) -> None:
        """Release the actor, once no borrower is expected and the actor has read the HOLD."""
        if lease_id not in self._held or self._on_their_way.get(lease_id):
            return
        self._on_their_way.pop(lease_id, None)
        actor = self._find(lease_id)
        if actor is None:
            self._held.discard(lease_id)
        elif actor[1].unread_by_peer:
            if lease_id not in self._looking:
                self._looking.add(lease_id)
                self._loop.call_later(_LOOK_AGAIN_S, lambda: self._look_again(lease_id))
        else:
            self._held.discard(lease_id)
            _send_notice(actor[1], Kind.RELEASE)

    def _look_again(self, lease_id: str) -> None:
        self._looking.discard(lease_id)
        self._release(lease_id)

    def _give_up(self, link: Link, lease_id: str, number: int) -> None:
        """Forget a request whose answer is not awaited any more; it may have been answered already."""
        waiting = self._undescribed.get(lease_id, [])
        left = [(other, request) for other, request in waiting if other is not link or request.request_id != number]
        if len(left) == len(waiting):
            answered = self._on_their_way.get(lease_id, {}).get(link, set())
            answered.discard(number)
            if not answered:
                self._arrived(link, lease_id)
        elif left:
            self._undescribed[lease_id] = left
        else:
            del self._undescribed[lease_id]

    def _let_go(self, link: Link, lease_id: str) -> None:
        watching = self._watching.get(lease_id)
        if watching is not None:
            watching.discard(link)
            if not watching:
                del self._watching[lease_id]
        self._arrived(link, lease_id)


def _send_notice(channel: UnixChannel, kind: Kind) -> bool:
    """Send an actor a message; return False if it has just ended."""
    with contextlib.suppress(ChannelClosed, ResultTimeout):
        channel.send(pack(kind, 0, 0, 0), 0.0)
        return True
    return False
