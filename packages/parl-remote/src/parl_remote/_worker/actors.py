"""A worker's actors: processes ordered from the zygote ahead of time, their leases, and recordings of their calls.

want(2) --fork--> zygote --forked--> a spare, on_spare()      take() -> the spare, for a lease
                  zygote --refused-> on_refused(why): the host has no more processes or the like
                  zygote --ended---> on_ended(actor, why)
RecordCalls --> every actor: RECORD, a file, until when       an actor that starts meanwhile is configured so
ReadCalls ----> the lines of one actor, and the call that still runs --> RecordedCalls

A lease is kept from LeaseAssigned until its actor has ended; the causes of the latest ends are kept for late
requests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parl_remote._actor.reports import read_stats
from parl_remote._links.call_messages import Kind, pack
from parl_remote._links.handshake import Link
from parl_remote._links.loop import Loop
from parl_remote._messages import Done, LeaseAssigned, Message, RunningLease, StartActor
from parl_remote._messages.parts import CallSpan, ReadCalls, RecordCalls, RecordedCalls
from parl_remote._system import processes
from parl_remote._system.shortage import shortage_of
from parl_remote._transport.unix import UnixChannel
from parl_remote._worker.zygote import ActorSource
from parl_remote.errors import ChannelClosed, DeathCause, DeathKind, RemoteProtocolError, ResultTimeout

__all__ = ["ActorProcess", "ActorProcesses", "CallRecorder", "WorkerLease", "WorkerLeases"]


_log = logging.getLogger("parl.remote")

_SPARES = 1  # spare processes: one hides the fork from programs that make actors one after the other, and costs some MB
_LATER_S = 0.2  # after an actor's end its files are removed
_REST_S = 1.0  # after a refusal no spare is started for this long, or the refusals would keep the node busy
_MAX_FAILED_SPARES = 3
_MAX_ZYGOTE_DEATHS = 3  # a zygote that repeatedly dies at once has a wrong configuration


@dataclass(slots=True, eq=False)
class ActorProcess:
    """One process, spare or in use.

    Attributes:
        number: Its number on this node, never used again.
        pid: Its process id.
        address: The path of its socket.
        log: The file of its output once it is in use.
        stats: The file of its call statistics.
        cause: The cause for which it was killed or asked to end; None if it was not.
        peak: Its peak memory in bytes, known once it has ended.
    """

    number: int
    pid: int
    address: str
    log: Path
    stats: str
    cause: DeathCause | None = None
    peak: int = 0


class ActorProcesses:
    """The processes of a worker's actors, with one spare started ahead.

    Args:
        loop: The node's loop.
        directory: The node's private directory, with the actors' sockets.
        log_directory: The directory of actors' log files.
        zygote: A running zygote.
        restart_zygote: Starts another zygote after its death.
        log_tail_lines: The number of lines of the log in a death report.
        on_spare: Called when there are new spares.
        on_refused: Told why a process could not be started.
        on_ended: Told of an actor that ended, and why.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        directory: Path,
        log_directory: Path,
        zygote: ActorSource,
        restart_zygote: Callable[[], ActorSource],
        log_tail_lines: int,
        on_spare: Callable[[], None],
        on_refused: Callable[[str], None],
        on_ended: Callable[[ActorProcess, DeathCause], None],
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._log_directory = log_directory
        self._restart_zygote = restart_zygote
        self._log_tail_lines = log_tail_lines
        self._on_spare = on_spare
        self._on_refused = on_refused
        self._on_ended = on_ended
        self._actors: dict[int, ActorProcess] = {}
        self._spares: deque[ActorProcess] = deque()
        self._ordered = 0
        self._last_number = 0
        self._zygote_deaths = 0
        self._ever_forked = False
        self._failed_spares = 0
        self._has_zygote = True
        self._spares_wanted = _SPARES
        self._closed = False
        self._zygote = zygote
        loop.add(zygote, self._on_readable)

    def want(self, count: int) -> None:
        """Order processes so that `count` actors can be taken soon, plus a spare one."""
        while self._ordered + len(self._spares) < count + self._spares_wanted and self._has_zygote:
            self._last_number += 1
            self._ordered += 1
            self._zygote.fork(self._last_number)

    def take(self) -> ActorProcess | None:
        """Return a process for an actor, None if none is ready."""
        if not self._spares:
            return None
        self._failed_spares = 0
        return self._spares.popleft()

    def kill(self, actor: ActorProcess, cause: DeathCause) -> None:
        """Kill an actor at once; its end is reported with this cause, or an earlier one."""
        if actor.cause is None:
            actor.cause = cause
        self._zygote.kill(actor.number)

    def dump_stack(self, actor: ActorProcess) -> None:
        """Make an actor print its stacks behind its page, see `reports`."""
        self._zygote.dump(actor.number)

    def note(self, actor: ActorProcess, cause: DeathCause) -> None:
        """Set the cause to report for an actor that was requested to end, unless one is set."""
        if actor.cause is None:
            actor.cause = cause

    def close(self) -> None:
        """Kill all actors and the zygote, and wait for them."""
        self._closed = True
        if self._has_zygote:
            self._has_zygote = False
            self._loop.remove(self._zygote)
            self._zygote.close()

    def _on_readable(self) -> None:
        reports = self._zygote.reports()
        if reports is None:
            self._zygote_died()
            return
        for report in reports:
            match report:
                case {"forked": int(number), "pid": int(pid)}:
                    self._forked(number, pid)
                case {"refused": int(_), "reason": str(reason)}:
                    self._ordered -= 1
                    self._refused(reason)
                case {"ended": int(number), "status": int(status), "peak": int(peak)} if number in self._actors:
                    self._actors[number].peak = peak
                    self._ended(self._actors[number], processes.death_of(status))
                case {"ready": _, "failed": dict(failed)}:
                    for name, why in failed.items():
                        _log.error("cannot import %s ahead for all actors: %s", name, why)
                case _:
                    _log.error("unknown report of the zygote: %r", report)
        self._on_spare()

    def _forked(self, number: int, pid: int) -> None:
        self._ordered -= 1
        self._zygote_deaths = 0
        self._ever_forked = True
        log = self._log_directory / f"actor-{number}.log"
        place = f"{self._directory}/a{number}"
        self._actors[number] = actor = ActorProcess(number, pid, f"{place}.sock", log, f"{place}.calls")
        self._spares.append(actor)

    def _refused(self, reason: str) -> None:
        _log.error("a process for an actor could not be started: %s", reason)
        if self._spares_wanted:
            self._spares_wanted = 0
            self._loop.call_later(_REST_S, self._want_spares)
        self._on_refused(reason)

    def _want_spares(self) -> None:
        self._spares_wanted = _SPARES
        self._on_spare()

    def _ended(self, actor: ActorProcess, cause: DeathCause) -> None:
        del self._actors[actor.number]
        if actor in self._spares:
            self._spares.remove(actor)
            self._record_failed_spare()
        else:
            known = actor.cause or cause  # the reason for a kill says more than its signal
            lines = processes.tail(actor.log, self._log_tail_lines)
            self._on_ended(actor, dataclasses.replace(known, log_tail=lines))
        # Not now: somebody may wait for the actor's resources, and this can take a millisecond.
        self._loop.call_later(_LATER_S, functools.partial(_remove, actor.stats))

    def _record_failed_spare(self) -> None:
        """Count a spare process that ended by itself; several in a row mean that the host lacks resources for one."""
        self._failed_spares += 1
        if self._failed_spares % _MAX_FAILED_SPARES == 0:
            self._refused("a process for it ended during its start; see the node's log")

    def _zygote_died(self) -> None:
        """Replace a dead zygote; all its actors have died with it."""
        self._has_zygote = False
        self._loop.remove(self._zygote)
        self._zygote.close()
        self._zygote_deaths += 1
        if self._zygote_deaths >= _MAX_ZYGOTE_DEATHS and not self._ever_forked:
            raise RuntimeError(f"the zygote died {self._zygote_deaths} times without starting an actor; see its log")
        self._ordered = 0
        cause = DeathCause(DeathKind.SIGNAL, detail="the process that actors are forked from was killed", signal=9)
        for actor in list(self._actors.values()):
            self._ended(actor, cause)
        if self._zygote_deaths < _MAX_ZYGOTE_DEATHS:
            self._replace_zygote()
        else:
            self._try_later("the process that actors are forked from ends at once")

    def _replace_zygote(self) -> None:
        if self._closed:
            return
        try:
            self._zygote = self._restart_zygote()
        except (OSError, MemoryError) as error:  # there is no descriptor, or no process, left
            self._try_later(shortage_of(error))
            return
        self._has_zygote = True
        self._loop.add(self._zygote, self._on_readable)
        self._on_spare()

    def _try_later(self, reason: str) -> None:
        """Refuse the waiting requests, and start another zygote after a moment."""
        self._loop.call_later(_REST_S, self._replace_zygote)
        self._refused(reason)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


_ENDS_KEPT = 500  # causes kept for late borrowers; a cause with its log is some kilobytes


@dataclass(slots=True, eq=False)
class WorkerLease:
    """One lease of a worker.

    Attributes:
        assigned: The master's message.
        since: The time of its arrival, on the loop's clock.
        link: The client that owns its actor, while it is connected.
        start: The client's request; None before it.
        actor: The process, once there is one.
        channel: The worker's own way to it, which carries its exit report.
        is_ending: Whether the actor was requested to finish its calls and end.
    """

    assigned: LeaseAssigned
    since: float
    link: Link | None = None
    start: StartActor | None = None
    actor: ActorProcess | None = None
    channel: UnixChannel | None = None
    is_ending: bool = False

    @property
    def lease_id(self) -> str:
        """The lease's id."""
        return self.assigned.lease_id

    @property
    def client_id(self) -> str:
        """The client that requested it."""
        return self.assigned.client_id

    @property
    def outlives_its_client(self) -> bool:
        """Return whether its actor continues when its client is gone."""
        return self.assigned.detached and self.actor is not None

    def as_running(self, now: float) -> RunningLease:
        """Return the lease in the form for a master that was restarted."""
        one = self.assigned
        return RunningLease(
            lease_id=one.lease_id,
            client_id=one.client_id,
            resources=one.resources,
            class_name=one.class_name,
            actor_name=one.actor_name,
            detached=one.detached,
            restarts=one.restarts,
            max_restarts=one.max_restarts,
            gpus=one.gpus,
            age_s=max(0.0, round(now - self.since, 3)),
        )


class WorkerLeases:
    """The leases of one worker, by id."""

    def __init__(self) -> None:
        self._leases: dict[str, WorkerLease] = {}
        self._ended: dict[str, DeathCause] = {}

    def __iter__(self) -> Iterator[WorkerLease]:
        return iter(list(self._leases.values()))

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self._leases

    def get(self, lease_id: str) -> WorkerLease | None:
        """Return the lease with that id, or None."""
        return self._leases.get(lease_id)

    def add(self, lease: WorkerLease) -> None:
        """Add a lease that the master has assigned."""
        self._leases[lease.lease_id] = lease

    def end(self, lease_id: str, cause: DeathCause) -> WorkerLease | None:
        """End a lease and return it; None if it has ended already."""
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            self._ended[lease_id] = cause
            if len(self._ended) > _ENDS_KEPT:
                del self._ended[next(iter(self._ended))]
        return lease

    def cause_of(self, lease_id: str) -> DeathCause | None:
        """Return why a lease ended, if that was recent."""
        return self._ended.get(lease_id)

    def way_to(self, lease_id: str) -> tuple[str, UnixChannel] | None:
        """Return the socket's path of a living actor and the worker's own channel to it."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.actor is None or lease.channel is None or lease.actor.cause is not None:
            return None
        return lease.actor.address, lease.channel

    def is_owner(self, lease_id: str, client_id: str) -> bool:
        """Return whether a client has made the actor on a lease."""
        lease = self._leases.get(lease_id)
        return lease is not None and lease.client_id == client_id

    def directories_in_use(self) -> set[str]:
        """Return the directories that actors run in now."""
        starts = [lease.start for lease in self._leases.values()]
        return {start.working_dir for start in starts if start is not None and start.working_dir}

    def running(self, now: float) -> tuple[RunningLease, ...]:
        """Return the leases to report to a restarted master: those in use or soon to be."""
        here = (lease for lease in self._leases.values() if lease.link is not None or lease.outlives_its_client)
        return tuple(lease.as_running(now) for lease in here)


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
        directory: The directory of the files.
        leases: Returns the worker's leases.
    """

    def __init__(self, directory: Path, leases: Callable[[], Iterable[WorkerLease]]) -> None:
        self._directory = directory
        self._leases = leases
        self._until = 0.0
        self._recorded: dict[int, _Recorded] = {}

    def settings_of(self, lease: WorkerLease, actor: ActorProcess) -> dict[str, object] | None:
        """Return the settings with which an actor's process records; None while nothing is recorded."""
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
            raise RemoteProtocolError(f"{type(message).__name__} is not a request about the times of calls")

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
            if settings is None:  # the time is over already, or there are too many
                return
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
        calls = [call for line in whole.decode(errors="replace").split("\n") for call in _spans(line, epoch)]
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


def _spans(line: str, epoch: float) -> list[CallSpan]:
    """Return the call of a line; none if the line is not whole, as where the disk was full."""
    try:
        method, began, ended, error = line.split("\t")
        return [CallSpan(method, float(began) + epoch, float(ended) + epoch, error)]
    except ValueError:
        return []


def _running(stats: str | os.PathLike[str]) -> list[CallSpan]:
    """Return the call that began last and still runs, if one does."""
    seen = read_stats(stats)
    if seen is None or not seen.in_flight:
        return []
    now = time.time()
    return [CallSpan(seen.running, now - seen.running_s, now, runs=True)]
