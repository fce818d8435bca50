"""Looks after running actors from outside: how much memory they take, and whether somebody has stopped them.

An actor that has ended is reported by the zygote; what is left to look for is one that will never end by itself. What
is seen is kept for a minute, for the report of an actor's end.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from parl_remote.config import Limits
from parl_remote.death import DeathCause, DeathKind, MemorySample
from parl_remote.links.loop import Loop
from parl_remote.system import processes
from parl_remote.system.host_memory import OutOfMemoryHint

__all__ = ["ActorWatch", "Watched"]

_SAMPLE_S = 1.0
_LIMITED_SAMPLE_S = 0.5  # the promise is that an actor ends within a second of passing its limit
_KEPT = 60


@dataclass(slots=True)
class Watched:
    """What was seen of one actor.

    Attributes:
        pid: Its process.
        memory_limit: What it may grow by, in bytes; None for no limit.
        memory_at_start: How large it was when it became an actor.
        stopped_since: When it was first seen stopped by a signal, on the loop's clock; None if it runs.
        memory: How large it was, the last minute of it.
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
        limits: How long a process may be stopped.
        end: Told the number of an actor that has to end, and why.
    """

    def __init__(self, loop: Loop, limits: Limits, end: Callable[[int, DeathCause], None]) -> None:
        self._loop = loop
        self._limits = limits
        self._end = end
        self._watched: dict[int, Watched] = {}
        self._looking = False
        self.out_of_memory = OutOfMemoryHint()

    def add(self, number: int, pid: int, memory_limit: int | None) -> None:
        """Look after actor `number`; `memory_limit` is what it may grow by, in bytes."""
        one = self._watched[number] = Watched(pid, memory_limit, processes.resident_bytes(pid))
        one.memory.append(MemorySample(time.time(), one.memory_at_start))
        if not self._looking:
            self._look_later()

    def get(self, number: int) -> Watched | None:
        """What was seen of an actor."""
        return self._watched.get(number)

    def remove(self, number: int) -> Watched | None:
        """It has ended; None for unknown ones."""
        return self._watched.pop(number, None)

    def _look_later(self) -> None:
        limited = any(one.memory_limit is not None for one in self._watched.values())
        self._looking = True
        delay_s = _LIMITED_SAMPLE_S if limited else _SAMPLE_S
        for one in self._watched.values():
            if one.stopped_since is not None:  # not a moment later than it has to be
                delay_s = min(delay_s, max(0.01, one.stopped_since + self._patience_s - self._loop.now()))
        self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._looking = False
        at = round(time.time(), 3)
        self.out_of_memory.look()
        for number, one in list(self._watched.items()):
            one.memory.append(MemorySample(at, processes.resident_bytes(one.pid)))
            cause = _too_much_memory(one) or self._stopped_too_long(one)
            if cause is not None:
                self._end(number, cause)
        if self._watched:
            self._look_later()

    @property
    def _patience_s(self) -> float:
        """How long one may be seen stopped: it may have been that for a whole sample before, and telling takes time."""
        limit_s = self._limits.liveness_limit_s
        return limit_s - 1.5 * _SAMPLE_S if limit_s > 3 * _SAMPLE_S else limit_s

    def _stopped_too_long(self, one: Watched) -> DeathCause | None:
        now = self._loop.now()
        if not processes.is_stopped(one.pid):
            one.stopped_since = None
        elif one.stopped_since is None:
            one.stopped_since = now
        elif now - one.stopped_since >= self._patience_s:
            detail = f"it was stopped for more than {self._patience_s:g} s"
            return DeathCause(DeathKind.SIGNAL, signal=int(getattr(signal, "SIGSTOP", 0)), detail=detail)
        return None


def _too_much_memory(one: Watched) -> DeathCause | None:
    if one.memory_limit is None:
        return None
    used = one.memory[-1].resident - one.memory_at_start
    if used <= one.memory_limit:
        return None
    sizes = f"it used {used / 2**20:.0f} MiB, its limit is {one.memory_limit / 2**20:.0f} MiB"
    return DeathCause(DeathKind.MEMORY, detail=sizes)
