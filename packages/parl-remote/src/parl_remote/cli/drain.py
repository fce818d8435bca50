"""`xparl drain`: a node leaves its cluster without losing work."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from parl_remote.cli.overview import begins, nodes_of, short_id
from parl_remote.cli.session import Session, open_session
from parl_remote.cli.table import count
from parl_remote.cli.target import address_option, key_option, port_option
from parl_remote.codec import to_json
from parl_remote.messages.overview import DrainNode, DrainStarted, NodePhase

__all__ = ["command"]

_LOOK_S = 0.5


@click.command("drain")
@click.argument("node")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="After so many seconds actors that still run are asked to end; 0 asks at once. Default: they take as long as "
    "they like.",
)
@click.option("--wait", is_flag=True, help="Return only when the node has no actors any more.")
@click.option("--reason", default="", help="What the owners of its actors are told.")
@port_option
@address_option
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    node: str,
    timeout: float | None,
    wait: bool,
    reason: str,
    port: int | None,
    address: str | None,
    key_file: Path | None,
    as_json: bool,
) -> None:
    r"""Let a node take no more actors, and leave when its last one has ended.

    NODE is a node's name or id, as xparl list nodes shows them. Actors with max_restarts may move to other nodes at
    once. The node that the master runs in stays, without actors.

    \b
    Examples:
      xparl drain gpu-3
      xparl drain gpu-3 --timeout 600 --wait
    """
    with open_session("xparl drain", port, address, key_file) as session:
        meant = _node_id(session, node)
        started = session.master.ask(lambda number: DrainNode(number, meant, timeout, reason), DrainStarted)
        if as_json:
            click.echo(json.dumps(to_json(started), indent=2))
        else:
            leaves = "it leaves when they have ended" if started.leaves else "it stays, because the master runs in it"
            click.echo(f"{started.node} takes no more actors; it runs {count(started.actors, 'actor')}, {leaves}.")
        if wait:
            _await_drained(session, started)
            if not as_json:
                click.echo(f"{started.node} has no actors any more.")


def _node_id(session: Session, text: str) -> str:
    """The id of the node that is meant; ids may be cut short."""
    nodes = nodes_of(session.master)
    found = [node.node_id for node in nodes if node.name == text] or [
        node.node_id for node in nodes if begins(node.node_id, text)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(short_id(one) for one in found)
        raise click.ClickException(f"{text!r} may be any of {len(found)} nodes; name one by its id: {ids}")
    known = ", ".join(sorted(f"{node.name} ({short_id(node.node_id)})" for node in nodes)) or "none"
    raise click.ClickException(f"there is no node {text!r}; the cluster has {known}")


def _await_drained(session: Session, started: DrainStarted) -> None:
    while True:
        node = next((one for one in nodes_of(session.master) if one.node_id == started.node_id), None)
        if node is None or (node.phase is NodePhase.DRAINED or not node.actors):
            return
        time.sleep(_LOOK_S)
