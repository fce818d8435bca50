"""Ray itself: the only import of ray, what its exceptions mean here, and what goes through it.

    one frame    as it is: most calls
    more         a Message: large frames are buffers of their own for Ray, which shares them on one host; they are
                 copied once on arrival, because who receives an array may write into it, as everywhere else

Handles of actors, and values of `put` that the other host cannot see, travel beside the frames and not within, so that
Ray keeps alive what somebody still has.
"""

from __future__ import annotations

import importlib
import pickle
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from parl_remote._death import DeathCause, DeathKind
from parl_remote._links.call_messages import allocate
from parl_remote._object_ref import ObjectRef
from parl_remote._transport import Buffer
from parl_remote.errors import RemoteError

__all__ = ["NAMESPACE", "Message", "RayPlace", "Wire", "cause_of", "extras_of", "opened", "packed", "ray"]


NAMESPACE = "parl"  # of named actors, so that all programs of a cluster find them
_EXIT_CODE = re.compile(r"exit code[: ]+(\d+)")


def ray() -> Any:
    """Return the module ray.

    Raises:
        ImportError: Ray is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ImportError(
            'connecting to Ray needs its package, which is not installed: pip install "parl-remote[ray]"', name="ray"
        ) from error


def cause_of(error: Exception) -> DeathCause | None:
    """Return the cause of an actor's end from Ray's error; None if it did not end."""
    exceptions = ray().exceptions
    text = " ".join(str(error).split())
    if isinstance(error, exceptions.OutOfMemoryError) or "OutOfMemory" in text or "memory monitor" in text:
        return DeathCause(DeathKind.OUT_OF_MEMORY, detail=text)
    if isinstance(error, exceptions.NodeDiedError) or "node has died" in text:
        return DeathCause(DeathKind.NODE_LOST, detail=text)
    if isinstance(error, exceptions.RayActorError | exceptions.WorkerCrashedError | exceptions.OwnerDiedError):
        if "ray.kill" in text:
            return DeathCause(DeathKind.KILLED_BY_USER, detail=text)
        if "owner" in text and "died" in text:
            return DeathCause(DeathKind.CLIENT_GONE, detail=text)
        code = _EXIT_CODE.search(text)
        return DeathCause(DeathKind.EXIT, exit_code=int(code[1]) if code else None, detail=text)
    if isinstance(error, RemoteError) or not isinstance(error, exceptions.RayError):
        raise TypeError(f"Ray does not raise {error!r}")
    return None


_LARGE = 8192  # what `serialize` keeps out of pickles is at least this long


class RayPlace:
    """The address of an actor within its cluster.

    Attributes:
        actor_id: Its id.
        concurrent: Whether it runs several calls at a time.
        handle: Ray's own handle of it, in processes that have one.
    """

    __slots__ = ("actor_id", "concurrent", "handle")

    def __init__(self, actor_id: str, concurrent: bool, handle: Any = None) -> None:
        self.actor_id = actor_id
        self.concurrent = concurrent
        self.handle = handle

    def __reduce__(self) -> tuple[type[RayPlace], tuple[str, bool]]:
        return RayPlace, (self.actor_id, self.concurrent)


class Message(NamedTuple):
    """A message of more than one frame.

    Attributes:
        frames: As `call_messages.pack` makes them.
        actors: Ray's handles of the actors that the frames refer to, by their ids.
        values: Sizes and Ray's references of the values of `put` that the frames refer to, by their ids.
    """

    frames: tuple[Buffer, ...]
    actors: Mapping[str, Any]
    values: Mapping[str, tuple[int, Any]]

    def __reduce__(self) -> tuple[Any, ...]:
        frames = tuple(pickle.PickleBuffer(frame) if len(frame) >= _LARGE else bytes(frame) for frame in self.frames)
        return Message, (frames, dict(self.actors), dict(self.values))


Wire: TypeAlias = Message | bytes
_NOTHING = Message((), {}, {})


def packed(frames: Sequence[Buffer], refs: Iterable[object], store: Callable[[ObjectRef[Any]], Any]) -> Wire:
    """Return the message in the form that is passed to Ray.

    Args:
        frames: The frames.
        refs: The objects that the references contained in them lead to.
        store: Returns Ray's reference to a value of `put`, None if the receiver can map its memory.
    """
    actors, values = {}, {}
    for ref in refs:
        place = getattr(ref, "place", None)
        if isinstance(place, RayPlace):
            actors[place.actor_id] = place.handle
        elif isinstance(ref, ObjectRef) and (stored := store(ref)) is not None:
            values[ref.id] = (ref.nbytes, stored)
    if len(frames) == 1 and not actors and not values:
        return bytes(frames[0])
    return Message(tuple(frames), actors, values)


def opened(wire: Wire) -> list[memoryview]:
    """Return the frames in memory of this process."""
    return [memoryview(wire)] if isinstance(wire, bytes) else [_own(frame) for frame in wire.frames]


def extras_of(wire: Wire) -> Message:
    """Return the handles and values beside the frames."""
    return _NOTHING if isinstance(wire, bytes) else wire


def _own(frame: Any) -> memoryview:
    view = memoryview(frame).cast("B")
    if len(view) < _LARGE or not view.readonly:
        return view
    mine = memoryview(allocate(len(view)))
    mine[:] = view
    return mine
