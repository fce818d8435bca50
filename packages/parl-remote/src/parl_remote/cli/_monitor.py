"""`xparl monitor`, and the monitor that `xparl start` starts beside a cluster."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from parl_remote._config import Environment, environment
from parl_remote._links.identity import host_name
from parl_remote._monitor.launch import HOW_TO_INSTALL, MonitorSettings, check_installed, is_installed, start_monitor
from parl_remote._monitor.sessions import token_of
from parl_remote._node.launch import NodeSettings
from parl_remote._run_files import RunFiles
from parl_remote._transport.addresses import EVERY_INTERFACE, Address, address_here, is_loopback, without_brackets
from parl_remote.cli._session import address_option, check_port, key_option, only_target, port_option
from parl_remote.errors import RemoteError

__all__ = ["monitor_command", "plan_monitor"]


_ABOVE = 100  # PARL's own monitor was there, and people look for it there


@dataclass(frozen=True, slots=True)
class MonitorPlan:
    """The decision about a cluster's monitor, taken before the cluster starts.

    Attributes:
        found: The environment.
        host: The monitor's interface.
        port: Its port; 0 for no monitor.
        note: The text to print instead of its address.
        token_file: A file with its token; None for its own.
    """

    found: Environment
    host: str
    port: int
    note: str = ""
    token_file: Path | None = None

    def start(self, node: NodeSettings) -> str:
        """Start the monitor beside a cluster that has just come up, without waiting; return the text to print."""
        if not self.port:
            return self.note
        settings = MonitorSettings(
            address=str(address_here(node.host, node.port)),
            directory=node.directory,
            host=self.host,
            port=self.port,
            key_file=f"{node.directory}/key",
            with_cluster=True,
            given_token=_given(self.token_file),
        )
        try:
            token_of(settings.token_file)  # made now, because the file is announced before the monitor is up
            start_monitor(settings, self.found, wait=False)
        except (RemoteError, OSError) as error:
            return f"not now: {error}"
        return f"{url_of(self.host, self.port)} (its token, to change anything, is in {settings.token_file})"


def plan_monitor(
    found: Environment, host: str, asked: int | None, cluster_port: int, token_file: Path | None = None
) -> MonitorPlan:
    """Return the plan of a monitor.

    Args:
        found: The environment.
        host: Its interface.
        asked: Its requested port; 0 for none, None for the default.
        cluster_port: The cluster's port.
        token_file: A file with its token; None for the one of the environment, else its own.

    Raises:
        click.ClickException: It was requested and cannot run, because its port is in use or a dependency is missing.
    """
    token_file = _token_in(token_file or found.monitor_token_file)
    if asked == 0 or (asked is None and not found.monitor):
        return MonitorPlan(found, host, 0)
    if asked is None:
        if not is_installed():
            return MonitorPlan(found, host, 0, f"with the web monitor: {HOW_TO_INSTALL}")
        return MonitorPlan(found, host, _free_port(host, cluster_port + _ABOVE), token_file=token_file)
    try:
        check_installed()
    except RemoteError as error:
        raise click.ClickException(str(error)) from error
    if asked == cluster_port:
        raise click.UsageError(f"the monitor needs its own port; {asked} is the cluster's")
    check_port(host, asked, RunFiles(found.run_dir))
    return MonitorPlan(found, host, asked, token_file=token_file)


def _token_in(path: Path | None) -> Path | None:
    """Return the whole path of a given token file, after checking that it can be used."""
    if path is None:
        return None
    whole = path.expanduser().absolute()
    if not whole.exists():
        raise click.ClickException(f"there is no token file {whole}")
    try:
        token_of(whole)
    except RemoteError as error:
        raise click.ClickException(str(error)) from error
    return whole


def _given(path: Path | None) -> str:
    return "" if path is None else str(path)


def url_of(host: str, port: int) -> str:
    """Return the address for a browser."""
    return f"http://{Address(host_name() if host in EVERY_INTERFACE else host, port)}"


def _free_port(host: str, wanted: int) -> int:
    """Return that port if it is free, else any free one; 0 if there is none on that interface."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in (wanted, 0) if wanted < 65536 else (0,):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if not hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # Windows would let two have the port
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return 0


_PORT = 8137  # the monitor's port of a cluster on 8037, as in all examples


@click.command("monitor")
@port_option
@address_option
@key_option
@click.option(
    "--host",
    type=without_brackets,
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="Interface to listen on. On any other than loopback, users have to sign in with the monitor's token.",
)
@click.option(
    "--monitor_port",
    "--monitor-port",
    type=click.IntRange(1, 65535),
    default=_PORT,
    show_default=True,
    help="Port for browsers.",
)
@click.option(
    "--token_file",
    "--token-file",
    type=click.Path(path_type=Path),
    help="The file with the monitor's token. Default: PARL_MONITOR_TOKEN_FILE, else a file that is made once and kept.",
)
def monitor_command(
    port: int | None, address: str | None, key_file: Path | None, host: str, monitor_port: int, token_file: Path | None
) -> None:
    r"""Serve a web page that shows a cluster, until Ctrl-C.

    xparl start starts a monitor with each new cluster. Use this command for clusters on other hosts, or for another
    interface.

    \b
    Examples:
      xparl monitor                                        the cluster of this host
      xparl monitor --address first:8037                   a cluster elsewhere, seen from here
      xparl monitor --host 0.0.0.0 --monitor_port 8080     for browsers on other hosts, which have to sign in
    """
    found = environment()
    target = only_target(found, port, address, key_file)
    run_files = RunFiles(found.run_dir)
    check_port(host, monitor_port, run_files)
    try:
        check_installed()
        settings = MonitorSettings(
            address=str(Address.parse(target.address)),
            directory=str(run_files.monitor_directory(monitor_port)),
            host=host,
            port=monitor_port,
            key_file=str(target.key_file.expanduser().absolute()) if target.key_file else "",
            given_token=_given(_token_in(token_file or found.monitor_token_file)),
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

    from parl_remote._monitor.server import run_monitor  # its dependencies were checked above

    sys.exit(run_monitor(settings, report))
