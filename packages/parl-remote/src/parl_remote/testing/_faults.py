"""Faults of actors at exact points of a program, for example after the third call of the second actor of a class.

    program --call 3--> Faults --sent--> actor         after_calls=3: occurs once call 3 is answered, before call 4
    program --call 4--> Faults --sent, never begun--X  during_call=4: the actor is stopped while call 4 is sent

The program is not changed: while a `Faults` is open, calls of this process to its actors pass through it. A fault
occurs at the same point in every run, whatever the speed of the machine.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from parl_remote import _current
from parl_remote._data.calls import Call
from parl_remote._future import RemoteFuture
from parl_remote._links.call_messages import Kind
from parl_remote._program.client import Client
from parl_remote._program.connection import Connection
from parl_remote._program.creation import ActorFactory
from parl_remote._program.known_actors import ActorRecord
from parl_remote._program.proxy import reference_of
from parl_remote.testing._machine import Process

__all__ = ["ActorFaults", "Faults"]

_ENDS_S = 10.0


class Faults:
    """Faults of the actors that this process makes from now on, and of given actors; a context manager.

    Attributes:
        struck: The faults that have occurred, for display and assertions, for example "Sampler 2: kill after call 3".
    """

    def __init__(self) -> None:
        self.struck: list[str] = []
        self._planned: dict[tuple[str, int], ActorFaults] = {}
        self._by_lease: dict[str, ActorFaults] = {}
        self._made: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._original: Callable[..., Connection] | None = None

    def actor(self, which: object, number: int = 1) -> ActorFaults:
        """Return the faults of one actor.

        Args:
            which: A remote object, or the name of a class whose actors the program has yet to make.
            number: With a name, the number of the actor among those of the class made from now on, counted from 1.

        Raises:
            TypeError: `which` is neither a remote object nor a name.
            ValueError: The number is below 1, or the object is not an actor that this process has made.
        """
        if isinstance(which, str):
            if number < 1:
                raise ValueError(f"actors are counted from 1, not {number}")
            with self._lock:
                return self._planned.setdefault((which, number), ActorFaults(f"{which} {number}", self.struck))
        reference = reference_of(which)
        if reference is None:
            raise TypeError(f"{which!r} is neither a remote object nor the name of a class")
        lease_id = str(getattr(reference.place, "lease_id", ""))
        known = self._by_lease.get(lease_id)
        if known is not None:
            return known
        client = _current.client()
        record = client.own.records.get(lease_id) if isinstance(client, Client) else None
        if record is None or record.connection is None:
            raise ValueError(f"{which!r} is not an actor that this process has made in another process")
        return self._watch(record, record.connection, ActorFaults(record.class_name, self.struck))

    def open(self) -> Faults:
        """Start to intercept calls, and return this object; a second call does nothing."""
        if self._original is None:
            self._original = original = ActorFactory._start

            def start(factory: ActorFactory, record: ActorRecord, *how: Any) -> Connection:
                connection = original(factory, record, *how)
                self._watch(record, connection, self._next(record.class_name))
                return connection

            ActorFactory._start = start  # type: ignore[assignment,method-assign]
        return self

    def close(self) -> None:
        """Stop intercepting calls, cancel planned faults and resume paused actors; a second call does nothing."""
        if self._original is not None:
            ActorFactory._start = self._original  # type: ignore[method-assign]
            self._original = None
        for one in [*self._by_lease.values()]:
            one.close()

    def __enter__(self) -> Faults:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, class_name: str) -> ActorFaults:
        with self._lock:
            self._made[class_name] += 1
            number = self._made[class_name]
            key = class_name, number
            return self._planned.setdefault(key, ActorFaults(f"{class_name} {number}", self.struck))

    def _watch(self, record: ActorRecord, connection: Connection, faults: ActorFaults) -> ActorFaults:
        self._by_lease[record.lease_id] = faults
        faults.attach(record, connection)
        return faults


class ActorFaults:
    """The planned and past faults of one actor; made by `Faults.actor`.

    Attributes:
        name: The actor's name for display, for example "Sampler 2".
        calls: The number of calls sent to the actor since interception started, without reads and writes of attributes.
    """

    def __init__(self, name: str, struck: list[str]) -> None:
        self.name = name
        self.calls = 0
        self._struck = struck
        self._record: ActorRecord | None = None
        self._after: dict[int, list[tuple[str, Callable[[], object]]]] = {}
        self._during: dict[int, list[tuple[str, Callable[[], object]]]] = {}
        self._gate = threading.Event()
        self._gate.set()
        self._lock = threading.Lock()
        self._late_s = 0.0
        self._due = 0

    @property
    def process(self) -> Process:
        """The actor's process.

        Raises:
            ProcessLookupError: The actor is not made yet, has ended, or is on another host.
        """
        if self._record is None or not self._record.pid:
            raise ProcessLookupError(f"{self.name} is not made yet")
        process = Process(self._record.pid)
        if not process.name.startswith("parl:"):
            raise ProcessLookupError(f"{self.name} is not on this host; faults work on actors of this host only")
        return process

    def kill(self, *, after_calls: int | None = None, during_call: int | None = None) -> None:
        """Kill the actor (SIGKILL) and wait for its end; without arguments, at once.

        Args:
            after_calls: Kill it when this number of calls has been answered, 0 or more; the next call raises
                `ActorLost`.
            during_call: Kill it while the call of this number, counted from 1, is in flight: it is sent and never
                begun.

        Raises:
            ProcessLookupError: Without arguments: the actor is not made yet, has ended, or is on another host.
            ValueError: Both arguments were given, or that call has been sent already.
        """
        self.do(self._kill, after_calls=after_calls, during_call=during_call, name="kill")

    def pause(self, *, after_calls: int | None = None, during_call: int | None = None) -> None:
        """Stop the actor (SIGSTOP) until `resume` or `close`; arguments and errors are those of `kill`."""
        self.do(lambda: self.process.pause(), after_calls=after_calls, during_call=during_call, name="pause")

    def resume(self) -> None:
        """Resume the actor (SIGCONT).

        Raises:
            ProcessLookupError: The actor is not made yet, has ended, or is on another host.
        """
        self.process.resume()

    def slow(self, seconds: float) -> None:
        """Delay every call from now on by at least `seconds`; 0 ends the delay.

        The actor's process is stopped for that time, which should be below the liveness limit of the cluster (15 s by
        default).

        Args:
            seconds: The delay, from 0 to below 3600.

        Raises:
            ValueError: `seconds` is out of its range.
        """
        if not 0 <= seconds < 3600:
            raise ValueError(f"seconds must be from 0 to below 3600, not {seconds!r}")
        self._late_s = seconds

    def do(
        self,
        action: Callable[[], object],
        *,
        after_calls: int | None = None,
        during_call: int | None = None,
        name: str = "",
    ) -> None:
        """Run an action at a point of the program, for example `do(node.cut, after_calls=3)`; by default at once.

        Args:
            action: The action. With `during_call` the actor is stopped while it runs; with `after_calls` it runs before
                the actor's next call is sent.
            after_calls: Run it when this number of calls has been answered, 0 or more.
            during_call: Run it while the call of this number, counted from 1, is in flight.
            name: The name of the action in `Faults.struck` (default: the name of the function).

        Raises:
            ValueError: Both `after_calls` and `during_call` were given, or that call has been sent already.
        """
        if after_calls is not None and during_call is not None:
            raise ValueError("give after_calls or during_call, not both")
        name = name or getattr(action, "__name__", "fault")
        with self._lock:
            point = after_calls if after_calls is not None else during_call
            if point is not None and (point < self.calls or (during_call is not None and point <= self.calls)):
                raise ValueError(f"{self.name} has been sent {self.calls} calls already; call {point} has passed")
            if during_call is not None:
                self._during.setdefault(during_call, []).append((f"{name} during call {during_call}", action))
                return
            if after_calls:
                self._after.setdefault(after_calls, []).append((f"{name} after call {after_calls}", action))
                return
        if after_calls == 0 and self._record is None:
            self._after.setdefault(0, []).append((f"{name} before call 1", action))
        else:
            self._strike([(name, action)])

    def attach(self, record: ActorRecord, connection: Connection) -> None:
        """Intercept the calls of a connection; for `Faults`."""
        self._record = record
        send = connection.send

        def watched(call: Call, future: RemoteFuture[Any]) -> bool:
            if call.kind != Kind.CALL:
                return send(call, future)
            return not connection.is_full() and self._send(lambda: send(call, future), future)

        connection.send = watched  # type: ignore[method-assign]

    def close(self) -> None:
        """Cancel planned faults and delays, and resume the actor."""
        self._after.clear()
        self._during.clear()
        self._gate.set()
        self._late_s = 0.0
        self._try(self.resume)

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _send(self, send: Callable[[], bool], future: RemoteFuture[Any]) -> bool:
        """Send one call, with the faults planned around it."""
        self._gate.wait()
        if before := self._after.pop(0, None):
            self._strike(before)
        with self._lock:
            self.calls += 1
            number = self.calls
        during, after = self._during.pop(number, None), self._after.get(number)
        if during is not None or self._late_s:
            self._try(lambda: self.process.pause())
        if after is not None:
            self._gate.clear()  # later calls are not sent before it has struck
        is_taken = send()
        if during is not None:
            self._strike(during)
            self._try(self.resume)
        elif self._late_s:
            self._resume_later()
        if after is not None:
            future.add_done_callback(lambda _: self._strike_after(number))
        return is_taken

    def _strike_after(self, number: int) -> None:
        try:
            self._strike(self._after.pop(number, []))
        finally:
            self._gate.set()

    def _strike(self, faults: list[tuple[str, Callable[[], object]]]) -> None:
        for name, action in faults:
            self._struck.append(f"{self.name}: {name}")
            action()

    def _kill(self) -> None:
        process = self.process
        process.kill()
        process.wait_for_end(_ENDS_S)

    def _resume_later(self) -> None:
        with self._lock:
            self._due += 1
            due = self._due
        timer = threading.Timer(self._late_s, self._resume_if, (due,))
        timer.daemon = True
        timer.start()

    def _resume_if(self, due: int) -> None:
        if due == self._due:  # no later call keeps it
            self._try(self.resume)

    @staticmethod
    def _try(action: Callable[[], object]) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            action()
