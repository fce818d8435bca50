"""`xparl stop`: the end of clusters and workers that this user started on this host."""

from __future__ import annotations

import click

from parl_remote.cli.stopping import stop_all
from parl_remote.config import environment
from parl_remote.node.run_files import RunFiles

__all__ = ["command"]


@click.command("stop")
@click.option(
    "--port",
    "ports",
    type=click.IntRange(1, 65535),
    multiple=True,
    help="Your cluster on this port of this host; may be given often. Default: all of yours.",
)
def command(ports: tuple[int, ...]) -> None:
    r"""Stop your clusters and workers on this host: all of them, or those of the ports that are named.

    Each node gets a moment to end its actors and to say goodbye; what is left of it after that is killed. Processes
    are found by what xparl start and xparl connect wrote down, never by name.

    \b
    Examples:
      xparl stop --port 8037
      xparl stop --port 8037 --port 8038
      xparl stop
    """
    found = environment()
    stopped = stop_all(RunFiles(found.run_dirs), ports, found.limits)
    for line in stopped:
        click.echo(line)
    if not stopped:
        which = f"on port {' or '.join(map(str, ports))}" if ports else "of yours"
        click.echo(f"There is no cluster {which} on this host; nothing was stopped.")
