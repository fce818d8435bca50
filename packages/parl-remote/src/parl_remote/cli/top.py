"""`xparl top`: a cluster's nodes and actors, looked at again every second."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from parl_remote.cli.overview import actors_of, nodes_of
from parl_remote.cli.screen import Screen
from parl_remote.cli.session import Session, open_session
from parl_remote.cli.target import address_option, key_option, port_option
from parl_remote.cli.top_frame import SORTS, Look, as_json, frame
from parl_remote.messages import Status, StatusRequest

__all__ = ["command"]

_SHARE = 4.0  # a look at ten thousand actors keeps the master busy for a while; it has more to do than to be looked at


@click.command("top")
@click.option(
    "-d",
    "--delay",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option("-n", "--count", type=click.IntRange(1), help="End after so many looks. Default: on q; one into a pipe.")
@click.option(
    "--sort", type=click.Choice(list(SORTS)), default="cpu", show_default=True, help="Which actors come first."
)
@port_option
@address_option
@key_option
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON, one object a look.")
def command(
    delay: float,
    count: int | None,
    sort: str,
    port: int | None,
    address: str | None,
    key_file: Path | None,
    json_wanted: bool,
) -> None:
    r"""Watch the nodes and actors of a cluster, as top does for processes.

    Keys: q or Ctrl-C ends; c, m, r, a sorts actors by CPU, memory, rate of calls, age. Into a pipe it writes one look
    and ends, in lines of full length. Workers tell the master their actors' numbers every two seconds.

    \b
    Examples:
      xparl top
      xparl top --sort memory -d 5
      xparl top --json -n 10 > looks.jsonl
    """
    with open_session("xparl top", port, address, key_file) as session:
        if not json_wanted and sys.stdin.isatty() and sys.stdout.isatty():
            _watch(session, delay, count, sort)
            return
        for number in range(count or 1):
            if number:
                time.sleep(delay)
            look = _look(session)
            click.echo(json.dumps(as_json(look, sort)) if json_wanted else "\n".join(frame(look, sort)))


def _look(session: Session) -> Look:
    master = session.master
    status = master.ask(StatusRequest, Status)
    return Look(str(session.cluster), status, nodes_of(master), tuple(actors_of(master)))


def _watch(session: Session, delay_s: float, count: int | None, sort: str) -> None:
    """Show look after look until q."""
    left = count
    with Screen() as screen:
        while left != 0:
            began = time.monotonic()
            look = _look(session)
            left = None if left is None else left - 1
            now = time.monotonic()
            until = now + max(delay_s, _SHARE * (now - began))
            key: str | None = ""
            while key is not None:
                screen.show(frame(look, sort, width=screen.width, height=screen.height))
                key = screen.key(max(0.0, until - time.monotonic()))
                if key in {"q", "Q"}:
                    return
                sort = next((name for name, letter in SORTS.items() if letter == key), sort)
