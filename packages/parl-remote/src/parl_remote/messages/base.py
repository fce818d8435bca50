"""What all control messages have in common: that they are one."""

from __future__ import annotations

__all__ = ["Message"]


class Message:
    """Base of the frozen dataclasses that `wire.encode` takes and `wire.decode` gives."""

    __slots__ = ()
