"""The connecting end: one DEALER, used by many threads under a lock, without a thread of its own beside zmq's.

Threads wait on descriptors, outside the lock. zmq announces a message once: a thread that sends takes the
announcement in, and so it wakes the thread that waits to receive.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence

import zmq

from parl_remote._config import Limits
from parl_remote._security import ClusterKey
from parl_remote._system.facilities import IN, new_poller
from parl_remote._system.interrupts import interruptible
from parl_remote._system.texts import in_seconds
from parl_remote._transport import Buffer, abandoned_in_children, copied
from parl_remote._transport.addresses import Address
from parl_remote._transport.zmq.sockets import (
    NOW,
    Context,
    Curve,
    Kind,
    Socket,
    configure,
    connection_events,
    descriptor,
    monitored,
    new_waker,
    own_context,
    pack,
    pack_bare,
    peer_of,
    readable,
    unpack,
)
from parl_remote.errors import (
    AuthenticationFailed,
    ChannelClosed,
    ClusterUnreachable,
    RemoteProtocolError,
    ResultTimeout,
)

__all__ = ["ZmqChannel"]

_LONGEST_WAIT_S = 2_000_000.0  # 23 days; the system refuses to wait for 25
_BARE = frozenset({Kind.OPEN, Kind.BYE})
_QUEUE = 1000  # small messages that wait for a slow peer before `send` does
# with zmq's own "never" (-1), messages received just before a connection broke would be lost
_NEVER_MS = 24 * 3600 * 1000
_REFUSALS = 3  # a connection that breaks during the handshake looks like a refusal, but hardly three times in a row
_AFTER_REFUSAL_S = 0.1
_GREETING = b"\xff"  # the first byte that zmq sends, before anything has come
# interval in seconds at which `send` checks whether a full queue has drained: zmq announces it only once
_FULL_QUEUE_POLL_S = 0.002


class ZmqChannel:
    """A connection to a listener on any host, made by `connect`.

    Attributes:
        found: The address of the host that answered, and its port.
    """

    def __init__(self, dealer: Socket, monitor: Socket, connection: int, address: str, found: tuple[str, int]) -> None:
        self.found = found
        self._socket = dealer
        self._connection = connection
        self._monitor = monitor
        self._address = address
        # zmq's sockets may be used by many threads, one at a time. Re-entrant, because a signal handler or a finalizer
        # may send, or close the channel, while this thread is in here.
        self._lock = threading.RLock()
        self._receiving = threading.RLock()
        self._posting = threading.RLock()
        self._unsent: deque[list[Buffer]] = deque()  # what `post` has kept
        self._waker = new_waker()
        self._poller = new_poller()
        self._monitored_by = descriptor(monitor)
        for source in (descriptor(dealer), self._monitored_by, self._waker.fileno()):
            self._poller.register(source, IN)
        self._lost = ""
        self._closed = False
        self._note_loss()  # zmq announces an event only after it has been seen that there was none
        self._peer = peer_of(connection)
        abandoned_in_children(self)

    @classmethod
    def connect(
        cls, address: str, key: ClusterKey, *, limits: Limits | None = None, context: Context | None = None
    ) -> ZmqChannel:
        """Connect and authenticate.

        Args:
            address: "host:port"; an IPv6 host in brackets.
            key: The cluster's key.
            limits: `connect_timeout_s` is how long to try.
            context: Shares zmq's thread with other channels; by default all channels of a process share one.

        Raises:
            ClusterUnreachable: Nothing answers there, or nothing that speaks this protocol.
            AuthenticationFailed: The peer holds another key.
        """
        limits = limits or Limits()
        curve = Curve.of(key)
        context = context or own_context()
        deadline = time.monotonic() + limits.connect_timeout_s
        candidates = _resolve(address)
        refusals = 0
        while True:
            host, port = candidates[0]
            try:
                return cls(*_connected(context, curve, limits, host, port, address, deadline), address, (host, port))
            except AuthenticationFailed:
                refusals += 1
                if refusals == _REFUSALS:
                    raise
                if not _speaks_zmtp(host, port, deadline):
                    raise ClusterUnreachable(
                        f"the peer at {address} closes the connection at once: a relay or firewall whose target "
                        "is away, or something other than a PARL cluster",
                        address=address,
                    ) from None
                time.sleep(_AFTER_REFUSAL_S)
            except ClusterUnreachable:
                candidates.pop(0)
                if not candidates:
                    raise

    def send(self, frames: Sequence[Buffer], timeout_s: float | None = None) -> None:
        """Send one message; long frames are not copied, so this returns once zmq has encrypted them."""
        parts = pack(frames)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if not self._unsent or self.flush():
                with self._lock:
                    self._check_open()
                    try:
                        tracker = self._hand_over(parts)
                        break
                    except zmq.Again:
                        self._note_loss()
                    except zmq.ZMQError:
                        self._check_open()  # as in `post`
                        raise
            if deadline is not None and time.monotonic() >= deadline:
                raise ResultTimeout(f"{self._address} did not take a message within {in_seconds(timeout_s)}")
            with interruptible:
                time.sleep(_FULL_QUEUE_POLL_S)
        if tracker is not None:
            self._await_encrypted(tracker, deadline)

    def post(self, frames: Sequence[Buffer]) -> bool:
        """Take one message without waiting for the peer; see `Channel.post`. Frames in zmq's queue are copied: it
        encrypts them when the peer takes what is before them.
        """
        with self._posting:
            if self._unsent or not self._hand_over_now(frames):
                self._unsent.append([*frames])
                return False
        return True

    def freeze(self, frames: Sequence[Buffer] | None = None) -> None:
        """Refer to memory of the caller no more; see `Channel.freeze`."""
        with self._posting:
            if self._unsent:
                self._unsent[-1] = [*(map(copied, self._unsent[-1]) if frames is None else frames)]

    def withdraw(self, frames: Sequence[Buffer]) -> bool:  # noqa: ARG002  # what is kept is kept whole
        """Forget a message of which nothing has been sent; see `Channel.withdraw`."""
        with self._posting:
            return bool(self._unsent) and bool(self._unsent.pop())

    def flush(self) -> bool:
        """Send the rest of posted messages; see `Channel.flush`."""
        with self._posting:
            while self._unsent and self._hand_over_now(self._unsent[0]):
                self._unsent.popleft()
            return not self._unsent

    def _hand_over_now(self, frames: Sequence[Buffer]) -> bool:
        """Hand a message to zmq; return False if its queue is full."""
        with self._lock:
            self._check_open()
            try:
                self._hand_over(pack(frames), copies=True)
            except zmq.Again:
                self._note_loss()
                return False
            except zmq.ZMQError:
                self._check_open()  # a signal handler may have closed it meanwhile
                raise
        return True

    def receive(self, timeout_s: float | None = None) -> list[memoryview]:
        """Wait for one message and return it."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._receiving:
            while (frames := self._look()) is None:
                remaining_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._wait(remaining_s) and deadline is not None and time.monotonic() >= deadline:
                    raise ResultTimeout(f"nothing arrived from {self._address} within {in_seconds(timeout_s)}")
        return frames

    def fileno(self) -> int:
        """Return a descriptor that is readable when `receive` may have a message."""
        return self._poller.fileno()

    def pending(self) -> bool:
        """Return whether a message is available that zmq has already signalled."""
        with self._lock:
            if self._closed or not readable(self._socket):
                return False
            self._waker.wake()  # zmq has announced the message to this thread, and another one may wait for it
            return True

    def close(self) -> None:
        """Close the link."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._lost:
                with contextlib.suppress(zmq.ZMQError):
                    self._socket.send(pack_bare(Kind.BYE), NOW)
            self._waker.wake()
        with self._receiving:  # threads that waited have left
            self._poller.close()
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close()
            self._waker.close()

    def abandon(self) -> None:
        """Close this process's copy of the TCP connection, in the child of a fork; zmq itself is the parent's."""
        self._closed = True
        if self._peer is not None and peer_of(self._connection) == self._peer:  # else the number has another use
            os.close(self._connection)

    def __del__(self) -> None:
        """Close zmq's sockets of a channel that was not closed, without a goodbye."""
        if not getattr(self, "_closed", True):
            self._closed = True
            self._poller.close()
            if not self._socket.closed:  # the garbage collector may have closed both, in any order
                self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(0)
            self._waker.close()

    def _hand_over(self, parts: list[Buffer], *, copies: bool = False) -> zmq.MessageTracker | None:
        tracker: zmq.MessageTracker | None = None
        try:
            if len(parts) == 1:
                self._socket.send(parts[0], NOW)
            elif copies:
                self._socket.send_multipart(parts, NOW)
            else:
                tracker = self._socket.send_multipart(parts, NOW, copy=False, track=True)
        finally:  # also where the queue is full: zmq may have announced a message to this thread alone
            if readable(self._socket):
                self._waker.wake()
        return tracker

    def _await_encrypted(self, tracker: zmq.MessageTracker, deadline: float | None) -> None:
        try:
            tracker.wait(-1 if deadline is None else max(0.0, deadline - time.monotonic()))
        except zmq.NotDone:
            self.close()  # half of the message may be on its way, so nothing can follow it
            raise ChannelClosed(f"{self._address} took a long message too slowly; the connection is closed") from None

    def _look(self) -> list[memoryview] | None:
        """Return a message if there is one; messages from before the end precede the error."""
        with self._lock:
            if self._closed:
                raise ChannelClosed(f"the connection to {self._address} was closed here")
            try:
                while readable(self._socket):
                    frames = self._take()
                    if frames is not None:
                        return frames
            except zmq.ZMQError:
                self._check_open()  # as in `post`
                raise
            if self._lost:
                raise ChannelClosed(self._lost)
        return None

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait until a message may be available; return False on timeout."""
        try:
            with interruptible:
                ready = self._poller.poll(None if timeout_s is None else min(timeout_s, _LONGEST_WAIT_S))
        except (OSError, ValueError):
            self._check_open()  # as in `post`
            raise
        for source, _ in ready:
            if source == self._monitored_by:
                with self._lock:
                    self._note_loss()
            elif source == self._waker.fileno():
                self._waker.clear()
        return bool(ready)

    def _take(self) -> list[memoryview] | None:
        """Return the next message; None if it was the end."""
        parts = [part := self._socket.recv(NOW, copy=False)]
        while part.more:
            parts.append(part := self._socket.recv(NOW, copy=False))
        try:
            kind, frames = unpack([part.buffer for part in parts])
        except RemoteProtocolError as error:
            self._lost = f"{self._address} sent an invalid message: {error}"
            return None
        if kind is Kind.BYE:
            self._lost = f"{self._address} closed the connection"
        return None if kind in _BARE else frames

    def _note_loss(self) -> None:
        for event, _ in connection_events(self._monitor):
            if event == zmq.EVENT_DISCONNECTED:
                self._lost = f"the connection to {self._address} was lost"

    def _check_open(self) -> None:
        if self._closed:
            raise ChannelClosed(f"the connection to {self._address} was closed here")
        if self._lost:
            raise ChannelClosed(self._lost)


def _speaks_zmtp(host: str, port: int, deadline: float) -> bool:
    """Return whether a peer greets like zmq: one with another key does, a relay without a target does not."""
    try:
        with socket.create_connection((host, port), max(0.1, deadline - time.monotonic())) as probe:
            return probe.recv(1) == _GREETING
    except OSError:
        return False


def _resolve(address: str) -> list[tuple[str, int]]:
    """Return the addresses of a host's name, IPv4 first, because clusters listen there by default."""
    try:
        parsed = Address.parse(address)
        found = socket.getaddrinfo(parsed.host, parsed.port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise ClusterUnreachable(f"cannot connect to {address!r}: {error}", address=address) from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return [(str(target[0]), parsed.port) for *_, target in found]


def _connected(
    context: Context, curve: Curve, limits: Limits, host: str, port: int, address: str, deadline: float
) -> tuple[Socket, Socket, int]:
    """Return a connected and authenticated socket, its monitor and the descriptor of its TCP connection."""
    dealer = context.socket(zmq.DEALER)
    configure(dealer, limits, ipv6=":" in host)
    dealer.setsockopt(zmq.SNDHWM, _QUEUE)
    dealer.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
    dealer.curve_serverkey = curve.server_public
    dealer.curve_publickey = curve.client_public
    dealer.curve_secretkey = curve.client_secret
    monitor = monitored(dealer, zmq.EVENT_ALL)
    try:
        dealer.connect(f"tcp://{Address(host, port)}")
        connection = _await_handshake(monitor, address, deadline, limits.connect_timeout_s)
        dealer.send(pack_bare(Kind.OPEN))
    except BaseException:
        dealer.disable_monitor()
        monitor.close(0)
        dealer.close(0)
        raise
    return dealer, monitor, connection


def _await_handshake(monitor: Socket, address: str, deadline: float, timeout_s: float) -> int:
    """Return the descriptor of the TCP connection, once both ends are authenticated."""
    connection = -1
    while (remaining_s := deadline - time.monotonic()) > 0:
        if not monitor.poll(int(remaining_s * 1000) + 1):
            continue
        for event, value in connection_events(monitor):
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return connection
            if event == zmq.EVENT_CONNECTED:
                connection = value
            elif event in {zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL}:
                raise AuthenticationFailed(
                    f"{address} refused our cluster key: it belongs to another cluster or another user; "
                    "pass the key of this cluster by key_file=, PARL_KEY_FILE or PARL_KEY "
                    "(or check the port, if something else listens there)"
                )
            elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL or (connection >= 0 and event == zmq.EVENT_DISCONNECTED):
                raise ClusterUnreachable(
                    f"the peer at {address} is not a PARL cluster; is the port right?", address=address
                )
            elif event == zmq.EVENT_CLOSED:
                raise ClusterUnreachable(
                    f"nothing listens at {address}; start a cluster there (xparl start) or check the address",
                    address=address,
                )
    what = "answered, but not as a PARL cluster does" if connection >= 0 else "did not answer"
    raise ClusterUnreachable(
        f"{address} {what} within {in_seconds(timeout_s)}; check the address, and that no firewall is in between",
        address=address,
    )
