"""The leases of a worker, each from LeaseAssigned until its actor has ended, and why the latest ones did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parl_remote.death import DeathCause
from parl_remote.links.handshake import Link
from parl_remote.messages import LeaseAssigned, RunningLease, StartActor
from parl_remote.transport.unix import UnixChannel
from parl_remote.worker.actor_pool import PooledActor

__all__ = ["WorkerLease", "WorkerLeases"]

_ENDS_KEPT = 500  # for borrowers that come too late; a cause with its log is some kilobytes


@dataclass(slots=True, eq=False)
class WorkerLease:
    """One lease.

    Attributes:
        assigned: What the master said of it.
        since: When that was, on the loop's clock.
        link: The client that owns its actor, while it is connected.
        start: What that client asked for; None before it did.
        actor: The process, once there is one.
        channel: The worker's own way to it, which carries its last word.
    """

    assigned: LeaseAssigned
    since: float
    link: Link | None = None
    start: StartActor | None = None
    actor: PooledActor | None = None
    channel: UnixChannel | None = None

    @property
    def lease_id(self) -> str:
        """Its id."""
        return self.assigned.lease_id

    @property
    def client_id(self) -> str:
        """Who asked for it."""
        return self.assigned.client_id

    @property
    def outlives_its_client(self) -> bool:
        """Whether its actor goes on when its client is gone."""
        return self.assigned.detached and self.actor is not None

    def as_running(self, now: float) -> RunningLease:
        """For a master that has to learn of it again."""
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
    """All leases of one worker, by id."""

    def __init__(self) -> None:
        self._leases: dict[str, WorkerLease] = {}
        self._ended: dict[str, DeathCause] = {}

    def __iter__(self) -> Iterator[WorkerLease]:
        return iter(list(self._leases.values()))

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self._leases

    def get(self, lease_id: str) -> WorkerLease | None:
        """The lease of that id, if it is here."""
        return self._leases.get(lease_id)

    def add(self, lease: WorkerLease) -> None:
        """The master has assigned one."""
        self._leases[lease.lease_id] = lease

    def end(self, lease_id: str, cause: DeathCause) -> WorkerLease | None:
        """A lease is over; None if it was already."""
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            self._ended[lease_id] = cause
            if len(self._ended) > _ENDS_KEPT:
                del self._ended[next(iter(self._ended))]
        return lease

    def cause_of(self, lease_id: str) -> DeathCause | None:
        """Why a lease ended, if that was not long ago."""
        return self._ended.get(lease_id)

    def way_to(self, lease_id: str) -> tuple[str, UnixChannel] | None:
        """The socket's path of a living actor, and the worker's own way to it."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.actor is None or lease.channel is None or lease.actor.cause is not None:
            return None
        return lease.actor.address, lease.channel

    def is_owner(self, lease_id: str, client_id: str) -> bool:
        """Whether a client has made the actor on a lease."""
        lease = self._leases.get(lease_id)
        return lease is not None and lease.client_id == client_id

    def directories_in_use(self) -> set[str]:
        """Where actors run now."""
        starts = [lease.start for lease in self._leases.values()]
        return {start.working_dir for start in starts if start is not None and start.working_dir}

    def running(self, now: float) -> tuple[RunningLease, ...]:
        """Those that a master has to learn of again: somebody uses them, or will."""
        here = (lease for lease in self._leases.values() if lease.link is not None or lease.outlives_its_client)
        return tuple(lease.as_running(now) for lease in here)
