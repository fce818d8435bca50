"""Between hosts: what the other end does not take stays where it was made, and neither worker nor actor fills up."""

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
from faults.polling import eventually
from parl_remote._links.call_messages import CREDIT_EVERY, WINDOW, credit, credit_of, size_of
from parl_remote._program import worker_clients
from parl_remote._program.outbox import Outbox
from parl_remote._program.relayed_channel import RelayedChannel
from parl_remote._transport import Buffer
from parl_remote.actors import RemoteActors
from parl_remote.errors import RemoteProtocolError, ResultTimeout
from parl_remote.testing import Direction, LoopbackCluster

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

    def freeze(self, frames: Sequence[Buffer] | None = None) -> None:
        raise AssertionError("`post` keeps nothing")

    def withdraw(self, frames: Sequence[Buffer]) -> bool:
        return False

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
    with pytest.raises(ResultTimeout, match="received nothing"):
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
    channel.freeze()
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


class Work:
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

    def processes(self) -> list[int]:
        """The actor's own process, and the worker's: the parent of the actors' parent."""
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
        return [os.getpid(), int(stat.rpartition(")")[2].split()[1])]


@parl_remote.remote_class(wait=False)
class Slow(Work):
    pass


class Memory:
    """The most that an actor and its worker have had resident since, in bytes."""

    def __init__(self, processes: list[int]) -> None:
        self._before = {pid: _peak_of(pid) for pid in processes}

    def growth(self) -> int:
        return max(_peak_of(pid) - before for pid, before in self._before.items())


def _peak_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


SIZE = 4 * MB
ON_THE_WAY = WINDOW // SIZE + 1  # calls that fill the window
MOST_GROWTH = WINDOW + 40 * MB


@pytest.fixture
def cluster(unconnected: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackCluster]:
    """A cluster of another host, to whose actors calls are relayed."""
    monkeypatch.setattr(worker_clients, "can_seal", lambda: False)
    with LoopbackCluster(nodes=0, master_cpus=1) as made:
        made.connect()
        yield made
        parl_remote.disconnect()


@pytest.fixture(params=[pytest.param("relayed", marks=pytest.mark.slow), "sealed"])
def another_host(request: pytest.FixtureRequest, unconnected: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A connection to a cluster of another host."""
    is_sealed = request.param == "sealed"
    if is_sealed:
        pytest.importorskip("cryptography")
    else:
        monkeypatch.setattr(worker_clients, "can_seal", lambda: False)
    with LoopbackCluster(nodes=0, master_cpus=1) as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        # past the line, through which the port of sealed connections is not reached
        parl_remote.connect(f"127.0.0.1:{made.address.rpartition(':')[2]}")
        yield request.param
        parl_remote.disconnect()


@pytest.mark.slow
def test_calls_that_a_busy_actor_does_not_take_wait_at_the_caller(another_host: str, tmp_path: Path) -> None:
    slow: Any = Slow()
    assert isinstance(slow._parl_ref.outbox.path.channel, RelayedChannel) == (another_host == "relayed")
    memory = Memory(slow.processes().result())
    slow.take(np.ones(MB, np.uint8)).result()
    started = slow.wait_for_file(str(tmp_path / "go on"))
    futures = [slow.take(np.ones(SIZE, np.uint8)) for _ in range(75)]  # none of which waits
    time.sleep(1.0)  # nothing tells that nothing leaves any more
    assert slow._parl_ref.outbox.unsent >= 75 - 2 * ON_THE_WAY, "300 MB left although the actor takes nothing"
    assert memory.growth() < MOST_GROWTH
    (tmp_path / "go on").touch()
    assert futures[-1].result(60.0) == 301 * MB
    assert started.result() is None
    assert memory.growth() < MOST_GROWTH


@pytest.mark.slow
def test_a_fast_sender_waits_where_calls_are_limited(
    another_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow: Any = parl_remote.with_options(Slow, max_pending_calls=20)()
    memory = Memory(slow.processes().result())
    started = slow.wait_for_file(str(tmp_path / "go on"))
    futures: list[Any] = []
    waits = threading.Event()
    await_answer = Outbox._await_answer

    def waiting(outbox: Outbox, slot: Any) -> None:
        waits.set()
        await_answer(outbox, slot)

    monkeypatch.setattr(Outbox, "_await_answer", waiting)
    sender = threading.Thread(target=lambda: futures.extend(slow.take(np.ones(SIZE, np.uint8)) for _ in range(75)))
    sender.start()
    assert waits.wait(60.0), "300 MB were accepted although the actor takes nothing"
    assert len(futures) == 19  # and the first call
    (tmp_path / "go on").touch()
    sender.join(60.0)
    assert futures[-1].result(60.0) == 300 * MB
    assert started.result() is None
    assert memory.growth() < MOST_GROWTH


@pytest.mark.slow
def test_a_fast_actor_waits_for_a_caller_that_does_not_read(another_host: str, tmp_path: Path) -> None:
    counter = tmp_path / "made"
    counter.touch()
    with RemoteActors() as actors:
        slow = actors.create(Work)
        memory = Memory(slow.call("processes"))
        assert slow.call("make", MB).sum() == MB
        futures = [slow.submit("make", SIZE, str(counter)) for _ in range(60)]  # none is read meanwhile
        eventually(lambda: counter.stat().st_size >= (ON_THE_WAY - 1 if another_host == "relayed" else 1))
        time.sleep(0.5)  # nothing tells that nothing happens
        assert counter.stat().st_size < 30, "the actor goes on although its results are not read"
        assert all(int(future.result(60.0)[-1]) == 1 for future in futures)
        assert memory.growth() < MOST_GROWTH


@pytest.mark.slow
def test_a_fast_actor_does_not_fill_the_worker_while_its_caller_reads_in_the_background(
    another_host: str, tmp_path: Path
) -> None:
    slow: Any = Slow()
    memory = Memory(slow.processes().result())
    counter = tmp_path / "made"
    counter.touch()
    futures = [slow.make(SIZE, str(counter)) for _ in range(60)]
    eventually(lambda: counter.stat().st_size == 60)  # no result is awaited, and the actor continues
    assert all(int(future.result(60.0)[-1]) == 1 for future in futures)
    assert memory.growth() < MOST_GROWTH


@pytest.mark.slow
def test_calls_in_flight_do_not_wait_for_each_others_round_trip(
    unconnected: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(worker_clients, "can_seal", lambda: False)
    counter = tmp_path / "made"
    counter.touch()
    with LoopbackCluster(nodes=0, master_cpus=1, liveness_limit_s=240.0) as cluster:
        cluster.connect()
        slow: Any = Slow()
        slow.make(1).result()
        assert cluster.master.toward is not None
        cluster.master.toward.cut(Direction.OUT)
        futures = [slow.make(1, str(counter)) for _ in range(500)]
        eventually(lambda: counter.stat().st_size == 500)  # all have arrived before an answer has
        assert not any(future.done() for future in futures)
        cluster.master.toward.restore()
        assert all(future.result(60.0).size == 1 for future in futures)
        parl_remote.disconnect()
