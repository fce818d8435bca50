"""Starting a node as a process of its own, and saying clearly why it did not start."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import psutil

from parl_remote.codec import to_json
from parl_remote.config import Environment, Limits
from parl_remote.node.cluster_node import NodeSettings
from parl_remote.node.report_pipe import ReportPipe
from parl_remote.node.run_files import RunFiles
from parl_remote.system import processes

__all__ = ["check_port", "detach", "foreground_option", "launch"]

_LOG_LINES = 15

foreground_option = click.option(
    "--foreground", is_flag=True, help="Stay in this terminal until Ctrl-C or SIGTERM; for systemd and containers."
)


def launch(settings: NodeSettings, foreground: bool, found: Environment, say: Callable[[str], None]) -> None:
    """Start a node, here or detached, and tell the user.

    Args:
        settings: What it is.
        foreground: Whether this process becomes the node; it then does not return.
        found: Limits, and the command that nodes are started with.
        say: Tells the user where it listens.

    Raises:
        click.ClickException: It did not come up.
    """
    if not foreground:
        say(detach(settings, found.limits, found.launcher))
        return

    def report(outcome: dict[str, str]) -> None:
        if error := outcome.get("error"):
            click.echo(f"Error: {error}", err=True)
        else:
            say(outcome["address"])

    from parl_remote.node.daemon import run_node  # only here: a detached node reads its own program

    sys.exit(run_node(settings, report))


def check_port(host: str, port: int, run_files: RunFiles) -> None:
    """Make sure that nobody listens on a port yet.

    Raises:
        click.ClickException: Somebody does; the message says who.
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


def detach(settings: NodeSettings, limits: Limits, launcher: tuple[str, ...] = ()) -> str:
    """Start a node that lives on after this command; returns the address it listens on.

    Args:
        settings: What it is.
        limits: How long it may take.
        launcher: The command to run Python with; empty for the one that runs now.

    Raises:
        click.ClickException: It did not come up; the message has its reason or the end of its log.
    """
    directory = Path(settings.directory)
    log_path = directory / "node.log"
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    pipe = ReportPipe()
    try:
        node = subprocess.Popen(
            [
                *(launcher or (sys.executable,)),
                *("-P", "-m", "parl_remote.node.daemon", json.dumps(to_json(settings)), str(pipe.number)),
            ],
            cwd=directory,
            **pipe.options(log),
        )
    except OSError as error:
        pipe.close()
        command = launcher[0] if launcher else sys.executable
        hint = "; XPARL_PYTHON names it" if launcher else ""
        raise click.ClickException(f"cannot run {command}: {error.strerror}{hint}") from error
    finally:
        pipe.started()
        os.close(log)
    outcome = pipe.read(node, limits.start_timeout_s)
    pipe.close()
    if address := outcome.get("address"):
        node.returncode = 0  # it is on its own from here; nobody waits for it
        return str(address)
    node.kill()
    node.wait()
    raise click.ClickException(outcome.get("error") or _too_late(limits.start_timeout_s, log_path))


def _too_late(timeout_s: float, log_path: Path) -> str:
    lines = "".join(f"\n  | {line}" for line in processes.tail(log_path, _LOG_LINES))
    return f"the node did not come up within {timeout_s:g} s; the end of {log_path}:{lines}"


def _who_listens(port: int) -> str:
    """Who has a port, as " by name (process 12)", as far as this user may know."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr[1] == port:
                if connection.pid is None:
                    return " by a process of another user"
                return f" by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return ""
