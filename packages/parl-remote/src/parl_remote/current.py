"""The one place that knows which cluster this process is connected to.

`parl_remote.connect` opens the connection, `disconnect` or the end of the program closes it. Everything else gets the
client passed in.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from parl_remote.errors import NotConnected

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from parl_remote.actor_ref import ActorRef
    from parl_remote.class_spec import ClassSpec
    from parl_remote.options import ActorOptions

__all__ = ["ActorMaker", "become_actor", "clear", "client", "install", "local_objects", "objects_are_local", "peek"]


class ActorMaker(Protocol):
    """Where actors are made: a cluster, or this process."""

    @property
    def address(self) -> str:
        """What `connect` was asked for, in its normal form."""

    def create(
        self, spec: ClassSpec, options: ActorOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ActorRef:
        """Make an actor and run its constructor."""

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
        self.local = threading.local()


_state = _State()


def client() -> ActorMaker:
    """The connection.

    Raises:
        NotConnected: There is none.
    """
    if _state.client is None:
        raise NotConnected("call parl.connect() before making objects of remote classes")
    return _state.client


def peek() -> ActorMaker | None:
    """The connection if there is one."""
    return _state.client


def install(new: ActorMaker) -> None:
    """Make `new` the connection."""
    _state.client = new


def clear() -> ActorMaker | None:
    """Forget the connection and give it back to be closed."""
    old, _state.client = _state.client, None
    return old


def become_actor() -> None:
    """From now on objects of remote classes are ordinary ones in this process."""
    _state.client = None
    _state.inside_actor = True


@contextlib.contextmanager
def local_objects() -> Iterator[None]:
    """Within this block objects of remote classes are ordinary ones in this thread."""
    before = getattr(_state.local, "active", False)
    _state.local.active = True
    try:
        yield
    finally:
        _state.local.active = before


def objects_are_local() -> bool:
    """Whether objects of remote classes are ordinary ones here and now."""
    return _state.inside_actor or getattr(_state.local, "active", False)
