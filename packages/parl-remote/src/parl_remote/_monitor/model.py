"""The monitor's snapshot of a cluster, and the interface to its source.

    Store, API  -->  Source  <--  ClusterSource (a client of the master)  |  a fake one in tests

All times are seconds since the epoch, all spans seconds, all sizes bytes, all shares ratios (1.0 is one whole CPU or
the whole of a memory). None means not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = [
    "ActorInfo",
    "ClusterInfo",
    "DeathInfo",
    "DriverInfo",
    "EventInfo",
    "GpuInfo",
    "LogChunk",
    "NodeInfo",
    "Snapshot",
    "Source",
    "SourceError",
    "Unknown",
    "Unreachable",
    "WaitingInfo",
]


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU of a node.

    Attributes:
        name: As `CUDA_VISIBLE_DEVICES` names it.
        model: Its model name.
        busy: Its utilization.
        memory_used: Bytes in use.
        memory_total: Its total memory in bytes.
    """

    name: str
    model: str = ""
    busy: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One worker and its host.

    Attributes:
        node_id: Its id.
        name: Its host's name.
        address: Its "host:port", empty on a private cluster.
        state: "alive", "draining", "drained", "silent" when its heartbeats are late, or "lost" when it broke off or
            stayed silent; a lost node is shown until it comes back or its loss is acknowledged.
        cpus: CPUs it gives to actors.
        cpus_used: Of these, how many are leased.
        gpus: GPUs it gives to actors.
        gpus_used: Of these, how many are leased.
        cpu_busy: Share of the host's CPU time in use, 0 to 1.
        load: Load average over one minute.
        memory_total: Bytes of the host.
        memory_used: Bytes in use by all processes of the host.
        actors: Leases on it; of a lost node, those that were lost with it.
        silent_s: Time since its last sign of life.
        devices: Its GPUs as measured.
        labels: Its custom resources and labels.
        host_id: Equal for nodes of one host.
        label: Its name with its port, which distinguishes it from other nodes of its host.
        lost_at: The time of its loss.
        cause: The cause of its loss.
    """

    node_id: str
    name: str
    address: str = ""
    state: str = "alive"
    cpus: float = 0.0
    cpus_used: float = 0.0
    gpus: float = 0.0
    gpus_used: float = 0.0
    cpu_busy: float | None = None
    load: float | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    actors: int = 0
    silent_s: float = 0.0
    devices: tuple[GpuInfo, ...] = ()
    labels: tuple[str, ...] = ()
    host_id: str = ""
    label: str = ""
    lost_at: float | None = None
    cause: str = ""

    @property
    def is_lost(self) -> bool:
        """Return whether it is not in the cluster any more."""
        return self.lost_at is not None

    @property
    def gpu_busy(self) -> float | None:
        """The mean utilization of its GPUs."""
        measured = [device.busy for device in self.devices if device.busy is not None]
        return sum(measured) / len(measured) if measured else None


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """One living actor.

    Attributes:
        actor_id: The id of its lease.
        class_name: Its class.
        name: Its name in the cluster, empty for most.
        state: "starting", "idle", "busy", "stopped" (by a signal) or "ending".
        node_id: The node it runs on.
        node_name: That node's name with its port.
        owner_id: The client that made it, empty if it has no owner.
        owner_name: That program's name.
        pid: Its process id there.
        started_at: The time at which its lease began.
        detached: Whether it outlives its owner.
        resources: Its resources, for display.
        calls: Calls answered since it started.
        calls_per_s: Recent rate of answered calls per second.
        busy: Recent share of time in calls; above 1 with `max_concurrency`.
        queued: Calls that wait in it.
        running: The method that runs now, empty if none does.
        running_s: The time for which it has been running.
        errors: Calls that raised.
        last_error: The last of these, one line.
        cpu: Recent CPU usage, in CPUs.
        memory: Resident bytes.
        memory_limit: Bytes at which it is ended, if there is a limit.
        restarts: The number of its restarts.
    """

    actor_id: str
    class_name: str
    name: str = ""
    state: str = "idle"
    node_id: str = ""
    node_name: str = ""
    owner_id: str = ""
    owner_name: str = ""
    pid: int = 0
    started_at: float = 0.0
    detached: bool = False
    resources: str = ""
    calls: int | None = None
    calls_per_s: float | None = None
    busy: float | None = None
    queued: int | None = None
    running: str = ""
    running_s: float | None = None
    errors: int | None = None
    last_error: str = ""
    cpu: float | None = None
    memory: int | None = None
    memory_limit: int | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class WaitingInfo:
    """Actors of one program that wait for the same resources, and the reason."""

    class_name: str
    owner_id: str
    owner_name: str
    asked: str
    reason: str
    since_s: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """One program that uses the cluster."""

    client_id: str
    name: str
    pid: int = 0
    host: str = ""
    actors: int = 0
    waiting: int = 0
    since: float | None = None


@dataclass(frozen=True, slots=True)
class DeathInfo:
    """One actor that ended, with the cause.

    Attributes:
        actor_id: The id of its lease.
        class_name: Its class.
        name: Its name in the cluster.
        node_name: The node that it ran on, its name with its port.
        owner_name: The program that owned it.
        at: The time of its end.
        kind: The cause in one word, for example "signal"; see `DeathKind`.
        expected: Whether the end was intended (destroyed, its program ended).
        text: The cause in a sentence.
        exit_code: The process's status, where it exited by itself.
        signal: The signal's name, where one ended it.
        last_call: The method that ran last.
        log_tail: The last lines it wrote.
        memory_curve: (seconds before the end, resident bytes), oldest first.
        memory_limit: The limit in bytes, if there was one.
        node_id: The id of that node.
        memory_peak: Its peak resident memory in bytes.
    """

    actor_id: str
    class_name: str
    name: str
    node_name: str
    owner_name: str
    at: float
    kind: str
    expected: bool
    text: str
    exit_code: int | None = None
    signal: str = ""
    last_call: str = ""
    log_tail: tuple[str, ...] = ()
    memory_curve: tuple[tuple[float, int], ...] = ()
    memory_limit: int | None = None
    node_id: str = ""
    memory_peak: int | None = None


@dataclass(frozen=True, slots=True)
class EventInfo:
    """One event of the cluster.

    Attributes:
        number: Its number, which counts up.
        at: The time of the event.
        kind: The kind of event in one word, for example "node_lost"; see `EventKind`.
        text: The same in a sentence, with the cause.
        node_id: The node concerned.
        node_name: That node's name with its port.
        actor_id: The actor concerned; this and the following are empty where none is.
        class_name: Its class.
        name: Its name in the cluster.
        owner_name: The program that made it.
    """

    number: int
    at: float
    kind: str
    text: str
    node_id: str = ""
    node_name: str = ""
    actor_id: str = ""
    class_name: str = ""
    name: str = ""
    owner_name: str = ""


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster as a whole; `waiting` counts actors that wait for resources, `version` is its parl-remote."""

    cluster_id: str
    address: str
    uptime_s: float
    waiting: int = 0
    rejected_peers: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a cluster at the time `at`.

    `deaths` are the latest ones, newest first. `events` are those since the snapshot before, oldest first, and
    `event_counts` how many of each kind there were since the master started.
    """

    at: float
    cluster: ClusterInfo
    nodes: tuple[NodeInfo, ...] = ()
    actors: tuple[ActorInfo, ...] = ()
    drivers: tuple[DriverInfo, ...] = ()
    waiting: tuple[WaitingInfo, ...] = ()
    deaths: tuple[DeathInfo, ...] = field(default=(), repr=False)
    events: tuple[EventInfo, ...] = field(default=(), repr=False)
    event_counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of an actor's output.

    Attributes:
        pieces: The output in order: text, and whether it was written to `sys.stderr`.
        position: The position to continue from.
        start: The position of this piece; above the requested one if that part is gone.
        ended: Whether there will be no more output.
    """

    pieces: tuple[tuple[str, bool], ...]
    position: int
    start: int = 0
    ended: bool = False


class SourceError(Exception):
    """The cluster could not carry out a request; the message has the reason, for display."""


class Unreachable(SourceError):
    """A node did not answer; trying again later may help."""


class Unknown(SourceError):
    """The actor or node does not exist any more."""


class Source(Protocol):
    """A cluster to monitor. Every method is thread-safe and takes at most a few seconds."""

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the cluster.

        Raises:
            Unreachable: The master does not answer.
        """

    def read_log(self, actor_id: str, position: int | None, most_bytes: int) -> LogChunk:
        """Return a piece of an actor's output.

        Args:
            actor_id: An actor of the last snapshot, or one whose log its node still has.
            position: The position to start from, as in the previous chunk; None is `most_bytes` before the end.
            most_bytes: The maximum number of bytes.

        Raises:
            Unknown: There is no such actor, or its log is gone.
            Unreachable: Its node does not answer.
        """

    def dump_stack(self, actor_id: str) -> str:
        """Return the stacks of an actor's threads, as Python's faulthandler prints them.

        Raises:
            Unknown: There is no such actor.
            Unreachable: Its node does not answer.
            SourceError: The process does not respond; the text has the reason.
        """

    def kill(self, actor_id: str, reason: str) -> None:
        """End an actor's process.

        Raises:
            Unknown: There is no such actor.
            Unreachable: The master does not answer.
        """

    def acknowledge(self, node_id: str) -> None:
        """Take a lost node off the list.

        Raises:
            Unknown: It is not lost.
            Unreachable: The master does not answer.
        """
