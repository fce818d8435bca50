"""A node's worker: starts actors on leases, watches them, and tells everyone concerned when one ends.

    master  --LeaseAssigned, LeaseRevoked-->  Worker  --fork, kill-->  zygote --> actors
            <--LeaseEnded, Heartbeat--------          <--forked, ended--
    client  --StartActor, StopActor-------->
            <--ActorStarted, ActorFailed, ActorDied--

One actor is always started ahead, so that the next one answers within milliseconds. A client's connection is its life
line: when it closes, the client's actors are killed at once.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from parl_remote.actor_pool import ActorPool, PooledActor
from parl_remote.actor_watch import ActorWatch
from parl_remote.call_messages import Kind, pack
from parl_remote.config import Limits
from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import ChannelClosed, RemoteProtocolError
from parl_remote.gpus import GpuShares
from parl_remote.handshake import Link
from parl_remote.log_book import LogBook, bytes_in
from parl_remote.loop import Loop
from parl_remote.messages import (
    ActorDied,
    ActorFailed,
    ActorStarted,
    AttachActor,
    LeaseAssigned,
    LeaseEnded,
    LeaseRevoked,
    Message,
    RunningLease,
    StartActor,
    StopActor,
    decode,
)
from parl_remote.parts import Part, Parts
from parl_remote.relay import Relay
from parl_remote.transport_unix import UnixChannel
from parl_remote.zygote import ZygoteProcess

__all__ = ["Worker"]

_ORPHAN_START_S = 10.0  # how long StartActor may overtake the LeaseAssigned that it needs


@dataclass(slots=True, eq=False)
class _Lease:
    """One lease from LeaseAssigned to LeaseEnded."""

    assigned: LeaseAssigned
    link: Link | None = None
    start: StartActor | None = None
    actor: PooledActor | None = None
    channel: UnixChannel | None = None
    gpus: tuple[str, ...] = field(default=())


class Worker:
    """The worker's side of all protocols, on the node's loop.

    Args:
        loop: The node's loop.
        directory: The node's private directory, for sockets.
        log_directory: Where actors' log files go.
        zygote: A zygote that runs.
        restart_zygote: Starts another one after a death.
        to_master: Takes what this worker has to tell the master.
        limits: Times and sizes.
        gpus: Names of the GPUs to give away, as CUDA_VISIBLE_DEVICES takes them.
        limit_threads: Whether actors get as many numeric threads as CPUs; not where the user chose a number.
        keep_logs: Whether log files of actors that ended stay, because their directory is the user's.

    Attributes:
        parts: What it does beside running actors; add to it before the first client comes.
        logs: What its actors write.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        directory: Path,
        log_directory: Path,
        zygote: ZygoteProcess,
        restart_zygote: Callable[[], ZygoteProcess],
        to_master: Callable[[Message], None],
        limits: Limits,
        gpus: tuple[str, ...] = (),
        limit_threads: bool = True,
        keep_logs: bool = False,
    ) -> None:
        self._loop = loop
        self._to_master = to_master
        self.parts = Parts()
        self.parts.add(("SeeFiles", "PrepareFolder", "StoreParts"), lambda: self._make_files(directory / "files"))
        self.logs = LogBook(loop, keep=keep_logs)
        self.parts.add(("ReadLog", "FollowActors"), self._log_part)
        self._gpus = GpuShares(gpus)
        self._limit_threads = limit_threads
        self._leases: dict[str, _Lease] = {}
        self._early: dict[str, tuple[Link, StartActor]] = {}
        self._in_use: dict[int, _Lease] = {}
        self._waiting: deque[_Lease] = deque()
        self._watch = ActorWatch(loop, limits, lambda number, cause: self._end(self._in_use[number], cause))
        self._relay = Relay(loop)
        self._pool = ActorPool(
            loop,
            directory=directory,
            log_directory=log_directory,
            zygote=zygote,
            restart_zygote=restart_zygote,
            log_tail_lines=limits.log_tail_lines,
            on_spare=self._serve_waiting,
            on_refused=self._refuse_first,
            on_ended=self._actor_ended,
        )
        self._pool.want(0)

    # -- the master's side ---------------------------------------------------------------------------------------

    def on_master(self, message: Message) -> None:
        """Take a message of the master's; those that are not for a worker's leases are ignored."""
        if isinstance(message, LeaseAssigned):
            self._leases[message.lease_id] = _Lease(message)
            link, start = self._early.pop(message.lease_id, (None, None))
            if link is not None and start is not None:
                self._start(link, start)
        elif isinstance(message, LeaseRevoked):
            lease = self._leases.get(message.lease_id)
            if lease is not None:
                self._give_gpus_back(lease)  # the master may give them away from now on
                self._end(lease, DeathCause(DeathKind.CLIENT_GONE, detail=message.reason))

    def running(self) -> tuple[RunningLease, ...]:
        """The leases that run here, for a master that has to learn them again."""
        return tuple(
            RunningLease(a.lease_id, a.client_id, a.resources, a.class_name)
            for a in (lease.assigned for lease in self._leases.values() if lease.link is not None)
        )

    # -- the clients' side (handshake.Service) -------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        """A client connected; it has nothing here yet."""

    def received(self, link: Link, frames: list[memoryview]) -> None:
        """A client wants an actor started or stopped, or one on another host calls an actor."""
        if self._relay.carries(link):
            self._relay.forward(link, frames)
            return
        message = decode(frames[0])
        if self.parts.take(link, message, frames):
            return
        if isinstance(message, StartActor):
            if message.lease_id in self._leases:
                self._start(link, message)
            else:
                self._early[message.lease_id] = (link, message)
                self._loop.call_later(_ORPHAN_START_S, lambda: self._refuse_early(message.lease_id))
        elif isinstance(message, StopActor):
            lease = self._leases.get(message.lease_id)
            if lease is not None and lease.assigned.client_id == link.hello.id:
                self._end(lease, DeathCause(DeathKind.KILLED_BY_USER, detail=message.reason))
        elif isinstance(message, AttachActor):
            self._attach(link, message.lease_id)
        else:
            raise RemoteProtocolError(f"a worker cannot take {type(message).__name__} from a client")

    def closed(self, link: Link, reason: str) -> None:
        """A client is gone: so are its actors. The end of a relayed connection ends nothing else."""
        if self._relay.carries(link):
            self._relay.closed(link)
            return
        self.parts.closed(link)
        cause = DeathCause(DeathKind.CLIENT_GONE, detail=reason)
        for lease in list(self._leases.values()):
            if lease.link is link:
                lease.link = None
                self._end(lease, cause)
        for lease_id in [lease_id for lease_id, early in self._early.items() if early[0] is link]:
            del self._early[lease_id]

    def _attach(self, link: Link, lease_id: str) -> None:
        """Make a link the way to an actor for a client on another host."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.actor is None or lease.assigned.client_id != link.hello.id:
            link.drop()  # it has ended meanwhile, and its client is told so
        else:
            self._relay.attach(link, lease.actor.address)

    def _refuse_early(self, lease_id: str) -> None:
        link, _ = self._early.pop(lease_id, (None, None))
        if link is not None:
            link.tell(ActorFailed(lease_id, f"there is no lease {lease_id} on this worker"))

    def _make_files(self, directory: Path) -> Part:
        from parl_remote.worker_files import WorkerFiles  # most programs' actors see the program's own files

        return WorkerFiles(self._loop, directory, self._directories_in_use)

    def _directories_in_use(self) -> set[str]:
        """Where actors run now."""
        starts = [lease.start for lease in self._leases.values()]
        return {start.working_dir for start in starts if start is not None and start.working_dir}

    # -- starting ------------------------------------------------------------------------------------------------

    def _start(self, link: Link, start: StartActor) -> None:
        lease = self._leases[start.lease_id]
        if lease.assigned.client_id != link.hello.id:
            raise RemoteProtocolError(f"lease {start.lease_id} belongs to another client")
        if lease.start is not None:
            raise RemoteProtocolError(f"lease {start.lease_id} has an actor already")
        lease.link, lease.start = link, start
        self._waiting.append(lease)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while self._waiting and (actor := self._pool.take()):
            lease = self._waiting.popleft()
            try:
                self._equip(lease, actor)
            except ChannelClosed:  # the spare has died; the next one will do
                self._give_gpus_back(lease)
                self._waiting.appendleft(lease)
            except OSError as error:
                self._waiting.appendleft(lease)
                self._pool.kill(actor, DeathCause(DeathKind.KILLED_BY_USER, detail="it was not needed"))
                self._refuse_first(error.strerror or str(error))
        self._pool.want(len(self._waiting))

    def _refuse_first(self, reason: str) -> None:
        """The host cannot have another actor: say so to the one who has waited longest."""
        if self._waiting:
            cause = DeathCause(DeathKind.EXIT, detail=f"its host could not start it ({reason})")
            self._forget(self._waiting[0].assigned.lease_id, cause)

    def _equip(self, lease: _Lease, actor: PooledActor) -> None:
        """Turn a spare into the lease's actor."""
        start, resources = lease.start, lease.assigned.resources
        assert start is not None  # it waits because it was asked for
        channel = UnixChannel.connect(actor.address)
        lease.gpus = self._gpus.take(resources.gpu)
        settings = {
            "class_name": start.class_name or "actor",
            "log": str(actor.log),
            "environment": {"CUDA_VISIBLE_DEVICES": ",".join(lease.gpus), **start.environment},
            "working_dir": start.working_dir,
            "threads": max(1, int(resources.cpu)) if self._limit_threads else None,
        }
        already = bytes_in(actor.log)
        channel.send(pack(Kind.CONFIGURE, 0, 0, 0, [json.dumps(settings).encode()]))
        if lease.link is not None:
            self.logs.began(lease.assigned, lease.link.hello, actor.pid, actor.log, already)
        lease.actor, lease.channel = actor, channel
        self._in_use[actor.number] = lease
        self._watch.add(actor.number, actor.pid, start.memory_limit)
        if lease.link is not None:
            lease.link.tell(ActorStarted(start.lease_id, actor.address, actor.pid))

    # -- ending --------------------------------------------------------------------------------------------------

    def _end(self, lease: _Lease, cause: DeathCause) -> None:
        """End the lease's actor for a known cause; the rest follows when its end is reported."""
        if lease.actor is None:
            self._forget(lease.assigned.lease_id, cause)
        else:
            self._pool.kill(lease.actor, cause)

    def _forget(self, lease_id: str, cause: DeathCause) -> None:
        """A lease is over; say so to master and client."""
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return
        if lease in self._waiting:
            self._waiting.remove(lease)
        self._give_gpus_back(lease)
        if lease.link is not None:
            lease.link.tell(ActorDied(lease_id, cause))
        self._to_master(LeaseEnded(lease_id, cause))

    def _give_gpus_back(self, lease: _Lease) -> None:
        self._gpus.give(lease.gpus, lease.assigned.resources.gpu)
        lease.gpus = ()

    def _actor_ended(self, actor: PooledActor, cause: DeathCause) -> None:
        self._watch.remove(actor.number)
        lease = self._in_use.pop(actor.number, None)
        if lease is not None and lease.channel is not None:
            lease.channel.close()
            self.logs.ended(lease.assigned.lease_id)
            self._forget(lease.assigned.lease_id, cause)

    def _log_part(self) -> Part:
        from parl_remote.worker_logs import WorkerLogs  # only where somebody wants to read logs

        return WorkerLogs(self._loop, self.logs)

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Kill all actors and the zygote, and wait for them."""
        self.parts.close()
        self._pool.close()
        self._relay.close()
