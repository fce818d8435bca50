"""Routes by which PARL's own monitor was asked: `/cluster` gives its JSON, other pages lead to ours."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, abort, jsonify, redirect, request, url_for
from flask.typing import ResponseReturnValue

from parl_remote.monitor.model import NodeInfo
from parl_remote.monitor.store import Store

__all__ = ["make_legacy"]

_GIB = 2**30


def make_legacy(store: Store) -> Blueprint:
    """These routes as a blueprint."""
    legacy = Blueprint("legacy", __name__)

    @legacy.get("/cluster")
    def cluster() -> ResponseReturnValue:
        view = store.view()
        if view is None:
            abort(503, "nothing is known of the cluster yet")
        snapshot, totals = view.snapshot, view.totals
        return jsonify(
            workers=[_worker(store, node) for node in snapshot.nodes],
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
