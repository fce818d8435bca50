"""The actors that a client knows: a record of each, own, borrowed and named ones, and their release.

    record    how to reach the actor on one lease and, once it has ended, why
    own       add --> records --lost: its calls fail with the cause--> forget --> its connection closes
                                              `--(on another host, borrowed or own) a second later: answers may follow
    borrowed  WatchActor to its worker --> connection to the actor --JOIN--> it lives as long as this process holds it
    by name   FindActor --> master --> where it is --WatchActor--> its worker --> its class, once it exists
    released  CLOSE after the messages sent before; an own actor ends unless others hold it, a borrowed one continues

If an actor ends before its handle arrives, unpickling the handle still gives a reference; its calls raise the cause.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from parl_remote._current import FoundActor
from parl_remote._data.calls import Call
from parl_remote._data.class_spec import read_description
from parl_remote._future import RemoteFuture
from parl_remote._links.call_messages import Kind, pack
from parl_remote._links.loop import Loop
from parl_remote._messages import LeaseGranted, Message
from parl_remote._messages.overview import KillActor
from parl_remote._messages.parts import ActorFound, ActorReached, ActorWatched, FindActor, UnwatchActor, WatchActor
from parl_remote._program.actor_ref import ActorPlace, AttributeNames
from parl_remote._program.connection import Connection
from parl_remote._program.master_client import MasterClient
from parl_remote._program.outbox import CallPath, OpenPath, Outbox
from parl_remote._program.worker_clients import WorkerClients
from parl_remote._system.interrupts import Condition
from parl_remote._system.shortage import is_shortage, shortage_of, start_daemon
from parl_remote._transport import Channel
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import (
    ActorLost,
    ChannelClosed,
    DeathCause,
    DeathKind,
    NoSuchActor,
    NotConnected,
    RemoteError,
    RemoteProtocolError,
    ResultTimeout,
)

__all__ = [
    "CAUSE_PATIENCE_S",
    "REPORT_S",
    "ActorRecord",
    "Borrowing",
    "CreatedActor",
    "DeferredDisconnects",
    "OwnActors",
    "Releaser",
    "RestartPolicy",
    "Unreached",
    "find_named",
    "granted_at",
    "kill_named",
    "send_close",
]


REPORT_S = 1.0
"""Seconds; a worker reports an actor's end to its owner and to the master, milliseconds apart."""

_UNKNOWN = "the connection to it broke without a reported cause"
# A closed connection and the report of the death use different links: microseconds apart, seconds where all is busy.
CAUSE_PATIENCE_S = 10.0


class RestartPolicy(Protocol):
    """The policy that restarts an actor when it is lost; see `restarts.Restarts`."""

    def lost(self, record: ActorRecord, cause: DeathCause) -> Callable[[], None]:
        """Handle the end of an actor before any caller learns of it; return a function to call after it is recorded."""

    def connection_closed(self, record: ActorRecord) -> None:
        """Handle a broken connection of which no cause has become known in time."""


class ActorRecord:
    """An actor that this program has made or holds a handle of.

    Attributes:
        lease_id: Its lease.
        node_id: The worker that it runs on.
        class_name: Its class.
        pid: Its process id on its host; 0 for an actor that another process has made.
        channel: The channel to it, once there is one.
        connection: The connection that uses the channel.
        is_borrowed: Whether another process has made it.
        names: The names of its attributes; references to it have the same object.
        is_detached: Whether it outlives this program.
        is_let_go: Whether this process has no more handles of it, so that it ends unless other processes have one.
        forked: Whether it belongs to the process that this one was forked from.
        restarts: Restarts it when it is lost; None for an actor that is not restarted.
        outbox: The outbox of calls to it, which ends with it unless it is restarted; None before there is one.
        cause: The cause of its end; None while it runs. `end` sets it.
        refusal: The cause for which this process has no connection to it, although it runs; None while it has one.
        place: The address of a handle that arrived here, by which the actor was reached; None without one.
    """

    def __init__(
        self,
        lease_id: str,
        node_id: str,
        class_name: str,
        names: AttributeNames | None = None,
        *,
        is_borrowed: bool = False,
        is_detached: bool = False,
    ) -> None:
        self.is_borrowed = is_borrowed
        self.is_detached = is_detached
        self.is_let_go = False
        self.lease_id = lease_id
        self.node_id = node_id
        self.class_name = class_name
        self.pid = 0
        self.channel: Channel | None = None
        self.connection: Connection | None = None
        self.forked = False
        self.names = AttributeNames() if names is None else names
        self.restarts: RestartPolicy | None = None
        self.outbox: Outbox | None = None
        self._note = ""
        self._is_restarting = False
        self.cause: DeathCause | None = None
        self.refusal: DeathCause | None = None
        self.place: ActorPlace | None = None
        self._news = Condition()
        self._stays_unknown = False

    @property
    def has_ended(self) -> bool:
        """Return whether the actor's end is known."""
        return self.cause is not None

    @property
    def may_outlive_program(self) -> bool:
        """Return whether the actor may live longer than this program."""
        return self.is_borrowed or self.is_detached

    def end(self, cause: DeathCause) -> None:
        """Record the cause of the actor's end, unless one is recorded already: the first cause is the most specific."""
        if self.cause is None:
            self.cause = dataclasses.replace(
                cause,
                lease_id=cause.lease_id or self.lease_id,
                class_name=cause.class_name or self.class_name,
                pid=cause.pid or self.pid,
                at=cause.at or round(time.time(), 3),
            )
            with self._news:
                self._news.notify_all()
            if self.restarts is None and self.outbox is not None:
                self.outbox.end(self.unsent)

    def refuse(self, shortage: str) -> None:
        """Record that the connection to the actor ended, or was not made, for a shortage of the system.

        An own actor ends with the first connection of its owner, but not with that of a handle that has come back.
        """
        cause = DeathCause(DeathKind.UNREACHABLE, detail=shortage)
        if self.is_borrowed or self.place is not None:
            self.refusal = cause
        else:
            self.end(cause)

    def lose(self, cause: DeathCause) -> None:
        """Record that the actor ended unexpectedly, and restart it if possible."""
        proceed = None if self.restarts is None else self.restarts.lost(self, self.cause or cause)
        self.end(cause)
        if proceed is not None:
            proceed()

    def set_restart_note(self, note: str, *, is_restarting: bool = True) -> None:
        """Set the note on restarts in errors of the actor's calls; called before `end`, so that no error lacks it.

        Args:
            note: The text.
            is_restarting: Whether the actor is restarted.
        """
        self._note = note
        self._is_restarting = is_restarting

    def await_end(self) -> bool:
        """Wait a moment for the cause of the end, and return whether it is known."""
        with self._news:
            return self._news.wait_for(lambda: self.has_ended, CAUSE_PATIENCE_S)

    def fail_unreported(self) -> None:
        """Fail the calls that met the actor's loss, because no news of its end has come in time."""
        if self.outbox is None or self.outbox.path is not None:
            return  # it was only the connection, and there is another one
        if self.restarts is not None:
            self.restarts.connection_closed(self)
        else:
            self.outbox.end(self.unsent)

    def error(self, running: str) -> ActorLost | NotConnected:
        """Return the error for a call that will not be answered; see `Connection`."""
        if not (self.forked or self.refusal or self._stays_unknown):  # many may fail together; one wait is for all
            self._stays_unknown = not self.await_end()
        return self._error_of(running)

    def _error_of(self, running: str) -> ActorLost | NotConnected:
        if self.forked:
            return NotConnected(
                f"the parent of this process has made this call of {self.class_name}, and gets the answer; call it "
                "again here"
            )
        cause = self.cause or self.refusal or DeathCause(DeathKind.NODE_LOST, detail=_UNKNOWN)
        cause = dataclasses.replace(cause, last_call=running or cause.last_call)
        return ActorLost(cause, class_name=self.class_name, note=self._note, is_restarting=self._is_restarting)

    def unsent(self) -> ActorLost | NotConnected:
        """Return the error for a call that did not reach the actor; does not wait for the cause."""
        error = self._error_of("")
        if isinstance(error, ActorLost):
            error.was_sent = False
        return error

    def hang_up(self) -> None:
        """Close the connection or the channel to the actor."""
        if (connection := self.connection) is not None:
            connection.hang_up()
        elif (channel := self.channel) is not None:
            channel.close()


class CreatedActor(NamedTuple):
    """A newly made actor, the connection to it (None if it has ended already), and its address for others."""

    record: ActorRecord
    path: CallPath | None
    place: ActorPlace


def granted_at(place: ActorPlace) -> LeaseGranted:
    """Return a grant of the lease at `place`, equal to the one that the master sent to the actor's owner."""
    return LeaseGranted(
        request_id=0,
        lease_id=place.lease_id,
        node_id=place.node_id,
        node_addresses=place.node_addresses,
        socket_dir=place.socket_dir,
        host_id=place.host_id,
    )


class DeferredDisconnects:
    """The ends of one client's connections to actors that have ended.

    Args:
        loop: The client's loop.
        in_loop: Returns whether the calling thread is the loop's.
    """

    def __init__(self, loop: Loop, in_loop: Callable[[], bool]) -> None:
        self._loop = loop
        self._in_loop = in_loop
        self._later: set[ActorRecord] = set()  # their last answers may be on the way

    def hang_up(self, record: ActorRecord, cause: DeathCause) -> None:
        """Close the connection to an actor that has ended, once its last answers have come."""
        if record.channel is not None and self._in_loop():
            self._loop.remove(record.channel)  # the releaser may still be reading from it
            if cause.kind is not DeathKind.NODE_LOST and type(record.channel) is not UnixChannel:
                # From another host, answers come by another way than the news of the end, and may come after it: the
                # actor's system, or the relay, closes the connection behind the last one.
                self._later.add(record)
                self._loop.call_later(REPORT_S, lambda: self._hang_up_now(record))
                return
        record.hang_up()

    def close(self) -> None:
        """Close all connections, once the loop has stopped."""
        for record in list(self._later):
            self._hang_up_now(record)

    def _hang_up_now(self, record: ActorRecord) -> None:
        self._later.discard(record)
        record.hang_up()


class Unreached(OpenPath):
    """The path to an actor of a handle, which lives and could not take a connection: a call has a thread connect again.

        send --the call stays in the outbox--> a thread connects --made--> the calls leave by the connection
                                                                 `--not--> the calls that wait fail

    Args:
        borrowing: Connects to it.
        record: The actor.
    """

    def __init__(self, borrowing: Borrowing, record: ActorRecord) -> None:
        self._borrowing = borrowing
        self._record = record
        self._lock = threading.RLock()  # a signal handler may call the actor while this thread is in here
        self._first: RemoteFuture[Any] | None = None  # the call for which a thread connects
        self._failed: RemoteFuture[Any] | None = None  # that of the last thread, if it did not reach the actor
        self._is_failing = False

    def send(self, call: Call, future: RemoteFuture[Any]) -> bool:  # noqa: ARG002  # the outbox keeps the call
        """Begin to connect and return False, so that the call waits; see `CallPath.send`."""
        with self._lock:
            if self._first is None and not (self._is_failing or future is self._failed):
                with contextlib.suppress(RuntimeError):  # there is no thread, which is a shortage, too
                    self._first = future
                    start_daemon(self._connect, "parl-connect")
                    return False
                self._first = None
            elif self._first is not None:
                return False
        future._settle(None, self._record.unsent())
        return True

    def is_full(self) -> bool:
        """Return whether a thread is connecting."""
        return self._first is not None

    def _connect(self) -> None:
        """Connect again, and let the waiting calls leave, or fail them."""
        outbox, record, place = self.outbox, self._record, self._record.place
        assert outbox is not None  # it hands the calls over
        assert place is not None  # see `Borrowing.reach`
        try:
            record.hang_up()
            connection = self._borrowing.connect(place, record)
            if connection is not None and record.refusal is None and outbox.path is self:
                outbox.lost()
                outbox.made(connection)
                self._borrowing.reconnect_if_refused(record)  # the actor may have refused the connection meanwhile
            elif record.cause is not None and outbox.path is self:
                record.lose(record.cause)  # the actor may be restarted, or was already
            if connection is not None and (record.is_let_go or outbox.path is not connection):
                connection.hang_up()  # nothing needs it any more
        finally:
            with self._lock:
                self._failed, self._first = self._first, None
                self._is_failing = True
            try:
                if outbox.path is self:  # the actor lives, and is still unreached
                    outbox.on_writable()
            finally:
                self._is_failing = False


class Borrowing:
    """The borrowed actors of one client.

    Args:
        disconnects: The client's deferred disconnects.
        workers: The client's links to workers.
        connect: Makes a connection of a channel to the record's actor.
        own_lease: The lease of the actor in this process; empty for a program.
        timeout_s: The time that a worker may take to answer.

    Attributes:
        records: The record of each borrowed actor, by lease.
    """

    def __init__(
        self,
        disconnects: DeferredDisconnects,
        workers: WorkerClients,
        connect: Callable[[ActorRecord, Channel], Connection],
        *,
        own_lease: str,
        timeout_s: float,
    ) -> None:
        self._disconnects = disconnects
        self._workers = workers
        self._connect = connect
        self._own_lease = own_lease
        self._timeout_s = timeout_s
        self.records: dict[str, ActorRecord] = {}

    def reach(self, place: ActorPlace, record: ActorRecord) -> CallPath | None:
        """Connect to an actor, hold it and return the connection.

        Must not run in the client's own loop, which reads the worker's answer.

        Returns:
            None if the actor has ended; the record then has the cause. A path that connects later if a shortage of the
            system was in the way.
        """
        record.place = place
        connection = self.connect(place, record)
        return Unreached(self, record) if record.refusal is not None else connection

    def connect(self, place: ActorPlace, record: ActorRecord) -> Connection | None:
        """Connect as `reach` does; return None if the actor has ended or cannot be reached."""
        before = record.connection
        try:
            return self._reached(place, record)
        except BaseException:  # a handler has ended a wait
            if record.connection is not before:
                record.hang_up()
            if record.outbox is None and self.records.get(place.lease_id) is record:
                del self.records[place.lease_id]
            self.unwatch(record)
            raise

    def _reached(self, place: ActorPlace, record: ActorRecord) -> Connection | None:
        is_watched = False
        former = record.refusal  # until there is another connection, for the calls of the one that was refused
        try:
            answer = _watch(self._workers, place, self._timeout_s)
            is_watched = True
            if answer.cause is not None:
                record.end(answer.cause)
                return None
            record.channel = self._workers.connect_actor(granted_at(place), answer.address)
            record.connection = connection = self._connect(record, record.channel)
            connection.join(holds=place.lease_id != self._own_lease)
            if isinstance(record.channel, UnixChannel):  # the worker relays other connections, and so knows of them
                self._workers.tell(place.node_id, ActorReached(place.lease_id))
        except (RemoteError, OSError, MemoryError) as error:
            if is_shortage(error):
                record.refuse(shortage_of(error))
            if (opened := record.connection) is not None:
                opened.look()  # the actor may have sent the reason, or
            if record.refusal is former and is_watched:
                record.await_end()  # its worker may be about to report it
            if record.refusal is former:
                detail = f"it cannot be reached from here: {error}"
                record.end(DeathCause(DeathKind.NODE_LOST, detail=detail))
                self.unwatch(record)
            record.hang_up()
            return None
        if record.refusal is former:
            record.refusal = None
        return connection

    def reconnect_if_refused(self, record: ActorRecord) -> None:
        """Have the next call connect again if the connection was refused; called once the record has its outbox."""
        outbox = record.outbox
        if outbox is None or isinstance(outbox.path, Unreached):  # an unreached path connects again in any case
            return
        if record.refusal is not None and not record.has_ended:
            outbox.lost()
            outbox.made(Unreached(self, record))

    def lost(self, lease_id: str, cause: DeathCause) -> None:
        """Record an actor's end; unknown leases are ignored."""
        record = self.records.get(lease_id)
        if record is not None:
            record.lose(cause)
            self._disconnects.hang_up(record, cause)

    def close(self, cause: DeathCause) -> None:
        """Drop all records, once the loop has stopped."""
        for lease_id in list(self.records):
            self.lost(lease_id, cause)

    def unwatch(self, record: ActorRecord) -> None:
        """Stop being notified by the worker of the actor's end."""
        self._workers.tell(record.node_id, UnwatchActor(record.lease_id))

    def on_node(self, node_id: str) -> Iterable[str]:
        """Return the leases of borrowed actors on a node."""
        return [lease_id for lease_id, record in list(self.records.items()) if record.node_id == node_id]


def find_named(master: MasterClient, workers: WorkerClients, name: str, timeout_s: float | None) -> FoundActor:
    """Return the actor with a name; see `parl_remote.get_actor`."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    found = _ask(master, lambda number: FindActor(number, actor_name=name, timeout_s=timeout_s), timeout_s)
    assert isinstance(found, ActorFound)  # the master answers with that or with Failed
    place = ActorPlace(found.lease_id, found.node_id, found.node_addresses, found.socket_dir, found.host_id, True)
    left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
    watched = _watch(workers, place, left_s, described=True)
    if watched.cause is not None:
        raise ActorLost(watched.cause, class_name=f"the actor {name!r}")
    described = read_description(watched.description)
    return FoundActor(place._replace(limit=described.limit, waits=described.waits), described.shipped, described.wait)


def _watch(
    workers: WorkerClients, place: ActorPlace, timeout_s: float | None, *, described: bool = False
) -> ActorWatched:
    """Return where an actor is, which its worker keeps for this process from now on, or why it has ended."""
    numbers: list[int] = []

    def request(number: int) -> WatchActor:
        numbers.append(number)
        return WatchActor(number, place.lease_id, described)

    try:
        answer = workers.ask(granted_at(place), request, timeout_s)
        if not isinstance(answer, ActorWatched):
            raise RemoteError(f"its worker answered with {type(answer).__name__}")
    except BaseException:  # also a handler's; the worker keeps the actor, or will
        for number in numbers:
            workers.tell(place.node_id, UnwatchActor(place.lease_id, number))
        raise
    return answer


def kill_named(master: MasterClient, name: str, timeout_s: float) -> None:
    """End the actor with a name; see `parl_remote.kill`."""
    _ask(master, lambda number: KillActor(number, name), timeout_s)


def _ask(master: MasterClient, make: Callable[[int], Message], timeout_s: float | None) -> Message:
    try:
        return master.ask(make, timeout_s)
    except RemoteError as error:
        if type(error) is RemoteError:  # what the master has said, not what became of the connection
            raise NoSuchActor(str(error)) from None
        raise


class OwnActors:
    """The actors that one client has made.

    Args:
        disconnects: The client's deferred disconnects.

    Attributes:
        records: The record of each, by lease.
    """

    def __init__(self, disconnects: DeferredDisconnects) -> None:
        self._disconnects = disconnects
        self._changed = Condition()
        self.records: dict[str, ActorRecord] = {}

    def on_node(self, node_id: str) -> list[str]:
        """Return the leases of own actors on a node."""
        return [lease_id for lease_id, record in list(self.records.items()) if record.node_id == node_id]

    def lost(self, lease_id: str, cause: DeathCause) -> None:
        """Record an actor's end; unknown leases are ignored."""
        record = self.records.get(lease_id)
        if record is not None:
            record.lose(cause)
            if record.restarts is not None and (connection := record.connection) is not None:
                connection.read_out(REPORT_S)
            self.forget(record, cause)

    def forget(self, record: ActorRecord, cause: DeathCause) -> None:
        """Drop an actor's record and connection; calls without an answer fail with `cause`."""
        with self._changed:
            self.records.pop(record.lease_id, None)
            self._changed.notify_all()
        record.end(cause)
        self._disconnects.hang_up(record, cause)

    def await_none(self, timeout_s: float) -> None:
        """Wait until all actors have ended, except those that outlive the program."""
        with self._changed:
            self._changed.wait_for(lambda: all(record.is_detached for record in list(self.records.values())), timeout_s)

    def close(self, cause: DeathCause) -> None:
        """Drop all records, once the loop has stopped."""
        for record in list(self.records.values()):
            self.forget(record, cause)


_RETRY_S = 0.01  # between attempts to say CLOSE to an actor whose socket is full


def send_close(channel: Channel, *, with_owner: bool = False) -> bool:
    """Release an actor after the messages already sent; return False if its socket is full.

    Args:
        channel: The channel to it.
        with_owner: Whether the actor is to end even if other processes hold it, because its program ends.

    Raises:
        ChannelClosed: It has ended already.
    """
    try:
        channel.send(pack(Kind.CLOSE, 0, int(with_owner), 0), 0.0)
    except ResultTimeout:
        return False
    return True


class Releaser:
    """Releases actors in a client's loop.

    Args:
        loop: The client's loop.
        give_back: Gives back the lease of an actor that cannot be reached.
        forget: Forgets an actor that continues without this program.
    """

    def __init__(
        self,
        loop: Loop,
        give_back: Callable[[ActorRecord], None],
        forget: Callable[[ActorRecord], None],
    ) -> None:
        self._loop = loop
        self._give_back = give_back
        self._forget = forget
        self._dropped: deque[tuple[ActorRecord, Connection | None]] = deque()
        self._closing: set[Connection] = set()

    def drop(self, record: ActorRecord, connection: Connection | None) -> None:
        """Release an actor without references. Callable from finalizers: takes no lock and does not wait.

        Args:
            record: The actor.
            connection: The connection to it; the record may have a newer one, for a handle that has come back
                meanwhile.
        """
        self._dropped.append((record, connection))
        self._loop.call_soon(self._collect)

    def hang_up(self) -> None:
        """Close the remaining connections, once the loop has stopped."""
        for connection in list(self._closing):  # a loop that is late may still remove some
            connection.hang_up()
        self._closing.clear()

    def _collect(self) -> None:
        while self._dropped:
            record, connection = self._dropped.popleft()
            if record.connection is connection:
                record.channel = record.connection = None
            if connection is None or (record.has_ended and record.may_outlive_program):
                if connection is not None:
                    connection.hang_up()
                (self._forget if record.may_outlive_program or record.place is not None else self._give_back)(record)
            elif record.has_ended:  # or shall, because this program ends and found no way to it any more
                with contextlib.suppress(ChannelClosed):
                    send_close(connection.channel, with_owner=True)
                connection.hang_up()
            else:
                self._closing.add(connection)
                self._close(record, connection)

    def _close(self, record: ActorRecord, connection: Connection) -> None:
        try:
            said = send_close(connection.channel)
        except ChannelClosed:  # it has ended already, and its worker says so
            self._done(record, connection)
            return
        if said:
            if record.may_outlive_program:
                self._forget(record)
            # Nothing else will; and an actor that could not answer any more would not read what it was sent before.
            self._loop.add(connection.channel, lambda: self._read_on(record, connection))
        elif self._discard_answers(record, connection):
            self._loop.call_later(_RETRY_S, lambda: self._close(record, connection))

    def _read_on(self, record: ActorRecord, connection: Connection) -> None:
        self._discard_answers(record, connection)

    def _discard_answers(self, record: ActorRecord, connection: Connection) -> bool:
        """Read and discard answers; return False if the connection is closed."""
        try:
            while True:
                connection.channel.receive(0.0)
        except ResultTimeout:
            return True
        except (ChannelClosed, RemoteProtocolError):
            self._done(record, connection)
            return False

    def _done(self, record: ActorRecord, connection: Connection) -> None:
        self._loop.remove(connection.channel)
        self._closing.discard(connection)
        connection.hang_up()
        if record.may_outlive_program:
            self._forget(record)
