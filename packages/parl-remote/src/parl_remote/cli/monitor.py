"""`xparl monitor`: a web monitor for a cluster anywhere, in this terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from parl_remote.cli.launch import check_port
from parl_remote.cli.monitor_plan import url_of
from parl_remote.cli.target import address_option, key_option, only_target, port_option
from parl_remote.config import environment
from parl_remote.errors import RemoteError
from parl_remote.monitor.launch import check_installed
from parl_remote.monitor.settings import MonitorSettings
from parl_remote.node.run_files import RunFiles
from parl_remote.transport.addresses import Address, is_loopback

__all__ = ["command"]

_PORT = 8137  # of a cluster on 8037, as in all examples


@click.command("monitor")
@port_option
@address_option
@key_option
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Interface; beyond loopback, visitors sign in.",
)
@click.option(
    "--monitor_port",
    "--monitor-port",
    type=click.IntRange(1, 65535),
    default=_PORT,
    show_default=True,
    help="Port for browsers.",
)
def command(port: int | None, address: str | None, key_file: Path | None, host: str, monitor_port: int) -> None:
    r"""Show a cluster in a browser, until Ctrl-C.

    xparl start starts one beside a new cluster; this is for clusters on other hosts, and for other interfaces.

    \b
    Examples:
      xparl monitor                                        the cluster of this host
      xparl monitor --address first:8037                   a cluster elsewhere, seen from here
      xparl monitor --host 0.0.0.0 --monitor_port 8080     for other hosts; they have to sign in
    """
    found = environment()
    target = only_target(found, port, address, key_file)
    run_files = RunFiles(found.run_dirs)
    check_port(host, monitor_port, run_files)
    try:
        check_installed()
        settings = MonitorSettings(
            address=str(Address.parse(target.address)),
            directory=str(run_files.monitor_directory(monitor_port)),
            host=host,
            port=monitor_port,
            key_file=str(target.key_file.expanduser().absolute()) if target.key_file else "",
        )
    except (RemoteError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error

    def report(outcome: dict[str, str]) -> None:
        if error := outcome.get("error"):
            click.echo(f"Error: {error}", err=True)
            return
        click.echo(f"The cluster at {settings.address} is shown at {url_of(host, monitor_port)}, until Ctrl-C.")
        needed = "to change anything" if is_loopback(host) else "to look and to change anything"
        click.echo(f"  Token, {needed}: {settings.token_file}")

    from parl_remote.monitor.server import run_monitor  # what it needs is there, as was checked

    sys.exit(run_monitor(settings, report))
