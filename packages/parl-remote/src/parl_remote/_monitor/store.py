"""The monitor's data: the last snapshot, time series, deaths, events, and counters.

    Collector --add(snapshot) | failed(reason)--> Store --latest, histories, deaths, health--> API, pages, metrics

Only the collector's thread writes; readers take a `View`, which never changes, and the histories under a lock. Time
series are rings of fixed size, fine ones for about the last half hour, coarse ones for the day. An entry is some
twenty bytes, so that a thousand nodes and ten thousand actors fit into about a hundred megabytes.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from parl_remote._monitor.model import ActorInfo, DeathInfo, EventInfo, NodeInfo, Snapshot

__all__ = ["History", "Retention", "Store", "View", "hosts_of", "totals_of"]


@dataclass(frozen=True, slots=True)
class Retention:
    """The size of a history.

    Attributes:
        fine: Number of single entries.
        coarse: Number of means.
        every: The seconds that one mean covers.
    """

    fine: int
    coarse: int
    every: float


CLUSTER = Retention(fine=1800, coarse=1440, every=60.0)  # an hour of entries two seconds apart, then a day
NODES = Retention(fine=720, coarse=720, every=120.0)
ACTORS = Retention(fine=360, coarse=180, every=120.0)

_GAP_S = 1e-3  # two entries of one moment are one


class _Ring:
    """A ring of rows; the oldest is overwritten once it is full. Memory grows only as rows are added."""

    __slots__ = ("_columns", "_next", "_size", "_times")

    def __init__(self, columns: int, size: int) -> None:
        self._times = array("d")
        self._columns = tuple(array("f") for _ in range(columns))
        self._size = size
        self._next = 0

    def add(self, at: float, row: Sequence[float]) -> None:
        if len(self._times) < self._size:
            self._times.append(at)
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)
            return
        self._times[self._next] = at
        for column, value in zip(self._columns, row, strict=True):
            column[self._next] = value
        self._next = (self._next + 1) % self._size

    def rows(self, since: float) -> tuple[list[float], list[list[float]]]:
        order = [*range(self._next, len(self._times)), *range(self._next)]
        kept = [i for i in order if self._times[i] >= since]
        return [self._times[i] for i in kept], [[column[i] for i in kept] for column in self._columns]

    def oldest(self) -> float:
        return self._times[self._next] if len(self._times) == self._size else -math.inf


class History:
    """The time series of one object.

    Args:
        names: The names of the numbers.
        keep: The numbers of entries to keep.
    """

    __slots__ = ("_coarse", "_count", "_fine", "_keep", "_last", "_names", "_since", "_sums")

    def __init__(self, names: tuple[str, ...], keep: Retention) -> None:
        self._names = names
        self._keep = keep
        self._fine = _Ring(len(names), keep.fine)
        self._coarse = _Ring(len(names), keep.coarse)
        self._last = -math.inf
        self._since = math.nan
        self._sums = [0.0] * len(names)
        self._count = [0] * len(names)

    def add(self, at: float, values: Sequence[float | None]) -> None:
        """Add an entry, in the order of the names; None means not measured. Entries out of order are dropped."""
        if at < self._last + _GAP_S:
            return
        self._last = at
        self._fine.add(at, [math.nan if value is None else value for value in values])
        if math.isnan(self._since):
            self._since = at
        for i, value in enumerate(values):
            if value is not None:
                self._sums[i] += value
                self._count[i] += 1
        if at - self._since >= self._keep.every:
            means = [s / n if n else math.nan for s, n in zip(self._sums, self._count, strict=True)]
            self._coarse.add((self._since + at) / 2, means)
            self._since = at
            self._sums = [0.0] * len(self._names)
            self._count = [0] * len(self._names)

    def read(self, since: float, most: int = 400) -> dict[str, list[float | None]]:
        """Return at most `most` entries from a time on, as one list per name and one of times, `t`.

        Args:
            since: Earliest time.
            most: The maximum number of entries; beyond it neighbours are averaged.
        """
        times, columns = self._fine.rows(since)
        begins = self._fine.oldest()
        if since < begins:  # older than the fine ring reaches
            older, means = self._coarse.rows(since)
            count = sum(at < begins for at in older)
            times = older[:count] + times
            columns = [mean[:count] + column for mean, column in zip(means, columns, strict=True)]
        group = -(-len(times) // most) if times else 1
        return {
            "t": [round(value, 3) for value in _means(times, group) if value is not None],
            **{name: _means(column, group) for name, column in zip(self._names, columns, strict=True)},
        }


def _means(values: list[float], group: int) -> list[float | None]:
    if group <= 1:
        return [None if math.isnan(value) else value for value in values]
    out: list[float | None] = []
    for start in range(0, len(values), group):
        part = [value for value in values[start : start + group] if not math.isnan(value)]
        out.append(sum(part) / len(part) if part else None)
    return out


_EVENTS_KEPT = 5000
_DEATHS_KEPT = 2000  # a day of a busy cluster; each is some kilobytes because of its log
_CLASSES_KEPT = 1000  # classes that are counted by name; programs may make classes, too
_OTHERS = "(others)"
_GONE_KEPT_S = 600.0  # seconds for which the numbers of an ended actor stay available
_LATE = 3.0  # intervals without news after which the monitor is no longer healthy

CLUSTER_NUMBERS = ("cpu", "leased", "memory", "gpu", "gpus_leased", "calls", "actors", "waiting", "nodes")
NODE_NUMBERS = ("cpu", "leased", "memory", "gpu", "gpu_memory", "actors", "load")
ACTOR_NUMBERS = ("calls", "busy", "cpu", "memory", "queued")


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all nodes in the cluster and all actors; None if no node reports the number.

    Memory and CPU time in use are those of hosts: several nodes of one host count once.
    """

    nodes: int
    nodes_lost: int
    hosts: int
    cpus: float
    cpus_used: float
    cpu_busy: float | None
    gpus: float
    gpus_used: float
    gpu_busy: float | None
    memory_total: int | None
    memory_used: int | None
    actors: int
    states: dict[str, int]
    waiting: int
    calls_per_s: float | None
    drivers: int


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot with indexes for quick answers."""

    snapshot: Snapshot
    totals: Totals
    nodes: dict[str, NodeInfo] = field(repr=False)
    actors: dict[str, ActorInfo] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Health:
    """The freshness of the monitor's data; `age_s` is the age of the last snapshot, None before the first."""

    ok: bool
    age_s: float | None
    reason: str


class Store:
    """The data store of the monitor.

    Args:
        now: Returns the time in seconds since the epoch.
        interval_s: The expected interval between snapshots.
    """

    def __init__(self, now: Callable[[], float], interval_s: float = 2.0) -> None:
        self._now = now
        self._interval_s = self._expected_s = interval_s
        self._lock = threading.Lock()
        self._view: View | None = None
        self._reason = "the master has not answered yet"
        self._cluster = History(CLUSTER_NUMBERS, CLUSTER)
        self._nodes: dict[str, History] = {}
        self._actors: dict[str, History] = {}
        self._gone: dict[str, float] = {}
        self._deaths: dict[str, DeathInfo] = {}
        self._events: deque[EventInfo] = deque(maxlen=_EVENTS_KEPT)
        self._death_counts: Counter[tuple[str, str]] = Counter()
        self._ended_calls: Counter[str] = Counter()
        self._ended_errors: Counter[str] = Counter()
        self._classes: set[str] = set()  # those that are counted by name

    # -- writing -------------------------------------------------------------------------------------------------

    def add(self, snapshot: Snapshot, next_in_s: float | None = None) -> None:
        """Add a new snapshot; the next one is expected after `next_in_s`, by default the usual interval."""
        view = View(
            snapshot,
            totals_of(snapshot),
            {node.node_id: node for node in snapshot.nodes},
            {actor.actor_id: actor for actor in snapshot.actors},
        )
        with self._lock:
            self._retire(view)
            self._note(view)
            for death in reversed(snapshot.deaths):  # newest last, as the dictionary keeps them
                if death.actor_id not in self._deaths:
                    self._deaths[death.actor_id] = death
                    self._death_counts[self._counted_as(death.class_name), death.kind] += 1
            self._events.extend(snapshot.events)
            while len(self._deaths) > _DEATHS_KEPT:
                del self._deaths[next(iter(self._deaths))]
            self._view, self._reason = view, ""
            self._expected_s = self._interval_s if next_in_s is None else next_in_s

    def failed(self, reason: str) -> None:
        """Record a failed snapshot; the existing data stay, with their age."""
        self._reason = reason

    def _note(self, view: View) -> None:
        at, totals = view.snapshot.at, view.totals
        memory_share = _share(totals.memory_used, totals.memory_total)
        self._cluster.add(
            at,
            (
                totals.cpu_busy,
                _share(totals.cpus_used, totals.cpus),
                memory_share,
                totals.gpu_busy,
                _share(totals.gpus_used, totals.gpus),
                totals.calls_per_s,
                totals.actors,
                totals.waiting,
                totals.nodes,
            ),
        )
        for node in view.snapshot.nodes:
            history = _history(self._nodes, node.node_id, NODE_NUMBERS, NODES)
            if node.is_lost:
                continue
            used = _sum(device.memory_used for device in node.devices)
            capacity = _sum(device.memory_total for device in node.devices)
            history.add(
                at,
                (
                    node.cpu_busy,
                    _share(node.cpus_used, node.cpus),
                    _share(node.memory_used, node.memory_total),
                    node.gpu_busy,
                    _share(used, capacity),
                    node.actors,
                    node.load,
                ),
            )
        for actor in view.snapshot.actors:
            _history(self._actors, actor.actor_id, ACTOR_NUMBERS, ACTORS).add(
                at, (actor.calls_per_s, actor.busy, actor.cpu, actor.memory, actor.queued)
            )

    def _retire(self, view: View) -> None:
        """Add the counts of ended actors to the totals, and drop their histories after a while."""
        at = view.snapshot.at
        for actor_id, actor in self._view.actors.items() if self._view is not None else ():
            if actor_id not in view.actors:
                counted_as = self._counted_as(actor.class_name)
                self._ended_calls[counted_as] += actor.calls or 0
                self._ended_errors[counted_as] += actor.errors or 0
                self._gone[actor_id] = at
        for node_id in self._nodes.keys() - view.nodes.keys():
            self._gone.setdefault(node_id, at)
        for name in [name for name, when in self._gone.items() if at - when > _GONE_KEPT_S]:
            del self._gone[name]
            if name not in view.nodes:
                self._nodes.pop(name, None)
            if name not in view.actors:
                self._actors.pop(name, None)

    def _counted_as(self, class_name: str) -> str:
        """Return the name under which a class is counted: classes beyond a number have one together."""
        if class_name not in self._classes:
            if len(self._classes) >= _CLASSES_KEPT:
                return _OTHERS
            self._classes.add(class_name)
        return class_name

    # -- reading -------------------------------------------------------------------------------------------------

    def view(self) -> View | None:
        """Return the last snapshot, None before the first."""
        return self._view

    def health(self) -> Health:
        """Return whether the master has answered recently."""
        view = self._view
        if view is None:
            return Health(False, None, self._reason)
        age_s = max(0.0, self._now() - view.snapshot.at)
        if age_s > _LATE * self._expected_s + 1.0 or (self._reason and age_s > self._expected_s + 1.0):
            return Health(False, age_s, self._reason or f"no news of the master for {age_s:.0f} s")
        return Health(True, age_s, "")

    def deaths(self) -> list[DeathInfo]:
        """Return all recorded deaths, oldest first."""
        with self._lock:
            return list(self._deaths.values())

    def events(self) -> list[EventInfo]:
        """Return all recorded events, oldest first."""
        with self._lock:
            return list(self._events)

    def death(self, actor_id: str) -> DeathInfo | None:
        """Return the recorded death of an actor, or None."""
        return self._deaths.get(actor_id)

    def death_counts(self) -> dict[tuple[str, str], int]:
        """Return the numbers of deaths since the monitor started, by class and cause."""
        with self._lock:
            return dict(self._death_counts)

    def calls(self) -> dict[str, tuple[int, int]]:
        """Return calls and errors by class, of living and ended actors."""
        view = self._view
        with self._lock:
            calls, errors = Counter(self._ended_calls), Counter(self._ended_errors)
        for actor in view.snapshot.actors if view is not None else ():
            calls[actor.class_name] += actor.calls or 0
            errors[actor.class_name] += actor.errors or 0
        return {name: (calls[name], errors[name]) for name in calls}

    def cluster_history(self, window_s: float) -> dict[str, list[float | None]]:
        """Return the cluster's time series of the last `window_s` seconds."""
        with self._lock:
            return self._cluster.read(self._now() - window_s)

    def node_history(self, node_id: str, window_s: float, most: int = 400) -> dict[str, list[float | None]] | None:
        """Return a node's time series, None if it was never seen."""
        with self._lock:
            history = self._nodes.get(node_id)
            return None if history is None else history.read(self._now() - window_s, most)

    def actor_history(self, actor_id: str, window_s: float, most: int = 400) -> dict[str, list[float | None]] | None:
        """Return an actor's time series, None if it was never seen or ended long ago."""
        with self._lock:
            history = self._actors.get(actor_id)
            return None if history is None else history.read(self._now() - window_s, most)


def hosts_of(nodes: Iterable[NodeInfo]) -> list[NodeInfo]:
    """Return the node of each host heard last; all nodes of a host report the same memory, CPU time and load."""
    hosts: dict[str, NodeInfo] = {}
    for node in nodes:
        key = _host_of(node)
        if not node.is_lost and (key not in hosts or node.silent_s < hosts[key].silent_s):
            hosts[key] = node
    return list(hosts.values())


def _host_of(node: NodeInfo) -> str:
    return node.host_id or node.node_id


def totals_of(snapshot: Snapshot) -> Totals:
    """Return the totals of a snapshot; nodes are weighted by their CPUs and GPUs."""
    nodes, actors = [node for node in snapshot.nodes if not node.is_lost], snapshot.actors
    hosts = hosts_of(nodes)
    states = Counter(actor.state for actor in actors)
    cpus: dict[str, float] = {}
    for node in nodes:
        cpus[_host_of(node)] = cpus.get(_host_of(node), 0.0) + node.cpus
    cpu = [(host.cpu_busy, cpus[_host_of(host)] or 1.0) for host in hosts if host.cpu_busy is not None]
    gpu = [device.busy for node in nodes for device in node.devices if device.busy is not None]
    rates = [actor.calls_per_s for actor in actors if actor.calls_per_s is not None]
    return Totals(
        nodes=len(nodes),
        nodes_lost=len(snapshot.nodes) - len(nodes),
        hosts=len(hosts),
        cpus=sum(node.cpus for node in nodes),
        cpus_used=round(sum(node.cpus_used for node in nodes), 3),
        cpu_busy=sum(busy * weight for busy, weight in cpu) / sum(weight for _, weight in cpu) if cpu else None,
        gpus=sum(node.gpus for node in nodes),
        gpus_used=round(sum(node.gpus_used for node in nodes), 3),
        gpu_busy=sum(gpu) / len(gpu) if gpu else None,
        memory_total=_sum(host.memory_total for host in hosts),
        memory_used=_sum(host.memory_used for host in hosts),
        actors=len(actors),
        states=dict(states),
        waiting=snapshot.cluster.waiting,
        calls_per_s=sum(rates) if rates else None,
        drivers=len(snapshot.drivers),
    )


def _history(known: dict[str, History], name: str, numbers: tuple[str, ...], keep: Retention) -> History:
    history = known.get(name)
    if history is None:
        history = known[name] = History(numbers, keep)
    return history


def _sum(values: Iterable[int | None]) -> int | None:
    measured = [value for value in values if value is not None]
    return sum(measured) if measured else None


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
