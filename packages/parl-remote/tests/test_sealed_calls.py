"""Calls between hosts over sealed connections, and over the relay where there are none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parl_remote
from faults.ports import unused_port
from parl_remote import _current
from parl_remote._program import worker_clients
from parl_remote._program.relayed_channel import RelayedChannel
from parl_remote._program.worker_clients import WorkerClients
from parl_remote._transport import sealed
from parl_remote._transport.sealed import SealedChannel
from parl_remote.testing import Process

pytest.importorskip("cryptography")


@parl_remote.remote_class
class Echo:
    def __init__(self, other: Any = None) -> None:
        self.other = other

    def same(self, value: Any) -> Any:
        return value

    def total(self, array: Any) -> int:
        return int(array.sum())

    def through_the_other(self, value: Any) -> Any:
        return self.other.same(value)

    def read(self, path: str) -> str:
        with open(path) as pipe:
            return pipe.read()

    def process(self) -> int:
        return os.getpid()

    def kill_itself(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of one node, which programs reach by TCP alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARL_RUN_DIR", str(tmp_path_factory.mktemp("run")))
        patch.setenv("PARL_FORCE_TCP", "1")
        patch.setenv("PARL_MONITOR", "0")
        port = unused_port()
        xparl = [sys.executable, "-m", "parl_remote.cli"]
        subprocess.run([*xparl, "start", "--port", str(port), "--cpu_num", "8"], check=True, capture_output=True)
        yield f"127.0.0.1:{port}"
        subprocess.run([*xparl, "stop", "--port", str(port)], check=True, capture_output=True)


@pytest.fixture
def connected(address: str) -> Iterator[None]:
    before = _current.clear()
    parl_remote.connect(address)
    yield
    parl_remote.disconnect()
    if before is not None:
        _current.install(before)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The kinds of the channels to actors, in the order in which they were made."""
    kinds: list[type] = []
    connect = WorkerClients.connect_actor

    def noting(*arguments: Any) -> Any:
        channel = connect(*arguments)
        kinds.append(type(channel))
        return channel

    monkeypatch.setattr(WorkerClients, "connect_actor", noting)
    return kinds


@pytest.mark.usefixtures("connected")
def test_values_of_all_sizes_come_back_as_they_were(ways: list[type]) -> None:
    echo = Echo()
    assert ways == [SealedChannel]
    for size in (0, 1, 10_000, sealed._RECORD - 1, sealed._RECORD, sealed._RECORD + 1, 20_000_000):
        array = np.arange(size, dtype=np.uint8)
        assert (echo.same({"a": array, "b": [1, "x"]})["a"] == array).all()


@pytest.mark.usefixtures("connected")
def test_results_may_be_written_to() -> None:
    result = Echo().same(np.zeros(10**6))
    result += 1
    assert result.sum() == 10**6


@pytest.mark.usefixtures("connected")
def test_values_of_put_arrive_once_for_all_actors() -> None:
    stored = parl_remote.put(np.ones(10**6, np.uint8))
    assert [Echo().total(stored) for _ in range(3)] == [10**6] * 3


@pytest.mark.usefixtures("connected")
def test_actors_call_each_other() -> None:
    assert Echo(Echo()).through_the_other("across") == "across"


@pytest.mark.usefixtures("connected")
def test_a_busy_actor_gets_another_caller(tmp_path: Path) -> None:
    """The connection of a caller waits in the actor's socket and holds up no other one."""
    busy = Echo()
    os.mkfifo(tmp_path / "gate")
    reading = parl_remote.submit(busy.read, str(tmp_path / "gate"))
    others = [Echo(busy) for _ in range(2)]
    calls = [parl_remote.submit(other.through_the_other, "later") for other in others]
    assert not any(call.done() for call in calls)
    (tmp_path / "gate").write_text("open")
    assert reading.result(60) == "open"
    assert [call.result(60) for call in calls] == ["later"] * 2


@pytest.mark.usefixtures("connected")
def test_the_end_of_an_actor_is_reported() -> None:
    echo = Echo()
    with pytest.raises(parl_remote.ActorLost):
        echo.kill_itself()


@pytest.mark.slow
@pytest.mark.usefixtures("connected")
def test_actors_leave_when_their_callers_do() -> None:
    for _ in range(20):  # there are 8 CPUs
        assert Echo().same(1) == 1


@pytest.mark.usefixtures("connected")
def test_without_the_extra_calls_go_through_the_relay(monkeypatch: pytest.MonkeyPatch, ways: list[type]) -> None:
    monkeypatch.setattr(worker_clients, "can_seal", lambda: False)
    echo = Echo()
    assert ways == [RelayedChannel]
    assert echo.total(np.ones(10**6, np.uint8)) == 10**6
    stored = parl_remote.put(np.ones(10**6, np.uint8))
    assert echo.total(stored) == 10**6


@pytest.fixture
def firewall(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise parl_remote.ClusterUnreachable("a firewall")

    monkeypatch.setattr(SealedChannel, "open", unreachable)


@pytest.mark.usefixtures("connected", "firewall")
def test_where_the_port_is_not_reached_calls_go_through_the_relay(ways: list[type]) -> None:
    echo = Echo()
    assert ways == [RelayedChannel]
    assert echo.same(5) == 5


@pytest.mark.usefixtures("connected", "firewall")
def test_an_actor_ends_though_a_handler_keeps_why_it_is_relayed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "parl.remote")
    echo = Echo()
    assert "through its relay: a firewall" in caplog.text
    process = Process(echo.process())
    del echo
    process.wait_for_end(60.0)
