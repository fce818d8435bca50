"""The handshake of a link on both ends, Hello and Welcome, and the services and parts of a node that answer it.

    caller                              node (one port, unix or tcp)
    channel --Hello(to=worker)-->  PeerAcceptor --opened(link)--> the worker's Service
            <-----Welcome--------
            ---- messages ------>  PeerAcceptor --received(link, frames)--> the same

A peer that sends another message, has another protocol version or requests a service that is not here gets Refused, is
dropped and counted. A service never sees a peer that has not sent Hello, and loses one that makes it raise
`RemoteProtocolError`.

What a node does beside actors and leases is a part: it says which messages it takes, and is made, with everything it
imports, when the first of them comes. `ClientIdentity` and `Cluster` are the calling end: how a client introduces
itself, and how it reaches master and workers.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from parl_remote._config import Limits
from parl_remote._links.identity import host_id, new_id, python_mismatch, versions
from parl_remote._links.loop import Loop
from parl_remote._messages import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Failed,
    Hello,
    Message,
    RefusalCode,
    Refused,
    Role,
    Welcome,
)
from parl_remote._messages.wire import decode, encode, request_number
from parl_remote._system.shortage import is_shortage, shortage_of
from parl_remote._transport import Buffer, Channel, Closed, CutMessage, Listener, Opened, Received
from parl_remote.errors import ChannelClosed, ClusterUnreachable, RemoteError, RemoteProtocolError, VersionMismatch

if TYPE_CHECKING:
    import socket

    from parl_remote._transport.sealed import Handover

__all__ = [
    "ClientIdentity",
    "Cluster",
    "Link",
    "Part",
    "Parts",
    "PeerAcceptor",
    "Service",
    "greet",
    "refused_for_shortage",
]


_log = logging.getLogger("parl.remote")


def greet(channel: Channel, hello: Hello, timeout_s: float) -> Welcome:
    """Perform the handshake from the connecting end.

    Args:
        channel: A fresh channel; it is closed if this raises.
        hello: The identity of this side and the requested role.
        timeout_s: The time to wait for the answer.

    Raises:
        VersionMismatch: The sides have no common protocol version, or not the same minor version of Python.
        RemoteProtocolError: The peer refused for another reason, or is no node of PARL.
        ChannelClosed: The peer closed without an answer.
        ResultTimeout: The peer did not answer in time.
    """
    try:
        with contextlib.suppress(ChannelClosed):  # it may have been refused before it could send anything
            channel.send([encode(hello)], timeout_s)
        answer = decode(channel.receive(timeout_s)[0])
        if isinstance(answer, Welcome) and hello.protocol_min <= answer.protocol <= hello.protocol_max:
            return answer
        if isinstance(answer, Refused):
            raise _refusal(hello, answer)
        raise RemoteProtocolError(f"the peer answered Hello with {answer!r}")
    except BaseException:
        channel.close()
        raise


def refused_for_shortage(reason: str) -> list[Buffer]:
    """Return the refusal of a peer for which a node has no descriptor left."""
    return [encode(Refused(RefusalCode.PROTOCOL, f"it cannot take another connection: {reason}"))]


def _refusal(hello: Hello, answer: Refused) -> Exception:
    if answer.code is RefusalCode.PYTHON:
        return VersionMismatch(answer.reason)
    if answer.code is not RefusalCode.VERSION:
        return RemoteProtocolError(f"the peer refused the connection: {answer.reason}")
    return VersionMismatch(
        f"no common protocol version: this side (parl-remote {versions()['parl_remote']}) speaks "
        f"{_span(hello.protocol_min, hello.protocol_max)}, the peer {_span(answer.protocol_min, answer.protocol_max)}; "
        f"install the same parl-remote on both. {answer.reason}",
        ours=(hello.protocol_min, hello.protocol_max),
        theirs=(answer.protocol_min, answer.protocol_max),
    )


def _span(low: int, high: int) -> str:
    return f"version {low}" if low == high else f"versions {low} to {high}"


class Link:
    """A service's link to a peer that has sent Hello.

    Attributes:
        hand_over: Ends the link here and returns its socket, for another process; None if the peer is gone, and as an
            attribute for links that cannot be given away. The service gets no `closed` for it.
    """

    __slots__ = ("_drop", "_send", "hand_over", "hello", "protocol")

    def __init__(
        self,
        hello: Hello,
        protocol: int,
        send: Callable[[Sequence[Buffer]], None],
        drop: Callable[[], None],
        hand_over: Callable[[], tuple[socket.socket, Handover] | None] | None = None,
    ) -> None:
        self.hello = hello
        self.protocol = protocol
        self._send = send
        self._drop = drop
        self.hand_over = hand_over

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Queue raw frames; return False if the peer is already gone (its `closed` follows or has been called)."""
        try:
            self._send(frames)
        except ChannelClosed:
            return False
        return True

    def tell(self, message: Message) -> bool:
        """Queue one control message; return False if the peer is already gone."""
        return self.send([encode(message)])

    def drop(self) -> None:
        """Close the connection after the queued messages; the service gets no `closed` for it."""
        self._drop()


class Service(Protocol):
    """One role of a node, which serves the peers that request it."""

    def opened(self, link: Link) -> None:
        """Handle a peer that sent Hello and was welcomed."""

    def received(self, link: Link, frames: list[memoryview]) -> None:
        """Process a peer's message.

        Raises:
            RemoteProtocolError: The message is not allowed, or a `CutMessage`, of which requests do not come here; the
                reception refuses and drops the peer and calls `closed`.
        """

    def closed(self, link: Link, reason: str) -> None:
        """Handle a peer that is gone."""


class PeerAcceptor:
    """Accepts peers at any number of listeners of one node and passes them to its services.

    Attributes:
        node_id: The node's id.
        dropped: The number of peers dropped for breaking the protocol.
    """

    def __init__(self, loop: Loop, *, node_id: str, cluster_id: str, host_id: str, limits: Limits) -> None:
        self._loop = loop
        self.node_id = node_id
        self._cluster_id = cluster_id
        self._host_id = host_id
        self._limits = limits
        self._services: dict[Role, Service] = {}
        self._waiting: dict[tuple[Listener, int], float] = {}
        self._links: dict[tuple[Listener, int], tuple[Link, Service]] = {}
        self._sweeping = False
        self.dropped = 0

    def serve(self, role: Role, service: Service) -> None:
        """Register the service of a role."""
        self._services[role] = service

    def listen(self, listener: Listener) -> None:
        """Accept the peers of a listener from now on, in the loop's thread."""
        self._loop.add(listener, functools.partial(self._poll, listener))

    def _poll(self, listener: Listener) -> None:
        for event in listener.poll():
            key = (listener, event.peer)
            match event:
                case Opened():
                    self._expect_hello(key)
                case Received(frames=frames):
                    self._receive(key, frames)
                case Closed(reason=reason):
                    self._waiting.pop(key, None)
                    if key in self._links:
                        link, service = self._links.pop(key)
                        service.closed(link, reason)

    def _expect_hello(self, key: tuple[Listener, int]) -> None:
        if len(self._waiting) >= self._limits.max_pending_hellos:
            self._drop(next(iter(self._waiting)), "too many connections without a Hello")
        self._waiting[key] = self._loop.now() + self._limits.hello_timeout_s
        if not self._sweeping:
            self._sweeping = True
            self._loop.call_later(self._limits.hello_timeout_s, self._sweep)

    def _sweep(self) -> None:
        """Drop the peers that have not sent Hello in time."""
        now = self._loop.now()
        while self._waiting:
            key, deadline = next(iter(self._waiting.items()))  # in order of arrival, so in order of deadlines
            if deadline > now:
                self._loop.call_at(deadline, self._sweep)
                return
            self._drop(key, "no Hello in time")
        self._sweeping = False

    def _receive(self, key: tuple[Listener, int], frames: list[memoryview]) -> None:
        if key in self._links:
            link, service = self._links[key]
            try:
                if not frames:
                    raise RemoteProtocolError("a message has at least one frame")
                if type(frames) is CutMessage and fail_request(link, frames[0], str(frames.shortage)):
                    _log.warning("a request of %s was refused: %s", link.hello.id, frames.shortage)
                    return
                service.received(link, frames)
            except RemoteProtocolError as error:
                if self._links.pop(key, None) is not None:
                    reason = str(frames.shortage if type(frames) is CutMessage else error)
                    self._refuse(key, RefusalCode.PROTOCOL, reason)
                    service.closed(link, reason)
            except Exception as error:
                if not is_shortage(error):
                    raise
                _log.exception("a message of %s could not be handled", link.hello.id)
                fail_request(link, frames[0], shortage_of(error))
        elif self._waiting.pop(key, None) is not None:
            self._welcome(key, frames)

    def _welcome(self, key: tuple[Listener, int], frames: list[memoryview]) -> None:
        try:
            if len(frames) != 1 or len(frames[0]) > self._limits.max_control_bytes:
                raise RemoteProtocolError(f"a Hello is one small frame, not {len(frames)}")
            hello = decode(frames[0])
            if not isinstance(hello, Hello):
                raise RemoteProtocolError(f"the first message must be Hello, not {type(hello).__name__}")
        except RemoteProtocolError as error:
            self._refuse(key, RefusalCode.PROTOCOL, str(error))
            return
        protocol = min(PROTOCOL_MAX, hello.protocol_max)
        if protocol < max(PROTOCOL_MIN, hello.protocol_min):
            mine = versions()["parl_remote"]
            self._refuse(key, RefusalCode.VERSION, f"The peer is parl-remote {mine}.")
            return
        if mismatch := python_mismatch(hello.versions.get("python", "")):
            self._refuse(key, RefusalCode.PYTHON, mismatch)
            return
        service = self._services.get(hello.to)
        if service is None:
            self._refuse(key, RefusalCode.NOT_HERE, f"there is no {hello.to.value} here")
            return
        listener, peer = key
        link = Link(
            hello,
            protocol,
            functools.partial(listener.send, peer),
            functools.partial(self._let_go, key),
            functools.partial(self._hand_over, key) if hasattr(listener, "hand_over") else None,
        )
        self._links[key] = (link, service)
        link.tell(Welcome(protocol, self.node_id, self._cluster_id, self._host_id, versions()))
        service.opened(link)

    def _refuse(self, key: tuple[Listener, int], code: RefusalCode, reason: str) -> None:
        with contextlib.suppress(ChannelClosed):
            key[0].send(key[1], [encode(Refused(code, reason))])
        self._drop(key, reason)

    def _drop(self, key: tuple[Listener, int], reason: str) -> None:
        self.dropped += 1
        _log.debug("dropped peer %d of %s: %s", key[1], key[0].address, reason)
        self._waiting.pop(key, None)
        key[0].drop(key[1])

    def _hand_over(self, key: tuple[Any, int]) -> tuple[socket.socket, Handover] | None:
        self._links.pop(key, None)
        given: tuple[socket.socket, Handover] | None = key[0].hand_over(key[1])
        return given

    def _let_go(self, key: tuple[Listener, int]) -> None:
        if self._links.pop(key, None) is not None:
            key[0].drop(key[1])


def fail_request(link: Link, frame: memoryview, reason: str) -> bool:
    """Answer a message that could not be read because of a shortage, if it is a request and resources are left.

    Args:
        link: The peer's link.
        frame: The message's first frame, or the beginning of that.
        reason: The shortage.

    Returns:
        Whether it was answered.
    """
    try:
        number = request_number(frame)
        return number is not None and link.tell(Failed(number, reason))
    except Exception as error:
        if not is_shortage(error):
            raise
        return False


class Part(Protocol):
    """A service that handles some of a node's messages."""

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:
        """Process a message; `frames` are those that arrived with it, its own first.

        Raises:
            RemoteProtocolError: The message is not allowed; the peer is dropped.
            RemoteError: The request failed; the peer gets `Failed` if the message has a `request_id`.
        """

    def closed(self, link: Link) -> None:
        """Handle a peer that is gone, of which this part may have no record."""

    def close(self) -> None:
        """Release all resources; the node ends."""


class Parts:
    """The parts of one role of a node, by the names of their messages."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], Part]] = {}
        self._made: dict[Callable[[], Part], Part] = {}

    def add(self, takes: Iterable[str], make: Callable[[], Part]) -> None:
        """Register a part's messages; `make` creates the part on first use."""
        for name in takes:
            if name in self._makers:
                raise ValueError(f"two parts handle {name}")
            self._makers[name] = make

    def take(self, link: Link, message: Message, frames: Sequence[memoryview]) -> bool:
        """Pass a message to its part; return False if there is none.

        Raises:
            RemoteProtocolError: The message is not allowed.
        """
        make = self._makers.get(type(message).__name__)
        if make is None:
            return False
        try:
            if make not in self._made:
                self._made[make] = make()
            self._made[make].received(link, message, frames)
        except RemoteProtocolError:
            raise
        except (RemoteError, OSError) as error:
            self._fail(link, message, str(error))
        except Exception as error:
            if not is_shortage(error):
                raise
            self._fail(link, message, shortage_of(error))
        return True

    @staticmethod
    def _fail(link: Link, message: Message, reason: str) -> None:
        request_id = getattr(message, "request_id", None)
        if request_id is None:
            _log.warning("%s of %s: %s", type(message).__name__, link.hello.id, reason)
        else:
            link.tell(Failed(request_id, reason))

    def closed(self, link: Link) -> None:
        """Notify the parts of a peer that is gone."""
        for part in self._made.values():
            part.closed(link)

    def close(self) -> None:
        """Close all parts."""
        for part in self._made.values():
            part.close()


class Cluster(Protocol):
    """A cluster that a client can connect to."""

    @property
    def may_return(self) -> bool:
        """Return whether a master that is gone may be started again."""

    def connect_master(self) -> Channel:
        """Return a channel to the master.

        Raises:
            ClusterUnreachable: The master does not answer.
        """

    def connect_node(self, node_addresses: Sequence[str]) -> Channel:
        """Return a channel to a worker on another host.

        Raises:
            ClusterUnreachable: The worker does not answer.
        """

    def unreachable(self, reason: str) -> ClusterUnreachable:
        """Return the error for a master that accepted the connection and does not answer."""

    def close(self) -> None:
        """Shut down the parts that end with the connection; called once, after the last message is sent."""

    def abandon(self) -> None:
        """Drop all connections without closing them, in the child of a fork."""


class ClientIdentity:
    """A client's identity, the same on all its links.

    Args:
        name: The displayed name; empty for the program's own name.

    Attributes:
        id: Globally unique.
        host_id: The host it runs on.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self.id = new_id("client")
        self.host_id = host_id()
        self._pid = os.getpid()

    def hello(self, to: Role) -> Hello:
        """Return the first message of a link."""
        return Hello(
            role=Role.CLIENT,
            to=to,
            id=self.id,
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            host_id=self.host_id,
            pid=self._pid,
            versions=versions(),
            name=self._name or (os.path.basename(sys.argv[0]) if sys.argv else ""),
        )
