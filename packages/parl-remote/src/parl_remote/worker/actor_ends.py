"""The whole story of an actor's end, put together by its worker from everybody who knows a part of it.

    zygote      exit status or signal            --\
    whoever     why it was killed                   \
    the actor   its last word, if it ended in order  --> DeathCause
    its page    the method that ran last            /
    the watch   how its memory went                /
    its log     the last lines                   --
"""

from __future__ import annotations

import dataclasses
import time

from parl_remote.actor.last_word import LastWord
from parl_remote.actor.stats import last_method
from parl_remote.death import DeathCause, DeathKind
from parl_remote.system.host_memory import OutOfMemoryHint
from parl_remote.worker.actor_pool import PooledActor
from parl_remote.worker.actor_watch import Watched
from parl_remote.worker.leases import WorkerLease

__all__ = ["ActorEnds"]

_MIB = 2**20
_SIGKILL = 9
_STILLBORN = (DeathKind.CONSTRUCTOR, DeathKind.IMPORT)


class ActorEnds:
    """Writes the reports.

    Args:
        node: The node's name.
        out_of_memory: Says whether a SIGKILL was probably the kernel's.
    """

    def __init__(self, node: str, out_of_memory: OutOfMemoryHint) -> None:
        self._node = node
        self._out_of_memory = out_of_memory

    def report(self, cause: DeathCause, lease: WorkerLease, actor: PooledActor, watched: Watched | None) -> DeathCause:
        """All that is known of an end.

        Args:
            cause: What the zygote saw, or why the actor was killed; with the end of its log.
            lease: Whose end it is.
            actor: Its process.
            watched: What was seen of it while it lived.
        """
        said = LastWord.heard(lease.channel) if lease.channel is not None else None
        if said is not None and said.kind in _STILLBORN:  # whatever happened then came after it
            cause = dataclasses.replace(cause, kind=said.kind, detail=said.detail, exit_code=None)
        elif actor.cause is None:
            cause = self._by_itself(cause, said, actor)
        return dataclasses.replace(
            cause,
            last_call=cause.last_call or last_method(actor.stats),
            memory=tuple(watched.memory) if watched is not None else (),
            memory_limit=watched.memory_limit if watched is not None else None,
            memory_peak=actor.peak,
            node=self._node,
            pid=actor.pid,
            at=round(time.time(), 3),
            lease_id=lease.lease_id,
            class_name=lease.assigned.class_name,
            name=lease.assigned.actor_name,
            restarts=lease.assigned.restarts,
        )

    def _by_itself(self, cause: DeathCause, said: LastWord | None, actor: PooledActor) -> DeathCause:
        """Nobody here wanted it to end."""
        if said is not None and cause.exit_code == 0:
            return dataclasses.replace(cause, kind=said.kind, detail=said.detail, exit_code=None)
        if cause.kind is DeathKind.SIGNAL and cause.signal == _SIGKILL and not cause.detail:
            hint = self._out_of_memory()
            if hint:
                size = f"; it had used up to {actor.peak / _MIB:.0f} MiB"
                return dataclasses.replace(cause, kind=DeathKind.OUT_OF_MEMORY, detail=hint + size)
        return cause
