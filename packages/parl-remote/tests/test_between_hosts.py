"""Clusters over several hosts: network namespaces with a cable between them, which can be cut, delayed and made lossy.

A namespace has its own network but the same kernel and files, so `PARL_FORCE_TCP` keeps peers from noticing that they
could meet at a unix socket.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from faults.ports import unused_port

pytestmark = pytest.mark.slow

XPARL = [sys.executable, "-m", "parl_remote.cli"]
MASTER, WORKER = "10.77.0.1", "10.77.0.2"
PORT = 8037  # in a network of our own every port is free

PROGRAM_HEAD = """
import os, sys, time
import numpy as np
import parl_remote as parl

@parl.remote_class
class Counter:
    def __init__(self):
        self.value = 0
    def add(self, amount):
        self.value += amount
        return self.value
    def echo(self, array):
        return array
    def sleep(self, seconds):
        time.sleep(seconds)
    def fail(self):
        raise KeyError("on purpose")
    def kill_itself(self):
        os.kill(os.getpid(), 9)
    def where(self):
        return os.readlink("/proc/self/ns/net")
@parl.remote_class(wait=False)
class Pipelined:
    def __init__(self):
        self.value = 0
    def add(self, amount, count_in=None):
        self.value += amount
        if count_in:
            with open(count_in, "a") as calls:
                calls.write("1")
        return self.value
"""


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)


@dataclass
class Host:
    """One end of the cable; without a name, this host as it is."""

    name: str
    home: Path
    extra: dict[str, str] = field(default_factory=dict)
    programs: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PARL_", "XDG_"))}
        environment = {
            **kept,
            "PARL_RUN_DIR": str(self.home / ".parl"),
            "PARL_FORCE_TCP": "1",
            **self.extra,
            **variables,
        }
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *command] if self.name else command,
            env={**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.programs.append(process)
        return process

    def output(self, *command: str, **variables: str) -> str:
        process = self.start(*command, **variables)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, out + err
        return out

    def xparl(self, *arguments: str, **variables: str) -> str:
        return self.output(*XPARL, *arguments, **variables)

    def program(self, body: str, **variables: str) -> subprocess.Popen[str]:
        return self.start(sys.executable, "-u", "-c", PROGRAM_HEAD + textwrap.dedent(body), **variables)


@dataclass
class Network:
    """Two hosts and their cable."""

    master: Host
    worker: Host

    def cable(self, state: str) -> None:
        run("ip", "-n", self.worker.name, "link", "set", "cable", state)

    def disturb(self, *how: str) -> None:
        """Have the cable delay, lose or reorder packets, in both directions."""
        for host in (self.master, self.worker):
            run("tc", "-n", host.name, "qdisc", "replace", "dev", "cable", "root", "netem", *how)

    def assemble(self) -> None:
        """A master without CPUs on one host, a worker with two on the other."""
        self.master.xparl("start", "--port", str(PORT), "--cpu_num", "0", "--host", MASTER)
        (key,) = self.master.home.glob(".parl/*/key")
        self.worker.xparl("connect", "--address", f"{MASTER}:{PORT}", "--cpu_num", "2", PARL_KEY_FILE=str(key))


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    names = [f"parl-{os.getpid()}-{end}" for end in "ab"]
    hosts = [Host(name, tmp_path / end) for name, end in zip(names, "ab", strict=True)]
    try:
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, address in zip(names, (MASTER, WORKER), strict=True):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "cable")
            run("ip", "-n", name, "link", "set", "cable", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        pytest.skip(f"network namespaces are not allowed here: {getattr(error, 'stderr', '') or error}")
    yield Network(*hosts)
    for host in hosts:
        for program in host.programs:
            program.kill()
            program.communicate()
        host.xparl("stop", "--all")
    for name in names:
        run("ip", "netns", "delete", name)


def line_of(program: subprocess.Popen[str], seconds: float = 60.0) -> str:
    assert program.stdout is not None
    assert select.select([program.stdout], [], [], seconds)[0], "the program said nothing"
    line = program.stdout.readline()
    assert line, program.communicate()[1]
    return line.strip()


def test_a_program_calls_actors_on_another_host(network: Network) -> None:
    network.assemble()
    program = network.master.program(f"""
        parl.connect("{MASTER}:{PORT}")
        a, b = Counter(), Counter()
        print(a.add(2), a.add(3), b.add(7))
        print(a.where() != os.readlink("/proc/self/ns/net"))
        array = np.arange(3_000_000, dtype=np.float64)
        back = a.echo(array)
        back[0] = -1.0  # it is ours, and writable
        print(np.array_equal(back[1:], array[1:]))
        try:
            a.fail()
        except KeyError as error:
            print("KeyError", error)
        print(a.add(1))
    """)
    assert [line_of(program) for _ in range(5)] == ["2 5 7", "True", "True", "KeyError 'on purpose'", "6"]


def test_the_worker_host_may_run_programs_as_well(network: Network) -> None:
    network.assemble()
    (key,) = network.master.home.glob(".parl/*/key")
    body = f"parl.connect('{MASTER}:{PORT}'); print(Counter().add(1))"
    assert line_of(network.worker.program(body, PARL_KEY_FILE=str(key))) == "1"


def test_an_actor_that_is_killed_on_another_host_says_why(network: Network) -> None:
    network.assemble()
    program = network.master.program(f"""
        parl.connect("{MASTER}:{PORT}")
        a = Counter()
        try:
            a.kill_itself()
        except parl.ActorLost as error:
            print(error.cause.kind.name, error.cause.signal)
    """)
    assert line_of(program) == "SIGNAL 9"


def test_a_killed_driver_takes_its_actors_on_other_hosts_along(network: Network) -> None:
    network.assemble()
    program = network.master.program(f"parl.connect('{MASTER}:{PORT}'); a = Counter(); print(a.add(1)); a.sleep(600)")
    assert line_of(program) == "1"
    program.kill()
    again = network.master.program(
        f"parl.connect('{MASTER}:{PORT}', lease_timeout_s=30); a, b = Counter(), Counter(); print(a.add(1), b.add(1))"
    )
    assert line_of(again) == "1 1"


def test_a_cut_cable_is_reported_within_the_limit_and_the_worker_comes_back(network: Network) -> None:
    for host in (network.master, network.worker):
        host.extra["PARL_LIVENESS_LIMIT"] = "1.5"
    network.assemble()
    program = network.master.program(f"""
        parl.connect("{MASTER}:{PORT}")
        a = Counter()
        print(a.add(1))
        try:
            a.sleep(600)
        except parl.ActorLost as error:
            print(error.cause.kind.name)
        print(Counter().add(5))
    """)
    assert line_of(program) == "1"
    network.cable("down")
    assert line_of(program) == "NODE_LOST"
    network.cable("up")
    assert line_of(program) == "5"  # it waited in the queue until the worker was back


HANDLES = """
@parl.remote_class
class Holder:
    def __init__(self, held=None):
        self.held = held
    def set(self, held):
        self.held = held
    def get(self):
        return self.held
    def add_through(self, amount):
        return self.held.add(amount)
    def make(self, **options):
        made = parl.with_options(Counter, **options)()
        made.add(1)
        return made
    def where(self):
        return os.readlink("/proc/self/ns/net")
    def find(self, name):
        return parl.get_actor(name).add(1)
parl.connect(ADDRESS)
here = os.readlink("/proc/self/ns/net")
near, far = None, None
kept = []
while near is None or far is None:  # actors spread over both hosts
    one = Holder()
    kept.append(one)
    if one.where() == here:
        near = near or one
    else:
        far = far or one
"""


def test_handles_travel_between_hosts_and_actors_make_actors_on_either(network: Network) -> None:
    network.master.xparl("start", "--port", str(PORT), "--cpu_num", "6", "--host", MASTER)
    (key,) = network.master.home.glob(".parl/*/key")
    network.worker.xparl("connect", "--address", f"{MASTER}:{PORT}", "--cpu_num", "6", PARL_KEY_FILE=str(key))
    body = """
        near.set(far); far.set(near)
        counter = Counter()
        for holder in (near, far):
            holder.set(counter)
        print(near.add_through(1), far.add_through(1), counter.add(1))
        made = far.make()
        print(made.add(1))
        near.set(made)
        del made
        print(near.add_through(1))
        places = {far.make(n_cpu=0.1).where() for _ in range(6)}
        print(len(places))
        named = parl.with_options(Counter, name="shared")()
        print(near.find("shared"), far.find("shared"))
        try:
            far.set(parl.submit(near.make))
            far.get().kill_itself()
        except parl.ActorLost as error:
            print(error.cause.kind.name, error.cause.signal)
        try:
            far.add_through(1)
        except parl.ActorLost as error:
            print(error.cause.kind.name, error.cause.signal)
    """
    program = network.master.program(HANDLES.replace("ADDRESS", repr(f"{MASTER}:{PORT}")) + textwrap.dedent(body))
    said = [line_of(program) for _ in range(7)]
    assert said == ["1 2 3", "2", "3", "2", "1 2", "SIGNAL 9", "SIGNAL 9"]


def test_a_bad_line_loses_no_call_and_doubles_none(network: Network) -> None:
    network.assemble()
    try:
        network.disturb("delay", "20ms", "5ms", "loss", "5%", "reorder", "25%")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this kernel cannot disturb a network: {error.stderr}")
    program = network.master.program(f"""
        parl.connect("{MASTER}:{PORT}")
        a = Pipelined()
        futures = [a.add(1) for _ in range(500)]
        print([future.get() for future in futures] == list(range(1, 501)))
    """)
    assert line_of(program, 60.0) == "True"


def test_many_calls_in_flight_need_no_answer_to_each_other(tmp_path: Path) -> None:
    """A worker beside its master is reached at whatever host the client dialled, here at the line's."""
    here = Host("", tmp_path, {"PARL_LIVENESS_LIMIT": "240"})
    port = unused_port()
    counter = tmp_path / "calls"
    counter.touch()
    here.xparl("start", "--port", str(port), "--cpu_num", "1")
    try:
        program = here.program(f"""
            from parl_remote.testing import Direction, Line

            with Line(("127.0.0.1", {port}), listen=("127.0.0.2", {port})) as line:
                parl.connect("127.0.0.2:{port}")
                a = Pipelined()
                a.add(0).get()
                line.cut(Direction.OUT)
                futures = [a.add(1, {str(counter)!r}) for _ in range(1000)]
                while os.path.getsize({str(counter)!r}) < 1000:  # all have arrived before an answer has
                    time.sleep(0.01)
                print(sum(future.done() for future in futures))
                line.restore()
                print(futures[-1].get())
                parl.disconnect()
        """)
        answered, value = line_of(program), line_of(program)
        program.communicate(timeout=240)
    finally:
        here.xparl("stop", "--all")
    assert (answered, value) == ("0", "1000")
