"""A reference to one actor: everything that a proxy, a future and a bound method share.

It is what keeps the actor alive: once no proxy and no outstanding future has it any more, the actor finishes what was
sent to it, ends, and its room is free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from parl_remote import serialize
from parl_remote.call_messages import BY_NAME, Flag, Kind
from parl_remote.class_spec import ClassSpec
from parl_remote.future import RemoteFuture
from parl_remote.transport import Buffer

__all__ = ["ActorRef", "AttributeNames", "CallPath"]

_CALL = int(Kind.CALL)
_KEYWORDS = int(Flag.KEYWORDS)


class CallPath(Protocol):
    """How messages get to an actor: a connection, or a host within this process."""

    def submit(
        self, kind: int, flags: int, index: int, payload: Sequence[Buffer], method: str, owner: object
    ) -> RemoteFuture[Any]:
        """Send a message that will be answered."""


class ActorRef:
    """One actor, as this process sees it.

    Args:
        spec: Its class.
        path: The way to it.
        let_go: Called once when nobody needs the actor any more; may run in any thread at any time.
        destroy: Ends the actor at once.
        attributes: Names of its instance attributes; `set_names` keeps them up to date.
    """

    def __init__(
        self,
        spec: ClassSpec,
        path: CallPath,
        *,
        let_go: Callable[[], None],
        destroy: Callable[[], None],
        attributes: AttributeNames,
    ) -> None:
        self.spec = spec
        self.attributes = attributes
        self._path = path
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
            payload = serialize.dumps_arguments(
                (name, (args, kwargs) if kwargs else args), {}, f"{spec.name}.{name}", list
            )
        elif args or kwargs:
            payload = serialize.dumps_arguments(args, kwargs, f"{spec.name}.{name}", spec.parameters(name))
        else:
            return self._path.submit(_CALL, 0, index, (), name, self)
        return self._path.submit(_CALL, _KEYWORDS if kwargs else 0, index, payload, name, self)

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
        payload = serialize.dumps_arguments((name, value), {}, f"set {self.spec.name}.{name}", lambda: ["name", name])
        self._path.submit(Kind.SET, 0, 0, payload, f"set {name}", self).result()

    def destroy(self) -> None:
        """End the actor at once, whatever it does."""
        self._destroy()


class AttributeNames:
    """The names of an actor's instance attributes, as its last reply told them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.names: frozenset[str] = frozenset()
        self.version = 0

    def set(self, names: tuple[str, ...]) -> None:
        """Replace them; any thread."""
        with self._lock:
            self.names = frozenset(names)
            self.version += 1

    def __contains__(self, name: str) -> bool:
        return name in self.names
