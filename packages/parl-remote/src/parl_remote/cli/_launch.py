"""Starting a node for a command, in this terminal or in the background, after checking that its port is free."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path

import click
import psutil

from parl_remote._config import Environment
from parl_remote._node.run_files import RunFiles
from parl_remote._node.starting import NodeSettings, start_program
from parl_remote.errors import RemoteError

__all__ = ["check_port", "foreground_option", "launch"]

_LOG_LINES = 15

foreground_option = click.option(
    "--foreground", is_flag=True, help="Stay in this terminal until Ctrl-C or SIGTERM; for systemd and containers."
)


def launch(settings: NodeSettings, foreground: bool, found: Environment, say: Callable[[str], None]) -> None:
    """Start a node, here or detached, and report it to the user.

    Args:
        settings: Its settings.
        foreground: Whether this process becomes the node; it then does not return.
        found: Limits, and the command that nodes are started with.
        say: Prints the address that it listens on.

    Raises:
        click.ClickException: It did not come up.
    """
    if not foreground:
        log_file = Path(settings.directory) / "node.log"
        try:
            address = start_program("parl_remote._node.cluster_node", settings, log_file, found, what="node")
        except RemoteError as error:
            raise click.ClickException(str(error)) from error
        say(address)
        return

    def report(outcome: dict[str, str]) -> None:
        if error := outcome.get("error"):
            click.echo(f"Error: {error}", err=True)
        else:
            say(outcome["address"])

    from parl_remote._node.cluster_node import run_node  # 0.1 s of imports that a detached node pays itself

    sys.exit(run_node(settings, report))


def check_port(host: str, port: int, run_files: RunFiles) -> None:
    """Check that a port is free.

    Raises:
        click.ClickException: The port is in use; the message has the process.
    """
    for _, record in run_files.clusters():
        if record.port == port and record.process.alive():
            raise click.ClickException(
                f"port {port} is in use by your own cluster {record.cluster_id} (process {record.process.pid}); "
                f"stop it with `xparl stop --port {port}`, or choose another port"
            )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if not hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # Windows would let two have the port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            who = _who_listens(port)
            reason = f"port {port} is in use{who}; choose another" if who else f"{error.strerror} (port {port})"
            raise click.ClickException(f"cannot listen on {host}:{port}: {reason}") from error


def _who_listens(port: int) -> str:
    """Return the process that has a port, as " by name (process 12)", as far as this user may see it."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr[1] == port:
                if connection.pid is None:
                    return " by a process of another user"
                return f" by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return ""
