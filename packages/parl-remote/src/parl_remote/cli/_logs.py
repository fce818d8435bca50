"""`xparl logs`, `xparl events`, `xparl acknowledge`: an actor's output, a cluster's events, known losses of nodes."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from parl_remote._codec import to_json
from parl_remote._links.requests import PeerEnded, RequestConnection
from parl_remote._messages import Role
from parl_remote._messages.overview import (
    AcknowledgeNodes,
    ClusterEvent,
    EventKind,
    Events,
    ListEvents,
    NodeDetail,
    NodePhase,
    NodesAcknowledged,
)
from parl_remote._messages.parts import LogText, ReadLog
from parl_remote.cli._session import (
    Session,
    address_option,
    find_actor_or_death,
    find_nodes,
    key_option,
    node_label,
    nodes_of,
    open_session,
    port_option,
    short_id,
)
from parl_remote.cli._show import count, plain
from parl_remote.errors import ChannelClosed, ClusterUnreachable, RemoteError, ResultTimeout

__all__ = ["acknowledge_command", "events_command", "logs_command"]


_MOST_BYTES = 2**20
_WAIT_S = 20.0
_ANSWER_S = 5.0


@click.command("logs")
@click.argument("actor")
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the actor ends or Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(0), help="Show only so many last lines. Default: all that are kept.")
@port_option
@address_option
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per piece of output.")
def logs_command(
    actor: str,
    follow: bool,
    lines: int | None,
    port: int | None,
    address: str | None,
    key_file: Path | None,
    as_json: bool,
) -> None:
    r"""Show what an actor has written to its stdout and stderr.

    ACTOR is an id, the beginning of an id, a name, or a class with one actor. The output comes through the port of the
    actor's worker, so the command works on every host that can use the cluster. A node keeps the logs of its last 1000
    ended actors while it runs; of a long log it keeps about the last 64 MiB.

    \b
    Examples:
      xparl logs 9f86d081 -n 20
      xparl logs trainer -f
    """
    with contextlib.suppress(KeyboardInterrupt) if follow else contextlib.nullcontext():  # the usual way to leave
        _print_log(actor, lines, open_session("xparl logs", port, address, key_file), follow=follow, as_json=as_json)


def _print_log(
    actor: str,
    lines: int | None,
    opened: contextlib.AbstractContextManager[Session],
    *,
    follow: bool,
    as_json: bool,
) -> None:
    with opened as session, _worker_of(session, actor) as (worker, lease):
        piece = _first(worker, lease, lines)
        _show(piece, as_json)
        while not piece.ended and (follow or piece.end < piece.size):
            piece = _next(worker, lease, piece.end, _WAIT_S if follow else 0.0)
            _show(piece, as_json)


@contextlib.contextmanager
def _worker_of(session: Session, text: str) -> Iterator[tuple[RequestConnection, str]]:
    """Yield the worker of the named actor, and the actor's lease."""
    found = find_actor_or_death(session.master, text)
    node = next((node for node in nodes_of(session.master) if node.node_id == found.node_id), None)
    if node is None:
        raise click.ClickException(
            f"{found.class_name} {short_id(found.lease_id)} ran on {found.node_id}, which has left the cluster, "
            "with its logs; xparl list deaths --json has the last lines"
        )
    with session.worker(node.addresses, "xparl logs") as worker:
        yield worker, found.lease_id


def _next(worker: RequestConnection, lease_id: str, start: int, wait_s: float) -> LogText:
    return worker.ask(
        lambda number: ReadLog(number, lease_id, start=start, most_bytes=_MOST_BYTES, wait_s=wait_s),
        LogText,
        _ANSWER_S + wait_s,
    )


def _first(worker: RequestConnection, lease_id: str, lines: int | None) -> LogText:
    if lines is None:
        return worker.ask(lambda number: ReadLog(number, lease_id, start=0, most_bytes=_MOST_BYTES), LogText)
    piece = worker.ask(lambda number: ReadLog(number, lease_id, lines=lines, most_bytes=_MOST_BYTES), LogText)
    have = sum(one.text.count("\n") for one in piece.pieces)
    if have < lines and piece.start > 0 and piece.size - piece.start > _MOST_BYTES // 2:
        click.echo(f"(the last {_MOST_BYTES // 2**20} MiB; without -n you get all that is kept)", err=True)
    return piece


def _show(piece: LogText, as_json: bool) -> None:
    if as_json:
        if piece.pieces or piece.ended:
            click.echo(json.dumps(to_json(piece)))
        return
    for one in piece.pieces:
        sys.stdout.write(one.text)
    sys.stdout.flush()


_LOOK_S = 0.5
_PAGE = 1000


@click.command("events")
@click.option("-f", "--follow", is_flag=True, help="Follow the events until Ctrl-C or the end of the cluster.")
@click.option(
    "-n", "--lines", type=click.IntRange(0), help="Show only so many latest events. Default: 20 with -f, else all kept."
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in EventKind]),
    help="Show only events of this kind; may be repeated.",
)
@port_option
@address_option
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per event.")
def events_command(
    follow: bool,
    lines: int | None,
    kinds: tuple[str, ...],
    port: int | None,
    address: str | None,
    key_file: Path | None,
    as_json: bool,
) -> None:
    r"""Show the events of a cluster: nodes that join, leave, are drained or lost; actors that are lost or restarted.

    The master keeps the last 5000 events until the cluster is stopped, even if the master is killed and started again;
    meanwhile -f waits up to 30 s for it.

    \b
    Examples:
      xparl events
      xparl events -f --kind node_lost --kind out_of_memory
      xparl events -f --json | jq .text
    """
    wanted = frozenset(kinds)
    with (
        contextlib.suppress(KeyboardInterrupt) if follow else contextlib.nullcontext(),  # the usual way to leave
        open_session("xparl events", port, address, key_file) as session,
    ):
        pages = list(_pages(session.master, 0))
        kept = [event for page in pages for event in page.events]
        shown = [event for event in kept if not wanted or event.kind.value in wanted]
        most = lines if lines is not None or not follow else 20
        for event in shown if most is None else shown[len(shown) - min(most, len(shown)) :]:
            _show_event(event, as_json)
        for event in _later_events(session, pages[-1].since, pages[-1].latest) if follow else ():
            if not wanted or event.kind.value in wanted:
                _show_event(event, as_json)


def _show_event(event: ClusterEvent, as_json: bool) -> None:
    click.echo(json.dumps(to_json(event)) if as_json else _line(event))


def _later_events(session: Session, since: float, latest: int) -> Iterator[ClusterEvent]:
    """Yield the events after number `latest` as they come, until the cluster ends.

    Args:
        session: The session.
        since: The time at which the count of that number began; a master that counts anew has lost what was before.
        latest: The number.
    """
    with contextlib.ExitStack() as opened:
        master = session.master
        while True:
            try:
                master.rest(_LOOK_S)
                for page in _pages(master, latest):
                    if page.since != since:
                        since, latest = page.since, 0
                        break
                    for event in page.events:
                        latest = event.number
                        yield event
            except PeerEnded as error:
                click.echo(f"The cluster at {session.cluster} has ended: {error.reason}", err=True)
                return
            except (ChannelClosed, ResultTimeout) as error:
                master = opened.enter_context(_returned_master(session, error))


def _returned_master(session: Session, lost: RemoteError) -> RequestConnection:
    """Return a connection to the master that was lost, once it is there again.

    Raises:
        click.ClickException: It did not come back in time.
    """
    wait_s = session.found.limits.rejoin_timeout_s
    click.echo(
        f"The master at {session.cluster} is gone ({lost}); waiting up to {wait_s:g} s until it is started again.",
        err=True,
    )
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        try:
            master = RequestConnection(
                session.cluster.connect_master(), Role.MASTER, session.found.limits, "xparl events"
            )
        except (ChannelClosed, ClusterUnreachable, ResultTimeout) as error:
            lost = error
            time.sleep(_LOOK_S)
        else:
            click.echo(f"The master at {session.cluster} answers again.", err=True)
            return master
    raise click.ClickException(f"the master at {session.cluster} did not come back within {wait_s:g} s: {lost}")


def _pages(master: RequestConnection, after: int) -> Iterator[Events]:
    while True:
        page = _page(master, after)
        yield page
        if not page.events or page.events[-1].number >= page.latest:
            return
        after = page.events[-1].number


def _page(master: RequestConnection, after: int) -> Events:
    return master.ask(lambda number: ListEvents(number, after, _PAGE), Events)


def _line(event: ClusterEvent) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
    owner = f" (of {event.owner})" if event.owner else ""
    return plain(f"{when}  {event.kind.value:<16}  {event.text}{owner}")


@click.command("acknowledge")
@click.argument("nodes", metavar="[NODE]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Acknowledge the loss of every lost node.")
@port_option
@address_option
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def acknowledge_command(
    nodes: tuple[str, ...],
    every: bool,
    port: int | None,
    address: str | None,
    key_file: Path | None,
    as_json: bool,
) -> None:
    r"""Remove lost nodes from the lists of nodes.

    xparl status, xparl list nodes, the monitor and its metrics show a lost node until it returns or this command
    acknowledges it. NODE is a node's name, name:port or id, as shown by xparl list nodes.

    \b
    Examples:
      xparl acknowledge gpu-3
      xparl acknowledge --all
    """
    if every == bool(nodes):
        raise click.UsageError("name the lost nodes to acknowledge, or give --all")
    with open_session("xparl acknowledge", port, address, key_file) as session:
        lost = [node for node in nodes_of(session.master, lost=True) if node.phase is NodePhase.LOST]
        meant = {node.node_id: node for node in (lost if every else (_lost_node(lost, text) for text in nodes))}
        ids = tuple(meant)
        done: tuple[str, ...] = ()
        if ids:  # no ids would mean all, those that are lost from now on included
            done = session.master.ask(lambda number: AcknowledgeNodes(number, ids), NodesAcknowledged).node_ids
        if as_json:
            click.echo(json.dumps({"acknowledged": list(done)}, indent=2))
        elif done:
            names = ", ".join(_label(node) for node_id, node in meant.items() if node_id in done)
            click.echo(f"{count(len(done), 'lost node')} acknowledged: {names}.")
        else:
            click.echo("No node is lost.")


def _lost_node(lost: list[NodeDetail], text: str) -> NodeDetail:
    found = find_nodes(lost, text)
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{_label(node)} ({short_id(node.node_id)})" for node in found or lost) or "none"
    problem = (
        f"{text!r} matches {len(found)} lost nodes" if found else f"there is no lost node {text!r}; the lost nodes are"
    )
    raise click.ClickException(f"{problem}: {known}")


def _label(node: NodeDetail) -> str:
    return node_label(node.name, next(iter(node.addresses), ""))
