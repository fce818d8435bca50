"""Between client and worker, on a link of its own: values that `put` has stored, where memory cannot be shared.

The worker holds what it is told to until it is told to let go, or the link ends. Images of values are opaque frames
after the message.
"""

from __future__ import annotations

from dataclasses import dataclass

from parl_remote.messages.base import Message

__all__ = ["FetchObject", "HoldObject", "ObjectContent", "ReleaseObject", "StoreObject"]


@dataclass(frozen=True, slots=True)
class StoreObject(Message):
    """The client brings a value for actors of the worker; the image follows. Answered by Done."""

    request_id: int
    object_id: str


@dataclass(frozen=True, slots=True)
class HoldObject(Message):
    """The client asks the worker to keep a value that a process of its host has; answered by Done.

    Attributes:
        place: See `object_memory.Place`.
    """

    request_id: int
    object_id: str
    place: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FetchObject(Message):
    """The client wants the image of a value that the worker holds; answered by ObjectContent."""

    request_id: int
    object_id: str


@dataclass(frozen=True, slots=True)
class ObjectContent(Message):
    """The image follows."""

    request_id: int


@dataclass(frozen=True, slots=True)
class ReleaseObject(Message):
    """The client does not need the value there any more; no answer."""

    object_id: str
