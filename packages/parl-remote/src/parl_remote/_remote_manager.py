"""`parl.RemoteManager`: handles of objects that other programs serve over reverse connections.

    program elsewhere: obj.as_remote("host:port") --> RemoteManager(port) --get_remote()--> a handle, as of an actor

    RemoteManager   listens, and identifies peers by the objects that they serve
    ServedObject    one object: its class, its connection, and its reconnection after the connection breaks
    PeerChannel     a channel over one peer of the listener

Only the manager's port has to be reachable. Connecting programs need the manager's key.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from parl_remote._config import environment
from parl_remote._data import serialize
from parl_remote._data.class_spec import ClassSpec, ShippedSpec
from parl_remote._links.identity import host_id, python_mismatch
from parl_remote._links.loop import Loop
from parl_remote._options import ActorOptions, seconds_of
from parl_remote._program.actor_ref import ActorPlace, ActorRef, AttributeNames
from parl_remote._program.connection import Connection
from parl_remote._program.known_actors import ActorRecord, CreatedActor
from parl_remote._program.outbox import Outbox
from parl_remote._program.proxy import make_proxy, unpacked
from parl_remote._program.rendezvous import given_key, publish_manager_key
from parl_remote._program.restarts import NoRestart, Restarts
from parl_remote._security import ClusterKey
from parl_remote._transport import Buffer, Closed, Listener, Opened, Received, abandoned_in_children
from parl_remote._transport.memory import InboxChannel
from parl_remote._transport.zmq import ZmqListener
from parl_remote.errors import (
    ChannelClosed,
    DeathCause,
    DeathKind,
    NotConnected,
    RemoteError,
    RemoteProtocolError,
    ResultTimeout,
)

__all__ = ["Hello", "PeerChannel", "RemoteManager", "ServedObject", "read_hello"]


class PeerChannel(InboxChannel):
    """A channel to a peer of a listener; implements `transport.Channel`.

    Args:
        loop: The loop that serves the listener.
        listener: The listener of the peer.
        peer: The peer's number there.
    """

    def __init__(self, loop: Loop, listener: Listener, peer: int) -> None:
        super().__init__()
        self._loop = loop
        self._listener = listener
        self._peer = peer

    def send(self, frames: Sequence[Buffer], timeout_s: float | None = None) -> None:  # noqa: ARG002  # it never waits
        """Send one message, copied because it is sent later in the loop."""
        if self._over:
            raise ChannelClosed(self._over)
        copied = [bytes(frame) for frame in frames]
        self._loop.call_soon(lambda: self._send(copied))

    def close(self) -> None:
        """Close the channel; messages sent before still arrive."""
        if not self._over:
            self.hang_up("this channel was closed")
            self._loop.call_soon(lambda: self._listener.drop(self._peer))

    def _send(self, frames: list[bytes]) -> None:
        try:
            self._listener.send(self._peer, frames)
        except ChannelClosed as error:
            self.hang_up(str(error))


_PROTOCOL = 1


class Hello(NamedTuple):
    """The identity of a served object.

    Attributes:
        object_id: Globally unique, the same after a reconnection.
        host_id: The host of its program.
        shipped: Its class.
        names: The names of its attributes.
    """

    object_id: str
    host_id: str
    shipped: ShippedSpec
    names: tuple[str, ...]


def read_hello(frames: Sequence[memoryview]) -> Hello:
    """Read the first message of a connection, which only a holder of the key can have sent.

    Raises:
        RemoteProtocolError: The message is not a Hello.
    """
    try:
        message = json.loads(bytes(frames[0]))
        if message["protocol"] != _PROTOCOL:
            raise RemoteProtocolError(f"this manager speaks version {_PROTOCOL}, not {message['protocol']!r}")
        if mismatch := python_mismatch(str(message.get("versions", {}).get("python", ""))):
            raise RemoteProtocolError(mismatch)
        shipped, names = serialize.loads(frames[1], frames[2:])
        return Hello(str(message["object"]), str(message["host"]), ShippedSpec(*shipped), tuple(names))
    except RemoteProtocolError:
        raise
    except Exception as error:
        raise RemoteProtocolError(
            f"this is a RemoteManager, and the message does not announce an object: {error}"
        ) from error


class ServedObject:
    """One served object.

    Args:
        hello: Its identity.
        channel: The channel to it.
        background: Returns the loop that reads for futures with callbacks.
        free: Runs a function in the manager's loop; callable from any thread at any time.
        available: Called when its handle has been dropped.
        reconnect_s: The time in which it may reconnect.

    Attributes:
        object_id: Its id.
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
        self._returned: queue.SimpleQueue[PeerChannel | str] = queue.SimpleQueue()
        self._channel: PeerChannel | None = channel
        self._given = 0  # the number of times that it was handed out
        self.is_over = False
        self._made = self._make(channel)
        self._outbox = Outbox(self._made.path)
        self._restarts = Restarts(
            self._made,
            self._outbox,
            limit=None,
            again=self._again,
            on_made=self._note,
            release=lambda _: None,
            give_up=lambda _: None,
            hope="its program is waited for",
        )

    @property
    def is_connected(self) -> bool:
        """Return whether the object is connected now."""
        return self._channel is not None

    def reference(self, options: ActorOptions) -> ActorRef:
        """Return a reference for handles of the object."""
        self._given = given = self._given + 1
        self._outbox.limit(None, waits=True)  # an earlier handle may have set a limit
        return ActorRef(
            ClassSpec.of_shipped(self.shipped),
            self._outbox,
            let_go=lambda: self._free(lambda: self._handle_dropped(given)),
            destroy=self._destroy,
            attributes=self._names,
            place=self._made.place,
            options=options,
        )

    def connection_lost(self, channel: PeerChannel, reason: str) -> None:
        """Handle a closed connection to the object; called in the manager's loop."""
        if self._channel is channel:
            self._channel = None
        self._lose(DeathCause(DeathKind.NODE_LOST, detail=f"the connection to its program: {reason}"))
        channel.hang_up(reason)

    def ended(self, why: str) -> None:
        """Handle the final end of the object; called in the manager's loop."""
        self.is_over = True
        channel, self._channel = self._channel, None
        self._lose(DeathCause(DeathKind.CLIENT_GONE, detail=why))
        self._returned.put(why)
        if channel is not None:
            channel.hang_up(why)

    def connected_again(self, channel: PeerChannel) -> None:
        """Handle a reconnection of the object's program; called in the manager's loop."""
        if self._channel is not None:  # it noticed before this side did
            self.connection_lost(self._channel, "its program has connected again")
        self._channel = channel
        self._returned.put(channel)

    def abandon(self) -> None:
        """Fail all calls, in the child of a fork; the object answers the parent."""
        self._outbox.abandon(_wrong_process)
        if (connection := self._made.record.connection) is not None:
            connection.abandon(_wrong_process)

    def _lose(self, cause: DeathCause) -> None:
        record = self._made.record
        record.lose(cause)
        record.hang_up()

    def _make(self, channel: PeerChannel) -> CreatedActor:
        record = ActorRecord(self.object_id, self._host_id, self.shipped.name)
        record.channel = channel
        record.connection = connection = Connection(
            channel, background=self._background, lost=record.error, on_names=self._names.set
        )
        return CreatedActor(record, connection, ActorPlace(self.object_id, "", (), "", self._host_id))

    def _again(self, lost: ActorRecord, restarts: int) -> CreatedActor:  # noqa: ARG002  # they are not counted
        try:
            channel = self._returned.get(timeout=self._reconnect_s)
        except queue.Empty:
            self.is_over = True
            raise NoRestart(f"and its program did not come back within {self._reconnect_s:g} s") from None
        if isinstance(channel, str):
            raise NoRestart(channel)
        return self._make(channel)

    def _note(self, made: CreatedActor) -> None:
        self._made = made

    def _handle_dropped(self, given: int) -> None:
        """Make the object available again once the handle returned with number `given` has been dropped."""
        if self.is_connected and self._given == given:
            self._available(self)

    def _destroy(self) -> None:
        channel = self._channel
        self._restarts.end()
        self._made.record.end(DeathCause(DeathKind.KILLED_BY_USER))
        if channel is not None:
            with contextlib.suppress(ChannelClosed):
                channel.send([json.dumps({"end": "destroyed"}).encode()])
        self._free(lambda: self.ended("it was destroyed"))


def _wrong_process() -> NotConnected:
    return NotConnected("objects of a RemoteManager answer the process that made it, from which this one was forked")


_JSON = ord("{")
_SHUTDOWN_S = 1.0  # seconds for sending the last messages


class RemoteManager:
    """A listener for objects that other programs serve with `as_remote`; a context manager.

    It writes its address to stderr.

    Args:
        port: The port to listen on, 0 to 65535; 0 chooses a free port, see `address`.
        host: The interface to listen on: "127.0.0.1" for programs on this host, "0.0.0.0" for programs on any host.
        key_file: The file with the key of both ends. By default the key comes from `PARL_KEY_FILE` or `PARL_KEY`.
            Without them, the manager makes a new key, which programs of the same user on this host find automatically.
        reconnect_s: Seconds that an object has to reconnect after its connection breaks (default 30).

    Attributes:
        address: The address that the manager listens on, "host:port".

    Raises:
        ValueError: The port is out of its range.
        AuthenticationFailed: The key file is missing, readable by others or contains no key.
        OSError: The port is in use, or this host has no such interface.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        key_file: str | os.PathLike[str] | None = None,
        reconnect_s: float = 30.0,
    ) -> None:
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port < 2**16:
            raise ValueError(f"port must be a whole number from 0 to 65535, not {port!r}")
        found = environment()
        given = given_key(found, None if key_file is None else Path(key_file))
        key = given or ClusterKey.generate()
        self._reconnect_s = reconnect_s
        self._pid = os.getpid()
        self._closed = False
        self._listener: Listener = ZmqListener(host, port, key, limits=found.limits)
        self.address = self._listener.address
        self._directory: Path | None = None
        if given is None:
            self._directory = publish_manager_key(found, host, self.port, key)
        self._loop = Loop()
        self._background: Loop | None = None
        self._lock = threading.Lock()
        self._waiting: dict[int, PeerChannel] = {}  # peers that have not sent a Hello
        self._peers: dict[int, tuple[PeerChannel, ServedObject]] = {}
        self._objects: dict[str, ServedObject] = {}
        self._available: queue.SimpleQueue[ServedObject | None] = queue.SimpleQueue()
        self._loop.add(self._listener, self._poll)
        abandoned_in_children(self)
        self._thread = threading.Thread(target=self._loop.run, name="parl-manager", daemon=True)
        self._thread.start()
        sys.stderr.write(f"RemoteManager listens on {self.address}; programs serve objects with as_remote\n")

    @property
    def port(self) -> int:
        """The port that the manager listens on."""
        return int(self.address.rpartition(":")[2])

    def get_remote(
        self, timeout_s: float | None = None, *, wait: bool = True, max_pending_calls: int | None = None
    ) -> Any:
        """Return a handle of the next served object that has no handle; wait for one.

        An object whose handle was dropped is available again.

        Args:
            timeout_s: Seconds to wait; None waits without limit.
            wait: Whether the object's methods wait for their results, as for `remote_class`.
            max_pending_calls: The maximum number of unanswered calls, as for `remote_class`.

        Raises:
            ResultTimeout: No object was available before the timeout.
            NotConnected: The manager is closed.
        """
        timeout_s = seconds_of("timeout_s", timeout_s)
        options = ActorOptions.of({"wait": wait, "max_pending_calls": max_pending_calls})
        while True:
            if self._closed:
                raise NotConnected("this RemoteManager is closed; make another one")
            try:
                served = self._available.get(timeout=timeout_s)
            except queue.Empty:
                raise ResultTimeout(
                    f"no object was served to {self.address} within {timeout_s} s; "
                    f'call obj.as_remote("{self.address}") in the other program'
                ) from None
            if served is None:
                self._available.put(None)  # for others that wait
            elif served.is_connected:
                _, proxies = unpacked(served.shipped)
                return make_proxy(proxies, served.reference(options), wait=options.wait)

    def close(self) -> None:
        """Release all objects and stop listening; a second call does nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._available.put(None)
        self._loop.call_soon(self._end)
        self._thread.join(_SHUTDOWN_S)
        if self._background is not None:
            self._background.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def abandon(self) -> None:
        """Leave the objects to the parent, in the child of a fork."""
        self._closed = True
        for served in self._objects.values():
            served.abandon()

    def __len__(self) -> int:
        """Return the number of connected objects."""
        return sum(served.is_connected for served in list(self._objects.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never whole
            self.close()

    def __repr__(self) -> str:
        return f"<RemoteManager at {self.address}, {len(self)} objects>"

    # -- in the loop -------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        for event in self._listener.poll():
            match event:
                case Opened(peer=peer):
                    self._waiting[peer] = PeerChannel(self._loop, self._listener, peer)
                case Received(peer=peer, frames=frames) if peer in self._peers:
                    self._receive(*self._peers[peer], frames)
                case Received(peer=peer, frames=frames) if peer in self._waiting:
                    self._handle_hello(peer, self._waiting.pop(peer), frames)
                case Closed(peer=peer, reason=reason):
                    self._waiting.pop(peer, None)
                    channel, served = self._peers.pop(peer, (None, None))
                    if channel is not None and served is not None:
                        served.connection_lost(channel, reason)

    def _receive(self, channel: PeerChannel, served: ServedObject, frames: list[memoryview]) -> None:
        if len(frames[0]) and frames[0][0] == _JSON:  # the only message that is no answer
            served.ended("it is served no longer")
            self._objects.pop(served.object_id, None)
        else:
            channel.deliver(frames)

    def _handle_hello(self, peer: int, channel: PeerChannel, frames: list[memoryview]) -> None:
        """Process the Hello of a new connection, with the object that it serves."""
        try:
            hello = read_hello(frames)
        except RemoteError as error:
            with contextlib.suppress(ChannelClosed):
                self._listener.send(peer, [json.dumps({"refused": str(error)}).encode()])
            self._listener.drop(peer)
            return
        with contextlib.suppress(ChannelClosed):  # it is gone again; `Closed` follows
            self._listener.send(peer, [json.dumps({"welcome": 1, "pid": self._pid, "host": host_id()}).encode()])
        known = self._objects.get(hello.object_id)
        if known is None or known.is_over:
            known = self._objects[hello.object_id] = ServedObject(
                hello,
                channel,
                background=self._background_loop,
                free=self._loop.call_soon,
                available=self._available.put,
                reconnect_s=self._reconnect_s,
            )
            self._available.put(known)
        else:
            known.connected_again(channel)
        self._peers[peer] = channel, known

    def _background_loop(self) -> Loop:
        """Return the loop that reads for futures with callbacks; starts it on first use."""
        with self._lock:
            if self._background is None:
                self._background = Loop()
                threading.Thread(target=self._background.run, name="parl-results", daemon=True).start()
            return self._background

    def _end(self) -> None:
        for peer, (_, served) in list(self._peers.items()):
            with contextlib.suppress(ChannelClosed):
                self._listener.send(peer, [json.dumps({"end": "the manager is closed"}).encode()])
            served.ended("its RemoteManager was closed")
        self._loop.remove(self._listener)
        self._listener.close()
        self._loop.stop()
