"""Creation of an actor by a client, first or on restart.

lease from the master --> a process from the worker --> Connection --CREATE--> the constructor has run
     `--- lost, not killed, before the constructor was requested? tried elsewhere, three times
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import process
from typing import TYPE_CHECKING, Any

from parl_remote._config import Limits
from parl_remote._data import serialize
from parl_remote._data.calls import Call
from parl_remote._data.class_spec import ClassSpec, description_of, dumps_class
from parl_remote._files.upload import ActorDirectories
from parl_remote._links.call_messages import Kind, header_of, payload_of
from parl_remote._messages import LeaseGranted, StartActor
from parl_remote._messages.parts import DescribeActor
from parl_remote._options import RECORD_VARIABLE, ActorOptions
from parl_remote._program.actor_ref import ActorPlace, AttributeNames, settled
from parl_remote._program.connection import Connection
from parl_remote._program.known_actors import REPORT_S, ActorRecord, CreatedActor, OwnActors
from parl_remote._program.master_client import MasterClient
from parl_remote._program.worker_clients import WorkerClients
from parl_remote._system.interrupts import interruptible, run_finalizers
from parl_remote._transport import Buffer, Channel, CutMessage
from parl_remote.errors import ActorLost, ChannelClosed, ClusterUnreachable, DeathCause, DeathKind, NameTaken

if TYPE_CHECKING:
    from parl_remote._program.log_forwarding import LogForwarder

__all__ = ["ActorFactory", "CreationRequest"]


_SAVE, _LOAD = "__parl_save__", "__parl_load__"


class CreationRequest:
    """The inputs for making one actor, first or on restart.

    Args:
        spec: Its class.
        options: The options of the request.
        args: Positional arguments of the constructor; futures are waited for. Arrays are copied if the actor may be
            restarted, because the program may change them meanwhile.
        kwargs: Keyword arguments of the constructor, likewise.

    Attributes:
        names: The names of the actor's attributes.
        references: The objects that references among the arguments lead to, kept as long as the actor may be restarted.
        saves: Whether its state is saved for restarts.
        shortage: Why the last state that it saved is not here; empty if it is.

    Raises:
        SerializationError: The class or an argument cannot be sent.
        TypeError: The class has only one of the two methods that save and load its state.
    """

    def __init__(
        self,
        spec: ClassSpec,
        options: ActorOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        cls = dumps_class(spec.cls)
        args, kwargs = settled(args, kwargs)
        references: list[object] = []
        call = f"{spec.name}.__init__"
        data, *buffers = serialize.dumps_arguments(args, kwargs, call, partial(spec.parameters, "__init__"), references)
        self.spec = spec
        self.options = options
        self.names = AttributeNames()
        self.saves = bool(options.max_restarts) and _saves(spec.cls)
        self.references = tuple(references)
        # The first fields of `actor.host.Creation` after `sys_path`.
        self._creation = tuple(sys.argv), spec.name, cls, spec.names, bytes(data), bool(kwargs)
        self._buffers = [bytes(buffer) for buffer in buffers] if options.max_restarts else buffers
        self.shortage = ""
        self._state: tuple[bytes, list[Buffer]] | None = None

    def message(self, sys_path: tuple[str | None, ...]) -> list[Buffer]:
        """Return the payload of CREATE.

        Args:
            sys_path: The actor's module paths.
        """
        state, buffers = self._state or (None, [])
        authkey = bytes(process.current_process().authkey)
        fields = (sys_path, *self._creation, self.options.max_concurrency, self.saves, state, len(buffers), authkey)
        return [pickle.dumps(fields, 5), *self._buffers, *buffers]  # names and data that are pickled already

    def keep_state(self, frames: Sequence[memoryview]) -> None:
        """Store the state that the actor has saved, replacing the previous one, even if there is no memory for it."""
        if type(frames) is CutMessage:
            self.shortage = str(frames.shortage)
            self._state = None
            return
        self.shortage = ""
        data, buffers = payload_of(header_of(frames[0])[1], frames)
        self._state = bytes(data), list(buffers)


def _saves(cls: type) -> bool:
    """Return whether objects of a class save their state."""
    has = [name for name in (_SAVE, _LOAD) if callable(getattr(cls, name, None))]
    if len(has) == 1:
        other = _LOAD if has == [_SAVE] else _SAVE
        raise TypeError(f"{cls.__qualname__} has {has[0]} but no {other}; define both or neither")
    return bool(has)


_NAMES_KEPT = 1000
_PLACEMENTS = 3  # a node that died is known as lost at once or, if it was cut off, later than a program should wait


class ActorFactory:
    """Makes the actors of one client.

    Args:
        master: Grants leases.
        workers: Start processes.
        own: Has the record of each actor from before it is started.
        places: The directories and files of actors.
        connect: Makes a connection from a channel to the record's actor.
        variables: The variables of the program's environment that actors get: those of thread counts.
        limits: Times.
        lease_timeout_s: The time that an actor waits for resources unless its class says otherwise.

    Attributes:
        logs: Shows the output of the actors' processes; None if it is not forwarded.
        lease_timeout_s: As given.
    """

    def __init__(
        self,
        master: MasterClient,
        workers: WorkerClients,
        own: OwnActors,
        places: ActorDirectories,
        *,
        connect: Callable[[ActorRecord, Channel], Connection],
        variables: Sequence[str],
        limits: Limits,
        lease_timeout_s: float | None,
    ) -> None:
        self._master = master
        self._workers = workers
        self._own = own
        self._places = places
        self._connect = connect
        self._variables = variables
        self._limits = limits
        self._named: dict[str, ActorRecord | None] = {}  # by name, the last one here; None: its request was given up
        self.lease_timeout_s = lease_timeout_s
        self.logs: LogForwarder | None = None

    def make(self, request: CreationRequest, replaces: str = "", restarts: int = 0) -> CreatedActor:
        """Make an actor; if its node is lost before its constructor began, make it on another node.

        Args:
            request: Class, arguments and options.
            replaces: The lease of the actor that it replaces; empty for a new one.
            restarts: The number of restarts, including this one.

        Raises:
            RemoteError: As for `Client.create`.
            Exception: The constructor's exception.
        """
        spec, options = request.spec, request.options
        timeout_s = self.lease_timeout_s if options.lease_timeout_s is None else options.lease_timeout_s
        for left in reversed(range(_PLACEMENTS)):
            granted = self._lease(spec.name, options, timeout_s, replaces, restarts)
            record = ActorRecord(
                granted.lease_id, granted.node_id, spec.name, request.names, is_detached=options.detached
            )
            self._own.records[record.lease_id] = record
            if options.name:
                self._remember(options.name, record)
            try:
                place = self._places.of(granted, self._workers, spec.cls.__module__)
                connection = self._start(record, granted, request, place.working_dir)
                message = request.message(place.sys_path)
                created = connection.submit(Call(Kind.CREATE, 0, 0, message, "__init__", request.references))
            except (ChannelClosed, ClusterUnreachable) as gone:
                error = gone if isinstance(gone, ClusterUnreachable) else record.error("")
                self.release(record, replaces=replaces)
                is_killed = isinstance(error, ActorLost) and error.cause.kind is DeathKind.KILLED_BY_USER
                if is_killed or not left:
                    raise error from None
                with interruptible:
                    time.sleep(self._limits.rejoin_interval_s)  # the master has to learn of it as well
                continue
            except BaseException:
                self.release(record, replaces=replaces)
                raise
            try:
                created._wait_until(None)
                request.names.set(created.result())
            except BaseException:
                self.release(record, replaces=replaces)
                raise
            addresses = tuple(granted.node_addresses)
            there = ActorPlace(granted.lease_id, granted.node_id, addresses, granted.socket_dir, granted.host_id)
            return CreatedActor(record, connection, there)
        raise AssertionError("the last placement returns or raises")

    def announce(self, request: CreationRequest, record: ActorRecord) -> None:
        """Publish an actor's description, by which clients find it; called once handles of it are known here."""
        description = description_of(request.spec, request.options)
        self._workers.tell(record.node_id, DescribeActor(record.lease_id, description))

    def release(self, record: ActorRecord, *, replaces: str = "") -> None:
        """Give back the lease of an actor whose constructor did not succeed; `replaces` if that was a restart."""
        self._master.release(record.lease_id, replaces=replaces)
        self._own.forget(record, DeathCause(DeathKind.CONSTRUCTOR))

    def _start(
        self, record: ActorRecord, granted: LeaseGranted, request: CreationRequest, working_dir: str
    ) -> Connection:
        """Start an actor's process and connect to it.

        Raises:
            ChannelClosed: The process ended first.
            ClusterUnreachable: Its node is gone.
        """
        options = request.options
        variables = {name: value for name in self._variables if (value := os.environ.get(name))}
        if options.record:
            variables[RECORD_VARIABLE] = os.path.abspath(os.path.expanduser(options.record))
        start = StartActor(record.lease_id, record.class_name, options.memory_limit, variables, working_dir)
        try:
            record.channel, record.pid = self._workers.start(granted, start)
        except ChannelClosed:
            if (cause := self._workers.end_of(record.lease_id)) is not None:
                record.end(cause)
            raise
        if self.logs is not None:
            self.logs.follow(granted)
        record.connection = connection = self._connect(record, record.channel)
        if request.saves:
            connection.keep_states(request.keep_state)
        return connection

    def _lease(
        self, class_name: str, options: ActorOptions, timeout_s: float | None, replaces: str, restarts: int
    ) -> LeaseGranted:
        """Return the resources for an actor."""
        patience = time.monotonic() + REPORT_S
        while True:
            try:
                return self._master.lease(class_name, options, timeout_s, replaces=replaces, restarts=restarts)
            except NameTaken:
                run_finalizers()
                before = self._named.get(options.name)
                is_leaving = before is None or before.has_ended or before.is_let_go
                if options.name not in self._named or not is_leaving or time.monotonic() > patience:
                    raise
                with interruptible:
                    time.sleep(REPORT_S / 100)  # our own actor had it, and the master hears of its end any moment
            except BaseException:
                if options.name:
                    self._remember(options.name, None)
                raise

    def _remember(self, name: str, record: ActorRecord | None) -> None:
        """Record the actor that has a name; see `_lease`."""
        if len(self._named) >= _NAMES_KEPT:  # of the ended ones only the latest matter
            self._named = {name: one for name, one in list(self._named.items()) if one and not one.has_ended}
        self._named[name] = record
