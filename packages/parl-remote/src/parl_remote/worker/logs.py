"""A worker's part for logs: reads what its actors have written, for `xparl logs`, the monitor and programs.

    ReadLog, FollowActors --> nothing new yet: wait, look every tenth of a second --> LogText, ActorsWrote

An answer at a time and of limited size for each who asks: a flood of output costs no more than its writing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parl_remote.errors import RemoteError, RemoteProtocolError
from parl_remote.links.handshake import Link
from parl_remote.links.loop import Loop
from parl_remote.messages import Message
from parl_remote.messages.logs import ActorOutput, ActorsWrote, FollowActors, LogPiece, LogText, ReadLog
from parl_remote.worker.log_book import LogBook, LogEntry
from parl_remote.worker.log_text import last_lines, next_lines, whole_characters

__all__ = ["WorkerLogs"]

_LOOK_S = 0.1  # soon enough for whoever watches; a look at a thousand files takes some milliseconds
_MOST_BYTES = 2**20
_MOST_WAIT_S = 60.0
_MOST_READERS = 2000  # each is looked at ten times a second
_A_LOOK = 2**17  # bytes for one program at each look, a megabyte or ten thousand lines a second
_AT_ONCE = 2**20  # bytes for a program that does not want to wait, because it ends
_MANY_FINISHED = 5000
_BACKLOG = 2**20  # bytes that a program may be behind, then it gets the latest


@dataclass(slots=True, eq=False)
class _Reader:
    """Somebody who waits for the next piece of one log."""

    link: Link
    asked: ReadLog
    until: float


@dataclass(slots=True, eq=False)
class _Follower:
    """A program that wants to see what its actors write."""

    link: Link
    positions: dict[str, int]
    finished: set[str] = field(default_factory=set)
    asked: FollowActors | None = None
    until: float = 0.0
    turn: int = 0


class WorkerLogs:
    """Answers questions about logs; see `parts.Part`.

    Args:
        loop: The node's loop.
        book: The logs.
    """

    def __init__(self, loop: Loop, book: LogBook) -> None:
        self._loop = loop
        self._book = book
        self._readers: list[_Reader] = []
        self._followers: dict[Link, _Follower] = {}
        self._looking = False

    def received(self, link: Link, message: Message, _frames: Sequence[memoryview]) -> None:
        """Answer, now or when there is something."""
        match message:
            case ReadLog():
                self._asked_to_read(link, message)
            case FollowActors():
                self._asked_to_follow(link, message)
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} is no question about logs")

    def closed(self, link: Link) -> None:
        """Whoever waits there does not any more."""
        self._followers.pop(link, None)
        self._readers = [reader for reader in self._readers if reader.link is not link]

    def close(self) -> None:
        """Nothing: files are opened only while they are read."""

    # -- one log -------------------------------------------------------------------------------------------------

    def _asked_to_read(self, link: Link, asked: ReadLog) -> None:
        if not 1 <= asked.most_bytes <= _MOST_BYTES or not 0 <= asked.wait_s <= _MOST_WAIT_S:
            raise RemoteProtocolError(f"most_bytes {asked.most_bytes} or wait_s {asked.wait_s} is out of its range")
        answer = self._read(asked)
        if asked.wait_s and not answer.pieces and not answer.ended:
            if len(self._readers) >= _MOST_READERS:
                raise RemoteError(f"{_MOST_READERS} readers wait for lines on this worker already")
            self._readers.append(_Reader(link, asked, self._loop.now() + asked.wait_s))
            self._look_later()
        else:
            link.tell(answer)

    def _read(self, asked: ReadLog) -> LogText:
        entry = self._book.find(asked.lease_id)
        if entry is None:
            raise RemoteError(
                f"this worker has no log of {asked.lease_id}; those of the last 1000 actors that ended are kept"
            )
        if asked.start < 0:
            start, data = last_lines(entry, asked.lines, asked.most_bytes)
        else:
            start, data = entry.read(asked.start, asked.most_bytes)
        size = entry.size()
        ended = entry.ended and start + len(data) >= size
        if not ended:
            data = data[: whole_characters(data)]
        return LogText(asked.request_id, start, start + len(data), size, _pieces(entry, start, data), ended)

    # -- all logs of a program -----------------------------------------------------------------------------------

    def _asked_to_follow(self, link: Link, asked: FollowActors) -> None:
        if not 0 <= asked.wait_s <= _MOST_WAIT_S:
            raise RemoteProtocolError(f"wait_s {asked.wait_s} is out of its range")
        follower = self._followers.get(link)
        if follower is None:
            follower = self._followers[link] = _Follower(link, dict(asked.positions))
        if follower.asked is not None:  # only one answer at a time can be waited for
            follower.link.tell(ActorsWrote(follower.asked.request_id))
        follower.asked = asked
        follower.until = self._loop.now() + asked.wait_s
        if asked.wait_s:
            self._look_later()
        else:
            self._serve(follower, _AT_ONCE)

    def _serve(self, follower: _Follower, most_bytes: int) -> None:
        """Answer a follower if there is something or it does not want to wait any longer."""
        asked = follower.asked
        if asked is None:
            return
        outputs = self._outputs(follower, most_bytes)
        if outputs or self._loop.now() >= follower.until:
            follower.asked = None
            follower.link.tell(ActorsWrote(asked.request_id, outputs))

    def _outputs(self, follower: _Follower, most_bytes: int) -> tuple[ActorOutput, ...]:
        """What this follower's actors have written, each of them beginning a round in turn."""
        entries = [
            entry
            for entry in self._book.of_client(follower.link.hello.id)
            if entry.lease_id not in follower.finished
            and (entry.ended or entry.size() > follower.positions.get(entry.lease_id, 0))
        ]
        if not entries:
            return ()
        if len(follower.finished) > _MANY_FINISHED:  # most of them are gone from the book as well
            follower.finished = {lease_id for lease_id in follower.finished if self._book.find(lease_id)}
        follower.turn = (follower.turn + 1) % len(entries)
        outputs: list[ActorOutput] = []
        for entry in (*entries[follower.turn :], *entries[: follower.turn]):
            if most_bytes <= 0:
                break
            output = self._output(follower, entry, most_bytes)
            most_bytes -= output.end - follower.positions.get(entry.lease_id, 0) if not output.dropped else _A_LOOK // 4
            follower.positions[entry.lease_id] = output.end
            if output.ended:
                follower.finished.add(entry.lease_id)
                del follower.positions[entry.lease_id]
            if output.pieces or output.dropped or output.ended:
                outputs.append(output)
        return tuple(outputs)

    @staticmethod
    def _output(follower: _Follower, entry: LogEntry, most_bytes: int) -> ActorOutput:
        position = follower.positions.get(entry.lease_id, 0)
        lines = next_lines(entry, position, max(most_bytes, 2**16), _BACKLOG)
        return ActorOutput(
            entry.lease_id,
            entry.class_name,
            entry.actor_name,
            entry.pid,
            _pieces(entry, lines.start, lines.data),
            lines.end,
            lines.dropped,
            entry.ended and lines.end >= entry.size(),
        )

    # -- looking -------------------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self._loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        """See whether there is something for those who wait."""
        self._looking = False
        now = self._loop.now()
        waiting, self._readers = self._readers, []
        for reader in waiting:
            try:
                answer = self._read(reader.asked)
            except RemoteError:
                answer = LogText(reader.asked.request_id, reader.asked.start, reader.asked.start, 0, (), ended=True)
            if answer.pieces or answer.ended or now >= reader.until:
                reader.link.tell(answer)
            else:
                self._readers.append(reader)
        for follower in list(self._followers.values()):
            self._serve(follower, _A_LOOK)
        if self._readers or any(follower.asked is not None for follower in self._followers.values()):
            self._look_later()


def _pieces(entry: LogEntry, start: int, data: bytes) -> tuple[LogPiece, ...]:
    """Bytes from a position on as text, divided by stream."""
    pieces: list[LogPiece] = []
    at = 0
    for begin, end in (*entry.errors(start, start + len(data)), (start + len(data), start + len(data))):
        for upto, is_error in ((begin - start, False), (end - start, True)):
            if upto > at:
                pieces.append(LogPiece(data[at:upto].decode(errors="replace"), is_error))
                at = upto
    return tuple(pieces)
