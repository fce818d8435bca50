"""Starting and ending the private cluster of a program; the only module that starts a program of its own.

The driver makes the directory and the listening socket and hands the socket to the node, so that it can connect before
the node has even begun to read, and no name has to be looked for.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from parl_remote import processes
from parl_remote.config import Environment
from parl_remote.errors import ClusterUnreachable
from parl_remote.transport_unix import UnixChannel, listen_at, private_directory

__all__ = ["PrivateCluster"]

_SHUTDOWN_S = 2.0  # the node gives actors a moment; after this it does not get another one

# The node finds what the driver finds: also where parl_remote came from a path that only the driver has.
_PROGRAM = "import sys; sys.path[:] = {path!r}; from parl_remote.node import main; main(sys.argv[1])"


class PrivateCluster:
    """A node process of this program's own.

    Args:
        environment: Where sockets go.
        slots: CPUs to give to actors.
        preload: Modules to import once for all actors.
        log_dir: Where actors' log files go and stay; None puts them where they vanish with the cluster.
    """

    def __init__(self, environment: Environment, *, slots: int, preload: tuple[str, ...], log_dir: Path | None) -> None:
        self.directory = _socket_directory(environment.socket_parent)
        self._log = self.directory / "node.log"
        logs = self.directory / "logs" if log_dir is None else log_dir.absolute()
        try:
            logs.mkdir(parents=True, exist_ok=True)
            with _listen_at(self.directory / "node.sock") as listening, open(self._log, "ab") as log:
                settings = {
                    "directory": str(self.directory),
                    "log_directory": str(logs),
                    "listening": listening.fileno(),
                    "slots": slots,
                    "preload": preload,
                }
                path = [_absolute(entry) for entry in sys.path]
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM.format(path=path), json.dumps(settings)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(listening.fileno(),),
                    start_new_session=True,  # Ctrl-C in the driver's terminal is the driver's to handle
                )
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    @property
    def pid(self) -> int:
        """The node's process number."""
        return self._process.pid

    @property
    def may_return(self) -> bool:
        """It may not: it ends with its one process."""
        return False

    def connect_master(self) -> UnixChannel:
        """A channel to the master.

        Raises:
            ClusterUnreachable: The node is gone; the message has the end of its log.
        """
        try:
            return UnixChannel.connect(str(self.directory / "node.sock"))
        except OSError as error:
            raise self.unreachable(str(error)) from error

    def connect_node(self, node_addresses: Sequence[str]) -> UnixChannel:
        """The one node is on this host and reached there."""
        raise self.unreachable(f"its node's directory {self.directory} is gone ({', '.join(node_addresses)})")

    def unreachable(self, reason: str) -> ClusterUnreachable:
        """The error for a node that ended too early."""
        lines = "".join(f"\n  | {line}" for line in processes.tail(self._log, 20))
        return ClusterUnreachable(f"the private cluster did not start: {reason}{lines}", address="local")

    def close(self) -> None:
        """Wait for the node to end, which it does once this program has disconnected, and clear the directory."""
        try:
            self._process.wait(_SHUTDOWN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """End the node at once."""
        self._process.kill()
        self.close()

    def abandon(self) -> None:
        """In the child of a fork: the node is not this process's."""
        self._process.returncode = 0  # so that nobody here waits for it


def _absolute(entry: str) -> str:
    try:
        return os.path.abspath(entry)
    except FileNotFoundError:  # the working directory was removed: nothing can be imported from there anyway
        return entry


def _listen_at(path: Path) -> socket.socket:
    """A listening socket that the node can be given."""
    return socket.socket(fileno=processes.beyond_standard(listen_at(str(path)).detach()))


def _socket_directory(parent: Path) -> Path:
    try:
        return private_directory(parent)
    except OSError as error:
        raise ClusterUnreachable(f"no directory for sockets: {error}") from error
