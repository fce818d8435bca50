"""The processes of a worker's actors: ordered from the zygote ahead of time, killed through it, reported when they end.

want(2) --fork--> zygote --forked--> a spare, on_spare()      take() -> the spare
                  zygote --refused-> on_refused(why): the host has no more processes or the like
                  zygote --ended---> on_ended(actor, why)
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parl_remote.death import DeathCause, DeathKind
from parl_remote.links.loop import Loop
from parl_remote.system import processes
from parl_remote.worker.zygote import ActorSource

__all__ = ["ActorPool", "PooledActor"]

_log = logging.getLogger("parl.remote")

_SPARES = 1  # one hides the fork from whoever asks for actors one after the other, and costs some MB
_REST_S = 1.0  # after a refusal nobody is started ahead for so long, or the refusals would keep the node busy
_MAX_ZYGOTE_DEATHS = 3  # a zygote that dies at once, again and again, dies of its configuration


@dataclass(slots=True, eq=False)
class PooledActor:
    """One process, spare or in use.

    Attributes:
        number: Its number on this node, never used again.
        pid: Its process number.
        address: The path of its socket.
        log: Where what it prints goes once it is in use.
        stats: Where it counts its calls once it is in use.
        cause: Why it was killed, or asked to end, if it was.
        peak: The most bytes of it that were ever in memory, known once it has ended.
    """

    number: int
    pid: int
    address: str
    log: Path
    stats: str
    cause: DeathCause | None = None
    peak: int = 0


class ActorPool:
    """Actors' processes, one of them always started ahead.

    Args:
        loop: The node's loop.
        directory: The node's private directory, with the actors' sockets.
        log_directory: Where actors' log files go.
        zygote: A zygote that runs.
        restart_zygote: Starts another one after a death.
        log_tail_lines: How many lines of its log go with an actor's end.
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
        on_ended: Callable[[PooledActor, DeathCause], None],
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._log_directory = log_directory
        self._restart_zygote = restart_zygote
        self._log_tail_lines = log_tail_lines
        self._on_spare = on_spare
        self._on_refused = on_refused
        self._on_ended = on_ended
        self._actors: dict[int, PooledActor] = {}
        self._spares: deque[PooledActor] = deque()
        self._ordered = 0
        self._last_number = 0
        self._zygote_deaths = 0
        self._spares_wanted = _SPARES
        self._closed = False
        self._zygote = zygote
        loop.add(zygote, self._hear)

    def want(self, count: int) -> None:
        """See to it that `count` actors can be taken soon, and a spare one after them."""
        while self._ordered + len(self._spares) < count + self._spares_wanted and not self._closed:
            self._last_number += 1
            self._ordered += 1
            self._zygote.fork(self._last_number)

    def take(self) -> PooledActor | None:
        """A process for an actor, None if none is ready."""
        return self._spares.popleft() if self._spares else None

    def kill(self, actor: PooledActor, cause: DeathCause) -> None:
        """End an actor at once; its end is reported with this cause, or an earlier one."""
        if actor.cause is None:
            actor.cause = cause
        self._zygote.kill(actor.number)

    def dump_stack(self, actor: PooledActor) -> None:
        """Have an actor print its stacks behind its page, see `stack_dumps`."""
        self._zygote.dump(actor.number)

    def note(self, actor: PooledActor, cause: DeathCause) -> None:
        """Report an actor's end with this cause, or an earlier one; somebody asks it to end by itself."""
        if actor.cause is None:
            actor.cause = cause

    def close(self) -> None:
        """Kill all actors and the zygote, and wait for them."""
        self._closed = True
        self._loop.remove(self._zygote)
        self._zygote.close()

    def _hear(self) -> None:
        reports = self._zygote.reports()
        if reports is None:
            self._zygote_died()
            return
        for report in reports:
            match report:
                case {"forked": int(number), "pid": int(pid)}:
                    self._forked(number, pid)
                case {"refused": int(_), "reason": str(reason)}:
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
        log = self._log_directory / f"actor-{number}.log"
        place = f"{self._directory}/a{number}"
        self._actors[number] = actor = PooledActor(number, pid, f"{place}.sock", log, f"{place}.calls")
        self._spares.append(actor)

    def _refused(self, reason: str) -> None:
        self._ordered -= 1
        _log.error("a process for an actor could not be started: %s", reason)
        if self._spares_wanted:
            self._spares_wanted = 0
            self._loop.call_later(_REST_S, self._want_spares)
        self._on_refused(reason)

    def _want_spares(self) -> None:
        self._spares_wanted = _SPARES
        self._on_spare()

    def _ended(self, actor: PooledActor, cause: DeathCause) -> None:
        del self._actors[actor.number]
        if actor in self._spares:
            self._spares.remove(actor)
        else:
            known = actor.cause or cause  # that we killed it says less than why we did
            lines = processes.tail(actor.log, self._log_tail_lines)
            self._on_ended(actor, dataclasses.replace(known, log_tail=lines))
            with contextlib.suppress(OSError):
                os.unlink(actor.stats)

    def _zygote_died(self) -> None:
        """All its actors have died with it; the next ones need another."""
        self._loop.remove(self._zygote)
        self._zygote.close()
        self._zygote_deaths += 1
        if self._zygote_deaths >= _MAX_ZYGOTE_DEATHS:
            raise RuntimeError(f"the zygote died {self._zygote_deaths} times without starting an actor; see its log")
        self._zygote = self._restart_zygote()
        self._loop.add(self._zygote, self._hear)
        self._ordered = 0
        cause = DeathCause(DeathKind.SIGNAL, detail="the process that actors are forked from was killed", signal=9)
        for actor in list(self._actors.values()):
            self._ended(actor, cause)
        self._on_spare()
