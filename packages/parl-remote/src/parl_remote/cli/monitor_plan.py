"""The monitor that `xparl start` starts beside a cluster: whether, and on which port."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import click

from parl_remote.cli.launch import check_port
from parl_remote.config import Environment
from parl_remote.errors import RemoteError
from parl_remote.links.identity import host_name
from parl_remote.monitor.launch import HOW_TO_INSTALL, check_installed, is_installed, start_monitor
from parl_remote.monitor.sessions import token_of
from parl_remote.monitor.settings import MonitorSettings
from parl_remote.node.cluster_node import NodeSettings
from parl_remote.node.run_files import RunFiles

__all__ = ["EVERYWHERE", "MonitorPlan", "plan_monitor", "url_of"]

EVERYWHERE = frozenset({"0.0.0.0", "::"})
_ABOVE = 100  # PARL's own monitor was there, and people look for it there


@dataclass(frozen=True, slots=True)
class MonitorPlan:
    """What was decided before the cluster started.

    Attributes:
        found: The environment.
        host: The monitor's interface.
        port: Its port; 0 for no monitor.
        note: What to tell instead of its address.
    """

    found: Environment
    host: str
    port: int
    note: str = ""

    def start(self, node: NodeSettings) -> str:
        """Start it beside a cluster that has just come up, without waiting for it; what to tell people."""
        if not self.port:
            return self.note
        master = "localhost" if node.host in EVERYWHERE else f"[{node.host}]" if ":" in node.host else node.host
        settings = MonitorSettings(
            address=f"{master}:{node.port}",
            directory=node.directory,
            host=self.host,
            port=self.port,
            key_file=f"{node.directory}/key",
            with_cluster=True,
        )
        try:
            token_of(settings.token_file)  # to be there when people are told of it, whenever the monitor is up
            start_monitor(settings, self.found, wait=False)
        except (RemoteError, OSError) as error:
            return f"not now: {error}"
        return f"{url_of(self.host, self.port)} (its token, to change anything, is in {settings.token_file})"


def plan_monitor(found: Environment, host: str, asked: int | None, cluster_port: int) -> MonitorPlan:
    """Decide about a monitor.

    Args:
        found: The environment.
        host: Its interface.
        asked: Its port; 0 for none, None for the usual one.
        cluster_port: The cluster's port.

    Raises:
        click.ClickException: It was asked for and cannot be, because its port is in use or something is not installed.
    """
    if asked == 0 or (asked is None and not found.monitor):
        return MonitorPlan(found, host, 0)
    if asked is None:
        if not is_installed():
            return MonitorPlan(found, host, 0, f"with the web monitor: {HOW_TO_INSTALL}")
        return MonitorPlan(found, host, _free_port(host, cluster_port + _ABOVE))
    try:
        check_installed()
    except RemoteError as error:
        raise click.ClickException(str(error)) from error
    if asked == cluster_port:
        raise click.UsageError(f"the monitor needs a port of its own, {asked} is the cluster's")
    check_port(host, asked, RunFiles(found.run_dirs))
    return MonitorPlan(found, host, asked)


def url_of(host: str, port: int) -> str:
    """The address for a browser."""
    name = host_name() if host in EVERYWHERE else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}"


def _free_port(host: str, wanted: int) -> int:
    """That port if it is free, else any that is; 0 if there is none on that interface."""
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
