"""The fault kit itself: processes, lines, packets, shortages; what they do to clusters is tested elsewhere."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from faults.namespaces import LineBetween
from faults.namespaces import inside as inside_namespace
from faults.packet_network import PacketNetwork
from faults.polling import eventually
from parl_remote.testing import (
    Conditions,
    Direction,
    FaultUnavailable,
    Line,
    MemoryHog,
    Process,
    SmallDisk,
    processes_with,
)

PATIENCE_S = 60.0
BALLAST = 2**25


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PARL_TEST_MARK": f"{os.getpid()}"}
    running = subprocess.Popen(["sleep", "600"], env=environment)
    yield running
    running.kill()
    running.wait()


# -- processes ------------------------------------------------------------------------------------------------------


def test_a_process_is_paused_resumed_and_killed(sleeper: subprocess.Popen[bytes]) -> None:
    process = Process(sleeper.pid)
    with process.being_paused():
        eventually(lambda: process.paused)
    eventually(lambda: process.alive and not process.paused)
    process.kill()
    assert process.wait_for_end(PATIENCE_S) < PATIENCE_S
    eventually(lambda: not process.alive)
    process.kill()  # takes no notice


def test_a_process_that_does_not_end_in_time_is_named(sleeper: subprocess.Popen[bytes]) -> None:
    with pytest.raises(TimeoutError, match=rf"<process {sleeper.pid} \(sleep\)> still runs after 0.01 s"):
        Process(sleeper.pid).wait_for_end(0.01)


def test_an_unknown_number_is_refused(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(ProcessLookupError):
        Process(sleeper.pid)


def test_descendants_and_orphans_are_found() -> None:
    """A child whose parent has ended is still found by its environment."""
    environment = {**os.environ, "PARL_TEST_MARK": f"orphan-{os.getpid()}"}
    parent = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; exec sleep 600"], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert child in [one.pid for one in Process(parent.pid).family]
    assert [one.pid for one in Process(parent.pid).children] == [child]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    (orphan,) = processes_with("PARL_TEST_MARK", f"orphan-{os.getpid()}")
    assert orphan.pid == child
    orphan.kill()
    orphan.wait_for_end(PATIENCE_S)


HOLDS = f"""
import mmap, os
print("started", flush=True)
input()
segment = os.memfd_create("test")
os.write(segment, bytes(2**20))
file = os.open(os.devnull, os.O_RDONLY)
ballast = mmap.mmap(-1, {BALLAST}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # fresh pages, none that were free
ballast.write(bytes({BALLAST}))
print("holding", flush=True)
input()
"""


def test_what_a_process_holds_is_counted() -> None:
    """In a process of its own: what other tests left to threads and the garbage collector may close here any time."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "started\n"
        process = Process(holder.pid)
        before, memory, segments = process.descriptors, process.own_bytes, process.shared_segments
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "holding\n"
        assert (process.descriptors, process.shared_segments) == (before + 1, segments + 1)
        assert BALLAST / 2 < process.own_bytes - memory < BALLAST * 1.5
        assert process.threads == 1
        holder.communicate("\n")


# -- lines ----------------------------------------------------------------------------------------------------------


class Echo:
    """A server that sends back what it gets, and counts its connections."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listening.getsockname()
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.accepted += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                connection.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def line(echo: Echo) -> Iterator[Line]:
    with Line(echo.address) as one:
        yield one


def dial(line: Line) -> socket.socket:
    host, _, port = line.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE_S)
    connection.settimeout(PATIENCE_S)
    return connection


def round_trip(connection: socket.socket, data: bytes) -> float:
    """Seconds until it has come back, unchanged."""
    began = time.monotonic()
    threading.Thread(target=connection.sendall, args=(data,), daemon=True).start()
    back = bytearray()
    while len(back) < len(data):
        more = connection.recv(2**20)
        assert more, "the line broke"
        back += more
    assert bytes(back) == data
    return time.monotonic() - began


def says_nothing(connection: socket.socket, seconds: float = 0.2) -> bool:
    connection.settimeout(seconds)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(PATIENCE_S)


def test_a_perfect_line_changes_nothing(line: Line) -> None:
    with dial(line) as one, dial(line) as two:
        round_trip(one, os.urandom(5 * 2**20))
        round_trip(two, b"x")
        assert line.connections == 2
    eventually(lambda: line.passed(Direction.IN) == line.passed(Direction.OUT) == 5 * 2**20 + 1)
    eventually(lambda: line.connections == 0)


def test_delay_is_for_each_way(line: Line) -> None:
    with dial(line) as connection:
        round_trip(connection, b"warm")
        line.set(Conditions(delay_s=0.1))
        assert round_trip(connection, b"both ways") >= 0.2
        line.set(Conditions(), Direction.IN)
        assert round_trip(connection, b"one way") >= 0.1
        line.set(Conditions(delay_s=3000.0))
        line.set(Conditions())
        round_trip(connection, b"none")


def test_delayed_data_is_under_way_together(line: Line) -> None:
    with dial(line) as connection:
        line.set(Conditions(delay_s=0.2))
        one = round_trip(connection, b"one")
        assert round_trip(connection, bytes(4 * 2**20)) < 60 * one  # some hundred segments, one after the other > 120


def test_bandwidth_is_limited(line: Line) -> None:
    with dial(line) as connection:
        line.set(Conditions(bytes_per_s=2**20), Direction.IN)
        assert round_trip(connection, bytes(2**19)) >= 0.45


def test_lost_segments_come_later_and_in_order(line: Line) -> None:
    with dial(line) as connection:
        line.set(Conditions(loss=0.5, jitter_s=0.01, retransmit_s=0.05))
        round_trip(connection, os.urandom(2**19))


@pytest.mark.parametrize("way", [Direction.IN, Direction.OUT, Direction.BOTH])
def test_a_cut_line_is_silent_and_delivers_when_it_is_mended(line: Line, way: Direction) -> None:
    with dial(line) as connection:
        round_trip(connection, b"before")
        line.cut(way)
        connection.sendall(b"meanwhile")
        assert says_nothing(connection)
        line.restore()
        assert connection.recv(100) == b"meanwhile"
        round_trip(connection, b"after")


def test_a_connection_over_a_cut_line_fails_until_it_is_restored(line: Line, echo: Echo) -> None:
    line.cut()
    with dial(line) as connection:
        connection.sendall(b"early")
        assert says_nothing(connection)
        assert echo.accepted == 0
        line.restore()
        assert connection.recv(100) == b"early"


def test_a_black_hole_swallows_and_ends_what_it_has_damaged(line: Line) -> None:
    with dial(line) as damaged, dial(line) as idle:
        round_trip(damaged, b"x")
        round_trip(idle, b"x")
        line.blackhole(Direction.IN)
        damaged.sendall(b"never seen again")
        assert says_nothing(damaged)
        line.restore()
        with pytest.raises(ConnectionResetError):
            damaged.recv(1)
        round_trip(idle, b"still whole")


def test_reset_ends_all_connections_and_new_ones_work(line: Line) -> None:
    with dial(line) as connection:
        round_trip(connection, b"x")
        line.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with dial(line) as another:
        round_trip(another, b"y")


def test_the_end_of_one_side_reaches_the_other(line: Line) -> None:
    with dial(line) as connection:
        connection.sendall(b"last")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b"last"
        assert connection.recv(100) == b""


def test_a_line_without_a_receiver_resets(echo: Echo) -> None:
    echo.close()
    with Line(echo.address) as line, pytest.raises(ConnectionResetError), dial(line) as connection:
        connection.recv(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay_s": -1.0},
        {"loss": 1.0},
        {"loss": 1.5},
        {"duplicate": -0.1},
        {"reorder": 0.5},
        {"bytes_per_s": 0},
        {"jitter_s": float("nan")},
    ],
)
def test_impossible_conditions_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be|is a cut|needs a delay"):
        Conditions(**wrong)


# -- packets --------------------------------------------------------------------------------------------------------


@pytest.fixture
def network() -> Iterator[PacketNetwork]:
    try:
        one = PacketNetwork(["a", "b"], seed=1)
    except FaultUnavailable as error:
        pytest.skip(str(error))
    with one:
        yield one


RECEIVER = """
import socket, sys, hashlib
with socket.create_server(("0.0.0.0", 9)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    digest = hashlib.sha256()
    while data := connection.recv(65536):
        digest.update(data)
    print(digest.hexdigest())
"""
SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], 9)) as connection:
    for number in range(2000):
        connection.sendall(number.to_bytes(100, "big"))
"""


@pytest.mark.slow
def test_tcp_repairs_what_the_packets_between_two_hosts_suffer(network: PacketNetwork) -> None:
    import hashlib

    a, b = network.host("a"), network.host("b")
    receiver = b.start(sys.executable, "-c", RECEIVER, stdout=subprocess.PIPE, text=True)
    assert receiver.stdout.readline() == "ready\n"
    network.set(Conditions(delay_s=0.01, jitter_s=0.005, loss=0.05, reorder=0.25, duplicate=0.05))
    sender = a.start(sys.executable, "-c", SENDER, b.address)
    assert sender.wait(60) == 0
    said, _ = receiver.communicate(timeout=240)
    expected = hashlib.sha256(b"".join(number.to_bytes(100, "big") for number in range(2000))).hexdigest()
    assert said.strip() == expected
    counts = network.counts
    assert min(counts.lost, counts.overtook, counts.duplicated) > 0
    assert counts.passed > 100


@pytest.mark.slow
def test_a_host_that_is_cut_off_one_way_receives_and_cannot_send(network: PacketNetwork) -> None:
    """Datagrams show it without TCP's repairs."""
    a, b = network.host("a"), network.host("b")
    ends = {
        host.name: inside_namespace(host.namespace, lambda host=host: udp(host.address))  # type: ignore[misc]
        for host in (a, b)
    }

    def arrives(sender: str, receiver: str) -> bool:
        ends[sender].sendto(struct.pack("I", 7), (network.host(receiver).address, 9))
        try:
            return bool(ends[receiver].recv(100))
        except TimeoutError:
            return False

    assert arrives("a", "b")
    assert arrives("b", "a")
    b.cut(Direction.OUT)
    assert arrives("a", "b")
    assert not arrives("b", "a")
    b.restore()
    assert arrives("b", "a")
    for end in ends.values():
        end.close()


def udp(address: str) -> socket.socket:
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.bind((address, 9))
    end.settimeout(0.5)
    return end


@pytest.mark.slow
def test_a_line_connects_two_namespaces(network: PacketNetwork) -> None:
    a, b = network.host("a"), network.host("b")
    receiver = b.start(sys.executable, "-c", RECEIVER, stdout=subprocess.PIPE, text=True)
    assert receiver.stdout.readline() == "ready\n"
    network.host("b").cut()  # so that the only way is the line
    with LineBetween(("127.0.0.1", 9), ("127.0.0.1", 9), to_in=b.namespace, listen_in=a.namespace):
        sender = a.start(sys.executable, "-c", SENDER, "127.0.0.1")
        assert sender.wait(60) == 0
        assert len(receiver.communicate(timeout=240)[0].strip()) == 64


@pytest.mark.slow
def test_networks_leave_nothing_behind() -> None:
    try:
        with PacketNetwork(["x"]) as network:
            namespace = network.host("x").namespace
            assert os.path.exists(f"/run/netns/{namespace}")
    except FaultUnavailable as error:
        pytest.skip(str(error))
    assert not os.path.exists(f"/run/netns/{namespace}")


# -- shortages ------------------------------------------------------------------------------------------------------


def test_a_small_disk_is_full_and_has_space_again() -> None:
    try:
        disk = SmallDisk(1)
    except FaultUnavailable as error:
        pytest.skip(str(error))
    with disk:
        assert 2**19 < disk.fill() <= 2**20
        with pytest.raises(OSError, match="No space left"):
            (disk.path / "one").write_bytes(b"more")
        disk.clear()
        (disk.path / "one").write_bytes(b"more")
    assert not disk.path.exists()


def test_a_memory_hog_holds_its_memory_until_it_is_closed() -> None:
    with MemoryHog(64) as hog:
        process = Process(hog.pid)
        assert process.own_bytes > 64 * 2**20
    assert not process.alive
