"""A reference to one actor: everything that a proxy, a future and a bound method share.

    submit --a future among the arguments?--> HeldCalls: later calls queue behind it, in order --settled--> CallPath
           --max_pending_calls given?--> BoundedRef: a slot for each unanswered call; all taken? wait, or raise
           --else--------------------------------------------------------------------------------> CallPath

It is what keeps the actor alive: once no process has a proxy or an outstanding future of it any more, the actor
finishes what was sent to it, ends, and its resources are free. A process has one reference to an actor, however many
proxies.
"""

from __future__ import annotations

import concurrent.futures
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from parl_remote._data import serialize
from parl_remote._data.class_spec import ClassSpec
from parl_remote._future import Carrier, FutureTravels, RemoteFuture
from parl_remote._links.call_messages import BY_NAME, Flag, Kind
from parl_remote._options import ActorOptions
from parl_remote._transport import Buffer
from parl_remote.errors import ResultTimeout, TooManyPendingCalls

__all__ = [
    "ActorPlace",
    "ActorRef",
    "AttributeNames",
    "CallPath",
    "HeldCalls",
    "kind_of_reference",
    "settled",
]


class _Held:
    """One deferred call; not a dataclass, which would cost every program half a millisecond at start-up."""

    __slots__ = ("future", "send", "waits_for")

    def __init__(
        self,
        future: RemoteFuture[Any],
        waits_for: list[RemoteFuture[Any]],
        send: Callable[[CallPath, RemoteFuture[Any]], None],
    ) -> None:
        self.future = future
        self.waits_for = waits_for
        self.send = send


class HeldCalls:
    """The deferred calls of this process to one actor.

    Args:
        path: The path for messages to the actor.
        on_empty: Called when no call is deferred any more, possibly more than once.
    """

    def __init__(self, path: CallPath, on_empty: Callable[[HeldCalls], None]) -> None:
        self.path = path
        self._on_empty = on_empty
        self._queue: deque[_Held] = deque()
        self._lock = threading.Condition(threading.Lock())
        self._sending = False  # somebody sends the first of the queue, outside the lock

    @property
    def is_empty(self) -> bool:
        """Return whether no call is deferred."""
        return not self._queue

    def hold(
        self,
        method: str,
        futures: Sequence[RemoteFuture[Any]],
        send: Callable[[CallPath, RemoteFuture[Any]], None],
        owner: object,
    ) -> RemoteFuture[Any]:
        """Defer a call until `futures` are settled and all earlier calls are sent.

        Args:
            method: The name of the method, for messages.
            futures: The futures that it waits for.
            send: Sends it, so that the given future is settled with the answer; may raise what the future gets.
            owner: Kept alive until the answer is there.
        """
        future: RemoteFuture[Any] = RemoteFuture(self, owner)
        future.method = method
        waits_for = list(futures)
        with self._lock:
            self._queue.append(_Held(future, waits_for, send))
        for one in waits_for:
            one.add_done_callback(self._settled)
        self._advance()
        return future

    # -- actor_ref.CallPath --------------------------------------------------------------------------------------

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
        """Send a message after those that are deferred."""

        def send(path: CallPath, future: RemoteFuture[Any]) -> None:
            path.submit(kind, flags, index, payload, method, owner, future)

        with self._lock:
            if self._queue:
                waiting: RemoteFuture[Any] = RemoteFuture(self, owner) if future is None else future
                waiting.method = method
                self._queue.append(_Held(waiting, [], send))
                return waiting
        return self.path.submit(kind, flags, index, payload, method, owner, future)

    def names_changed(self) -> bool:
        """See `CallPath.names_changed`."""
        return self.path.names_changed()

    # -- future.Carrier ------------------------------------------------------------------------------------------

    def wait_for(self, future: RemoteFuture[Any], timeout_s: float | None) -> bool:
        """Wait for the futures that this call and those before it need, in order; see `Carrier.wait_for`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not future.settled:
            carrier = future._carrier
            if carrier is not self and carrier is not None:
                return carrier.wait_for(future, _left(deadline))
            with self._lock:
                waits_for = list(self._queue[0].waits_for) if self._queue else []
            try:
                for one in waits_for:
                    one.exception(_left(deadline))
            except ResultTimeout:
                return False
            except concurrent.futures.CancelledError:
                pass
            self._advance()
            with self._lock:
                if self._sending and future._carrier is self:  # by another thread
                    self._lock.wait(_left(deadline))
            if deadline is not None and time.monotonic() >= deadline:
                return future.settled
        return True

    def look(self) -> None:
        """See `Carrier.look`."""
        with self._lock:
            waits_for = list(self._queue[0].waits_for) if self._queue else []
        if all(one.done() for one in waits_for):
            self._advance()

    def watch(self, future: RemoteFuture[Any]) -> None:
        """Do nothing: the awaited futures are watched, and later the connection. See `Carrier.watch`."""

    def cancel(self, future: RemoteFuture[Any]) -> bool:
        """See `Carrier.cancel`."""
        with self._lock:
            for held in self._queue:
                if held.future is future and not (self._sending and held is self._queue[0]):
                    self._queue.remove(held)
                    break
            else:
                return False  # it is leaving this moment
        future.settle(None, cancelled=True)
        self._advance()
        return True

    # -- inner steps ---------------------------------------------------------------------------------------------

    def _settled(self, _: object) -> None:
        self._advance()

    def _advance(self) -> None:
        """Send the calls that do not have to wait any more."""
        while True:
            with self._lock:
                if self._sending or not self._queue:
                    break
                held = self._queue[0]
                if not all(one.settled for one in held.waits_for):
                    break
                self._sending = True
            try:
                self._send(held)
            finally:
                with self._lock:
                    self._queue.popleft()
                    self._sending = False
                    self._lock.notify_all()
        if self.is_empty:
            self._on_empty(self)

    def _send(self, held: _Held) -> None:
        """Send one call, or fail its future. Runs outside the lock: settling runs callbacks of users."""
        future = held.future
        try:
            for one in held.waits_for:
                one.result()
            held.send(self.path, future)
        except concurrent.futures.CancelledError:
            future.settle(None, cancelled=True)
        except BaseException as error:
            if not future.settled:
                future.settle(None, error)
            if not isinstance(error, Exception):
                raise


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


_CALL = int(Kind.CALL)
_KEYWORDS = int(Flag.KEYWORDS)


class CallPath(Protocol):
    """A path for messages to an actor: a connection, or a host within this process."""

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
        """Send a message that will be answered; `future`, if given, is settled with the answer."""

    def names_changed(self) -> bool:
        """Return, without waiting, whether the actor has reported a change of its attributes since the last call."""


class ActorPlace(NamedTuple):
    """The address of an actor, valid for every member of its cluster.

    Attributes:
        lease_id: Its lease.
        node_id: The worker that it runs on.
        node_addresses: "host:port" of the worker, as peers on other hosts reach it.
        socket_dir: The worker's private directory of unix sockets, usable on its own host.
        host_id: The worker's host.
        may_return: Whether the actor may be restarted when it is lost, see `restarts`.
        limit: How many calls of each process may be unanswered, 0 for any number, see `actor_ref`.
        waits: Whether a call above the limit waits.
    """

    lease_id: str
    node_id: str
    node_addresses: tuple[str, ...]
    socket_dir: str
    host_id: str
    may_return: bool = False
    limit: int = 0
    waits: bool = True


class ActorRef:
    """A process's single reference to one actor.

    Args:
        spec: Its class.
        path: The path for messages to it.
        let_go: Called once when no proxy or future needs the actor any more; may run in any thread at any time.
        destroy: Ends the actor at once.
        attributes: Names of its instance attributes; `AttributeNames.set` keeps them up to date.
        place: The address by which other processes find the actor; anything that the client's `borrow` takes.
    """

    def __init__(
        self,
        spec: ClassSpec,
        path: CallPath,
        *,
        let_go: Callable[[], None],
        destroy: Callable[[], None],
        attributes: AttributeNames,
        place: object = None,
    ) -> None:
        self.place = place
        self.spec = spec
        self.attributes = attributes
        self._path = path
        self._holding = threading.RLock()  # sending what is held may end with `_resume`
        self._let_go = let_go
        self._destroy = destroy

    def __del__(self) -> None:
        self._let_go()

    def submit(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RemoteFuture[Any]:
        """Send a call.

        Raises:
            SerializationError: An argument cannot be sent.
        """
        spec = self.spec
        index = spec.methods.get(name, BY_NAME)
        if index == BY_NAME:
            return self._submit_by_name(name, args, kwargs)
        references: list[object] = []
        if args or kwargs:
            try:
                payload = serialize.dumps_arguments(
                    args, kwargs, f"{spec.name}.{name}", partial(spec.parameters, name), references
                )
            except FutureTravels:
                return self._hold_back(name, args, kwargs)
        else:
            return self._path.submit(_CALL, 0, index, (), name, self)
        owner = (self, *references) if references else self
        return self._path.submit(_CALL, _KEYWORDS if kwargs else 0, index, payload, name, owner)

    def _submit_by_name(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RemoteFuture[Any]:
        """Send a call by name, of an attribute that the class lacks and the object may have."""
        try:
            flags, index, payload, references = self._payload(name, args, kwargs)
        except FutureTravels:
            return self._hold_back(name, args, kwargs)
        return self._path.submit(_CALL, flags, index, payload, name, (self, *references))

    def _payload(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[int, int, Sequence[Buffer], list[object]]:
        """Return flags, index and payload of a call, and the objects that its contained references lead to."""
        references: list[object] = []
        call, flags = f"{self.spec.name}.{name}", _KEYWORDS if kwargs else 0
        index = self.spec.methods.get(name, BY_NAME)
        if index == BY_NAME:
            args, kwargs = serialize.with_stand_ins(args, kwargs)
            packed = (name, (args, kwargs) if kwargs else args)
            return flags, index, serialize.dumps_arguments(packed, {}, call, list, references), references
        if not args and not kwargs:
            return 0, index, (), references
        payload = serialize.dumps_arguments(args, kwargs, call, partial(self.spec.parameters, name), references)
        return flags, index, payload, references

    def _hold_back(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RemoteFuture[Any]:
        """Defer a call until the futures among its arguments are settled, and all later calls behind it."""
        futures = [value for value in (*args, *kwargs.values()) if isinstance(value, RemoteFuture)]
        if not futures:
            call = f"{self.spec.name}.{name}"
            raise serialize.refusal(_NESTED, args, kwargs, call, partial(self.spec.parameters, name))

        def send(path: CallPath, future: RemoteFuture[Any]) -> None:
            flags, index, payload, references = self._payload(name, *settled(args, kwargs))
            path.submit(_CALL, flags, index, payload, name, (self, *references), future)

        with self._holding:
            if not isinstance(self._path, HeldCalls):
                self._path = HeldCalls(self._path, self._resume)
            return self._path.hold(name, futures, send, self)

    def _resume(self, held: HeldCalls) -> None:
        """Send calls directly again, once no call is deferred."""
        with self._holding:
            if self._path is held and held.is_empty:
                self._path = held.path

    def call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Send a call and wait for its result."""
        return self.submit(name, args, kwargs).result()

    def get(self, name: str) -> Any:
        """Return an attribute's value, or `answers.STAYS` if it is a method."""
        return self._path.submit(Kind.GET, 0, 0, serialize.dumps(name), f"get {name}", self).result()

    def set(self, name: str, value: Any) -> None:
        """Write an attribute.

        Raises:
            SerializationError: The value cannot be sent.
        """
        value = _value(value)
        references: list[object] = []
        call = f"set {self.spec.name}.{name}"
        payload = serialize.dumps_arguments((name, value), {}, call, lambda: ["name", name], references)
        self._path.submit(Kind.SET, 0, 0, payload, f"set {name}", (self, *references)).result()

    def refresh(self) -> bool:
        """Fetch the names of the actor's attributes if they have changed; return whether they were fetched."""
        if self.attributes.known and not self._path.names_changed():
            return False
        names = self._path.submit(Kind.NAMES, 0, 0, (), "the names of its attributes", self).result()
        self.attributes.set(names)
        return True

    def destroy(self) -> None:
        """End the actor at once, even during a call."""
        self._destroy()


_NESTED = FutureTravels("a future cannot be sent inside other things: pass it alone, or send its result()")


def settled(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with futures replaced by their results, waiting for them; for callers that block anyway."""
    if RemoteFuture not in map(type, args) and RemoteFuture not in map(type, kwargs.values()):
        return args, dict(kwargs)
    return tuple(_value(one) for one in args), {name: _value(one) for name, one in kwargs.items()}


def _value(argument: Any) -> Any:
    return argument.result() if isinstance(argument, RemoteFuture) else argument


class AttributeNames:
    """The names of an actor's instance attributes, as of its last reply.

    Args:
        names: The names known so far; None if none are known.
        certain: Whether the names come from the actor itself, which then reports changes.
    """

    def __init__(self, names: tuple[str, ...] | None = (), *, certain: bool = True) -> None:
        self._lock = threading.Lock()
        self.known = certain
        self.names: frozenset[str] = frozenset(names or ())
        self.version = 0

    def set(self, names: tuple[str, ...]) -> None:
        """Replace the names; callable from any thread."""
        with self._lock:
            self.names = frozenset(names)
            self.known = True
            self.version += 1

    def __contains__(self, name: str) -> bool:
        return name in self.names


_MOMENT_S = 0.005  # others that have a slot are about to send; they have no future yet that could be waited for


class _Slot:
    """One call's slot; woken by its future when that is settled."""

    __slots__ = ("_slots_of_actor", "future")

    def __init__(self, room: Slots) -> None:
        self._slots_of_actor = room
        self.future: RemoteFuture[Any] | None = None

    def wake(self) -> None:
        """Free the slot, since the future is settled; a second call does nothing."""
        self._slots_of_actor.leave(self)


class Slots:
    """The slots of one actor. To those who wait it looks like a future that is settled while there is a free slot.

    Args:
        limit: How many slots there are.
    """

    _carrier = None  # answers of any connection free slots

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slots: dict[_Slot, None] = {}
        self._changed = threading.Condition(threading.Lock())
        self._blocked: list[Any] = []

    @property
    def settled(self) -> bool:
        """Return whether a slot is free."""
        return len(self._slots) < self._limit

    def enter(self, *, wait: Callable[[], bool]) -> _Slot:
        """Take a slot.

        Args:
            wait: Asked when there is none; true to wait for one.

        Raises:
            TooManyPendingCalls: There is none, and `wait` said no.
        """
        slot = _Slot(self)
        while True:
            with self._changed:
                if len(self._slots) < self._limit:
                    self._slots[slot] = None
                    return slot
                oldest = next((one.future for one in self._slots if one.future is not None), None)
            if not wait():
                raise TooManyPendingCalls(
                    f"{self._limit} calls are unanswered, which is what max_pending_calls allows; wait for a result "
                    'before the next call, or leave out when_full="raise"',
                    limit=self._limit,
                )
            self._await_answer(oldest)

    def until(self, slot: _Slot, future: RemoteFuture[Any]) -> None:
        """Keep a slot until a future is settled."""
        slot.future = future
        if future._blocked is None:
            future._blocked = [slot]
        else:
            future._blocked.append(slot)
        if future.settled:  # looked at after the slot can be seen: one of both frees it
            self.leave(slot)

    def leave(self, slot: _Slot) -> None:
        """Free a slot; a second call does nothing."""
        with self._changed:
            if self._slots.pop(slot, self) is not self:
                self._changed.notify()
        for waiter in tuple(self._blocked):
            waiter.wake()

    def _await_answer(self, oldest: RemoteFuture[Any] | None) -> None:
        carrier: Carrier | None = None if oldest is None else oldest._carrier
        if oldest is None or carrier is None:
            with self._changed:
                self._changed.wait_for(lambda: self.settled, _MOMENT_S)
        elif isinstance(carrier, HeldCalls):
            carrier.wait_for(oldest, None)
        else:
            carrier.wait_for(self, None)  # type: ignore[arg-type]  # all that is asked of a future there, it answers


class BoundedRef(ActorRef):
    """A reference with a limit on unanswered calls; reading and writing attributes is not limited.

    Args:
        limit: How many calls may be unanswered.
        waits: Whether a call above the limit waits; if not, it raises `TooManyPendingCalls`.
        others: See `ActorRef`.
    """

    def __init__(self, *arguments: Any, limit: int, waits: bool, **others: Any) -> None:
        super().__init__(*arguments, **others)
        if isinstance(self.place, ActorPlace):
            self.place = self.place._replace(limit=limit, waits=waits)  # handles take it along
        self._slots_of_actor = Slots(limit)
        self._waits = waits

    def submit(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RemoteFuture[Any]:
        """See `ActorRef.submit`.

        Raises:
            TooManyPendingCalls: The limit is reached, and calls are not to wait.
            SerializationError: An argument cannot be sent.
        """
        slot = self._slots_of_actor.enter(wait=lambda: self._waits)
        try:
            future = super().submit(name, args, kwargs)
        except BaseException:
            self._slots_of_actor.leave(slot)
            raise
        self._slots_of_actor.until(slot, future)
        return future


def kind_of_reference(options: ActorOptions | None, place: object = None) -> Callable[..., ActorRef]:
    """Return the kind of reference to make: one with a limit if the options or the handle say so."""
    if options is not None and options.max_pending_calls is not None:
        return functools.partial(BoundedRef, limit=options.max_pending_calls, waits=options.when_full == "wait")
    if options is None and isinstance(place, ActorPlace) and place.limit:
        return functools.partial(BoundedRef, limit=place.limit, waits=place.waits)
    return ActorRef
