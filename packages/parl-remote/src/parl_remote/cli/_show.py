"""`xparl status` and `xparl list`: nodes, slots, programs, actors and deaths, as text or as JSON."""

from __future__ import annotations

import json
import sys
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from parl_remote._codec import to_json
from parl_remote._config import Environment, environment
from parl_remote._messages import ClientStatus, NodeStatus, Status, StatusRequest, WaitingStatus
from parl_remote._messages.overview import ActorStatus, NodeDetail
from parl_remote._program.rendezvous import ClusterAddress
from parl_remote._run_files import RunFiles
from parl_remote._transport.addresses import advertised_by
from parl_remote.cli._session import (
    Session,
    actors_of,
    address_option,
    ask_status,
    deaths_of,
    key_option,
    node_label,
    nodes_of,
    open_session,
    port_option,
    short_id,
    targets,
)
from parl_remote.errors import RemoteError

__all__ = ["age", "amount", "clip", "count", "list_command", "moment", "plain", "size", "status_command", "table"]


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """One cluster's status, or the error; `monitor` is the address of its monitor on this host."""

    address: str
    status: Status | None
    error: str
    monitor: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON: the fields of `Status`, or an error."""
        return {
            "address": self.address,
            "error": self.error or None,
            "monitor": self.monitor or None,
            "status": to_json(self.status) if self.status is not None else None,
        }

    def as_text(self) -> str:
        """Return the report as text."""
        if self.status is None:
            return f"{self.address}: {self.error}"
        one = self.status
        programs = [client for client in one.clients if not client.name.startswith("xparl ")]
        lost = f" ({len(one.lost)} lost)" if one.lost else ""
        away = f" ({one.away_count} away)" if one.away_count else ""
        lines = [
            f"{self.address}: {one.cluster_id}, up {timedelta(seconds=int(one.uptime_s))}",
            f"  {one.total.cpu - one.free.cpu:g} used cpus, {one.free.cpu:g} vacant cpus, "
            f"{one.total.gpu - one.free.gpu:g} used gpus, {one.free.gpu:g} vacant gpus",
            f"  {count(one.node_count, 'node')}{lost}, {count(len(programs), 'program')}{away}, "
            f"{count(one.leases, 'actor')}, {count(one.waiting, 'actor')} waiting for resources",
        ]
        if self.monitor:
            lines.append(f"  monitor at {self.monitor}")
        lines += [f"  {_node(node)}" for node in one.nodes]
        lines += [f"  {_lost(node)}" for node in one.lost]
        lines += [f"  {_program(client)}" for client in programs]
        lines += [f"  {_waiting(entry)}" for entry in one.queue]
        shown = sum(entry.count for entry in one.queue)
        if shown < one.waiting:
            lines.append(f"  and {one.waiting - shown} more that wait")
        return "\n".join(lines)


def report_cluster(address: str, key_file: Path | None, environment: Environment) -> ClusterReport:
    """Query a cluster; errors are part of the report."""
    try:
        cluster = ClusterAddress(address, environment, key_file)
        status = ask_status(cluster.connect_master, environment.limits)
        return ClusterReport(address, status, "", _monitor_of(address, environment))
    except (RemoteError, ValueError) as error:
        return ClusterReport(address, None, str(error))


def _monitor_of(address: str, environment: Environment) -> str:
    records = (record for _, record in RunFiles(environment.run_dir).monitors() if record.master == address)
    return next((record.url for record in records if record.process.alive()), "")


def _node(node: NodeStatus) -> str:
    parts = [
        f"{node.total.cpu - node.free.cpu:g} of {node.total.cpu:g} cpus used",
        *([f"{node.total.gpu - node.free.gpu:g} of {node.total.gpu:g} gpus used"] if node.total.gpu else []),
        *(
            f"{amount - node.free.amount(name):g} of {amount:g} {name} used"
            for name, amount in node.total.labels.items()
        ),
        *(_reserved(node.total.memory, node.free.memory)),
        f"load {node.load:.2f}",
        f"{node.memory_free / _MIB:.0f} MiB memory free",
        f"heard {node.silent_s:.0f} s ago",
        *([_drain(node)] if node.is_draining else []),
    ]
    return f"node {node.name or node.node_id} ({', '.join(node.addresses)}): {', '.join(parts)}"


def _drain(node: NodeStatus) -> str:
    """Return the progress of a drain; a drained node that is still there is the master's own."""
    return "is being drained" if node.leases else "is drained until the cluster is stopped and started again"


def _lost(node: NodeStatus) -> str:
    actors = f" with {count(node.leases, 'actor')}" if node.leases else ""
    return (
        f"node {node.name or node.node_id} ({', '.join(node.addresses)}): LOST {moment(node.lost_at or 0.0)}, "
        f"{age(node.silent_s)} ago{actors}: {node.cause}; listed until `xparl acknowledge {short_id(node.node_id)}`"
    )


def _program(client: ClientStatus) -> str:
    who = f"{client.name} (process {client.pid})" if client.pid else f"{client.client_id}, which has not come back yet"
    waiting = f", {client.waiting} waiting" if client.waiting else ""
    return f"program {who}: {count(client.leases, 'actor')}{waiting}"


def _reserved(total: int, free: int) -> list[str]:
    """Return the reserved memory as text, if there is any."""
    return [f"{(total - free) / _MIB:.0f} of {total / _MIB:.0f} MiB memory set aside"] if free < total else []


def _waiting(entry: WaitingStatus) -> str:
    times = f"{entry.count} x " if entry.count > 1 else ""
    who = entry.owner or entry.client_id
    needs = entry.resources.as_request()
    return f"waiting {entry.waited_s:.0f} s: {times}{entry.class_name or 'actor'} of {who} for {needs}; {entry.reason}"


_MIB = 2**20
_GIB = 2**30


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> list[str]:
    """Return the lines of a table with a line of headings.

    Args:
        headings: One per column.
        rows: Texts; their control characters are shown as "?", so that they cannot move the cursor.
        right: The headings of columns to align at the right.
    """
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(headings, *cells, strict=True)]

    def line(texts: Sequence[str]) -> str:
        parts = []
        for heading, text, width in zip(headings, texts, widths, strict=True):
            gap = " " * (width - _width(text))
            parts.append(gap + text if heading in right else text + gap)
        return "  ".join(parts).rstrip()

    return [line(headings), *(line(row) for row in cells)]


def clip(text: str, width: int) -> str:
    """Return the beginning of a text that fits into `width` columns."""
    if len(text) <= width and text.isascii():
        return text
    used = 0
    for at, character in enumerate(text):
        used += _width(character)
        if used > width:
            return text[:at]
    return text


def size(bytes_: float) -> str:
    """Return a readable number of bytes: "812 M", "1.3 G"."""
    return f"{bytes_ / _GIB:.1f} G" if bytes_ >= _GIB else f"{bytes_ / _MIB:.0f} M"


def age(seconds: float) -> str:
    """Return a readable time span: "42 s", "5:03 m", "2:10 h", "3 d"."""
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} m"
    if whole < 48 * 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
    return f"{whole // 86400} d"


def moment(at: float) -> str:
    """Return a readable local time of day, with the date unless it is today."""
    local = time.localtime(at)
    today = local[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", local)


def amount(number: float) -> str:
    """Return a number without trailing zeros."""
    return f"{number:g}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun, "1 actor" or "2 actors"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def plain(text: str) -> str:
    """Return a text for a terminal: one line, control characters shown as "?"; "-" for an empty one."""
    return "".join(character if character.isprintable() else "?" for character in text) or "-"


def _width(text: str) -> int:
    """Return the width of a text on a terminal; Chinese characters take two columns."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


_DEATHS = 100


@click.command("list")
@click.argument("what", type=click.Choice(["actors", "nodes", "clients", "deaths"]), default="actors")
@click.option("--node", default="", help="Show only actors on this node: its name, name:port or id.")
@port_option
@address_option
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all fields.")
def list_command(
    what: str, node: str, port: int | None, address: str | None, key_file: Path | None, as_json: bool
) -> None:
    r"""List the actors, nodes, clients (programs) or deaths of a cluster.

    Deaths are lost actors with their causes, the latest first. A lost node stays in the list, with time and cause,
    until it returns or xparl acknowledge names it. Tables show shortened ids, which other commands accept.

    \b
    Examples:
      xparl list
      xparl list actors --node gpu-3 --json
      xparl list nodes --address first:8037
      xparl list deaths
    """
    with open_session("xparl list", port, address, key_file) as session:
        rows = _LISTS[what](session, node)
        if as_json:
            click.echo(json.dumps({what: [to_json(row) for row in rows]}, indent=2))
        elif rows:
            click.echo("\n".join(_TABLES[what](session, rows)))
        else:
            click.echo(f"The cluster at {session.cluster} has no {what}{f' on {node}' if node else ''}.")


def _clients(session: Session, _: str) -> list[ClientStatus]:
    clients = session.master.ask(StatusRequest, Status).clients
    return [client for client in clients if not client.name.startswith("xparl ")]


_LISTS: dict[str, Callable[[Session, str], list[Any]]] = {
    "actors": lambda session, node: list(actors_of(session.master, node=node)),
    "nodes": lambda session, _: list(nodes_of(session.master, lost=True)),
    "clients": _clients,
    "deaths": lambda session, _: list(deaths_of(session.master, _DEATHS).deaths),
}


def _actor_table(_: Session, actors: Sequence[ActorStatus]) -> list[str]:
    named = any(actor.name for actor in actors)
    headings = ["ID", "CLASS", *(["NAME"] if named else []), "NODE", "PID", "STATE", "TAKES", "MEMORY", "CALLS", "AGE"]
    rows = [
        [
            short_id(actor.lease_id),
            actor.class_name,
            *([actor.name] if named else []),
            node_label(actor.node, actor.node_address),
            str(actor.numbers.pid or ""),
            actor.numbers.phase.value + (f" {actor.numbers.busy_with}()" if actor.numbers.busy_with else ""),
            str(actor.resources),
            size(actor.numbers.memory),
            str(actor.numbers.calls),
            age(actor.age_s),
            ", ".join(filter(None, (actor.owner, "detached" if actor.detached else ""))),
        ]
        for actor in actors
    ]
    return table([*headings, "OWNER"], rows, right=("PID", "MEMORY", "CALLS", "AGE"))


def _node_table(session: Session, nodes: Sequence[NodeDetail]) -> list[str]:
    gpus = any(node.total.gpu for node in nodes)
    headings = ["ID", "NODE", "ADDRESS", "STATE", "CPUS", *(["GPUS"] if gpus else []), "BUSY", "LOAD", "MEMORY FREE"]
    rows = [
        [
            short_id(node.node_id),
            node.name,
            ", ".join(str(advertised_by(one, session.cluster.address)) for one in node.addresses),
            _state(node),
            _used(node.total.cpu, node.free.cpu),
            *([_used(node.total.gpu, node.free.gpu)] if gpus else []),
            "" if node.lost_at else f"{node.cpu_busy:.0%}",
            "" if node.lost_at else f"{node.load:.2f}",
            "" if node.lost_at else f"{size(node.memory_free)} of {size(node.memory_total)}",
            str(node.actors),
            f"{age(node.silent_s)} ago",
        ]
        for node in nodes
    ]
    lines = table([*headings, "ACTORS", "HEARD"], rows, right=("CPUS", "GPUS", "BUSY", "LOAD", "ACTORS"))
    return lines + [
        f"{node_label(node.name, next(iter(node.addresses), ''))} was lost at {moment(node.lost_at)}: {node.cause}"
        for node in nodes
        if node.lost_at is not None
    ]


def _state(node: NodeDetail) -> str:
    when = f" {moment(node.lost_at)}" if node.lost_at is not None else ""
    return node.phase.value + when + (", master" if node.is_master else "")


def _client_table(_: Session, clients: Sequence[ClientStatus]) -> list[str]:
    rows = [
        [one.name or one.client_id, str(one.pid), str(one.leases), str(one.waiting), age(one.age_s)] for one in clients
    ]
    headings = ["PROGRAM", "PID", "ACTORS", "WAITING", "CONNECTED"]
    return table(headings, rows, right=headings[1:])


def _death_table(_: Session, deaths: Sequence[Any]) -> list[str]:
    lines = []
    for death in deaths:
        name = f" {death.name}" if death.name else ""
        where = f" on {node_label(death.cause.node, death.node_address)}" if death.cause.node else ""
        owner = death.owner or "a program that has ended"
        lines.append(plain(f"{short_id(death.lease_id)}  {death.class_name}{name} of {owner}{where}"))
        lines.append(f"          {death.cause.describe()}")
    return [*lines, f"{count(len(deaths), 'death')}; xparl logs ID shows what an actor wrote"]


_TABLES: dict[str, Callable[[Session, Sequence[Any]], list[str]]] = {
    "actors": _actor_table,
    "nodes": _node_table,
    "clients": _client_table,
    "deaths": _death_table,
}


def _used(total: float, free: float) -> str:
    return f"{amount(round(total - free, 3))} of {amount(total)}"


@click.command("status")
@port_option
@address_option
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status_command(port: int | None, address: str | None, key_file: Path | None, as_json: bool) -> None:
    r"""Show nodes, slots, actors and clients of clusters.

    The exit status is 1 if a cluster does not answer or if there is no cluster.

    \b
    Examples:
      xparl status                                 all your clusters on this host
      xparl status --address first:8037 --json
    """
    found = environment()
    reports = [
        report_cluster(target.address, target.key_file, found) for target in targets(found, port, address, key_file)
    ]
    if as_json:
        click.echo(json.dumps({"clusters": [report.as_json() for report in reports]}, indent=2))
    elif reports:
        click.echo("\n\n".join(report.as_text() for report in reports))
    else:
        which = f"on port {port}" if port else "of yours"
        said = f"There is no cluster {which} on this host. Start one: xparl start --port {port or 8037}"
        click.echo(said, err=True)
    if not reports or any(report.error for report in reports):
        sys.exit(1)
