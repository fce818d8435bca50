"""The listening end: a ROUTER, its ZAP handler and its monitor, all served by `poll`.

zmq identifies lost connections by their descriptor, and messages by a routing id. A peer's first message (OPEN) has
both, which maps one to the other. Descriptors are reused: a peer that opens on another peer's descriptor proves that
the other is gone.

By ZAP (rfc.zeromq.org/spec/27) zmq's thread asks whether to accept a peer with a given public CURVE key.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import os
from collections.abc import Sequence

import zmq
from zmq.utils import z85

from parl_remote._config import Limits
from parl_remote._security import ClusterKey
from parl_remote._system.facilities import IN, max_unauthenticated, new_poller, oldest_of_largest_owner
from parl_remote._transport import Buffer, Closed, Event, Opened, Received, abandoned_in_children
from parl_remote._transport.zmq.sockets import (
    MORE_NOW,
    NOW,
    Context,
    Curve,
    Kind,
    Socket,
    TcpEnds,
    configure,
    connection_events,
    descriptor,
    monitored,
    pack,
    pack_bare,
    peer_of,
    port_of,
    readable,
    send_heartbeats,
    shut_down,
    unpack,
)
from parl_remote.errors import ChannelClosed, RemoteProtocolError

__all__ = ["ZmqListener"]


_ADDRESS = "inproc://zeromq.zap.01"  # zmq looks here, in the context of the listening socket
_REQUEST_FRAMES = 7  # version, request id, domain, peer's address, routing id, mechanism, credentials


class ZapHandler:
    """Accepts peers with one public key and no others.

    Attributes:
        socket: The socket of requests; readable when `serve` has something to do.
        refused: The number of peers refused.
    """

    def __init__(self, context: Context, public_key: bytes) -> None:
        self._allowed = z85.decode(public_key)
        self.refused = 0
        self.socket: Socket = context.socket(zmq.REP)
        self.socket.bind(_ADDRESS)

    def serve(self) -> None:
        """Answer all pending requests."""
        while readable(self.socket):
            request = self.socket.recv_multipart()
            known = (
                len(request) == _REQUEST_FRAMES
                and request[5] == b"CURVE"
                and hmac.compare_digest(request[6], self._allowed)
            )
            self.refused += not known
            status, text = (b"200", b"OK") if known else (b"400", b"not this cluster's key")
            number = request[1] if len(request) > 1 else b""
            self.socket.send_multipart([b"1.0", number, status, text, b"member" if known else b"", b""])

    def close(self) -> None:
        """Stop answering requests."""
        self.socket.close(0)


_AT_ONCE = 64  # messages a poll, then others on the loop have their turn
_ROUTE_AND_MESSAGE = 2  # parts, where the message is short enough to be copied
_BACKLOG = 1024  # a thousand workers may come back at the same moment


class ZmqListener:
    """Listens on one TCP port for holders of a cluster's key.

    Args:
        host: The interface to listen on: an address, a name, or "0.0.0.0" for all.
        port: The port, 0 for a free one.
        key: The cluster's key.
        limits: Heartbeats, linger and the time a handshake may take.

    Attributes:
        dropped_unauthenticated: The number of connections that were closed because too many were unauthenticated.

    Raises:
        OSError: The port is in use, or the interface is not this host's.
    """

    def __init__(self, host: str, port: int, key: ClusterKey, *, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._context: Context = zmq.Context()  # ZAP's address is one for each context
        curve = Curve.of(key)
        self._zap = ZapHandler(self._context, curve.client_public)
        self._socket = self._context.socket(zmq.ROUTER)
        configure(self._socket, limits, ipv6=":" in host)
        send_heartbeats(self._socket, limits)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # sending never waits, nor loses anything
        self._socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        self._socket.setsockopt(zmq.ZAP_DOMAIN, b"parl")
        self._socket.curve_server = True
        self._socket.curve_publickey = curve.server_public
        self._socket.curve_secretkey = curve.server_secret
        self._monitor = monitored(self._socket, zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._poller = new_poller()
        self._closed = False
        self.dropped_unauthenticated = 0
        self._numbers = itertools.count(1)
        self._peers: dict[bytes, int] = {}
        self._routes: dict[int, bytes] = {}
        self._listening: set[int] = set()  # descriptors
        self._connected: set[int] = set()  # descriptors of connections
        # Descriptor -> both ends, of connections without OPEN; oldest first.
        self._unauthenticated: dict[int, TcpEnds | None] = {}
        self._max_unauthenticated = max_unauthenticated()
        self._peer_on: dict[int, int] = {}  # descriptor -> peer
        self._lost: list[int] = []
        self._more = False
        try:
            self._socket.bind(f"tcp://{_in_brackets(host)}:{port}")
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
        endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._address = endpoint.removeprefix("tcp://")
        self._messages_by = descriptor(self._socket)
        self._zap_by = descriptor(self._zap.socket)
        self._monitored_by = descriptor(self._monitor)
        for source in (self._messages_by, self._zap_by, self._monitored_by):
            self._poller.register(source, IN)
        self._zap.serve()  # zmq announces something only after it has been seen that there was nothing
        self._note_connections()
        self._more = True
        abandoned_in_children(self)

    @property
    def address(self) -> str:
        """The interface and port, "host:port"."""
        return self._address

    @property
    def refused(self) -> int:
        """The number of connections that came without the key."""
        return self._zap.refused

    def poll(self) -> list[Event]:
        """Return the events since the last call."""
        announced = {source for source, _ in self._poller.poll(0)}
        if self._zap_by in announced:
            self._zap.serve()
        if self._monitored_by in announced:
            self._note_connections()
        events: list[Event] = []
        drained = (not self._more and self._messages_by not in announced) or self._take_messages(events)
        if drained:  # what lost peers sent before they went has been taken
            events += [Closed(peer, "the connection was lost") for peer in self._lost if self._forget(peer)]
            self._lost.clear()
        self._more = not drained
        most = self._max_unauthenticated * (1 if drained else 2)  # the messages that authenticate some may be unread
        while len(self._unauthenticated) > most:
            self._drop_oldest_unauthenticated()
        return events

    def send(self, peer: int, frames: Sequence[Buffer]) -> None:
        """Queue one message; zmq reads the memory of long frames later, so they must not change any more."""
        route = self._routes.get(peer)
        if route is None:
            raise ChannelClosed(f"peer {peer} of {self._address} is gone")
        self._send_parts(peer, [route, *pack(frames)])

    def drop(self, peer: int) -> None:
        """Send BYE to a peer and forget it."""
        if peer in self._routes:
            with contextlib.suppress(ChannelClosed):
                self._send_parts(peer, [self._routes[peer], pack_bare(Kind.BYE)])
            self._forget(peer)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` may have events."""
        return self._poller.fileno()

    def pending(self) -> bool:
        """Return whether messages are available that zmq has already signalled."""
        return self._more

    def close(self) -> None:
        """Send BYE to all peers and stop listening."""
        if self._closed:
            return
        self._closed = True
        for peer in list(self._routes):
            self.drop(peer)
        self._more = False
        self._poller.close()
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close()
        self._zap.close()
        self._context.term()

    def abandon(self) -> None:
        """Close this process's copies of all TCP sockets, in the child of a fork; zmq itself is the parent's."""
        self._closed = True
        port = int(self._address.rpartition(":")[2])
        for fileno in (*self._listening, *self._connected):
            if port_of(fileno) == port:  # else the number has another use by now
                os.close(fileno)

    def _note_connections(self) -> None:
        for event, fileno in connection_events(self._monitor):
            if event == zmq.EVENT_LISTENING:
                self._listening.add(fileno)
            elif event == zmq.EVENT_ACCEPTED:
                self._connected.add(fileno)
                self._unauthenticated.pop(fileno, None)
                self._unauthenticated[fileno] = peer_of(fileno)
            else:
                self._connected.discard(fileno)
                self._unauthenticated.pop(fileno, None)
                self._lose(self._peer_on.pop(fileno, None))

    def _drop_oldest_unauthenticated(self) -> None:
        """Close an unauthenticated connection: the oldest of the host that has most of them.

        zmq itself closes each after some seconds. An outsider's connections displace only each other at first.
        """
        fileno = oldest_of_largest_owner({fileno: _host_of(ends) for fileno, ends in self._unauthenticated.items()})
        ends = self._unauthenticated.pop(fileno)
        if ends is not None and peer_of(fileno) == ends:  # else it has gone by itself
            shut_down(fileno)
        self.dropped_unauthenticated += 1

    def _lose(self, peer: int | None) -> None:
        if peer is not None:
            self._lost.append(peer)

    def _take_messages(self, events: list[Event]) -> bool:
        """Receive up to `_AT_ONCE` messages; return whether none is left."""
        receive = self._socket.recv
        for _ in range(_AT_ONCE):
            if not readable(self._socket):
                return True
            route = receive(NOW)
            parts = [part := receive(NOW, copy=False)]
            while part.more:
                parts.append(part := receive(NOW, copy=False))
            self._take(route, parts, events)
        return False

    def _take(self, route: bytes, parts: list[zmq.Frame], events: list[Event]) -> None:
        peer = self._peers.get(route)
        try:
            kind, frames = unpack([part.buffer for part in parts])
        except RemoteProtocolError as error:
            if peer is not None:
                self.drop(peer)
                events.append(Closed(peer, f"it sent an invalid message: {error}"))
            return
        if peer is None:
            if kind is Kind.OPEN:
                events.append(Opened(self._admit(route, int(parts[0].get(zmq.SRCFD)))))
        elif kind is Kind.BYE:
            self._forget(peer)
            events.append(Closed(peer, "it closed the connection"))
        elif kind is not Kind.OPEN:
            events.append(Received(peer, frames))

    def _admit(self, route: bytes, fileno: int) -> int:
        peer = next(self._numbers)
        self._peers[route] = peer
        self._routes[peer] = route
        if fileno not in self._connected:
            self._note_connections()  # zmq announces a connection before its first message
        self._unauthenticated.pop(fileno, None)
        self._lose(self._peer_on.pop(fileno, None))
        if fileno in self._connected:
            self._peer_on[fileno] = peer
        else:
            self._lose(peer)
        return peer

    def _forget(self, peer: int) -> bool:
        route = self._routes.pop(peer, None)
        if route is not None:
            del self._peers[route]
        return route is not None

    def _send_parts(self, peer: int, parts: list[Buffer]) -> None:
        try:
            if len(parts) == _ROUTE_AND_MESSAGE:
                self._socket.send(parts[0], MORE_NOW)
                self._socket.send(parts[1], NOW)
            else:
                self._socket.send_multipart(parts, NOW, copy=False)
        except zmq.ZMQError as error:
            self._lose(peer)
            self._more = True
            raise ChannelClosed(f"peer {peer} of {self._address} is gone: {error}") from error
        if readable(self._socket):
            self._more = True


def _host_of(ends: TcpEnds | None) -> str:
    return "" if ends is None else str(ends[1][0])


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
