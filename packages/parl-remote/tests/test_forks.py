"""Programs and methods that fork: the child never acts as its parent, and holds nothing of it open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import parl_remote
from parl_remote.testing import LoopbackCluster

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

Run = Callable[..., subprocess.CompletedProcess[str]]
WAIT_S = 60.0


class _Forks:
    """Forks in its methods; each child leaves in another way."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.count = 0

    def add(self) -> tuple[int, int]:
        self.count += 1
        return self.count, os.getpid()

    def fork(self, leave: str) -> int:
        child = os.fork()
        if child:
            return child
        return self._leave(leave)

    def fork_and_write(self) -> int:
        child = os.fork()
        if not child:
            (self.folder / "child").write_text(str(os.getpid()))
        return child

    def status(self, child: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def sockets(self, child: int) -> int:
        """Return the number of sockets that a child holds open, once it has reached its method's own code again."""
        deadline = time.monotonic() + WAIT_S
        while not (self.folder / "waits").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        found = [os.readlink(entry) for entry in Path(f"/proc/{child}/fd").iterdir()]
        os.kill(child, signal.SIGKILL)
        return sum(name.startswith("socket:") for name in found)

    def _leave(self, how: str) -> int:
        if how == "raise":
            raise ValueError("in the child")
        if how == "exit":
            raise SystemExit(3)
        if how == "wait":
            (self.folder / "waits").touch()
            time.sleep(600)
        return 0


@parl_remote.remote_class
class Forks(_Forks):
    pass


@parl_remote.remote_class(max_concurrency=4)
class ForksInThreads(_Forks):
    pass


@parl_remote.remote_class
class ForksOnALoop(_Forks):
    async def pause(self) -> None:
        pass


@parl_remote.remote_class
class ForksInATask:
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    async def fork(self) -> int:
        import asyncio

        child = os.fork()
        if not child:
            await asyncio.sleep(0)
            (self.folder / "too far").touch()
        return child

    async def status(self, child: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("kind", [Forks, ForksInThreads, ForksOnALoop])
@pytest.mark.parametrize(("leave", "status"), [("return", 0), ("raise", 1), ("exit", 3)])
def test_the_child_of_a_method_ends_when_it_leaves_the_method(
    shared_cluster: None, tmp_path: Path, kind: Any, leave: str, status: int
) -> None:
    actor = kind(str(tmp_path))
    assert actor.status(actor.fork(leave)) == status
    answers = [actor.add() for _ in range(200)]
    assert [count for count, _ in answers] == list(range(1, 201))
    assert len({pid for _, pid in answers}) == 1


def test_the_child_of_a_constructor_ends_with_it(shared_cluster: None, tmp_path: Path) -> None:
    @parl_remote.remote_class
    class ForksAtOnce(_Forks):
        def __init__(self, folder: str) -> None:
            super().__init__(folder)
            self.child = self.fork("return")

    actor = ForksAtOnce(str(tmp_path))
    assert actor.status(actor.child) == 0
    assert [actor.add()[0] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("kind", [Forks, ForksInThreads, ForksOnALoop])
def test_what_the_child_of_a_method_does_before_it_leaves_is_done(
    shared_cluster: None, tmp_path: Path, kind: Any
) -> None:
    actor = kind(str(tmp_path))
    child = actor.fork_and_write()
    assert actor.status(child) == 0
    assert (tmp_path / "child").read_text() == str(child)


@pytest.mark.parametrize("kind", [Forks, ForksInThreads, ForksOnALoop])
def test_the_child_of_a_method_holds_no_socket(shared_cluster: None, tmp_path: Path, kind: Any) -> None:
    actor = kind(str(tmp_path))
    of_asyncio = 2 * (kind is ForksOnALoop)  # by which a loop wakes itself
    assert actor.sockets(actor.fork("wait")) == of_asyncio


def test_the_child_of_a_coroutine_ends_where_it_would_wait(shared_cluster: None, tmp_path: Path) -> None:
    actor: Any = ForksInATask(str(tmp_path))
    assert actor.status(actor.fork()) == 1
    assert not (tmp_path / "too far").exists()
    assert actor.status(actor.fork()) == 1


DRIVER_FORKS = """
import multiprocessing, os, sys, warnings
import parl_remote as parl
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's about forks and threads

@parl.remote_class
class Counter:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count

def in_child(number):
    own = Counter()
    return [own.add() for _ in range(number)]

def main():
    parl.connect(*sys.argv[1:], **({} if sys.argv[1:] else {"cpu_num": 6}))
    actor = Counter()
    print(actor.add())
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(in_child, [1, 2, 3]), actor.add())
    pid = os.fork()
    if pid == 0:
        print(actor.add(), Counter().add(), flush=True)
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    print(actor.add())

if __name__ == "__main__":
    main()
"""


def _check_driver(done: subprocess.CompletedProcess[str]) -> None:
    lines = done.stdout.splitlines()
    assert (done.stderr, done.returncode) == ("", 0)
    assert lines == ["1", "[[1], [1, 2], [1, 2, 3]] 2", "3 1", "4"]


def test_the_children_of_a_program_have_connections_of_their_own(run_program: Run) -> None:
    _check_driver(run_program(program=DRIVER_FORKS))


INHERITS = """
import asyncio, concurrent.futures, multiprocessing, os, sys, threading, warnings
import parl_remote as parl
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's about forks and threads

class _Cell:
    def __init__(self):
        self.values = []
        self.opened = threading.Event()

    def put(self, value):
        self.values.append(value)
        return len(self.values)

    def wait(self):
        return self.opened.wait()

    def open(self):
        self.opened.set()

    def itself(self, other):
        return other

    def fork_and_put(self, other, value):
        child = os.fork()
        if not child:
            other.put(value)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else None

Cell = parl.remote_class(max_concurrency=4)(_Cell)
Async = parl.remote_class(wait=False)(_Cell)
Again = parl.remote_class(max_restarts=3)(_Cell)

def child(work):
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

parl.connect(*sys.argv[1:], **({} if sys.argv[1:] else {"cpu_num": 6}))
cell, quiet, again = Cell(), Async(), Again()
put, waiting = cell.put, parl.submit(cell.wait)
value = parl.put([1, 2, 3])

def uses():
    assert put(0) == 1
    assert cell.values == [0]
    cell.values = [0, 1]
    assert cell.itself(cell) == cell
    assert quiet.put("a").result() == 1
    assert again.put("b") == 1
    threads = [threading.Thread(target=cell.put, args=(2,)) for _ in range(4)]
    for one in threads: one.start()
    for one in threads: one.join()
    assert len(cell.values) == 6
    assert list(cell.itself(value)) == [1, 2, 3]

def meets_futures():
    for ask in (waiting.result, lambda: next(concurrent.futures.as_completed([waiting])).result(),
                lambda: cell.put(waiting)):
        try:
            ask()
        except parl.NotConnected as error:
            assert "gets the answer" in str(error), error
        else:
            raise AssertionError

def awaits():
    async def main():
        try:
            await waiting
        except parl.NotConnected:
            return await quiet.put("c")
    assert asyncio.run(main()) == 2

def forks_again():
    child(lambda: cell.put(3))
    assert cell.put(4) == 8
    child(lambda: cell.put(5))

def in_pool(number):
    return cell.put(number)

pool_of_one = parl.ActorPool([again])

def uses_a_pool(number):
    assert list(pool_of_one.map("put", ["p", "q"])) == [number, number + 1]
    assert pool_of_one.submit("put", "r").result() == number + 2

def ends():
    quiet.destroy()

child(lambda: None)
child(uses)
child(meets_futures)
child(awaits)
child(forks_again)
child(lambda: uses_a_pool(2))
uses_a_pool(5)
with multiprocessing.get_context("fork").Pool(3) as pool:
    assert sorted(pool.map(in_pool, range(6), 1)) == [10, 11, 12, 13, 14, 15]
if not sys.argv[1:]:  # actors of a cluster on loopback do not reach each other by TCP
    assert cell.fork_and_put(again, "of an actor's child") == 0
    assert again.values == ["b", *"pqrpqr", "of an actor's child"]
child(ends)
try:
    quiet.put("d").result()
except parl.ActorLost:
    pass
assert cell.put(7) == 16
cell.open()
assert waiting.result() is True
print("done")
"""


@pytest.mark.slow
def test_the_child_of_a_program_uses_what_the_program_has_made(run_program: Run) -> None:
    done = run_program(program=INHERITS)
    assert (done.stderr, done.stdout, done.returncode) == ("", "done\n", 0)


WHILE_CONNECTING = """
import os, signal, threading, warnings
import parl_remote as parl
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's about forks and threads

begun, go_on = threading.Event(), threading.Event()

class Patterns(list):
    def __iter__(self):
        begun.set()
        go_on.wait(60)
        return super().__iter__()

options = {"debug": True, "distributed_files": Patterns(["program.py"])}
connecting = threading.Thread(target=parl.connect, kwargs=options)
connecting.start()
assert begun.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(30)
    parl.connect(debug=True)
    print(parl.get_global_client().actor_num, flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
go_on.set()
connecting.join()
"""


def test_a_child_connects_though_a_thread_of_its_parent_was_connecting_at_the_fork(run_program: Run) -> None:
    done = run_program(program=WHILE_CONNECTING)
    assert (done.stderr, done.stdout, done.returncode) == ("", "0\n0\n", 0)


READS = """
import gc, os, sys, warnings
import parl_remote as parl
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's about forks and threads

@parl.remote_class
class Source:
    def count(self):
        yield from range(50)

def read(numbers):
    try:
        list(numbers)
    except parl.NotConnected as error:
        print(error, flush=True)

def drop(numbers):
    numbers.close()

parl.connect(*sys.argv[1:], **({} if sys.argv[1:] else {"cpu_num": 1}))
source = Source()
mapped = lambda: parl.map(abs, range(-20_000, 0))
for make, expected in (source.count, list(range(50))), (mapped, list(range(20_000, 0, -1))):
    for how in read, drop:
        numbers = make()
        first = next(numbers)
        child = os.fork()
        if child == 0:
            how(numbers)
            os._exit(0)
        os.waitpid(child, 0)
        print([first, *numbers] == expected, flush=True)
"""


def test_a_child_takes_nothing_from_the_generators_and_maps_of_its_parent(run_program: Run) -> None:
    done = run_program(program=READS)
    generator = "a generator is read by the process that called it, from which this one was forked"
    results = "a map's results are read by the process that called it, from which this one was forked"
    told = [generator, "True", "True", results, "True", "True"]
    assert (done.stderr, done.stdout.splitlines(), done.returncode) == ("", told, 0)


JOINS = """
import os, warnings
import parl_remote as parl
from parl_remote.actors import RemoteActors
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's about forks and threads

parl.connect(cpu_num=17)
uses = {
    "map": lambda: list(parl.map(abs, [-1])),
    "executor": lambda: parl.Executor(1).submit(abs, -1).result(),
    "queue": lambda: parl.Queue().put(1),
    "actors": lambda: RemoteActors().create(dict),
}
for name, use in uses.items():
    child = os.fork()
    if child == 0:
        use()
        print(name, parl.get_global_client().cpu_num, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_whatever_a_child_uses_first_joins_the_cluster_of_its_parent(run_program: Run) -> None:
    done = run_program(program=JOINS)
    assert (done.stderr, done.stdout) == ("", "map 17\nexecutor 17\nqueue 17\nactors 17\n")


WORK_OF_PARENT = """
import concurrent.futures, os, signal, sys, time, warnings
import parl_remote as parl
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's about forks and threads

def hold(path):
    while path and not os.path.exists(path):
        time.sleep(0.01)
    return path

class Holder:
    def hold(self, path):
        return hold(path)

def child(work):
    pid = os.fork()
    if not pid:
        signal.alarm(100)
        work()
        sys.exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, status

parl.connect(cpu_num=4)
executor, pool = parl.Executor(1), parl.ActorPool(parl.remote_class(Holder), 1)
futures = [executor.submit(hold, "gate"), executor.submit(abs, -1), parl.remote_function(hold).submit("gate"),
           pool.submit("hold", "gate"), pool.submit("hold", ""), pool.submit("hold", "")]
futures.append(executor.submit(abs, futures[0]))
maps = [executor.map(hold, ["", "gate"], chunksize=1), pool.map("hold", ["", "gate"]),
        pool.map_unordered("hold", ["", "gate"])]

def refused(ask):
    try:
        ask()
    except parl.NotConnected as error:
        return str(error)
    raise AssertionError

def waits():
    for future in futures[:4]:
        assert "gets the answer" in refused(future.result)
    assert len(parl.wait(futures, num_returns=len(futures))[0]) == len(futures)
    assert set(concurrent.futures.as_completed(futures)) == set(futures)
    for one in maps:
        assert "from which this" in refused(lambda: next(one))
        getattr(one, "close", bool)()

def cancels():
    assert futures[1].cancel() and futures[3].cancel()

def goes_on():
    with executor:
        assert executor.submit(abs, -3).result() == 3
    assert pool.submit("hold", "").result() == ""

with executor, pool:
    child(lambda: None)
    child(waits)
    child(cancels)
    child(executor.shutdown)
    open("gate", "x").close()
    assert [one.result() for one in futures[:6]] == ["gate", 1, "gate", "gate", "", ""]
    assert [sorted(one) for one in maps] == [["", "gate"]] * 3
    child(goes_on)
print("done")
"""


def test_the_functions_and_pools_of_a_parent_hold_no_child_up(run_program: Run) -> None:
    done = run_program(program=WORK_OF_PARENT)
    assert (done.stderr, done.stdout, done.returncode) == ("", "done\n", 0)


LIVENESS_S = 3000.0
DIES = """
import os, signal, sys, time
import parl_remote as parl

@parl.remote_class
class Sleeper:
    def process(self):
        return os.getpid()

parl.connect(*sys.argv[1:], **({} if sys.argv[1:] else {"cpu_num": 2}))
sleeper = Sleeper()
pid = sleeper.process()
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, b"x")
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    time.sleep(600)
os.read(read, 1)
print(pid, child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _check_death(done: subprocess.CompletedProcess[str], await_end: Callable[..., float]) -> None:
    actor, child = map(int, done.stdout.split())
    try:
        await_end([actor])  # by the kernel's report: missing heartbeats would need `LIVENESS_S`
        os.kill(child, 0)  # it lives on
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_death_of_a_program_is_noticed_though_its_child_lives_on(
    run_program: Run, await_end: Callable[..., float]
) -> None:
    environment = {**os.environ, "PARL_LIVENESS_LIMIT": str(LIVENESS_S)}
    _check_death(run_program(program=DIES, env=environment), await_end)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LoopbackCluster]:
    parl_remote.disconnect()
    with LoopbackCluster(1, cpus=6, liveness_limit_s=LIVENESS_S) as one:
        yield one


@pytest.fixture
def run_in_cluster(cluster: LoopbackCluster, tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a program that uses the cluster by TCP alone."""

    def run(program: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(program))
        command = [sys.executable, str(path), cluster.address]
        environment = {**os.environ, **cluster.environment, "PARL_FORCE_TCP": "1"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)

    return run


@pytest.mark.slow
def test_the_children_of_a_program_have_connections_of_their_own_by_tcp(
    run_in_cluster: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    _check_driver(run_in_cluster(DRIVER_FORKS))


@pytest.mark.slow
def test_the_child_of_a_program_uses_what_the_program_has_made_by_tcp(
    run_in_cluster: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    done = run_in_cluster(INHERITS)
    assert (done.stderr, done.stdout, done.returncode) == ("", "done\n", 0)


def test_the_death_of_a_program_is_noticed_though_its_child_lives_on_by_tcp(
    run_in_cluster: Callable[[str], subprocess.CompletedProcess[str]], await_end: Callable[..., float]
) -> None:
    _check_death(run_in_cluster(DIES), await_end)
