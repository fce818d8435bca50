"""Turning a spare process into a lease's actor: what it is told before its first caller comes.

worker --CONFIGURE (log, environment, directory, threads, how to reach the cluster)--> actor
"""

from __future__ import annotations

import json

from parl_remote.actor.nested import ClusterReach
from parl_remote.links.call_messages import Kind, pack
from parl_remote.messages import StartActor
from parl_remote.system.thread_counts import chosen_number
from parl_remote.transport.unix import UnixChannel
from parl_remote.worker.actor_pool import PooledActor
from parl_remote.worker.leases import WorkerLease

__all__ = ["ActorEquipment"]


class ActorEquipment:
    """What all actors of a node have in common.

    Args:
        limit_threads: Whether actors get as many numeric threads as CPUs; not where the user chose a number.
        reach: How actors reach the cluster; None if they shall not.
    """

    def __init__(self, *, limit_threads: bool, reach: ClusterReach | None) -> None:
        self._limit_threads = limit_threads
        self._reach = reach

    def hand_over(self, lease: WorkerLease, actor: PooledActor) -> UnixChannel:
        """Tell a spare whose it is; returns the worker's way to it.

        Raises:
            ChannelClosed: It has ended.
            OSError: There is no descriptor for another connection.
        """
        start, assigned = lease.start, lease.assigned
        assert start is not None  # it waits because it was asked for
        settings: dict[str, object] = {
            "class_name": start.class_name or "actor",
            "log": str(actor.log),
            "calls": actor.stats,
            "environment": {"CUDA_VISIBLE_DEVICES": ",".join(assigned.gpus), **start.environment},
            "working_dir": start.working_dir,
            "threads": self._threads(start, assigned.resources.cpu),
        }
        if self._reach is not None:
            settings |= {"cluster": self._reach, "lease_id": start.lease_id, "detached": assigned.detached}
        channel = UnixChannel.connect(actor.address)
        channel.send(pack(Kind.CONFIGURE, 0, 0, 0, [json.dumps(settings).encode()]))
        return channel

    def _threads(self, start: StartActor, cpu: float) -> int | None:
        """How many an actor's libraries use: what its program says, else as many as it has CPUs."""
        if not self._limit_threads:
            return None
        return chosen_number(start.environment) or max(1, int(cpu))
