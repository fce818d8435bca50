"""Every event of the fault table: what the caller sees, what is gone, what goes on. `benchmarks/faults` has the times.

The bounds on times are generous, because these tests share their machine with others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import parl_remote
from faults.packet_network import PacketNetwork
from faults.polling import eventually
from parl_core.errors import LostActor
from parl_remote import ActorLost, ClusterUnreachable, DeathKind, submit
from parl_remote._program.master_client import MasterClient
from parl_remote._program.object_transfer import NodeObjects
from parl_remote.actors import RemoteActors
from parl_remote.testing import (
    Conditions,
    Direction,
    FaultUnavailable,
    LoopbackCluster,
    Process,
    SmallDisk,
    processes_with,
)

PATIENCE_S = 60.0
LIMIT_S = 2.0
XPARL = (sys.executable, "-P", "-m", "parl_remote.cli")


@parl_remote.remote_class
class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    def process(self) -> int:
        return os.getpid()

    def sleep(self) -> None:
        time.sleep(600)

    def write(self, path: str, size: int) -> None:
        with open(path, "wb") as file:
            file.write(bytes(size))

    def say(self, text: str) -> None:
        sys.stdout.write(text + "\n")


class Plain:
    def length(self, value: bytes) -> int:
        return len(value)


@contextlib.contextmanager
def connected(liveness_limit_s: float) -> Iterator[LoopbackCluster]:
    """One node with two CPUs; the master has none."""
    parl_remote.disconnect()
    with LoopbackCluster(1, cpus=2, liveness_limit_s=liveness_limit_s) as one:
        one.connect()
        yield one
        parl_remote.disconnect()


@pytest.fixture
def cluster() -> Iterator[LoopbackCluster]:
    """A cluster that no slow machine takes for silent."""
    with connected(15.0) as one:
        yield one


@pytest.fixture
def impatient() -> Iterator[LoopbackCluster]:
    """A cluster for tests of silence."""
    with connected(LIMIT_S) as one:
        yield one


def cause_of(future: parl_remote.RemoteFuture[Any]) -> parl_remote.DeathCause:
    with pytest.raises(ActorLost) as lost:
        future.result(PATIENCE_S)
    return lost.value.cause


# -- killed ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_actor_on_a_node_is_lost_with_signal_last_words_and_last_call(cluster: LoopbackCluster) -> None:
    actor = Counter()
    actor.say("goodbye")
    process = Process(actor.process())
    waiting = submit(actor.sleep)
    process.kill()
    cause = cause_of(waiting)
    assert (cause.kind, cause.signal, cause.last_call) == (DeathKind.SIGNAL, signal.SIGKILL, "sleep")
    assert cause.log_tail[-1] == "goodbye"


def test_a_killed_worker_is_reported_at_once_and_its_actors_are_gone(cluster: LoopbackCluster) -> None:
    (node,) = cluster.nodes.values()
    waiting = [submit(Counter().sleep) for _ in range(2)]
    family = node.process.family
    node.kill()
    assert [cause_of(one).kind for one in waiting] == [DeathKind.NODE_LOST] * 2
    for process in family:
        process.wait_for_end(PATIENCE_S)
    cluster.wait_for_nodes(0)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False])
def test_a_call_that_brings_a_value_to_a_killed_worker_is_lost_with_its_actor(
    cluster: LoopbackCluster, at_once: bool
) -> None:
    actor = Counter()
    (node,) = cluster.nodes.values()
    node.kill()
    if not at_once:
        cluster.wait_for_nodes(0)
    value = parl_remote.put(bytes(200_000))
    assert cause_of(submit(actor.add, value)).kind is DeathKind.NODE_LOST


@pytest.mark.slow  # the caller waits for the master's word for 20 s
def test_a_node_that_takes_no_values_costs_a_training_loop_one_actor(
    cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ClusterUnreachable("the value cannot be brought to its worker: the line is cut")

    handle = RemoteActors().create(Plain)
    assert handle.submit("length", bytes(10)).result(PATIENCE_S) == 10
    monkeypatch.setattr(NodeObjects, "deliver", refuse)
    with pytest.raises(LostActor, match=r"Plain is lost: its node was lost: .* the line is cut"):
        handle.submit("length", parl_remote.put(bytes(200_000))).result(PATIENCE_S)


@pytest.mark.slow
def test_a_worker_that_returns_serves_waiting_requests(cluster: LoopbackCluster) -> None:
    (node,) = cluster.nodes.values()
    node.kill()
    cluster.wait_for_nodes(0)
    cluster.start_node(node)
    assert [Counter().add(2), Counter().add(3)] == [2, 3]


@pytest.mark.slow
def test_a_killed_zygote_takes_its_actors_and_the_node_goes_on(cluster: LoopbackCluster) -> None:
    (node,) = cluster.nodes.values()
    waiting = submit(Counter().sleep)
    node.zygote.kill()
    assert "forked from" in cause_of(waiting).describe()
    assert Counter().add(1) == 1
    assert node.process.alive


PROGRAM = """
import os, sys, time
import parl_remote as parl

@parl.remote_class
class Sleeper:
    def process(self):
        return os.getpid()
    def sleep(self):
        time.sleep(600)

parl.connect(sys.argv[1] if sys.argv[1] != "local" else None, **({"cpu_num": 2} if sys.argv[1] == "local" else {}))
actors = [Sleeper(), Sleeper()]
print(*(one.process() for one in actors), flush=True)
if sys.argv[2] == "busy":
    waiting = [parl.submit(one.sleep) for one in actors]
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def program(address: str, state: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], list[Process]]]:
    """A program with two actors, and their processes."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, address, state],
        env={**os.environ, "PYTHONPATH": path, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    try:
        pids = running.stdout.readline().split()
        assert running.stdout.readline() == "ready\n"
        yield running, [Process(int(pid)) for pid in pids]
    finally:
        running.kill()
        running.communicate()


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_a_killed_driver_s_actors_go_and_their_slot_is_free(cluster: LoopbackCluster, state: str) -> None:
    with program(cluster.address, state, **cluster.environment) as (running, actors):
        running.kill()
        for actor in actors:
            actor.wait_for_end(60.0)
    eventually(lambda: cluster.status().leases == 0)
    assert Counter().add(1) == 1


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_a_killed_driver_leaves_no_process_of_its_private_cluster(state: str) -> None:
    mark = f"{os.getpid()}-{state}"
    with program("local", state, PARL_TEST_MARK=mark) as (running, _):
        everybody = processes_with("PARL_TEST_MARK", mark)
        assert len(everybody) >= 5  # program, node, zygote and two actors
        running.kill()
        for process in everybody:
            process.wait_for_end(60.0)
        assert processes_with("PARL_TEST_MARK", mark) == ()


def test_actors_outlive_their_master_and_a_new_one_knows_nodes_programs_and_actors(cluster: LoopbackCluster) -> None:
    actors = [Counter(), Counter()]
    assert [one.add(1) for one in actors] == [1, 1]
    cluster.master.kill()
    assert [one.add(1) for one in actors] == [2, 2]
    cluster.restart_master()
    eventually(lambda: (now := cluster.status()).node_count == 1 and now.leases == 2)
    eventually(lambda: os.getpid() in [client.pid for client in cluster.status().clients])
    assert [one.add(1) for one in actors] == [3, 3]
    first = Process(actors[0].process())
    del actors[0]  # the new master gives the slot away again
    first.wait_for_end(PATIENCE_S)
    assert Counter().add(1) == 1


@pytest.mark.slow
def test_a_call_that_waits_for_a_slot_gets_it_from_a_restarted_master(cluster: LoopbackCluster) -> None:
    actors = [Counter(), Counter()]
    waiting = submit_creation()
    eventually(lambda: cluster.status().waiting == 1)
    cluster.master.kill()
    cluster.restart_master()
    eventually(lambda: cluster.status().waiting == 1)
    actors.clear()
    assert waiting() == 5


@pytest.mark.slow
def test_the_time_to_wait_for_a_slot_counts_while_the_master_is_away(cluster: LoopbackCluster) -> None:
    cluster.master.kill()
    # Another text is that of a program that has given the cluster up.
    with pytest.raises(parl_remote.ClusterUnreachable, match="it has not been started again yet"):
        parl_remote.with_options(Counter, lease_timeout_s=0.5)()
    cluster.restart_master()
    assert Counter().add(1) == 1


@pytest.mark.slow
def test_a_request_during_the_loss_waits_for_the_master_s_return(
    cluster: LoopbackCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    noting, asked = threading.Event(), threading.Event()
    reconnect = MasterClient._reconnect

    def ask(client: MasterClient) -> None:
        try:
            reconnect(client)
        finally:
            asked.set()

    class SlowHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "is gone" in record.getMessage():
                noting.set()
                asked.wait(PATIENCE_S)

    handler = SlowHandler()
    logging.getLogger("parl.remote").addHandler(handler)
    try:
        cluster.master.kill()
        assert noting.wait(PATIENCE_S)
        monkeypatch.setattr(MasterClient, "_reconnect", ask)
        waiting = submit_creation()
        assert asked.wait(PATIENCE_S / 2)
        cluster.restart_master()
        assert waiting() == 5
    finally:
        asked.set()
        logging.getLogger("parl.remote").removeHandler(handler)


def submit_creation() -> Callable[[], int]:
    """Make an actor on another thread; returns what waits for its first answer."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    made = pool.submit(lambda: Counter().add(5))
    pool.shutdown(wait=False)
    return lambda: made.result(PATIENCE_S)


def test_actors_survive_when_the_way_to_the_master_breaks(cluster: LoopbackCluster) -> None:
    actor = Counter()
    assert actor.add(1) == 1
    cluster.master.reset()
    eventually(lambda: os.getpid() in [client.pid for client in cluster.status().clients])
    assert (actor.add(1), Counter().add(1)) == (2, 1)
    eventually(lambda: cluster.status().leases == 1)
    assert actor.add(1) == 3


# -- stopped, cut off -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stopped_actor_is_lost_within_the_limit(impatient: LoopbackCluster) -> None:
    actor = Counter()
    with Process(actor.process()).being_paused():
        cause = cause_of(submit(actor.add, 1))
    assert cause.signal == signal.SIGSTOP


@pytest.mark.slow
def test_a_stopped_worker_is_lost_within_the_limit_and_comes_back(impatient: LoopbackCluster) -> None:
    (node,) = impatient.nodes.values()
    actor = Counter()
    with node.process.being_paused():
        assert cause_of(submit(actor.sleep)).kind is DeathKind.NODE_LOST
    assert Counter().add(1) == 1


@pytest.mark.parametrize(
    "way", [Direction.BOTH, *(pytest.param(w, marks=pytest.mark.slow) for w in (Direction.IN, Direction.OUT))]
)
def test_a_node_that_is_cut_off_is_lost_within_the_limit_and_comes_back(
    impatient: LoopbackCluster, way: Direction
) -> None:
    (node,) = impatient.nodes.values()
    actor = Counter()
    process = Process(actor.process())
    waiting = submit(actor.sleep)
    node.cut(way)
    assert cause_of(waiting).kind is DeathKind.NODE_LOST
    process.wait_for_end(PATIENCE_S)  # its own side cannot use it any more
    node.restore()
    assert Counter().add(1) == 1
    with pytest.raises(ActorLost):
        actor.add(1)


@pytest.mark.slow
def test_a_short_cut_loses_nothing(cluster: LoopbackCluster) -> None:
    (node,) = cluster.nodes.values()
    actor = Counter()
    actor.add(1)
    node.cut()
    waiting = [submit(actor.add, 1) for _ in range(10)]
    with pytest.raises(parl_remote.ResultTimeout):
        waiting[0].result(0.3)
    node.restore()
    assert [one.result(PATIENCE_S) for one in waiting] == list(range(2, 12))


@pytest.mark.slow
def test_connections_that_are_reset_are_an_error_never_a_wrong_answer(cluster: LoopbackCluster) -> None:
    (node,) = cluster.nodes.values()
    actor = Counter()
    waiting = submit(actor.sleep)
    node.reset()
    cause_of(waiting)
    assert Counter().add(1) == 1


# -- bad lines ------------------------------------------------------------------------------------------------------

BAD_LINE = """
import sys
import parl_remote as parl

@parl.remote_class
class Witness:
    def __init__(self):
        self.seen = []
    def take(self, number, data):
        self.seen.append(number)
        return number, data
    def all(self):
        return self.seen

parl.connect(sys.argv[1])
witness = Witness()
data = [bytes(number * 37 % 3000) for number in range(200)]
futures = [parl.submit(witness.take, number, data[number]) for number in range(200)]
assert [future.result(60) for future in futures] == list(enumerate(data))
assert [witness.take(number, b"")[0] for number in range(200, 205)] == list(range(200, 205))
assert witness.all() == list(range(205)), witness.all()
print("all of them, once, in order")
"""


@pytest.mark.slow
def test_real_loss_delay_and_reordering_lose_no_call_and_double_none(tmp_path: Path) -> None:
    try:
        network = PacketNetwork(["a", "b"], seed=3)
    except FaultUnavailable as error:
        pytest.skip(str(error))
    with network:
        a, b = network.host("a"), network.host("b")
        path = os.pathsep.join(entry for entry in sys.path if entry)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PARL_")}
        here = {**kept, "PYTHONPATH": path, "PARL_FORCE_TCP": "1", "PARL_RUN_DIR": str(tmp_path / "a")}

        def run(command: list[str], **variables: str) -> str:
            done = subprocess.run(
                command, env={**here, **variables}, capture_output=True, text=True, timeout=90, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        run(a.command(*XPARL, "start", "--port", "8037", "--cpu_num", "0", "--host", a.address))
        (key,) = (tmp_path / "a").glob("*/key")
        here["PARL_KEY_FILE"] = str(key)
        there = str(tmp_path / "b")
        join = ("connect", "--address", f"{a.address}:8037", "--cpu_num", "1")
        run(b.command(*XPARL, *join), PARL_RUN_DIR=there)
        network.set(Conditions(delay_s=0.1, jitter_s=0.02, loss=0.05, reorder=0.25, duplicate=0.02))
        try:
            assert (
                run(a.command(sys.executable, "-c", BAD_LINE, f"{a.address}:8037")) == "all of them, once, in order\n"
            )
        finally:
            network.set(Conditions())
            run([*XPARL, "stop", "--all"], PARL_RUN_DIR=there)
            run([*XPARL, "stop", "--all"])
        counts = network.counts
        assert min(counts.lost, counts.overtook, counts.duplicated) > 10, counts


# -- shortages ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_disk_fails_the_call_with_its_cause_and_the_worker_goes_on() -> None:
    try:
        disk = SmallDisk(2)
    except FaultUnavailable as error:
        pytest.skip(str(error))
    parl_remote.disconnect()
    run_dir = {"TMPDIR": str(disk.path)}
    with disk, LoopbackCluster(1, cpus=3, liveness_limit_s=10.0, variables=run_dir) as cluster:
        cluster.connect()
        actor = Counter()
        with pytest.raises(OSError, match="No space left on device"):
            actor.write(f"{disk.path}/much", 4 * 2**20)
        disk.fill()
        assert actor.add(1) == 1
        other = Counter()  # its socket needs no space on the disk, its process no file
        assert other.add(2) == 2
        (node,) = cluster.nodes.values()
        assert node.process.alive
        disk.clear()
        assert Counter().add(3) == 3
        del actor, other
        parl_remote.disconnect()


@pytest.mark.slow
def test_a_full_disk_for_the_logs_does_not_end_actors(cluster: LoopbackCluster, tmp_path: Path) -> None:
    try:
        disk = SmallDisk(1)
    except FaultUnavailable as error:
        pytest.skip(str(error))
    parl_remote.disconnect()
    with disk:
        parl_remote.connect(cpu_num=2, log_dir=disk.path)
        actor = Counter()
        actor.say("there is space")
        disk.fill()
        with contextlib.suppress(OSError):  # what does not fit is an error of print, or is left out
            actor.say("there is none " * 1000)
        assert actor.add(1) == 1
        assert Counter().add(1) == 1
        disk.clear()
        actor.say("there is space again")
        del actor
        parl_remote.disconnect()


# -- ended on purpose -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["xparl stop", "Ctrl-C"])
def test_a_cluster_that_is_ended_leaves_no_process_and_others_alone(cluster: LoopbackCluster, how: str) -> None:
    waiting = submit(Counter().sleep)
    with LoopbackCluster(0, master_cpus=1) as other:
        everybody = cluster.processes()
        assert len(everybody) >= 4
        if how == "xparl stop":
            subprocess.run(
                [*XPARL, "stop", "--all"], env={**os.environ, **cluster.environment}, check=True, timeout=240
            )
        else:
            cluster.master.process.kill(signal.SIGINT)
        for process in everybody:
            process.wait_for_end(60.0)
        cause_of(waiting)
        assert other.status().node_count == 1


@pytest.mark.slow
def test_the_next_node_clears_up_after_one_that_was_killed(tmp_path: Path) -> None:
    """A master without CPUs has no zygote that could do it; what others use, or have made, stays."""
    import socket

    sockets = tmp_path / "t"
    sockets.mkdir()
    live = sockets / "parl-live"
    live.mkdir(mode=0o700)
    (sockets / "parl-fresh").mkdir(mode=0o700)
    shared = sockets / "parl-shared"
    shared.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as dead:
        listening.bind(str(live / "node.sock"))
        listening.listen(1)
        dead.bind(str(shared / "node.sock"))
        dead.close()
        before = {path.name for path in sockets.iterdir()}
        with LoopbackCluster(0, variables={"TMPDIR": str(sockets)}) as cluster:
            (killed,) = {path.name for path in sockets.iterdir()} - before
            cluster.master.kill()
            assert (sockets / killed).exists()
            cluster.restart_master()
            assert not (sockets / killed).exists()
        assert {path.name for path in sockets.iterdir()} == before
