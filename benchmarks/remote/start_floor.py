"""The lower bounds of starting and memory, measured in turns with ours.

    hatch run base:python benchmarks/remote/start_floor.py [--rounds 20]

By hand: a fresh interpreter imports numpy and cloudpickle and forks a process for each connection; that process
unpickles a class, makes an object and answers calls. It has no slots, node, logs or limits; for a freed slot, the
caller waits for the end of one process before it asks for the next. 32 objects are all requested, then made, then
called.
`with our modules` imports the modules of our actors without using them. A pool's first result is measured in fresh
programs after their imports; by hand it takes one interpreter. Times are medians over rounds, and ratios are medians of
the ratios of each round.
"""

import argparse
import gc
import os
import pickle
import select
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle
import machine
from procs import pss_mb
from subject import Subject

import parl

ACTORS, SLOTS = 8, 32
_clock = time.perf_counter
_HERE = str(Path(__file__).parent)
_SERVER = """
import gc, importlib, os, pickle, signal, socket, sys
gc.disable()
for name in sys.argv[2:]:
    importlib.import_module(name)
gc.freeze()
gc.enable()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
control = socket.socket(fileno=int(sys.argv[1]))
while True:
    got, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    if not got:
        os._exit(0)
    if not os.fork():
        break
    os.close(descriptors[0])
control.close()
end = socket.socket(fileno=descriptors[0])
made = pickle.loads(end.recv(65536))()
end.send(str(os.getpid()).encode())
while got := end.recv(65536):
    name, args = pickle.loads(got)
    end.send(pickle.dumps(getattr(made, name)(*args), 5))
os._exit(0)
"""
_IMPORTS = ("numpy", "cloudpickle", "pathlib", "typing")  # requirements of the class
_OUR_IMPORTS = (*_IMPORTS, "parl_remote._actor.process", "parl", "parl_remote._decorator")
_FIRST = """
import sys, time
sys.path.insert(0, {here!r})
import numpy, cloudpickle, parl
from concurrent.futures import ProcessPoolExecutor
from start_floor import first_by_hand
def first_ours():
    return next(iter(parl.map(abs, [-1])))
def first_of_process_pool():
    return ProcessPoolExecutor(1).submit(abs, -1).result()
begun = time.perf_counter()
{how}()
print(time.perf_counter() - begun)
"""


class Server:
    """A handwritten process from which others are forked."""

    def __init__(self, modules: tuple[str, ...] = _IMPORTS) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-c", _SERVER, str(theirs.fileno()), *modules]
            paths = os.pathsep.join((_HERE, os.environ.get("PYTHONPATH", "")))
            environment = {**os.environ, "PYTHONPATH": paths}
            self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), env=environment)

    def start(self, cls: type) -> "Made":
        """Request a new object in a new process."""
        end, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        end.send(cloudpickle.dumps(cls))
        return Made(end)

    def make(self, cls: type) -> "Made":
        """Return a new object in a new process."""
        made = self.start(cls)
        made.wait()
        return made

    def close(self) -> None:
        self._control.close()
        self._process.wait()


class Made:
    """An object in a process of its own, which ends with this."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._pid = 0

    def wait(self) -> None:
        """Wait until the object is made."""
        self._pid = int(self._end.recv(64))

    def send(self, name: str, *args: Any) -> None:
        """Call a method."""
        self._end.send(pickle.dumps((name, args), 5))

    def result(self) -> Any:
        """Return the result of the call."""
        return pickle.loads(self._end.recv(65536))

    def call(self, name: str, *args: Any) -> Any:
        """Call a method and return its result."""
        self.send(name, *args)
        return self.result()

    def end(self) -> None:
        """End the process and wait until it has ended."""
        ending = os.pidfd_open(self._pid)
        self._end.close()
        select.select([ending], [], [])
        os.close(ending)


def first_by_hand() -> None:
    """Start a server and call an object once."""
    server = Server()
    server.make(Subject).call("nothing")
    server.close()


def one_more(rounds: int) -> None:
    """Print the times until one more object has answered its first call."""
    server, remote = Server(), parl.remote_class(Subject)
    found: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        begun = _clock()
        by_hand = server.make(Subject)
        by_hand.call("nothing")
        between = _clock()
        actor: Any = remote()
        actor.nothing()
        ended = _clock()
        if number:  # the first one imports the module of the class
            found.append((between - begun, ended - between))
        del by_hand, actor
        gc.collect()
        time.sleep(0.2)  # for the work of both after an end
    server.close()
    row("one more actor, ms", found, 1e3)


def many(rounds: int) -> None:
    """Print the times until many objects, requested together, have answered their first calls."""
    server, remote = Server(), parl.remote_class(wait=False)(Subject)
    found: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        begun = _clock()
        by_hand = [server.start(Subject) for _ in range(SLOTS)]
        for one in by_hand:
            one.wait()
            one.send("nothing")
        for one in by_hand:
            one.result()
        between = _clock()
        actors: list[Any] = [remote() for _ in range(SLOTS)]
        for future in [actor.nothing() for actor in actors]:
            future.result()
        ended = _clock()
        if number:
            found.append((between - begun, ended - between))
        del by_hand, one, actors
        gc.collect()
        time.sleep(1.0)
    server.close()
    row(f"{SLOTS} actors, ms", found, 1e3)


def parts() -> None:
    """Print the CPU time of each process for one of many actors, and the pages that the actor copies or maps."""
    remote = parl.remote_class(wait=False)(Subject)
    (node,) = (pid for pid in _children(os.getpid()) if _name_of(pid) == "parl:node")
    (zygote,) = _children(node)
    shared = (os.getpid(), node, zygote)
    before, there = [_cpu_ms(pid) for pid in shared], _children(zygote)
    spare_ms = sum(map(_cpu_ms, there))
    actors: list[Any] = [remote() for _ in range(SLOTS)]
    for future in [actor.nothing() for actor in actors]:
        future.result()
    made = [pid for pid in _children(zygote) if _name_of(pid) != "parl:spare"]
    spent = [_cpu_ms(pid) - ms for pid, ms in zip(shared, before, strict=True)]
    spent.append(sum(map(_cpu_ms, _children(zygote))) - spare_ms)
    faults = statistics.median(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7]) for pid in made)
    named = zip(("the program", "its node", "the process forked from", "the actor"), spent, strict=True)
    print(f"\nCPU time of an actor, ms: {', '.join(f'{name} {ms / SLOTS:.1f}' for name, ms in named)}; ", end="")
    print(f"page faults of an actor: {faults:.0f}")


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _cpu_ms(pid: int) -> float:
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e6


def slot_freed(rounds: int) -> None:
    """Print the times from dropping one of many objects until the next one has answered its first call."""
    server, remote = Server(), parl.remote_class(Subject)
    by_hand = [server.make(Subject) for _ in range(SLOTS)]
    actors: list[Any] = [remote() for _ in range(SLOTS)]
    found: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        begun = _clock()
        by_hand.pop().end()
        by_hand.append(server.make(Subject))
        by_hand[-1].call("nothing")
        between = _clock()
        actors.pop()
        actors.append(remote())
        actors[-1].nothing()
        ended = _clock()
        if number:
            found.append((between - begun, ended - between))
        time.sleep(0.1)
    server.close()
    row(f"one of {SLOTS} is dropped, the next one answers, ms", found, 1e3)


def memory() -> None:
    """Print the memory of objects' processes, MB."""
    cells = []
    for modules in (_IMPORTS, _OUR_IMPORTS):
        server = Server(modules)
        made = [server.make(Subject) for _ in range(ACTORS)]
        cells.append(statistics.mean(pss_mb(one.call("pid")) for one in made))
        del made
        server.close()
    actors: list[Any] = [parl.remote_class(n_cpu=0)(Subject)() for _ in range(ACTORS)]
    cells.append(statistics.mean(pss_mb(actor.pid()) for actor in actors))
    by_hand, with_ours, ours = cells
    hand = f"{by_hand:.2f} (with our modules: {with_ours:.2f})"
    print(f"| memory of an actor, MB | {hand} | {ours:.2f} | {ours / by_hand:.2f} |")


def first_results(rounds: int) -> None:
    """Print the times until the first result of a new pool."""
    ways = ("first_by_hand", "first_ours", "first_of_process_pool")
    found: list[list[float]] = []
    for _ in range(rounds):
        times = []
        for how in ways:
            command = [sys.executable, "-c", _FIRST.format(here=_HERE, how=how)]
            times.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        found.append(times)
    row("a pool's first result, ms", [(one[0], one[1]) for one in found], 1e3)
    row("the same, ProcessPoolExecutor in place of ours, ms", [(one[0], one[2]) for one in found], 1e3)


def row(name: str, found: list[tuple[float, float]], factor: float) -> None:
    """Print a row: by hand, ours, and the ratio."""
    by_hand, ours = (factor * statistics.median(column) for column in zip(*found, strict=True))
    quotient = statistics.median(ours / hand for hand, ours in found)
    print(f"| {name} | {by_hand:.1f} | {ours:.1f} | {quotient:.2f} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    machine.compile_sources()
    print(f"load average {machine.load()}\n\n| what | by hand | ours | ours / by hand |\n| --- | --- | --- | --- |")
    parl.connect(cpu_num=SLOTS)
    one_more(rounds)
    many(rounds)
    slot_freed(rounds)
    memory()
    parl.disconnect()
    first_results(rounds)
    parl.connect(cpu_num=SLOTS)
    time.sleep(1.0)
    parts()


if __name__ == "__main__":
    main()
