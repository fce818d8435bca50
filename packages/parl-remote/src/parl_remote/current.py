"""The one place that knows which cluster this process is connected to.

`parl_remote.connect` opens the connection, `disconnect` or the end of the program closes it. An actor's process is
connected to the cluster that it belongs to, when it first needs that. Everything else gets the client passed in.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from parl_remote.errors import NotConnected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from parl_remote.data.class_spec import ClassSpec, ShippedSpec
    from parl_remote.options import ActorOptions
    from parl_remote.program.actor_ref import ActorRef

__all__ = [
    "HERE",
    "ActorMaker",
    "FoundActor",
    "acting",
    "become_actor",
    "clear",
    "client",
    "connect_when_needed",
    "construct_here",
    "inside_actor",
    "install",
    "local_objects",
    "maker_of",
    "peek",
]


class FoundActor(NamedTuple):
    """What a name leads to.

    Attributes:
        place: Where the actor is, for `borrow`.
        shipped: Its class.
        wait: What methods do.
    """

    place: object
    shipped: ShippedSpec
    wait: bool


class ActorMaker(Protocol):
    """Where actors are made: a cluster, or this process."""

    @property
    def address(self) -> str:
        """What `connect` was asked for, in its normal form."""

    def create(
        self, spec: ClassSpec, options: ActorOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ActorRef:
        """Make an actor and run its constructor."""

    def borrow(self, place: Any, spec: ClassSpec, attributes: tuple[str, ...] | None) -> ActorRef:
        """Return the reference to an actor that somebody else has made, or this program before; see `proxy`.

        Args:
            place: What that one's reference has as its `place`.
            spec: Its class.
            attributes: Names of its attributes as far as they are known; None if they are not.
        """

    def find(self, name: str, timeout_s: float | None) -> FoundActor:
        """Return the actor that has a name; see `connecting.get_actor`."""

    def kill(self, name: str) -> None:
        """End the actor that has a name; see `connecting.kill`."""

    @property
    def actor_num(self) -> int:
        """How many actors this program has now."""

    def close(self) -> None:
        """End all actors of this client and the connection."""

    def abandon(self) -> None:
        """Let go of the connection without a word, in the child of a fork."""


class _State:
    """What this process knows."""

    def __init__(self) -> None:
        self.client: ActorMaker | None = None
        self.inside_actor = False
        self.make: Callable[[], ActorMaker] | None = None
        self.making = threading.Lock()
        self.local = threading.local()


_state = _State()


HERE: Final = "here"


def maker_of(cls: type) -> ActorMaker | Literal["here"] | None:
    """Return where the next object of a remote class is made: `HERE`, by a connection, or nowhere (None)."""
    local = _state.local
    if getattr(local, "active", False) or (_state.inside_actor and _state.make is None):
        return HERE
    if getattr(local, "constructed", None) is cls:  # the object that `construct_here` is making; said once
        local.constructed = None
        return HERE
    return client() if _state.client is not None or _state.make is not None else None


def client() -> ActorMaker:
    """Return the connection.

    Raises:
        NotConnected: There is none.
    """
    if _state.client is None:
        if _state.make is None:
            raise NotConnected("call parl.connect() before making objects of remote classes")
        with _state.making:
            if _state.client is None:
                _state.client = _state.make()
    return _state.client


def peek() -> ActorMaker | None:
    """Return the connection if there is one."""
    return _state.client


def install(new: ActorMaker) -> None:
    """Make `new` the connection."""
    _state.client = new


def clear() -> ActorMaker | None:
    """Forget the connection and give it back to be closed."""
    old, _state.client = _state.client, None
    return old


def become_actor() -> None:
    """This process is an actor; until it knows its cluster, objects of remote classes are ordinary ones in it."""
    _state.client = None
    _state.inside_actor = True


def connect_when_needed(make: Callable[[], ActorMaker]) -> None:
    """Have the connection made by `make` when `client` is called for the first time."""
    _state.make = make


@contextlib.contextmanager
def acting() -> Iterator[None]:
    """Within this block this thread runs the code of an actor that lives in this process."""
    before = getattr(_state.local, "acting", False)
    _state.local.acting = True
    try:
        yield
    finally:
        _state.local.acting = before


def inside_actor() -> bool:
    """Return whether the code that runs is that of an actor."""
    return _state.inside_actor or getattr(_state.local, "acting", False)


def construct_here(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Make the object that this actor is; remote objects that its constructor makes become actors of their own."""
    before = getattr(_state.local, "constructed", None)
    _state.local.constructed = cls
    try:
        return cls(*args, **kwargs)
    finally:
        _state.local.constructed = before


@contextlib.contextmanager
def local_objects() -> Iterator[None]:
    """Within this block objects of remote classes are ordinary ones in this thread."""
    before = getattr(_state.local, "active", False)
    _state.local.active = True
    try:
        yield
    finally:
        _state.local.active = before
