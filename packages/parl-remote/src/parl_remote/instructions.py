"""What the master's bookkeeping wants done: its only way to act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from parl_remote.messages import Message

__all__ = ["DropNode", "Instruction", "ToClient", "ToNode"]


@dataclass(frozen=True, slots=True)
class ToClient:
    """Send this to a client."""

    client_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class ToNode:
    """Send this to a worker."""

    node_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class DropNode:
    """Close the connection to a worker that is lost."""

    node_id: str
    reason: str


Instruction: TypeAlias = ToClient | ToNode | DropNode
