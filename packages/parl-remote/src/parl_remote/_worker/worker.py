"""A node's worker: starts actors on leases, watches them, and reports their ends to master, owner and borrowers.

    master  --LeaseAssigned, LeaseRevoked, EndActor-->  Worker  --fork, kill-->  zygote --> actors
            <--LeaseEnded, NodeNumbers----------------          <--forked, ended--
    client  --StartActor, StopActor-------->
            <--ActorStarted, ActorFailed, ActorDied--

One actor is always started ahead, so that the next one answers within milliseconds. When a client's connection closes,
its actors are killed at once, except detached ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from parl_remote._actor.reports import ExitReport, last_method
from parl_remote._config import Limits
from parl_remote._links.call_messages import ClusterReach, Kind, pack
from parl_remote._links.handshake import Link, Part, Parts
from parl_remote._links.identity import host_name
from parl_remote._links.loop import Loop
from parl_remote._messages import (
    ActorAttached,
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
)
from parl_remote._messages.overview import EndActor, ForgetUnstarted
from parl_remote._messages.wire import decode
from parl_remote._system.host import OutOfMemoryHint
from parl_remote._system.processes import chosen_number
from parl_remote._system.shortage import shortage_of
from parl_remote._transport.unix import UnixChannel
from parl_remote._worker.actors import ActorProcess, ActorProcesses, CallRecorder, WorkerLease, WorkerLeases
from parl_remote._worker.borrowers import Borrowers
from parl_remote._worker.files import WorkerFiles
from parl_remote._worker.logs import ActorLogs, WorkerLogs, bytes_in
from parl_remote._worker.objects import WorkerObjects
from parl_remote._worker.relay import Relay
from parl_remote._worker.watch import ActorObservations, ActorWatch, WorkerNumbers, WorkerStacks
from parl_remote._worker.zygote import ActorSource
from parl_remote.errors import ChannelClosed, DeathCause, DeathKind, RemoteProtocolError, ResultTimeout

if TYPE_CHECKING:
    import socket

    from parl_remote._transport.sealed import Handover

__all__ = ["ActorEnds", "Worker"]


class ActorEquipment:
    """The settings shared by all actors of a node.

    Args:
        limit_threads: Whether actors get as many numeric threads as CPUs; not where the user chose a number.
        reach: The settings with which actors reach the cluster; None if they must not connect.
    """

    def __init__(self, *, limit_threads: bool, reach: ClusterReach | None) -> None:
        self._limit_threads = limit_threads
        self._reach = reach

    def hand_over(
        self, lease: WorkerLease, actor: ActorProcess, record: dict[str, object] | None = None
    ) -> UnixChannel:
        """Configure a spare process for a lease; return the worker's channel to it.

        Args:
            lease: The lease.
            actor: The process.
            record: The settings of the recording of its calls; None for none.

        Raises:
            ChannelClosed: It has ended.
            OSError: There is no descriptor for another connection.
        """
        start, assigned = lease.start, lease.assigned
        assert start is not None  # only requested leases wait
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
        if record is not None:
            settings["record"] = record
        channel = UnixChannel.connect(actor.address)
        channel.send(pack(Kind.CONFIGURE, 0, 0, 0, [json.dumps(settings).encode()]))
        return channel

    def _threads(self, start: StartActor, cpu: float) -> int | None:
        """Return the number of threads of an actor's libraries: its program's choice, else its number of CPUs."""
        if not self._limit_threads:
            return None
        return chosen_number(start.environment) or max(1, int(cpu))


_ORPHAN_START_S = 10.0  # seconds by which StartActor may precede the LeaseAssigned that it needs
_ON_THE_WAY_S = 1.0  # seconds within which a StartActor sent before its client's connection broke may arrive


class Worker:
    """The worker's side of all protocols, on the node's loop.

    Args:
        loop: The node's loop.
        directory: The node's private directory, for sockets.
        log_directory: The directory of actors' log files.
        zygote: A running zygote.
        restart_zygote: Starts another zygote after its death.
        to_master: Sends messages to the master.
        limits: Times and sizes.
        limit_threads: Whether actors get as many numeric threads as CPUs; not where the user chose a number.
        reach: The settings with which actors reach the cluster; None if they must not connect.
        keep_logs: Whether log files of ended actors are kept, because their directory is the user's.

    Attributes:
        parts: Its services beside running actors; to be extended before the first client connects.
        logs: The logs of its actors.
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
        self._ends = ActorEnds(host_name(), self._watch.out_of_memory)
        self._numbers = WorkerNumbers(loop, self._leases, self._watch, to_master)
        self._relay = Relay(loop)
        self.logs = ActorLogs(loop, keep=keep_logs)
        leases = self._leases
        self._borrowers = Borrowers(leases.way_to, leases.cause_of, leases.is_owner, loop)
        self.parts = Parts()
        self.parts.add(("CompareDirectories", "PrepareFolder", "StoreParts"), self._file_part)
        self.parts.add(("ReadLog", "FollowActors"), lambda: WorkerLogs(loop, self.logs))
        self._recorder: CallRecorder | None = None
        self.parts.add(("RecordCalls", "ReadCalls"), self._record_calls)
        self.parts.add(("DumpStack",), lambda: WorkerStacks(loop, self._actor_on, self._processes.dump_stack))
        self.parts.add(("StoreObject", "HoldObject", "FetchObject", "ReleaseObject"), self._object_part)
        self.parts.add(("WatchActor", "ActorReached", "UnwatchActor", "DescribeActor"), lambda: self._borrowers)
        self._processes = ActorProcesses(
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
        self._processes.want(0)

    # -- the master's side ---------------------------------------------------------------------------------------

    def on_master(self, message: Message) -> None:
        """Process a message of the master; those that do not concern a worker's leases are ignored."""
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
            self._handle_end_request(message)

    def running(self) -> tuple[RunningLease, ...]:
        """Return the leases that run here, for a master that has to learn them again."""
        self._numbers.report_all()
        return self._leases.running(self._loop.now())

    def _handle_end_request(self, message: Message) -> None:

        match message:
            case EndActor(lease_id=lease_id) if lease := self._leases.get(lease_id):
                cause = DeathCause(message.kind, detail=message.detail)
                if message.grace_s and lease.actor is not None:
                    self._ask_to_end(lease, lease.actor, cause)
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
            self._forget(lease_id, DeathCause(DeathKind.CLIENT_GONE, detail="its client left before it used the lease"))

    # -- the clients' side (handshake.Service) -------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        """Do nothing: a new client has no actors here yet."""

    def received(self, link: Link, frames: list[memoryview]) -> None:
        """Process a client's message, or forward it to an actor."""
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
            if lease is not None:  # any holder of a handle may, and any holder of the key may have one
                self._end(lease, DeathCause(DeathKind.KILLED_BY_USER, detail=message.reason))
        elif isinstance(message, AttachActor):
            self._attach(link, message.lease_id)
        else:
            raise RemoteProtocolError(f"a worker cannot take {type(message).__name__} from a client")

    def closed(self, link: Link, reason: str) -> None:
        """End the actors of a client that is gone, except detached ones; a closed relay link ends no actor."""
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
        """Relay a link to an actor, for a client on another host."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.actor is None:
            link.drop()  # it has ended meanwhile, and its client is told so
            return
        if link.hand_over is None:
            self._relay.attach(link, lease.actor.address)
        elif lease.channel is not None:
            link.tell(ActorAttached(lease_id))
            self._hand_over_caller(link.hand_over(), lease.channel)
        self._borrowers.attached(link.hello.id, lease_id)

    def _hand_over_caller(self, given: tuple[socket.socket, Handover] | None, actor: UnixChannel) -> None:
        """Give the connection of a caller to an actor; without its actor, or its caller, it ends."""
        if given is not None:
            connection, state = given
            with connection, contextlib.suppress(ChannelClosed):
                actor.send_with_descriptor(pack(Kind.CALLER, 0, 0, 0, [state.encode()]), connection.fileno())

    def _refuse_early(self, lease_id: str) -> None:
        link, _ = self._early.pop(lease_id, (None, None))
        if link is not None:
            link.tell(ActorFailed(lease_id, f"there is no lease {lease_id} on this worker"))

    # -- parts ---------------------------------------------------------------------------------------------------

    def _file_part(self) -> Part:
        return WorkerFiles(self._loop, self._directory / "files", self._leases.directories_in_use)

    def _object_part(self) -> Part:
        return WorkerObjects(self._loop, self._directory)

    def _record_calls(self) -> CallRecorder:
        self._recorder = CallRecorder(self._directory, lambda: self._leases)
        return self._recorder

    def _actor_on(self, lease_id: str) -> ActorProcess | None:
        lease = self._leases.get(lease_id)
        return lease.actor if lease is not None else None

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
        while self._waiting and (actor := self._processes.take()):
            lease = self._waiting.popleft()
            try:
                self._equip(lease, actor)
            except ChannelClosed:  # the spare has died; the next one will do
                self._waiting.appendleft(lease)
            except (OSError, MemoryError) as error:
                self._waiting.appendleft(lease)
                self._processes.kill(actor, DeathCause(DeathKind.KILLED_BY_USER, detail="it was not needed"))
                self._refuse_first(shortage_of(error))
        self._processes.want(len(self._waiting))

    def _refuse_first(self, reason: str) -> None:
        """Refuse the request that has waited longest, because the host cannot start another process."""
        if self._waiting:
            cause = DeathCause(DeathKind.EXIT, detail=f"its host could not start it ({reason})")
            self._forget(self._waiting[0].lease_id, cause)

    def _equip(self, lease: WorkerLease, actor: ActorProcess) -> None:
        """Turn a spare process into the lease's actor."""
        already = bytes_in(actor.log)
        record = self._recorder.settings_of(lease, actor) if self._recorder is not None else None
        lease.channel = self._equipment.hand_over(lease, actor, record)
        lease.actor = actor
        self._in_use[actor.number] = lease
        self._watch.add(actor.number, actor.pid, lease.start.memory_limit if lease.start is not None else None)
        self._numbers.report_soon()
        if lease.link is not None:
            self.logs.began(lease.assigned, lease.link.hello, actor.pid, actor.log, already)
            lease.link.tell(ActorStarted(lease.lease_id, actor.address, actor.pid))

    # -- ending --------------------------------------------------------------------------------------------------

    def _end(self, lease: WorkerLease, cause: DeathCause) -> None:
        """End the lease's actor for a known cause; the rest follows when its end is reported."""
        if lease.actor is None:
            self._forget(lease.lease_id, cause)
        elif lease.actor.number in self._in_use:
            self._processes.kill(lease.actor, cause)

    def _ask_to_end(self, lease: WorkerLease, actor: ActorProcess, cause: DeathCause) -> None:
        """Request once that an actor finishes its calls and ends, unless it ends already or does not read."""
        if lease.is_ending or lease.channel is None:
            return
        with contextlib.suppress(ChannelClosed, ResultTimeout):
            lease.channel.send(pack(Kind.CLOSE, 0, 1, 0), 0.0)
            lease.is_ending = True
            self._processes.note(actor, cause)
            self._numbers.report_soon()

    def _forget(self, lease_id: str, cause: DeathCause) -> None:
        """End a lease, and notify master, client and borrowers."""
        lease = self._leases.end(lease_id, cause)
        if lease is None:
            return
        if lease in self._waiting:
            self._waiting.remove(lease)
        if lease.link is not None:
            lease.link.tell(ActorDied(lease_id, cause))
        self._borrowers.actor_ended(lease_id, cause)
        self._to_master(LeaseEnded(lease_id, cause))

    def _actor_ended(self, actor: ActorProcess, cause: DeathCause) -> None:
        lease = self._in_use.pop(actor.number, None)
        watched = self._watch.remove(actor.number)
        if lease is not None and lease.channel is not None:
            cause = self._ends.report(cause, lease, actor, watched)
            lease.channel.close()
            self.logs.ended(lease.lease_id)
            self._forget(lease.lease_id, cause)

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self, cause: DeathCause) -> None:
        """Send clients the cause of the end of all actors, kill them and the zygote, and wait for them."""
        for lease in self._leases:
            self._forget(lease.lease_id, cause)
        self.parts.close()
        self._processes.close()
        self._relay.close()


_MIB = 2**20
_SIGKILL = 9
_START_FAILURES = (DeathKind.CONSTRUCTOR, DeathKind.IMPORT)


class ActorEnds:
    """Builds the death reports of one node's actors.

    Args:
        node: The node's name.
        out_of_memory: Returns whether a SIGKILL was probably the kernel's.
    """

    def __init__(self, node: str, out_of_memory: OutOfMemoryHint) -> None:
        self._node = node
        self._out_of_memory = out_of_memory

    def report(
        self, cause: DeathCause, lease: WorkerLease, actor: ActorProcess, watched: ActorObservations | None
    ) -> DeathCause:
        """Return the full cause of an actor's end.

        Args:
            cause: The zygote's report, or why the actor was killed; with the end of its log.
            lease: The actor's lease.
            actor: Its process.
            watched: The samples taken while it lived.
        """
        report = ExitReport.receive(lease.channel) if lease.channel is not None else None
        if report is not None and report.kind in _START_FAILURES:  # later events are consequences of it
            cause = dataclasses.replace(cause, kind=report.kind, detail=report.detail, exit_code=None)
        elif actor.cause is None:
            cause = self._unrequested_cause(cause, report, actor)
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

    def _unrequested_cause(self, cause: DeathCause, report: ExitReport | None, actor: ActorProcess) -> DeathCause:
        """Return the cause of an end that this worker did not request."""
        if report is not None and cause.exit_code == 0:
            return dataclasses.replace(cause, kind=report.kind, detail=report.detail, exit_code=None)
        if cause.kind is DeathKind.SIGNAL and cause.signal == _SIGKILL and not cause.detail:
            hint = self._out_of_memory()
            if hint:
                size = f"; it had used up to {actor.peak / _MIB:.0f} MiB"
                return dataclasses.replace(cause, kind=DeathKind.OUT_OF_MEMORY, detail=hint + size)
        return cause
