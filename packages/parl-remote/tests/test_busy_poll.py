"""Polling before a wait: when it happens, and what it returns."""

import itertools
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from parl_remote._system import facilities
from parl_remote._system.facilities import IN, BusyPoll, is_portable
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import ChannelClosed

PATIENCE_S = 60.0

pytestmark = pytest.mark.skipif(is_portable(), reason="the portable facilities do not poll")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARL_BUSY_POLL", raising=False)


class Polled:
    """A poller that counts how often it is polled, and finds what it is told to find."""

    def __init__(self) -> None:
        self.count = 0
        self.found: list[tuple[int, int]] = []

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        assert timeout == 0
        self.count += 1
        return self.found


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> Polled:
    monkeypatch.setattr(facilities, "_BUSY_POLL_S", 0.0)
    monkeypatch.setattr(facilities, "_WITHOUT_AT_FIRST", 0)
    monkeypatch.setattr(facilities, "cpu_count", lambda: 2)
    monkeypatch.setattr(facilities, "_load", facilities._Load())
    return Polled()


def in_vain(busy: BusyPoll, polled: Polled, waits: int) -> list[bool]:
    """Wait several times without input; return which of the waits polled."""
    counts = [polled.count]
    for _ in range(waits):
        assert busy.poll() == []
        counts.append(polled.count)
    return [after > before for before, after in itertools.pairwise(counts)]


def test_what_is_ready_is_returned(polled: Polled) -> None:
    busy = BusyPoll(polled)  # type: ignore[arg-type]  # all that it needs of a poller
    polled.found = [(7, IN)]
    assert [busy.poll() for _ in range(3)] == [polled.found] * 3


def test_polls_in_vain_are_followed_by_waits_without_one(polled: Polled) -> None:
    busy = BusyPoll(polled)  # type: ignore[arg-type]
    assert in_vain(busy, polled, 15) == [
        *(True, False),
        *(True, False, False),
        *(True, False, False, False, False),
        *(True, *[False] * 4),
    ]
    assert in_vain(busy, polled, 4) == [False] * 4
    assert sum(in_vain(busy, polled, 10_000)) < 45
    assert in_vain(busy, polled, 257).count(True) == 1


def test_a_success_halves_the_waits_without_a_poll(polled: Polled) -> None:
    busy = BusyPoll(polled)  # type: ignore[arg-type]
    in_vain(busy, polled, 10)
    assert in_vain(busy, polled, 9) == [True, *[False] * 8]
    polled.found = [(7, IN)]
    assert busy.poll() == polled.found
    polled.found = []
    assert in_vain(busy, polled, 10) == [True, *[False] * 8, True]


@pytest.mark.parametrize("cause", ["variable", "one CPU", "portable"])
def test_it_does_not_poll_where_that_cannot_help(polled: Polled, monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    match cause:
        case "variable":
            monkeypatch.setenv("PARL_BUSY_POLL", "0")
        case "one CPU":
            monkeypatch.setattr(facilities, "cpu_count", lambda: 1)
        case "portable":
            monkeypatch.setattr(facilities, "is_portable", lambda: True)
    busy = BusyPoll(polled)  # type: ignore[arg-type]
    assert in_vain(busy, polled, 300) == [False] * 300


def test_the_waits_of_a_start_come_without_a_poll(polled: Polled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facilities, "_WITHOUT_AT_FIRST", 4)
    busy = BusyPoll(polled)  # type: ignore[arg-type]
    polled.found = [(7, IN)]
    assert [busy.poll() for _ in range(6)] == [[], [], [], [], polled.found, polled.found]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


@pytest.mark.parametrize("kind", ["descriptor", "epoll"])
def test_input_is_found(pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(facilities, "cpu_count", lambda: 2)
    monkeypatch.setattr(facilities, "_WITHOUT_AT_FIRST", 0)
    here, there = pair
    poller = select.epoll()
    poller.register(here, IN)
    with poller:
        busy = BusyPoll(here.fileno() if kind == "descriptor" else poller)
        assert busy.poll() == []
        there.send(b"x")
        assert busy.poll() == []  # without a poll, after one in vain
        assert busy.poll() == [(here.fileno(), IN)]


@pytest.mark.parametrize(
    ("runnable", "clock"), [(2, [0.0, 0.00003, 0.00005, 0.00008, 0.00012]), (3, [0.0, 0.00003, 0.00005])]
)
def test_the_poll_ends_soon_and_sooner_where_the_cpu_is_wanted(
    polled: Polled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runnable: int, clock: list[float]
) -> None:
    monkeypatch.setattr(facilities, "_BUSY_POLL_S", 0.0001)
    load = tmp_path / "loadavg"
    load.write_text(f"5.00 5.00 5.00 {runnable}/200 1234\n")
    monkeypatch.setattr(facilities, "_LOAD", str(load))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    times = iter(clock)
    monkeypatch.setattr(facilities, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    assert BusyPoll(polled).poll() == []  # type: ignore[arg-type]
    assert next(times, None) is None


def test_the_load_is_read_every_few_milliseconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "loadavg"
    file.write_text("5.00 5.00 5.00 3/200 1234\n")
    monkeypatch.setattr(facilities, "_LOAD", str(file))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    load = facilities._Load()
    assert load.exceeds_cpus(7.0)
    file.write_text("5.00 5.00 5.00 2/200 1234\n")
    assert load.exceeds_cpus(7.001)
    assert not load.exceeds_cpus(7.003)
    file.write_text("5.00 5.00 5.00 3/200 1234\n")
    assert not load.exceeds_cpus(7.004)
    assert load.exceeds_cpus(7.006)


@pytest.mark.parametrize("file", ["no such file", ""])
def test_a_kernel_that_does_not_tell_of_its_load_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str
) -> None:
    monkeypatch.setattr(facilities, "_LOAD", str(tmp_path / file))
    assert not facilities._Load().exceeds_cpus(0.0)


@pytest.mark.parametrize("timeout_s", [None, PATIENCE_S])
def test_a_wait_at_a_channel_that_was_closed_before_reports_that(
    pair: tuple[socket.socket, socket.socket], timeout_s: float | None
) -> None:
    channel = UnixChannel(pair[0])
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.receive(timeout_s)
