"""A real cluster of several nodes on this machine's loopback: real processes, real TCP, a line in front of each.

    this program --127.0.2.1:port--> Line --> master, 127.0.0.1:port
                 --127.0.2.1:w1----> Line --> node 1, 127.0.0.1:w1 --127.0.3.1:port--> Line --> master
                 --127.0.2.1:w2----> Line --> node 2, 127.0.0.1:w2 --127.0.3.2:port--> Line --> master

Everything is told to use TCP, encrypted, as between hosts, so that what is true here is true there. A guard process
ends the cluster when this program ends, however it does. Linux, where all of 127.0.0.0/8 is this machine.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import parl_remote
from parl_remote.cli.ask import ask_status
from parl_remote.config import environment
from parl_remote.messages import Status
from parl_remote.program.rendezvous import ClusterAddress
from parl_remote.testing.line import Line
from parl_remote.testing.member import Member
from parl_remote.testing.process import Process, processes_with

__all__ = ["LoopbackCluster"]

_XPARL = (sys.executable, "-P", "-m", "parl_remote.cli")
_HERE, _TO_NODES, _TO_MASTER = "127.0.0.1", "127.0.2.1", "127.0.3."
_PORTS = range(20_000, 32_000)  # below those that the system gives to outgoing connections
_ENDS_S = 10.0
_LOOK_S = 0.02  # how often to look for what has no event
_WORKER_AT = re.compile(r"worker at \S*?:(\d+)\)")


class LoopbackCluster:
    """A master and any number of nodes.

    Args:
        nodes: How many nodes to start with.
        cpus: CPUs that each of them gives to actors.
        master_cpus: CPUs that the master's own node gives to actors.
        liveness_limit_s: Silence after which anybody is lost, in seconds; the product's default is 15.
        variables: More environment variables for the nodes.

    Attributes:
        address: What programs connect to, "host:port".
        key_file: The cluster's key.
        home: Its private directory, with all logs; removed by `close`.
        master: The master's node.
        nodes: The other nodes by name, "node1" and so on.

    Raises:
        RuntimeError: A node did not come up.
    """

    def __init__(
        self,
        nodes: int = 2,
        *,
        cpus: float = 2,
        master_cpus: float = 0,
        liveness_limit_s: float = 2.0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="parl-test-"))
        self.nodes: dict[str, Member] = {}
        self._port = _free_port()
        self._variables = {
            "PARL_RUN_DIR": str(self.home / "run"),
            "PARL_FORCE_TCP": "1",
            "PARL_LIVENESS_LIMIT": str(liveness_limit_s),
            "PARL_MONITOR": "0",
            **(variables or {}),
        }
        self._guard = subprocess.Popen(
            [sys.executable, "-P", "-m", "parl_remote.testing.guard"], stdin=subprocess.PIPE, env=self._environment()
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
        """The variables with which a program of another process connects to `address`."""
        return {**self._variables, "PARL_KEY_FILE": str(self.key_file)}

    def connect(self, **options: Any) -> None:
        """`parl.connect` to this cluster; `options` are its."""
        with set_variables(self.environment):
            parl_remote.connect(self.address, **options)

    def add_node(self, cpus: float = 2) -> Member:
        """Start one more node.

        Args:
            cpus: CPUs that it gives to actors, above 0.

        Raises:
            RuntimeError: It did not come up.
        """
        self._numbers += 1
        name = f"node{self._numbers}"
        upward = Line((_HERE, self._port), listen=(f"{_TO_MASTER}{self._numbers}", self._port))
        connect = ("connect", "--address", upward.address, "--cpu_num", f"{cpus:g}", "--foreground")
        environment_ = {**self._environment(), "PARL_KEY_FILE": str(self.key_file)}
        node = Member(name, (*_XPARL, *connect), environment_, self.home / f"{name}.log")
        node.upward = upward
        self.nodes[name] = node
        self.start_node(node)
        return node

    def start_node(self, node: Member) -> None:
        """Start a node again that was killed; it comes as a new one, with nothing running."""
        node.start()
        found = _WORKER_AT.search(node.said)
        if found is None:
            raise RuntimeError(f"node {node.name} does not say its port: {node.said}")
        port = int(found[1])
        if node.toward is not None:
            node.toward.close()
        node.toward = Line((_HERE, port), listen=(_TO_NODES, port))

    def restart_master(self) -> float:
        """Start the master again after `master.kill()`, on the same port and with the same key.

        Returns:
            Seconds until it answered.
        """
        began = time.monotonic()
        self.master.start()
        return time.monotonic() - began

    def status(self) -> Status:
        """What `xparl status` would show, asked of the master directly, past all lines.

        Raises:
            RemoteError: It does not answer.
        """
        found = environment({**os.environ, **self.environment})
        return ask_status(ClusterAddress(f"{_HERE}:{self._port}", found).connect_master, found.limits)

    def wait_for_nodes(self, count: int, timeout_s: float = 30.0) -> float:
        """Wait until the master has exactly so many nodes.

        Returns:
            How long that took, in seconds.

        Raises:
            TimeoutError: It has another number after `timeout_s`.
        """
        began = time.monotonic()
        while (seen := self.status().node_count) != count:
            if time.monotonic() - began > timeout_s:
                raise TimeoutError(f"the cluster has {seen} nodes after {timeout_s:g} s, not {count}")
            time.sleep(_LOOK_S)
        return time.monotonic() - began

    def processes(self) -> tuple[Process, ...]:
        """Every process of this cluster, orphans included, without the guard."""
        found = processes_with("PARL_RUN_DIR", self._variables["PARL_RUN_DIR"])
        return tuple(process for process in found if process.pid not in {self._guard.pid, os.getpid()})

    def close(self) -> None:
        """End everything; a second call does nothing.

        Raises:
            RuntimeError: A process did not end by itself and was killed: a fault of parl-remote.
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
    """Environment variables of this process within a `with`; other variables with PARL_ are out of the way."""
    before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PARL_")}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


def _ends(process: Process) -> bool:
    with contextlib.suppress(TimeoutError):
        process.wait_for_end(_ENDS_S)
    return not process.alive


def _free_port() -> int:
    dice = random.SystemRandom()
    while True:
        port = dice.choice(_PORTS)
        with contextlib.suppress(OSError), socket.create_server((_HERE, port)):
            return port
