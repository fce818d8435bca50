"""What a monitor process is told; it goes over a command line, so no secret is among it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["MonitorSettings"]


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """One monitor.

    Attributes:
        address: The master, "host:port".
        directory: Its private directory, for token and log.
        host: The interface that it listens on.
        port: The port, 0 for a free one.
        key_file: A file with the cluster's key; empty looks where `parl.connect` does.
        with_cluster: Whether `directory` is that of a cluster of this host, with which the monitor ends.
        interval_s: How often it asks the master.
    """

    address: str
    directory: str
    host: str = "127.0.0.1"
    port: int = 0
    key_file: str = ""
    with_cluster: bool = False
    interval_s: float = 2.0

    @property
    def token_file(self) -> Path:
        """Where the token is."""
        return Path(self.directory) / "monitor.token"

    @property
    def log_file(self) -> Path:
        """Where a detached monitor writes its log."""
        return Path(self.directory) / "monitor.log"
