"""What the master's bookkeeping wants done: its only way to act."""

from __future__ import annotations

from typing import TypeAlias

from parl_remote.messages import Message
from parl_remote.records import Record, record

__all__ = ["DropNode", "Instruction", "ToClient", "ToNode"]


@record
class ToClient(Record):
    """Send this to a client."""

    client_id: str
    message: Message


@record
class ToNode(Record):
    """Send this to a worker."""

    node_id: str
    message: Message


@record
class DropNode(Record):
    """Close the connection to a worker that is lost."""

    node_id: str
    reason: str


Instruction: TypeAlias = ToClient | ToNode | DropNode
