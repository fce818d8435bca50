"""Shared fixtures of tests with real actors: a private cluster that leaves nothing behind, and waits for events."""

from __future__ import annotations

import gc
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import faults.repeated_examples  # noqa: F401  # a profile of Hypothesis
import parl_remote
from faults.small_disk import small_disk as small_disk
from parl_remote import _current
from parl_remote._program.client import Client
from parl_remote._program.private_cluster import PrivateCluster

GONE_WITHIN_S = 60.0


def pytest_collection_finish() -> None:
    """Keep the garbage collector from what collecting tests has made: tests of lost actors call it again and again."""
    gc.freeze()


def processes_of_session(session: int) -> dict[int, str]:
    """All processes of a session, with their names; a private cluster is a session of its own."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().rpartition(")")
            except (FileNotFoundError, ProcessLookupError):
                continue
            fields = rest.split()
            if int(fields[3]) == session and fields[0] not in {"Z", "X"}:
                found[int(entry.name)] = name.partition("(")[2]
    return found


def wait_for_end(pids: list[int], within_s: float = GONE_WITHIN_S) -> float:
    """Seconds until all of these processes had ended; fails the test after `within_s`."""
    started = time.monotonic()
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        left_s = within_s - (time.monotonic() - started)
        ended = poller.poll(max(0.0, left_s) * 1000)
        os.close(descriptor)
        if not ended:
            pytest.fail(f"process {pid} is still there after {within_s} s")
    return time.monotonic() - started


def own_cluster() -> PrivateCluster:
    """The private cluster that this process is connected to."""
    client = _current.client()
    assert isinstance(client, Client)
    assert isinstance(client._cluster, PrivateCluster)
    return client._cluster


@pytest.fixture
def nothing_left() -> Iterator[Callable[[], None]]:
    """Call it while connected: at the end of the test no process and no file of that cluster may be left."""
    watched: list[PrivateCluster] = []
    yield lambda: watched.append(own_cluster())
    parl_remote.disconnect()
    for cluster in watched:
        left = processes_of_session(cluster.pid)
        wait_for_end(list(left))
        assert not cluster.directory.exists()


@pytest.fixture
def connect(nothing_left: Callable[[], None]) -> Callable[..., None]:
    """`parl_remote.connect` whose cluster is checked to leave nothing behind."""

    def open_cluster(**options: Any) -> None:
        _drop_connection()
        parl_remote.connect(**{"cpu_num": 4, **options})
        if not options.get("debug"):
            nothing_left()

    return open_cluster


@pytest.fixture
def shared_cluster() -> None:
    """A private cluster for tests that do no harm to it; the next one finds it still there."""
    _be_connected(debug=False)


@pytest.fixture
def share_cluster() -> Callable[[int], None]:
    """Connect to a private cluster of so many CPUs, which later tests find still there; no actor has any of them."""

    def connect(cpu_num: int) -> None:
        _be_connected(debug=False, cpu_num=cpu_num)
        client, deadline = _current.client(), time.monotonic() + GONE_WITHIN_S
        assert isinstance(client, Client)
        while (status := client._status()) is None or status.leases:
            assert time.monotonic() < deadline, "actors of an earlier test are left"
            gc.collect()  # a test's errors hold its variables, in cycles
            time.sleep(0.001)

    return connect


@pytest.fixture(params=["process", "debug"])
def anywhere(request: pytest.FixtureRequest) -> str:
    """A cluster of processes, then actors within this process: both must behave the same."""
    _be_connected(debug=request.param == "debug")
    return str(request.param)


@pytest.fixture(scope="module")
def unconnected() -> None:
    """No connection, not even one that tests share, when a module's tests begin."""
    _close_kept()


@pytest.fixture(scope="module", autouse=True)
def _no_connection_of_another_file() -> Iterator[None]:
    """A file begins and ends without a connection, whichever is next; clusters that tests share run on unused."""
    _drop_connection()
    yield
    _drop_connection()


# Connections that tests share, so that each need not start a cluster.
_kept: dict[tuple[bool, int], _current.ActorMaker] = {}


def _be_connected(*, debug: bool, cpu_num: int = 16) -> None:
    _drop_connection()
    kept: Any = _kept.get((debug, cpu_num))
    if kept is None or kept._closed:  # a test may have disconnected
        parl_remote.connect(cpu_num=cpu_num, debug=debug)
        _kept[debug, cpu_num] = _current.client()
    _current.install(_kept[debug, cpu_num])


def _drop_connection() -> None:
    if _current.peek() is not None and _current.peek() not in _kept.values():
        parl_remote.disconnect()
    _current.clear()


def _close_kept() -> None:
    parl_remote.disconnect()
    for client in _kept.values():
        client.close()
    _kept.clear()


@pytest.fixture(scope="session", autouse=True)
def _nothing_open_at_the_end() -> Iterator[None]:
    os.environ.setdefault("PARL_MONITOR", "0")  # clusters of tests have no monitor unless a test asks for one
    yield
    _close_kept()


@pytest.fixture
def nothing_in_shm() -> Iterator[None]:
    """Fails a test that leaves a file in /dev/shm; those of other programs of this machine come and go meanwhile."""
    before = set(os.listdir("/dev/shm"))
    yield
    new, deadline = set(os.listdir("/dev/shm")) - before, time.monotonic() + GONE_WITHIN_S
    while left := new & set(os.listdir("/dev/shm")):
        assert time.monotonic() < deadline, f"left in /dev/shm: {sorted(left)}"
        time.sleep(0.05)  # the other programs' files: nothing tells when they go


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program as its user would, in a directory of its own."""

    def run(*arguments: str, program: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        if program is not None:
            (tmp_path / "program.py").write_text(program)
            command.append("program.py")
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False, **options
        )

    return run


@pytest.fixture
def session_processes() -> Callable[[int], dict[int, str]]:
    """`processes_of_session`, for tests that start clusters in other programs."""
    return processes_of_session


@pytest.fixture
def await_end() -> Callable[..., float]:
    """`wait_for_end`."""
    return wait_for_end
