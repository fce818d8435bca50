"""Fixtures for pytest: clusters for one test, and faults in them. The plugin is loaded only on request.

    pytest -p parl_remote.testing.plugin        or, in conftest.py:  pytest_plugins = ["parl_remote.testing"]

| fixture | value |
| --- | --- |
| `parl_private` | a function that connects to a private cluster; the test fails if a process is left |
| `parl_cluster` | a function that starts a cluster of several nodes on loopback; the test fails if a process is left |
| `parl_faults` | `Faults`: kill, pause or slow actors at exact points of the program |

If this machine does not support a fault (`FaultUnavailable`), the test is skipped, with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import parl_remote
from parl_remote.testing._faults import Faults
from parl_remote.testing._loopback_cluster import LoopbackCluster, set_variables
from parl_remote.testing._machine import FaultUnavailable, Process

__all__ = ["parl_cluster", "parl_faults", "parl_private"]

_ENDS_S = 10.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skip a test whose fixture needs a fault that this machine does not support."""
    with _skipped_if_unavailable():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test that needs a fault that this machine does not support."""
    with _skipped_if_unavailable():
        yield


@contextmanager
def _skipped_if_unavailable() -> Iterator[None]:
    try:
        yield
    except FaultUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def parl_private() -> Iterator[Callable[..., None]]:
    """Yield a function that connects to a private cluster, for example `parl_private(cpu_num=4)`.

    Its arguments are those of `parl.connect`. At the end of the test the connection is closed, and the test fails if a
    process of the cluster is left.
    """
    watched: list[Process] = []

    def connect(**options: Any) -> None:
        before = {child.pid for child in Process(os.getpid()).children}
        parl_remote.disconnect()
        parl_remote.connect(**options)
        watched.extend(child for child in Process(os.getpid()).children if child.pid not in before)

    yield connect
    family = [process for node in watched for process in node.family if process.alive]
    parl_remote.disconnect()
    for process in family:
        process.wait_for_end(_ENDS_S)


@pytest.fixture
def parl_cluster() -> Iterator[Callable[..., LoopbackCluster]]:
    """Yield a function that starts a cluster of several nodes on loopback.

    Its arguments are those of `LoopbackCluster`, for example `cluster = parl_cluster(nodes=2, cpus=2)`. The environment
    of the test is set so that the program under test can call `parl.connect(cluster.address)`. At the end of the test
    the clusters are stopped, and the test fails if a process is left.
    """
    with ExitStack() as undo:

        def start(*arguments: Any, **options: Any) -> LoopbackCluster:
            cluster = undo.enter_context(LoopbackCluster(*arguments, **options))
            undo.enter_context(set_variables(cluster.environment))
            undo.callback(parl_remote.disconnect)
            return cluster

        yield start


@pytest.fixture
def parl_faults() -> Iterator[Faults]:
    """Yield faults for the actors of the program under test: `parl_faults.actor("Sampler", 2).kill(after_calls=3)`."""
    with Faults() as faults:
        yield faults
