"""What all control messages have in common: that they are one."""

from __future__ import annotations

from parl_remote.records import Record

__all__ = ["Message"]


class Message(Record):
    """Base of the records that `wire.encode` takes and `wire.decode` gives."""

    __slots__ = ()
