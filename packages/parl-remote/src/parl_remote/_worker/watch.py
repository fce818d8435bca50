"""Monitoring of running actors from outside: memory, signals that stop them, calls, and stacks.

    page of each actor's calls --\
    /proc of its process        ---> ActorNumbers --changed--> NodeNumbers --> master, every two seconds
    samples of the watch       --/
    DumpStack --> clear file, signal --> poll every few hundredths of a second --> StackDump | Failed

An actor that has ended is reported by the zygote; the watch finds those that never end by themselves, and keeps its
samples for a minute, for death reports.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from parl_remote._actor.reports import CallStats, StackFile, read_stats
from parl_remote._config import Limits
from parl_remote._links.handshake import Link
from parl_remote._links.loop import Loop
from parl_remote._messages import Failed, Message
from parl_remote._messages.overview import ActorNumbers, ActorPhase, NodeNumbers
from parl_remote._messages.parts import DumpStack, StackDump
from parl_remote._system import processes
from parl_remote._system.host import OutOfMemoryHint
from parl_remote._worker.actors import ActorProcess, WorkerLease, WorkerLeases
from parl_remote.errors import DeathCause, DeathKind, MemorySample, RemoteError, RemoteProtocolError

__all__ = ["ActorObservations", "ActorWatch", "WorkerNumbers", "WorkerStacks"]


_SAMPLE_S = 1.0
_LIMITED_SAMPLE_S = 0.5  # the promise is that an actor ends within a second of passing its limit
_KEPT = 60


@dataclass(slots=True)
class ActorObservations:
    """Observations of one actor.

    Attributes:
        pid: Its process id.
        memory_limit: The growth that it is allowed, in bytes; None for no limit.
        memory_at_start: Its size when it became an actor.
        stopped_since: The time at which it was first seen stopped by a signal, on the loop's clock; None if it runs.
        memory: Its size over the last minute.
    """

    pid: int
    memory_limit: int | None
    memory_at_start: int
    stopped_since: float | None = None
    memory: deque[MemorySample] = field(default_factory=lambda: deque(maxlen=_KEPT))


class ActorWatch:
    """Samples processes on a node's loop.

    Args:
        loop: The node's loop.
        limits: The time that a process may be stopped.
        end: Called with the number of an actor that has to end, and the cause.
    """

    def __init__(self, loop: Loop, limits: Limits, end: Callable[[int, DeathCause], None]) -> None:
        self._loop = loop
        self._limits = limits
        self._end = end
        self._watched: dict[int, ActorObservations] = {}
        self._looking = False
        self.out_of_memory = OutOfMemoryHint()

    def add(self, number: int, pid: int, memory_limit: int | None) -> None:
        """Monitor actor `number`; `memory_limit` is the growth that it is allowed, in bytes."""
        one = self._watched[number] = ActorObservations(pid, memory_limit, processes.resident_bytes(pid))
        one.memory.append(MemorySample(time.time(), one.memory_at_start))
        if not self._looking:
            self._look_later()

    def get(self, number: int) -> ActorObservations | None:
        """Return the samples of an actor, or None if it is unknown."""
        return self._watched.get(number)

    def remove(self, number: int) -> ActorObservations | None:
        """Stop monitoring an actor that has ended, and return its samples, or None if it is unknown."""
        return self._watched.pop(number, None)

    def _look_later(self) -> None:
        limited = any(one.memory_limit is not None for one in self._watched.values())
        self._looking = True
        delay_s = _LIMITED_SAMPLE_S if limited else _SAMPLE_S
        for one in self._watched.values():
            if one.stopped_since is not None:  # looked at again as soon as its time is up
                delay_s = min(delay_s, max(0.01, one.stopped_since + self._patience_s - self._loop.now()))
        self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._looking = False
        try:
            at = round(time.time(), 3)
            self.out_of_memory.look()
            for number, one in list(self._watched.items()):
                resident = processes.resident_bytes(one.pid)
                if not resident:  # it has ended, which its parent reports
                    continue
                one.memory.append(MemorySample(at, resident))
                cause = _too_much_memory(one) or self._stopped_too_long(one)
                if cause is not None:
                    self._end(number, cause)
        finally:
            if self._watched:
                self._look_later()

    @property
    def _patience_s(self) -> float:
        """The longest observed stop: it may have begun a whole sample earlier, and reporting takes time."""
        limit_s = self._limits.liveness_limit_s
        return limit_s - 1.5 * _SAMPLE_S if limit_s > 3 * _SAMPLE_S else limit_s

    def _stopped_too_long(self, one: ActorObservations) -> DeathCause | None:
        now = self._loop.now()
        if not processes.is_stopped(one.pid):
            one.stopped_since = None
        elif one.stopped_since is None:
            one.stopped_since = now
        elif now - one.stopped_since >= self._patience_s:
            detail = f"it was stopped for more than {self._patience_s:g} s"
            return DeathCause(DeathKind.SIGNAL, signal=int(getattr(signal, "SIGSTOP", 0)), detail=detail)
        return None


def _too_much_memory(one: ActorObservations) -> DeathCause | None:
    if one.memory_limit is None:
        return None
    used = one.memory[-1].resident - one.memory_at_start
    if used <= one.memory_limit:
        return None
    sizes = f"it used {used / 2**20:.0f} MiB, its limit is {one.memory_limit / 2**20:.0f} MiB"
    return DeathCause(DeathKind.MEMORY, detail=sizes)


_log = logging.getLogger("parl.remote")

_INTERVAL_S = 2.0  # displays may lag by this much; a thousand busy workers send five hundred messages a second
_SOON_S = 0.2  # seconds after the start of an actor: many start together
_MEMORY_STEP = 2**20
_CPU_STEP_S = 0.05
_SHARE_STEP = 0.02
_LEAST_SPAN_S = 1.0  # rates over less are noise


@dataclass(slots=True)
class _CallRates:
    """An actor's counters at an earlier sample, and its rates up to the last one."""

    at: float
    calls: int
    busy_s: float
    cpu_s: float
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)


class WorkerNumbers:
    """Reports the state of a worker's actors on its loop.

    Args:
        loop: The node's loop.
        leases: The worker's leases.
        watch: The monitor of their processes.
        tell: Sends messages to the master.
    """

    def __init__(self, loop: Loop, leases: WorkerLeases, watch: ActorWatch, tell: Callable[[Message], None]) -> None:
        self._loop = loop
        self._leases = leases
        self._watch = watch
        self._tell = tell
        self._reported: dict[str, ActorNumbers] = {}
        self._paces: dict[str, _CallRates] = {}
        self._due: float | None = None

    def report_soon(self) -> None:
        """Schedule a report soon, because an actor has started or changed its state."""
        self._look_at(self._loop.now() + _SOON_S)

    def report_all(self) -> None:
        """Schedule a report of all actors, for a master that has to learn everything again."""
        self._reported.clear()
        self.report_soon()

    def of(self, lease: WorkerLease) -> ActorNumbers:
        """Return the current numbers of an actor."""

        actor = lease.actor
        if actor is None:
            return ActorNumbers(lease.lease_id, ActorPhase.STARTING)
        calls = read_stats(actor.stats) or CallStats()
        seen = self._watch.get(actor.number)
        if actor.cause is not None:
            phase = ActorPhase.ENDING
        elif seen is not None and seen.stopped_since is not None:
            phase = ActorPhase.STOPPED
        else:
            phase = ActorPhase.BUSY if calls.in_flight else ActorPhase.IDLE
        return ActorNumbers(
            lease_id=lease.lease_id,
            phase=phase,
            pid=actor.pid,
            calls=calls.calls,
            errors=calls.errors,
            queued=calls.waiting,
            busy_with=calls.running,
            busy_since=round(time.time() - calls.running_s, 2) if calls.running else 0.0,
            busy_s=round(calls.busy_s, 3),
            cpu_s=processes.cpu_seconds(actor.pid),
            memory=seen.memory[-1].resident if seen is not None else 0,
            memory_limit=seen.memory_limit if seen is not None else None,
            last_error=calls.last_error,
        )

    def _look_at(self, when: float) -> None:
        if self._due is None or when < self._due:
            self._due = when
            self._loop.call_at(when, self._look)

    def _look(self) -> None:
        if self._due is None or self._loop.now() < self._due:
            return  # an earlier check has replaced this one
        self._due = None
        try:
            self._report()
        except OSError as error:  # there may be no descriptor left
            _log.debug("the report on actors is delayed: %s", error)
            self._look_at(self._loop.now() + _INTERVAL_S)

    def _report(self) -> None:
        changed: list[ActorNumbers] = []
        here: dict[str, ActorNumbers] = {}
        for lease in self._leases:
            if lease.start is None:
                continue
            before = self._reported.get(lease.lease_id)
            now = self._paced(self.of(lease))
            if before is None or _differ(before, now):
                changed.append(now)
                before = now
            here[lease.lease_id] = before
        self._reported = here
        self._paces = {lease_id: pace for lease_id, pace in self._paces.items() if lease_id in here}
        if changed:
            self._tell(NodeNumbers(tuple(changed)))
        if here:
            self._look_at(self._loop.now() + _INTERVAL_S)

    def _paced(self, numbers: ActorNumbers) -> ActorNumbers:
        """Return the numbers with rates since the previous sample."""
        at = self._loop.now()
        pace = self._paces.get(numbers.lease_id)
        if pace is None:
            pace = self._paces[numbers.lease_id] = _CallRates(at, numbers.calls, numbers.busy_s, numbers.cpu_s)
        elif (span_s := at - pace.at) >= _LEAST_SPAN_S:
            rates = (
                round((numbers.calls - pace.calls) / span_s, 2),
                round(max(0.0, numbers.busy_s - pace.busy_s) / span_s, 3),
                round(max(0.0, numbers.cpu_s - pace.cpu_s) / span_s, 3),
            )
            pace = _CallRates(at, numbers.calls, numbers.busy_s, numbers.cpu_s, rates)
            self._paces[numbers.lease_id] = pace
        calls_per_s, busy, cpu = pace.rates
        return dataclasses.replace(numbers, calls_per_s=calls_per_s, busy=busy, cpu=cpu)


def _differ(before: ActorNumbers, now: ActorNumbers) -> bool:
    """Return whether numbers have changed enough for a message."""
    return (
        abs(now.memory - before.memory) >= _MEMORY_STEP
        or now.cpu_s - before.cpu_s >= _CPU_STEP_S
        or abs(now.busy - before.busy) >= _SHARE_STEP
        or abs(now.cpu - before.cpu) >= _SHARE_STEP
        or dataclasses.replace(
            now,
            memory=before.memory,
            cpu_s=before.cpu_s,
            cpu=before.cpu,
            busy_s=before.busy_s,
            busy=before.busy,
            busy_since=before.busy_since,
        )
        != before
    )


_PRINTED_S = 0.03
_PRINT_TIMEOUT_S = 3.0  # an actor that can answer does within milliseconds, on a busy host within tenths of a second


@dataclass(slots=True, eq=False)
class _Dump:
    """A pending dump of one actor, and the requests for it."""

    actor: ActorProcess
    file: StackFile
    until: float
    size: int = 0
    asked: list[tuple[Link, int]] = field(default_factory=list)


class WorkerStacks:
    """Answers DumpStack; see `handshake.Part`.

    Args:
        loop: The node's loop.
        find: Returns an actor of this worker by its lease, None if it has no process (any more).
        signal: Sends an actor the signal that makes it print.
    """

    def __init__(
        self, loop: Loop, find: Callable[[str], ActorProcess | None], signal: Callable[[ActorProcess], None]
    ) -> None:
        self._loop = loop
        self._find = find
        self._signal = signal
        self._dumps: dict[int, _Dump] = {}

    def received(self, link: Link, message: Message, frames: Sequence[memoryview]) -> None:  # noqa: ARG002
        """Request a dump, or join a pending request."""
        if not isinstance(message, DumpStack):
            raise RemoteProtocolError(f"{type(message).__name__} is not a request about stacks")
        actor = self._find(message.lease_id)
        if actor is None:
            raise RemoteError(f"no actor runs on lease {message.lease_id} of this worker")
        dump = self._dumps.get(actor.number)
        if dump is None:
            dump = _Dump(actor, StackFile(actor.stats), self._loop.now() + _PRINT_TIMEOUT_S)
            dump.file.clear()
            self._signal(actor)
            self._dumps[actor.number] = dump
            self._loop.call_later(_PRINTED_S, lambda: self._look(dump))
        dump.asked.append((link, message.request_id))

    def closed(self, link: Link) -> None:
        """Drop the requests of a peer that is gone."""
        for dump in self._dumps.values():
            dump.asked = [one for one in dump.asked if one[0] is not link]

    def close(self) -> None:
        """Do nothing: files are opened only while they are read."""

    def _look(self, dump: _Dump) -> None:
        """Answer once there is a dump and it has stopped growing."""
        size = dump.file.size()
        if size and size == dump.size:
            text = dump.file.read()
            self._answer(dump, lambda number: StackDump(number, text))
        elif self._loop.now() >= dump.until:
            reason = (
                f"the actor did not print its stack within {_PRINT_TIMEOUT_S:g} s: {processes.state_of(dump.actor.pid)}"
            )
            self._answer(dump, lambda number: Failed(number, reason))
        else:
            dump.size = size
            self._loop.call_later(_PRINTED_S, lambda: self._look(dump))

    def _answer(self, dump: _Dump, make: Callable[[int], Message]) -> None:
        del self._dumps[dump.actor.number]
        for link, number in dump.asked:
            link.tell(make(number))
