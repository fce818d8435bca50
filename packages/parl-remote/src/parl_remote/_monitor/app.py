"""The flask application: pages, the API, metrics and probes over one store, and the routes of PARL's own monitor.

Source --Collector--> Store --> create_app(...) --> any WSGI server

A page is an empty frame that its script fills from the API: nothing that a user has named is put into HTML here.
Metrics have names with units and few labels: actors come and go by the thousand, so they are counted by class, and
numbers of single actors are in the API.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flask import Blueprint, Flask, Response, abort, g, jsonify, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from parl_remote._messages.overview import EventKind
from parl_remote._monitor.api import make_api
from parl_remote._monitor.guard import Guard, allowed_target
from parl_remote._monitor.model import NodeInfo, Source
from parl_remote._monitor.sessions import AttemptLimit, Sessions
from parl_remote._monitor.store import Store, View, hosts_of
from parl_remote._version import __version__

__all__ = ["CONTENT_TYPE", "create_app", "metrics_of"]


_GIB = 2**30


def make_legacy(store: Store) -> Blueprint:
    """Return these routes as a blueprint."""
    legacy = Blueprint("legacy", __name__)

    @legacy.get("/cluster")
    def cluster() -> ResponseReturnValue:
        view = store.view()
        if view is None:
            abort(503, "nothing is known of the cluster yet")
        snapshot, totals = view.snapshot, view.totals
        return jsonify(
            workers=[_worker(store, node) for node in snapshot.nodes if not node.is_lost],
            clients=[
                {
                    "client_id": one.client_id,
                    "file_path": one.name,
                    "actor_num": one.actors,
                    "client_hostname": one.host,
                }
                for one in snapshot.drivers
            ],
            total_used_cpus=totals.cpus_used,
            total_vacant_cpus=totals.cpus - totals.cpus_used,
            total_used_gpus=totals.gpus_used,
            total_vacant_gpus=totals.gpus - totals.gpus_used,
        )

    @legacy.get("/workers")
    def workers() -> ResponseReturnValue:
        return redirect(url_for("pages.nodes"))

    @legacy.get("/clients")
    def clients() -> ResponseReturnValue:
        return redirect(url_for("pages.drivers"))

    @legacy.get("/logs")
    def logs() -> ResponseReturnValue:
        return redirect(url_for("pages.actors", owner=request.args.get("client_id", "")))

    return legacy


def _worker(store: Store, node: NodeInfo) -> dict[str, Any]:
    history = store.node_history(node.node_id, 120.0) or {}
    loads = [value for value in history.get("load", []) if value is not None][-10:]
    used, total = node.memory_used, node.memory_total
    return {
        "hostname": node.name,
        "used_cpus": node.cpus_used,
        "vacant_cpus": node.cpus - node.cpus_used,
        "used_gpus": node.gpus_used,
        "vacant_gpus": node.gpus - node.gpus_used,
        "used_memory": None if used is None else round(used / _GIB, 2),
        "vacant_memory": None if used is None or total is None else round((total - used) / _GIB, 2),
        "load_value": loads,
        "load_time": history.get("t", [])[-len(loads) :] if loads else [],
    }


# A page's path, its template, and its entry in the navigation.
_PAGES = (
    ("/", "overview", "overview"),
    ("/nodes", "nodes", "nodes"),
    ("/nodes/<one>", "node", "nodes"),
    ("/actors", "actors", "actors"),
    ("/actors/<one>", "actor", "actors"),
    ("/drivers", "drivers", "drivers"),
    ("/deaths", "deaths", "deaths"),
    ("/deaths/<one>", "death", "deaths"),
    ("/events", "events", "events"),
)


def _page(template: str, here: str, one: str = "") -> ResponseReturnValue:
    return render_template(template, here=here, one=one)


def make_pages(guard: Guard, tries: AttemptLimit) -> Blueprint:
    """Return the pages as a blueprint.

    Args:
        guard: The access checks.
        tries: The limit on failed logins.
    """
    pages = Blueprint("pages", __name__)

    for rule, name, here in _PAGES:
        pages.add_url_rule(rule, name, functools.partial(_page, f"{name}.html", here))

    @pages.get("/login")
    def login() -> ResponseReturnValue:
        target = allowed_target(request.args.get("next", "/"))
        if g.visitor.known:
            return redirect(target)
        return render_template("login.html", here="login", next=target, problem="")

    @pages.post("/login")
    def sign_in() -> ResponseReturnValue:
        target = allowed_target(request.form.get("next", "/"))
        origin = request.headers.get("Origin", "null")
        if origin != "null" and origin.partition("://")[2] != request.host:
            abort(403, "the login comes from a page elsewhere")
        # before the limit on attempts: wrong tokens of others do not lock this user out
        is_right = guard.sessions.knows(request.form.get("token", ""))
        wait_s = 0.0 if is_right else tries.wait_s(request.remote_addr or "")
        if wait_s > 0:
            problem = f"Too many tries; wait {wait_s:.0f} seconds."
            page = Response(render_template("login.html", here="login", next=target, problem=problem), 429)
            page.headers["Content-Type"] = "text/html; charset=utf-8"
            page.headers["Retry-After"] = str(int(wait_s) + 1)
            return page
        if not is_right:
            problem = "That is not this monitor's token."
            return render_template("login.html", here="login", next=target, problem=problem), 403
        answer = redirect(target)
        answer.set_cookie(
            guard.cookie, guard.sessions.open(), httponly=True, samesite="Strict", secure=request.is_secure, path="/"
        )
        return answer

    @pages.post("/logout")
    def logout() -> ResponseReturnValue:
        guard.sessions.end(request.cookies.get(guard.cookie, ""))
        answer = redirect(url_for("pages.overview"))
        answer.delete_cookie(guard.cookie, path="/")
        return answer

    return pages


_MOST_BODY = 16 * 1024  # the largest part of a request is a reason


def create_app(
    store: Store,
    source: Source,
    *,
    token: str,
    host: str = "127.0.0.1",
    port: int = 0,
    clock: Callable[[], float] = time.monotonic,
    uid_of: Callable[[Mapping[str, Any]], int | None] | None = None,
) -> Flask:
    """Return the monitor as a WSGI application.

    Args:
        store: The data that it shows; filled by a collector.
        source: The source of logs and stacks.
        token: The token required for views from other hosts or users, and for changes.
        host: The interface that it is served on; on loopback its own user may view it without the token.
        port: The port.
        clock: Any clock in seconds, for sessions.
        uid_of: Returns the user who has sent a request over loopback, None if unknown; by default from the kernel.
    """
    app = Flask("parl_remote._monitor")
    app.config["MAX_CONTENT_LENGTH"] = _MOST_BODY
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.json.compact = True  # type: ignore[attr-defined]
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    guard = Guard(app, Sessions(token, clock), host, port, uid_of)
    app.register_blueprint(make_pages(guard, AttemptLimit(clock)))
    app.register_blueprint(make_api(store, source))
    app.register_blueprint(_probes(store))
    app.register_blueprint(make_legacy(store))

    @app.context_processor
    def shell() -> dict[str, object]:
        view = store.view()
        return {
            "version": __version__,
            "cluster": view.snapshot.cluster.address if view is not None and g.visitor.may_view else "",
            "signed_in": g.visitor.known,
        }

    return app


def _probes(store: Store) -> Blueprint:
    probes = Blueprint("probes", __name__)

    @probes.get("/healthz")
    def health() -> ResponseReturnValue:
        """Return 200 while the master answers, else 503; for load balancers and supervisors."""
        found = store.health()
        answer: dict[str, object] = {"ok": found.ok}
        if g.visitor.may_view:
            answer |= {"age_s": found.age_s, "reason": found.reason}
        return jsonify(answer), 200 if found.ok else 503

    @probes.get("/metrics")
    def metrics() -> ResponseReturnValue:
        return Response(metrics_of(store), content_type=CONTENT_TYPE)

    return probes


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
        yield _gauge("parl_monitor_up", "1 if the master has answered recently, else 0.", float(health.ok))
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
            "parl_actor_deaths", "Actors lost since the monitor started, by class and cause.", labels=["class", "cause"]
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
    yield _gauge("parl_nodes_lost", "Lost nodes whose loss is not acknowledged.", totals.nodes_lost)
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
