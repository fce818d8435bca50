"""Prometheus metrics of the cluster, at `/metrics`: names with units, counters that only grow, few labels.

Actors come and go by the thousand, so they are counted by class; numbers of single actors are in the API.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from parl_remote._messages.events import EventKind
from parl_remote._monitor.model import NodeInfo
from parl_remote._monitor.store import Store, View, hosts_of

__all__ = ["CONTENT_TYPE", "metrics_of"]

CONTENT_TYPE = CONTENT_TYPE_LATEST
_NODE = ("node_id", "node", "address")
_HOST = ("host_id", "host")
_EVENT_KINDS = tuple(kind.value for kind in EventKind)


class ClusterCollector(Collector):
    """Converts the store's data into metrics on each request."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; only `parl_monitor_up` while the cluster is not known."""
        health = self._store.health()
        yield _gauge("parl_monitor_up", "Whether the master has answered lately.", float(health.ok))
        view = self._store.view()
        if view is not None:
            yield from _cluster(view)
            yield from _nodes(view)
            yield from _hosts(view)
            yield from self._actors(view)

    def _actors(self, view: View) -> Iterator[Metric]:
        states = GaugeMetricFamily("parl_actors", "Actors, by what they do.", labels=["state"])
        for state, count in sorted(view.totals.states.items()):
            states.add_metric([state], count)
        yield states
        memory = GaugeMetricFamily("parl_actor_memory_bytes", "Resident memory of actors, by class.", labels=["class"])
        sums: dict[str, int] = {}
        for actor in view.snapshot.actors:
            sums[actor.class_name] = sums.get(actor.class_name, 0) + (actor.memory or 0)
        for name, value in sorted(sums.items()):
            memory.add_metric([name], value)
        yield memory
        calls = CounterMetricFamily("parl_actor_calls", "Calls that actors have answered, by class.", labels=["class"])
        errors = CounterMetricFamily("parl_actor_errors", "Of these, calls that raised, by class.", labels=["class"])
        for name, (answered, raised) in sorted(self._store.calls().items()):
            calls.add_metric([name], answered)
            errors.add_metric([name], raised)
        yield calls
        yield errors
        deaths = CounterMetricFamily(
            "parl_actor_deaths", "Actors lost since the monitor began, by class and cause.", labels=["class", "cause"]
        )
        for (name, cause), count in sorted(self._store.death_counts().items()):
            deaths.add_metric([name, cause], count)
        yield deaths


def metrics_of(store: Store) -> bytes:
    """Return the answer to `/metrics`."""
    registry = CollectorRegistry()
    registry.register(ClusterCollector(store))
    return generate_latest(registry)


def _cluster(view: View) -> Iterator[Metric]:
    cluster, totals = view.snapshot.cluster, view.totals
    yield _gauge("parl_cluster_uptime_seconds", "Time since the master started.", cluster.uptime_s)
    yield _gauge("parl_cluster_snapshot_timestamp_seconds", "Unix time of the snapshot.", view.snapshot.at)
    yield _gauge("parl_nodes", "Nodes of the cluster.", totals.nodes)
    yield _gauge("parl_nodes_lost", "Lost nodes whose loss nobody has acknowledged.", totals.nodes_lost)
    yield _gauge("parl_drivers", "Programs that use the cluster.", totals.drivers)
    yield _gauge("parl_actors_waiting", "Actors that wait for resources.", totals.waiting)
    yield CounterMetricFamily("parl_rejected_peers", "Peers that the master dropped.", cluster.rejected_peers)
    events = CounterMetricFamily("parl_events", "Events since the master started, by kind.", labels=["kind"])
    for kind in _EVENT_KINDS:
        events.add_metric([kind], view.snapshot.event_counts.get(kind, 0))
    yield events


def _nodes(view: View) -> Iterator[Metric]:
    numbers: list[tuple[str, str, str]] = [
        ("parl_node_cpus", "CPUs that the node gives to actors.", "cpus"),
        ("parl_node_cpus_leased", "Of these, CPUs that actors hold.", "cpus_used"),
        ("parl_node_gpus", "GPUs that the node gives to actors.", "gpus"),
        ("parl_node_gpus_leased", "Of these, GPUs that actors hold.", "gpus_used"),
        ("parl_node_actors", "Actors on the node.", "actors"),
        ("parl_node_silent_seconds", "Time since the node's last sign of life.", "silent_s"),
    ]
    nodes = [node for node in view.snapshot.nodes if not node.is_lost]
    for name, text, field in numbers:
        family = GaugeMetricFamily(name, text, labels=_NODE)
        for node in nodes:
            family.add_metric(_names(node), getattr(node, field))
        yield family
    lost = GaugeMetricFamily(
        "parl_node_lost_timestamp_seconds",
        "When the node was lost, Unix time, until it comes back or its loss is acknowledged.",
        labels=(*_NODE, "cause"),
    )
    for node in view.snapshot.nodes:
        if node.lost_at is not None:
            lost.add_metric([*_names(node), node.cause], node.lost_at)
    yield lost
    yield from _gpus(nodes)


def _hosts(view: View) -> Iterator[Metric]:
    """Yield the numbers of hosts: each once, however many nodes run on it."""
    hosts = hosts_of(view.snapshot.nodes)
    for name, text, field in (
        ("parl_host_cpu_busy_ratio", "Share of the host's CPU time in use.", "cpu_busy"),
        ("parl_host_load1", "Load average over one minute.", "load"),
        ("parl_host_memory_bytes", "Memory of the host.", "memory_total"),
        ("parl_host_memory_used_bytes", "Memory in use on the host.", "memory_used"),
    ):
        family = GaugeMetricFamily(name, text, labels=_HOST)
        for host in hosts:
            value = getattr(host, field)
            if value is not None:
                family.add_metric([host.host_id or host.node_id, host.name], value)
        yield family


def _names(node: NodeInfo) -> list[str]:
    return [node.node_id, node.name, node.address]


def _gpus(nodes: Sequence[NodeInfo]) -> Iterator[Metric]:
    labels = (*_NODE, "gpu")
    for name, text, field in (
        ("parl_gpu_busy_ratio", "Share of the time in which the GPU worked.", "busy"),
        ("parl_gpu_memory_used_bytes", "Memory in use on the GPU.", "memory_used"),
        ("parl_gpu_memory_bytes", "Memory of the GPU.", "memory_total"),
    ):
        family = GaugeMetricFamily(name, text, labels=labels)
        for node in nodes:
            for device in node.devices:
                value = getattr(device, field)
                if value is not None:
                    family.add_metric([*_names(node), device.name], value)
        yield family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value)
