"""`xparl kill`: the end of actors, whoever owns them."""

from __future__ import annotations

import json
from pathlib import Path

import click

from parl_remote.cli.overview import find_actor, short_id
from parl_remote.cli.session import Session, open_session
from parl_remote.cli.target import address_option, key_option, port_option
from parl_remote.codec import to_json
from parl_remote.death import DeathRecord
from parl_remote.messages.overview import ActorKilled, KillActor

__all__ = ["command"]


@click.command("kill")
@click.argument("actors", metavar="ACTOR...", nargs=-1, required=True)
@click.option("--reason", default="", help="What its owner is told.")
@port_option
@address_option
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    actors: tuple[str, ...], reason: str, port: int | None, address: str | None, key_file: Path | None, as_json: bool
) -> None:
    r"""End actors at once; they are not restarted, and calls that wait for them raise ActorLost.

    ACTOR is an id, the beginning of one, a name, or a class with one actor. The command returns when they have ended.

    \b
    Examples:
      xparl kill 9f86d081
      xparl kill trainer evaluator --reason "makes room for the others"
    """
    with open_session("xparl kill", port, address, key_file) as session:
        meant = [find_actor(session.master, text) for text in actors]  # all of them are there, or none is touched
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
