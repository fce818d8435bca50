"""A cluster of several nodes on this machine's loopback: real processes, real TCP and a line to each node.

    this program --127.0.2.1:port--> Line --> master, 127.0.0.1:port
                 --127.0.2.1:w1----> Line --> node 1, 127.0.0.1:w1 --127.0.3.1:port--> Line --> master
                 --127.0.2.1:w2----> Line --> node 2, 127.0.0.1:w2 --127.0.3.2:port--> Line --> master
    actors of node 1 --127.0.3.1:w2--> Line --> node 2            and so from every node to every node

All connections use encrypted TCP, as between hosts, so results also hold there. A guard process ends the cluster when
this program ends for any reason. It needs Linux, where all addresses of 127.0.0.0/8 belong to this machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import parl_remote
from parl_core._hosts import get_free_tcp_port
from parl_remote._config import environment
from parl_remote._messages import Status
from parl_remote._program.rendezvous import ClusterAddress
from parl_remote._run_files import RunFiles
from parl_remote.cli._session import ask_status
from parl_remote.cli._stop import on_record, stop_all
from parl_remote.testing._line import Conditions, Direction, Line
from parl_remote.testing._machine import Process, processes_with

__all__ = [
    "LoopbackCluster",
    "Member",
]

_XPARL = (sys.executable, "-P", "-m", "parl_remote.cli")
_HERE, _TO_NODES, _TO_MASTER = "127.0.0.1", "127.0.2.1", "127.0.3."
_ENDS_S = 10.0
_LOOK_S = 0.02  # polling interval in seconds for conditions without an event
_WORKER_AT = re.compile(r"worker at \S*?:(\d+)\)")
_START_S = 240.0  # seconds; enough on a busy machine
_ZYGOTE = "parl:zygote"
_LINES_OF_LOG = 15


class LoopbackCluster:
    """A cluster of a master and several nodes on this machine; a context manager.

    Args:
        nodes: The initial number of nodes, 0 or more.
        cpus: CPUs that each node gives to actors, above 0.
        master_cpus: CPUs that the master's own node gives to actors, 0 or more.
        liveness_limit_s: Seconds of silence after which a peer counts as lost.
        variables: Additional environment variables of the nodes.

    Attributes:
        address: The address for programs, "host:port".
        key_file: The file with the cluster's key.
        home: The cluster's private directory, with all logs; removed by `close`.
        master: The master's node.
        nodes: The other nodes by name: "node1" and so on.

    Raises:
        RuntimeError: A node did not start.
    """

    def __init__(
        self,
        nodes: int = 2,
        *,
        cpus: float = 2,
        master_cpus: float = 0,
        liveness_limit_s: float = 15.0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="parl-test-"))
        self.nodes: dict[str, Member] = {}
        self._between: dict[tuple[str, str], Line] = {}  # the lines by the nodes that they connect
        self._port = get_free_tcp_port()
        self._variables = {
            "PARL_RUN_DIR": str(self.home / "run"),
            "PARL_FORCE_TCP": "1",
            "PARL_LIVENESS_LIMIT": str(liveness_limit_s),
            "PARL_MONITOR": "0",
            **(variables or {}),
        }
        self._guard = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            env=self._environment(),
        )
        self._numbers = 0
        self._closed = False
        try:
            start = ("start", "--port", str(self._port), "--cpu_num", f"{master_cpus:g}", "--foreground")
            self.master = Member("master", (*_XPARL, *start), self._environment(), self.home / "master.log")
            self.master.start()
            (self.key_file,) = (self.home / "run").glob("*/key")
            self.master.toward = Line((_HERE, self._port), listen=(_TO_NODES, self._port))
            self.address = self.master.toward.address
            for _ in range(nodes):
                self.add_node(cpus)
            self.wait_for_nodes(nodes + bool(master_cpus))
        except BaseException:
            self.close()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that another process needs to connect to `address`."""
        return {**self._variables, "PARL_KEY_FILE": str(self.key_file)}

    def connect(self, **options: Any) -> None:
        """Call `parl.connect` for this cluster, with its `options`."""
        with set_variables(self.environment):
            parl_remote.connect(self.address, **options)

    def add_node(self, cpus: float = 2) -> Member:
        """Start another node and return it.

        Args:
            cpus: CPUs that the node gives to actors, above 0.

        Raises:
            RuntimeError: The node did not start.
        """
        self._numbers += 1
        name = f"node{self._numbers}"
        upward = Line((_HERE, self._port), listen=(f"{_TO_MASTER}{self._numbers}", self._port))
        connect = ("connect", "--address", upward.address, "--cpu_num", f"{cpus:g}", "--foreground")
        environment_ = {**self._environment(), "PARL_KEY_FILE": str(self.key_file)}
        node = Member(name, (*_XPARL, *connect), environment_, self.home / f"{name}.log", self._between)
        node.upward = upward
        self.nodes[name] = node
        self.start_node(node)
        return node

    def start_node(self, node: Member) -> None:
        """Start a killed node again, as a new node without actors."""
        node.start()
        found = _WORKER_AT.search(node.said)
        if found is None:
            raise RuntimeError(f"node {node.name} does not say its port: {node.said}")
        port = int(found[1])
        if node.toward is not None:
            node.toward.close()
        node.toward = Line((_HERE, port), listen=(_TO_NODES, port))
        for source in self.nodes.values():
            self._link(source, node, port)
            if source is not node and source.toward is not None:
                self._link(node, source, source.toward.port)

    def _link(self, source: Member, target: Member, port: int) -> None:
        """Lead a line from a node's actors to the port of a node."""
        former = self._between.get((source.name, target.name))
        if former is not None and former.port == port:
            return
        if former is not None:
            former.close()
        assert source.upward is not None  # actors know the host at its near end, and search for other nodes there
        host = source.upward.address.rpartition(":")[0]
        self._between[source.name, target.name] = Line((_HERE, port), listen=(host, port))

    def restart_master(self) -> float:
        """Start the master again after `master.kill()`, on the same port and with the same key.

        Returns:
            The time until it answered, in seconds.
        """
        began = time.monotonic()
        self.master.start()
        return time.monotonic() - began

    def status(self) -> Status:
        """Return the master's status, requested without passing through a line.

        Raises:
            RemoteError: The master does not answer.
        """
        found = environment({**os.environ, **self.environment})
        return ask_status(ClusterAddress(f"{_HERE}:{self._port}", found).connect_master, found.limits)

    def wait_for_nodes(self, count: int, timeout_s: float = 30.0) -> float:
        """Wait until the master has exactly `count` nodes.

        Returns:
            The time that it took, in seconds.

        Raises:
            TimeoutError: The master has another number of nodes after `timeout_s` seconds.
        """
        began = time.monotonic()
        while (seen := self.status().node_count) != count:
            if time.monotonic() - began > timeout_s:
                raise TimeoutError(f"the cluster has {seen} nodes after {timeout_s:g} s, not {count}")
            time.sleep(_LOOK_S)
        return time.monotonic() - began

    def processes(self) -> tuple[Process, ...]:
        """Return all processes of this cluster, including orphans, except the guard."""
        found = processes_with("PARL_RUN_DIR", self._variables["PARL_RUN_DIR"])
        return tuple(process for process in found if process.pid not in {self._guard.pid, os.getpid()})

    def close(self) -> None:
        """End all processes; a second call does nothing.

        Raises:
            RuntimeError: A process did not end by itself and was killed, which is a bug of parl-remote.
        """
        if self._closed:
            return
        self._closed = True
        for process in self.processes():
            process.resume()
        assert self._guard.stdin is not None  # it was asked for
        self._guard.stdin.close()
        self._guard.wait(_ENDS_S * 2)
        left = [process for process in self.processes() if not _ends(process)]
        names = [repr(process) for process in left]
        for process in left:
            process.kill()
        for member in (*self.nodes.values(), *([self.master] if hasattr(self, "master") else [])):
            member.close()
        for line in self._between.values():
            line.close()
        shutil.rmtree(self.home, ignore_errors=True)
        if names:
            raise RuntimeError(f"left behind after the cluster's end: {', '.join(names)}")

    def __enter__(self) -> LoopbackCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PARL_", "XPARL"))}
        return {**kept, **self._variables}


@contextmanager
def set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process within a `with` block; remove other PARL_ variables meanwhile."""
    before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PARL_")}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


class Member:
    """A node of a `LoopbackCluster`, or its master.

    Attributes:
        name: Its name in the cluster.
        said: The output of its command until it was ready.
        toward: The line from programs to the node; None until the node's port is known.
        upward: The line from the node to the master; None for the master.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        between: Mapping[tuple[str, str], Line] | None = None,
    ) -> None:
        self.name = name
        self._between = {} if between is None else between  # lines between nodes; the cluster's own table
        self.toward: Line | None = None
        self.upward: Line | None = None
        self.said = ""
        self._command = list(command)
        self._environment = dict(environment)
        self._log = log
        self._running: subprocess.Popen[bytes] | None = None
        self._process: Process | None = None

    def __repr__(self) -> str:
        return f"<node {self.name}, {self._process!r}>"

    @property
    def process(self) -> Process:
        """The node's current process: master, worker or both.

        Raises:
            ProcessLookupError: The node was never started.
        """
        if self._process is None:
            raise ProcessLookupError(f"node {self.name} was not started")
        return self._process

    @property
    def zygote(self) -> Process:
        """The process from which the node's actors are forked.

        Raises:
            ProcessLookupError: There is no such process: the node has no CPUs or is starting.
        """
        for child in self.process.children:
            if child.name == _ZYGOTE:
                return child
        raise ProcessLookupError(f"node {self.name} has no zygote now")

    @property
    def actors(self) -> tuple[Process, ...]:
        """The processes of the node's actors, without the spare process."""
        with contextlib.suppress(ProcessLookupError):
            return tuple(child for child in self.zygote.children if child.name != "parl:spare")
        return ()

    @property
    def log(self) -> str:
        """The node's log so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start the node, also again after `kill`, and wait until it is ready.

        Raises:
            RuntimeError: The node runs already, or did not start; the message has the end of its log.
        """
        if self._process is not None and self._process.alive:
            raise RuntimeError(f"node {self.name} runs already")
        self._reap()
        with open(self._log, "ab") as log:
            self._running = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._process = Process(self._running.pid)
        assert self._running.stdout is not None  # it was asked for
        self.said = _first_output(self._running.stdout)
        if not self.said:
            self._running.kill()
            self._reap()
            lines = "".join(f"\n  | {line}" for line in self.log.splitlines()[-_LINES_OF_LOG:])
            raise RuntimeError(f"node {self.name} did not come up within {_START_S:g} s{lines}")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the node's own process and wait for its end; its actors end shortly after it."""
        self.process.kill(number)
        self.process.resume()
        self._reap()

    def stop(self) -> None:
        """End the node by SIGINT, as Ctrl-C does, and wait for its end."""
        self.kill(signal.SIGINT)

    def pause(self) -> None:
        """Stop the node's own process (SIGSTOP); its actors continue."""
        self.process.pause()

    def resume(self) -> None:
        """Resume the node's own process."""
        self.process.resume()

    def freeze(self) -> None:
        """Stop the processes of the node and of all its actors, as when a machine is suspended."""
        for process in self.process.family:
            process.pause()

    def thaw(self) -> None:
        """Resume the processes that `freeze` has stopped."""
        for process in self.process.family:
            process.resume()

    def cut(self, direction: Direction = Direction.BOTH) -> None:
        """Cut the node off in one or both directions; its connections stay open."""
        for line, which in self._lines(direction):
            line.cut(which)

    def set(self, conditions: Conditions, direction: Direction = Direction.BOTH) -> None:
        """Set the conditions of the lines to the node, from the node, or both."""
        for line, which in self._lines(direction):
            line.set(conditions, which)

    def restore(self) -> None:
        """End the cut and deliver the data held meanwhile."""
        for line in self.lines:
            line.restore()

    def reset(self) -> None:
        """Reset all connections to and from the node."""
        for line in self.lines:
            line.reset()

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines to and from the node."""
        return tuple(line for line, _ in self._lines(Direction.BOTH))

    def close(self) -> None:
        """Close the node's lines and forget its process, which the cluster ends."""
        for line in self.lines:
            line.close()
        self._reap()

    def _lines(self, direction: Direction) -> Iterator[tuple[Line, Direction]]:
        """Yield each line that leaves the node's host, with the direction seen from the node.

        It is the client on its line to the master, and on those to other nodes.
        """
        turned = {Direction.IN: Direction.OUT, Direction.OUT: Direction.IN}.get(direction, direction)
        if self.toward is not None:
            yield self.toward, direction
        if self.upward is not None:
            yield self.upward, turned
        for (source, target), line in self._between.items():
            if source != target and self.name in (source, target):
                yield line, direction if target == self.name else turned

    def _reap(self) -> None:
        if self._running is not None:
            self._running.wait(_START_S)
            if self._running.stdout is not None:
                self._running.stdout.close()
            self._running = None


def _first_output(pipe: IO[bytes]) -> str:
    """Return a command's output up to its last line; empty if it ends or takes too long."""
    deadline = time.monotonic() + _START_S
    said = b""
    while b"\n  Logs " not in said or not said.endswith(b"\n"):  # its last line
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
            return ""
        more = os.read(pipe.fileno(), 4096)
        if not more:
            return ""
        said += more
    return said.decode(errors="replace")


def _ends(process: Process) -> bool:
    with contextlib.suppress(TimeoutError):
        process.wait_for_end(_ENDS_S)
    return not process.alive


def _guard() -> None:
    """Wait for the end of standard input, then stop all processes on record."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the end of file is what counts
    sys.stdin.buffer.read()
    found = environment()
    run_files = RunFiles(found.run_dir)
    stop_all(run_files, on_record(run_files), found.limits)


if __name__ == "__main__":
    _guard()
