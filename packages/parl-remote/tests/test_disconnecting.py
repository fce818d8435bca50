"""Closing a connection: what waits for the cluster is told, and each part is closed whatever the others do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

import parl_remote
from parl_remote import NotConnected, _current, _future
from parl_remote._config import Limits
from parl_remote._links.loop import Loop
from parl_remote._messages import LeaseGranted
from parl_remote._messages.overview import ListNodes
from parl_remote._options import ActorOptions
from parl_remote._program.client import Client
from parl_remote._program.known_actors import ActorRecord, DeferredDisconnects, OwnActors
from parl_remote._program.master_client import MasterClient
from parl_remote._program.worker_clients import WorkerClients
from parl_remote._system.facilities import is_portable
from parl_remote.errors import ChannelClosed, DeathCause, DeathKind

PATIENCE_S = 60.0
LIMITS = Limits(linger_s=0.1)
GRANTED = LeaseGranted(1, "lease", "worker", ("host:1",), "/run/worker", "host")


class Mute:
    """A channel to a peer that never answers."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.closed = False

    def send(self, frames: object, timeout_s: float | None = None) -> None:
        if self.closed:
            raise ChannelClosed("closed")
        self.asked.release()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def waiting() -> Any:
    with ThreadPoolExecutor() as threads:
        yield threads.submit


def test_who_waits_for_the_master_is_told_when_the_program_disconnects(
    waiting: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster: Any = SimpleNamespace(may_return=True)
    unused: Any = SimpleNamespace()
    loop, channel = Loop(), Mute()
    needy: SimpleQueue[str] = SimpleQueue()
    master = MasterClient(
        loop,
        cluster,
        unused,
        address="host:1",
        limits=LIMITS,
        on_lost_lease=unused,
        on_wanted_lease=unused,
        on_full=needy.put,
        when_needed=True,
    )
    monkeypatch.setattr(master, "_connect", lambda: channel)
    actor = waiting(master.lease, "Cell", ActorOptions(), None, replaces="a lost one")
    nodes = waiting(master.ask, ListNodes, None)
    for _ in range(2):
        assert channel.asked.acquire(timeout=PATIENCE_S)
    assert needy.get(timeout=PATIENCE_S) == "Cell", "what the program can do without is freed, also for a restart"
    master.close()
    master.hang_up()
    for one in (actor, nodes, waiting(master.ask, ListNodes, None)):
        with pytest.raises(NotConnected, match="the connection is closed"):
            one.result(PATIENCE_S)
    loop.close()


def test_a_program_without_threads_goes_on_trying_to_reach_its_master(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = SimpleNamespace(may_return=True)
    unused: Any = SimpleNamespace()
    loop = Loop()
    limits = Limits(rejoin_interval_s=0.01)
    master = MasterClient(
        loop,
        cluster,
        unused,
        address="host:1",
        limits=limits,
        on_lost_lease=unused,
        on_wanted_lease=unused,
        on_full=unused,
        when_needed=True,
    )
    tries: list[str] = []

    def no_thread(thread: threading.Thread) -> None:
        tries.append(thread.name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    master._away_since = loop.now()
    master._rejoin_later()
    for _ in range(1000):
        if len(tries) > 2:
            break
        loop.run_once(1.0)
    assert tries[:3] == ["parl-rejoin"] * 3
    loop.close()


def test_who_waits_for_a_worker_is_told_when_the_program_disconnects(
    waiting: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    unused: Any = SimpleNamespace()
    loop, links = Loop(), [Mute(), Mute()]
    workers = WorkerClients(
        loop, unused, unused, limits=LIMITS, same_host_shortcut=False, on_died=unused, on_worker_gone=unused
    )
    left = iter(links)
    monkeypatch.setattr(workers, "connect", lambda _: next(left))
    start: Any = SimpleNamespace(lease_id="lease")
    monkeypatch.setattr("parl_remote._program.worker_clients.encode", lambda _: b"")
    started = waiting(workers.start, GRANTED, start)
    asked = waiting(workers.ask, GRANTED, lambda number: unused, None)
    for _ in range(2):
        assert links[0].asked.acquire(timeout=PATIENCE_S)
    workers.hang_up()
    with pytest.raises(ChannelClosed, match="disconnected"):
        started.result(PATIENCE_S)
    for one in (asked, waiting(workers.ask, GRANTED, lambda number: unused, None)):
        with pytest.raises(NotConnected, match="the connection is closed"):
            one.result(PATIENCE_S)
    assert links[0].closed
    assert links[1].closed, "a link that is made while the program disconnects stays open"
    loop.close()


class Watched(ActorRecord):
    """A record that is looked at while another thread drops the others."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    @property
    def is_detached(self) -> bool:
        self.meanwhile()
        return True

    @is_detached.setter
    def is_detached(self, _: bool) -> None:
        pass


def test_actors_may_end_while_the_program_waits_for_their_ends() -> None:
    loop = Loop()
    own = OwnActors(DeferredDisconnects(loop, lambda: False))
    cause = DeathCause(DeathKind.STOPPED)
    records = [Watched(f"lease {number}", "worker", "Cell") for number in range(3)]
    for record in records:
        own.records[record.lease_id] = record

    def drop() -> None:
        other = threading.Thread(target=own.forget, args=(records[1], cause))
        other.start()
        other.join(0.1)  # it may have to wait until all are looked at

    records[0].meanwhile = drop
    own.await_none(PATIENCE_S)
    loop.close()


@pytest.mark.parametrize("what", ["_send_rest", "own.await_none", "_master.close"])
def test_ctrl_c_in_one_step_of_disconnecting_keeps_no_other_from_being_taken(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    connect(cpu_num=1)
    client: Any = _current.client()
    assert isinstance(client, Client)
    owner: Any = client
    *path, name = what.split(".")
    for part in path:
        owner = getattr(owner, part)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        parl_remote.disconnect()
    assert not client._thread.is_alive()


_WAITING_THREADS = """
import sys
import threading
import time
import parl_remote

@parl_remote.remote_class(n_cpu=0)
class Sleeper:
    def begin(self):
        pass

    def sleep(self):
        threading.Event().wait()

def waits(thread):
    frame = sys._current_frames()[thread.ident]
    while frame is not None and frame.f_code.co_name != "_wait_until":
        frame = frame.f_back
    return frame is not None

parl_remote.connect(cpu_num=1)
sleeper, items = Sleeper(), parl_remote.Queue()
sleeper.begin()
threads = [threading.Thread(target=action, daemon=True) for action in (sleeper.sleep, items.get)]
for thread in threads:
    thread.start()
while not all(map(waits, threads)):
    time.sleep(0.01)
print("over")
"""


def test_a_daemon_thread_gets_the_errors_of_calls_while_the_program_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, got = threading.Event(), []
    ends.set()
    monkeypatch.setattr(_future, "program_ends", ends)
    future: _future.RemoteFuture[None] = _future.RemoteFuture(None)
    future.set_exception(ValueError("of the method"))
    thread = threading.Thread(target=lambda: got.append(_error_of(future.result)), daemon=True)
    thread.start()
    thread.join()
    assert [type(error) for error in got] == [ValueError]


def _error_of(action: Callable[[], object]) -> BaseException | None:
    try:
        action()
    except BaseException as error:
        return error
    return None


def test_daemon_threads_that_wait_end_with_the_program_and_without_tracebacks() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _WAITING_THREADS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("over\n", "", 0)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_private_cluster_ends_with_a_program_that_is_killed_while_it_connects(
    run_program: Callable[..., subprocess.CompletedProcess[str]], await_end: Callable[..., float]
) -> None:
    program = """
        import os, signal, parl_remote
        from parl_remote._program.private_cluster import PrivateCluster

        def killed(cluster):
            print(cluster.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        PrivateCluster.connect_master = killed
        parl_remote.connect()
    """
    ended = run_program("-c", textwrap.dedent(program))
    await_end([int(ended.stdout)], Limits().start_timeout_s / 2)  # in which it waits for a program otherwise


def test_ctrl_c_while_a_private_cluster_starts_ends_its_process(
    monkeypatch: pytest.MonkeyPatch, await_end: Callable[..., float]
) -> None:
    popen, started = subprocess.Popen, list[int]()

    def start(*args: Any, **options: Any) -> Any:
        process = popen(*args, **options)
        started.append(process.pid)
        signal.raise_signal(signal.SIGINT)
        return process

    parl_remote.disconnect()
    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        parl_remote.connect(cpu_num=1)
    await_end(started)
    assert len(started) == 1
    assert _current.peek() is None


def test_ctrl_c_while_the_program_ends_says_nothing_and_leaves_nothing(
    run_program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    program = """
import os, signal, subprocess
import parl_remote as parl

def wait(process, timeout=None, wait=subprocess.Popen.wait):
    if timeout is not None:
        os.kill(os.getpid(), signal.SIGINT)
    return wait(process, timeout)

parl.connect(cpu_num=1)
print(parl.get_global_client()._cluster.directory)
subprocess.Popen.wait = wait
"""
    done = run_program(program=program)
    assert (done.stderr, done.returncode) == ("", 0)
    assert not Path(done.stdout.strip()).exists()


@parl_remote.remote_class
class Starter:
    def start(self) -> tuple[int, int]:
        """Start a program; return its process id and that of the process that this one was forked from."""
        return subprocess.Popen(["sleep", "600"]).pid, os.getppid()


@pytest.mark.skipif(is_portable(), reason="actors are not forked")
def test_what_actors_have_started_ends_although_the_process_that_ends_them_does_not_answer(
    connect: Callable[..., None], await_end: Callable[..., float]
) -> None:
    connect()
    starter = Starter()
    started, zygote = starter.start()
    os.kill(zygote, signal.SIGSTOP)
    parl_remote.disconnect()
    await_end([started, zygote])
