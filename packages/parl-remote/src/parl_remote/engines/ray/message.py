"""What goes through Ray: the frames of a call or of its answer, and the handles of actors that are in them.

Large frames are buffers of their own for Ray, which shares them on one host; they are copied once on arrival, because
who receives an array may write into it, as everywhere else. Handles travel beside the frames and not within, so that
Ray knows of them and keeps their actors alive.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from parl_remote.memory import allocate
from parl_remote.transport import Buffer

__all__ = ["Message", "RayPlace", "actors_of"]

_LARGE = 8192  # what `serialize` keeps out of pickles is at least this long


class RayPlace:
    """Where an actor is, for all who are connected to its cluster.

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
    """One message.

    Attributes:
        frames: As `call_messages.pack` makes them.
        actors: Ray's handles of the actors whose handles are in the frames, by their ids.
    """

    frames: tuple[Buffer, ...]
    actors: Mapping[str, Any]

    @classmethod
    def of(cls, frames: Sequence[Buffer], refs: Iterable[object] = ()) -> Message:
        """Make one.

        Args:
            frames: The frames.
            refs: What `luggage.take` gave when they were pickled.
        """
        return cls(tuple(frames), actors_of(refs))

    def opened(self) -> list[memoryview]:
        """The frames in memory of our own."""
        return [_own(frame) for frame in self.frames]

    def __reduce__(self) -> tuple[Any, ...]:
        frames = tuple(pickle.PickleBuffer(frame) if len(frame) >= _LARGE else bytes(frame) for frame in self.frames)
        return Message, (frames, dict(self.actors))


def actors_of(refs: Iterable[object]) -> dict[str, Any]:
    """Ray's handles of those of some references that are to actors."""
    places = (getattr(ref, "place", None) for ref in refs)
    return {place.actor_id: place.handle for place in places if isinstance(place, RayPlace)}


def _own(frame: Any) -> memoryview:
    view = memoryview(frame).cast("B")
    if len(view) < _LARGE or not view.readonly:
        return view
    mine = memoryview(allocate(len(view)))
    mine[:] = view
    return mine
