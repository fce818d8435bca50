"""The implementation without Linux's facilities: its parts, suites over it, Python without what Windows lacks."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from faults.ports import unused_port
from parl_remote._portable.processes import ended_within, started
from parl_remote._portable.sockets import LoopbackListener, connect_loopback, is_abandoned
from parl_remote._portable.spawner import Spawner
from parl_remote._system import facilities
from parl_remote._system.facilities import IN, OUT, PortablePoller
from parl_remote._transport.unix import UnixChannel
from parl_remote.errors import ChannelClosed

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
WAIT_S = 60.0
PATIENCE_S = 120.0  # for a program or a suite

PROGRAM = """
import os, signal, sys
import numpy as np
import parl_remote as parl
from parl_remote._system import facilities

@parl.remote_class
class Counter:
    def __init__(self, start=0): self.count = start
    def add(self, step=1): self.count += step; return self.count
    def fail(self): raise KeyError("there is no such thing")
    def pid(self): return os.getpid()
    def echo(self, value): return value
    def make(self): return Counter(100).add()

@parl.remote_class(max_concurrency=3)
class Threads:
    def echo(self, value): return value

@parl.remote_class
class Loop:
    async def echo(self, value): return value

if __name__ == "__main__":
    parl.connect(*sys.argv[1:], **({} if sys.argv[1:] else {"cpu_num": 4}))
    print(facilities.is_portable())
    counter = Counter(1)
    print([counter.add() for _ in range(100)][-1])
    try:
        counter.fail()
    except KeyError as error:
        print("raised", error)
    large = np.arange(3_000_000.0)
    print(bool((counter.echo(large) == large).all()), bool((counter.echo(parl.put(large)) == large).all()))
    print(counter.make())
    print(Threads().echo(3), Loop().echo(4))
    pid = counter.pid()
    os.kill(pid, signal.SIGKILL)
    try:
        counter.add()
    except parl.ActorLost as error:
        print("lost", "SIGKILL" in str(error))
    print(Counter(7).add())
    parl.disconnect()
"""


def run(*command: str, **variables: str) -> str:
    """Return a program's output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PARL_") and k != "XPARL"}
    done = subprocess.run(
        [sys.executable, *command],
        env={**environment, "PARL_MONITOR": "0", **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def paths(*first: Path) -> str:
    return os.pathsep.join([*map(str, first), *(path for path in sys.path if path)])


# -- the parts --------------------------------------------------------------------------------------------------------


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[LoopbackListener]:
    made = LoopbackListener(str(tmp_path / "listener.sock"))
    yield made
    made.close()


def let_in(listener: LoopbackListener) -> socket.socket:
    """The next one who has proved himself."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener.fileno(), selectors.EVENT_READ)
        assert selector.select(WAIT_S)
    return listener.accept()[0]


def port_of(listener: LoopbackListener) -> int:
    return int(json.loads(Path(listener.getsockname()).read_text())["port"])


def test_this_linux_lacks_nothing() -> None:
    assert facilities.missing() == ()


def test_the_file_of_a_door_is_its_owner_s_alone(listener: LoopbackListener) -> None:
    assert stat.S_IMODE(Path(listener.getsockname()).stat().st_mode) == 0o600


def test_a_file_that_others_can_read_is_not_trusted(listener: LoopbackListener) -> None:
    Path(listener.getsockname()).chmod(0o644)
    with pytest.raises(PermissionError, match="not private"):
        connect_loopback(listener.getsockname(), wait=True)


def test_both_ends_of_a_proved_connection_talk(listener: LoopbackListener) -> None:
    here = UnixChannel(connect_loopback(listener.getsockname(), wait=True))
    there = UnixChannel(let_in(listener))
    here.send([b"question"])
    assert bytes(there.receive(WAIT_S)[0]) == b"question"
    sending = threading.Thread(target=there.send, args=([b"header", bytes(10_000_000)],))
    sending.start()
    header, large = here.receive(WAIT_S)
    sending.join(WAIT_S)
    assert (bytes(header), len(large)) == (b"header", 10_000_000)
    there.close()
    with pytest.raises(ChannelClosed):
        here.receive(WAIT_S)
    here.close()


def test_an_answer_that_arrived_before_a_close_is_received_after_it(listener: LoopbackListener) -> None:
    here = UnixChannel(connect_loopback(listener.getsockname(), wait=True))
    there = UnixChannel(let_in(listener))
    there.send([b"the last answer"])
    with selectors.DefaultSelector() as selector:
        selector.register(here.fileno(), selectors.EVENT_READ)
        assert selector.select(WAIT_S)
    here.close()
    assert bytes(here.receive(WAIT_S)[0]) == b"the last answer"
    with pytest.raises(ChannelClosed):
        here.receive(WAIT_S)
    there.close()


def test_a_peer_that_only_knows_the_port_is_refused(listener: LoopbackListener) -> None:
    with socket.create_connection(("127.0.0.1", port_of(listener)), WAIT_S) as unauthenticated:
        unauthenticated.sendall(bytes(64))
        assert unauthenticated.recv(1) == b""
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_a_silent_peer_holds_up_no_other_one(listener: LoopbackListener) -> None:
    with socket.create_connection(("127.0.0.1", port_of(listener)), WAIT_S):
        connect_loopback(listener.getsockname(), wait=True).close()
        let_in(listener).close()


def _hear_through(file: Path, wait: bool) -> None:
    channel = UnixChannel(connect_loopback(str(file), wait=wait))
    try:
        channel.receive(WAIT_S)
    finally:
        channel.close()


@pytest.mark.parametrize("wait", [True, False])
def test_another_program_at_the_port_cannot_pose_as_the_listener(tmp_path: Path, wait: bool) -> None:
    listener = LoopbackListener(str(tmp_path / "listener.sock"))
    record = Path(listener.getsockname()).read_text()
    listener.close()
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        file = tmp_path / "listener.sock"
        file.touch(0o600)
        file.write_text(json.dumps({**json.loads(record), "port": impostor.getsockname()[1]}))

        def pose() -> None:
            with impostor.accept()[0] as connection:
                connection.sendall(bytes(32) + b"\x01\0\0\0\x01\0\0\0\0\0\0\0!")

        poser = threading.Thread(target=pose)
        poser.start()
        with pytest.raises((ConnectionRefusedError, ChannelClosed)):
            _hear_through(file, wait)
        poser.join(WAIT_S)


def test_a_door_that_is_closed_is_gone(tmp_path: Path) -> None:
    listener = LoopbackListener(str(tmp_path / "listener.sock"))
    record = Path(listener.getsockname()).read_bytes()
    assert not is_abandoned(tmp_path / "listener.sock")
    listener.close()
    assert not (tmp_path / "listener.sock").exists()
    (tmp_path / "listener.sock").touch(0o600)
    (tmp_path / "listener.sock").write_bytes(record)
    assert is_abandoned(tmp_path / "listener.sock")


def test_pollers_nest() -> None:
    inner, outer = PortablePoller(), PortablePoller()
    here, there = socket.socketpair()
    with here, there:
        inner.register(here.fileno(), IN)
        outer.register(inner.fileno(), IN)
        for _ in range(50):  # each time armed anew
            there.send(b"x")
            assert outer.poll(WAIT_S) == [(inner.fileno(), IN)]
            assert inner.poll(0) == [(here.fileno(), IN)]
            here.recv(1)
            while outer.poll(0.0):  # a ring that came in between
                assert inner.poll(0) == []
        inner.modify(here.fileno(), IN | OUT)
        assert outer.poll(WAIT_S)
        assert inner.poll(WAIT_S) == [(here.fileno(), OUT)]
        inner.unregister(here.fileno())
        there.send(b"x")
        assert inner.poll(0) == []
    outer.close()
    inner.close()


def reports(spawner: Spawner) -> Iterator[dict[str, object]]:
    """All reports, as they come."""
    with selectors.DefaultSelector() as selector:
        selector.register(spawner.fileno(), selectors.EVENT_READ)
        while selector.select(WAIT_S):
            yield from spawner.reports() or ()


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PARL_PORTABLE", "1")
    facilities.is_portable.cache_clear()
    yield
    monkeypatch.undo()
    facilities.is_portable.cache_clear()


@pytest.mark.usefixtures("portable")
def test_a_spawned_process_listens_is_killed_and_reported(tmp_path: Path) -> None:
    spawner = Spawner(tmp_path, ("no_such_module",), clear=False)
    news = reports(spawner)
    spawner.fork(1)
    assert "no_such_module" in str(next(report["failed"] for report in news if "failed" in report))
    assert next(report["forked"] for report in news if "forked" in report) == 1
    with connect_loopback(str(tmp_path / "a1.sock"), wait=True):
        spawner.fork(2)
        assert next(report["forked"] for report in news if "forked" in report) == 2
        spawner.kill(1)
        ended = next(report for report in news if "ended" in report)
    assert (ended["ended"], ended["status"]) == (1, signal.SIGKILL)
    spawner.close()
    assert list(tmp_path.glob("*.sock")) == []


@pytest.mark.usefixtures("portable")
def test_a_process_that_is_killed_twice_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, killed_twice = os.waitid, threading.Event()

    def wait_after_both(*arguments: int) -> object:
        assert killed_twice.wait(WAIT_S)
        return waiting(*arguments)

    monkeypatch.setattr(os, "waitid", wait_after_both)
    spawner = Spawner(tmp_path, clear=False)
    news = reports(spawner)
    spawner.fork(1)
    pid = next(report["pid"] for report in news if "forked" in report)
    assert isinstance(pid, int)
    spawner.kill(1)
    waiting(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    spawner.kill(1)
    killed_twice.set()
    assert next(report["status"] for report in news if "ended" in report) == signal.SIGKILL
    spawner.close()


WORKER = """
import sys, time
from parl_remote._portable.spawner import Spawner
spawner = Spawner(sys.argv[1], clear=True)
spawner.fork(1)
while not (found := [one for one in spawner.reports() if "forked" in one]):
    time.sleep(0.01)
print(found[0]["pid"], flush=True)
time.sleep(600)
"""


def test_spawned_processes_end_with_a_killed_worker_and_clear_its_directory(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    directory.mkdir()
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PARL_PORTABLE": "1", "PYTHONPATH": paths()},
    )
    assert worker.stdout is not None
    with worker.stdout:
        pid = int(worker.stdout.readline())
    began = started(pid)
    worker.kill()
    worker.wait(WAIT_S)
    assert ended_within(pid, began, WAIT_S)
    assert not directory.exists()


def test_a_number_that_another_process_has_now_is_no_process_of_ours() -> None:
    pid = os.getpid()
    assert not ended_within(pid, started(pid), 0.0)
    assert ended_within(pid, started(pid) + 1, 0.0)


# -- the suites -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("test_transport_conformance.py", ""),
        ("test_calls.py", "process"),
        pytest.param("test_exceptions_cross.py", "process", marks=pytest.mark.long),
        ("test_deaths_of_actors.py", "killed or exits or lost or stopped_actor or has_started or node_s_death"),
        pytest.param("test_futures.py", "", marks=pytest.mark.long),
        (
            "test_xparl.py",
            "same_user or worker_joins or killed_worker or killed_master or killed_program or foreground",
        ),
    ],
)
def test_the_suite_holds_with_what_every_system_has(file: str, chosen: str, tmp_path: Path) -> None:
    said = run(
        *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-c", str(ROOT / "tools" / "pytest.ini")),
        *("--rootdir", str(ROOT), "--basetemp", str(tmp_path / "base"), "-k", chosen, str(HERE / file)),
        PARL_PORTABLE="1",
        PYTHONPATH=paths(),
    )
    assert " passed" in said.splitlines()[-1]


# -- without what Windows' Python lacks -------------------------------------------------------------------------------

AS_ON_WINDOWS = {"PYTHONPATH": paths(HERE / "as_on_windows")}

ALL_MODULES = """
import importlib, pkgutil, os, select, socket
import parl_remote
from parl_remote._system import facilities
assert not hasattr(os, "fork") and not hasattr(select, "epoll") and not hasattr(socket, "AF_UNIX")
names = [one.name for one in pkgutil.walk_packages(parl_remote.__path__, "parl_remote.")]
for name in names:
    if not name.endswith("__main__") and ".ray" not in name:
        importlib.import_module(name)
print(len(names) > 100, "os.fork" in facilities.missing(), facilities.is_portable())
"""


@pytest.mark.slow
def test_all_modules_are_imported() -> None:
    assert run("-c", ALL_MODULES, AS_ON_WINDOWS_AFTER="joblib", **AS_ON_WINDOWS) == "True True True\n"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return path


EXPECTED = [
    *("True", "101", "raised 'there is no such thing'", "True True", "101", "3 4"),
    "lost True",
    "8",
]


@pytest.mark.slow
def test_a_private_cluster_runs(program: Path, tmp_path: Path) -> None:
    assert run(str(program), **AS_ON_WINDOWS, TMPDIR=str(tmp_path)).splitlines() == EXPECTED
    assert list(tmp_path.glob("parl-*")) == []


@pytest.mark.slow
def test_a_cluster_is_started_joined_used_and_stopped(program: Path, tmp_path: Path) -> None:
    home = {**AS_ON_WINDOWS, "PARL_RUN_DIR": str(tmp_path / "run"), "TMPDIR": str(tmp_path)}
    home["PARL_SHUTDOWN_GRACE"] = "60"
    port = unused_port()
    xparl = ("-P", "-m", "parl_remote.cli")
    said = run(*xparl, "start", "--port", str(port), "--cpu_num", "2", **home)
    try:
        assert f'parl.connect("localhost:{port}")' in said
        assert "belong to the cluster" in run(
            *xparl, "connect", "--address", f"localhost:{port}", "--cpu_num", "2", **home
        )
        family = [one for one in psutil.process_iter() if _is_of(one, str(tmp_path))]
        assert run(str(program), f"localhost:{port}", **home).splitlines() == EXPECTED
        assert "0 actors" in run(*xparl, "status", "--port", str(port), **home)
    finally:
        said = run(*xparl, "stop", "--port", str(port), **home)
    assert said.count("has ended") == 2
    assert psutil.wait_procs(family, WAIT_S)[1] == []
    assert list(tmp_path.glob("parl-*")) == []


def _is_of(process: psutil.Process, place: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.environ().get("TMPDIR") == place
    return False
