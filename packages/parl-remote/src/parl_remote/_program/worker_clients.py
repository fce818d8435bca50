"""A client's links to the workers of its actors: starts and stops actors, and receives the reports of their ends.

How an actor is started:

    start() --StartActor--> worker --ActorStarted--> start() returns a channel to the actor: its socket on this host,
                                                     one more connection to the worker (AttachActor) elsewhere: sealed,
                                                     and passed on to the actor, or relayed, see `transport.sealed`
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from parl_remote._config import Limits
from parl_remote._data.large_frames import can_share
from parl_remote._links.handshake import ClientIdentity, Cluster, greet
from parl_remote._links.loop import Loop
from parl_remote._links.requests import PendingAnswer, Requests, arrived_messages
from parl_remote._messages import (
    ActorAttached,
    ActorDied,
    ActorFailed,
    ActorStarted,
    AttachActor,
    Bye,
    LeaseGranted,
    Message,
    Role,
    StartActor,
    StopActor,
)
from parl_remote._messages.parts import OpenSealed, SealedOpened
from parl_remote._messages.wire import decode, encode
from parl_remote._program.relayed_channel import RelayedChannel
from parl_remote._transport import Buffer, Channel, allocate
from parl_remote._transport.sealed import SealedChannel, can_seal
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import (
    CONNECTION_CLOSED,
    ChannelClosed,
    ClusterUnreachable,
    DeathCause,
    DeathKind,
    NotConnected,
    RemoteError,
    RemoteProtocolError,
    ResultTimeout,
)

__all__ = ["WorkerClients"]

_log = logging.getLogger("parl.remote")
_SEALED_TIMEOUT_S = 2.0  # seconds to connect to a port that a firewall may hide; the encrypted link has answered before
_ENDS_KEPT = 100  # a lease that ends before its actor was asked for does so within milliseconds


class _Link:
    """A link to a worker, and what is known of the worker for as long as the link lasts.

    Args:
        channel: The channel to it.
        at: A lease there, which has its addresses.

    Attributes:
        shares_memory: Whether its actors can share memory with this process; the worker can, too.
        is_unsealed: Whether there are no sealed connections to it.
    """

    __slots__ = ("at", "channel", "is_unsealed", "shares_memory")

    def __init__(self, channel: Channel, at: LeaseGranted) -> None:
        self.channel = channel
        self.at = at
        self.shares_memory = isinstance(channel, UnixChannel) and can_share(channel.peer_pid)
        self.is_unsealed = False


class WorkerClients:
    """One program's links to workers, each made on first use.

    Args:
        loop: The loop that listens to workers.
        cluster: The way to workers on other hosts.
        identity: The identity of this program.
        limits: Times.
        same_host_shortcut: Whether workers of this host are reached by unix sockets.
        on_died: Called in the loop with each actor that ended and the cause.
        on_worker_gone: Called in the loop with the id of each worker that is gone.
    """

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        identity: ClientIdentity,
        *,
        limits: Limits,
        same_host_shortcut: bool,
        on_died: Callable[[str, DeathCause], None],
        on_worker_gone: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._identity = identity
        self._limits = limits
        self._shortcut = same_host_shortcut
        self._on_died = on_died
        self._on_worker_gone = on_worker_gone
        self._links: dict[str, _Link] = {}
        self._starts: dict[str, PendingAnswer[ActorStarted]] = {}
        self._requests = Requests()
        self._pushes: dict[type[Message], Callable[[str, Any], None]] = {}
        # Re-entrant, both: a signal handler may make an actor while this thread does.
        self._lock = threading.RLock()
        self._starting = threading.RLock()
        self._ended: dict[str, DeathCause] = {}  # leases that ended, the latest ones
        self._closed = False

    def start(self, granted: LeaseGranted, start: StartActor) -> tuple[Channel, int]:
        """Start an actor on a lease; return a channel to it and its process id.

        Raises:
            ChannelClosed: It ended before it could be reached; the cause is passed to `on_died` or `on_worker_gone`.
            ClusterUnreachable: Its worker cannot be reached.
        """
        waiting: PendingAnswer[ActorStarted] = PendingAnswer()
        with self._starting:
            cause = self._ended.get(start.lease_id)
            if cause is not None:  # the lease has ended since its grant
                raise ChannelClosed(cause.describe())
            self._starts[start.lease_id] = waiting
        try:
            self._link_to(granted).channel.send([encode(start)])
            started = waiting.result()
            return self.connect_actor(granted, started.address), started.pid
        finally:
            self._starts.pop(start.lease_id, None)

    def ask(
        self,
        at: LeaseGranted,
        make: Callable[[int], Message],
        timeout_s: float | None,
        frames: Sequence[Buffer] = (),
    ) -> Message:
        """Send a request to a worker and wait for its answer; see `Requests.ask`.

        Args:
            at: A lease on that worker, which has its addresses.
            make: Makes the request from its request_id.
            timeout_s: The time to wait; None for no limit while the worker lives.
            frames: Opaque data that goes with the request.

        Raises:
            RemoteError: The request failed; the text is the worker's reason.
            ResultTimeout: No answer came in time.
            ClusterUnreachable: The worker cannot be reached.
        """
        link = self._link_to(at).channel
        return self._requests.ask(at.node_id, make, lambda message: link.send([encode(message), *frames]), timeout_s)

    def connect(self, at: LeaseGranted) -> Channel:
        """Open another link to the worker of a lease, for traffic unrelated to actors' lives.

        Raises:
            RemoteError: The worker cannot be reached, or refuses the link.
        """
        path = os.path.join(at.socket_dir, "node.sock")
        return self._greet(UnixChannel.connect(path)) if self._is_here(at, path) else self._connect_worker(at)

    def reconnect(self, node_id: str) -> Channel:
        """Open another link to a worker that this client is linked to.

        Raises:
            RemoteError: The worker is gone, cannot be reached, or refuses the link.
        """
        link = self._links.get(node_id)
        if link is None:
            raise ClusterUnreachable(f"the worker {node_id} is gone")
        at = link.at
        if self._is_here(at, os.path.join(at.socket_dir, "node.sock")):
            return self.connect(at)
        return self._connect_sealed(at) or self._connect_worker(at)

    def is_linked(self, node_id: str) -> bool:
        """Return whether there is a link to a worker."""
        return node_id in self._links

    def shares_memory(self, node_id: str) -> bool:
        """Return whether the actors of a worker can share memory with this process, as the worker can."""
        link = self._links.get(node_id)
        return link is not None and link.shares_memory

    def on_push(self, kind: type[Message], handler: Callable[[str, Any], None]) -> None:
        """Register the handler of a kind of unsolicited worker message; called in the loop with the node's id."""
        self._pushes[kind] = handler

    def stop(self, node_id: str, lease_id: str, reason: str = "") -> None:
        """Make the worker kill an actor."""
        self.tell(node_id, StopActor(lease_id, reason))

    def tell(self, node_id: str, message: Message) -> None:
        """Send a worker a message if there is a link to it; a worker that is gone is ignored."""
        link = self._links.get(node_id)
        if link is not None:
            with contextlib.suppress(ChannelClosed):
                link.channel.send([encode(message)])

    def give_up(self, lease_id: str, cause: DeathCause) -> None:
        """Make `start` raise for this lease, whether it waits already or is called later."""
        with self._starting:
            self._ended[lease_id] = cause
            if len(self._ended) > _ENDS_KEPT:
                del self._ended[next(iter(self._ended))]
            started = self._starts.get(lease_id)
        if started is not None and not started.done():
            started.set_exception(ChannelClosed(cause.describe()))

    def end_of(self, lease_id: str) -> DeathCause | None:
        """Return why a lease ended, if that was recent."""
        return self._ended.get(lease_id)

    def hang_up(self) -> None:
        """Close all links, once the loop has stopped, and make no more; pending requests fail."""
        self._closed = True
        for link in list(self._links.values()):  # another thread may just have made one
            link.channel.close()
        self._links.clear()
        self._requests.lose_all(NotConnected(CONNECTION_CLOSED))
        for started in list(self._starts.values()):
            if not started.done():
                started.set_exception(ChannelClosed("the program has disconnected"))

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _link_to(self, granted: LeaseGranted) -> _Link:
        node_id = granted.node_id
        with self._lock:
            known = self._links.get(node_id)
            if known is not None:
                return known
            channel = self.connect(granted)
            self._links[node_id] = link = _Link(channel, granted)
            if self._closed:  # looked at after the link can be seen: one of both closes it
                channel.close()
                raise NotConnected(CONNECTION_CLOSED)
        self._loop.call_soon(lambda: self._loop.add(channel, lambda: self._on_readable(node_id, channel)))
        return link

    def _is_here(self, granted: LeaseGranted, path: str) -> bool:
        return self._shortcut and granted.host_id == self._identity.host_id and os.path.exists(path)

    def _connect_worker(self, granted: LeaseGranted) -> Channel:
        return self._greet(self._cluster.connect_node(granted.node_addresses))

    def _greet(self, link: Channel) -> Channel:
        if isinstance(link, UnixChannel):
            link.cut_messages()
        try:
            greet(link, self._identity.hello(Role.WORKER), self._limits.connect_timeout_s)
        except ResultTimeout as error:
            raise ClusterUnreachable(f"a worker took the connection and does not answer: {error}") from error
        return link

    def connect_actor(self, granted: LeaseGranted, address: str) -> Channel:
        """Return a channel to an actor: its own socket on this host, else through its worker's port.

        Raises:
            RemoteError: The actor has ended, or its worker cannot be reached.
        """
        if isinstance(self._link_to(granted).channel, UnixChannel):  # its actors' sockets are in the same place
            return UnixChannel.connect(address, allocate=allocate)
        request = encode(AttachActor(granted.lease_id))
        sealed = self._connect_sealed(granted)
        if sealed is None:
            link = self._connect_worker(granted)
            link.send([request])
            return RelayedChannel(link)
        try:
            sealed.send([request])
            answer = decode(sealed.receive(self._limits.connect_timeout_s)[0])
            if not isinstance(answer, ActorAttached):
                raise RemoteProtocolError(f"a worker answered AttachActor with {type(answer).__name__}")
        except BaseException as error:
            sealed.close()
            if isinstance(error, ResultTimeout):
                raise ClusterUnreachable(f"a worker did not connect its actor: {error}") from error
            raise
        return sealed

    def _connect_sealed(self, at: LeaseGranted) -> SealedChannel | None:
        """Return a sealed link to a worker on another host; None where this end, that one or the way has none."""
        link = self._link_to(at)
        if link.is_unsealed or not hasattr(link.channel, "found") or not can_seal():  # only zmq's channels have it
            return None
        host, port = link.channel.found
        timeout_s = min(_SEALED_TIMEOUT_S, self._limits.connect_timeout_s)
        try:
            opened = self.ask(at, lambda number: OpenSealed(number, port), self._limits.connect_timeout_s)
            if not isinstance(opened, SealedOpened):
                raise RemoteProtocolError(f"a worker answered OpenSealed with {type(opened).__name__}")
            channel = SealedChannel.open(
                host,
                opened.port,
                bytes.fromhex(opened.ticket),
                bytes.fromhex(opened.key),
                limits=self._limits,
                timeout_s=timeout_s,
                allocate=allocate,
            )
            channel.cut_messages()
            greet(channel, self._identity.hello(Role.WORKER), timeout_s)
        except (RemoteError, ValueError) as error:
            link.is_unsealed = True
            # As text: a handler may keep the record, and the error's frames hold what this thread's callers hold, such
            # as the reference to the actor that is being made here.
            _log.info("connections to the worker %s go through its relay: %s", at.node_id, str(error))
            return None
        return channel

    def _on_readable(self, node_id: str, link: Channel) -> None:
        for message in arrived_messages(link):
            match message:
                case ActorStarted(lease_id=lease_id):
                    started = self._starts.get(lease_id)
                    if started is not None and not started.done():
                        started.set_result(message)
                case ActorFailed(lease_id=lease_id, reason=reason):
                    self._on_died(lease_id, DeathCause(DeathKind.NODE_LOST, detail=reason))
                case ActorDied(lease_id=lease_id, cause=cause):
                    self._on_died(lease_id, cause)
                case Bye() | None:
                    self._loop.remove(link)
                    self._links.pop(node_id, None)
                    link.close()
                    self._requests.lost(node_id, ClusterUnreachable(f"the worker {node_id} is gone"))
                    self._on_worker_gone(node_id)
                    return
                case _ if type(message) in self._pushes:
                    self._pushes[type(message)](node_id, message)
                case _:
                    self._requests.answered(message)  # clients ignore unrequested answers
