"""Starts and ends a program's private cluster; the only module that starts a process of the driver's own.

The driver makes the directory and the listening socket and hands the socket to the node, so that it can connect before
the node reads, without waiting for the socket to appear. Where sockets cannot be handed over (`facilities`) the node
makes it, and the driver waits for it.

The node also gets one end of a socket pair, whose other end the driver closes once it is connected. If the driver is
killed before, the node ends at once; where sockets cannot be handed over, it ends when no driver has come for long.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from parl_remote._config import FORCE_TCP, Environment
from parl_remote._data.ownership import absolute
from parl_remote._system import processes
from parl_remote._system.facilities import is_portable
from parl_remote._transport.unix import UnixChannel, listening_socket, private_directory
from parl_remote.errors import ChannelClosed, ClusterUnreachable

__all__ = ["ParentCluster", "PrivateCluster"]


_LOOK_AGAIN_S = 0.005  # importing takes a hundred times as long
_SHUTDOWN_S = 2.0  # seconds; the node gives actors a moment to end, and is killed after this time

# The node has the driver's import path, because parl_remote may come from a path that only the driver has, but not the
# program's own folder (`-P`): the standard library would import a user's contextvars.py from there.
_PROGRAM = "import sys; sys.path[:] = {path!r}; from parl_remote._node.private_process import main; main(sys.argv[1])"


class PrivateCluster:
    """A program's own node process.

    Args:
        environment: The directory of sockets, and limits.
        slots: CPUs to give to actors.
        preload: Modules to import once for all actors.
        log_dir: The directory of actors' log files, which stay; None for one that is removed with the cluster.
    """

    def __init__(self, environment: Environment, *, slots: int, preload: tuple[str, ...], log_dir: Path | None) -> None:
        self.directory = _socket_directory(environment.socket_parent)
        self._path = self.directory / "node.sock"
        self._log = self.directory / "node.log"
        self._start_timeout_s = environment.limits.start_timeout_s
        self._connecting: socket.socket | None = None
        logs = self.directory / "logs" if log_dir is None else log_dir.absolute()
        try:
            logs.mkdir(parents=True, exist_ok=True)
            with ExitStack() as undo:
                log = undo.enter_context(open(self._log, "ab"))
                listening = driver = -1
                if not is_portable():
                    self._connecting, theirs = socket.socketpair()
                    driver = undo.enter_context(_to_pass(theirs)).fileno()
                    listening = undo.enter_context(_listen_at(self._path)).fileno()
                settings = {
                    "directory": str(self.directory),
                    "log_directory": str(logs),
                    "listening": listening,
                    "driver": driver,
                    "slots": slots,
                    "preload": preload,
                }
                path = sorted(map(absolute, sys.path), key=os.path.dirname(os.__file__).__ne__)
                self._process = subprocess.Popen(
                    [*processes.python_command(), "-P", "-c", _PROGRAM.format(path=path), json.dumps(settings)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={name: value for name, value in os.environ.items() if name != FORCE_TCP},
                    pass_fds=() if is_portable() else (listening, driver),
                    start_new_session=True,  # Ctrl-C in the driver's terminal is the driver's to handle
                    creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
                )
        except BaseException:
            self.connected()
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    @property
    def pid(self) -> int:
        """The node's process id."""
        return self._process.pid

    @property
    def may_return(self) -> bool:
        """Return False: the cluster ends with its one process."""
        return False

    def connect_master(self) -> UnixChannel:
        """Return a channel to the master.

        Raises:
            ClusterUnreachable: The node has ended; the message has the end of its log.
        """
        self._await_listening()
        try:
            return UnixChannel.connect(str(self._path))
        except OSError as error:
            raise self.unreachable(str(error)) from error

    def _await_listening(self) -> None:
        """Wait until the node listens, where it had to make the socket itself."""
        deadline = time.monotonic() + self._start_timeout_s
        while is_portable() and not self._path.exists() and self._process.poll() is None:
            if time.monotonic() > deadline:
                raise self.unreachable(f"its node did not come up within {self._start_timeout_s:g} s")
            time.sleep(_LOOK_AGAIN_S)

    def connect_node(self, node_addresses: Sequence[str]) -> UnixChannel:
        """Raise `ClusterUnreachable`: the one node is on this host, so its directory must be gone."""
        raise self.unreachable(f"its node's directory {self.directory} is gone ({', '.join(node_addresses)})")

    def unreachable(self, reason: str) -> ClusterUnreachable:
        """Return the error for a node that ended too early."""
        lines = "".join(f"\n  | {line}" for line in processes.tail(self._log, 20))
        return ClusterUnreachable(f"the private cluster did not start: {reason}{lines}", address="local")

    def connected(self) -> None:
        """Let the connection, now that there is one, keep the node alive."""
        if self._connecting is not None:
            self._connecting.close()

    def close(self) -> None:
        """Wait for the node to end, which it does once this program has disconnected, and clear the directory."""
        self.connected()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_SHUTDOWN_S)
        finally:  # also after Ctrl-C
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """End the node at once."""
        self._process.kill()
        self.close()

    def abandon(self) -> None:
        """Forget the node in the child of a fork, which is not its parent."""
        self._process.returncode = 0  # so that nothing here waits for it


class ParentCluster:
    """The private cluster of the program that started this process; implements `client.Cluster`.

    Args:
        directory: The cluster's directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def may_return(self) -> bool:
        """Return False: the cluster ends with its one process."""
        return False

    def connect_master(self) -> UnixChannel:
        """Return a channel to the master.

        Raises:
            ClusterUnreachable: The program that started the cluster has ended.
        """
        try:
            return UnixChannel.connect(str(self._directory / "node.sock"))
        except (OSError, ChannelClosed) as error:
            raise self.unreachable(str(error)) from error

    def connect_node(self, node_addresses: Sequence[str]) -> UnixChannel:
        """Raise `ClusterUnreachable`: the one node is on this host, so its directory must be gone."""
        raise self.unreachable(f"its directory {self._directory} is gone ({', '.join(node_addresses)})")

    def unreachable(self, reason: str) -> ClusterUnreachable:
        """Return the error for a cluster that has ended."""
        text = f"the private cluster of the program that started this process cannot be reached: {reason}"
        return ClusterUnreachable(text, address="local")

    def close(self) -> None:
        """Do nothing: the cluster continues."""

    def abandon(self) -> None:
        """Do nothing: the cluster continues."""


def _listen_at(path: Path) -> socket.socket:
    """Return a listening socket that can be passed to the node."""
    return _to_pass(listening_socket(str(path)))


def _to_pass(one: socket.socket) -> socket.socket:
    return socket.socket(fileno=processes.above_stderr(one.detach()))


def _socket_directory(parent: Path) -> Path:
    try:
        return private_directory(parent)
    except OSError as error:
        raise ClusterUnreachable(f"no directory for sockets: {error}") from error
