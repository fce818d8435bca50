"""How each kind of row may be searched, filtered and sorted."""

from __future__ import annotations

from parl_remote.monitor.model import ActorInfo, DeathInfo, DriverInfo, NodeInfo
from parl_remote.monitor.query import Listing

__all__ = ["ACTORS", "DEATHS", "DRIVERS", "NODES"]

NODES: Listing[NodeInfo] = Listing(
    texts=lambda row: (row.name, row.node_id, row.address, row.state, *row.labels),
    keys={
        "name": lambda row: row.name,
        "state": lambda row: row.state,
        "cpu": lambda row: row.cpu_busy,
        "cpus_used": lambda row: row.cpus_used,
        "memory": lambda row: row.memory_used,
        "gpu": lambda row: row.gpu_busy,
        "gpus_used": lambda row: row.gpus_used,
        "actors": lambda row: row.actors,
        "load": lambda row: row.load,
        "silent": lambda row: row.silent_s,
    },
    exact={"state": lambda row: row.state},
    default=("name", False),
)

ACTORS: Listing[ActorInfo] = Listing(
    texts=lambda row: (row.class_name, row.name, row.actor_id, row.owner_name, row.node_name, row.running),
    keys={
        "state": lambda row: row.state,
        "class": lambda row: row.class_name.casefold(),
        "name": lambda row: row.name.casefold() or None,
        "owner": lambda row: row.owner_name.casefold() or None,
        "node": lambda row: row.node_name,
        "calls": lambda row: row.calls_per_s,
        "busy": lambda row: row.busy,
        "queued": lambda row: row.queued,
        "cpu": lambda row: row.cpu,
        "memory": lambda row: row.memory,
        "age": lambda row: -row.started_at,
        "errors": lambda row: row.errors,
    },
    exact={
        "state": lambda row: row.state,
        "node": lambda row: row.node_id,
        "owner": lambda row: row.owner_id,
        "class": lambda row: row.class_name,
    },
    default=("age", False),
)

DRIVERS: Listing[DriverInfo] = Listing(
    texts=lambda row: (row.name, row.client_id, row.host),
    keys={
        "name": lambda row: row.name.casefold(),
        "pid": lambda row: row.pid,
        "host": lambda row: row.host,
        "actors": lambda row: row.actors,
        "waiting": lambda row: row.waiting,
        "since": lambda row: row.since,
    },
    exact={},
    default=("name", False),
)

DEATHS: Listing[DeathInfo] = Listing(
    texts=lambda row: (row.class_name, row.name, row.actor_id, row.owner_name, row.node_name, row.text),
    keys={
        "at": lambda row: row.at,
        "class": lambda row: row.class_name.casefold(),
        "kind": lambda row: row.kind,
        "node": lambda row: row.node_name,
        "owner": lambda row: row.owner_name.casefold() or None,
    },
    exact={
        "kind": lambda row: row.kind,
        "node": lambda row: row.node_id,
        "expected": lambda row: "yes" if row.expected else "no",
    },
    default=("at", True),
)
