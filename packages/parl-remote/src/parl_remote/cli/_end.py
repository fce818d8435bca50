"""`xparl kill` and `xparl drain`: end actors at once, or remove a node from its cluster without losing work."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from parl_remote._codec import to_json
from parl_remote._messages.overview import (
    ActorKilled,
    DeathRecord,
    DrainNode,
    DrainStarted,
    KillActor,
    NodeDetail,
    NodePhase,
)
from parl_remote.cli._session import (
    FiniteRange,
    Session,
    address_option,
    find_actor,
    find_nodes,
    key_option,
    node_label,
    nodes_of,
    open_session,
    port_option,
    short_id,
)
from parl_remote.cli._show import count

__all__ = ["drain_command", "kill_command"]


_LOOK_S = 0.5


@click.command("drain")
@click.argument("node")
@click.option(
    "--timeout",
    type=FiniteRange(0),
    metavar="SECONDS",
    help="Seconds that running actors have before they are asked to end; 0 asks at once. Default: no limit.",
)
@click.option("--wait", is_flag=True, help="Return only when the node has no actors left.")
@click.option("--reason", default="", help="Reason reported to the owners of its actors.")
@port_option
@address_option
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def drain_command(
    node: str,
    timeout: float | None,
    wait: bool,
    reason: str,
    port: int | None,
    address: str | None,
    key_file: Path | None,
    as_json: bool,
) -> None:
    r"""Place no more actors on a node, and remove the node when its last actor has ended.

    NODE is a node's name, name:port or id, as shown by xparl list nodes. Actors with max_restarts may move to other
    nodes at once. The master's own node remains in the cluster, without actors.

    \b
    Examples:
      xparl drain gpu-3
      xparl drain gpu-3 --timeout 600 --wait
    """
    with open_session("xparl drain", port, address, key_file) as session:
        meant = _node(session, node)
        started = session.master.ask(lambda number: DrainNode(number, meant.node_id, timeout, reason), DrainStarted)
        if as_json:
            click.echo(json.dumps(to_json(started), indent=2))
        else:
            leaves = "it leaves when they have ended" if started.leaves else "it stays, because the master runs in it"
            click.echo(f"{_label(meant)} takes no more actors; it runs {count(started.actors, 'actor')}, {leaves}.")
        if wait:
            _await_drained(session, started)
            if not as_json:
                click.echo(f"{_label(meant)} has no actors any more.")


def _node(session: Session, text: str) -> NodeDetail:
    """Return the named node; ids may be abbreviated."""
    nodes = nodes_of(session.master)
    found = find_nodes(nodes, text)
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(_named(node) for node in found)
        raise click.ClickException(f"{text!r} matches {len(found)} nodes; name one by its port or id: {ids}")
    known = ", ".join(sorted(map(_named, nodes))) or "none"
    raise click.ClickException(f"there is no node {text!r}; the cluster has {known}")


def _named(node: NodeDetail) -> str:
    return f"{_label(node)} ({short_id(node.node_id)})"


def _label(node: NodeDetail) -> str:
    return node_label(node.name, node.addresses[0] if node.addresses else "")


def _await_drained(session: Session, started: DrainStarted) -> None:
    while True:
        node = next((one for one in nodes_of(session.master) if one.node_id == started.node_id), None)
        if node is None or (node.phase is NodePhase.DRAINED or not node.actors):
            return
        time.sleep(_LOOK_S)


@click.command("kill")
@click.argument("actors", metavar="ACTOR...", nargs=-1, required=True)
@click.option("--reason", default="", help="Reason reported to the owners of the actors.")
@port_option
@address_option
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def kill_command(
    actors: tuple[str, ...], reason: str, port: int | None, address: str | None, key_file: Path | None, as_json: bool
) -> None:
    r"""End actors at once; they are not restarted, and their pending calls raise ActorLost.

    ACTOR is an id, the beginning of an id, a name, or a class with one actor. The command returns when the actors have
    ended.

    \b
    Examples:
      xparl kill 9f86d081
      xparl kill trainer evaluator --reason "its slot is needed"
    """
    with open_session("xparl kill", port, address, key_file) as session:
        meant = [find_actor(session.master, text) for text in actors]  # check that all exist before any is ended
        reason = reason or "ended with xparl kill"
        deaths = []
        for lease_id in dict.fromkeys(one.lease_id for one in meant):
            death = _kill(session, lease_id, reason)
            deaths.append(death)
            if not as_json:
                name = f" {death.name}" if death.name else ""
                click.echo(f"{death.class_name}{name} {short_id(death.lease_id)} has ended: {death.cause.describe()}")
        if as_json:
            click.echo(json.dumps({"killed": [to_json(death) for death in deaths]}, indent=2))


def _kill(session: Session, lease_id: str, reason: str) -> DeathRecord:
    return session.master.ask(lambda number: KillActor(number, lease_id, reason), ActorKilled).death
