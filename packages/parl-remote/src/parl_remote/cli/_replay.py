"""`xparl replay`: the calls of an actor's journal, carried out again in this process."""

from __future__ import annotations

import json
import pdb
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import click

from parl_remote._actor.journal import Entry, Journal, Replay
from parl_remote.cli._show import count, plain
from parl_remote.errors import RemoteError

__all__ = ["replay_command"]

_SHOWN = 200


@click.command("replay")
@click.argument("journal")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default="journals",
    show_default=True,
    help="Where journals are looked for by class or id.",
)
@click.option("--list", "listed", is_flag=True, help="Show what is in the journal, and run nothing of it.")
@click.option("--call", "number", type=click.IntRange(0), help="Stop with this call, and show what it gives.")
@click.option(
    "--pdb",
    "debug",
    is_flag=True,
    help="Debug: step into the call of --call; without it, look at the first call that raises.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a call.")
def replay_command(journal: str, folder: Path, listed: bool, number: int | None, debug: bool, as_json: bool) -> None:
    r"""Carry out an actor's calls again, in this process, in their order.

    An actor made with the option record="journals" keeps a journal in that folder. JOURNAL is its file, or the class or
    the beginning of the id in its name. The object is made anew from the class and the arguments that were recorded,
    random number generators begin as they did there, and each outcome is compared with the recorded one. Run it in the
    program's folder, so that its modules are found, and only on journals that you trust: they hold pickles.

    The exit status is 1 if a call ends in another way than it did.

    \b
    Examples:
      xparl replay Trainer --list
      xparl replay journals/Trainer-9f86d081.journal
      xparl replay 9f86d081 --call 17 --pdb
    """
    path = _path(journal, folder)
    try:
        found = Journal.read(path)
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
    """Carry out the calls up to `number`; yield for each whether it ended in another way than it did."""
    replay = Replay(found)
    done = differing = 0
    for entry in found.entries:
        if entry.number == number and debug:
            click.echo(f"{_line(entry)}; at the method's first line:")
            click.echo(f"it returned {_clipped(replay.step_into(entry, pdb.Pdb().runcall))}")
            return
        if entry.outcome is None:
            click.echo(f"{_line(entry)}: now again", err=True)  # it may end this process, too
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
    raise click.ClickException(f"{text!r} may be any of {len(found)} journals: {', '.join(map(str, found[:10]))}")


def _line(entry: Entry) -> str:
    took = f", {entry.outcome.took_s * 1000:.1f} ms" if entry.outcome is not None else ""
    return plain(f"#{entry.number} {entry.name} {_ended(entry)}{took}")


def _ended(entry: Entry) -> str:
    if entry.outcome is None:
        return "never ended"
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
