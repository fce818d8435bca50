"""`xparl list`: actors, nodes, programs and deaths, as tables for people and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from parl_remote.cli.overview import actors_of, deaths_of, nodes_of, short_id
from parl_remote.cli.session import Session, open_session
from parl_remote.cli.table import age, amount, count, size, table
from parl_remote.cli.target import address_option, key_option, port_option
from parl_remote.codec import to_json
from parl_remote.messages import ClientStatus, Status, StatusRequest
from parl_remote.messages.overview import ActorStatus, NodeDetail
from parl_remote.transport.addresses import advertised_by

__all__ = ["command"]

_DEATHS = 100


@click.command("list")
@click.argument("what", type=click.Choice(["actors", "nodes", "clients", "deaths"]), default="actors")
@click.option("--node", default="", help="Only actors on this node, by its name or id.")
@port_option
@address_option
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all fields.")
def command(what: str, node: str, port: int | None, address: str | None, key_file: Path | None, as_json: bool) -> None:
    r"""List the actors, nodes, clients (programs) or deaths of a cluster.

    Deaths are actors that were lost, the latest first, each with its cause. Ids are shortened in tables; commands take
    them so.

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
    "nodes": lambda session, _: list(nodes_of(session.master)),
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
            actor.node,
            str(actor.numbers.pid or ""),
            actor.numbers.phase.value + (f" {actor.numbers.busy_with}()" if actor.numbers.busy_with else ""),
            str(actor.resources),
            size(actor.numbers.memory),
            str(actor.numbers.calls),
            age(actor.age_s),
            actor.owner + (", detached" if actor.detached else ""),
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
            node.phase.value + (", master" if node.is_master else ""),
            _used(node.total.cpu, node.free.cpu),
            *([_used(node.total.gpu, node.free.gpu)] if gpus else []),
            f"{node.cpu_busy:.0%}",
            f"{node.load:.2f}",
            f"{size(node.memory_free)} of {size(node.memory_total)}",
            str(node.actors),
            f"{node.silent_s:.0f} s ago",
        ]
        for node in nodes
    ]
    return table([*headings, "ACTORS", "HEARD"], rows, right=("CPUS", "GPUS", "BUSY", "LOAD", "ACTORS"))


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
        lines.append(f"{short_id(death.lease_id)}  {death.class_name}{name} of {death.owner or death.client_id}")
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
