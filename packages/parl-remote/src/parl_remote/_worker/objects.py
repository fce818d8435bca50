"""The worker's part in `put`: values from other hosts, and values of its actors that other hosts request.

    client on another host --StoreObject, image-->  memory of this process
                           --HoldObject---------->  memory of an actor, opened here as well, so that it stays
                           --FetchObject--------->  <--image--
    actor of this node     --reads a note in the node's directory, which says where the value is--> maps it

A value is stored once, however many clients send it, and released with the last of them; actors keep their mappings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parl_remote._data import object_memory
from parl_remote._data.object_memory import Memory, MemoryGone, MemoryPool, ValueAddress, adopt, read_image
from parl_remote._links.handshake import Link
from parl_remote._links.loop import Loop
from parl_remote._messages import Done, Message
from parl_remote._messages.parts import FetchObject, HoldObject, ObjectContent, ReleaseObject, StoreObject
from parl_remote._messages.wire import encode
from parl_remote.errors import RemoteError, RemoteProtocolError

__all__ = ["WorkerObjects"]

_PLACE_FIELDS = len(ValueAddress._fields)
_TIDY_S = 0.5  # see `MemoryPool.tidy`


@dataclass(slots=True)
class _Held:
    """A stored value and the links that hold it."""

    memory: Memory
    is_ours: bool
    links: set[Link] = field(default_factory=set)


class WorkerObjects:
    """The values that a node stores for clients on other hosts.

    Args:
        loop: The node's loop.
        directory: The node's private directory.
    """

    def __init__(self, loop: Loop, directory: Path) -> None:
        self._loop = loop
        self._directory = directory
        self._pool = MemoryPool(lambda _: None)
        self._held: dict[str, _Held] = {}
        self._tidying = False

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:
        """Process a message about a value; see `handshake.Part`."""
        object_id = getattr(message, "object_id", "")
        if not object_memory.is_id(object_id):
            raise RemoteProtocolError(f"{object_id[:80]!r} is not an id of a value")
        if isinstance(message, StoreObject):
            if len(frames) != 2:  # the message and the image
                raise RemoteProtocolError(f"StoreObject comes with one frame, not {len(frames) - 1}")
            self._store(link, message.object_id, frames[1])
            link.tell(Done(message.request_id))
        elif isinstance(message, HoldObject):
            if len(message.place) != _PLACE_FIELDS:
                raise RemoteProtocolError(f"a place has {_PLACE_FIELDS} numbers, not {len(message.place)}")
            self._hold(link, message.object_id, ValueAddress(*message.place))
            link.tell(Done(message.request_id))
        elif isinstance(message, FetchObject):
            held = self._held.get(message.object_id)
            if held is None:
                raise RemoteError(f"the value {message.object_id} is not on this node any more")
            try:
                image = read_image(held.memory.place())
            except MemoryGone as error:
                raise RemoteError(f"the value {message.object_id} cannot be read: {error}") from error
            link.send([encode(ObjectContent(message.request_id)), image])
        elif isinstance(message, ReleaseObject):
            self._release(link, message.object_id)

    def closed(self, link: Link) -> None:
        """Release the values that only this client held."""
        for object_id in [object_id for object_id, held in self._held.items() if link in held.links]:
            self._release(link, object_id)

    def close(self) -> None:
        """Release all values."""
        for object_id, held in list(self._held.items()):
            for link in list(held.links):
                self._release(link, object_id)

    def _store(self, link: Link, object_id: str, image: memoryview) -> None:
        if object_id not in self._held:
            self._keep(object_id, self._pool.store_image(image), is_ours=True)
        self._held[object_id].links.add(link)

    def _hold(self, link: Link, object_id: str, place: ValueAddress) -> None:
        if object_id not in self._held:
            try:
                memory = adopt(place)
            except MemoryGone as error:
                raise RemoteError(f"the value {object_id} is gone: {error}") from error
            self._keep(object_id, memory, is_ours=False)
        self._held[object_id].links.add(link)

    def _keep(self, object_id: str, memory: Memory, *, is_ours: bool) -> None:
        """Store a value for all actors of this node."""
        try:
            object_memory.note(self._directory, object_id, memory.place())
        except OSError:
            memory.close()
            raise
        self._held[object_id] = _Held(memory, is_ours)

    def _release(self, link: Link, object_id: str) -> None:
        held = self._held.get(object_id)
        if held is None:
            return
        held.links.discard(link)
        if held.links:
            return
        del self._held[object_id]
        object_memory.forget_note(self._directory, object_id)
        if not held.is_ours:
            held.memory.close()
            return
        self._pool.give_back(held.memory)
        if not self._tidying:
            self._tidying = True
            self._loop.call_later(_TIDY_S, self._tidy)

    def _tidy(self) -> None:
        self._tidying = self._pool.tidy()
        if self._tidying:
            self._loop.call_later(_TIDY_S, self._tidy)
