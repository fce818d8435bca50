"""Children that `multiprocessing` starts as fresh interpreters use what their parent has made, as forked ones do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import parl_remote
from parl_remote.testing import LoopbackCluster

Run = Callable[..., subprocess.CompletedProcess[str]]
METHODS = ["spawn", *([pytest.param("forkserver", marks=pytest.mark.slow)] if sys.platform == "linux" else [])]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LoopbackCluster]:
    parl_remote.disconnect()
    with LoopbackCluster(1, cpus=6, liveness_limit_s=60.0) as one:
        yield one


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a program with a start method; its cluster is a private one, or the one given."""

    def start(
        program: str, method: str, cluster: LoopbackCluster | None = None, *, head: str = HEAD
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "program.py").write_text(head + program)
        command = [
            sys.executable,
            "program.py",
            method,
            "" if cluster is None else cluster.address,
        ]
        reach = {} if cluster is None else {**cluster.environment, "PARL_FORCE_TCP": "1"}
        return subprocess.run(
            command,
            env={**os.environ, **reach},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return start


HEAD = """
import concurrent.futures.process, multiprocessing, os, select, sys, time
import parl_remote as parl

@parl.remote_class
class Cell:
    def __init__(self):
        self.values = []

    def put(self, value):
        self.values.append(value)
        return len(self.values)

    def process(self):
        return os.getpid()

class _Slow(Cell):
    def put(self, value):
        time.sleep(0.0005)
        self.values.append(len(value))

    def count(self):
        return len(self.values)

Slow = parl.remote_class(wait=False)(_Slow)

def connect():
    parl.connect(*([sys.argv[2]] if sys.argv[2] else []), **({} if sys.argv[2] else {"cpu_num": 6}))

def run(context, target, *args):
    child = context.Process(target=target, args=args)
    child.start()
    child.join()
    assert child.exitcode == 0, child.exitcode
"""

USES = """
def uses(cell, same, put, quiet, value):
    assert cell == same and hash(cell) == hash(same) and isinstance(cell, Cell)
    assert put(0) == 1
    assert cell.values == [0]
    cell.values = [0, 1]
    assert parl.submit(cell.put, 2).result() == 3
    assert not hasattr(cell, "absent")
    assert quiet.count().result() == 0
    assert list(value.get()) == [1, 2, 3]
    assert parl.put([4]).get() == [4]

def only_calls(cell, value):
    return cell.put(value)

def from_queue(queue):
    queue.get().put("from a queue")

def makes(cls, queue):
    own, other = cls(), Cell()
    own.put(1), other.put(2)
    queue.put([own.process(), other.process()])
    queue.put(own)

def starts_another(method, cell):
    run(multiprocessing.get_context(method), only_calls, cell, "of a grandchild")

def await_end(pid):
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    assert poller.poll(60_000), "the actor of a child that has ended is still there"

def main():
    connect()
    context = multiprocessing.get_context(sys.argv[1])
    cell, quiet, value = Cell(), Slow(), parl.put([1, 2, 3])
    run(context, uses, cell, cell, cell.put, quiet, value)
    queue = context.Queue()
    queue.put(cell)
    run(context, from_queue, queue)
    assert cell.values[3:] == ["from a queue"]
    with context.Pool(2) as pool:
        counts = pool.starmap(only_calls, [(cell, number) for number in range(4)], 1)
    assert sorted(counts) == [5, 6, 7, 8], counts
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        counts = list(pool.map(only_calls, [cell] * 4, "abcd"))
        assert sorted(counts) == [9, 10, 11, 12], counts
        assert pool.submit(cell.put, "a method").result() == 13
    child = context.Process(target=makes, args=(parl.with_options(Cell, n_cpu=0.5), queue))
    child.start()
    pids, own = queue.get(), queue.get()
    assert isinstance(own, Cell)
    child.join()
    for pid in pids:
        await_end(pid)
    run(context, starts_another, sys.argv[1], cell)
    assert cell.values[13:] == ["of a grandchild"]
    print("done")

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_child_uses_what_it_is_given_and_leaves_nothing_behind(run: Run, method: str) -> None:
    _check_uses(run(USES, method))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a cluster on loopback needs Linux")
@pytest.mark.parametrize("method", METHODS)
def test_a_child_uses_what_it_is_given_by_tcp(run: Run, cluster: LoopbackCluster, method: str) -> None:
    _check_uses(run(USES, method, cluster))


def _check_uses(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.stderr, done.stdout, done.returncode) == ("", "done\n", 0)


MAIN_FUNCTIONS = """
def square(number):
    return number * number

class Item:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Item) and self.value == other.value

@parl.remote_function
def wraps(value):
    return Item(square(value))

def sends_functions():
    assert list(parl.map(square, [3])) == [9]
    assert list(parl.map(lambda number: square(number), [3])) == [9]
    assert list(parl.map(Item, [3])) == [Item(3)]
    assert wraps(3) == Item(9)
    with parl.Executor(1) as executor:
        assert executor.submit(square, 3).result() == 9
    assert Cell().put(square) == 1

if __name__ == "__main__":
    run(multiprocessing.get_context(sys.argv[1]), sends_functions)
    print("done")
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_child_sends_functions_of_the_main_program(run: Run, method: str) -> None:
    _check_uses(run(MAIN_FUNCTIONS, method))


LEAVES = """
def floods(slow):
    for _ in range(2000):
        slow.put(bytes(20_000))

def goes_on(cell, read):
    read.recv()  # what comes when the program has nothing left to do but to wait for this process
    cell.put("at last")
    print(cell.values, flush=True)

def main():
    connect()
    context = multiprocessing.get_context(sys.argv[1])
    cell, slow = Cell(), Slow()
    run(context, floods, slow)
    while slow.count().result() < 2000:  # calls that were lost are found by the test's deadline
        time.sleep(0.01)
    read, write = context.Pipe(duplex=False)
    context.Process(target=goes_on, args=(cell, read)).start()
    multiprocessing.util.Finalize(None, write.send, args=(None,), exitpriority=0)
    return cell

if __name__ == "__main__":
    cell = main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", [*METHODS, *(["fork"] if sys.platform == "linux" else [])])
def test_what_ends_sends_its_last_calls_and_waits_for_its_children(run: Run, method: str) -> None:
    done = run(LEAVES, method)
    assert (done.stdout, done.returncode) == ("['at last']\n", 0)


REFUSED = """
def never(*_):
    raise AssertionError

def main():
    connect()
    context, cell = multiprocessing.get_context(sys.argv[1]), Cell()
    try:
        run(context, never, parl.submit(cell.put, 1))
    except parl.SerializationError as error:
        print(error)
    parl.disconnect()
    run(context, too_late, cell)

def too_late(cell):
    for use in (cell.process, lambda: Cell().process()):
        try:
            use()
        except parl.NotConnected as error:
            print(error, flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_what_a_child_cannot_use_is_refused_in_words(run: Run, method: str) -> None:
    lines = run(REFUSED, method).stdout.splitlines()
    assert len(lines) == 3, lines
    assert "the future of put() belongs to its process and cannot be pickled or copied: send its result()" in lines[0]
    assert "call parl.connect() before making or calling objects" in lines[1]
    assert "call parl.connect() before making objects" in lines[2]


FUNCTIONS = """
import pickle

@parl.remote_function(retries=5)
def double(number):
    return 2 * number

class Named:
    @staticmethod
    @parl.remote_function
    def triple(number):
        return 3 * number

def seen(function):
    main = sys.modules["__main__"]
    return function is main.double, function is main.Named.triple, function._settings.retries

def uses(function):
    return function(2), function._settings.retries

def main():
    for function in (double, Named.triple):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(function, protocol)) is function
    changed = double.options(retries=7)
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context(sys.argv[1])) as pool:
        print(*pool.map(seen, [double, Named.triple, changed]))
    connect()
    with parl.Executor(1) as executor:
        print(*executor.map(uses, [double, Named.triple, changed]))
        print(executor.submit(lambda: double(4)).result())

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", METHODS)
def test_remote_functions_of_the_main_module_reach_children_by_name_and_workers_by_value(run: Run, method: str) -> None:
    ended = run(FUNCTIONS, method)
    assert ended.stdout.splitlines() == [
        "(True, False, 5) (False, True, 3) (False, False, 7)",
        "(4, 5) (6, 3) (4, 7)",
        "8",
    ], ended.stderr


DIES = """
import signal

def outlives(cell, has_called, ready):
    if has_called:
        cell.put(1)
    ready.set()
    multiprocessing.parent_process().join()
    try:
        while True:  # the actor may still be about to end
            cell.put(2)
    except parl.RemoteError as error:
        with open(f"error {has_called}", "w") as file:
            file.write(type(error).__name__)

def main():
    connect()
    context, cell = multiprocessing.get_context(sys.argv[1]), Cell()
    children = []
    for has_called in (True, False):
        ready = context.Event()
        child = context.Process(target=outlives, args=(cell, has_called, ready))
        child.start()
        ready.wait()
        children.append(child.pid)
    print(cell.process(), *children, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_death_of_a_program_is_noticed_though_its_children_live_on(
    run: Run, method: str, tmp_path: Path, await_end: Callable[..., float]
) -> None:
    done = run(DIES, method)
    assert done.returncode == -signal.SIGKILL, done
    await_end(list(map(int, done.stdout.split())))
    assert (tmp_path / "error True").read_text() in {"ActorLost", "NotConnected"}
    assert (tmp_path / "error False").read_text() in {"ActorLost", "ClusterUnreachable"}


OF_AN_ACTOR = """
import jobs

@parl.remote_class
class Starts:
    def begin(self, method, cell):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=jobs.work, args=(cell, queue))
        child.start()
        child.join()
        return child.exitcode, queue.get()

if __name__ == "__main__":
    parl.connect(cpu_num=6)
    cell = Cell()
    print(Starts().begin(sys.argv[1], cell), cell.values)
"""

JOBS = """
import parl_remote as parl

@parl.remote_class
class Helper:
    def square(self, number):
        return number * number

def work(cell, queue):
    cell.put("of an actor's child")
    queue.put(Helper().square(7))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_child_of_an_actor_uses_the_cluster_of_the_actor(run: Run, method: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    done = run(OF_AN_ACTOR, method)
    assert (done.stderr, done.stdout) == ("", '(0, 49) ["of an actor\'s child"]\n')


COMPUTES = """
def computes():
    assert list(parl.map(abs, [-1, -2])) == [1, 2]
    assert parl.get_global_client().cpu_num == 6

def main():
    connect()
    run(multiprocessing.get_context(sys.argv[1]), computes)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", METHODS)
def test_the_functions_of_a_child_run_in_the_cluster_of_its_parent(run: Run, method: str) -> None:
    done = run(COMPUTES, method)
    assert (done.stderr, done.returncode) == ("", 0)


ENDS = """
import multiprocessing, sys
import parl  # whose names are found lazily, so that modules go in an order in which the last ones need others

def fill(queue, kept):
    queue.put(queue.get() + 1)
    numbers = Numbers().count()
    kept += queue, next(numbers), numbers  # the process object has them until the interpreter ends

@parl.remote_class
class Numbers:
    def count(self):
        yield from range(1000)

if __name__ == "__main__":
    parl.connect(cpu_num=2)
    queue = parl.Queue()
    queue.put(1)
    child = multiprocessing.get_context(sys.argv[1]).Process(target=fill, args=(queue, []))
    child.start()
    child.join()
    print(queue.get())
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_child_that_has_a_queue_and_a_generator_until_it_ends_says_nothing(run: Run, method: str) -> None:
    done = run(ENDS, method, head="")
    assert (done.stdout, done.stderr) == ("2\n", "")
