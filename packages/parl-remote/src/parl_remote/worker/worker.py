"""A node's worker: starts actors on leases, watches them, and tells everyone concerned when one ends.

    master  --LeaseAssigned, LeaseRevoked, EndActor-->  Worker  --fork, kill-->  zygote --> actors
            <--LeaseEnded, NodeNumbers----------------          <--forked, ended--
    client  --StartActor, StopActor-------->
            <--ActorStarted, ActorFailed, ActorDied--

One actor is always started ahead, so that the next one answers within milliseconds. A client's connection is its life
line: when it closes, the client's actors are killed at once, save detached ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from parl_remote.actor.nested import ClusterReach
from parl_remote.config import Limits
from parl_remote.death import DeathCause, DeathKind
from parl_remote.errors import ChannelClosed, RemoteProtocolError, ResultTimeout
from parl_remote.links.call_messages import Kind, pack
from parl_remote.links.handshake import Link
from parl_remote.links.identity import host_name
from parl_remote.links.loop import Loop
from parl_remote.links.parts import Part, Parts
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
from parl_remote.worker.actor_equipment import ActorEquipment
from parl_remote.worker.actor_pool import ActorPool, PooledActor
from parl_remote.worker.actor_watch import ActorWatch
from parl_remote.worker.leases import WorkerLease, WorkerLeases
from parl_remote.worker.log_book import LogBook, bytes_in
from parl_remote.worker.numbers import WorkerNumbers
from parl_remote.worker.relay import Relay
from parl_remote.worker.zygote import ActorSource

if TYPE_CHECKING:
    from parl_remote.worker.actor_ends import ActorEnds
    from parl_remote.worker.borrowers import Borrowers

__all__ = ["Worker"]

_ORPHAN_START_S = 10.0  # how long StartActor may overtake the LeaseAssigned that it needs
_ON_THE_WAY_S = 1.0  # how long StartActor may take that was sent before its client broke off


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
        limit_threads: Whether actors get as many numeric threads as CPUs; not where the user chose a number.
        reach: How actors reach the cluster; None if they shall not.
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
        zygote: ActorSource,
        restart_zygote: Callable[[], ActorSource],
        to_master: Callable[[Message], None],
        limits: Limits,
        limit_threads: bool = True,
        keep_logs: bool = False,
        reach: ClusterReach | None = None,
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._to_master = to_master
        self._leases = WorkerLeases()
        self._early: dict[str, tuple[Link, StartActor]] = {}
        self._in_use: dict[int, WorkerLease] = {}
        self._waiting: deque[WorkerLease] = deque()
        self._equipment = ActorEquipment(limit_threads=limit_threads, reach=reach)
        self._watch = ActorWatch(loop, limits, lambda number, cause: self._end(self._in_use[number], cause))
        self._ends: ActorEnds | None = None
        self._numbers = WorkerNumbers(loop, self._leases, self._watch, to_master)
        self._relay = Relay(loop)
        self.logs = LogBook(loop, keep=keep_logs)
        self._borrowers: Borrowers | None = None
        self.parts = Parts()
        self.parts.add(("SeeFiles", "PrepareFolder", "StoreParts"), self._file_part)
        self.parts.add(("ReadLog", "FollowActors"), self._log_part)
        self.parts.add(("DumpStack",), self._stack_part)
        self.parts.add(("StoreObject", "HoldObject", "FetchObject", "ReleaseObject"), self._object_part)
        self.parts.add(("WatchActor", "ActorReached", "UnwatchActor", "DescribeActor"), self._borrower_part)
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
            self._leases.add(WorkerLease(message, self._loop.now()))
            link, start = self._early.pop(message.lease_id, (None, None))
            if link is not None and start is not None:
                self._start(link, start)
        elif isinstance(message, LeaseRevoked):
            lease = self._leases.get(message.lease_id)
            if lease is not None:
                self._end(lease, DeathCause(DeathKind.CLIENT_GONE, detail=message.reason))
        else:
            self._steered(message)

    def running(self) -> tuple[RunningLease, ...]:
        """The leases that run here, for a master that has to learn them again."""
        self._numbers.tell_all_again()
        return self._leases.running(self._loop.now())

    def _steered(self, message: Message) -> None:
        if type(message).__module__ != "parl_remote.messages.overview":  # imported where the first one comes
            return
        from parl_remote.messages.overview import EndActor, ForgetUnstarted

        match message:
            case EndActor(lease_id=lease_id) if lease := self._leases.get(lease_id):
                cause = DeathCause(message.kind, detail=message.detail)
                if message.grace_s and self._ask_to_end(lease, cause):
                    self._loop.call_later(message.grace_s, lambda: self._end(lease, cause))
                else:
                    self._end(lease, cause)
            case ForgetUnstarted(lease_id=lease_id):
                self._loop.call_later(_ON_THE_WAY_S, lambda: self._forget_unstarted(lease_id))
            case _:
                pass  # the lease has ended, and the master is about to hear of it

    def _forget_unstarted(self, lease_id: str) -> None:
        lease = self._leases.get(lease_id)
        if lease is not None and lease.start is None:
            self._forget(lease_id, DeathCause(DeathKind.CLIENT_GONE, detail="it broke off before it used its room"))

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
            if lease is not None:  # whoever holds a handle may, and whoever has the key may hold one
                self._end(lease, DeathCause(DeathKind.KILLED_BY_USER, detail=message.reason))
        elif isinstance(message, AttachActor):
            self._attach(link, message.lease_id)
        else:
            raise RemoteProtocolError(f"a worker cannot take {type(message).__name__} from a client")

    def closed(self, link: Link, reason: str) -> None:
        """A client is gone: so are its actors, save detached ones. The end of a relayed connection ends nothing."""
        if self._relay.carries(link):
            self._relay.closed(link)
            return
        self.parts.closed(link)
        cause = DeathCause(DeathKind.CLIENT_GONE, detail=reason)
        for lease in self._leases:
            if lease.link is link:
                lease.link = None
                if not lease.outlives_its_client:
                    self._end(lease, cause)
        for lease_id in [lease_id for lease_id, early in self._early.items() if early[0] is link]:
            del self._early[lease_id]

    def _attach(self, link: Link, lease_id: str) -> None:
        """Make a link the way to an actor for a client on another host."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.actor is None:
            link.drop()  # it has ended meanwhile, and its client is told so
        else:
            self._relay.attach(link, lease.actor.address)
            if self._borrowers is not None:
                self._borrowers.attached(link.hello.id, lease_id)

    def _refuse_early(self, lease_id: str) -> None:
        link, _ = self._early.pop(lease_id, (None, None))
        if link is not None:
            link.tell(ActorFailed(lease_id, f"there is no lease {lease_id} on this worker"))

    # -- parts ---------------------------------------------------------------------------------------------------

    def _file_part(self) -> Part:
        from parl_remote.worker.files import WorkerFiles  # most programs' actors see the program's own files

        return WorkerFiles(self._loop, self._directory / "files", self._leases.directories_in_use)

    def _stack_part(self) -> Part:
        from parl_remote.worker.stacks import WorkerStacks  # only where somebody wants to see one

        def find(lease_id: str) -> PooledActor | None:
            lease = self._leases.get(lease_id)
            return lease.actor if lease is not None else None

        return WorkerStacks(self._loop, find, self._pool.dump_stack)

    def _log_part(self) -> Part:
        from parl_remote.worker.logs import WorkerLogs  # only where somebody wants to read logs

        return WorkerLogs(self._loop, self.logs)

    def _object_part(self) -> Part:
        from parl_remote.worker.objects import WorkerObjects  # only where programs run on other hosts, and use `put`

        return WorkerObjects(self._loop, self._directory)

    def _borrower_part(self) -> Part:
        from parl_remote.worker.borrowers import Borrowers  # only where actors get handles of others

        leases = self._leases
        self._borrowers = Borrowers(leases.way_to, leases.cause_of, leases.is_owner, self._loop)
        return self._borrowers

    # -- starting ------------------------------------------------------------------------------------------------

    def _start(self, link: Link, start: StartActor) -> None:
        lease = self._leases.get(start.lease_id)
        if lease is None or lease.client_id != link.hello.id:
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
            self._forget(self._waiting[0].lease_id, cause)

    def _equip(self, lease: WorkerLease, actor: PooledActor) -> None:
        """Turn a spare into the lease's actor."""
        already = bytes_in(actor.log)
        lease.channel = self._equipment.hand_over(lease, actor)
        lease.actor = actor
        self._in_use[actor.number] = lease
        self._watch.add(actor.number, actor.pid, lease.start.memory_limit if lease.start is not None else None)
        self._numbers.soon()
        if lease.link is not None:
            self.logs.began(lease.assigned, lease.link.hello, actor.pid, actor.log, already)
            lease.link.tell(ActorStarted(lease.lease_id, actor.address, actor.pid))

    # -- ending --------------------------------------------------------------------------------------------------

    def _end(self, lease: WorkerLease, cause: DeathCause) -> None:
        """End the lease's actor for a known cause; the rest follows when its end is reported."""
        if lease.actor is None:
            self._forget(lease.lease_id, cause)
        elif lease.actor.number in self._in_use:
            self._pool.kill(lease.actor, cause)

    def _ask_to_end(self, lease: WorkerLease, cause: DeathCause) -> bool:
        """Let an actor do what it was sent and then end; False if it cannot be asked."""
        if lease.actor is None or lease.channel is None:
            return False
        try:
            lease.channel.send(pack(Kind.CLOSE, 0, 1, 0), 0.0)
        except (ChannelClosed, ResultTimeout):
            return False
        self._pool.note(lease.actor, cause)
        self._numbers.soon()
        return True

    def _forget(self, lease_id: str, cause: DeathCause) -> None:
        """A lease is over; say so to master, client and borrowers."""
        lease = self._leases.end(lease_id, cause)
        if lease is None:
            return
        if lease in self._waiting:
            self._waiting.remove(lease)
        if lease.link is not None:
            lease.link.tell(ActorDied(lease_id, cause))
        if self._borrowers is not None:
            self._borrowers.actor_ended(lease_id, cause)
        self._to_master(LeaseEnded(lease_id, cause))

    def _actor_ended(self, actor: PooledActor, cause: DeathCause) -> None:
        lease = self._in_use.pop(actor.number, None)
        watched = self._watch.remove(actor.number)
        if lease is not None and lease.channel is not None:
            cause = self._reporter().report(cause, lease, actor, watched)
            lease.channel.close()
            self.logs.ended(lease.lease_id)
            self._forget(lease.lease_id, cause)

    def _reporter(self) -> ActorEnds:
        if self._ends is None:
            from parl_remote.worker.actor_ends import ActorEnds  # not in the way of the first actor

            self._ends = ActorEnds(host_name(), self._watch.out_of_memory)
        return self._ends

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Kill all actors and the zygote, and wait for them."""
        self.parts.close()
        self._pool.close()
        self._relay.close()
