"""Starting a monitor as a separate process: its settings and its dependencies."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from parl_remote._config import Environment
from parl_remote._node.launch import start_program
from parl_remote.errors import RemoteError

__all__ = ["HOW_TO_INSTALL", "MonitorSettings", "check_installed", "is_installed", "start_monitor"]


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """The settings of a monitor; they go over a command line, so no secret is among them.

    Attributes:
        address: The master, "host:port".
        directory: Its private directory, for token and log.
        host: The interface that it listens on.
        port: The port, 0 for a free one.
        key_file: A file with the cluster's key; empty for the search of `parl.connect`.
        with_cluster: Whether `directory` is that of a cluster of this host, with which the monitor ends.
        interval_s: The interval between requests to the master.
        given_token: A file with the token; empty for the one in `directory`, which is made if there is none and stays.
    """

    address: str
    directory: str
    host: str = "127.0.0.1"
    port: int = 0
    key_file: str = ""
    with_cluster: bool = False
    interval_s: float = 2.0
    given_token: str = ""

    @property
    def token_file(self) -> Path:
        """The file with the token."""
        return Path(self.given_token) if self.given_token else Path(self.directory) / "monitor.token"

    @property
    def log_file(self) -> Path:
        """The log of a detached monitor."""
        return Path(self.directory) / "monitor.log"


HOW_TO_INSTALL = "pip install 'parl-remote[monitor]'"
_NEEDS = ("flask", "waitress", "prometheus_client")
_LOG_LINES = 10


def is_installed() -> bool:
    """Return whether the monitor's dependencies are installed."""
    return not _missing()


def check_installed() -> None:
    """Check that the monitor's dependencies are installed.

    Raises:
        RemoteError: A dependency is missing; the message has the command to install it.
    """
    if missing := _missing():
        raise RemoteError(f"the monitor needs {' and '.join(missing)}, not installed here: {HOW_TO_INSTALL}")


def start_monitor(settings: MonitorSettings, found: Environment, *, wait: bool = True) -> str:
    """Start a monitor that outlives this process.

    Args:
        settings: Its settings.
        found: Limits, and the command that nodes are started with.
        wait: Whether to wait until it is up; if not, errors are only in its log.

    Returns:
        Its address in a browser, as far as it is known.

    Raises:
        RemoteError: It did not come up; the message has its reason or the end of its log.
    """
    check_installed()
    program = "parl_remote._monitor.server"
    address = start_program(program, settings, settings.log_file, found, what="monitor", wait=wait)
    return f"http://{address or f'{settings.host}:{settings.port}'}"


def _missing() -> list[str]:
    return [name for name in _NEEDS if importlib.util.find_spec(name) is None]
