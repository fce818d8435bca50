"""The part of a worker that has its actors' calls recorded for a while, and reads what they wrote.

RecordCalls --> every actor: RECORD, a file, until when     an actor that starts meanwhile is configured so
ReadCalls ----> the lines of one actor, and the call that still runs --> RecordedCalls
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from parl_remote._actor.reports import read_stats
from parl_remote._links.call_messages import Kind, pack
from parl_remote._links.handshake import Link
from parl_remote._messages import Done, Message
from parl_remote._messages.parts import CallSpan, ReadCalls, RecordCalls, RecordedCalls
from parl_remote._worker.actors import ActorProcess, WorkerLease
from parl_remote.errors import ChannelClosed, RemoteProtocolError, ResultTimeout

__all__ = ["CallRecorder"]

_LONGEST_S = 3600.0
_MOST_ACTORS = 10_000
_PIECE_BYTES = 256 * 1024
_MOST_BYTES = 2**40  # far beyond any file: an offset that a peer sends may be anything


@dataclass(frozen=True, slots=True)
class _Recorded:
    lease_id: str
    class_name: str
    actor_name: str
    pid: int
    stats: str
    path: Path


class CallRecorder:
    """Answers RecordCalls and ReadCalls; see `handshake.Part`.

    Args:
        directory: Where the files go.
        leases: Returns the worker's leases.
    """

    def __init__(self, directory: Path, leases: Callable[[], Iterable[WorkerLease]]) -> None:
        self._directory = directory
        self._leases = leases
        self._until = 0.0
        self._recorded: dict[int, _Recorded] = {}

    def settings_of(self, lease: WorkerLease, actor: ActorProcess) -> dict[str, object] | None:
        """Return what the process of an actor has to know to record; None while nothing is recorded."""
        if time.perf_counter() >= self._until or len(self._recorded) >= _MOST_ACTORS:
            return None
        number, one = actor.number, lease.assigned
        path = self._directory / f"a{number}.times"
        self._recorded[number] = _Recorded(lease.lease_id, one.class_name, one.actor_name, actor.pid, actor.stats, path)
        return {"path": str(path), "until": self._until}

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:  # noqa: ARG002
        """Begin a recording, or answer with a piece of it."""
        if isinstance(message, RecordCalls):
            self._record(message)
            link.tell(Done(message.request_id))
        elif isinstance(message, ReadCalls):
            link.tell(self._read(message))
        else:
            raise RemoteProtocolError(f"{type(message).__name__} is no request about the times of calls")

    def closed(self, link: Link) -> None:
        """Do nothing: a recording ends when its time is up."""

    def close(self) -> None:
        """Remove the files."""
        self._forget()

    def _record(self, asked: RecordCalls) -> None:
        if not 0 < asked.seconds <= _LONGEST_S:
            raise RemoteProtocolError(f"calls are recorded for more than 0 and up to {_LONGEST_S:g} seconds")
        now = time.perf_counter()
        if now >= self._until:
            self._forget()
        self._until = max(self._until, now + asked.seconds)
        for lease in self._leases():
            if lease.channel is None or lease.actor is None:
                continue
            settings = self.settings_of(lease, lease.actor)
            with contextlib.suppress(ChannelClosed, ResultTimeout):  # it ends, or does not read
                lease.channel.send(pack(Kind.RECORD, 0, 0, 0, [json.dumps(settings).encode()]), 0.0)

    def _forget(self) -> None:
        for one in self._recorded.values():
            one.path.unlink(missing_ok=True)
        self._recorded.clear()

    def _read(self, asked: ReadCalls) -> RecordedCalls:
        every = list(self._recorded.values())
        if not 0 <= asked.actor < len(every) or asked.offset < 0:
            return RecordedCalls(asked.request_id, len(every))
        one = every[asked.actor]
        data = b""
        with contextlib.suppress(OSError), one.path.open("rb") as file:
            file.seek(min(asked.offset, _MOST_BYTES))
            data = file.read(_PIECE_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        offset = asked.offset + len(whole) if len(data) == _PIECE_BYTES and whole else -1
        epoch = time.time() - time.perf_counter()
        calls = [_span(line, epoch) for line in whole.decode(errors="replace").splitlines()]
        if offset < 0:
            calls += _running(one.stats)
        return RecordedCalls(
            asked.request_id,
            len(every),
            one.lease_id,
            one.class_name,
            one.actor_name,
            one.pid,
            tuple(calls),
            offset,
        )


def _span(line: str, epoch: float) -> CallSpan:
    method, began, ended, error = line.split("\t")
    return CallSpan(method, float(began) + epoch, float(ended) + epoch, error)


def _running(stats: str | os.PathLike[str]) -> list[CallSpan]:
    """Return the call that began last and still runs, if one does."""
    seen = read_stats(stats)
    if seen is None or not seen.in_flight:
        return []
    now = time.time()
    return [CallSpan(seen.running, now - seen.running_s, now, runs=True)]
