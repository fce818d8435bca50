"""Between client and worker, on a link of its own: values that `put` has stored, where memory cannot be shared.

The worker holds what it is told to until it is told to let go, or the link ends. Images of values are opaque frames
after the message.
"""

from __future__ import annotations

from parl_remote.messages.base import Message
from parl_remote.records import record

__all__ = ["FetchObject", "HoldObject", "ObjectContent", "ReleaseObject", "StoreObject"]


@record
class StoreObject(Message):
    """The client brings a value for actors of the worker; the image follows. Answered by Done."""

    request_id: int
    object_id: str


@record
class HoldObject(Message):
    """The client asks the worker to keep a value that a process of its host has; answered by Done.

    Attributes:
        place: See `object_memory.Place`.
    """

    request_id: int
    object_id: str
    place: tuple[int, ...]


@record
class FetchObject(Message):
    """The client wants the image of a value that the worker holds; answered by ObjectContent."""

    request_id: int
    object_id: str


@record
class ObjectContent(Message):
    """The image follows."""

    request_id: int


@record
class ReleaseObject(Message):
    """The client does not need the value there any more; no answer."""

    object_id: str
