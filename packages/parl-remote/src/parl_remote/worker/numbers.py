"""A worker's reports of what its actors do: every two seconds, and only of those where something has changed.

    page of each actor's calls --\
    /proc of its process        ---> ActorNumbers --changed--> NodeNumbers --> master
    what the watch has seen    --/
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parl_remote.links.loop import Loop
from parl_remote.messages import Message
from parl_remote.system.facilities import is_portable
from parl_remote.worker.actor_watch import ActorWatch
from parl_remote.worker.leases import WorkerLease, WorkerLeases

if TYPE_CHECKING:
    from parl_remote.messages.overview import ActorNumbers

__all__ = ["WorkerNumbers"]

_log = logging.getLogger("parl.remote")

_INTERVAL_S = 2.0  # what people look at may be so old; a thousand busy workers are five hundred messages a second
_SOON_S = 0.2  # after an actor has come: many come together
_MEMORY_STEP = 2**20
_CPU_STEP_S = 0.05
_SHARE_STEP = 0.02
_LEAST_SPAN_S = 1.0  # rates over less are noise


@dataclass(slots=True)
class _Pace:
    """An actor's counters at an earlier look, and its rates up to the last one."""

    at: float
    calls: int
    busy_s: float
    cpu_s: float
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)


class WorkerNumbers:
    """Reports on a worker's loop, while it has actors.

    Args:
        loop: The node's loop.
        leases: The worker's leases.
        watch: What looks after their processes.
        tell: Takes the messages for the master.
    """

    def __init__(self, loop: Loop, leases: WorkerLeases, watch: ActorWatch, tell: Callable[[Message], None]) -> None:
        self._loop = loop
        self._leases = leases
        self._watch = watch
        self._tell = tell
        self._told: dict[str, ActorNumbers] = {}
        self._paces: dict[str, _Pace] = {}
        self._due: float | None = None

    def soon(self) -> None:
        """An actor has come, or does something else than before."""
        self._look_at(self._loop.now() + _SOON_S)

    def tell_all_again(self) -> None:
        """A master has to learn everything again."""
        self._told.clear()
        self.soon()

    def of(self, lease: WorkerLease) -> ActorNumbers:
        """What an actor does now."""
        from parl_remote.actor.stats import CallStats, read_stats
        from parl_remote.messages.overview import ActorNumbers, ActorPhase

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
            cpu_s=_cpu_s(actor.pid),
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
            return  # an earlier look has taken this one's place
        self._due = None
        try:
            self._report()
        except OSError as error:  # there may be no descriptor left even to import what reports need
            _log.debug("what actors do is reported later: %s", error)
            self._look_at(self._loop.now() + _INTERVAL_S)

    def _report(self) -> None:
        changed: list[ActorNumbers] = []
        here: dict[str, ActorNumbers] = {}
        for lease in self._leases:
            if lease.start is None:
                continue
            before = self._told.get(lease.lease_id)
            now = self._paced(self.of(lease))
            if before is None or _differ(before, now):
                changed.append(now)
                before = now
            here[lease.lease_id] = before
        self._told = here
        self._paces = {lease_id: pace for lease_id, pace in self._paces.items() if lease_id in here}
        if changed:
            from parl_remote.messages.overview import NodeNumbers

            self._tell(NodeNumbers(tuple(changed)))
        if here:
            self._look_at(self._loop.now() + _INTERVAL_S)

    def _paced(self, numbers: ActorNumbers) -> ActorNumbers:
        """The same with rates since the look before."""
        at = self._loop.now()
        pace = self._paces.get(numbers.lease_id)
        if pace is None:
            pace = self._paces[numbers.lease_id] = _Pace(at, numbers.calls, numbers.busy_s, numbers.cpu_s)
        elif (span_s := at - pace.at) >= _LEAST_SPAN_S:
            rates = (
                round((numbers.calls - pace.calls) / span_s, 2),
                round(max(0.0, numbers.busy_s - pace.busy_s) / span_s, 3),
                round(max(0.0, numbers.cpu_s - pace.cpu_s) / span_s, 3),
            )
            pace = _Pace(at, numbers.calls, numbers.busy_s, numbers.cpu_s, rates)
            self._paces[numbers.lease_id] = pace
        calls_per_s, busy, cpu = pace.rates
        return dataclasses.replace(numbers, calls_per_s=calls_per_s, busy=busy, cpu=cpu)


def _differ(before: ActorNumbers, now: ActorNumbers) -> bool:
    """Whether it is worth a message."""
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


def _cpu_s(pid: int) -> float:
    """CPU time that a process has used."""
    if is_portable():
        from parl_remote.portable.processes import cpu_seconds

        return cpu_seconds(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 2)
    except (OSError, IndexError, ValueError):
        return 0.0
