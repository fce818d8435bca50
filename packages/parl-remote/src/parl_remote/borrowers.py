"""A worker's part for those who did not make an actor but hold a handle of it.

    client --WatchActor--> Borrowers --HOLD(token)--> actor           it cannot end any more before the client has come
           <-ActorWatched(address, token)--
           --JOIN(token), on a connection of its own--> actor
           <-ActorDied-- when it has ended, with the cause

A borrower that is gone before it came is taken back with RELEASE.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence

from parl_remote.call_messages import Kind, pack
from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import ChannelClosed, RemoteError, RemoteProtocolError, ResultTimeout
from parl_remote.handshake import Link
from parl_remote.messages import ActorDied, Message
from parl_remote.messages.naming import ActorWatched, DescribeActor, UnwatchActor, WatchActor
from parl_remote.transport_unix import UnixChannel

__all__ = ["Borrowers"]

_LATER = 2**32 - 1  # tokens go into the number of a call


class Borrowers:
    """Fills `parts.Part` on a worker.

    Args:
        find: The socket's path and the worker's connection of the actor on a lease, while it lives.
        ended: Why the actor on a lease ended, if that was not long ago.
        is_owner: Whether a client has made the actor on a lease.
    """

    def __init__(
        self,
        find: Callable[[str], tuple[str, UnixChannel] | None],
        ended: Callable[[str], DeathCause | None],
        is_owner: Callable[[str, str], bool],
    ) -> None:
        self._find = find
        self._ended = ended
        self._is_owner = is_owner
        self._tokens = itertools.count(1)
        self._watching: defaultdict[str, dict[Link, int]] = defaultdict(dict)
        self._descriptions: dict[str, str] = {}
        self._undescribed: defaultdict[str, list[tuple[Link, WatchActor]]] = defaultdict(list)

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:  # noqa: ARG002
        """See `Part.received`."""
        match message:
            case WatchActor(described=True, lease_id=lease_id) if lease_id not in self._descriptions:
                if self._find(lease_id) is None and self._ended(lease_id) is not None:
                    self._watch(link, message)
                else:
                    self._undescribed[lease_id].append((link, message))
            case WatchActor():
                self._watch(link, message)
            case UnwatchActor(lease_id=lease_id):
                self._let_go(link, lease_id)
            case DescribeActor(lease_id=lease_id, description=description):
                if not self._is_owner(lease_id, link.hello.id):
                    raise RemoteError(f"{link.hello.id} describes {lease_id}, which it has not made")
                self._descriptions[lease_id] = description
                for waiting, request in self._undescribed.pop(lease_id, ()):
                    self._watch(waiting, request)
            case _:
                raise RemoteProtocolError(f"borrowers do not send {type(message).__name__}")

    def closed(self, link: Link) -> None:
        """A client is gone; what it was on its way to need not wait for it."""
        for lease_id in [lease_id for lease_id, links in self._watching.items() if link in links]:
            self._let_go(link, lease_id)
        for lease_id, waiting in list(self._undescribed.items()):
            self._undescribed[lease_id] = [(other, request) for other, request in waiting if other is not link]
            if not self._undescribed[lease_id]:
                del self._undescribed[lease_id]

    def actor_ended(self, lease_id: str, cause: DeathCause) -> None:
        """Tell everyone concerned."""
        self._descriptions.pop(lease_id, None)
        for link in self._watching.pop(lease_id, ()):
            link.tell(ActorDied(lease_id, cause))
        for link, request in self._undescribed.pop(lease_id, ()):
            link.tell(ActorWatched(request.request_id, cause=cause))

    def close(self) -> None:
        """Nothing: actors and links end with the node."""

    def _watch(self, link: Link, request: WatchActor) -> None:
        lease_id = request.lease_id
        actor = self._find(lease_id)
        token = next(self._tokens) % _LATER
        if actor is None or not _say(actor[1], Kind.HOLD, token):
            unknown = DeathCause(DeathKind.EXIT, detail="it ended long ago, or before this worker was started")
            link.tell(ActorWatched(request.request_id, cause=self._ended(lease_id) or unknown))
            return
        before = self._watching[lease_id].get(link)
        if before is not None:
            _say(actor[1], Kind.RELEASE, before)  # it came, or has given up; one token a borrower
        self._watching[lease_id][link] = token
        link.tell(ActorWatched(request.request_id, actor[0], token, self._descriptions.get(lease_id, "")))

    def _let_go(self, link: Link, lease_id: str) -> None:
        token = self._watching.get(lease_id, {}).pop(link, None)
        if not self._watching.get(lease_id, True):
            del self._watching[lease_id]
        actor = self._find(lease_id)
        if token is not None and actor is not None:
            _say(actor[1], Kind.RELEASE, token)


def _say(channel: UnixChannel, kind: Kind, token: int) -> bool:
    """Tell an actor something; False if it has ended this moment, or does not read any more."""
    with contextlib.suppress(ChannelClosed, ResultTimeout):
        channel.send(pack(kind, 0, 0, token), 0.0)
        return True
    return False
