"""The flask application: pages, API, metrics and probes over one store.

Source --Collector--> Store --> create_app(...) --> any WSGI server
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from flask import Blueprint, Flask, Response, g, jsonify
from flask.typing import ResponseReturnValue

from parl_remote._version import __version__
from parl_remote.monitor.api import make_api
from parl_remote.monitor.guard import Guard
from parl_remote.monitor.legacy import make_legacy
from parl_remote.monitor.metrics import CONTENT_TYPE, metrics_of
from parl_remote.monitor.pages import make_pages
from parl_remote.monitor.sessions import Sessions, Tries
from parl_remote.monitor.source import Source
from parl_remote.monitor.store import Store

__all__ = ["create_app"]

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
    """The monitor as a WSGI application.

    Args:
        store: What it shows; somebody else fills it.
        source: Whom to ask for logs and stacks.
        token: What one has to know to look from elsewhere, and to change anything.
        host: The interface that it will be served on; on loopback its own user may look without the token.
        port: The port.
        clock: Any clock in seconds, for sessions.
        uid_of: The user who has sent a request over loopback, None if that is not known; by default the kernel says.
    """
    app = Flask("parl_remote.monitor")
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
        """For load balancers and supervisors: 200 while the master answers, else 503."""
        found = store.health()
        answer: dict[str, object] = {"ok": found.ok}
        if g.visitor.may_look:
            answer |= {"age_s": found.age_s, "reason": found.reason}
        return jsonify(answer), 200 if found.ok else 503

    @probes.get("/metrics")
    def metrics() -> ResponseReturnValue:
        return Response(metrics_of(store), content_type=CONTENT_TYPE)

    return probes
