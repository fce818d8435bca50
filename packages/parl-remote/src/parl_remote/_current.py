"""This process's current connection to a cluster.

`parl_remote.connect` opens it; `disconnect` or the end of the program closes it. An actor's process connects to its own
cluster when it first needs a connection, and so does a child process of a program or an actor. A forked child has the
function that connects it in its memory; a child that `multiprocessing` starts in another way gets it pickled, among the
settings that a process passes to its children. All other code gets the client as an argument.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import types
import weakref
from collections.abc import Iterator
from multiprocessing import process
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, NoReturn, Protocol

from parl_remote._data import serialize
from parl_remote.errors import NotConnected, RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from parl_remote._data.class_spec import ClassSpec, ShippedSpec
    from parl_remote._options import ActorOptions
    from parl_remote._program.actor_ref import ActorRef

__all__ = [
    "HERE",
    "ActorMaker",
    "FoundActor",
    "acting",
    "become_actor",
    "clear",
    "client",
    "client_if_any",
    "connect_when_needed",
    "construct_here",
    "end_actor",
    "free_slots",
    "give_back",
    "inherit",
    "inherited",
    "inside_actor",
    "install",
    "leave_to_parent",
    "local_objects",
    "maker_of",
    "options",
    "peek",
    "reach",
    "refuse_at_import",
    "set_child_connector",
    "unreached",
    "when_ending",
    "when_full",
]


class FoundActor(NamedTuple):
    """The result of a look-up by name.

    Attributes:
        place: The actor's address, for `borrow`.
        shipped: Its class.
        wait: Whether its methods wait for their results.
    """

    place: object
    shipped: ShippedSpec
    wait: bool


class ActorMaker(Protocol):
    """A place where actors are made: a cluster, or this process."""

    @property
    def address(self) -> str:
        """The address given to `connect`, in its normal form."""

    @property
    def is_gone(self) -> bool:
        """Return whether the cluster has ended, so that a new connection is needed."""

    def create(
        self,
        spec: ClassSpec,
        options: ActorOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> ActorRef:
        """Make an actor and run its constructor; if it waits for resources, call `free_slots`."""

    def start_reading(self) -> None:
        """Start the thread that reads answers for futures with callbacks, if this kind of connection has one.

        Raises:
            RuntimeError: No thread can be started.
        """

    def borrow(self, place: Any, spec: ClassSpec, attributes: tuple[str, ...] | None) -> ActorRef:
        """Return the reference to an actor of a received handle; see `proxy`.

        Args:
            place: The `place` of the sender's reference.
            spec: Its class.
            attributes: Names of its attributes; None if they are not known.
        """

    def find(self, name: str, timeout_s: float | None) -> FoundActor:
        """Return the actor with a name; see `parl_remote.get_actor`."""

    def kill(self, name: str) -> None:
        """End the actor with a name; see `parl_remote.kill`."""

    @property
    def actor_num(self) -> int:
        """The number of actors that this program has now."""

    def close(self) -> None:
        """End all actors of this client, and close the connection."""

    def abandon(self) -> None:
        """Drop the connection without sending anything, in the child of a fork."""


class _State:
    """The connection state of this process."""

    def __init__(self) -> None:
        self.client: ActorMaker | None = None
        self.options: Mapping[str, object] = {}
        self.inside_actor = False
        self.make: Callable[[], ActorMaker] | None = None
        self.in_children: Callable[[], ActorMaker] | None = None
        self.report_end: Callable[[], None] | None = None
        self.free_slots: Callable[[ActorMaker, str], None] | None = None
        self.give_back: Callable[[str], None] | None = None
        self.making = threading.RLock()  # a signal handler may use actors meanwhile
        self.inherited: weakref.WeakValueDictionary[str, ActorRef] = weakref.WeakValueDictionary()
        self.local = threading.local()


_state = _State()


HERE: Final = "here"


def maker_of(cls: type) -> ActorMaker | Literal["here"] | None:
    """Return the maker of the next object of a remote class: `HERE`, a connection, or None without a connection."""
    local = _state.local
    if getattr(local, "active", False) or (_state.inside_actor and _state.make is None):
        return HERE
    if getattr(local, "constructed", None) is cls:  # the object that `construct_here` is making; reported once
        local.constructed = None
        return HERE
    return client_if_any()


def client() -> ActorMaker:
    """Return the connection; make it if this process is an actor or the child of a connected one.

    Raises:
        NotConnected: There is no connection.
    """
    found = client_if_any()
    if found is None:
        raise NotConnected("call parl.connect() before making or calling objects of remote classes")
    return found


def client_if_any() -> ActorMaker | None:
    """Return the connection, as `client` does; None if there is none."""
    if _state.client is None:
        connector = _child_connector()
        if _state.make is None and connector is None:
            return None
        with _state.making:
            if _state.client is None:
                make = _state.make or pickle.loads(connector or b"")
                _state.client = make()
    return _state.client


_OURS = "parl_remote"


def set_child_connector(make: Callable[[], ActorMaker] | None) -> None:
    """Set the function, which is pickled, by which children of `multiprocessing` connect; None removes it."""
    if make is not None:
        _settings()[_OURS] = pickle.dumps(make)
    else:
        _settings().pop(_OURS, None)


def _child_connector() -> bytes | None:
    """Return the pickled function given to `set_child_connector` in this process or in the one that started it."""
    return _settings().get(_OURS)


def _settings() -> dict[str, Any]:
    """Return the settings of this process; each `Process` that is made in it gets a copy."""
    found: dict[str, Any] = getattr(process.current_process(), "_config", {})
    return found


def refuse_at_import(does: str, module: str | None = None) -> None:
    """Refuse to make a process while an actor imports a module that the new process would import as well.

    Args:
        does: The action of the module, for the message.
        module: The module that the new process imports; None for any module.

    Raises:
        RemoteError: This process is an actor and is importing the module.
    """
    loading = serialize.modules_being_loaded() if _state.inside_actor else []
    if module in loading or (loading and module is None):
        raise RemoteError(
            f"module {loading[0]} {does} when it is imported. Actors import it as well, so this would never end: put "
            "the code under if __name__ == '__main__' or into a function"
        )


def when_full(free_slots: Callable[[ActorMaker, str], None], give_back: Callable[[str], None]) -> None:
    """Register the functions of `free_slots` and `give_back`."""
    _state.free_slots = free_slots
    _state.give_back = give_back


def free_slots(client: ActorMaker, class_name: str) -> None:
    """End a connection's idle workers of functions, because an actor of a class waits for resources."""
    if _state.free_slots is not None:
        _state.free_slots(client, class_name)


def give_back(lease_id: str) -> None:
    """Give back the lease of a worker of functions soon, for another client that waits for it; does not block."""
    if _state.give_back is not None:
        _state.give_back(lease_id)


def peek() -> ActorMaker | None:
    """Return the connection that has been made; None also if `client` would make one."""
    return _state.client


def install(
    new: ActorMaker,
    in_children: Callable[[], ActorMaker] | None = None,
    options: Mapping[str, object] = types.MappingProxyType({}),
) -> None:
    """Set the connection.

    Args:
        new: The connection.
        in_children: Makes the connection of a child process when the child first needs one.
        options: The options of `connect`.
    """
    _state.client = new
    _state.options = options
    _state.in_children = in_children
    set_child_connector(in_children)


def options() -> Mapping[str, object]:
    """Return the known options of the connection."""
    return _state.options


def clear() -> ActorMaker | None:
    """Forget the connection and return it, so that the caller can close it."""
    old, _state.client = _state.client, None
    _state.in_children = None
    set_child_connector(None)
    if not _state.inside_actor:
        _state.make = None
    return old


def leave_to_parent() -> ActorMaker | None:
    """Forget the parent's connection in a forked child and return it; the child connects when it needs to."""
    old, _state.client = _state.client, None
    _state.making = threading.RLock()  # the thread that held it was not copied
    if not _state.inside_actor:
        _state.make = _state.in_children
    return old


def inherit(refs: Mapping[str, ActorRef]) -> None:
    """Keep, weakly, the actor references that this process got before it had a connection, by their leases."""
    _state.inherited.update(refs)


def unreached(lease_id: str) -> ActorRef | None:
    """Return the reference that was given to `inherit` and is not connected yet; None if there is none."""
    return _state.inherited.get(lease_id)


def reach(ref: ActorRef) -> None:
    """Connect a reference that this process got before it had a connection, through its own connection."""
    client().borrow(ref.place, ref.spec, tuple(ref.attributes.names))


def inherited(lease_id: str) -> ActorRef | None:
    """Return and forget the reference that was given to `inherit` for the actor on a lease; None if there is none."""
    return _state.inherited.pop(lease_id, None)


def become_actor() -> None:
    """Mark this process as an actor; until its cluster is known, remote classes make ordinary objects in it."""
    _state.client = None
    _state.inside_actor = True


def when_ending(report: Callable[[], None]) -> None:
    """Register `report`, which reports the regular end of this actor's process."""
    _state.report_end = report


def end_actor() -> NoReturn:
    """End this actor's process because it is no longer needed; its end is not a loss."""
    if _state.report_end is not None:
        _state.report_end()
    os._exit(0)


def connect_when_needed(make: Callable[[], ActorMaker]) -> None:
    """Register `make` to make the connection on the first call of `client`."""
    _state.make = make


@contextlib.contextmanager
def acting() -> Iterator[None]:
    """Mark this thread, within the block, as running the code of an actor of this process."""
    before = getattr(_state.local, "acting", False)
    _state.local.acting = True
    try:
        yield
    finally:
        _state.local.acting = before


def inside_actor() -> bool:
    """Return whether the running code belongs to an actor."""
    return _state.inside_actor or getattr(_state.local, "acting", False)


def construct_here(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Construct this actor's own object; remote objects that its constructor makes become separate actors."""
    before = getattr(_state.local, "constructed", None)
    _state.local.constructed = cls
    try:
        return cls(*args, **kwargs)
    finally:
        _state.local.constructed = before


@contextlib.contextmanager
def local_objects() -> Iterator[None]:
    """Make remote classes create ordinary objects in this thread within the block."""
    before = getattr(_state.local, "active", False)
    _state.local.active = True
    try:
        yield
    finally:
        _state.local.active = before
