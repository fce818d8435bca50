"""`obj.as_remote(address)`: what objects of decorated classes have beside what was written, see `serving`.

A program that is not connected and speaks of `as_remote` makes ordinary objects of its remote classes: they are to be
served from here.
"""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

from parl_remote.shipping.class_spec import ClassAttribute

if TYPE_CHECKING:
    from parl_remote.dialing.serving import Serving

__all__ = ["ServeAttribute", "bound_to", "means_to_serve"]

_NAME = "as_remote"


class ServeAttribute(ClassAttribute):
    """The method, for objects; a class that has one of that name keeps its own."""

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        return bound_to(instance)


def bound_to(obj: object) -> Any:
    """`as_remote` of one object."""

    def as_remote(*args: Any, **kwargs: Any) -> Serving:
        """Serve this object to the program that has a `RemoteManager` at an address; see `parl_remote.as_remote`."""
        from parl_remote.dialing.serving import as_remote  # it imports zmq in the end, which few programs need

        return as_remote(obj, *args, **kwargs)

    return as_remote


def means_to_serve(frame: FrameType | None) -> bool:
    """Whether the code that is running, from this frame outwards, has `as_remote` in it."""
    while frame is not None:
        if _NAME in frame.f_code.co_names:
            return True
        frame = frame.f_back
    return False
