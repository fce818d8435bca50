"""Which actor of a node writes to which file: kept while the node runs, also for actors that have ended.

    worker --began, ended--> LogBook --find(lease)--> LogEntry --> file, and the file before it

One file an actor, both of its streams in the order in which they came. A file that has grown too long is cut: its end
goes to a second file, the first one starts anew. Positions count what the actor has written from the beginning, so
they outlive that. Of actors that have ended the latest are kept, the rest is deleted.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parl_remote.links.identity import host_id
from parl_remote.links.loop import Loop
from parl_remote.messages import Hello, LeaseAssigned
from parl_remote.system.output_streams import marks_of, read_marks, write_marks

__all__ = ["LogBook", "LogEntry", "bytes_in"]

_LONGEST = 64 * 2**20  # of one file; a debugging session fits in, and a thousand runaway actors do not fill a disk
_KEPT_WHEN_CUT = 16 * 2**20
_LOOK_S = 2.0  # an actor that writes as fast as it can gets some gigabytes far until it is cut
_KEPT_ENDED = 1000
_KEPT_ENDED_BYTES = 2**30
_COPIED_AT_ONCE = 2**20


@dataclass(slots=True, eq=False)
class LogEntry:
    """One actor's log.

    Attributes:
        lease_id: The actor.
        client_id: Whose it is.
        class_name: Its class.
        actor_name: Its name, empty for none.
        pid: Its process.
        path: The file that it writes to.
        origin: The position of the file's first byte; below 0 where somebody else had written to the file before.
        ended: Whether the actor has ended.
        before: Where the piece before the file begins, equal to `origin` if there is none; it lies in `before_path`.
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
        """What was cut from the file last."""
        return self.path.with_name(self.path.name + ".1")

    @property
    def start(self) -> int:
        """The first position that can still be read."""
        return max(0, min(self.before, self.origin))

    def size(self) -> int:
        """The position after the last byte."""
        return max(0, self.origin + bytes_in(self.path))

    def read(self, start: int, most_bytes: int) -> tuple[int, bytes]:
        """Bytes from a position on; later than asked for if those are gone.

        Returns:
            Where they begin, and the bytes; none at the end of the log.
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
        """The parts of a range of positions that came by stderr, as (start, stop), in order."""
        pieces = [(self.path, self.origin)]
        if start < self.origin and self.before < self.origin:
            pieces.insert(0, (self.before_path, self.before))
        return [
            (origin + begin, origin + end)
            for path, origin in pieces
            for begin, end in read_marks(path, max(0, start - origin), max(0, stop - origin))
        ]

    def cut(self) -> None:
        """Keep the last of the file in a second one and start it anew.

        The actor goes on writing meanwhile: what it writes between the last read and the cut is lost.
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
        """Remove its files."""
        logs = (self.path, self.before_path)
        for path in (*logs, *map(marks_of, logs)):
            with contextlib.suppress(OSError):
                path.unlink()


class LogBook:
    """The logs of one node.

    Args:
        loop: The node's loop.
        keep: Whether files stay where they are, because their directory is the user's.
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
        """An actor writes to a file from now on.

        Where the client is itself an actor of this node, the log counts as its own client's, so that a program sees
        what all its actors write.

        Args:
            lease: The actor's.
            client: Who made it.
            pid: The actor's process.
            path: The file.
            already: How many bytes were in the file before.
        """
        maker = self._by_pid.get(client.pid) if client.host_id == self._host_id else None
        client_id = maker.client_id if maker is not None else lease.client_id
        entry = LogEntry(
            lease.lease_id, client_id, lease.class_name, lease.actor_name, pid, path, -already, before=-already
        )
        self._running[lease.lease_id] = self._by_pid[pid] = entry
        if not self._looking:
            self._looking = True
            self._loop.call_later(_LOOK_S, self._look)

    def ended(self, lease_id: str) -> None:
        """The actor has ended; unknown ones are ignored."""
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
        """The log of an actor, None if it is unknown or gone."""
        return self._running.get(lease_id) or self._ended.get(lease_id)

    def of_client(self, client_id: str) -> Iterator[LogEntry]:
        """The logs of one client's actors, those that have ended first."""
        for entries in (self._ended, self._running):
            yield from (entry for entry in entries.values() if entry.client_id == client_id)

    def _look(self) -> None:
        """Cut what has grown too long."""
        for entry in self._running.values():
            if bytes_in(entry.path) > _LONGEST:
                with contextlib.suppress(OSError):  # a disk that is full will not be fuller
                    entry.cut()
        self._looking = bool(self._running)
        if self._looking:
            self._loop.call_later(_LOOK_S, self._look)


def bytes_in(path: Path) -> int:
    """The size of a file, 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
