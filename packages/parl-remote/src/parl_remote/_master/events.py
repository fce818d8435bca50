"""The history of a cluster: its events, and the nodes that were lost.

tables, members, leases --add--> EventLog --latest, after--> ClusterView
a node is lost ----------------> LostNodes --until it comes back, or its loss is acknowledged
both ----------> History --a master that was killed and started again--> PreviousHistory
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from parl_remote._master.placement import Node
from parl_remote._messages import NodeJoin
from parl_remote._messages.overview import ClusterEvent, DeathRecord, DrainNode, EventKind
from parl_remote.errors import DeathKind

__all__ = [
    "EVENTS_KEPT",
    "ActorNamed",
    "DrainRecord",
    "EventLog",
    "History",
    "LostNode",
    "LostNodes",
    "NodeRecord",
    "PreviousHistory",
    "record_of",
]

EVENTS_KEPT = 5000
_LOST_KEPT = 1000

# Requested ends, and those that the event of their node includes.
_NO_EVENT = frozenset((DeathKind.KILLED_BY_USER, DeathKind.DRAINED, DeathKind.NODE_LOST))
_MEMORY = frozenset((DeathKind.MEMORY, DeathKind.OUT_OF_MEMORY))


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The record of a node that outlives the master; times are Unix times.

    Attributes:
        joined: Its NodeJoin message, without leases.
        at: The time at which it joined.
        pid: Its process id on its host.
        versions: Versions of parl_remote and python there.
        lost_at: The time of its loss; None for a node that is there.
        cause: The cause of its loss.
        actors: The number of actors lost with it.
    """

    joined: NodeJoin
    at: float
    pid: int
    versions: Mapping[str, str]
    lost_at: float | None = None
    cause: str = ""
    actors: int = 0


@dataclass(frozen=True, slots=True)
class DrainRecord:
    """A drain that holds for a node, whichever master it comes back to.

    Attributes:
        node_id: The node.
        request: The latest request for it.
        until: The time at which its actors are asked to end, Unix time; None for never.
    """

    node_id: str
    request: DrainNode
    until: float | None


@dataclass(frozen=True, slots=True)
class PreviousHistory:
    """The history before the restart of the master.

    Attributes:
        since: The time at which the first master began to count, Unix time; None if this is the first.
        events: The latest events.
        counts: The number of events by kind that are no longer kept.
        nodes: The nodes that were there, and those that were lost in the order of their losses.
        drains: The drains of these nodes.
    """

    since: float | None = None
    events: tuple[ClusterEvent, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    nodes: tuple[NodeRecord, ...] = ()
    drains: tuple[DrainRecord, ...] = ()


class History:
    """Stores the history beyond the master's end; this one, of a private cluster, stores nothing."""

    def past(self) -> PreviousHistory:
        """Return the stored history."""
        return PreviousHistory()

    def happened(self, event: ClusterEvent) -> None:
        """Store an event."""

    def noted(self, node: NodeRecord) -> None:
        """Store the record of a node in place of an earlier one."""

    def draining(self, drain: DrainRecord) -> None:
        """Store the drain of a node in place of an earlier one."""

    def gone(self, node_id: str) -> None:
        """Drop the records of a node that has left, or is no longer listed as lost."""


class ActorNamed(NamedTuple):
    """The actor of an event: the last fields of `ClusterEvent`."""

    lease_id: str = ""
    class_name: str = ""
    actor_name: str = ""
    owner: str = ""

    def __str__(self) -> str:
        return f"{self.class_name or 'actor'} {self.actor_name}".rstrip()


NO_ACTOR = ActorNamed()


class EventLog:
    """The latest events.

    Args:
        epoch: Unix time of the loop's zero.
        started: The time at which the cluster started, on the loop's clock.
        history: Keeps the events.
        past: The records kept so far.

    Attributes:
        since: The time at which the log began, Unix time.
        counts: The number of events by kind, including those no longer kept.
    """

    def __init__(self, epoch: float, started: float, history: History, past: PreviousHistory) -> None:
        self._epoch = epoch
        self._history = history
        self._kept: deque[ClusterEvent] = deque(past.events, maxlen=EVENTS_KEPT)
        self.since = round(epoch + started, 6) if past.since is None else past.since
        self.counts: Counter[EventKind] = Counter(event.kind for event in past.events)
        self.counts.update({kind: past.counts[kind.value] for kind in EventKind if kind.value in past.counts})

    @property
    def latest(self) -> int:
        """The number of the latest event, 0 if there was none."""
        return self._kept[-1].number if self._kept else 0

    def unix(self, now: float) -> float:
        """Return the Unix time of a moment on the loop's clock."""
        return round(self._epoch + now, 3)

    def on_the_clock(self, unix: float) -> float:
        """Return the moment on the loop's clock at a Unix time."""
        return unix - self._epoch

    def node(self, kind: EventKind, node: Node, text: str, now: float) -> None:
        """Add an event of a node; `text` follows its displayed name."""
        self._add(kind, self.unix(now), f"{node.label} {text}", node)

    def death(self, death: DeathRecord, node: Node) -> None:
        """Add the loss of an actor, unless it was intended or its node was lost with it."""
        cause = death.cause
        if not cause.kind.is_loss or cause.kind in _NO_EVENT:
            return
        kind = EventKind.OUT_OF_MEMORY if cause.kind in _MEMORY else EventKind.ACTOR_LOST
        at = cause.at or (self._kept[-1].at if self._kept else self.since)
        who = ActorNamed(death.lease_id, death.class_name, death.name, death.owner)
        self._add(kind, at, f"{who} was lost on {node.label}: {cause.describe()}", node, who)

    def restart(self, actor: ActorNamed, node: Node, number: int, most: int, now: float) -> None:
        """Add the restart of a lost actor on `node`, its `number`th of at most `most`; below 0 for no limit."""
        of = f" of {most}" if most >= 0 else ""
        text = f"{actor} starts again on {node.label}, restart {number}{of}"
        self._add(EventKind.ACTOR_RESTARTED, self.unix(now), text, node, actor)

    def after(self, number: int, limit: int) -> tuple[ClusterEvent, ...]:
        """Return up to `limit` events, the oldest first: those after `number`, or the latest -number."""
        begin = min(number, self.latest) if number >= 0 else max(0, self.latest + number)
        first = self._kept[0].number if self._kept else 1
        skip = max(0, begin + 1 - first)
        return tuple(itertools.islice(self._kept, skip, skip + limit))

    def _add(self, kind: EventKind, at: float, text: str, node: Node, actor: ActorNamed = NO_ACTOR) -> None:
        number = self.latest + 1
        event = ClusterEvent(number, at, kind, text, node.node_id, node.name, node.address, *actor)
        self._kept.append(event)
        self.counts[kind] += 1
        self._history.happened(event)


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that was lost.

    Attributes:
        node: The master's last record of it.
        at: The time, on the loop's clock.
        cause: The reason.
        actors: The number of actors lost with it.
    """

    node: Node
    at: float
    cause: str
    actors: int


def record_of(node: Node, joined_at: float) -> NodeRecord:
    """Return the record of a node that joined at a Unix time."""
    return NodeRecord(replace(node.joined, leases=()), joined_at, node.pid, node.versions)


class LostNodes:
    """The lost nodes whose loss is not acknowledged, the latest last.

    Args:
        history: Keeps them; those that are too many are dropped there, too.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._nodes: dict[str, LostNode] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[LostNode]:
        return iter(self._nodes.values())

    def add(self, lost: LostNode) -> None:
        """Add a node, and drop the oldest if there are too many."""
        self._nodes.pop(lost.node.node_id, None)
        self._nodes[lost.node.node_id] = lost
        while len(self._nodes) > _LOST_KEPT:
            oldest = next(iter(self._nodes))
            del self._nodes[oldest]
            self._history.gone(oldest)

    def remove(self, node_id: str) -> LostNode | None:
        """Remove and return a node; None if it is not there."""
        return self._nodes.pop(node_id, None)
