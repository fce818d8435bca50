"""`xparl status`: nodes, slots, programs and who waits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from parl_remote.cli.show import report_cluster
from parl_remote.cli.target import address_option, key_option, port_option, targets
from parl_remote.config import environment

__all__ = ["command"]


@click.command("status")
@port_option
@address_option
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(port: int | None, address: str | None, key_file: Path | None, as_json: bool) -> None:
    r"""Show nodes, slots, actors and clients of clusters.

    The exit status is 1 if one of them does not answer.

    \b
    Examples:
      xparl status                                 all your clusters on this host
      xparl status --address first:8037 --json
    """
    found = environment()
    reports = [
        report_cluster(target.address, target.key_file, found) for target in targets(found, port, address, key_file)
    ]
    if as_json:
        click.echo(json.dumps({"clusters": [report.as_json() for report in reports]}, indent=2))
    elif reports:
        click.echo("\n\n".join(report.as_text() for report in reports))
    else:
        which = f"on port {port}" if port else "of yours"
        click.echo(f"There is no cluster {which} on this host. Start one: xparl start --port 8037")
    if any(report.error for report in reports):
        sys.exit(1)
