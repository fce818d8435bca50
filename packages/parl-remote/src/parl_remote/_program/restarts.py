"""`max_restarts`: a lost actor is restarted, and its handle leads to the new one.

                   +-- lost, and restarts are left --> being made --made--> alive
    alive ---------+                                       `- failed, none left -+
                   +-- lost, none left -----------------------------------------+--> over
    calls: to the connection              held, in their order            the last cause, at once

The process that made the actor makes it again: the constructor's arguments, and the state that the actor saved last
(`__parl_save__`), are kept there. Other holders of handles request the new one from the master. A detached actor may
outlive its program, so a supervisor makes it:

    program --supervise(class, options, arguments)--> Supervisor, a detached actor without a CPU --makes--> the actor
            <------------------- a handle -----------'        `--- lost? makes it again, with its last state

A program has one supervisor for all such actors. It ends when all of them have ended for good.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from parl_remote import _current
from parl_remote._data import serialize
from parl_remote._data.class_spec import ClassSpec, dumps_class
from parl_remote._death import DeathCause, DeathKind
from parl_remote._future import Announced, RemoteFuture
from parl_remote._options import ActorOptions
from parl_remote._program.actor_record import GonePath
from parl_remote._program.actor_ref import ActorRef, HeldCalls, kind_of_reference, settled
from parl_remote._program.proxy import make_proxy, proxy_class, reference_of
from parl_remote._transport import Buffer
from parl_remote.errors import ActorLost, ChannelClosed, ClusterUnreachable, NotConnected, RemoteCallError

if TYPE_CHECKING:
    from parl_remote._program.actor_record import ActorRecord, Made
    from parl_remote._program.actor_ref import CallPath

__all__ = ["Again", "Comeback", "NoRestart", "Supervisor", "SupervisorLink"]


_log = logging.getLogger("parl.remote")
_FINAL = frozenset({DeathKind.KILLED_BY_USER, DeathKind.CONSTRUCTOR, DeathKind.IMPORT})
_FIRST_DELAY_S = 0.1  # between attempts that fail; doubled each time
_LONGEST_DELAY_S = 5.0
_PATIENCE_S = 2.0  # a broken connection and the report of the death use different links


class NoRestart(Exception):  # it ends an attempt, nobody else sees it
    """The actor will not be restarted, and retrying is pointless."""


class Again(Protocol):
    """A function that restarts an actor, or finds the one that its owner has restarted."""

    def __call__(self, lost: ActorRecord, restarts: int) -> Made:
        """Block until the new actor is there.

        Args:
            lost: The record of the lost actor.
            restarts: The number of restarts, including this one.

        Raises:
            NoRestart: There will be no new actor; the text, if any, has the reason.
            Exception: This attempt failed; another one may follow.
        """


class Comeback:
    """The path to an actor that is restarted when it is lost; implements `actor_ref.CallPath`.

    Args:
        made: The actor.
        limit: The maximum number of restarts; -1 for no limit, None if another process counts.
        again: Restarts it, or finds the one that another process has restarted.
        on_made: Called with each new actor.
        part: Releases an actor that is not needed any more.
        give_up: Called with the record of an actor that is not restarted although it could be.
        hope: The text on the expected restart, where `limit` is None.
    """

    def __init__(
        self,
        made: Made,
        *,
        limit: int | None,
        again: Again,
        on_made: Callable[[Made], None],
        part: Callable[[Made], None],
        give_up: Callable[[ActorRecord], None],
        hope: str = "whoever made it may make it again",
    ) -> None:
        self._limit = limit
        self._again = again
        self._on_made = on_made
        self._part = part
        self._tell_given_up = give_up
        self._hope = hope
        self._changed = threading.Condition(threading.RLock())
        self._made: Made | None = made
        self._record = made.record
        self._target: CallPath | None = made.path  # where calls that are held go; None while there is no actor
        self._path: CallPath = made.path
        self._restarts = 0
        self._announced: Announced | None = None
        self._over = False
        self._ended = threading.Event()
        made.record.comeback = self

    # -- calls -------------------------------------------------------------------------------------------------------

    def submit(
        self,
        kind: int,
        flags: int,
        index: int,
        payload: Sequence[Buffer],
        method: str,
        owner: object,
        future: RemoteFuture[Any] | None = None,
    ) -> RemoteFuture[Any]:
        """Send a message, to the next actor if it did not reach one that is gone; see `actor_ref.CallPath`."""
        while True:
            path = self._path
            try:
                return path.submit(kind, flags, index, payload, method, owner, future)
            except ChannelClosed:
                self._await_news(path)

    def names_changed(self) -> bool:
        """See `CallPath.names_changed`."""
        target = self._target
        return target is not None and target.names_changed()

    def _await_news(self, path: CallPath) -> None:
        """Wait until the fate of an actor whose connection is closed is known."""

        def is_known() -> bool:
            return path is not self._path and path is not self._target

        with self._changed:
            if self._record.forked or not self._changed.wait_for(is_known, _PATIENCE_S):
                self._finish(self._record, "")  # the connection broke, and no end of the actor is known

    def await_target(self) -> CallPath:
        """Wait until the actor is restarted or its end is final; return the path."""
        with self._changed:
            self._changed.wait_for(lambda: self._target is not None)
            assert self._target is not None
            return self._target

    # -- the actor's ends --------------------------------------------------------------------------------------------

    @property
    def restarts(self) -> int:
        """The number of restarts so far."""
        return self._restarts

    @property
    def is_over(self) -> bool:
        """Return whether the actor has ended for good."""
        return isinstance(self._target, GonePath)

    def lost(self, record: ActorRecord, cause: DeathCause) -> None:
        """Handle the end of an actor, before any caller learns of it."""
        with self._changed:
            if record is not self._record or self._made is None:
                return
            if self._over:
                self._tell_given_up(record)
                return
            self._made = None
            number = self._restarts + 1
            if not cause.kind.is_loss or cause.kind in _FINAL:
                self._finish(record, "")
                return
            if self._is_enough(number):
                self._finish(record, self._said_enough())
                return
            record.tell_of_restart(self._what_happens(number))
            self._target = None
            announced = Announced("restart")
            if not isinstance(self._path, HeldCalls):
                self._path = HeldCalls(_Held(self), self._resume)
            self._path.hold("restart", [announced.future], lambda _, future: future.settle(None), None)
            self._changed.notify_all()
        arguments = (record, number, announced)
        threading.Thread(target=self._make, args=arguments, name="parl-restart", daemon=True).start()

    def let_go(self) -> Made | None:
        """Stop restarting, since nothing needs the actor any more; return the actor to release, if there is one."""
        with self._changed:
            self._over = True
            self._ended.set()
            return self._made

    def end(self) -> Made | None:
        """Stop restarting and mark the actor as ended; return the actor to end, if there is one."""
        with self._changed:
            made = self.let_go()
            if made is None and self._target is None:
                self._finish(self._record, "and it was destroyed while it was being made again")
            return made

    # -- inner steps -------------------------------------------------------------------------------------------------

    def _make(self, lost: ActorRecord, number: int, announced: Announced) -> None:
        delay_s = _FIRST_DELAY_S
        note = ""
        while not self._over:
            if self._limit is not None:
                _log.warning("%s was lost; %s", lost.class_name, self._what_happens(number))
            try:
                made = self._again(lost, number)
            except NoRestart as error:
                note = str(error)
                break
            except BaseException as error:
                if isinstance(error, NotConnected) and not isinstance(error, ClusterUnreachable):
                    note = f"it could not be made again: {error}"
                    break
                failed = f"{type(error).__name__}: {error}"
                _log.warning("%s could not be made again: %s", lost.class_name, failed)
                if self._is_enough(number + 1):
                    note = f"{self._said_enough()}, and that failed: {failed}"
                    break
                number += 1
                self._ended.wait(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
            else:
                self._is_there(made, number, announced)
                return
        self._tell_given_up(lost)
        with self._changed:
            if self._target is None:
                self._finish(lost, note)
        announced.settle()

    def _is_there(self, made: Made, number: int, announced: Announced) -> None:
        with self._changed:
            self._restarts = number
            is_needed = not self._over
            if is_needed:
                self._made = made
                self._record = made.record
                self._target = made.path
                made.record.comeback = self
            elif self._target is None:
                self._finish(made.record, "")
            self._changed.notify_all()
        if is_needed:
            self._on_made(made)
            if made.record.cause is not None:  # it ended before anybody listened
                self.lost(made.record, made.record.cause)
        else:
            self._part(made)
        announced.settle()  # and so send what was held

    def _finish(self, record: ActorRecord, note: str) -> None:
        """Make every later call raise the cause of the actor's end."""
        if note:
            record.tell_of_restart(note, comes_back=False)
        self._target = GonePath(record)
        if not isinstance(self._path, HeldCalls):
            self._path = self._target
        self._changed.notify_all()

    def _resume(self, held: HeldCalls) -> None:
        with self._changed:
            if self._path is held and held.is_empty and self._target is not None:
                self._path = self._target

    def _is_enough(self, number: int) -> bool:
        return self._limit is not None and 0 <= self._limit < number

    def _what_happens(self, number: int) -> str:
        if self._limit is None:
            return f"{self._hope}; later calls wait for that"
        count = f"restart {number}" if self._limit < 0 else f"restart {number} of {self._limit}"
        return f"it is being made again ({count}); later calls wait for that"

    def _said_enough(self) -> str:
        times = {1: "once", 2: "twice"}.get(self._limit or 0, f"{self._limit} times")
        return f"it has been made again {times}, as often as max_restarts allows"


class _Held:
    """The destination of deferred calls: the actor that exists when they are sent."""

    def __init__(self, comeback: Comeback) -> None:
        self._comeback = comeback

    def submit(
        self,
        kind: int,
        flags: int,
        index: int,
        payload: Sequence[Buffer],
        method: str,
        owner: object,
        future: RemoteFuture[Any] | None = None,
    ) -> RemoteFuture[Any]:
        comeback = self._comeback
        while True:
            target = comeback.await_target()
            try:
                return target.submit(kind, flags, index, payload, method, owner, future)
            except ChannelClosed:
                comeback._await_news(target)

    def names_changed(self) -> bool:
        return self._comeback.names_changed()


_AT_ONCE = 16  # actors that are being made: those that wait for resources shall not keep the others waiting
_LOOK_S = 5.0  # between looks whether anything is supervised
_OPTIONS = ActorOptions(n_cpu=0, detached=True, max_concurrency=_AT_ONCE)


class Supervisor:
    """The actor that makes a program's detached actors, and makes them again whenever they are lost."""

    def __init__(self) -> None:
        self._supervised: list[ActorRef] = []
        self._being_made = 0
        self._lock = threading.Lock()
        self._looking: threading.Thread | None = None

    def supervise(self, cls: bytes, options: ActorOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make an actor, return a handle of it, and restart it whenever it is lost."""
        client: Any = _current.client()
        client.supervises = True
        with self._lock:
            self._being_made += 1
        try:
            spec = ClassSpec(serialize.loads(cls))
            ref = client.create(spec, options, args, kwargs)
            with self._lock:
                self._supervised.append(ref)
                if self._looking is None:
                    self._looking = threading.Thread(target=self._look, name="parl-supervisor", daemon=True)
                    self._looking.start()
        finally:
            with self._lock:
                self._being_made -= 1
        return make_proxy(proxy_class(spec), ref, wait=options.wait)

    def _look(self) -> None:
        """End this process when nothing is supervised any more."""
        nothing_since = 0
        never = threading.Event()
        while True:
            never.wait(_LOOK_S)
            with self._lock:
                self._supervised = [ref for ref in self._supervised if not _is_over(ref)]
                nothing_since = 0 if self._supervised or self._being_made else nothing_since + 1
            if nothing_since > 1:
                os._exit(0)


def _is_over(ref: ActorRef) -> bool:
    is_over: bool = getattr(ref._path, "is_over", False)  # of `restarts.Comeback`; while calls are held it is not over
    return is_over


class SupervisorLink:
    """A program's way to its supervisor, which is made with the first actor that it has to supervise.

    Args:
        create: Makes an actor, see `Client.create`.
    """

    def __init__(self, create: Callable[[ClassSpec, ActorOptions, tuple[Any, ...], dict[str, Any]], ActorRef]) -> None:
        self._create = create
        self._lock = threading.RLock()
        self._supervisor: ActorRef | None = None

    def create(
        self,
        spec: ClassSpec,
        options: ActorOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        lease_timeout_s: float | None,
    ) -> ActorRef:
        """Have a detached actor made, and made again, by the supervisor; raises what `Client.create` does."""
        args, kwargs = settled(args, kwargs)
        timeout_s = lease_timeout_s if options.lease_timeout_s is None else options.lease_timeout_s
        told = dataclasses.replace(options, lease_timeout_s=timeout_s)
        request = (dumps_class(spec.cls), told, args, dict(kwargs))
        try:
            handle = self._reference().call("supervise", request, {})
        except ActorLost as error:
            if isinstance(error.__cause__, RemoteCallError):
                raise  # the actor's, not the supervisor's
            self._supervisor = None  # it had nothing to supervise, and has ended
            handle = self._reference().call("supervise", request, {})
        ref = reference_of(handle)
        assert ref is not None  # it is a handle
        if options.max_pending_calls is None:
            return ref
        return kind_of_reference(options)(
            spec,
            ref._path,
            let_go=lambda: _with(ref),  # it lives as long as this one
            destroy=ref.destroy,
            attributes=ref.attributes,
            place=ref.place,
        )

    def _reference(self) -> ActorRef:
        with self._lock:
            if self._supervisor is None:
                self._supervisor = self._create(ClassSpec(Supervisor), _OPTIONS, (), {})
            return self._supervisor


def _with(ref: ActorRef) -> None:
    """Do nothing; the bound argument keeps the reference alive."""
