"""Where the monitor gets its knowledge: the interface between everything that shows and the link to the cluster.

Store, API  -->  Source  <--  ClusterSource (a client of the master)  |  a fake one in tests
"""

from __future__ import annotations

from typing import Protocol

from parl_remote.monitor.model import LogChunk, Snapshot

__all__ = ["Source", "SourceError", "Unknown", "Unreachable"]


class SourceError(Exception):
    """The cluster could not do what was asked; the message says why, for people."""


class Unreachable(SourceError):
    """Whoever had to answer does not; trying again later may help."""


class Unknown(SourceError):
    """There is no such actor or node any more."""


class Source(Protocol):
    """A cluster to look at. Every method may be called by any thread and takes at most a few seconds."""

    def snapshot(self) -> Snapshot:
        """The cluster now.

        Raises:
            Unreachable: The master does not answer.
        """

    def read_log(self, actor_id: str, position: int | None, most_bytes: int) -> LogChunk:
        """A piece of what an actor has written.

        Args:
            actor_id: An actor of the last snapshot, or one whose log its node still has.
            position: Where to start, as the chunk before said; None is `most_bytes` before the end.
            most_bytes: How much to read.

        Raises:
            Unknown: There is no such actor, or its log is gone.
            Unreachable: Its node does not answer.
        """

    def dump_stack(self, actor_id: str) -> str:
        """What every thread of an actor does now, as Python's faulthandler prints it.

        Raises:
            Unknown: There is no such actor.
            Unreachable: Its node does not answer.
            SourceError: The process cannot say, with the reason.
        """

    def kill(self, actor_id: str, reason: str) -> None:
        """End an actor's process.

        Raises:
            Unknown: There is no such actor.
            Unreachable: The master does not answer.
        """
