"""What actors write, asked for from their workers.

    client -> worker   ReadLog       -> LogText        a piece of one actor's log; may wait for the next line
                       FollowActors  -> ActorsWrote    what the asking program's own actors have written since

An actor is named by its lease; no path is ever sent. A position counts all bytes that the actor has written, from 0,
and stays right when its log is shortened. Nothing is sent that was not asked for, so a slow reader holds up nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parl_remote.messages.base import Message
from parl_remote.records import record

__all__ = ["ActorOutput", "ActorsWrote", "FollowActors", "LogPiece", "LogText", "ReadLog"]


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Text of one stream; `is_error` says that it came by Python's `sys.stderr`."""

    text: str
    is_error: bool = False


@record
class ReadLog(Message):
    """Asks for LogText.

    Attributes:
        request_id: The asker's number for it.
        lease_id: The actor, running or not.
        start: Position to read from; below 0 for the end of the log.
        lines: How many of the last lines to read, with `start` below 0; below 0 as many as fit into `most_bytes`.
        most_bytes: How much to read, at most; 1 to 1,048,576.
        wait_s: How long to wait if there is nothing at `start` yet; the answer comes with the next line, with the
            actor's end, or empty when the time is over. 0 to 60.
    """

    request_id: int
    lease_id: str
    start: int = -1
    lines: int = -1
    most_bytes: int = 65536
    wait_s: float = 0.0


@record
class LogText(Message):
    """A piece of an actor's log.

    Attributes:
        request_id: Which request this answers.
        start: Where the text begins; above what was asked for if that is gone.
        end: Where to read on.
        size: Where the log ends now.
        pieces: The text, in the order in which it was written.
        ended: Whether the actor has ended and `end` is the end of its log.
    """

    request_id: int
    start: int
    end: int
    size: int
    pieces: tuple[LogPiece, ...] = ()
    ended: bool = False


@record
class FollowActors(Message):
    """Asks for ActorsWrote: what the actors of the asking client have written on this worker since the answer before.

    Attributes:
        request_id: The asker's number for it.
        wait_s: How long to wait if there is nothing, 0 to 60. 0 answers at once, with more than usual: the last of it.
        positions: Where to begin, by lease, for the first request on a link; 0 for actors that are not named.
    """

    request_id: int
    wait_s: float = 0.0
    positions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActorOutput:
    """What one actor has written: whole lines, save the last one of an actor that has ended, and very long ones.

    Attributes:
        lease_id: The actor.
        class_name: Its class.
        actor_name: Its name, empty for none.
        pid: Its process.
        pieces: The lines, in the order in which they were written.
        end: The position after them.
        dropped: How many lines before them were left out, because the actor wrote more than can be passed on.
        ended: Whether the actor has ended and this is the last of it.
    """

    lease_id: str
    class_name: str
    actor_name: str
    pid: int
    pieces: tuple[LogPiece, ...]
    end: int
    dropped: int = 0
    ended: bool = False


@record
class ActorsWrote(Message):
    """What has been written, by actor; empty if nothing was. There may be more already."""

    request_id: int
    outputs: tuple[ActorOutput, ...] = ()
