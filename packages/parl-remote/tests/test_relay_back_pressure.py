"""Between hosts: who is faster than the other end waits, and the worker between them does not fill up."""

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parl_remote
from parl_remote import _current
from parl_remote._program.relayed_channel import CREDIT_EVERY, WINDOW, RelayedChannel, credit, credit_of, size_of
from parl_remote._transport import Buffer
from parl_remote.errors import RemoteProtocolError, ResultTimeout
from parl_remote.testing import Conditions, LoopbackCluster

MB = 2**20


class Link:
    """A channel to a worker, as a test wants it."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []
        self.to_come: deque[list[memoryview]] = deque()
        self.arrived = threading.Semaphore(0)

    def send(self, frames: Sequence[Buffer], timeout_s: float | None = None) -> None:
        self.sent.append([bytes(frame) for frame in frames])

    def post(self, frames: Sequence[Buffer]) -> bool:
        self.send(frames)
        return True

    def flush(self) -> bool:
        return True

    def bring(self, *frames: bytes) -> None:
        self.to_come.append([memoryview(frame) for frame in frames])
        self.arrived.release()

    def receive(self, timeout_s: float | None = None) -> list[memoryview]:
        if not self.arrived.acquire(timeout=timeout_s):
            raise ResultTimeout("nothing came")
        return self.to_come.popleft()

    def fileno(self) -> int:
        return 0

    def pending(self) -> bool:
        return bool(self.to_come)

    def close(self) -> None:
        pass


def filled(link: Link) -> RelayedChannel:
    """A channel whose window is full."""
    channel = RelayedChannel(link)
    channel.send([bytes(WINDOW)])
    return channel


def test_a_full_window_is_not_passed() -> None:
    link = Link()
    channel = filled(link)
    with pytest.raises(ResultTimeout, match="took nothing"):
        channel.send([b"\2more"], 0.05)
    assert len(link.sent) == 1
    link.bring(credit(size_of([bytes(WINDOW)])))
    channel.send([b"\2more"], 5.0)
    assert link.sent[1] == [b"\2more"]


def test_what_is_posted_waits_for_the_window_and_nothing_overtakes_it() -> None:
    link = Link()
    channel = filled(link)
    content = bytearray(b"\2 one")
    assert not channel.post([content])
    assert not channel.post([b"\2 two"])
    content[:] = b"later"
    assert not channel.flush()
    assert len(link.sent) == 1
    link.bring(credit(WINDOW))
    link.bring(b"\x11answer")
    channel.receive(5.0)
    channel.send([b"\2 three"], 5.0)
    assert link.sent[1:] == [[b"\2 one"], [b"\2 two"], [b"\2 three"]]
    assert channel.flush()


def test_what_comes_while_sending_waits_is_kept_in_order() -> None:
    link = Link()
    channel = filled(link)
    link.bring(b"\x11first")
    link.bring(b"\x11second")
    link.bring(credit(WINDOW))
    channel.send([b"\2more"], 5.0)
    link.bring(b"\x11third")
    assert channel.pending()
    assert [bytes(channel.receive(1.0)[0][1:]) for _ in range(3)] == [b"first", b"second", b"third"]


def test_a_sender_goes_on_when_another_thread_reads_the_credit() -> None:
    link = Link()
    channel = filled(link)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(bytes(channel.receive(10.0)[0])))
    reader.start()
    sender = threading.Thread(target=lambda: channel.send([b"\2more"], 10.0))
    sender.start()
    link.bring(credit(WINDOW))
    sender.join(60.0)
    link.bring(b"\x11answer")
    reader.join(60.0)
    assert link.sent[1:] == [[b"\2more"]]
    assert got == [b"\x11answer"]


def test_credit_is_given_for_what_was_received_and_seldom() -> None:
    link = Link()
    channel = RelayedChannel(link)
    for _ in range(100):
        link.bring(b"\x11" + bytes(1000))
        channel.receive(1.0)
    assert link.sent == []
    link.bring(b"\x11" + bytes(CREDIT_EVERY))
    channel.receive(1.0)
    ((told,),) = link.sent
    assert credit_of([memoryview(told)]) == 100 * size_of([bytes(1001)]) + size_of([bytes(CREDIT_EVERY + 1)])


@pytest.mark.parametrize("frames", [[b"\0"], [b"\0" * 15], [b"\0" * 16, b"\0"]])
def test_half_a_credit_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        credit_of([memoryview(frame) for frame in frames])


# -- a cluster ---------------------------------------------------------------------------------------------------


@parl_remote.remote_class(wait=False)
class Slow:
    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.taken = 0

    def wait_for_file(self, path: str) -> None:
        while not os.path.exists(path):
            self.go_on.wait(0.01)

    def take(self, array: np.ndarray) -> int:
        self.taken += array.nbytes
        return self.taken

    def make(self, size: int, count_in: str = "") -> np.ndarray:
        if count_in:
            with open(count_in, "a") as counter:
                counter.write("1")
        return np.ones(size, np.uint8)

    def worker(self) -> int:
        """The worker's process: the parent of the actors' parent."""
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])


def memory_of(pid: int) -> int:
    """The most that a process has ever had resident, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.fixture
def cluster() -> Iterator[LoopbackCluster]:
    before = _current.clear()
    with LoopbackCluster(nodes=0, master_cpus=1) as made:
        made.connect()
        yield made
        parl_remote.disconnect()
    if before is not None:
        _current.install(before)


@pytest.fixture
def slow(cluster: LoopbackCluster) -> Any:
    return Slow()


def test_a_fast_sender_does_not_fill_the_worker(slow: Any, tmp_path: Path) -> None:
    worker = slow.worker().result()
    slow.take(np.ones(MB, np.uint8)).result()
    before = memory_of(worker)
    started = slow.wait_for_file(str(tmp_path / "go on"))
    futures: list[Any] = []
    window_is_full = threading.Event()

    def send() -> None:
        for number in range(75):
            futures.append(slow.take(np.ones(4 * MB, np.uint8)))
            if number >= 5:
                window_is_full.set()

    sender = threading.Thread(target=send)
    sender.start()
    assert window_is_full.wait(30.0)
    sender.join(1.0)
    assert sender.is_alive(), "300 MB were accepted although the actor takes nothing"
    (tmp_path / "go on").touch()
    sender.join(60.0)
    assert futures[-1].result(60.0) == 301 * MB
    assert started.result() is None
    assert memory_of(worker) - before < WINDOW + 40 * MB


def test_a_fast_actor_does_not_fill_the_worker(slow: Any, tmp_path: Path) -> None:
    worker = slow.worker().result()
    assert slow.make(MB).result().sum() == MB
    before = memory_of(worker)
    counter = tmp_path / "made"
    counter.touch()
    futures = [slow.make(4 * MB, str(counter)) for _ in range(60)]  # nobody reads meanwhile
    deadline = time.monotonic() + 60.0
    while counter.stat().st_size < WINDOW // (4 * MB):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # the other end of a file
    time.sleep(0.5)  # nothing tells that nothing happens
    assert counter.stat().st_size < 30, "the actor goes on although nobody takes its results"
    assert all(int(future.result(60.0)[-1]) == 1 for future in futures)
    assert memory_of(worker) - before < WINDOW + 40 * MB


def test_calls_in_flight_do_not_wait_for_each_others_round_trip(cluster: LoopbackCluster) -> None:
    slow: Any = Slow()
    slow.make(1).result()
    assert cluster.master.toward is not None
    cluster.master.toward.set(Conditions(delay_s=0.05))  # a round trip of 0.1 s; one after the other takes 50 s
    began = time.monotonic()
    futures = [slow.make(1) for _ in range(500)]
    assert all(future.result(60.0).size == 1 for future in futures)
    assert time.monotonic() - began < 50.0
