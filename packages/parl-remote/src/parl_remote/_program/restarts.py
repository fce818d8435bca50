"""`max_restarts`: a lost actor is restarted, and its handle leads to the new one.

                   +-- lost, and restarts are left --> being made --made--> alive
    alive ---------+                                       `- failed, none left -+
                   +-- lost, none left -----------------------------------------+--> over
    calls: to the connection              kept in the outbox              the last cause, at once

The process that made the actor restarts it; it keeps the constructor's arguments and the last state that the actor
saved (`__parl_save__`). Other holders of handles request the new actor from the master. A detached actor may outlive
its program, so a supervisor makes it:

    program --supervise(class, options, arguments)--> Supervisor, a detached actor without a CPU --makes--> the actor
            <------------------- a handle -----------'        `--- lost? makes it again, with its last state

A program has one supervisor for all such actors. It ends when all of them have ended for good.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from parl_remote import _current
from parl_remote._data import serialize
from parl_remote._data.class_spec import ClassSpec, dumps_class
from parl_remote._options import ActorOptions
from parl_remote._program.actor_ref import ActorRef, settled
from parl_remote._program.outbox import Outbox
from parl_remote._program.proxy import make_proxy, proxy_class, reference_of
from parl_remote._system.shortage import is_shortage, names_shortage
from parl_remote.errors import (
    ActorLost,
    ClusterUnreachable,
    DeathCause,
    DeathKind,
    NoResources,
    NotConnected,
    RemoteCallError,
)

if TYPE_CHECKING:
    from parl_remote._program.known_actors import ActorRecord, CreatedActor

__all__ = ["ActorRestarter", "NoRestart", "Restarts", "Supervisor", "SupervisorLink"]


_log = logging.getLogger("parl.remote")
_FIRST_DELAY_S = 0.1  # between attempts that fail; doubled each time
_LONGEST_DELAY_S = 5.0
_MOST_SHORTAGES = 30  # shortages, over more than two minutes: after that the cause may be an argument that is too large


class NoRestart(Exception):  # it ends one attempt, and is caught here
    """The actor will not be restarted, and retrying is pointless."""


class ActorRestarter(Protocol):
    """A function that restarts an actor, or finds the new actor if its owner has restarted it."""

    def __call__(self, lost: ActorRecord, restarts: int) -> CreatedActor:
        """Block until the new actor exists and return it.

        Args:
            lost: The record of the lost actor.
            restarts: The number of restarts, including this one.

        Raises:
            NoRestart: There will be no new actor; the message has the reason.
            Exception: This attempt failed; another attempt may follow.
        """


class Restarts:
    """Restarts an actor when it is lost, and notifies its outbox; implements `known_actors.RestartPolicy`.

    Args:
        made: The actor.
        outbox: The outbox of calls to it.
        limit: The maximum number of restarts; -1 for no limit, None if another process counts them.
        again: Restarts it, or finds the new actor if another process has restarted it.
        on_made: Called with each new actor.
        release: Releases an actor that is no longer needed.
        give_up: Called with the record of an actor that is not restarted although it could be.
        hope: The text about the expected restart, if `limit` is None.

    Attributes:
        reference: Returns the reference to the actor; None once it is gone.
    """

    def __init__(
        self,
        made: CreatedActor,
        outbox: Outbox,
        *,
        limit: int | None,
        again: ActorRestarter,
        on_made: Callable[[CreatedActor], None],
        release: Callable[[CreatedActor], None],
        give_up: Callable[[ActorRecord], None],
        hope: str = "its owner may make it again",
    ) -> None:
        self._limit = limit
        self._again = again
        self._on_made = on_made
        self._release = release
        self._tell_given_up = give_up
        self._hope = hope
        self._lock = threading.RLock()
        self._outbox = outbox
        self._made: CreatedActor | None = made
        self._record = made.record
        self._restarts = 0
        self._over = False
        self._ended = threading.Event()
        made.record.outbox = outbox
        made.record.restarts = self
        self.reference: Callable[[], ActorRef | None] = _nothing

    @property
    def restarts(self) -> int:
        """The number of restarts so far."""
        return self._restarts

    def lost(self, record: ActorRecord, cause: DeathCause) -> Callable[[], None]:
        """Handle the end of an actor; see `known_actors.RestartPolicy`."""
        with self._lock:
            if record is not self._record or self._made is None:
                return _nothing
            self._made = None
            self._outbox.lost()
            if self._over:
                self._tell_given_up(record)
                return functools.partial(self._finish, record)
            number = self._restarts + 1
            if not cause.kind.is_loss or cause.kind is DeathKind.KILLED_BY_USER:
                return functools.partial(self._finish, record)
            if self._is_above_limit(number):
                return self._finishing(record, self._limit_reached_text())
            record.set_restart_note(self._restart_text(number))
        making = threading.Thread(target=self._make, args=(record, number), name="parl-restart", daemon=True)
        return making.start

    def connection_closed(self, record: ActorRecord) -> None:
        """Handle a broken connection of which no cause has become known in time."""
        with self._lock:
            if record is self._record and self._made is not None:
                self._made = None
                self._finish(record)

    def resume(self, outbox: Outbox) -> bool:
        """Restart the actor again: a handle of it has come back. Return False if the actor was lost before.

        Args:
            outbox: The outbox of calls to it from now on; unused if the actor was lost.
        """
        with self._lock:
            if self._made is None:
                return False
            self._outbox = outbox
            self._over = False
            self._ended.clear()
            return True

    def let_go(self) -> CreatedActor | None:
        """Stop restarting, because the actor is no longer needed; return the actor to release, if there is one."""
        with self._lock:
            self._over = True
            self._ended.set()
            return self._made

    def end(self) -> CreatedActor | None:
        """Stop restarting and mark the actor as ended; return the actor to end, if there is one."""
        with self._lock:
            made = self.let_go()
        if made is None and not self._outbox.is_over:
            self._finishing(self._record, "and it was destroyed while it was being made again")()
        return made

    # -- inner steps -------------------------------------------------------------------------------------------------

    def _make(self, lost: ActorRecord, number: int) -> None:
        delay_s = _FIRST_DELAY_S
        note = ""
        announced = shortages = 0
        while not self._over:
            if self._limit is not None and announced != number:
                _log.warning("%s was lost; %s", lost.class_name, self._restart_text(number))
                announced = number
            try:
                made = self._again(lost, number)
            except NoRestart as error:
                note = str(error)
                break
            except NoResources:  # not counted as an attempt: the restart goes on waiting, and the owner is told
                delay_s = self._pause(delay_s)
            except BaseException as error:
                if shortages < _MOST_SHORTAGES and _is_shortage_outside(error):  # not counted, either
                    shortages += 1
                    _log.warning("%s could not be made again yet: %s", lost.class_name, error)
                    delay_s = self._pause(delay_s)
                    continue
                if isinstance(error, NotConnected) and not isinstance(error, ClusterUnreachable):
                    note = f"it could not be made again: {error}"
                    break
                if (killed := _kill_of(error)) is not None:
                    note = f"it was being made again, and then {killed.describe()}"
                    break
                failed = f"{type(error).__name__}: {error}"
                if self._limit is not None:  # else it is looked for again
                    _log.warning("%s could not be made again: %s", lost.class_name, failed)
                if self._is_above_limit(number + 1):
                    note = f"{self._limit_reached_text()}, and that failed: {failed}"
                    break
                number += 1
                shortages = 0
                delay_s = self._pause(delay_s)
            else:
                self._adopt(made, number)
                return
        self._tell_given_up(lost)
        self._finishing(lost, note)()

    def _pause(self, delay_s: float) -> float:
        """Wait before the next attempt and return the delay after that one."""
        self._ended.wait(delay_s)
        return min(2 * delay_s, _LONGEST_DELAY_S)

    def _adopt(self, made: CreatedActor, number: int) -> None:
        with self._lock:
            self._restarts = number
            is_needed = not self._over
            if is_needed:
                self._made = made
                self._record = made.record
                made.record.outbox = self._outbox
                made.record.restarts = self
        if not is_needed:
            self._release(made)
            self._finish(made.record)
            return
        self._on_made(made)
        if made.path is not None:
            self._outbox.made(made.path)
        if made.record.cause is not None:  # it ended before it was watched
            self.lost(made.record, made.record.cause)()

    def _finishing(self, record: ActorRecord, note: str) -> Callable[[], None]:
        """Return the function that ends the outbox; errors have the note from now on."""
        if note:
            record.set_restart_note(note, is_restarting=False)
        return functools.partial(self._finish, record)

    def _finish(self, record: ActorRecord) -> None:
        """Make every call that was not sent raise the cause of the actor's end."""
        self._outbox.end(record.unsent)

    def _is_above_limit(self, number: int) -> bool:
        return self._limit is not None and 0 <= self._limit < number

    def _restart_text(self, number: int) -> str:
        if self._limit is None:
            return f"{self._hope}; later calls wait for that"
        count = f"restart {number}" if self._limit < 0 else f"restart {number} of {self._limit}"
        return f"it is being made again ({count}); later calls wait for that"

    def _limit_reached_text(self) -> str:
        times = {1: "once", 2: "twice"}.get(self._limit or 0, f"{self._limit} times")
        return f"it has been made again {times}, as often as max_restarts allows"


def _kill_of(error: BaseException) -> DeathCause | None:
    """Return the cause if a user ended the actor in its constructor; a loss that this raised is another actor's."""
    if not isinstance(error, ActorLost) or isinstance(error.__cause__, RemoteCallError):
        return None
    return error.cause if error.cause.kind is DeathKind.KILLED_BY_USER else None


def _is_shortage_outside(error: BaseException) -> bool:
    """Return whether a system was short of something on the way to a new actor, rather than in its constructor."""
    if isinstance(error.__cause__, RemoteCallError):
        return False
    if isinstance(error, ActorLost):  # its host may have been short of something, see `Worker`
        cause = error.cause
        return cause.kind is DeathKind.UNREACHABLE or (cause.kind is DeathKind.EXIT and names_shortage(cause.detail))
    return is_shortage(error)


def _nothing() -> None:
    """Do nothing."""


_AT_ONCE = 16  # actors being made at a time: those that wait for resources must not delay the others
_LOOK_S = 5.0  # between looks whether anything is supervised
_OPTIONS = ActorOptions(n_cpu=0, detached=True, max_concurrency=_AT_ONCE)


class Supervisor:
    """The actor that makes a program's detached actors and restarts them when they are lost."""

    def __init__(self) -> None:
        self._supervised: list[ActorRef] = []
        self._being_made = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._look, name="parl-supervisor", daemon=True).start()

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
        finally:
            with self._lock:
                self._being_made -= 1
        return make_proxy(proxy_class(spec), ref, wait=options.wait)

    def _look(self) -> None:
        """End this process when it supervises no more actors."""
        nothing_since = 0
        never = threading.Event()
        while True:
            never.wait(_LOOK_S)
            with self._lock:
                self._supervised = [ref for ref in self._supervised if not ref.outbox.is_over]
                nothing_since = 0 if self._supervised or self._being_made else nothing_since + 1
            if nothing_since > 1:
                _current.end_actor()


class SupervisorLink:
    """A program's connection to its supervisor, which is made with the first actor that it supervises.

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
        """Make a detached actor by the supervisor, which restarts it; raise what `Client.create` raises."""
        args, kwargs = settled(args, kwargs)
        timeout_s = lease_timeout_s if options.lease_timeout_s is None else options.lease_timeout_s
        options = dataclasses.replace(options, lease_timeout_s=timeout_s)
        request = (dumps_class(spec.cls), options, args, dict(kwargs))
        try:
            handle = self._reference().call("supervise", request, {})
        except ActorLost as error:
            if isinstance(error.__cause__, RemoteCallError):
                raise  # the actor's, not the supervisor's
            self._supervisor = None  # it had nothing to supervise, and has ended
            handle = self._reference().call("supervise", request, {})
        ref = reference_of(handle)
        assert ref is not None  # it is a handle
        if options.max_pending_calls is not None:
            ref.limit(options)
        return ref

    def _reference(self) -> ActorRef:
        with self._lock:
            if self._supervisor is None:
                self._supervisor = self._create(ClassSpec(Supervisor), _OPTIONS, (), {})
            return self._supervisor
