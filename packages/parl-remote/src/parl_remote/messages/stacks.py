"""What an actor's threads do now, asked for from its worker.

client -> worker   DumpStack  -> StackDump
"""

from __future__ import annotations

from parl_remote.messages.base import Message
from parl_remote.records import record

__all__ = ["DumpStack", "StackDump"]


@record
class DumpStack(Message):
    """Asks for StackDump; Failed if there is no such actor, or its process cannot say."""

    request_id: int
    lease_id: str


@record
class StackDump(Message):
    """The stacks of all Python threads of an actor, the deepest frame first, as faulthandler prints them.

    Attributes:
        request_id: Which request this answers.
        text: The stacks; the last of it is missing if it is longer than 256 KiB.
    """

    request_id: int
    text: str
