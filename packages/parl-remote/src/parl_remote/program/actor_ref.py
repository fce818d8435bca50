"""A reference to one actor: everything that a proxy, a future and a bound method share.

It is what keeps the actor alive: once no process has a proxy or an outstanding future of it any more, the actor
finishes what was sent to it, ends, and its room is free. A process has one reference to an actor, however many proxies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from parl_remote.data import serialize
from parl_remote.future import FutureTravels, RemoteFuture
from parl_remote.links.call_messages import BY_NAME, Flag, Kind
from parl_remote.program.held_calls import HeldCalls
from parl_remote.shipping.class_spec import ClassSpec
from parl_remote.transport import Buffer

__all__ = ["ActorRef", "AttributeNames", "CallPath", "settled"]

_CALL = int(Kind.CALL)
_KEYWORDS = int(Flag.KEYWORDS)


class CallPath(Protocol):
    """How messages get to an actor: a connection, or a host within this process."""

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
        """Send a message that will be answered; `future` is settled with the answer if it is given."""

    def names_changed(self) -> bool:
        """Whether the actor has said that it has other attributes than were told here; does not wait."""


class ActorRef:
    """One actor, as this process sees it.

    Args:
        spec: Its class.
        path: The way to it.
        let_go: Called once when nobody needs the actor any more; may run in any thread at any time.
        destroy: Ends the actor at once.
        attributes: Names of its instance attributes; `AttributeNames.set` keeps them up to date.
        place: What other processes find the actor by; anything that the client's `borrow` takes.
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
                    args, kwargs, f"{spec.name}.{name}", spec.parameters(name), references
                )
            except FutureTravels:
                return self._hold_back(name, args, kwargs)
        else:
            return self._path.submit(_CALL, 0, index, (), name, self)
        owner = (self, *references) if references else self
        return self._path.submit(_CALL, _KEYWORDS if kwargs else 0, index, payload, name, owner)

    def _submit_by_name(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RemoteFuture[Any]:
        """Send a call of something that the class does not have, but perhaps the object."""
        try:
            flags, index, payload, references = self._payload(name, args, kwargs)
        except FutureTravels:
            return self._hold_back(name, args, kwargs)
        return self._path.submit(_CALL, flags, index, payload, name, (self, *references))

    def _payload(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[int, int, Sequence[Buffer], list[object]]:
        """Return flags, index and payload of a call, and what the references contained in it lead to."""
        references: list[object] = []
        call, flags = f"{self.spec.name}.{name}", _KEYWORDS if kwargs else 0
        index = self.spec.methods.get(name, BY_NAME)
        if index == BY_NAME:
            args, kwargs = serialize.with_stand_ins(args, kwargs)
            packed = (name, (args, kwargs) if kwargs else args)
            return flags, index, serialize.dumps_arguments(packed, {}, call, list, references), references
        if not args and not kwargs:
            return 0, index, (), references
        payload = serialize.dumps_arguments(args, kwargs, call, self.spec.parameters(name), references)
        return flags, index, payload, references

    def _hold_back(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RemoteFuture[Any]:
        """Send a call once the futures among its arguments are settled, and later calls after it."""
        futures = [value for value in (*args, *kwargs.values()) if isinstance(value, RemoteFuture)]
        if not futures:
            call = f"{self.spec.name}.{name}"
            raise serialize.refusal(_NESTED, args, kwargs, call, self.spec.parameters(name))

        def send(path: CallPath, future: RemoteFuture[Any]) -> None:
            flags, index, payload, references = self._payload(name, *settled(args, kwargs))
            path.submit(_CALL, flags, index, payload, name, (self, *references), future)

        with self._holding:
            if not isinstance(self._path, HeldCalls):
                self._path = HeldCalls(self._path, self._resume)
            return self._path.hold(name, futures, send, self)

    def _resume(self, held: HeldCalls) -> None:
        """Nothing is held back any more."""
        with self._holding:
            if self._path is held and held.is_empty:
                self._path = held.path

    def call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Send a call and wait for its result."""
        return self.submit(name, args, kwargs).result()

    def get(self, name: str) -> Any:
        """Read an attribute; `answers.STAYS` if it is a method."""
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
        """Ask for the names of the actor's attributes if they have changed; whether they were asked for."""
        if self.attributes.known and not self._path.names_changed():
            return False
        names = self._path.submit(Kind.NAMES, 0, 0, (), "the names of its attributes", self).result()
        self.attributes.set(names)
        return True

    def destroy(self) -> None:
        """End the actor at once, whatever it does."""
        self._destroy()


_NESTED = FutureTravels("a future cannot be sent inside other things: pass it alone, or send its result()")


def settled(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with the results of futures in their place, waited for; for what waits anyway."""
    return tuple(_value(one) for one in args), {name: _value(one) for name, one in kwargs.items()}


def _value(argument: Any) -> Any:
    return argument.result() if isinstance(argument, RemoteFuture) else argument


class AttributeNames:
    """The names of an actor's instance attributes, as its last reply told them.

    Args:
        names: What is known of them so far; None if nothing is.
        certain: Whether the actor itself has said so, and would tell of a change.
    """

    def __init__(self, names: tuple[str, ...] | None = (), *, certain: bool = True) -> None:
        self._lock = threading.Lock()
        self.known = certain
        self.names: frozenset[str] = frozenset(names or ())
        self.version = 0

    def set(self, names: tuple[str, ...]) -> None:
        """Replace them; any thread."""
        with self._lock:
            self.names = frozenset(names)
            self.known = True
            self.version += 1

    def __contains__(self, name: str) -> bool:
        return name in self.names
