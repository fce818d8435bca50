"""The command `xparl` and real clusters, as a person uses them: real processes, real ports, real faults."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from faults.polling import eventually
from faults.ports import unused_port
from parl_remote._config import environment
from parl_remote._messages import (
    AttachActor,
    Heartbeat,
    Hello,
    LeaseEnded,
    LeaseRelease,
    LeaseRequest,
    NodeJoin,
    Role,
    StartActor,
    Status,
    StatusRequest,
)
from parl_remote._messages.wire import encode
from parl_remote._program.rendezvous import ClusterAddress, find_key
from parl_remote._resources import Resources
from parl_remote._run_files import RunFiles
from parl_remote._security import ClusterKey
from parl_remote._transport import Channel
from parl_remote._transport.addresses import Address, is_this_host
from parl_remote._transport.unix import UnixChannel
from parl_remote._transport.zmq import ZmqChannel
from parl_remote.cli._session import ask_status
from parl_remote.errors import ChannelClosed, DeathCause, DeathKind
from parl_remote.testing import Process

XPARL = [sys.executable, "-m", "parl_remote.cli"]

PROGRAM_HEAD = """
import os, sys, time
import parl_remote as parl

@parl.remote_class
class Counter:
    def __init__(self):
        self.value = 0
    def add(self, amount):
        self.value += amount
        return self.value
    def pid(self):
        return os.getpid()
    def sleep(self, seconds):
        time.sleep(seconds)
"""


@dataclass
class Desk:
    """A person's terminal: a home for run files, and commands."""

    home: Path
    extra: dict[str, str] = field(default_factory=dict)
    programs: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        others = ("PARL_", "XDG_")
        kept = {k: v for k, v in os.environ.items() if k == "PARL_PORTABLE" or not k.startswith(others)}
        paths = os.pathsep.join(p for p in sys.path if p)
        return {
            **kept,
            "PARL_RUN_DIR": str(self.home / ".parl"),
            "PYTHONPATH": paths,
            "PARL_MONITOR": "0",
            **self.extra,
        }

    @property
    def run_files(self) -> RunFiles:
        return RunFiles(self.home / ".parl")

    def xparl(self, *arguments: object, fails: bool = False, **variables: str) -> str:
        done = subprocess.run(
            [*XPARL, *map(str, arguments)],
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def program(self, body: str, **variables: str) -> subprocess.Popen[str]:
        """A user's program, which runs."""
        running = subprocess.Popen(
            [sys.executable, "-u", "-c", PROGRAM_HEAD + textwrap.dedent(body)],
            env={**self.environment, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.programs.append(running)
        return running

    def output(self, body: str, **variables: str) -> str:
        """Return the output of a user's program until it ends."""
        out, err = self.program(body, **variables).communicate(timeout=240)
        return out + err

    def status(self, port: int) -> Status:
        """The same as `xparl status`, without starting a process for it."""
        found = environment(self.environment)
        return ask_status(ClusterAddress(f"localhost:{port}", found).connect_master, found.limits)

    def node_process(self, port: int) -> psutil.Process:
        (record,) = [record for _, record in self.run_files.clusters() if record.port == port]
        return psutil.Process(record.process.pid)

    def worker_processes(self) -> list[psutil.Process]:
        return [psutil.Process(record.process.pid) for _, record in self.run_files.workers() if record.process.alive()]


def line_of(program: subprocess.Popen[str], seconds: float = 60.0) -> str:
    """The next line that a program prints."""
    assert program.stdout is not None
    assert select.select([program.stdout], [], [], seconds)[0], "the program said nothing"
    line = program.stdout.readline()
    assert line, program.communicate()[1]
    return line.strip()


def unix_sockets(node: psutil.Process) -> list[Path]:
    """The unix sockets on which a node listens."""
    return sorted(map(Path, Process(node.pid).unix_sockets))


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    one = Desk(tmp_path)
    yield one
    for program in one.programs:
        program.kill()
        program.communicate()
    one.xparl("stop", "--all")


def test_start_says_how_to_use_join_and_stop_the_cluster(desk: Desk) -> None:
    port = unused_port()
    said = desk.xparl("start", "--port", port, "--cpu_num", 3)
    assert f"3 CPUs runs at 127.0.0.1:{port}" in said
    assert f'parl.connect("localhost:{port}")' in said
    assert "start it with --host 0.0.0.0" in said
    assert f"xparl stop --port {port}" in said
    shown = desk.xparl("status")
    assert "0 used cpus, 3 vacant cpus" in shown
    (cluster,) = json.loads(desk.xparl("status", "--port", port, "--json"))["clusters"]
    assert (cluster["address"], cluster["status"]["total"]["cpu"]) == (f"localhost:{port}", 3)


@pytest.mark.skipif(not is_this_host("::1"), reason="no IPv6 here")
def test_a_cluster_on_an_ipv6_interface_is_used_as_start_says(desk: Desk) -> None:
    said = desk.xparl("start", "--port", unused_port(), "--cpu_num", 1, "--host", "[::1]")
    used = re.search(r'parl.connect\("(\S+)"\)', said)
    assert used is not None
    assert desk.output(f"parl.connect({used[1]!r}); print(Counter().add(5))") == "5\n"
    assert "1 vacant cpus" in desk.xparl("status")


@pytest.mark.slow
def test_start_for_other_hosts_says_how_they_join(desk: Desk) -> None:
    port = unused_port()
    said = desk.xparl("start", "--port", port, "--cpu-num", 1, "--host", "0.0.0.0")
    key = re.search(r"copy the key file (\S+) there", said)
    assert key is not None
    assert ClusterKey.from_file(Path(key[1]))
    assert re.search(rf"PARL_KEY_FILE=<the copy> xparl connect --address \S+:{port}", said)


@pytest.mark.slow
def test_a_program_of_the_same_user_needs_only_the_address(desk: Desk) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 2)
    assert desk.output(f"parl.connect('localhost:{port}'); print(Counter().add(5))") == "5\n"
    eventually(lambda: desk.status(port).leases == 0)


def test_stop_ends_every_process_of_the_cluster_and_leaves_only_logs(desk: Desk) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 2)
    program = desk.program(f"parl.connect('localhost:{port}'); a = Counter(); print(a.pid()); a.sleep(600)")
    actor = psutil.Process(int(line_of(program)))
    node = desk.node_process(port)
    family = [node, *node.children(recursive=True)]
    assert actor in family
    sockets = unix_sockets(node)
    assert "has ended" in desk.xparl("stop", "--port", port, PARL_SHUTDOWN_GRACE="60")
    assert all(gone(process) for process in family)
    assert sockets
    assert not [path for path in sockets if path.exists()]
    assert sorted(path.name for path in (desk.home / ".parl").glob("*/*")) == ["actors", "node.log"]
    assert "nothing was stopped" in desk.xparl("stop", "--port", port, fails=True)
    out, err = program.communicate(timeout=240)
    assert "ActorLost: Counter is lost: its cluster was stopped; its last call was sleep()" in err, out + err


def words_of_starts_at_the_same_time(desk: Desk, *arguments: str) -> list[str]:
    """Run a command three times at the same time, and return the first words that they print, in order."""
    with contextlib.ExitStack() as ends:
        starts = [
            ends.enter_context(
                subprocess.Popen([*XPARL, *arguments], env=desk.environment, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(3)
        ]
        said = sorted(start.communicate(timeout=240)[0].split()[0] for start in starts)
    assert [start.returncode for start in starts] == [0, 0, 0]
    return said


def test_starts_at_the_same_time_make_one_cluster_and_one_worker(desk: Desk) -> None:
    port = unused_port()
    start = ("start", "--port", str(port), "--cpu_num", "0", "--once")
    assert words_of_starts_at_the_same_time(desk, *start) == ["A", "It", "It"]
    assert desk.status(port).node_count == 0
    connect = ("connect", "--address", f"localhost:{port}", "--cpu_num", "1", "--once", "one")
    assert words_of_starts_at_the_same_time(desk, *connect) == ["It", "It", "These"]
    assert desk.status(port).node_count == 1


@pytest.mark.slow
def test_clusters_side_by_side_do_not_know_of_each_other(desk: Desk) -> None:
    one, two = unused_port(), unused_port()
    desk.xparl("start", "--port", one, "--cpu_num", 1)
    desk.xparl("start", "--port", two, "--cpu_num", 2)
    assert desk.output(f"parl.connect('localhost:{one}'); print(Counter().add(1))") == "1\n"
    desk.xparl("stop", "--port", one)
    assert desk.status(two).total.cpu == 2
    assert desk.output(f"parl.connect('localhost:{two}'); print(Counter().add(2))") == "2\n"


@pytest.mark.slow
def test_a_port_in_use_is_reported_with_its_user(desk: Desk) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 1)
    assert "your own cluster cluster-" in desk.xparl("start", "--port", port, fails=True)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        said = desk.xparl("start", "--port", taken, fails=True)
        assert f"port {taken} is in use by" in said
        assert f"process {os.getpid()}" in said


def test_a_worker_joins_brings_its_cpus_and_ends_with_the_cluster(desk: Desk) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 0)
    assert desk.status(port).node_count == 0
    said = desk.xparl("connect", "--address", f"localhost:{port}", "--cpu_num", 2)
    assert f"belong to the cluster at localhost:{port}" in said
    eventually(lambda: desk.status(port).total.cpu == 2)
    (worker,) = desk.worker_processes()
    assert desk.output(f"parl.connect('localhost:{port}'); print(Counter().add(1))") == "1\n"
    os.kill(desk.node_process(port).pid, signal.SIGTERM)
    eventually(lambda: gone(worker))


def test_a_worker_must_have_something_to_offer(desk: Desk) -> None:
    assert "must be above 0" in desk.xparl("connect", "--address", "localhost:1", "--cpu_num", 0, fails=True)


@pytest.mark.slow
def test_a_worker_whose_port_is_taken_reports_the_process_that_has_it(desk: Desk) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 1)
    said = desk.xparl("connect", "--address", f"localhost:{port}", "--cpu_num", 1, "--port", port, fails=True)
    assert f"port {port} is in use by your own cluster" in said


@pytest.mark.slow
def test_without_a_key_a_worker_and_a_program_get_an_error_with_what_to_do(desk: Desk, tmp_path: Path) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 1)
    (directory,) = [where for where, _ in desk.run_files.clusters()]
    unauthenticated = Desk(tmp_path / "elsewhere")
    for said in (
        unauthenticated.xparl("connect", "--address", f"localhost:{port}", fails=True),
        unauthenticated.output(f"parl.connect('localhost:{port}')"),
    ):
        assert f"there is no key for localhost:{port}" in said
        assert "PARL_KEY_FILE" in said
    key_file = str(directory / "key")
    body = f"parl.connect('localhost:{port}'); print(Counter().add(1))"
    assert unauthenticated.output(body, PARL_KEY_FILE=key_file) == "1\n"
    assert unauthenticated.output(body, PARL_KEY=Path(key_file).read_text()) == "1\n"
    assert unauthenticated.output(body.replace("')", f"', key_file={key_file!r})", 1)) == "1\n"
    wrong = unauthenticated.output(body, PARL_KEY=ClusterKey.generate().to_text())
    assert "AuthenticationFailed" in wrong
    assert "refused our cluster key" in wrong
    os.chmod(key_file, 0o644)
    assert "chmod 600" in unauthenticated.output(body, PARL_KEY_FILE=key_file)


@pytest.mark.slow
def test_a_wrong_port_is_reported_at_once_with_the_clusters_that_there_are(desk: Desk) -> None:
    port, wrong = unused_port(), unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 1)
    said = desk.output(f"parl.connect('localhost:{wrong}')")
    assert f"nothing answers at localhost:{wrong}" in said
    assert f"[{port}]" in said


@pytest.mark.slow
def test_full_slots_are_refused_after_the_time_that_the_caller_allows(desk: Desk) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 1)
    said = desk.output(f"parl.connect('localhost:{port}', lease_timeout_s=0.2); a = Counter(); b = Counter()")
    assert "NoResources: Counter asked for 1 CPU; the cluster has 1 CPU on 1 node, nothing free" in said


@pytest.mark.slow
def test_foreground_ends_with_ctrl_c_and_takes_everything_along(desk: Desk) -> None:
    port = unused_port()
    node = subprocess.Popen(
        [*XPARL, "start", "--port", str(port), "--cpu_num", "1", "--foreground"],
        env=desk.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    desk.programs.append(node)
    assert f"runs at 127.0.0.1:{port}" in line_of(node)
    program = desk.program(f"parl.connect('localhost:{port}'); a = Counter(); print(a.pid()); a.sleep(600)")
    actor = psutil.Process(int(line_of(program)))
    node.send_signal(signal.SIGINT)
    assert node.wait(30) == 0
    assert gone(actor)


@pytest.mark.slow
def test_status_names_a_cluster_that_crashed(desk: Desk) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 1)
    node = desk.node_process(port)
    node.kill()
    eventually(lambda: gone(node))
    subprocess_said = subprocess.run(
        [*XPARL, "status"], env=desk.environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert subprocess_said.returncode == 1
    assert f"localhost:{port}: nothing listens" in subprocess_said.stdout


# -- faults ---------------------------------------------------------------------------------------------------------


def test_a_killed_worker_is_an_error_at_the_caller_and_its_actors_are_gone(desk: Desk) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 0)
    desk.xparl("connect", "--address", f"localhost:{port}", "--cpu_num", 1)
    program = desk.program(f"""
        parl.connect('localhost:{port}')
        a = Counter()
        print(a.pid())
        try:
            a.sleep(600)
        except parl.ActorLost as error:
            print(error.cause.kind.name)
    """)
    actor = psutil.Process(int(line_of(program)))
    (worker,) = desk.worker_processes()
    worker.kill()
    assert line_of(program) == "NODE_LOST"
    eventually(lambda: gone(actor))
    eventually(lambda: desk.status(port).node_count == 0)


def test_a_worker_that_is_stopped_says_so_and_ends_with_the_cluster_like_the_master(desk: Desk) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 0)
    desk.xparl("connect", "--address", f"localhost:{port}", "--cpu_num", 1)
    program = desk.program(f"""
        parl.connect('localhost:{port}')
        for _ in range(2):
            a = Counter()
            print(a.pid())
            try:
                a.sleep(600)
            except parl.ActorLost as error:
                print(error.cause.kind.name, '|', error.cause.detail)
    """)
    line_of(program)
    (worker,) = desk.worker_processes()
    worker.terminate()
    assert re.fullmatch(r"NODE_LOST \|.* the worker was stopped", line_of(program))
    eventually(lambda: gone(worker))
    desk.xparl("connect", "--address", f"localhost:{port}", "--cpu_num", 1)
    line_of(program)
    desk.xparl("stop", "--port", port, PARL_SHUTDOWN_GRACE="60")
    assert line_of(program) == "STOPPED |"


@pytest.mark.slow
def test_a_stopped_worker_is_lost_after_the_liveness_limit_and_never_a_hang(desk: Desk) -> None:
    desk.extra["PARL_LIVENESS_LIMIT"] = "1.0"
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 0)
    desk.xparl("connect", "--address", f"localhost:{port}", "--cpu_num", 1)
    program = desk.program(f"""
        parl.connect('localhost:{port}')
        a = Counter()
        print(a.pid())
        try:
            a.sleep(600)
        except parl.ActorLost as error:
            print(error.cause.kind.name, '|', error.cause.detail)
    """)
    line_of(program)
    (worker,) = desk.worker_processes()
    worker.suspend()
    try:
        assert line_of(program).startswith("NODE_LOST")
    finally:
        worker.resume()
    eventually(lambda: desk.status(port).total.cpu == 1)  # it comes back, with nothing running
    assert desk.status(port).leases == 0


@pytest.mark.slow
def test_actors_outlive_a_killed_master_and_a_new_one_takes_them_up(desk: Desk) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 0)
    desk.xparl("connect", "--address", f"localhost:{port}", "--cpu_num", 2)
    program = desk.program(f"""
        parl.connect('localhost:{port}')
        a = Counter()
        print(a.add(1))
        for line in sys.stdin:
            print(a.add(1))
    """)
    assert line_of(program) == "1"
    master = desk.node_process(port)
    cluster_id = desk.status(port).cluster_id
    master.kill()
    eventually(lambda: gone(master))
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()
    assert line_of(program) == "2"
    desk.xparl("start", "--port", port, "--cpu_num", 0)
    eventually(lambda: desk.status(port).node_count == 1)
    status = desk.status(port)
    assert (status.cluster_id, status.leases, status.free.cpu) == (cluster_id, 1, 1)
    program.stdin.write("\n")
    program.stdin.flush()
    assert line_of(program) == "3"


@pytest.mark.slow
def test_a_killed_program_frees_its_slots_at_once(desk: Desk) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 1)
    program = desk.program(f"parl.connect('localhost:{port}'); a = Counter(); print(a.pid()); a.sleep(600)")
    actor = psutil.Process(int(line_of(program)))
    program.kill()
    eventually(lambda: gone(actor))
    assert desk.output(f"parl.connect('localhost:{port}', lease_timeout_s=60); print(Counter().add(1))")[:2] == "1\n"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_sees_nothing_of_a_cluster_and_cannot_get_in(desk: Desk, tmp_path: Path) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 1)
    node = desk.node_process(port)
    sockets = unix_sockets(node)
    (directory,) = [where for where, _ in desk.run_files.clusters()]
    assert sockets
    for private in (desk.home / ".parl", directory, sockets[0].parent):
        assert (private.stat().st_mode & 0o777, private.stat().st_uid) == (0o700, 0)
    for secret in (directory / "key", directory / "cluster.json", directory / "node.log"):
        assert secret.stat().st_mode & 0o077 == 0
    program = f"""
        import socket
        try:
            parl.connect("localhost:1")  # loads all modules while they can be read
        except parl.ClusterUnreachable:
            pass
        os.setgid(12345); os.setuid(12345)
        for path in {[str(directory / "key"), *map(str, sockets[:1])]!r}:
            try:
                open(path) if path.endswith("key") else socket.socket(socket.AF_UNIX).connect(path)
                print("got in")
            except PermissionError:
                print("refused")
        try:
            parl.connect("localhost:{port}")
        except parl.AuthenticationFailed as error:
            print("no key" if "there is no key" in str(error) else error)
    """
    others_home = tmp_path / "others"
    others_home.mkdir()
    os.chown(others_home, 12345, 12345)
    tmp_path.chmod(0o755)
    assert desk.output(program, PARL_RUN_DIR=str(others_home)).splitlines() == ["refused", "refused", "no key"]


# -- unauthenticated and confused peers --------------------------------------------------------------------------------


def control_frames(node_id: str) -> list[bytes]:
    """One of each message that a client, or a client that poses as a worker, could send."""
    one = Resources(cpu=1)
    return [
        encode(message)
        for message in (
            a_hello(Role.CLIENT, Role.MASTER),
            a_hello(Role.WORKER, Role.MASTER),
            LeaseRequest(1, one, 0.0, "A"),
            LeaseRelease("lease-1"),
            StatusRequest(1),
            NodeJoin(node_id, "host", ("h:1",), "/run", Resources()),
            Heartbeat(1),
            LeaseEnded("lease-1", DeathCause(DeathKind.EXIT, exit_code=0)),
            StartActor("lease-1", "A"),
            AttachActor("lease-1"),
        )
    ]


def a_hello(role: Role, to: Role) -> Hello:
    return Hello(role, to, f"fuzz-{os.urandom(4).hex()}", 1, 1, "host", 1, {}, "fuzz")


def mutated(dice: random.Random, frames: list[bytes]) -> list[bytes]:
    """Noise, or real messages with some bytes changed, in one frame or a few."""
    chosen = []
    for _ in range(dice.randrange(1, 4)):
        if dice.random() < 0.3:
            chosen.append(dice.randbytes(dice.randrange(200)))
            continue
        data = bytearray(dice.choice(frames))
        for _ in range(dice.randrange(4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        chosen.append(bytes(data))
    return chosen


def speak_nonsense(dice: random.Random, dial: Callable[[], Channel], count: int) -> None:
    """Send `count` messages over as many connections as it takes, half of them after a proper Hello."""
    frames = control_frames("fuzz")
    sent = 0
    while sent < count:
        channel = dial()
        with contextlib.suppress(ChannelClosed):
            if dice.random() < 0.5:
                channel.send([encode(a_hello(dice.choice(list(Role)), dice.choice([Role.MASTER, Role.WORKER])))], 5.0)
            for _ in range(50):
                channel.send(mutated(dice, frames), 5.0)
                sent += 1
        channel.close()


def greet_without_the_key(dice: random.Random, port: int, times: int) -> None:
    frames = [b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01CURVE" + bytes(48) + b"\x04\xc8\x05HELLO" + bytes(194)]
    for _ in range(times):
        with socket.create_connection(("127.0.0.1", port)) as unauthenticated, contextlib.suppress(OSError):
            unauthenticated.sendall(b"".join(b"".join(mutated(dice, frames)) for _ in range(20)))


def node_socket(node: psutil.Process) -> str:
    (path,) = [one for one in unix_sockets(node) if one.name == "node.sock"]
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tcp without the key", "tcp with the key", "unix socket"])
def test_ten_thousand_strange_messages_do_not_end_a_node(desk: Desk, way: str) -> None:
    port = unused_port()
    desk.xparl("start", "--port", port, "--cpu_num", 1)
    node = desk.node_process(port)
    dice = random.Random(way)
    body = f"parl.connect('localhost:{port}'); print(Counter().add(1))"
    assert desk.output(body) == "1\n"
    speak = {
        "tcp without the key": lambda: greet_without_the_key(dice, port, 250),
        "tcp with the key": lambda: speak_nonsense(
            dice,
            lambda: ZmqChannel.connect(
                f"127.0.0.1:{port}", find_key(Address("localhost", port), environment(desk.environment))
            ),
            5_000,
        ),
        "unix socket": lambda: speak_nonsense(dice, lambda: UnixChannel.connect(node_socket(node)), 5_000),
    }[way]
    speak()
    before = node.memory_info().rss  # with the queues as long as they get, which depends on how busy the machine is
    speak()
    assert desk.output(body) == "1\n"
    assert not gone(node)
    assert node.memory_info().rss - before < 10 * 2**20
    status = desk.status(port)
    assert (status.leases, status.node_count) == (0, 1)
