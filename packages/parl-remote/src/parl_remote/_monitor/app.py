"""The flask application: pages, the API, metrics and probes over one store, and the routes of PARL's own monitor.

Source --Collector--> Store --> create_app(...) --> any WSGI server

A page is an empty frame that its script fills from the API: nothing that a user has named is put into HTML here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from flask import Blueprint, Flask, Response, abort, g, jsonify, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from parl_remote._monitor.api import make_api
from parl_remote._monitor.guard import Guard, allowed_target
from parl_remote._monitor.metrics import CONTENT_TYPE, metrics_of
from parl_remote._monitor.model import NodeInfo, Source
from parl_remote._monitor.sessions import Sessions, Tries
from parl_remote._monitor.store import Store
from parl_remote._version import __version__

__all__ = ["create_app"]


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


def make_pages(guard: Guard, tries: Tries) -> Blueprint:
    """Return the pages as a blueprint.

    Args:
        guard: The access checks.
        tries: The limit on failed logins.
    """
    pages = Blueprint("pages", __name__)

    @pages.get("/")
    def overview() -> ResponseReturnValue:
        return render_template("overview.html", here="overview")

    @pages.get("/nodes")
    def nodes() -> ResponseReturnValue:
        return render_template("nodes.html", here="nodes")

    @pages.get("/nodes/<node_id>")
    def node(node_id: str) -> ResponseReturnValue:
        return render_template("node.html", here="nodes", one=node_id)

    @pages.get("/actors")
    def actors() -> ResponseReturnValue:
        return render_template("actors.html", here="actors")

    @pages.get("/actors/<actor_id>")
    def actor(actor_id: str) -> ResponseReturnValue:
        return render_template("actor.html", here="actors", one=actor_id)

    @pages.get("/drivers")
    def drivers() -> ResponseReturnValue:
        return render_template("drivers.html", here="drivers")

    @pages.get("/deaths")
    def deaths() -> ResponseReturnValue:
        return render_template("deaths.html", here="deaths")

    @pages.get("/deaths/<actor_id>")
    def death(actor_id: str) -> ResponseReturnValue:
        return render_template("death.html", here="deaths", one=actor_id)

    @pages.get("/events")
    def events() -> ResponseReturnValue:
        return render_template("events.html", here="events")

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
        is_right = guard.sessions.knows(request.form.get("token", ""))  # nobody else's wrong ones keep it out
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


_MOST_BODY = 16 * 1024  # the largest thing anyone sends is a reason


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
    app.register_blueprint(make_pages(guard, Tries(clock)))
    app.register_blueprint(make_api(store, source))
    app.register_blueprint(_probes(store))
    app.register_blueprint(make_legacy(store))

    @app.context_processor
    def shell() -> dict[str, object]:
        view = store.view()
        return {
            "version": __version__,
            "cluster": view.snapshot.cluster.address if view is not None and g.visitor.may_look else "",
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
        if g.visitor.may_look:
            answer |= {"age_s": found.age_s, "reason": found.reason}
        return jsonify(answer), 200 if found.ok else 503

    @probes.get("/metrics")
    def metrics() -> ResponseReturnValue:
        return Response(metrics_of(store), content_type=CONTENT_TYPE)

    return probes
