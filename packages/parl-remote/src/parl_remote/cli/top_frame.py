"""One picture of `xparl top`: a look at a cluster in, lines of text out. No terminal and no clock in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from parl_remote.cli.overview import short_id
from parl_remote.cli.table import age, amount, clip, count, size, table
from parl_remote.codec import to_json
from parl_remote.messages import Status
from parl_remote.messages.overview import ActorPhase, ActorStatus, NodeDetail

__all__ = ["SORTS", "Look", "as_json", "frame"]

SORTS = {"cpu": "c", "memory": "m", "rate": "r", "age": "a"}  # what to sort by, and its key
_MOST_NODES = 0.4  # of the lines, where there are more nodes than fit


@dataclass(frozen=True, slots=True)
class Look:
    """A cluster at one moment.

    Attributes:
        address: Its master.
        status: Sums, programs, who waits.
        nodes: Its workers.
        actors: Its actors.
    """

    address: str
    status: Status
    nodes: tuple[NodeDetail, ...]
    actors: tuple[ActorStatus, ...]


def frame(look: Look, sort: str, *, width: int = 0, height: int = 0) -> list[str]:
    """The lines to show.

    Args:
        look: The cluster.
        sort: One of `SORTS`.
        width: Columns to fit into, 0 for any.
        height: Lines to fit into, 0 for any.
    """
    lines = _summary(look)
    nodes = _node_lines(look.nodes)
    if height:
        room = max(3, int((height - len(lines)) * _MOST_NODES))
        if len(nodes) > room:
            nodes = [*nodes[: room - 1], f"... {count(len(look.nodes) - room + 2, 'more node')}"]
    lines += ["", *nodes, "", *_actor_lines(_sorted(look.actors, sort))]
    if height:
        lines = lines[: height - 1]
    return [clip(line, width) for line in lines] if width else lines


def as_json(look: Look, sort: str) -> dict[str, Any]:
    """The same for programs."""
    return {
        "address": look.address,
        "status": to_json(look.status),
        "nodes": [to_json(node) for node in look.nodes],
        "actors": [to_json(actor) for actor in _sorted(look.actors, sort)],
    }


def _summary(look: Look) -> list[str]:
    one = look.status
    programs = sum(not client.name.startswith("xparl ") for client in one.clients)
    busy = sum(actor.numbers.phase is ActorPhase.BUSY for actor in look.actors)
    used = one.total - one.free
    parts = [f"{amount(used.cpu)} of {amount(one.total.cpu)} cpus"]
    if one.total.gpu:
        parts.append(f"{amount(used.gpu)} of {amount(one.total.gpu)} gpus")
    if one.total.memory:
        parts.append(f"{size(used.memory)} of {size(one.total.memory)} memory")
    parts += [f"{amount(used.amount(name))} of {amount(total)} {name}" for name, total in one.total.labels.items()]
    return [
        f"xparl top - {look.address} ({one.cluster_id}), up {timedelta(seconds=int(one.uptime_s))}",
        f"{count(one.node_count, 'node')}, {count(programs, 'program')}, {count(len(look.actors), 'actor')} "
        f"({busy} busy), {one.waiting} waiting for room",
        f"taken: {', '.join(parts)}",
    ]


def _node_lines(nodes: Sequence[NodeDetail]) -> list[str]:
    rows = [
        [
            node.name or node.node_id,
            node.phase.value,
            f"{amount(round(node.total.cpu - node.free.cpu, 3))}/{amount(node.total.cpu)}",
            f"{node.cpu_busy:.0%}",
            f"{node.load:.2f}",
            f"{size(node.memory_free)}/{size(node.memory_total)}",
            str(node.actors),
            f"{node.silent_s:.0f} s",
        ]
        for node in sorted(nodes, key=lambda node: -node.cpu_busy)
    ]
    headings = ["NODE", "STATE", "CPUS", "BUSY", "LOAD", "MEM FREE", "ACTORS", "HEARD"]
    return table(headings, rows, right=headings[2:])


def _actor_lines(actors: Sequence[ActorStatus]) -> list[str]:
    rows = [
        [
            short_id(actor.lease_id),
            actor.class_name + (f" {actor.name}" if actor.name else ""),
            actor.node,
            str(actor.numbers.pid or ""),
            f"{actor.numbers.cpu * 100:.0f}",
            size(actor.numbers.memory),
            f"{actor.numbers.calls_per_s:.1f}",
            str(actor.numbers.queued),
            age(actor.age_s),
            actor.numbers.busy_with + "()" if actor.numbers.busy_with else actor.numbers.phase.value,
        ]
        for actor in actors
    ]
    headings = ["ID", "ACTOR", "NODE", "PID", "%CPU", "MEM", "CALLS/S", "QUEUED", "AGE", "DOES"]
    return table(headings, rows, right=headings[3:-1])


def _sorted(actors: Sequence[ActorStatus], sort: str) -> list[ActorStatus]:
    keys: dict[str, Callable[[ActorStatus], float]] = {
        "cpu": lambda actor: actor.numbers.cpu,
        "memory": lambda actor: actor.numbers.memory,
        "rate": lambda actor: actor.numbers.calls_per_s,
        "age": lambda actor: actor.age_s,
    }
    return sorted(actors, key=lambda actor: -keys[sort](actor))
