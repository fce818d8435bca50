"""`xparl top`: a cluster's nodes and actors, refreshed every second.

Session --Look--> frame: lines of text, without terminal or clock --> Screen: the whole terminal, keys without Return
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from parl_remote._codec import to_json
from parl_remote._messages import Status, StatusRequest
from parl_remote._messages.overview import ActorPhase, ActorStatus, NodeDetail
from parl_remote.cli._session import (
    FiniteRange,
    Session,
    actors_of,
    address_option,
    key_option,
    node_label,
    nodes_of,
    open_session,
    port_option,
    short_id,
)
from parl_remote.cli._show import age, amount, clip, count, size, table

__all__ = ["top_command"]


SORTS = {"cpu": "c", "memory": "m", "rate": "r", "age": "a"}  # the sort orders and their keys
_MOST_NODES = 0.4  # share of the lines for nodes if there are more than fit


@dataclass(frozen=True, slots=True)
class Overview:
    """A cluster's state at one moment.

    Attributes:
        address: Its master.
        status: Sums, programs, pending requests.
        nodes: Its workers.
        actors: Its actors.
    """

    address: str
    status: Status
    nodes: tuple[NodeDetail, ...]
    actors: tuple[ActorStatus, ...]


def frame(look: Overview, sort: str, *, width: int = 0, height: int = 0) -> list[str]:
    """Return the lines to show.

    Args:
        look: The cluster.
        sort: One of `SORTS`.
        width: Columns to fit into, 0 for any.
        height: Lines to fit into, 0 for any.
    """
    lines = _summary(look)
    nodes = _node_lines(look.nodes)
    if height:
        free = max(3, int((height - len(lines)) * _MOST_NODES))
        if len(nodes) > free:
            nodes = [*nodes[: free - 1], f"... {count(len(look.nodes) - free + 2, 'more node')}"]
    lines += ["", *nodes, "", *_actor_lines(_sorted(look.actors, sort))]
    if height:
        lines = lines[: height - 1]
    return [clip(line, width) for line in lines] if width else lines


def as_json(look: Overview, sort: str) -> dict[str, Any]:
    """Return the state as JSON."""
    return {
        "address": look.address,
        "status": to_json(look.status),
        "nodes": [to_json(node) for node in look.nodes],
        "actors": [to_json(actor) for actor in _sorted(look.actors, sort)],
    }


def _summary(look: Overview) -> list[str]:
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
        f"({busy} busy), {one.waiting} waiting for resources",
        f"taken: {', '.join(parts)}",
    ]


def _node_lines(nodes: Sequence[NodeDetail]) -> list[str]:
    rows = [
        [
            node_label(node.name or node.node_id, next(iter(node.addresses), "")),
            node.phase.value,
            f"{amount(round(node.total.cpu - node.free.cpu, 3))}/{amount(node.total.cpu)}",
            *(
                ("", "", "")
                if node.lost_at is not None
                else (f"{node.cpu_busy:.0%}", f"{node.load:.2f}", f"{size(node.memory_free)}/{size(node.memory_total)}")
            ),
            str(node.actors),
            age(node.silent_s),
        ]
        for node in sorted(nodes, key=lambda node: (node.lost_at is None, -node.cpu_busy))
    ]
    headings = ["NODE", "STATE", "CPUS", "BUSY", "LOAD", "MEM FREE", "ACTORS", "HEARD"]
    return table(headings, rows, right=headings[2:])


def _actor_lines(actors: Sequence[ActorStatus]) -> list[str]:
    rows = [
        [
            short_id(actor.lease_id),
            actor.class_name + (f" {actor.name}" if actor.name else ""),
            node_label(actor.node, actor.node_address),
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


with contextlib.suppress(ImportError):  # not on Windows
    import termios
    import tty


_ENTER = "\x1b[?1049h\x1b[?25l"  # the other page, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_END_OF_LINE = "\x1b[K"
_REST_OF_PAGE = "\x1b[J"


class Screen:
    """The terminal of this process, in full-screen mode within `with`."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        if importlib.util.find_spec("termios") is None:
            raise OSError("this system has no terminals of the kind that `xparl top` draws on; use `xparl status`")
        self._settings = termios.tcgetattr(self._input)

    @property
    def width(self) -> int:
        """The current number of columns."""
        return shutil.get_terminal_size().columns

    @property
    def height(self) -> int:
        """The current number of lines."""
        return shutil.get_terminal_size().lines

    def __enter__(self) -> Screen:
        tty.setcbreak(self._input)
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._settings)
        self._write(_LEAVE)
        return kind is KeyboardInterrupt  # the usual way to leave

    def show(self, lines: Sequence[str]) -> None:
        """Draw lines over the previous ones; lines that do not fit are left out."""
        fitting = lines[: self.height - 1]
        self._write(_HOME + "".join(f"{line}{_END_OF_LINE}\r\n" for line in fitting) + _REST_OF_PAGE)

    def key(self, timeout_s: float) -> str | None:
        """Return the next key; None if none is pressed in time."""
        if not select.select([self._input], [], [], timeout_s)[0]:
            return None
        pressed = os.read(self._input, 16).decode(errors="replace")
        return pressed[:1] or "q"  # the terminal is gone

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


_SHARE = 4.0  # a list of ten thousand actors takes the master some time, which must stay a small share


@click.command("top")
@click.option(
    "-d",
    "--delay",
    type=FiniteRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two snapshots.",
)
@click.option(
    "-n", "--count", type=click.IntRange(1), help="End after this many snapshots. Default: on q; one into a pipe."
)
@click.option("--sort", type=click.Choice(list(SORTS)), default="cpu", show_default=True, help="Order of the actors.")
@port_option
@address_option
@key_option
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON, one object per snapshot.")
def top_command(
    delay: float,
    count: int | None,
    sort: str,
    port: int | None,
    address: str | None,
    key_file: Path | None,
    json_wanted: bool,
) -> None:
    r"""Show the nodes and actors of a cluster continuously, as top does for processes.

    Keys: q or Ctrl-C ends the command; c, m, r and a sort the actors by CPU, memory, rate of calls and age. If the
    output is a pipe, the command writes one snapshot with lines of full length and ends. Workers report the figures of
    their actors to the master every two seconds.

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


def _look(session: Session) -> Overview:
    master = session.master
    status = master.ask(StatusRequest, Status)
    return Overview(str(session.cluster), status, nodes_of(master, lost=True), tuple(actors_of(master)))


def _watch(session: Session, delay_s: float, count: int | None, sort: str) -> None:
    """Show successive states until q is pressed."""
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
