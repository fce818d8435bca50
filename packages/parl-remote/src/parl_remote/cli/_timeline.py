"""`xparl timeline`: what all actors of a cluster do for some seconds, as a trace that browsers show.

every worker: RecordCalls --the time passes--> ReadCalls --spans--> lanes without overlaps --> Chrome's format
"""

from __future__ import annotations

import contextlib
import heapq
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from parl_core.atomic_write import atomic_write
from parl_remote._links.requests import Inquiry
from parl_remote._messages import Done
from parl_remote._messages.events import ClusterEvent, Events, ListEvents
from parl_remote._messages.overview import NodeDetail
from parl_remote._messages.parts import CallSpan, ReadCalls, RecordCalls, RecordedCalls
from parl_remote.cli._session import (
    Session,
    address_option,
    key_option,
    node_label,
    nodes_of,
    open_session,
    port_option,
    short_id,
)
from parl_remote.cli._show import count
from parl_remote.errors import RemoteError

__all__ = ["timeline_command", "trace_of"]

_ANSWER_S = 20.0
_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class ActorCalls:
    """The recorded calls of one actor: `who` names it, `node` is its node's name with the port."""

    who: str
    node: str
    lease_id: str
    pid: int
    calls: tuple[CallSpan, ...]


@click.command("timeline")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default="timeline.json",
    show_default=True,
    help="The file to write.",
)
@click.option(
    "--seconds", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True, help="How long to record."
)
@port_option
@address_option
@key_option
def timeline_command(
    output: Path, seconds: float, port: int | None, address: str | None, key_file: Path | None
) -> None:
    r"""Record the calls of all actors for some seconds, as a timeline.

    The file is in Chrome's trace format: open it in https://ui.perfetto.dev or chrome://tracing. Each actor has a row,
    or several while it runs several calls at a time; the cluster's events are marked. While nothing is recorded, calls
    cost nothing more; while it is, some microseconds. Ctrl-C ends the recording early and writes what there is.

    \b
    Examples:
      xparl timeline
      xparl timeline --seconds 60 -o run.json
    """
    with open_session("xparl timeline", port, address, key_file) as session, contextlib.ExitStack() as opened:
        workers = _workers(session, opened)
        began = time.time()
        for _, worker in workers:
            worker.ask(lambda number: RecordCalls(number, seconds), Done, _ANSWER_S)
        click.echo(f"Recording {count(len(workers), 'node')} for {seconds:g} s.", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(seconds)
        ended = time.time()
        actors = [one for node, worker in workers for one in _recorded(node, worker, began)]
        events = [event for event in _events(session.master) if began <= event.at <= ended]
        with atomic_write(output, "w", encoding="utf-8") as file:
            json.dump(trace_of(actors, events, began, ended), file, separators=(",", ":"))
        calls = sum(len(actor.calls) for actor in actors)
        click.echo(f"{output}: {count(calls, 'call')} of {count(len(actors), 'actor')}")


def _workers(session: Session, opened: contextlib.ExitStack) -> list[tuple[NodeDetail, Inquiry]]:
    workers = []
    for node in nodes_of(session.master):
        try:
            worker = opened.enter_context(session.worker(node.addresses, "xparl timeline"))
        except RemoteError as error:
            if node.total.cpu or node.total.gpu:  # a master alone runs no actors
                click.echo(f"{_label(node)} is left out: {error}", err=True)
            continue
        workers.append((node, worker))
    return workers


def _recorded(node: NodeDetail, worker: Inquiry, began: float) -> Iterator[ActorCalls]:
    """Yield the actors of a node with their calls that ended after the recording began."""
    number, actors = 0, 1
    while number < actors:
        calls: list[CallSpan] = []
        offset = 0
        while offset >= 0:
            piece = worker.ask(_question(number, offset), RecordedCalls, _ANSWER_S)
            calls += (call for call in piece.calls if call.ended >= began)
            offset = piece.offset
        actors = piece.actors
        number += 1
        if piece.lease_id:
            name = f" {piece.actor_name}" if piece.actor_name else ""
            who = f"{piece.class_name or 'actor'}{name}"
            yield ActorCalls(who, _label(node), piece.lease_id, piece.pid, tuple(calls))


def _question(actor: int, offset: int) -> Any:
    return lambda number: ReadCalls(number, actor, offset)


def _events(master: Inquiry) -> tuple[ClusterEvent, ...]:
    return master.ask(lambda number: ListEvents(number, -1000, 1000), Events).events


def _label(node: NodeDetail) -> str:
    return node_label(node.name, next(iter(node.addresses), ""))


def trace_of(
    actors: Sequence[ActorCalls], events: Sequence[ClusterEvent], began: float, ended: float
) -> dict[str, Any]:
    """Return a trace in Chrome's format.

    Args:
        actors: The actors with their calls.
        events: The cluster's events of that time.
        began: When the recording began, Unix time: the zero of the trace.
        ended: When it ended; calls that still run end there.
    """
    rows: list[dict[str, Any]] = []
    for process, actor in enumerate(sorted(actors, key=lambda one: (one.node, one.who, one.pid)), start=1):
        name = f"{actor.who} {short_id(actor.lease_id)} on {actor.node}"
        rows.append(_metadata(process, "process_name", name=name))
        rows.append(_metadata(process, "process_labels", labels=f"process {actor.pid}"))
        rows.append(_metadata(process, "process_sort_index", sort_index=process))
        for lane, call in _lanes(actor.calls):
            start, end = max(call.began, began), ended if call.runs else call.ended
            row = {
                "name": call.method,
                "cat": "call",
                "ph": "X",
                "ts": _microseconds(start - began),
                "dur": _microseconds(end - start),
                "pid": process,
                "tid": lane,
            }
            marks = ({"error": call.error} if call.error else {}) | ({"still runs": True} if call.runs else {})
            rows.append(row | ({"args": marks} if marks else {}) | ({"cname": "terrible"} if call.error else {}))
    rows += (
        {
            "name": event.kind.value,
            "cat": "event",
            "ph": "i",
            "s": "g",
            "ts": _microseconds(event.at - began),
            "pid": 0,
            "tid": 0,
            "args": {"text": event.text},
        }
        for event in events
    )
    return {
        "displayTimeUnit": "ms",
        "otherData": {"began": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(began))},
        "traceEvents": rows,
    }


def _lanes(calls: Sequence[CallSpan]) -> Iterator[tuple[int, CallSpan]]:
    """Yield calls with the first lane that is free, since those of one lane must not overlap."""
    busy: list[tuple[float, int]] = []  # until when, and which lane
    free: list[int] = []
    for call in sorted(calls, key=lambda one: one.began):
        while busy and busy[0][0] <= call.began:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (float("inf") if call.runs else call.ended, lane))
        yield lane, call


def _metadata(process: int, name: str, /, **args: object) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process, "tid": 0, "args": args}


def _microseconds(seconds: float) -> float:
    return round(seconds * _MICROSECONDS, 3)
