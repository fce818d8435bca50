"""Logs of a node's actors: the file of each actor, pieces of it, and a worker's answers to readers.

    worker --began, ended--> ActorLogs --find(lease)--> LogEntry --> file, and the file before it
    ReadLog, FollowActors --> WorkerLogs --whole lines--> `xparl logs`, the monitor, programs

One file per actor, both of its streams in the order in which they came. A file that has grown too long is cut: its end
goes to a second file, the first one starts anew. Positions count what the actor has written from the beginning, so
they outlive that. Of actors that have ended the latest are kept, the rest is deleted.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parl_remote._links.handshake import Link
from parl_remote._links.identity import host_id
from parl_remote._links.loop import Loop
from parl_remote._messages import Hello, LeaseAssigned, Message
from parl_remote._messages.parts import ActorOutput, ActorOutputs, FollowActors, LogPiece, LogText, ReadLog
from parl_remote._system.processes import marks_of, read_marks, write_marks
from parl_remote.errors import RemoteError, RemoteProtocolError

__all__ = ["ActorLogs", "LogEntry", "WorkerLogs", "bytes_in", "last_lines", "next_lines", "whole_characters"]


# bytes per file: enough for a debugging session, and a thousand runaway actors do not fill a disk
_LONGEST = 64 * 2**20
_KEPT_WHEN_CUT = 16 * 2**20
_CUT_EVERY_S = 2.0  # an actor that writes as fast as it can writes some gigabytes until its log is cut
_KEPT_ENDED = 1000
_KEPT_ENDED_BYTES = 2**30
_COPIED_AT_ONCE = 2**20


@dataclass(slots=True, eq=False)
class LogEntry:
    """One actor's log.

    Attributes:
        lease_id: The actor's lease.
        client_id: The client that owns the actor.
        class_name: Its class.
        actor_name: Its name, empty for none.
        pid: Its process id.
        path: The file that it writes to.
        origin: The position of the file's first byte; below 0 if the file had content before.
        ended: Whether the actor has ended.
        before: The position of the first byte in `before_path`, equal to `origin` if there is none.
    """

    lease_id: str
    client_id: str
    class_name: str
    actor_name: str
    pid: int
    path: Path
    origin: int = 0
    ended: bool = False
    before: int = field(default=0)

    @property
    def before_path(self) -> Path:
        """The file with the part that was cut off last."""
        return self.path.with_name(self.path.name + ".1")

    @property
    def start(self) -> int:
        """The first position that can still be read."""
        return max(0, min(self.before, self.origin))

    def size(self) -> int:
        """Return the position after the last byte."""
        return max(0, self.origin + bytes_in(self.path))

    def read(self, start: int, most_bytes: int) -> tuple[int, bytes]:
        """Return bytes from a position on, or from a later one if those are gone.

        Returns:
            The position of the first byte, and the bytes; none at the end of the log.
        """
        start = max(start, self.start)
        if start >= self.size():
            return start, b""
        path, offset, most = self.path, start - self.origin, most_bytes
        if start < self.origin:
            path, offset, most = self.before_path, start - self.before, min(most_bytes, self.origin - start)
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                data = file.read(most)
        except OSError:
            data = b""
        if not data and start < self.origin:  # the older piece was deleted
            self.before = self.origin
            return self.read(self.origin, most_bytes)
        return start, data

    def errors(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of a range of positions that were written to stderr, as (start, stop), in order."""
        pieces = [(self.path, self.origin)]
        if start < self.origin and self.before < self.origin:
            pieces.insert(0, (self.before_path, self.before))
        return [
            (origin + begin, origin + end)
            for path, origin in pieces
            for begin, end in read_marks(path, max(0, start - origin), max(0, stop - origin))
        ]

    def cut(self) -> None:
        """Move the end of the file to a second one and start the file anew.

        The actor continues writing meanwhile: output between the last read and the cut is lost.
        """
        with open(self.path, "r+b") as file, open(self.before_path, "wb") as older:
            os.chmod(older.fileno(), 0o600)
            at = max(0, file.seek(0, os.SEEK_END) - _KEPT_WHEN_CUT)
            begin = file.seek(at)
            while data := file.read(_COPIED_AT_ONCE):
                older.write(data)
                at += len(data)
            marks = [(one - begin, other - begin) for one, other in read_marks(self.path, begin, at)]
            file.truncate(0)
            with contextlib.suppress(OSError):
                os.truncate(marks_of(self.path), 0)
        write_marks(self.before_path, marks)
        self.before = self.origin + begin
        self.origin += at

    def delete(self) -> None:
        """Remove the log's files."""
        logs = (self.path, self.before_path)
        for path in (*logs, *map(marks_of, logs)):
            with contextlib.suppress(OSError):
                path.unlink()


class ActorLogs:
    """The logs of one node.

    Args:
        loop: The node's loop.
        keep: Whether files are kept, because their directory is the user's.
    """

    def __init__(self, loop: Loop, *, keep: bool = False) -> None:
        self._loop = loop
        self._keep = keep
        self._host_id = host_id()
        self._running: dict[str, LogEntry] = {}
        self._ended: OrderedDict[str, LogEntry] = OrderedDict()
        self._ended_sizes: dict[str, int] = {}
        self._by_pid: dict[int, LogEntry] = {}
        self._looking = False

    def began(self, lease: LeaseAssigned, client: Hello, pid: int, path: Path, already: int) -> None:
        """Register an actor's log file.

        Where the client is itself an actor of this node, the log counts as its own client's, so that a program sees
        what all its actors write.

        Args:
            lease: The actor's lease.
            client: The client that made it.
            pid: The actor's process id.
            path: The file.
            already: The file's size before.
        """
        maker = self._by_pid.get(client.pid) if client.host_id == self._host_id else None
        client_id = maker.client_id if maker is not None else lease.client_id
        entry = LogEntry(
            lease.lease_id, client_id, lease.class_name, lease.actor_name, pid, path, -already, before=-already
        )
        self._running[lease.lease_id] = self._by_pid[pid] = entry
        if not self._looking:
            self._looking = True
            self._loop.call_later(_CUT_EVERY_S, self._look)

    def ended(self, lease_id: str) -> None:
        """Mark an actor as ended; unknown ones are ignored."""
        entry = self._running.pop(lease_id, None)
        if entry is None:
            return
        self._by_pid.pop(entry.pid, None)
        entry.ended = True
        self._ended[lease_id] = entry
        self._ended_sizes[lease_id] = entry.size() - entry.start
        while len(self._ended) > _KEPT_ENDED or (
            sum(self._ended_sizes.values()) > _KEPT_ENDED_BYTES and len(self._ended) > 1
        ):
            oldest_id, oldest = self._ended.popitem(last=False)
            del self._ended_sizes[oldest_id]
            if not self._keep:
                oldest.delete()

    def find(self, lease_id: str) -> LogEntry | None:
        """Return the log of an actor, None if it is unknown or deleted."""
        return self._running.get(lease_id) or self._ended.get(lease_id)

    def of_client(self, client_id: str) -> Iterator[LogEntry]:
        """Yield the logs of one client's actors, those that have ended first."""
        for entries in (self._ended, self._running):
            yield from (entry for entry in entries.values() if entry.client_id == client_id)

    def _look(self) -> None:
        """Cut the files that have grown too long."""
        for entry in self._running.values():
            if bytes_in(entry.path) > _LONGEST:
                with contextlib.suppress(OSError):  # a full disk: nothing can be written anyway
                    entry.cut()
        self._looking = bool(self._running)
        if self._looking:
            self._loop.call_later(_CUT_EVERY_S, self._look)


def bytes_in(path: Path) -> int:
    """Return the size of a file, 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


_LONGEST_LINE = 2**16  # a line that is longer is passed on in parts
_COUNTED_AT_ONCE = 2**22
_LEAD = 0xC0
_CONTINUES = 0x80
_LENGTHS = ((0xF0, 0xF8, 4), (0xE0, 0xF0, 3), (0xC0, 0xE0, 2))  # length of a character in UTF-8 by its first byte


def whole_characters(data: bytes) -> int:
    """Return the length of `data` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & _LEAD != _CONTINUES:
            length = next((n for low, high, n in _LENGTHS if low <= byte < high), 1)
            return len(data) - back if length > back else len(data)
    return len(data)


def last_lines(entry: LogEntry, lines: int, most_bytes: int) -> tuple[int, bytes]:
    """Return the last lines of a log; fewer if they are longer than `most_bytes`.

    Returns:
        The position of the first line, and the bytes up to the end.
    """
    size = entry.size()
    start, data = _between(entry, max(entry.start, size - most_bytes), size)
    if lines < 0:
        return start, data
    at = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return start, data
    cut = at + 1 if lines else len(data)
    return start + cut, data[cut:]


class Lines:
    """The result of `next_lines`.

    Attributes:
        data: Whole lines; the last one may lack its end if the log has ended or the line is very long.
        start: The position of the first one.
        end: The position after them.
        dropped: The number of lines before them that were left out.
    """

    __slots__ = ("data", "dropped", "end", "start")

    def __init__(self, data: bytes, start: int, end: int, dropped: int) -> None:
        self.data = data
        self.start = start
        self.end = end
        self.dropped = dropped


def next_lines(entry: LogEntry, start: int, most_bytes: int, backlog: int) -> Lines:
    """Return the whole lines from a position on.

    Args:
        entry: The log.
        start: The position.
        most_bytes: The maximum number of bytes.
        backlog: The maximum distance of a reader from the end; older text is skipped, up to the next line's beginning.
    """
    size = entry.size()
    dropped = 0
    if size - start > backlog:
        dropped, start = _skip(entry, start, size - backlog // 2)
    start, data = _between(entry, start, min(size, start + most_bytes))
    end = data.rfind(b"\n") + 1
    if entry.ended and start + len(data) >= size:
        end = len(data)
    elif end == 0 and len(data) >= _LONGEST_LINE:
        end = whole_characters(data)
    return Lines(data[:end], start, start + end, dropped)


def _between(entry: LogEntry, start: int, stop: int) -> tuple[int, bytes]:
    """Return the bytes of a range, starting later if its beginning is gone."""
    start, data = entry.read(start, max(0, stop - start))
    parts = [data]
    at = start + len(data)
    while data and at < stop:  # it lies in two files
        _, data = entry.read(at, stop - at)
        parts.append(data)
        at += len(data)
    return start, b"".join(parts)


def _skip(entry: LogEntry, start: int, target: int) -> tuple[int, int]:
    """Skip lines up to the first one that begins at `target` or later.

    Returns:
        The number of lines, and the position of that line. Deleted text counts as lines of the same length.
    """
    lines, read, at = 0, 0, max(start, entry.start)
    gone = at - start
    while at < target:
        _, data = entry.read(at, min(_COUNTED_AT_ONCE, target - at))
        if not data:
            break
        lines += data.count(b"\n")
        read += len(data)
        at += len(data)
    at, rest = _between(entry, at, at + _LONGEST_LINE)
    newline = rest.find(b"\n") + 1
    lines += newline > 0
    if gone and read:
        lines += round(gone * lines / read)
    return lines, at + newline


_LOOK_S = 0.1  # soon enough for a person watching; checking a thousand files takes some milliseconds
_MOST_BYTES = 2**20
_MOST_WAIT_S = 60.0
_MOST_READERS = 2000  # files checked ten times a second
_A_LOOK = 2**17  # bytes for one program at each look, a megabyte or ten thousand lines a second
_AT_ONCE = 2**20  # bytes for a program that does not want to wait, because it ends
_MANY_FINISHED = 5000
_BACKLOG = 2**20  # bytes that a program may be behind, then it gets the latest


@dataclass(slots=True, eq=False)
class _Reader:
    """A pending request for the next piece of one log."""

    link: Link
    asked: ReadLog
    until: float


@dataclass(slots=True, eq=False)
class _Follower:
    """A program that follows the output of its actors."""

    link: Link
    positions: dict[str, int]
    finished: set[str] = field(default_factory=set)
    asked: FollowActors | None = None
    until: float = 0.0
    turn: int = 0


class WorkerLogs:
    """Answers log requests; see `handshake.Part`.

    Args:
        loop: The node's loop.
        book: The logs.
    """

    def __init__(self, loop: Loop, book: ActorLogs) -> None:
        self._loop = loop
        self._book = book
        self._readers: list[_Reader] = []
        self._followers: dict[Link, _Follower] = {}
        self._looking = False

    def received(self, link: Link, message: Message, _frames: Sequence[memoryview]) -> None:
        """Answer a request, now or when there is output."""
        match message:
            case ReadLog():
                self._asked_to_read(link, message)
            case FollowActors():
                self._asked_to_follow(link, message)
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} is not a request about logs")

    def closed(self, link: Link) -> None:
        """Drop the requests of a peer that is gone."""
        self._followers.pop(link, None)
        self._readers = [reader for reader in self._readers if reader.link is not link]

    def close(self) -> None:
        """Do nothing: files are opened only while they are read."""

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
            follower.link.tell(ActorOutputs(follower.asked.request_id))
        follower.asked = asked
        follower.until = self._loop.now() + asked.wait_s
        if asked.wait_s:
            self._look_later()
        else:
            self._serve(follower, _AT_ONCE)

    def _serve(self, follower: _Follower, most_bytes: int) -> None:
        """Answer a follower if there is output or its time is up."""
        asked = follower.asked
        if asked is None:
            return
        outputs = self._outputs(follower, most_bytes)
        if outputs or self._loop.now() >= follower.until:
            follower.asked = None
            follower.link.tell(ActorOutputs(asked.request_id, outputs))

    def _outputs(self, follower: _Follower, most_bytes: int) -> tuple[ActorOutput, ...]:
        """Return the output of a follower's actors, starting with a different actor in each round."""
        entries = [
            entry
            for entry in self._book.of_client(follower.link.hello.id)
            if entry.lease_id not in follower.finished
            and (entry.ended or entry.size() > follower.positions.get(entry.lease_id, 0))
        ]
        if not entries:
            return ()
        if len(follower.finished) > _MANY_FINISHED:  # most of them are forgotten as well
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
        """Answer pending requests that have output or whose time is up."""
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
    """Return the bytes from a position on as text, split by stream."""
    pieces: list[LogPiece] = []
    at = 0
    for begin, end in (*entry.errors(start, start + len(data)), (start + len(data), start + len(data))):
        for upto, is_error in ((begin - start, False), (end - start, True)):
            if upto > at:
                pieces.append(LogPiece(data[at:upto].decode(errors="replace"), is_error))
                at = upto
    return tuple(pieces)
