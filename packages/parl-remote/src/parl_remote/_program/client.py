"""The client side of a cluster: creates actors, is notified of their ends, and ends those without references.

    create --> ActorFactory -> OwnActors <-- their ends ---.
    borrow --> Borrowing <------------------ likewise -----+-- MasterClient, WorkerClients
    no references left -----------> Releaser -------------'

One thread listens to master and workers; another one, started with the first callback, reads results for callbacks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from parl_remote import _current
from parl_remote._config import Limits
from parl_remote._current import FoundActor
from parl_remote._data.class_spec import ClassSpec
from parl_remote._display import ConnectionDisplay
from parl_remote._files.upload import ActorDirectories
from parl_remote._links.handshake import ClientIdentity, Cluster
from parl_remote._links.loop import Loop
from parl_remote._messages import LeaseGranted, Status, StatusRequest
from parl_remote._messages.parts import ActorFound, ActorReached, FindActor, UnwatchActor
from parl_remote._options import ActorOptions
from parl_remote._program.actor_ref import ActorPlace, ActorRef
from parl_remote._program.connection import Connection, OwnConnection
from parl_remote._program.creation import ActorFactory, CreationRequest
from parl_remote._program.known_actors import (
    CAUSE_PATIENCE_S,
    ActorRecord,
    Borrowing,
    CreatedActor,
    DeferredDisconnects,
    OwnActors,
    Releaser,
    find_named,
    kill_named,
    send_close,
)
from parl_remote._program.log_forwarding import LogForwarder
from parl_remote._program.master_client import MasterClient
from parl_remote._program.object_transfer import NodeObjects, ObjectTransfers
from parl_remote._program.outbox import CallPath, Outbox
from parl_remote._program.restarts import NoRestart, Restarts, SupervisorLink
from parl_remote._program.worker_clients import WorkerClients
from parl_remote._system.interrupts import interruptible, uninterrupted
from parl_remote._system.processes import VARIABLES
from parl_remote._transport import Channel
from parl_remote.errors import (
    CONNECTION_CLOSED,
    ActorLost,
    ChannelClosed,
    DeathCause,
    DeathKind,
    NotConnected,
    RemoteError,
)

__all__ = ["Client"]

_log = logging.getLogger("parl.remote")


_FIND_S = 60.0  # an owner that restarts an actor may itself wait for resources
_STATE_S = 5.0  # the last saved state is read within milliseconds, unless the reading thread is stopped
_REPORT_S = 0.02  # the master and the holder of a handle learn of a death by different links, milliseconds apart
_STATUS_S = 2.0  # a user looks at a cell of a notebook meanwhile
# seconds for an actor that is still accepting the remaining calls of an ending program to accept the next one
_LAST_CALLS_S = 10.0
_SEND_AGAIN_S = 0.002
_SHUTDOWN_S = 0.5  # time for actors to end by themselves when the program ends; long enough to write a file


class Client(ConnectionDisplay):
    """A connection to one cluster.

    Args:
        address: The address given to `connect`, in its normal form.
        cluster: The way to it, and the parts that are shut down with the connection.
        limits: Times.
        lease_timeout_s: The time that creating an actor waits for resources unless its class says otherwise.
        places: The directories and files of actors.
        same_host_shortcut: Whether workers of this host are reached by unix sockets.
        inside_actor: The lease of the actor in this process; empty for a program.
        name: The displayed name; empty for the program's own name.

    Attributes:
        own: The actors that were made here.
        actor_factory: Creates them.
        supervises: Whether this process restarts detached actors itself, see `restarts.Supervisor`.

    Raises:
        ClusterUnreachable: Nothing answers at the address.
    """

    def __init__(
        self,
        address: str,
        cluster: Cluster,
        *,
        limits: Limits,
        lease_timeout_s: float | None,
        places: ActorDirectories,
        same_host_shortcut: bool = True,
        inside_actor: str = "",
        name: str = "",
    ) -> None:
        self._address = address
        self.same_host_shortcut = same_host_shortcut
        self._own_lease = inside_actor
        self._cluster = cluster
        self._limits = limits
        self._pid = os.getpid()
        # Re-entrant, both: a signal handler or a finalizer may use actors while this thread is in here.
        self._lock = threading.RLock()
        self._refs: weakref.WeakValueDictionary[str, ActorRef] = weakref.WeakValueDictionary()
        self._borrow_lock = threading.RLock()
        self._closed = False
        self.supervises = False
        self._supervisor = SupervisorLink(self.create)
        self._loop = Loop()
        self._identity = identity = ClientIdentity(name)
        self._master = MasterClient(
            self._loop,
            cluster,
            identity,
            address=address,
            limits=limits,
            on_lost_lease=self._lost,
            on_wanted_lease=_current.give_back,
            on_full=partial(_current.free_slots, self),
            when_needed=bool(inside_actor),  # a process that only holds actors of others needs no master
        )
        self._workers = WorkerClients(
            self._loop,
            cluster,
            identity,
            limits=limits,
            same_host_shortcut=same_host_shortcut,
            on_died=self._lost,
            on_worker_gone=self._worker_gone,
        )
        self._disconnects = DeferredDisconnects(self._loop, lambda: threading.current_thread() is self._thread)
        self.own = OwnActors(self._disconnects)
        self.actor_factory = ActorFactory(
            self._master,
            self._workers,
            self.own,
            places,
            connect=self._connection_to,
            variables=() if inside_actor else VARIABLES,  # in an actor they are set
            limits=limits,
            lease_timeout_s=lease_timeout_s,
        )
        self._borrowing = Borrowing(
            self._disconnects,
            self._workers,
            self._connection_to,
            own_lease=inside_actor,
            timeout_s=limits.liveness_limit_s,
        )
        self._releaser = Releaser(self._loop, self.actor_factory.release, self._forget_others)
        self._thread = _thread_of(self._loop, "parl-client")
        self._thread.start()
        self._background: tuple[Loop, threading.Thread] | None = None
        self._objects: ObjectTransfers | None = None

    def forward_logs(self) -> None:
        """Show the output of actors as lines of this program's own output, from the next actor on."""

        def where(granted: LeaseGranted) -> str:
            here = granted.host_id == self._identity.host_id or not granted.node_addresses
            return "" if here else f" on {granted.node_addresses[0].rpartition(':')[0] or self._address}"

        self.actor_factory.logs = LogForwarder(self._workers.connect, where)

    @property
    def address(self) -> str:
        """Return the address given to `connect`, in its normal form."""
        return self._address

    @property
    def is_gone(self) -> bool:
        """Return whether the cluster has ended, or could not be reached again in time."""
        return self._master.is_gone

    def _status(self) -> Status | None:
        try:
            answer = self._master.ask(StatusRequest, _STATUS_S)
        except (RemoteError, OSError):
            return None
        return answer if isinstance(answer, Status) else None

    @property
    def actor_num(self) -> int:
        """Return the number of actors that this client has now."""
        return len(self.own.records)

    def create(
        self,
        spec: ClassSpec,
        options: ActorOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> ActorRef:
        """Make an actor and run its constructor.

        Args:
            spec: Its class.
            options: Its options.
            args: Positional arguments of the constructor.
            kwargs: Keyword arguments of the constructor.

        Raises:
            SerializationError: The class or an argument cannot be sent.
            NoResources: There is no capacity, at all or within the time allowed.
            ActorLost: The actor's process ended in the constructor.
            RemoteError: Its worker cannot store the program's files, or this actor is importing the class's module.
            NotConnected: The connection is closed, or the cluster is gone.
            Exception: The constructor's exception.
        """
        self._check_open()
        _current.refuse_at_import(f"makes {spec.name}", spec.cls.__module__)
        if options.detached and not self._cluster.may_return:
            raise ValueError(
                f"a detached {spec.name} would outlive this program, but a private cluster ends with it; "
                "start one with `xparl start` and connect to that"
            )
        with uninterrupted:
            if options.detached and options.max_restarts and not self.supervises:
                _current.free_slots(self, spec.name)  # the supervisor waits for resources, not this process
                return self._supervisor.create(spec, options, args, kwargs, self.actor_factory.lease_timeout_s)
            request = CreationRequest(spec, options, args, kwargs)
            made = self.actor_factory.make(request)
            if options.max_restarts:
                return _restarting_reference(self, request, made)
            ref = self._reference(spec, made.record, Outbox(made.path), made.place, options)
            self._refs[made.place.lease_id] = ref
            if options.name:
                self.actor_factory.announce(request, made.record)
            return ref

    def start_reading(self) -> None:
        """Start the thread that reads answers for futures with callbacks; see `current.ActorMaker`."""
        self._background_loop()

    def borrow(self, place: object, spec: ClassSpec, attributes: tuple[str, ...] | None) -> ActorRef:
        """Return the reference to the actor of a handle; see `current.ActorMaker`.

        An actor that has ended yields a reference, too; its calls raise the cause.

        Raises:
            NotConnected: The connection is closed, or the handle belongs to another kind of cluster.
        """
        self._check_open()
        if not isinstance(place, ActorPlace):
            raise NotConnected(f"this handle belongs to another kind of cluster than {self._address!r}")
        with uninterrupted, self._borrow_lock:
            known = self._refs.get(place.lease_id)
            if known is not None:
                return known
            record = self.own.records.get(place.lease_id)
            if record is None:
                record = ActorRecord(place.lease_id, place.node_id, spec.name, is_borrowed=True)
                self._borrowing.records[place.lease_id] = record
            record.is_let_go = False  # it was, if it was made here: others have held it
            record.names.set(attributes)
            connection = self._borrowing.reach(place, record)
            if isinstance(record.restarts, Restarts):
                return _returned_reference(self, record, record.restarts, connection, spec, place)
            if place.may_return and record.is_borrowed:
                return _following_reference(self, record, connection, spec, place)
            return self._registered(place.lease_id, self._reference(spec, record, Outbox(connection), place))

    def find(self, name: str, timeout_s: float | None) -> FoundActor:
        """Return the actor with a name; see `parl_remote.get_actor`."""
        self._check_open()
        found = find_named(self._master, self._workers, name, timeout_s)
        place = found.place
        if isinstance(place, ActorPlace) and place.lease_id in self._refs:  # no connection follows from here
            kind = UnwatchActor if place.lease_id in self.own.records else ActorReached  # the owner is told anyway
            self._workers.tell(place.node_id, kind(place.lease_id))
        return found

    def kill(self, name: str) -> None:
        """End the actor with a name; see `parl_remote.kill`."""
        self._check_open()
        kill_named(self._master, name, self._limits.liveness_limit_s)

    def _reference(
        self,
        spec: ClassSpec,
        record: ActorRecord,
        outbox: Outbox,
        place: ActorPlace,
        options: ActorOptions | None = None,
    ) -> ActorRef:
        connection = record.connection
        record.outbox = outbox
        if record.cause is not None:  # it ended before it had one
            outbox.end(record.unsent)
        self._borrowing.reconnect_if_refused(record)
        return ActorRef(
            spec,
            outbox,
            let_go=lambda: self._let_go(record, connection if record.place is None else record.connection),
            destroy=lambda: self._destroy(record),
            attributes=record.names,
            place=place,
            options=options,
        )

    def _registered(self, lease_id: str, ref: ActorRef) -> ActorRef:
        """Register a new reference; return the one that this process has inherited from its parent instead, if any."""
        inherited = _current.inherited(lease_id)
        if inherited is not None:
            ref = inherited.become(ref)
        self._refs[lease_id] = ref
        return ref

    def _connection_to(self, record: ActorRecord, channel: Channel) -> Connection:
        kind = Connection
        if record.lease_id == self._own_lease:
            kind = OwnConnection
        return kind(
            channel,
            background=self._background_loop,
            lost=record.error,
            on_names=record.names.set,
            objects=lambda: self._objects_on(record.node_id),
            ended=record.await_end,
            refused=partial(self._refused, record),
            closed=lambda: self._await_report(record),
            shares_memory=self._workers.shares_memory(record.node_id),
        )

    def _refused(self, record: ActorRecord, shortage: str) -> None:
        """Record that the actor, or a process between, had to end a connection."""
        record.refuse(shortage)
        self._borrowing.reconnect_if_refused(record)

    def _await_report(self, record: ActorRecord) -> None:
        """Fail the calls that met an actor's loss even if no news of it comes."""
        self._loop.call_soon(partial(self._loop.call_later, CAUSE_PATIENCE_S, record.fail_unreported))

    def _objects_on(self, node_id: str) -> NodeObjects:
        """Return the transfers of `put` values to a worker that shares no memory with this process."""
        with self._lock:
            if self._objects is None:
                self._objects = ObjectTransfers(self._workers.reconnect, self._loop.call_soon)
            objects = self._objects.at(node_id)
        if not self._workers.is_linked(node_id):  # looked at after they can be seen: one of both forgets them
            self._objects.lost(node_id)
        return objects

    # -- ends of actors ------------------------------------------------------------------------------------------

    def _let_go(self, record: ActorRecord, connection: Connection | None) -> None:
        if os.getpid() == self._pid:
            record.is_let_go = True
            self._releaser.drop(record, connection)

    def _destroy(self, record: ActorRecord) -> None:
        if not record.has_ended:
            who = "by one who held a handle of it" if record.is_borrowed else ""
            self._workers.stop(record.node_id, record.lease_id, who)
            record.await_end()

    def _forget_others(self, record: ActorRecord) -> None:
        """Drop the record of an actor that outlives this program, once the last handle here is gone."""
        if record.is_detached:
            self.own.forget(record, DeathCause(DeathKind.STOPPED, detail="this program has no handle of it any more"))
        elif self._borrowing.records.get(record.lease_id) is record:
            del self._borrowing.records[record.lease_id]
            if not record.has_ended:
                self._borrowing.unwatch(record)

    def _worker_gone(self, node_id: str) -> None:
        if self._objects is not None:
            self._objects.lost(node_id)
        cause = DeathCause(DeathKind.NODE_LOST, detail="the connection to its worker closed")
        for lease_id in self.own.on_node(node_id):
            self._lost(lease_id, cause)
        for lease_id in self._borrowing.on_node(node_id):
            self._borrowing.lost(lease_id, cause)

    def _lost(self, lease_id: str, cause: DeathCause) -> None:
        self._borrowing.lost(lease_id, cause)
        self._workers.give_up(lease_id, cause)
        self.own.lost(lease_id, cause)

    def _background_loop(self) -> Loop:
        """Return the loop that reads for futures with callbacks; starts it on first use."""
        with self._lock:
            if self._background is None:
                loop = Loop()
                thread = _thread_of(loop, "parl-results")
                if self._background is None:  # else a signal handler has needed it meanwhile
                    self._background = loop, thread
                    try:
                        thread.start()
                    except RuntimeError:  # no thread can be had, now
                        self._background = None
                        raise
            return self._background[0]

    # -- the end -------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise NotConnected("this process was forked from the one that connected; call parl.connect() here as well")
        if self._closed:
            raise NotConnected(CONNECTION_CLOSED)

    def close(self) -> None:
        """End all actors of this client and the connection; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        cause = DeathCause(DeathKind.STOPPED, detail="the program disconnected")
        steps: list[Callable[[], object]] = [
            self._send_rest,
            partial(self._end_own, cause),
            partial(self.own.await_none, _SHUTDOWN_S),
        ]
        if self.actor_factory.logs is not None:
            steps.append(self.actor_factory.logs.close)
        if self._objects is not None:
            steps.append(self._objects.close)
        steps += [
            self._master.close,
            self._cluster.close,
            self._stop_loops,
            partial(self.own.close, cause),
            partial(self._borrowing.close, cause),
            self._disconnects.close,
            self._releaser.hang_up,
            self._master.hang_up,
            self._workers.hang_up,
            self._close_loops,
        ]
        with contextlib.ExitStack() as rest:  # an exception such as Ctrl-C does not keep the others from being taken
            for step in reversed(steps):
                rest.callback(step)

    def _end_own(self, cause: DeathCause) -> None:
        for record in list(self.own.records.values()):
            record.end(cause)
            channel = record.channel  # the releaser may take it away meanwhile
            if channel is not None and not record.is_detached:
                with contextlib.suppress(ChannelClosed):
                    send_close(channel, with_owner=True)

    def _loops(self) -> list[tuple[Loop, threading.Thread]]:
        return [pair for pair in ((self._loop, self._thread), self._background) if pair is not None]

    def _stop_loops(self) -> None:
        for loop, thread in self._loops():
            loop.stop()
            if thread is not threading.current_thread():
                thread.join(self._limits.linger_s)

    def _close_loops(self) -> None:
        for loop, thread in self._loops():
            if not thread.is_alive():
                loop.close()

    def _send_rest(self) -> None:
        """Write calls that sockets have not taken yet: a moment for actors that end now, and for others as long as
        they take something.
        """
        now = time.monotonic()
        last = dict.fromkeys((*self.own.records.values(), *self._borrowing.records.values()), (-1, now))
        while last:
            for record, (unsent, since) in list(last.items()):
                connection, outbox = record.connection, record.outbox  # the loop may release the actor meanwhile
                if connection is None or outbox is None or not (connection.is_full() or outbox.is_sending):
                    del last[record]
                    continue
                connection.write()
                connection.look()
                if outbox.unsent != unsent:
                    last[record] = outbox.unsent, time.monotonic()
                patience_s = _LAST_CALLS_S if record.may_outlive_program else _SHUTDOWN_S
                if time.monotonic() > (since if record.may_outlive_program else now) + patience_s:
                    del last[record]
                    if record.may_outlive_program:
                        _log.warning(
                            "%d calls of %s were not sent: the actor accepted none for %g s, and this program ends",
                            outbox.unsent,
                            record.class_name,
                            patience_s,
                        )
            if last:
                time.sleep(_SEND_AGAIN_S)

    def abandon(self) -> None:
        """Mark the connection as the parent's, in the child of a fork; its channels close themselves there.

        References to actors connect anew on their first use, with the child's own client.
        """
        self._closed = True
        self._cluster.abandon()
        for record in (*self.own.records.values(), *self._borrowing.records.values()):
            record.forked = True
            if record.outbox is not None:
                record.outbox.abandon(record.unsent)
            if (connection := record.connection) is not None:
                connection.abandon(record.unsent)
        for ref in list(self._refs.values()):
            ref.wait_for_use(_current.reach)
        _current.inherit(self._refs)


def _restarting_reference(client: Client, request: CreationRequest, made: CreatedActor) -> ActorRef:
    """Return the reference to an actor that this client has made and restarts."""

    def again(lost: ActorRecord, restarts: int) -> CreatedActor:
        client._check_open()
        if request.saves and (connection := lost.connection) is not None:
            connection.is_read_out.wait(_STATE_S)
        if request.shortage:
            raise NoRestart(f"it is not made again, because the last state that it saved is lost: {request.shortage}")
        return client.actor_factory.make(request, lost.lease_id, restarts)

    def is_made(made: CreatedActor) -> None:
        _note_restart(client, restarts, made)
        if request.options.name:
            client.actor_factory.announce(request, made.record)

    def give_up(record: ActorRecord) -> None:
        client._master.release(record.lease_id)  # others may wait for it

    outbox = Outbox(made.path)
    restarts = Restarts(
        made,
        outbox,
        limit=request.options.max_restarts,
        again=again,
        on_made=is_made,
        release=lambda made: client._let_go(made.record, made.record.connection),
        give_up=give_up,
    )
    ref = _reference_to(client, restarts, outbox, request.spec, made, request.options)
    if request.options.name:
        client.actor_factory.announce(request, made.record)
    if made.record.cause is not None:  # it ended before it could be made again
        restarts.lost(made.record, made.record.cause)()
    return ref


def _returned_reference(
    client: Client,
    record: ActorRecord,
    restarts: Restarts,
    path: CallPath | None,
    spec: ClassSpec,
    place: ActorPlace,
) -> ActorRef:
    """Return the reference to an actor that this client has made, dropped and got back, and restarts again.

    Args:
        client: The client.
        record: The actor.
        restarts: What restarted it before.
        path: The connection to it; None if it had ended when its handle arrived.
        spec: Its class.
        place: Its last known address.
    """
    record.outbox = outbox = Outbox(path)
    if path is None or not restarts.resume(outbox):
        record.await_end()  # the thread that handles its loss records the cause last
        outbox.end(record.unsent)
    ref = _reference_to(client, restarts, outbox, spec, CreatedActor(record, path, place), None)
    client._borrowing.reconnect_if_refused(record)
    return ref


def _following_reference(
    client: Client,
    record: ActorRecord,
    path: CallPath | None,
    spec: ClassSpec,
    place: ActorPlace,
) -> ActorRef:
    """Return the reference to an actor that another process restarts.

    Args:
        client: The client that holds the reference.
        record: The actor.
        path: The connection to it; None if it had ended when its handle arrived.
        spec: Its class.
        place: Its last known address.
    """

    def again(lost: ActorRecord, restarts: int) -> CreatedActor:  # noqa: ARG001  # its owner counts
        found = _successor(client, lost)
        record = ActorRecord(found.lease_id, found.node_id, spec.name, lost.names, is_borrowed=True)
        client._borrowing.records[found.lease_id] = record
        client._borrowing.records.pop(lost.lease_id, None)
        connection = client._borrowing.reach(found, record)
        if connection is None:
            client._borrowing.records.pop(found.lease_id, None)
            raise ActorLost(record.cause, class_name=spec.name) if record.cause is not None else NoRestart(_NOT_AGAIN)
        return CreatedActor(record, connection, found)

    made = CreatedActor(record, path, place)
    outbox = Outbox(path)
    restarts = Restarts(
        made,
        outbox,
        limit=None,
        again=again,
        on_made=lambda made: _note_restart(client, restarts, made),
        release=lambda made: client._let_go(made.record, made.record.connection),
        give_up=lambda _: None,
    )
    ref = _reference_to(client, restarts, outbox, spec, made, None)
    client._borrowing.reconnect_if_refused(record)
    if record.cause is not None:
        restarts.lost(record, record.cause)()
    return ref


_NOT_AGAIN = "its owner does not make it again"


def _successor(client: Client, lost: ActorRecord) -> ActorPlace:
    """Return the address of the actor that replaced a lost one; blocks until there is one."""
    until = time.monotonic() + _FIND_S
    while True:
        client._check_open()
        try:
            left_s = max(0.0, until - time.monotonic())
            found = client._master.ask(partial(FindActor, lease_id=lost.lease_id, timeout_s=left_s), left_s)
        except RemoteError:
            raise NoRestart(_NOT_AGAIN) from None
        assert isinstance(found, ActorFound)  # the master answers with that or with Failed
        if found.lease_id != lost.lease_id:
            return ActorPlace(
                found.lease_id, found.node_id, found.node_addresses, found.socket_dir, found.host_id, may_return=True
            )
        if time.monotonic() > until:
            raise NoRestart(_NOT_AGAIN)
        with interruptible:
            time.sleep(_REPORT_S)


def _reference_to(
    client: Client,
    restarts: Restarts,
    outbox: Outbox,
    spec: ClassSpec,
    first: CreatedActor,
    options: ActorOptions | None,
) -> ActorRef:
    """Return the reference to an actor that is restarted."""

    def let_go() -> None:
        if os.getpid() == client._pid:
            client._loop.call_soon(release)

    def release() -> None:
        made = restarts.let_go()
        if made is not None:
            client._let_go(made.record, made.record.connection)

    def destroy() -> None:
        made = restarts.end()
        if made is not None:
            client._destroy(made.record)

    ref = ActorRef(
        spec,
        outbox,
        let_go=let_go,
        destroy=destroy,
        attributes=first.record.names,
        place=first.place._replace(may_return=True),
        options=options,
    )
    ref = client._registered(first.place.lease_id, ref)
    restarts.reference = weakref.ref(ref)
    return ref


def _note_restart(client: Client, restarts: Restarts, made: CreatedActor) -> None:
    """Let the reference to a restarted actor lead to the new one."""
    ref = restarts.reference()
    if ref is not None:
        before = ref.place
        assert isinstance(before, ActorPlace)
        ref.place = made.place._replace(may_return=True, limit=before.limit, waits=before.waits)
        client._refs[made.record.lease_id] = ref


def _thread_of(loop: Loop, name: str) -> threading.Thread:
    return threading.Thread(target=loop.run, name=name, daemon=True)
