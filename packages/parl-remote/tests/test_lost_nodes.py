"""Programs that run for weeks while nodes come and go: what they know of a node goes with it."""

from __future__ import annotations

import gc
import logging
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import parl_remote
from parl_remote import ActorLost, _current
from parl_remote._links.loop import Loop
from parl_remote._messages import LeaseGranted
from parl_remote._program.log_forwarding import LogForwarder
from parl_remote._program.object_transfer import NodeObjects
from parl_remote.errors import ClusterUnreachable
from parl_remote.testing import LoopbackCluster

WITHIN_S = 60.0
SIZE = 200_000


@parl_remote.remote_class
class Keeper:
    def total(self, values: Any) -> float:
        return float(values.sum())


def parts_of(root: object) -> Iterator[object]:
    """Yield all that can be reached from an object by attributes of our classes, containers and closures."""
    waiting: deque[object] = deque([root])
    seen = {id(root)}
    while waiting:
        one = waiting.popleft()
        yield one
        if isinstance(one, type | types.ModuleType | threading.Thread | logging.Logger | types.FrameType):
            continue
        # A function's globals lead to everything in this process, such as the records of a log that pytest keeps.
        parts: list[Any] = gc.get_referents(one)
        if isinstance(one, types.FunctionType):
            parts = [one.__closure__, one.__defaults__]
        for part in parts:
            if id(part) not in seen and part is not Keeper:
                seen.add(id(part))
                waiting.append(part)


def mentions(root: object, text: str) -> list[str]:
    return [type(one).__name__ for one in parts_of(root) if isinstance(one, str) and one == text]


def await_loss(actor: Any) -> None:
    def call() -> None:
        while True:
            actor.total(np.ones(1))

    with pytest.raises(ActorLost):
        call()


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_a_program_remembers_nothing_of_a_node_that_is_gone() -> None:
    before = _current.clear()
    with LoopbackCluster(1) as cluster:
        cluster.connect()
        client: Any = _current.client()
        actor: Any = Keeper()
        assert actor.total(parl_remote.put(np.ones(SIZE))) == SIZE
        (node_id,) = {record.node_id for record in client.own.records.values()}
        assert mentions(client, node_id)
        (node,) = cluster.nodes.values()
        node.kill()
        await_loss(actor)
        del actor
        gc.collect()
        assert eventually(lambda: not mentions(client, node_id)), mentions(client, node_id)
        parl_remote.disconnect()
    if before is not None:
        _current.install(before)


def test_values_cannot_be_brought_to_a_worker_that_is_gone(shared_cluster: None) -> None:
    client: Any = _current.client()
    objects: NodeObjects = client._objects_on("another")
    with pytest.raises(ClusterUnreachable, match="the worker another is gone"):
        objects._connect()
    assert client._objects._nodes == {}


def test_positions_of_workers_that_are_gone_are_kept_for_the_latest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parl_remote._program.log_forwarding._POSITIONS_KEPT", 2)
    monkeypatch.setattr(Loop, "run", lambda _: None)  # this thread takes the steps

    def connect(_: LeaseGranted) -> Any:
        raise ClusterUnreachable("it is gone")

    forwarder = LogForwarder(connect, lambda _: "")
    for name in "abcddd":  # the last one comes back, and is lost again
        forwarder._positions[name] = {"lease": 1}
        forwarder._connect_worker(LeaseGranted(1, "lease", name, (), "", ""))
    assert list(forwarder._positions) == ["c", "d"]
    forwarder._loop.close()
