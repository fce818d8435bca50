"""An object that dialled in, as its `RemoteManager` knows it: who it is, the way to it, and whether it comes back."""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Callable, Sequence
from typing import NamedTuple

from parl_remote.data import serialize
from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import ChannelClosed, RemoteProtocolError
from parl_remote.links.loop import Loop
from parl_remote.links.peer_channel import PeerChannel
from parl_remote.options import ActorOptions
from parl_remote.program.actor_record import ActorRecord
from parl_remote.program.actor_ref import ActorRef, AttributeNames
from parl_remote.program.connection import Connection
from parl_remote.program.handles import ActorPlace
from parl_remote.program.pending_calls import kind_of_reference
from parl_remote.program.recipe import Made
from parl_remote.program.restarts import Comeback, NotAgain
from parl_remote.shipping.class_spec import ClassSpec, ShippedSpec

__all__ = ["Hello", "ServedObject", "read_hello"]

_PROTOCOL = 1


class Hello(NamedTuple):
    """Which object is served.

    Attributes:
        object_id: Unique in time and space, the same when it comes back.
        host_id: The host of its program.
        shipped: Its class.
        names: The names of its attributes.
    """

    object_id: str
    host_id: str
    shipped: ShippedSpec
    names: tuple[str, ...]


def read_hello(frames: Sequence[memoryview]) -> Hello:
    """Read the first message of a connection; only who holds the key can have sent it.

    Raises:
        RemoteProtocolError: It is none.
    """
    try:
        told = json.loads(bytes(frames[0]))
        if told["protocol"] != _PROTOCOL:
            raise RemoteProtocolError(f"this manager speaks version {_PROTOCOL}, not {told['protocol']!r}")
        shipped, names = serialize.loads(frames[1], frames[2:])
        return Hello(str(told["object"]), str(told["host"]), ShippedSpec(*shipped), tuple(names))
    except RemoteProtocolError:
        raise
    except Exception as error:
        raise RemoteProtocolError(f"this is a RemoteManager, and what came is no object: {error}") from error


class ServedObject:
    """One object.

    Args:
        hello: Which.
        channel: The way to it.
        background: Gives the loop that reads for futures with callbacks.
        free: Runs something in the manager's loop; any thread may call it, at any time.
        available: Told when nobody has its handle any more.
        reconnect_s: How long it may take to come back.

    Attributes:
        object_id: Which.
        shipped: Its class.
        is_over: Whether it is gone for good.
    """

    def __init__(
        self,
        hello: Hello,
        channel: PeerChannel,
        *,
        background: Callable[[], Loop],
        free: Callable[[Callable[[], None]], None],
        available: Callable[[ServedObject], None],
        reconnect_s: float,
    ) -> None:
        self.object_id = hello.object_id
        self.shipped = hello.shipped
        self._host_id = hello.host_id
        self._background = background
        self._free = free
        self._available = available
        self._reconnect_s = reconnect_s
        self._names = AttributeNames(hello.names)
        self._returned: queue.SimpleQueue[PeerChannel | None] = queue.SimpleQueue()
        self._channel: PeerChannel | None = channel
        self._given = 0  # how often it was given out
        self.is_over = False
        self._made = self._make(channel)
        self._comeback = Comeback(
            self._made,
            limit=None,
            again=self._again,
            on_made=self._note,
            part=lambda _: None,
            give_up=lambda _: None,
            hope="its program is waited for",
        )

    @property
    def is_connected(self) -> bool:
        """Whether it is there now."""
        return self._channel is not None

    def reference(self, options: ActorOptions) -> ActorRef:
        """A reference for handles of it."""
        self._given = given = self._given + 1
        return kind_of_reference(options)(
            ClassSpec.of_shipped(self.shipped),
            self._comeback,
            let_go=lambda: self._free(lambda: self._given_back(given)),
            destroy=self._destroy,
            attributes=self._names,
            place=self._made.place,
        )

    def connection_lost(self, channel: PeerChannel, reason: str) -> None:
        """The way to it is closed; in the manager's loop."""
        if self._channel is channel:
            self._channel = None
        self._lose(DeathCause(DeathKind.NODE_LOST, detail=f"the connection to its program: {reason}"))
        channel.hang_up(reason)

    def ended(self, why: str) -> None:
        """It is gone for good; in the manager's loop."""
        self.is_over = True
        channel, self._channel = self._channel, None
        self._lose(DeathCause(DeathKind.CLIENT_GONE, detail=why))
        self._returned.put(None)
        if channel is not None:
            channel.hang_up(why)

    def connected_again(self, channel: PeerChannel) -> None:
        """Its program has dialled again; in the manager's loop."""
        if self._channel is not None:  # it noticed before this side did
            self.connection_lost(self._channel, "its program has dialled again")
        self._channel = channel
        self._returned.put(channel)

    def _lose(self, cause: DeathCause) -> None:
        record = self._made.record
        self._comeback.lost(record, cause)
        record.end(cause)
        record.hang_up()

    def _make(self, channel: PeerChannel) -> Made:
        record = ActorRecord(self.object_id, self._host_id, self.shipped.name)
        record.channel = channel
        record.connection = connection = Connection(
            channel, background=self._background, lost=record.error, on_names=self._names.set
        )
        connection.gives_back = True
        return Made(record, connection, ActorPlace(self.object_id, "", (), "", self._host_id))

    def _again(self, lost: ActorRecord, restarts: int) -> Made:  # noqa: ARG002  # nobody counts
        try:
            channel = self._returned.get(timeout=self._reconnect_s)
        except queue.Empty:
            self.is_over = True
            raise NotAgain(f"and its program did not come back within {self._reconnect_s:g} s") from None
        if channel is None:
            raise NotAgain
        return self._make(channel)

    def _note(self, made: Made) -> None:
        self._made = made

    def _given_back(self, given: int) -> None:
        """Nobody has the handle any more that was given out then: the next one who asks may have one."""
        if self.is_connected and self._given == given:
            self._available(self)

    def _destroy(self) -> None:
        channel = self._channel
        self._comeback.end()
        self._made.record.end(DeathCause(DeathKind.KILLED_BY_USER))
        if channel is not None:
            with contextlib.suppress(ChannelClosed):
                channel.send([json.dumps({"end": "destroyed"}).encode()])
        self._free(lambda: self.ended("it was destroyed"))
