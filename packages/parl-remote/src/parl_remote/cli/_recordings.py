"""`xparl timeline` and `xparl replay`: the recordings of actors.

timeline   every worker: RecordCalls --the time passes--> ReadCalls --spans--> lanes without overlaps --> a trace
           in Chrome's format, which browsers show
replay     the calls of one actor's journal, carried out again in this process
"""

from __future__ import annotations

import contextlib
import heapq
import json
import pdb
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from parl_core.atomic_write import atomic_write
from parl_remote._actor.journal import CANCELLED, Entry, Journal, Replay
from parl_remote._links.requests import RequestConnection
from parl_remote._messages import Done
from parl_remote._messages.overview import ClusterEvent, Events, ListEvents, NodeDetail
from parl_remote._messages.parts import CallSpan, ReadCalls, RecordCalls, RecordedCalls
from parl_remote.cli._session import (
    FiniteRange,
    Session,
    address_option,
    key_option,
    node_label,
    nodes_of,
    open_session,
    port_option,
    short_id,
)
from parl_remote.cli._show import count, plain
from parl_remote.errors import RemoteError

__all__ = ["replay_command", "timeline_command", "trace_of"]


_SHOWN = 200


@click.command("replay")
@click.argument("journal")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default="journals",
    show_default=True,
    help="Folder in which to look for journals by class or id.",
)
@click.option("--list", "listed", is_flag=True, help="List the calls in the journal without running them.")
@click.option("--call", "number", type=click.IntRange(0), help="Stop after this call and show its result.")
@click.option(
    "--pdb",
    "debug",
    is_flag=True,
    help="Debug: step into the call given by --call, or else stop at the first call that raises.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per call.")
def replay_command(journal: str, folder: Path, listed: bool, number: int | None, debug: bool, as_json: bool) -> None:
    r"""Run the recorded calls of an actor again, in this process and in their order.

    An actor with the option record="journals" writes a journal into that folder. JOURNAL is the file, or the class or
    the beginning of the id in its name. The command makes the object again from the recorded class and arguments, with
    the same seeds of random number generators, and compares each outcome with the recorded one. Run it in the program's
    folder, so that the program's modules are found. Run it only on journals that you trust, because they contain
    pickles.

    The exit status is 1 if a call ends differently.

    \b
    Examples:
      xparl replay Trainer --list
      xparl replay journals/Trainer-9f86d081.journal
      xparl replay 9f86d081 --call 17 --pdb
    """
    path = _path(journal, folder)
    try:
        found = Journal.read(path)
        if found.damaged_bytes:
            click.echo(
                f"{path} can be read to byte {found.whole_bytes} ({count(len(found.entries), 'call')}); the remaining "
                f"{count(found.damaged_bytes, 'byte')} were not written completely, or are damaged",
                err=True,
            )
        if number is not None and all(entry.number != number for entry in found.entries):
            raise click.UsageError(f"{path} has no call {number}; it has {count(len(found.entries), 'call')}")
        if listed:
            for entry in found.entries:
                click.echo(json.dumps(_as_json(entry)) if as_json else _line(entry))
            return
        sys.path.insert(0, "")
        differ = sum(_carried_out(found, number, debug=debug, as_json=as_json))
    except RemoteError as error:
        raise click.ClickException(str(error)) from error
    if differ:
        sys.exit(1)


def _carried_out(found: Journal, number: int | None, *, debug: bool, as_json: bool) -> Iterator[bool]:
    """Carry out the calls up to `number`; yield for each whether its outcome differs from the recorded one."""
    replay = Replay(found)
    done = differing = 0
    for entry in found.entries:
        if entry.number == number and debug:
            click.echo(f"{_line(entry)}; at the method's first line:")
            click.echo(f"it returned {_clipped(replay.step_into(entry, pdb.Pdb().runcall))}")
            return
        if entry.outcome is not None and entry.outcome.error == CANCELLED:  # run to its end, it would not be the same
            if as_json:
                click.echo(json.dumps(_as_json(entry) | {"replayed": CANCELLED, "differs": False}))
            else:
                click.echo(f"{_line(entry)}: not run again", err=True)
            if entry.number == number:
                break
            continue
        if entry.outcome is None:
            click.echo(f"{_line(entry)}: running it again", err=True)  # it may end this process, too
        outcome, error, value = replay.carry_out(entry)
        done += 1
        differs = entry.outcome is not None and not entry.outcome.equals(outcome)
        differing += differs
        if as_json:
            click.echo(json.dumps(_as_json(entry) | {"replayed": outcome.error or outcome.digest, "differs": differs}))
        elif differs or entry.number == number:
            here = f"raised {outcome.error}" if outcome.error else f"returned {_clipped(value)}"
            there = "" if not differs or entry.outcome is None else f", there it {_ended(entry)}"
            click.echo(f"{_line(entry)}: {here}{there}")
            if error is not None:
                click.echo("".join(traceback.format_exception(error)).rstrip())
        yield differs
        if debug and number is None and error is not None:
            traceback.print_exception(error)
            if error.__traceback__ is not None:
                pdb.post_mortem(error.__traceback__)
            return
        if entry.number == number:
            break
    if not as_json:
        as_there = "as recorded" if not differing else f"{done - differing} as recorded, {differing} not"
        click.echo(f"{count(done, 'call')} of {found.class_name}: {as_there}")


def _path(text: str, folder: Path) -> Path:
    path = Path(text)
    if path.is_file():
        return path
    found = sorted(one for one in folder.glob("*.journal") if text in one.stem.rsplit("-", 1) or text in one.stem)
    if len(found) == 1:
        return found[0]
    if not found:
        raise click.ClickException(f"there is no journal {text!r}, neither as a file nor in {folder}/ (see --folder)")
    raise click.ClickException(f"{text!r} matches {len(found)} journals: {', '.join(map(str, found[:10]))}")


def _line(entry: Entry) -> str:
    took = f", {entry.outcome.took_s * 1000:.1f} ms" if entry.outcome is not None else ""
    return plain(f"#{entry.number} {entry.name} {_ended(entry)}{took}")


def _ended(entry: Entry) -> str:
    if entry.outcome is None:
        return "never ended"
    if entry.outcome.error == CANCELLED:
        return "was cancelled"
    return f"raised {entry.outcome.error}" if entry.outcome.error else "returned"


def _as_json(entry: Entry) -> dict[str, object]:
    outcome = entry.outcome
    return {
        "number": entry.number,
        "name": entry.name,
        "at": entry.at,
        "bytes": sum(map(len, entry.frames)),
        "ended": outcome is not None,
        "error": outcome.error if outcome is not None else "",
        "digest": outcome.digest if outcome is not None else "",
        "took_s": outcome.took_s if outcome is not None else None,
    }


def _clipped(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


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
@click.option("--seconds", type=FiniteRange(0.1, 3600), default=10.0, show_default=True, help="How long to record.")
@port_option
@address_option
@key_option
def timeline_command(
    output: Path, seconds: float, port: int | None, address: str | None, key_file: Path | None
) -> None:
    r"""Record the calls of all actors for some seconds and write them as a timeline.

    The file has Chrome's trace format; open it in https://ui.perfetto.dev or chrome://tracing. Each actor has a row, or
    several rows while it runs several calls at a time; the cluster's events are marked. Recording costs some
    microseconds per call. Ctrl-C ends the recording early and writes the calls recorded so far.

    \b
    Examples:
      xparl timeline
      xparl timeline --seconds 60 -o run.json
    """
    with contextlib.ExitStack() as opened:
        try:  # before the recording, which would be lost
            file = opened.enter_context(atomic_write(output, "w", encoding="utf-8"))
        except OSError as error:
            raise click.ClickException(f"cannot write {output}: {error.strerror}") from error
        session = opened.enter_context(open_session("xparl timeline", port, address, key_file))
        workers = _workers(session, opened)
        began = time.time()
        recording: list[tuple[NodeDetail, RequestConnection]] = []
        for node, worker in workers:
            with _skip_unreachable(_label(node)):
                worker.ask(lambda number: RecordCalls(number, seconds), Done, _ANSWER_S)
                recording.append((node, worker))
        click.echo(f"Recording {count(len(recording), 'node')} for {seconds:g} s.", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(seconds)
        ended = time.time()
        actors: list[ActorCalls] = []
        for node, worker in recording:
            with _skip_unreachable(_label(node)):
                actors += _recorded(node, worker, began)
        events: list[ClusterEvent] = []
        with _skip_unreachable("the record of events"):
            events += (event for event in _events(session.master) if began <= event.at <= ended)
        json.dump(trace_of(actors, events, began, ended), file, separators=(",", ":"))
    calls = sum(len(actor.calls) for actor in actors)
    click.echo(f"{output}: {count(calls, 'call')} of {count(len(actors), 'actor')}")


@contextlib.contextmanager
def _skip_unreachable(what: str) -> Iterator[None]:
    """Continue without a node that cannot be asked, for example one that was lost meanwhile, with a message."""
    try:
        yield
    except RemoteError as error:
        click.echo(f"{what} is left out: {error}", err=True)


def _workers(session: Session, opened: contextlib.ExitStack) -> list[tuple[NodeDetail, RequestConnection]]:
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


def _recorded(node: NodeDetail, worker: RequestConnection, began: float) -> Iterator[ActorCalls]:
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


def _events(master: RequestConnection) -> tuple[ClusterEvent, ...]:
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
        began: The time at which the recording began, Unix time: the zero of the trace.
        ended: The time of its end, which is that of calls that still run.
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
    busy: list[tuple[float, int]] = []  # when the lane is free again, and the lane
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
