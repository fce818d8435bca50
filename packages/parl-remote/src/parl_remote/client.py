"""A program's side of a cluster: asks for room, has actors started, hears of their ends.

create() --LeaseRequest--> master --LeaseGranted-->
--StartActor----> worker --ActorStarted-->  connection to the actor --CREATE--> CREATED
one thread listens to master and workers; it also ends the actors that nobody refers to any more
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Protocol

from parl_remote import serialize
from parl_remote.actor_ref import ActorRef, AttributeNames
from parl_remote.call_messages import Kind, pack
from parl_remote.class_shipping import dumps_class
from parl_remote.class_spec import ClassSpec
from parl_remote.config import Limits
from parl_remote.connection import Connection
from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import (
    ActorLost,
    ChannelClosed,
    ClusterUnreachable,
    NoResources,
    NotConnected,
    RemoteError,
    RemoteProtocolError,
    ResultTimeout,
)
from parl_remote.handshake import greet
from parl_remote.identity import host_id, new_id, versions
from parl_remote.loop import Loop
from parl_remote.memory import allocate
from parl_remote.messages import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    ActorDied,
    ActorFailed,
    ActorStarted,
    AttachActor,
    Bye,
    Heartbeat,
    Hello,
    LeaseCancel,
    LeaseGranted,
    LeaseLost,
    LeaseRefused,
    LeaseRelease,
    LeaseRequest,
    Message,
    RefusalCode,
    Role,
    StartActor,
    StopActor,
    decode,
    encode,
)
from parl_remote.options import ActorOptions
from parl_remote.transport import Channel
from parl_remote.transport_unix import UnixChannel

__all__ = ["Client", "Cluster"]

_log = logging.getLogger("parl.remote")

_CAUSE_PATIENCE_S = 2.0  # a closed connection and the report of the death come by different ways, microseconds apart
_GOODBYE_S = 0.5  # what actors get to end by themselves when the program ends; long enough to write a file
_QUIET_WAIT_S = 3.0  # who waits longer than this for room wants to know why
_RETRY_S = 0.01  # between attempts to say CLOSE to an actor whose socket is full


class Cluster(Protocol):
    """A cluster that a client can connect to."""

    def connect_master(self) -> Channel:
        """A channel to the master.

        Raises:
            ClusterUnreachable: Nobody answers.
        """

    def connect_node(self, node_addresses: Sequence[str]) -> Channel:
        """A channel to a worker that is not on this host.

        Raises:
            ClusterUnreachable: Nobody answers.
        """

    def unreachable(self, reason: str) -> ClusterUnreachable:
        """The error for a master that was there and does not answer."""

    def close(self) -> None:
        """End what has to end with the connection; called once, after the goodbye."""

    def abandon(self) -> None:
        """Forget all that, in the child of a fork."""


class _ActorRecord:
    """What the client knows of one lease: how to reach the actor, and, later, why it ended."""

    __slots__ = ("cause", "channel", "class_name", "connection", "ended", "forked", "lease_id", "node_id")

    def __init__(self, lease_id: str, node_id: str, class_name: str) -> None:
        self.lease_id = lease_id
        self.node_id = node_id
        self.class_name = class_name
        self.channel: Channel | None = None
        self.connection: Connection | None = None
        self.cause: DeathCause | None = None
        self.ended = threading.Event()
        self.forked = False

    def end(self, cause: DeathCause) -> None:
        """Note the first cause that comes; later ones know less."""
        if self.cause is None:
            self.cause = cause
            self.ended.set()

    def error(self, running: str) -> ActorLost | NotConnected:
        """The error for a call that will not be answered; see `Connection`."""
        if self.forked:
            return NotConnected(
                f"this {self.class_name} belongs to the process that this one was forked from; "
                "call parl.connect() here and make another one"
            )
        self.ended.wait(_CAUSE_PATIENCE_S)
        cause = self.cause or DeathCause(DeathKind.NODE_LOST, detail="nobody could say why")
        return ActorLost(dataclasses.replace(cause, last_call=running), class_name=self.class_name)


class Client:
    """A connection to one cluster.

    Args:
        address: What `connect` was asked for, in its normal form.
        cluster: How to reach it, and what to end with the connection.
        limits: Times.
        lease_timeout_s: How long creating an actor waits for room unless its class says otherwise.
        same_host_shortcut: Whether workers of this host are reached by unix sockets.
    """

    def __init__(
        self,
        address: str,
        cluster: Cluster,
        *,
        limits: Limits,
        lease_timeout_s: float | None,
        same_host_shortcut: bool = True,
    ) -> None:
        self._address = address
        self._cluster = cluster
        self._limits = limits
        self._shortcut = same_host_shortcut
        self._lease_timeout_s = lease_timeout_s
        self._pid = os.getpid()
        self._id = new_id("client")
        self._host_id = host_id()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._leases: dict[int, Future[LeaseGranted]] = {}
        self._starts: dict[str, Future[ActorStarted]] = {}
        self._records: dict[str, _ActorRecord] = {}
        self._workers: dict[str, Channel] = {}
        self._dropped: deque[str] = deque()
        self._all_ended = threading.Event()
        self._closed_because = ""
        self._master = cluster.connect_master()
        try:
            greet(self._master, self._hello(Role.MASTER), limits.connect_timeout_s)
        except (ChannelClosed, ResultTimeout) as error:
            raise cluster.unreachable(str(error)) from error
        self._master_lost = ""
        self._loop = Loop()
        self._listen_to_master(self._master)
        self._heard = self._last_beat = self._loop.now()
        self._beats = itertools.count(1)
        self._loop.call_later(limits.heartbeat_interval_s, self._beat)
        self._thread = threading.Thread(target=self._loop.run, name="parl-client", daemon=True)
        self._thread.start()
        self._background: Loop | None = None
        self._background_thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """What `connect` was asked for, in its normal form."""
        return self._address

    @property
    def actor_num(self) -> int:
        """How many actors this client has now."""
        return len(self._records)

    def _hello(self, to: Role) -> Hello:
        return Hello(
            role=Role.CLIENT,
            to=to,
            id=self._id,
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            host_id=self._host_id,
            pid=self._pid,
            versions=versions(),
            name=os.path.basename(sys.argv[0]) if sys.argv else "",
        )

    # -- making actors -------------------------------------------------------------------------------------------

    def create(
        self, spec: ClassSpec, options: ActorOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ActorRef:
        """Make an actor and run its constructor.

        Raises:
            SerializationError: The class or an argument cannot be sent.
            NoResources: There is no room, at all or within the time allowed.
            ActorLost: The actor's process ended in the constructor.
            Exception: Whatever the constructor raised.
        """
        self._check_open()
        cls = dumps_class(spec.cls)
        arguments = serialize.dumps_arguments(args, kwargs, f"{spec.name}.__init__", spec.parameters("__init__"))
        payload = serialize.dumps((tuple(sys.path), spec.name, cls, spec.names, bytes(arguments[0]), bool(kwargs)))
        granted = self._lease(spec, options)
        record = _ActorRecord(granted.lease_id, granted.node_id, spec.name)
        with self._lock:
            self._records[record.lease_id] = record
            self._all_ended.clear()
        try:
            names = AttributeNames()
            record.connection = connection = self._start(record, granted, options, names)
            connection.submit(Kind.CREATE, 0, 0, [*payload, *arguments[1:]], "__init__", None).result()
        except BaseException:
            self._release(record)
            raise
        lease_id = record.lease_id
        return ActorRef(
            spec,
            connection,
            let_go=lambda: self._let_go(lease_id),
            destroy=lambda: self._destroy(lease_id),
            attributes=names,
        )

    def _lease(self, spec: ClassSpec, options: ActorOptions) -> LeaseGranted:
        timeout_s = self._lease_timeout_s if options.lease_timeout_s is None else options.lease_timeout_s
        number = next(self._numbers)
        answer: Future[LeaseGranted] = Future()
        self._leases[number] = answer
        try:
            self._tell_master(LeaseRequest(number, options.resources, timeout_s, spec.name))
            try:
                return answer.result(_QUIET_WAIT_S)
            except FutureTimeout:
                until = "as long as it takes" if timeout_s is None else f"up to {timeout_s:g} s"
                _log.warning("%s waits for %s, %s", spec.name, options.resources, until)
                return answer.result()
        except BaseException:
            if self._leases.pop(number, None) is not None:  # interrupted: the answer is not wanted any more
                with contextlib.suppress(Exception):
                    self._tell_master(LeaseCancel(number))
            raise

    def _start(
        self, record: _ActorRecord, granted: LeaseGranted, options: ActorOptions, names: AttributeNames
    ) -> Connection:
        worker = self._worker(granted)
        started: Future[ActorStarted] = Future()
        self._starts[record.lease_id] = started
        start = StartActor(record.lease_id, record.class_name, options.memory_limit, {}, os.getcwd())
        try:
            worker.send([encode(start)])
            where = started.result()
            record.channel = self._dial_actor(granted, where.address)
        except ChannelClosed:
            raise record.error("") from None
        finally:
            self._starts.pop(record.lease_id, None)
        return Connection(record.channel, background=self._background_loop, lost=record.error, on_names=names.set)

    def _worker(self, granted: LeaseGranted) -> Channel:
        """The link to a worker, made when it is first needed."""
        with self._lock:
            known = self._workers.get(granted.node_id)
            if known is not None:
                return known
            channel = self._dial_worker(granted)
            greet(channel, self._hello(Role.WORKER), self._limits.connect_timeout_s)
            self._workers[granted.node_id] = channel
        node_id = granted.node_id
        self._loop.call_soon(lambda: self._loop.add(channel, lambda: self._hear_worker(node_id, channel)))
        return channel

    def _dial_actor(self, granted: LeaseGranted, address: str) -> Channel:
        """The way to an actor: its own socket on this host, else through its worker's one port."""
        if granted.host_id == self._host_id and self._shortcut and os.path.exists(address):
            return UnixChannel.connect(address, allocate=allocate)
        channel = self._cluster.connect_node(granted.node_addresses)
        greet(channel, self._hello(Role.WORKER), self._limits.connect_timeout_s)
        channel.send([encode(AttachActor(granted.lease_id))])
        return channel

    def _dial_worker(self, granted: LeaseGranted) -> Channel:
        path = os.path.join(granted.socket_dir, "node.sock")
        if granted.host_id == self._host_id and self._shortcut and os.path.exists(path):
            return UnixChannel.connect(path)
        return self._cluster.connect_node(granted.node_addresses)

    # -- ending actors -------------------------------------------------------------------------------------------

    def _let_go(self, lease_id: str) -> None:
        """Nobody refers to an actor any more. Runs in the middle of anything: takes no lock, waits for nothing."""
        if os.getpid() == self._pid:
            self._dropped.append(lease_id)
            self._loop.call_soon(self._collect)

    def _collect(self) -> None:
        """In the client's thread: let actors go that nobody refers to."""
        while self._dropped:
            record = self._records.get(self._dropped.popleft())
            if record is not None:
                self._say_close(record)

    def _say_close(self, record: _ActorRecord) -> None:
        channel = record.channel
        if channel is None or record.cause is not None:
            self._release(record)
            return
        try:
            channel.send(pack(Kind.CLOSE, 0, 0, 0), 0.0)
        except ResultTimeout:
            self._discard_answers(channel)
            self._loop.call_later(_RETRY_S, lambda: self._say_close(record))
        except ChannelClosed:
            pass  # it has ended already, and the worker says so
        else:
            self._loop.add(channel, lambda: self._discard_answers(channel))  # nobody else will read them

    def _discard_answers(self, channel: Channel) -> None:
        try:
            while True:
                channel.receive(0.0)
        except ResultTimeout:
            pass
        except (ChannelClosed, RemoteProtocolError):
            self._loop.remove(channel)
            channel.close()

    def _destroy(self, lease_id: str) -> None:
        record = self._records.get(lease_id)
        if record is not None:
            self._stop(record, "")
            record.ended.wait(_CAUSE_PATIENCE_S)

    def _stop(self, record: _ActorRecord, reason: str) -> None:
        worker = self._workers.get(record.node_id)
        if worker is not None:
            with contextlib.suppress(ChannelClosed):
                worker.send([encode(StopActor(record.lease_id, reason))])

    def _release(self, record: _ActorRecord) -> None:
        """Give a lease back whose actor never came to life."""
        with contextlib.suppress(ChannelClosed, NotConnected):
            self._tell_master(LeaseRelease(record.lease_id))
        self._forget(record, DeathCause(DeathKind.CONSTRUCTOR))

    def _forget(self, record: _ActorRecord, cause: DeathCause) -> None:
        self._records.pop(record.lease_id, None)
        if not self._records:
            self._all_ended.set()
        record.end(cause)
        if record.connection is not None:
            record.connection.hang_up()
        elif record.channel is not None:
            record.channel.close()

    # -- what master and workers say -----------------------------------------------------------------------------

    def _tell_master(self, message: Message) -> None:
        if self._master_lost:
            self._reconnect()
        try:
            self._master.send([encode(message)])
        except ChannelClosed:
            self._check_open()
            raise ClusterUnreachable(f"the master at {self._address} is gone", address=self._address) from None

    def _reconnect(self) -> None:
        """A master that was restarted takes its clients back; a private one is gone for good."""
        with self._lock:
            reason = self._master_lost
            if not reason:
                return  # another thread was quicker
            try:
                master = self._cluster.connect_master()
                greet(master, self._hello(Role.MASTER), self._limits.connect_timeout_s)
            except (RemoteError, OSError) as error:
                gone = f"the cluster at {self._address} is gone ({reason}); call parl.disconnect() and parl.connect()"
                raise NotConnected(gone) from error
            self._master, self._master_lost = master, ""
            self._heard = self._loop.now()
        self._loop.call_soon(lambda: self._listen_to_master(master))

    def _listen_to_master(self, master: Channel) -> None:
        self._loop.add(master, lambda: self._hear_master(master))

    def _beat(self) -> None:
        """In the client's thread: exchange signs of life with the master."""
        now, interval_s = self._loop.now(), self._limits.heartbeat_interval_s
        if now - self._last_beat > 2 * interval_s:
            self._heard = now  # it was this process that slept, and what the master has said is still to be read
        self._last_beat = now
        if not self._master_lost:
            if now - self._heard > self._limits.liveness_limit_s:
                self._master_gone(self._master, f"no sign of life for {now - self._heard:.0f} s")
            else:
                with contextlib.suppress(ChannelClosed, ResultTimeout):
                    self._master.send([encode(Heartbeat(next(self._beats)))], 0.0)
        self._loop.call_later(interval_s, self._beat)

    def _hear_master(self, master: Channel) -> None:
        self._heard = self._loop.now()
        for message in _messages(master):
            if isinstance(message, LeaseGranted):
                granted = self._leases.pop(message.request_id, None)
                if granted is None:  # it was given up meanwhile
                    self._tell_master(LeaseRelease(message.lease_id))
                else:
                    granted.set_result(message)
            elif isinstance(message, LeaseRefused):
                refused = self._leases.pop(message.request_id, None)
                if refused is not None:
                    refused.set_exception(
                        NoResources(message.reason, asked=message.asked, available=message.available)
                        if message.code is not RefusalCode.STOPPING
                        else ClusterUnreachable(message.reason, address=self._address)
                    )
            elif isinstance(message, LeaseLost):
                self._lost(message.lease_id, message.cause)
            elif isinstance(message, Bye) or message is None:
                self._master_gone(master, message.reason if message is not None else "the connection closed")
                return

    def _master_gone(self, master: Channel, reason: str) -> None:
        self._loop.remove(master)
        master.close()
        self._master_lost = reason
        error = ClusterUnreachable(f"the cluster at {self._address} is gone: {reason}", address=self._address)
        for waiting in list(self._leases.values()):
            waiting.set_exception(error)
        self._leases.clear()

    def _hear_worker(self, node_id: str, channel: Channel) -> None:
        for message in _messages(channel):
            if isinstance(message, ActorStarted):
                started = self._starts.get(message.lease_id)
                if started is not None and not started.done():
                    started.set_result(message)
            elif isinstance(message, ActorFailed):
                self._lost(message.lease_id, DeathCause(DeathKind.NODE_LOST, detail=message.reason))
            elif isinstance(message, ActorDied):
                self._lost(message.lease_id, message.cause)
            elif message is None or isinstance(message, Bye):
                self._loop.remove(channel)
                self._workers.pop(node_id, None)
                channel.close()
                cause = DeathCause(DeathKind.NODE_LOST, detail="the connection to its worker closed")
                for record in [r for r in list(self._records.values()) if r.node_id == node_id]:
                    self._lost(record.lease_id, cause)
                return

    def _lost(self, lease_id: str, cause: DeathCause) -> None:
        record = self._records.get(lease_id)
        if record is None:
            return
        record.end(cause)
        started = self._starts.get(lease_id)
        if started is not None and not started.done():
            started.set_exception(ChannelClosed(cause.describe()))
        self._forget(record, cause)

    def _background_loop(self) -> Loop:
        """The loop that reads for futures with callbacks, started when the first one comes."""
        with self._lock:
            if self._background is None:
                self._background = Loop()
                self._background_thread = threading.Thread(
                    target=self._background.run, name="parl-results", daemon=True
                )
                self._background_thread.start()
            return self._background

    # -- the end -------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise NotConnected("this process was forked from the one that connected; call parl.connect() here as well")
        if self._closed_because:
            raise NotConnected(f"{self._closed_because}; call parl.connect() again")

    def close(self) -> None:
        """End all actors of this client and the connection; a second call does nothing."""
        if self._closed_because and not self._thread.is_alive():
            return
        self._closed_because = self._closed_because or "disconnected"
        cause = DeathCause(DeathKind.STOPPED, detail="the program disconnected")
        for record in list(self._records.values()):
            record.end(cause)
            if record.channel is not None:
                with contextlib.suppress(ChannelClosed, ResultTimeout):
                    record.channel.send(pack(Kind.CLOSE, 0, 0, 0), 0.0)
        if self._records:
            self._all_ended.wait(_GOODBYE_S)
        with contextlib.suppress(ChannelClosed, ResultTimeout):
            self._master.send([encode(Bye("the program disconnects"))], 0.5)
        self._cluster.close()
        for loop, thread in ((self._loop, self._thread), (self._background, self._background_thread)):
            if loop is not None and thread is not None:
                loop.stop()
                if thread is not threading.current_thread():
                    thread.join(self._limits.linger_s)
        for record in list(self._records.values()):
            self._forget(record, cause)
        for channel in (self._master, *self._workers.values()):
            channel.close()
        self._workers.clear()

    def abandon(self) -> None:
        """In the child of a fork: let go of the parent's connections without a word to anybody."""
        self._closed_because = "this process was forked"
        self._cluster.abandon()
        for record in self._records.values():
            record.forked = True
        channels = [record.channel for record in self._records.values()]
        for channel in (self._master, *self._workers.values(), *channels):
            if isinstance(channel, UnixChannel):
                channel.abandon()


def _messages(channel: Channel) -> list[Message | None]:
    """All control messages that have arrived; None at the end if the peer is gone."""
    messages: list[Message | None] = []
    try:
        while True:
            messages.append(decode(channel.receive(0.0)[0]))
    except ResultTimeout:
        pass
    except (ChannelClosed, RemoteProtocolError):
        messages.append(None)
    return messages
