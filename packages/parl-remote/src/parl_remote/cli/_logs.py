"""`xparl logs`: the output of an actor on any host, also after its end."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from parl_remote._codec import to_json
from parl_remote._links.requests import Inquiry
from parl_remote._messages.parts import LogText, ReadLog
from parl_remote.cli._session import (
    Session,
    address_option,
    find_actor_or_death,
    key_option,
    nodes_of,
    open_session,
    port_option,
    short_id,
)

__all__ = ["logs_command"]

_MOST_BYTES = 2**20
_WAIT_S = 20.0
_ANSWER_S = 5.0


@click.command("logs")
@click.argument("actor")
@click.option("-f", "--follow", is_flag=True, help="Go on with what it writes, until it ends or Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(0), help="Only the last lines. Default: all that is kept.")
@port_option
@address_option
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a piece of text.")
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

    ACTOR is an id, the beginning of one, a name, or a class with one actor. It comes through the port of the actor's
    worker, so it works from every host that can use the cluster. Logs of the last thousand actors of a node that ended
    are kept while the node runs; of a very long one, the last 64 MiB or so.

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
def _worker_of(session: Session, text: str) -> Iterator[tuple[Inquiry, str]]:
    """Yield the worker of the named actor, and the actor's lease."""
    found = find_actor_or_death(session.master, text)
    node = next((node for node in nodes_of(session.master) if node.node_id == found.node_id), None)
    if node is None:
        raise click.ClickException(
            f"{found.class_name} {short_id(found.lease_id)} ran on {found.node_id}, which has left the cluster with "
            "its logs; xparl list deaths --json has the last lines"
        )
    with session.worker(node.addresses, "xparl logs") as worker:
        yield worker, found.lease_id


def _next(worker: Inquiry, lease_id: str, start: int, wait_s: float) -> LogText:
    return worker.ask(
        lambda number: ReadLog(number, lease_id, start=start, most_bytes=_MOST_BYTES, wait_s=wait_s),
        LogText,
        _ANSWER_S + wait_s,
    )


def _first(worker: Inquiry, lease_id: str, lines: int | None) -> LogText:
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
