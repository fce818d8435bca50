"""The traces of a running cluster: modes of files, command lines, logs, ports, and what its nodes load."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import parl_remote
from faults.ports import unused_port
from parl_remote._transport.sealed import can_seal
from parl_remote.testing import LoopbackCluster

HAS_MONITOR = subprocess.run([sys.executable, "-c", "import flask, waitress"], capture_output=True).returncode == 0
_OWN_PORT = re.compile(r"\b127\.0\.0\.1:(\d+)")


@parl_remote.remote_class
class Talker:
    def say(self, text: str) -> str:
        sys.stdout.write(text + "\n")
        return text

    def size(self, value: Any) -> int:
        return len(value)

    def environment(self) -> dict[str, str]:
        return dict(os.environ)


@pytest.fixture(scope="module")
def data_port() -> int:
    """The port of sealed connections."""
    return unused_port()


@pytest.fixture(scope="module")
def cluster(data_port: int) -> Iterator[LoopbackCluster]:
    """A cluster in which everything has happened once: an actor, its output, a lost one, a value that was put."""
    parl_remote.disconnect()
    variables = {"PARL_DATA_PORT": str(data_port), **({"PARL_MONITOR": "1"} if HAS_MONITOR else {})}
    with LoopbackCluster(1, cpus=2, variables=variables) as one:
        assert data_port not in one.nodes["node1"].process.tcp_ports  # no sealed connection was requested
        one.connect()
        talker, other = Talker(), Talker()
        talker.say("hello")
        talker.size(parl_remote.put(b"a value"))
        one.nodes["node1"].actors[0].kill()
        for actor in (talker, other):
            with contextlib.suppress(parl_remote.ActorLost):
                actor.say("still there?")
        yield one
        parl_remote.disconnect()


def secrets_of(cluster: LoopbackCluster) -> list[str]:
    """The key and the monitor's token, as text."""
    files = [*(cluster.home / "run").rglob("key"), *(cluster.home / "run").rglob("*token*")]
    assert files
    return sorted({path.read_text().strip() for path in files})


@pytest.mark.slow
def test_every_file_and_directory_of_a_cluster_is_for_its_user_alone(cluster: LoopbackCluster) -> None:
    found = list((cluster.home / "run").rglob("*"))
    assert any(path.name == "key" for path in found)
    for path in (cluster.home / "run", *found):
        mode = path.lstat().st_mode
        assert not mode & 0o077, f"{path} has mode {stat.S_IMODE(mode):04o}"
        assert not stat.S_ISLNK(mode), path


def test_sockets_lie_in_directories_for_their_user_alone(cluster: LoopbackCluster) -> None:
    paths = [Path(path) for process in cluster.processes() for path in process.unix_sockets]
    assert len(paths) >= 2
    for path in paths:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, path
        assert not path.stat().st_mode & 0o077, path


def test_no_secret_is_on_a_command_line(cluster: LoopbackCluster) -> None:
    lines = [process.command for process in cluster.processes()]
    assert any("parl_remote" in line for line in lines)
    for secret in secrets_of(cluster):
        assert not [line for line in lines if secret in line]


def test_no_secret_is_in_a_log(cluster: LoopbackCluster) -> None:
    logs = [path for path in cluster.home.rglob("*") if path.is_file() and "key" not in path.name]
    texts = {path: path.read_text(errors="replace") for path in logs if "token" not in path.name}
    assert any("hello" in text for text in texts.values())
    for secret in secrets_of(cluster):
        assert not [path for path, text in texts.items() if secret in text]


def test_actors_do_not_get_the_key_in_their_environment(cluster: LoopbackCluster) -> None:
    values = Talker().environment().values()
    assert not [secret for secret in secrets_of(cluster) if any(secret in value for value in values)]


def test_only_the_ports_that_are_said_are_listened_at_and_only_on_loopback(
    cluster: LoopbackCluster, data_port: int
) -> None:
    def addresses() -> list[tuple[str, int]]:
        return sorted(address for process in cluster.processes() for address in process.tcp_addresses)

    node = cluster.nodes["node1"]
    said = {int(port) for member in (cluster.master, node) for port in _OWN_PORT.findall(member.said)}
    assert len(said) == 2 + HAS_MONITOR  # one a node
    ports = sorted({*said, *([data_port] if can_seal() else [])})
    deadline = time.monotonic() + 60.0
    while len(addresses()) < len(ports) and time.monotonic() < deadline:  # the monitor comes a little later
        time.sleep(0.1)
    assert addresses() == [("127.0.0.1", port) for port in ports]
    assert (data_port in node.process.tcp_ports) == can_seal()


def test_a_node_loads_nothing_that_unpickles() -> None:
    """Master and worker, with all of their parts and messages; only actors and programs unpickle."""
    program = """
import importlib, sys
import parl_remote._node.cluster_node, parl_remote._node.private_process, parl_remote._node.private_node
from parl_remote._messages.wire import all_kinds
all_kinds()
for name in ("borrowers", "files", "logs", "objects", "watch"):
    importlib.import_module(f"parl_remote._worker.{name}")
loaded = [name for name in sys.modules if name in ("cloudpickle", "parl_remote._data.serialize")]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
