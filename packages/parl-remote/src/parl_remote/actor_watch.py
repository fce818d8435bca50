"""Looks after running actors from outside: how much memory they take, and whether somebody has stopped them.

An actor that has ended is reported by the zygote; what is left to look for is one that will never end by itself.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from parl_remote import processes
from parl_remote.config import Limits
from parl_remote.death import DeathCause, DeathKind
from parl_remote.loop import Loop

__all__ = ["ActorWatch"]

_MEMORY_SAMPLE_S = 0.5  # the promise is that an actor ends within a second of passing its limit


@dataclass(slots=True)
class _Watched:
    pid: int
    memory_limit: int | None
    memory_at_start: int
    stopped_since: float | None = None


class ActorWatch:
    """Samples processes on a node's loop.

    Args:
        loop: The node's loop.
        limits: How long a process may be stopped, and how often to look.
        end: Told the number of an actor that has to end, and why.
    """

    def __init__(self, loop: Loop, limits: Limits, end: Callable[[int, DeathCause], None]) -> None:
        self._loop = loop
        self._limits = limits
        self._end = end
        self._watched: dict[int, _Watched] = {}
        self._looking = False

    def add(self, number: int, pid: int, memory_limit: int | None) -> None:
        """Look after actor `number`; `memory_limit` is what it may grow by, in bytes."""
        at_start = processes.resident_bytes(pid) if memory_limit is not None else 0
        self._watched[number] = _Watched(pid, memory_limit, at_start)
        if not self._looking:
            self._look_later()

    def remove(self, number: int) -> None:
        """It has ended; unknown ones are ignored."""
        self._watched.pop(number, None)

    def _look_later(self) -> None:
        limited = any(one.memory_limit is not None for one in self._watched.values())
        self._looking = True
        self._loop.call_later(_MEMORY_SAMPLE_S if limited else self._limits.heartbeat_interval_s, self._look)

    def _look(self) -> None:
        self._looking = False
        for number, one in list(self._watched.items()):
            cause = self._too_much_memory(one) or self._stopped_too_long(one)
            if cause is not None:
                self.remove(number)
                self._end(number, cause)
        if self._watched:
            self._look_later()

    def _too_much_memory(self, one: _Watched) -> DeathCause | None:
        if one.memory_limit is None:
            return None
        used = processes.resident_bytes(one.pid) - one.memory_at_start
        if used <= one.memory_limit:
            return None
        sizes = f"it used {used / 2**20:.0f} MiB, its limit is {one.memory_limit / 2**20:.0f} MiB"
        return DeathCause(DeathKind.MEMORY, detail=sizes)

    def _stopped_too_long(self, one: _Watched) -> DeathCause | None:
        now = self._loop.now()
        if not processes.is_stopped(one.pid):
            one.stopped_since = None
        elif one.stopped_since is None:
            one.stopped_since = now
        elif now - one.stopped_since >= self._limits.liveness_limit_s:
            detail = f"it was stopped for more than {self._limits.liveness_limit_s:g} s"
            return DeathCause(DeathKind.SIGNAL, signal=int(signal.SIGSTOP), detail=detail)
        return None
