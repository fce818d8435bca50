"""A reference to one actor: everything that a proxy, a future and a bound method share.

    submit --arguments pickled--> Call --outbox--> the actor

The reference keeps the actor alive: once no process has a proxy or a pending future of the actor, the actor finishes
the calls that were sent to it, ends, and frees its resources. A process has one reference per actor, whatever the
number of its proxies.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from parl_remote._data import serialize
from parl_remote._data.calls import Call, FuturePlaceholder
from parl_remote._data.class_spec import ClassSpec
from parl_remote._data.serialize import FuturePickled
from parl_remote._future import RemoteFuture
from parl_remote._links.call_messages import BY_NAME, Flag, Kind
from parl_remote._options import ActorOptions
from parl_remote._program.outbox import Outbox
from parl_remote._system.interrupts import finalizer, uninterrupted
from parl_remote._transport import Buffer, copied

__all__ = ["ActorPlace", "ActorRef", "AttributeNames", "FrozenArguments", "settled", "unreached_reference"]


_CALL = int(Kind.CALL)
_KEYWORDS = int(Flag.KEYWORDS)


class ActorPlace(NamedTuple):
    """The address of an actor, valid for every member of its cluster.

    Attributes:
        lease_id: Its lease.
        node_id: The worker that it runs on.
        node_addresses: "host:port" of the worker, as peers on other hosts reach it.
        socket_dir: The worker's private directory of unix sockets, usable on its own host.
        host_id: The worker's host.
        may_return: Whether the actor may be restarted when it is lost, see `restarts`.
        limit: The maximum number of unanswered calls of each process; 0 for no limit.
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


class FrozenArguments(NamedTuple):
    """Arguments of a call that is made later, serialized now; they can be sent several times, to any actor.

    Attributes:
        payload: Their frames, with buffers that nothing else can write to; none if there are no arguments.
        has_keywords: Whether there are keyword arguments.
        referents: The referents of the references among them.
        futures: The futures among them, by the number in `FuturePlaceholder`.
    """

    payload: Sequence[Buffer] = ()
    has_keywords: bool = False
    referents: Sequence[object] = ()
    futures: Sequence[RemoteFuture[Any]] = ()

    @classmethod
    def of(
        cls, args: tuple[Any, ...], kwargs: Mapping[str, Any], call: str, names: Callable[[], list[str]]
    ) -> FrozenArguments:
        """Serialize arguments; `call` and `names` are those of `serialize.dumps_arguments`.

        Raises:
            SerializationError: An argument cannot be sent.
        """
        if not args and not kwargs:
            return cls()
        futures: list[RemoteFuture[Any]] = []
        referents: list[object] = []
        try:
            data, *buffers = serialize.dumps_arguments(args, kwargs, call, names, referents)
        except FuturePickled:
            args, kwargs, futures = _without_futures(args, kwargs)
            referents.clear()
            try:
                data, *buffers = serialize.dumps_arguments(args, kwargs, call, names, referents)
            except FuturePickled:
                raise serialize.refusal(_NESTED, args, kwargs, call, names) from None
        return cls([data, *map(copied, buffers)], bool(kwargs), referents, futures)


class ActorRef:
    """A process's single reference to one actor.

    Args:
        spec: Its class.
        outbox: The way of calls to it.
        let_go: Called once when no proxy or future needs the actor any more; may run in any thread at any time.
        destroy: Ends the actor at once.
        attributes: Names of its instance attributes; `AttributeNames.set` keeps them up to date.
        place: The address by which other processes find the actor; anything that the client's `borrow` takes.
        options: The options of the actor; None for a handle, whose `place` has what is needed.
    """

    def __init__(
        self,
        spec: ClassSpec,
        outbox: Outbox,
        *,
        let_go: Callable[[], None],
        destroy: Callable[[], None],
        attributes: AttributeNames,
        place: object = None,
        options: ActorOptions | None = None,
    ) -> None:
        self.place = place
        self.spec = spec
        self.attributes = attributes
        self.outbox = outbox
        self._finalize = finalizer(let_go)
        self._destroy = destroy
        if options is not None and options.max_pending_calls is not None:
            self.limit(options)
        elif isinstance(place, ActorPlace) and place.limit:
            outbox.limit(place.limit, waits=place.waits)

    __del__ = property(operator.attrgetter("_finalize"))  # no step of Python before it

    def become(self, other: ActorRef) -> ActorRef:
        """Take the place of a new reference to the same actor; return this one."""
        self.place, self.attributes = other.place, other.attributes
        self._finalize, other._finalize = other._finalize, _nothing
        self._destroy = other._destroy
        self.outbox = other.outbox  # last: another thread may use it at once
        return self

    def wait_for_use(self, reach: Callable[[ActorRef], None]) -> None:
        """Drop the connection until the reference is used here; in a forked child, leave it to the parent.

        Args:
            reach: Connects the reference here; called on its first use.
        """

        def destroy() -> None:
            reach(self)
            self._destroy()

        self._finalize, self._destroy = _nothing, destroy
        self.outbox = _UnreachedOutbox(self, reach)

    def limit(self, options: ActorOptions) -> None:
        """Limit the unanswered calls as in the options; handles that are sent carry the limit."""
        limit, waits = options.max_pending_calls, options.when_full == "wait"
        self.outbox.limit(limit, waits=waits)
        if isinstance(self.place, ActorPlace):
            self.place = self.place._replace(limit=limit or 0, waits=waits)

    def submit(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RemoteFuture[Any]:
        """Send a call.

        Raises:
            SerializationError: An argument cannot be sent.
            TooManyPendingCalls: The limit is reached, and `when_full` is "raise".
        """
        with uninterrupted:
            return self._sent(name, args, kwargs)

    def _sent(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RemoteFuture[Any]:
        spec = self.spec
        index = spec.methods.get(name, BY_NAME)
        if index == BY_NAME or args or kwargs:
            references: list[object] = []
            try:
                if index == BY_NAME:
                    payload = self._named(name, args, kwargs, references)
                else:
                    payload = serialize.dumps_arguments(
                        args, kwargs, f"{spec.name}.{name}", partial(spec.parameters, name), references
                    )
            except FuturePickled as error:
                return self._submit_with_futures(name, index, args, kwargs, error)
            owner = (self, *references) if references else self
            return self.outbox.submit(Call(_CALL, _KEYWORDS if kwargs else 0, index, payload, name, owner))
        return self.outbox.submit(Call(_CALL, 0, index, (), name, self))

    def _named(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], references: list[object]
    ) -> Sequence[Buffer]:
        """Return the payload of a call by name, for an attribute that the class lacks but the object may have."""
        args, kwargs = serialize.with_stand_ins(args, kwargs)
        packed = (name, (args, kwargs) if kwargs else args)
        return serialize.dumps_arguments(packed, {}, f"{self.spec.name}.{name}", list, references)

    def _submit_with_futures(
        self, name: str, index: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: FuturePickled
    ) -> RemoteFuture[Any]:
        """Send a call once the futures among its arguments are settled, and all later calls behind it."""
        call, names = f"{self.spec.name}.{name}", partial(self.spec.parameters, name)
        rest, named, futures = _without_futures(args, kwargs)
        if not futures:
            raise serialize.refusal(error if index == BY_NAME else _NESTED, args, kwargs, call, names)
        references: list[object] = []
        try:
            if index == BY_NAME:
                payload = self._named(name, rest, named, references)
            else:
                payload = serialize.dumps_arguments(rest, named, call, names, references)
        except FuturePickled:
            raise serialize.refusal(_NESTED, rest, named, call, names) from None
        flags = _KEYWORDS if kwargs else 0
        return self.outbox.submit(Call(_CALL, flags, index, payload, name, (self, *references)), futures)

    def begin(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RemoteFuture[Any]:
        """Send a call whose answer is read even if no thread waits for it; raise what `submit` raises."""
        future = self.submit(name, args, kwargs)
        self.outbox.read_unawaited()
        return future

    def begin_frozen(self, name: str, arguments: FrozenArguments) -> RemoteFuture[Any]:
        """Send a call as `begin` does, with arguments that were serialized earlier."""
        payload, has_keywords, referents, futures = arguments
        index = self.spec.methods.get(name, BY_NAME)
        with uninterrupted:
            if index == BY_NAME:
                args = serialize.Pickled(payload, referents) if payload else ()
                payload = serialize.dumps((name, args))
            call = Call(_CALL, _KEYWORDS if has_keywords else 0, index, payload, name, (self, *referents), True)
            future = self.outbox.submit(call, futures)
            self.outbox.read_unawaited()
        return future

    def call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Send a call and wait for its result; the call is cancelled if a signal's handler ends the wait."""
        __tracebackhide__ = True  # as in `RemoteFuture.result`
        with uninterrupted:
            future = self._sent(name, args, kwargs)
            try:
                future._wait_until(None)
            except BaseException:
                future.cancel()
                raise
            return future.result()

    def get(self, name: str) -> Any:
        """Return an attribute's value, or `answers.STAYS` if it is a method."""
        return self._ask(Call(Kind.GET, 0, 0, serialize.dumps(name), f"get {name}", self))

    def _ask(self, call: Call) -> Any:
        with uninterrupted:
            return self.outbox.submit(call).result()

    @uninterrupted
    def set(self, name: str, value: Any) -> None:
        """Write an attribute.

        Raises:
            SerializationError: The value cannot be sent.
        """
        value = _value(value)
        references: list[object] = []
        call = f"set {self.spec.name}.{name}"
        payload = serialize.dumps_arguments((name, value), {}, call, lambda: ["name", name], references)
        self._ask(Call(Kind.SET, 0, 0, payload, f"set {name}", (self, *references)))

    def refresh(self) -> None:
        """Fetch the names of the actor's attributes: those that its threads, loop and other callers set included."""
        self.attributes.set(self._ask(Call(Kind.NAMES, 0, 0, (), "the names of its attributes", self)))

    def destroy(self) -> None:
        """End the actor at once, even during a call."""
        self._destroy()


class _UnreachedOutbox(Outbox):
    """The outbox of an actor that this process has not used yet; the first use replaces it."""

    def __init__(self, ref: ActorRef, reach: Callable[[ActorRef], None]) -> None:
        super().__init__(None)
        self._ref = ref
        self._reach = reach

    def submit(self, call: Call, futures: Sequence[RemoteFuture[Any]] = ()) -> RemoteFuture[Any]:
        """Connect to the actor, and send a call through the outbox that replaces this one."""
        self._reach(self._ref)
        return self._ref.outbox.submit(call, futures)


def unreached_reference(
    spec: ClassSpec, place: ActorPlace, attributes: tuple[str, ...], reach: Callable[[ActorRef], None]
) -> ActorRef:
    """Return the reference of a handle received by a process without a connection; see `wait_for_use`."""
    names = AttributeNames(attributes)
    ref = ActorRef(spec, Outbox(None), let_go=_nothing, destroy=_nothing, attributes=names, place=place)
    ref.wait_for_use(reach)
    return ref


def _nothing() -> None:
    """Do nothing."""


def _without_futures(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[RemoteFuture[Any]]]:
    """Return arguments with placeholders for the futures among them, and the futures."""
    futures: list[RemoteFuture[Any]] = []

    def stand_in(value: Any) -> Any:
        if not isinstance(value, RemoteFuture):
            return value
        futures.append(value)
        return FuturePlaceholder(len(futures) - 1)

    return tuple(map(stand_in, args)), {name: stand_in(value) for name, value in kwargs.items()}, futures


_NESTED = FuturePickled("a future cannot be sent inside other things: pass it alone, or send its result()")


def settled(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with futures replaced by their results, waiting for them; for callers that block anyway."""
    if RemoteFuture not in map(type, args) and RemoteFuture not in map(type, kwargs.values()):
        return args, dict(kwargs)
    return tuple(_value(one) for one in args), {name: _value(one) for name, one in kwargs.items()}


def _value(argument: Any) -> Any:
    return argument.result() if isinstance(argument, RemoteFuture) else argument


class AttributeNames:
    """The names of an actor's attributes that this process knows; others may have been added since.

    Args:
        names: The names known so far; None if none are known.
    """

    def __init__(self, names: tuple[str, ...] | None = ()) -> None:
        self.names: frozenset[str] = frozenset(names or ())

    def set(self, names: tuple[str, ...] | None) -> None:
        """Replace the names, None if none are known; callable from any thread."""
        self.names = frozenset(names or ())

    def __contains__(self, name: str) -> bool:
        return name in self.names
