"""The PARL 1.x manual's programs with remote classes, on a private cluster and on one that `xparl start` made.

The programs are the manual's own, with the indentation that the manual's page breaks have lost; `<address>` is where
they write the address of their cluster, and is nothing for a private one. Lines below `# checked:` are the test's.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.ports import unused_port

LIMIT_S = 60  # for a program or a command, on a machine that does much else
XPARL = Path(sys.executable).with_name("xparl")

MANUAL_EXAMPLE = """
import parl

@parl.remote_class
class Actor(object):

    def hello_world(self):
        print("Hello world.")

    def add(self, a, b):
        return a + b

# Connect to the master node.
parl.connect(<address>)

actor = Actor()
actor.hello_world() # no log in the current terminal, as the computation is placed in the cluster.
actor.add(1, 2) # return 3

# checked:
print(actor.add(1, 2))
"""

README_EXAMPLE = """
import parl

#============Agent.py=================
@parl.remote_class
class Agent(object):

    def say_hello(self):
        print("Hello World!")

    def sum(self, a, b):
        return a+b

parl.connect(<address>)
agent = Agent()
agent.say_hello()
ans = agent.sum(1,5) # it runs remotely, without consuming any local computation resources

# checked:
print(ans)
"""

DOCS_EXAMPLE = """
import parl
a, b = 20, 22

# Absolute multi-thread programming
# witout the GIL limitation
@parl.remote_class
class HelloWorld(object):
    def sum(self, a, b):
        return a + b

parl.connect(<address>)
obj = HelloWorld()
ans = obj.sum(a, b)

# checked:
print(ans)
"""

# The manual counts to 100000000; the shape of the program is the same with less.
COUNTING = """
import threading
import parl

@parl.remote_class
class A(object):
    def run(self):
        ans = 0
        for i in range(3000000):
            ans += i
threads = []
parl.connect(<address>)

import time  # checked: without what importing and connecting cost
connected_s = time.process_time()

for _ in range(5):
    a = A()
    th = threading.Thread(target=a.run)
    th.start()
    threads.append(th)
for th in threads:
    th.join()

# checked:
remote_s = time.process_time() - connected_s

class B(object):
    def run(self):
        ans = 0
        for i in range(3000000):
            ans += i
for _ in range(5):
    B().run()
local_s = time.process_time() - connected_s - remote_s
print("elsewhere" if remote_s < local_s else f"{remote_s} s of this process's CPU, {local_s} s for counting here")
"""

MORE_ACTORS_THAN_THE_MASTER_HAS_CPUS = """
import os
import parl

@parl.remote_class
class Actor(object):
    def pid(self):
        return os.getpid()

parl.connect(<address>)
actors = [Actor() for _ in range(3)]
print(len({actor.pid() for actor in actors} - {os.getpid()}))
"""


class DocumentedCluster:
    """Clusters of one test: their run files are in a directory of their own, which also tells their processes."""

    def __init__(self, run_dir: Path) -> None:
        self._environment = {**os.environ, "PARL_MONITOR": "0", "PARL_RUN_DIR": str(run_dir), "PYTHONUNBUFFERED": "1"}
        for name in ("PARL_KEY", "PARL_KEY_FILE", "XPARL"):
            self._environment.pop(name, None)
        self._mark = f"PARL_RUN_DIR={run_dir}".encode()

    def xparl(self, *arguments: str) -> str:
        return self._run([str(XPARL), *arguments])

    def python(self, folder: Path, program: str, address: str) -> str:
        """Return a program's output on both streams."""
        path = folder / "program.py"
        path.write_text(program.replace("<address>", repr(address) if address else ""))
        return self._run([sys.executable, str(path)])

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if self._mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def all_gone_within(self, limit_s: float) -> bool:
        for pid in self.processes():
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            gone = bool(select.select([descriptor], [], [], limit_s)[0])
            os.close(descriptor)
            if not gone:
                return False
        return True

    def clear(self) -> None:
        """End the processes that a failed test has left."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocumentedCluster]:
    made = DocumentedCluster(tmp_path_factory.mktemp("run"))
    yield made
    made.clear()


@pytest.fixture(scope="module", params=["private", "xparl start"])
def address(request: pytest.FixtureRequest, cluster: DocumentedCluster) -> Iterator[str]:
    """Return the arguments of `parl.connect`."""
    if request.param == "private":
        yield ""
        return
    port = unused_port()
    try:
        cluster.xparl("start", "--port", str(port))
        yield f"localhost:{port}"
        cluster.xparl("stop")
        assert cluster.all_gone_within(60), "xparl stop left processes behind"
    finally:
        cluster.clear()


@pytest.mark.slow
def test_the_manuals_example_adds_and_prints_nothing_here(
    cluster: DocumentedCluster, address: str, tmp_path: Path
) -> None:
    assert cluster.python(tmp_path, MANUAL_EXAMPLE, address) == "3\n"


def test_the_readmes_agent_says_hello_elsewhere_and_sums(
    cluster: DocumentedCluster, address: str, tmp_path: Path
) -> None:
    assert cluster.python(tmp_path, README_EXAMPLE, address) == "6\n"


def test_the_front_pages_hello_world_sums(cluster: DocumentedCluster, address: str, tmp_path: Path) -> None:
    assert cluster.python(tmp_path, DOCS_EXAMPLE, address) == "42\n"


@pytest.mark.slow
def test_five_threads_count_without_this_process(cluster: DocumentedCluster, address: str, tmp_path: Path) -> None:
    assert cluster.python(tmp_path, COUNTING, address) == "elsewhere\n"


def test_a_program_on_a_private_cluster_leaves_no_process(tmp_path: Path) -> None:
    cluster = DocumentedCluster(tmp_path / "run")
    try:
        cluster.python(tmp_path, MANUAL_EXAMPLE, "")
        assert cluster.all_gone_within(60)
    finally:
        cluster.clear()


@pytest.mark.slow
def test_connect_adds_cpus_and_stop_ends_the_worker_with_the_master(tmp_path: Path) -> None:
    cluster = DocumentedCluster(tmp_path / "run")
    port = unused_port()
    try:
        cluster.xparl("start", "--port", str(port), "--cpu_num", "1")
        cluster.xparl("connect", "--address", f"localhost:{port}", "--cpu_num", "2")
        assert cluster.python(tmp_path, MORE_ACTORS_THAN_THE_MASTER_HAS_CPUS, f"localhost:{port}") == "3\n"
        cluster.xparl("stop")
        assert cluster.all_gone_within(60)
    finally:
        cluster.clear()
