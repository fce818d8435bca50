"""`xparl stop`: the end of clusters and workers that this user started on this host."""

from __future__ import annotations

import click

from parl_remote.cli.stopping import stop_all
from parl_remote.cli.target import port_option
from parl_remote.config import environment
from parl_remote.node.run_files import RunFiles

__all__ = ["command"]


@click.command("stop")
@port_option
def command(port: int | None) -> None:
    r"""Stop your clusters and workers on this host: all of them, or those of one port.

    Each node gets a moment to end its actors and to say goodbye; what is left of it after that is killed. Processes
    are found by what xparl start and xparl connect wrote down, never by name.

    \b
    Examples:
      xparl stop --port 8037
      xparl stop
    """
    found = environment()
    stopped = stop_all(RunFiles(found.run_dirs), port, found.limits)
    for line in stopped:
        click.echo(line)
    if not stopped:
        which = f"on port {port}" if port else "of yours"
        click.echo(f"There is no cluster {which} on this host; nothing was stopped.")
