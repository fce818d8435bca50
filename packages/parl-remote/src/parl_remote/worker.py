"""A node's worker: starts actors on leases, watches them, and tells everyone concerned when one ends.

    master  --LeaseAssigned, LeaseRevoked-->  Worker  --fork, kill-->  zygote --> actors
            <--LeaseEnded, Heartbeat--------          <--forked, ended--
    client  --StartActor, StopActor-------->
            <--ActorStarted, ActorFailed, ActorDied--

One actor is always started ahead, so that the next one answers within milliseconds. A client's connection is its life
line: when it closes, the client's actors are killed at once.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from parl_remote import processes
from parl_remote.actor_watch import ActorWatch
from parl_remote.call_messages import Kind, pack
from parl_remote.config import Limits
from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import ChannelClosed, RemoteProtocolError
from parl_remote.gpus import GpuShares
from parl_remote.handshake import Link
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
from parl_remote.relay import Relay
from parl_remote.transport_unix import UnixChannel
from parl_remote.zygote import ZygoteProcess

__all__ = ["Worker"]

_log = logging.getLogger("parl.remote")

_SPARES = 1  # one hides the fork from whoever asks for actors one after the other, and costs some MB
_MAX_ZYGOTE_DEATHS = 3  # a zygote that dies at once, again and again, dies of its configuration
_ORPHAN_START_S = 10.0  # how long StartActor may overtake the LeaseAssigned that it needs


@dataclass(slots=True, eq=False)
class _Actor:
    """One process, spare or leased."""

    number: int
    pid: int
    log: Path
    lease: _Lease | None = None
    channel: UnixChannel | None = None
    cause: DeathCause | None = None


@dataclass(slots=True, eq=False)
class _Lease:
    """One lease from LeaseAssigned to LeaseEnded."""

    assigned: LeaseAssigned
    link: Link | None = None
    start: StartActor | None = None
    actor: _Actor | None = None
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
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._log_directory = log_directory
        self._restart_zygote = restart_zygote
        self._to_master = to_master
        self._limits = limits
        self._gpus = GpuShares(gpus)
        self._limit_threads = limit_threads
        self._leases: dict[str, _Lease] = {}
        self._early: dict[str, tuple[Link, StartActor]] = {}
        self._actors: dict[int, _Actor] = {}
        self._spares: deque[_Actor] = deque()
        self._waiting: deque[_Lease] = deque()
        self._ordered = 0
        self._numbers = 0
        self._zygote_deaths = 0
        self._watch = ActorWatch(loop, limits, self._end_number)
        self._closed = False
        self._relay = Relay(loop)
        self._zygote = zygote
        loop.add(zygote, self._hear_zygote)
        self._order_spares()

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
            self._relay.attach(link, self._address_of(lease.actor))

    def _refuse_early(self, lease_id: str) -> None:
        link, _ = self._early.pop(lease_id, (None, None))
        if link is not None:
            link.tell(ActorFailed(lease_id, f"there is no lease {lease_id} on this worker"))

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
        while self._waiting and self._spares:
            lease, actor = self._waiting.popleft(), self._spares.popleft()
            try:
                self._equip(lease, actor)
            except ChannelClosed:  # the spare died; its end will be reported
                self._waiting.appendleft(lease)
        self._order_spares()

    def _order_spares(self) -> None:
        while self._ordered + len(self._spares) < len(self._waiting) + _SPARES and not self._closed:
            self._numbers += 1
            self._ordered += 1
            self._zygote.fork(self._numbers)

    def _equip(self, lease: _Lease, actor: _Actor) -> None:
        """Turn a spare into the lease's actor."""
        start, resources = lease.start, lease.assigned.resources
        assert start is not None  # it waits because it was asked for
        address = self._address_of(actor)
        actor.channel = UnixChannel.connect(address)
        lease.gpus = self._gpus.take(resources.gpu)
        settings = {
            "class_name": start.class_name or "actor",
            "log": str(actor.log),
            "environment": {"CUDA_VISIBLE_DEVICES": ",".join(lease.gpus), **start.environment},
            "working_dir": start.working_dir,
            "threads": max(1, int(resources.cpu)) if self._limit_threads else None,
        }
        actor.channel.send(pack(Kind.CONFIGURE, 0, 0, 0, [json.dumps(settings).encode()]))
        actor.lease, lease.actor = lease, actor
        self._watch.add(actor.number, actor.pid, start.memory_limit)
        if lease.link is not None:
            lease.link.tell(ActorStarted(start.lease_id, address, actor.pid))

    def _address_of(self, actor: _Actor) -> str:
        return f"{self._directory}/a{actor.number}.sock"

    # -- ending --------------------------------------------------------------------------------------------------

    def _end(self, lease: _Lease, cause: DeathCause) -> None:
        """End the lease's actor for a known cause; the rest follows when its end is reported."""
        if lease.actor is None:
            self._forget(lease.assigned.lease_id, cause)
        elif lease.actor.cause is None:
            lease.actor.cause = cause
            self._zygote.kill(lease.actor.number)

    def _end_number(self, number: int, cause: DeathCause) -> None:
        actor = self._actors.get(number)
        if actor is not None and actor.lease is not None:
            self._end(actor.lease, cause)

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

    def _actor_ended(self, actor: _Actor, cause: DeathCause) -> None:
        self._actors.pop(actor.number, None)
        self._watch.remove(actor.number)
        if actor in self._spares:
            self._spares.remove(actor)
        if actor.channel is not None:
            actor.channel.close()
        if actor.lease is not None:
            lines = processes.tail(actor.log, self._limits.log_tail_lines)
            known = actor.cause or cause  # that we killed it says less than why we did
            self._forget(actor.lease.assigned.lease_id, dataclasses.replace(known, log_tail=lines))

    # -- the zygote ----------------------------------------------------------------------------------------------

    def _hear_zygote(self) -> None:
        reports = self._zygote.reports()
        if reports is None:
            self._zygote_died()
            return
        for report in reports:
            match report:
                case {"forked": int(number), "pid": int(pid)}:
                    self._ordered -= 1
                    actor = _Actor(number, pid, self._log_directory / f"actor-{number}.log")
                    self._actors[number] = actor
                    self._spares.append(actor)
                    self._zygote_deaths = 0
                case {"ended": int(number), "status": int(status)} if number in self._actors:
                    self._actor_ended(self._actors[number], processes.death_of(status))
                case {"ready": _, "failed": dict(failed)}:
                    for name, why in failed.items():
                        _log.error("cannot import %s ahead for all actors: %s", name, why)
                case _:
                    _log.error("unknown report of the zygote: %r", report)
        self._serve_waiting()

    def _zygote_died(self) -> None:
        """All its actors have died with it; the next ones need another."""
        self._loop.remove(self._zygote)
        self._zygote.close()
        self._zygote_deaths += 1
        cause = DeathCause(DeathKind.SIGNAL, detail="the process that actors are forked from was killed", signal=9)
        for actor in list(self._actors.values()):
            self._actor_ended(actor, cause)
        self._spares.clear()
        self._ordered = 0
        if self._zygote_deaths >= _MAX_ZYGOTE_DEATHS:
            raise RuntimeError(f"the zygote died {self._zygote_deaths} times without starting an actor; see its log")
        self._zygote = self._restart_zygote()
        self._loop.add(self._zygote, self._hear_zygote)
        self._order_spares()

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Kill all actors and the zygote, and wait for them."""
        self._closed = True
        self._loop.remove(self._zygote)
        self._zygote.close()
        self._relay.close()
