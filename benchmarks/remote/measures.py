"""The measurements, written for the interface `Peer`; each function runs in a fresh process and returns values by row.

A measurement in `WINDOWED` is prepared once and then measures a short window on each request, so that the windows of
several peers can alternate.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from peer import NotOffered, Peer
from procs import MARK, Watched, marked, pss_mb
from subject import SMALL, SMALL_ARRAYS, STEPS, Subject, touch, weights

Values = dict[str, float]

_SIZES = {1: 60, 10: 24, 100: 10}  # repetitions by MB
_PATIENCE_S = 10.0  # a process that has not ended by then counts as one that never ends
_ENOUGH_S = 40.0  # a slower peer has only one accident
_clock = time.perf_counter


@dataclass(frozen=True)
class Run:
    """The subject of a measurement.

    Attributes:
        name: Name of the peer.
        peer: The peer.
        count: The number up to which `counting` counts.
        busy: True to kill the driver while its actors execute calls.
    """

    name: str
    peer: Peer
    count: int
    busy: bool


def import_cost(run: Run) -> Values:
    program = f"import numpy, time; t = time.perf_counter(); {run.peer.imports}; print(time.perf_counter() - t)"
    said = [subprocess.check_output([sys.executable, "-c", program]) for _ in range(9)]
    times = [float(text.split()[-1]) for text in said]  # some peers print when they are imported
    return {"import": 1e3 * statistics.median(times)}


def start(run: Run) -> Values:
    return {"start": _first_answer(run.peer, 2)}


def start_with_32_slots(run: Run) -> Values:
    if not run.peer.has_slots:
        raise NotOffered("it has no slots")
    return {"start_32": _first_answer(run.peer, 32)}


def _first_answer(peer: Peer, slots: int) -> float:
    begun = _clock()
    peer.start(slots)
    peer.create().call("nothing")
    return _clock() - begun


def blocking_calls(run: Run) -> Callable[[], Values]:
    run.peer.start(1)
    call = run.peer.create().call
    _latencies(lambda: call("nothing"), 2.0)  # by then, background work after the start is done

    def window() -> Values:
        empty = _latencies(lambda: call("nothing"), 0.4)
        small = _latencies(lambda: call("echo", SMALL), 0.4)
        eight = _latencies(lambda: call("ignore", SMALL_ARRAYS), 0.4)
        return {
            "call": empty[len(empty) // 2],
            "call_p99": empty[len(empty) * 99 // 100],
            "call_small": small[len(small) // 2],
            "call_arrays": eight[len(eight) // 2],
        }

    return window


def _latencies(action: Callable[[], Any], seconds: float) -> list[float]:
    """Return the sorted times of calls in microseconds, after a warm-up of a twentieth of the seconds."""
    ready = _clock() + seconds / 20
    while _clock() < ready:
        action()
    times, end = [], ready + seconds
    while (begun := _clock()) < end:
        action()
        times.append(1e6 * (_clock() - begun))
    return sorted(times)


def calls_in_flight(run: Run) -> Values:
    run.peer.start(8)
    actors = [run.peer.create(wait=False) for _ in range(8)]
    run.peer.broadcast(actors, "echo", None)
    return {"flight_1": _burst_rate(run.peer, actors[:1]), "flight_8": _burst_rate(run.peer, actors)}


def _burst_rate(peer: Peer, actors: list[Any], calls: int = 2000, seconds: float = 1.5) -> float:
    """Return thousands of calls per second in the median burst."""
    peer.burst(actors, calls)
    rates: list[float] = []
    end = _clock() + seconds
    while _clock() < end or len(rates) < 3:
        begun = _clock()
        peer.burst(actors, calls)
        rates.append(calls / (_clock() - begun) / 1e3)
    return statistics.median(rates)


def arrays(run: Run) -> Values:
    run.peer.start(2)
    values: Values = {}
    for mb, repeats in _SIZES.items():
        array = np.full(mb * 10**6, 1, np.uint8)
        with _fresh(run.peer) as actor:
            values |= _speeds(f"argument_{mb}", array, repeats, lambda: actor.call("take", array))  # noqa: B023
        with _fresh(run.peer) as actor:
            actor.call("prepare", array.size)
            values |= _speeds(f"result_{mb}", array, repeats, lambda: touch(actor.call("give")))
    return values


def many_arrays(run: Run) -> Values:
    """Measure messages with many arrays: 64 of 1 MB, 200 of 150 KB."""
    run.peer.start(2)
    values: Values = {}
    for count, size in ((64, 10**6), (200, 150_000)):
        sent = [np.full(size, 1, np.uint8) for _ in range(count)]
        with _fresh(run.peer) as actor:
            up = _speeds("up", np.concatenate(sent), 10, lambda: actor.call("take_many", sent))  # noqa: B023
        with _fresh(run.peer) as actor:
            actor.call("prepare_many", count, size)
            down = _speeds("down", np.concatenate(sent), 10, lambda: sum(map(touch, actor.call("give_many"))))
        values |= {f"argument_{count}_arrays": up["up_warm"], f"result_{count}_arrays": down["down_warm"]}
    return values


def two_threads(run: Run) -> Values:
    """Measure blocking calls of two threads, to an actor each and to the same one, relative to one thread."""
    run.peer.start(2)
    first, second = run.peer.create(), run.peer.create()
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(6):
        alone = _calls_in([first])
        ratios["threads_apart"].append(_calls_in([first, second]) / alone)
        if run.name in {"parl", "pipe"}:  # handles of other peers belong to one thread
            shared = first if run.name == "parl" else _Locked(first)
            ratios["threads_together"].append(_calls_in([shared, shared]) / alone)
    return {row: statistics.median(found) for row, found in ratios.items()}


class _Locked:
    """A pipe with a lock, so that threads can share it, with one call at a time."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._lock = threading.Lock()

    def call(self, method: str) -> Any:
        with self._lock:
            return self._actor.call(method)


def _calls_in(actors: Sequence[Any], seconds: float = 0.5) -> int:
    """Return the number of calls of all threads in some seconds; each entry of `actors` has a thread."""
    counts: list[int] = []

    def call(actor: Any) -> None:
        count, end = 0, _clock() + seconds
        while _clock() < end:
            actor.call("nothing")
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=call, args=(actor,)) for actor in actors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


@contextmanager
def _fresh(peer: Peer) -> Iterator[Any]:
    actor = peer.create()
    actor.call("nothing")
    yield actor
    actor.drop()


def _speeds(row: str, array: np.ndarray, repeats: int, send: Callable[[], int]) -> Values:
    """Return GB/s of the first transfer, and the median of the later half."""
    times = []
    for _ in range(1 + repeats):
        begun = _clock()
        seen = send()
        times.append(_clock() - begun)
        assert abs(seen - touch(array)) < 1000, "the array did not arrive"  # each array has its own first page
    gb = array.nbytes / 1e9
    return {f"{row}_cold": gb / times[0], f"{row}_warm": gb / statistics.median(times[len(times) // 2 :])}


def weights_to_8_actors(run: Run) -> Values:
    run.peer.start(8)
    actors = [run.peer.create(wait=False) for _ in range(8)]
    value = weights()

    def times(broadcast: Callable[[Sequence[Any], str, Any], None]) -> float:
        laps = []
        for _ in range(13):
            begun = _clock()
            broadcast(actors, "set_weights", value)
            laps.append(_clock() - begun)
        return 1e3 * statistics.median(laps[3:])

    values = {"weights": times(run.peer.broadcast)}
    with suppress(NotOffered):
        values["weights_stored"] = times(run.peer.broadcast_stored)
    return values


def trajectories(run: Run) -> Values:
    run.peer.start(2)
    actors = [run.peer.create(wait=False) for _ in range(2)]
    waiting = deque((actor, actor.submit("rollout")) for actor in actors)  # one call in flight per actor

    def take_one() -> None:
        actor, ticket = waiting.popleft()
        assert sum(map(touch, actor.collect(ticket).values())) > 0
        waiting.append((actor, actor.submit("rollout")))

    for _ in range(20):
        take_one()
    count, begun = 0, _clock()
    while (seconds := _clock() - begun) < 2.0:
        take_one()
        count += 1
    while waiting:
        actor, ticket = waiting.popleft()
        actor.collect(ticket)
    return {"trajectories": count * STEPS / seconds / 1e3}


def one_more_actor(run: Run) -> Values:
    run.peer.start(24)
    actors, times = [], []
    for _ in range(18):
        begun = _clock()
        actors.append(run.peer.create())
        actors[-1].call("nothing")
        times.append(_clock() - begun)
    return {"one_more": 1e3 * statistics.median(times[2:])}


def thirty_two_actors(run: Run) -> Values:
    run.peer.start(32)
    values = {}
    for row in ("actors_32", "actors_32_again"):
        begun = _clock()
        actors = [run.peer.create(wait=False) for _ in range(32)]
        tickets = [actor.submit("nothing") for actor in actors]
        for actor, ticket in zip(actors, tickets, strict=True):
            actor.collect(ticket)
        values[row] = _clock() - begun
        tickets.clear()
        for actor in actors:
            actor.drop()
    return values


def slot_free_again(run: Run) -> Values:
    """Measure the reuse of one of 32 occupied slots, while the other 31 actors stay alive."""
    run.peer.start(32)
    others = [run.peer.create() for _ in range(31)]
    for other in others:
        other.call("nothing")
    actor = run.peer.create()
    actor.call("nothing")
    times = []
    for _ in range(10):
        begun = _clock()
        actor.drop()
        actor = run.peer.create()
        actor.call("nothing")
        times.append(_clock() - begun)
    return {"slot_free": 1e3 * statistics.median(times)}


def memory_of_an_actor(run: Run) -> Values:
    run.peer.start(8)
    actors = [run.peer.create() for _ in range(8)]
    return {"memory": statistics.mean([pss_mb(actor.call("pid")) for actor in actors])}


def thousand_idle_actors(run: Run) -> Values:
    """Measure 1,000 idle actors: memory, CPU time, and a call of each."""
    if run.name not in {"parl", "pipe"}:
        raise NotOffered("1,000 processes of its size do not fit")
    run.peer.start(1000)
    actors: list[Any] = []
    for _ in range(20):  # a machine may refuse to start so many processes at once
        actors += [run.peer.create(wait=False) for _ in range(50)]
        run.peer.broadcast(actors[-50:], "echo", None)
    # reading the memory of a process takes milliseconds
    pids = [actor.collect(actor.submit("pid")) for actor in actors[::20]]
    time.sleep(3)  # for background work after a start
    seconds = 5.0
    before = _cpu_seconds(os.environ[MARK])
    time.sleep(seconds)
    cpu = _cpu_seconds(os.environ[MARK]) - before
    rounds = [_seconds(lambda: run.peer.broadcast(actors, "echo", None)) for _ in range(5)]
    return {
        "thousand_memory": statistics.mean(map(pss_mb, pids)),
        "thousand_cpu": 100 * cpu / seconds,
        "thousand_round": 1e3 * statistics.median(rounds),
    }


def _cpu_seconds(mark: str) -> float:
    """Return the CPU time of all processes of the run so far."""
    ticks = 0
    for pid in marked(mark):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_given_back(run: Run) -> Values:
    """Measure the seconds until driver and actor use as little memory as before 100 MB were echoed three times."""
    if run.name != "parl":
        raise NotOffered("a connection keeps no memory")
    run.peer.start(1)
    actor = run.peer.create()
    array = np.full(10**8, 1, np.uint8)
    pids = [os.getpid(), actor.call("pid")]
    before = sum(map(pss_mb, pids))
    for _ in range(3):
        assert touch(actor.call("echo", array)) == touch(array)
    begun = _clock()
    while sum(map(pss_mb, pids)) > before + 20:
        if _clock() - begun > 3 * 60:
            return {"given_back": float("inf")}
        time.sleep(0.25)
    return {"given_back": _clock() - begun}


def idle(run: Run) -> Values:
    if not run.peer.has_slots:
        raise NotOffered("it has no slots")
    run.peer.start(8)
    actor = run.peer.create()
    actor.call("nothing")
    actor.drop()
    time.sleep(3)  # for background work of a peer
    pids = marked(os.environ[MARK])
    return {"idle_processes": len(pids), "idle_memory": sum(map(pss_mb, pids))}


def driver_killed(run: Run) -> Values:
    return {"orphans_idle": _orphans(run, busy=False), "orphans_busy": _orphans(run, busy=True)}


def _orphans(run: Run, *, busy: bool) -> float:
    """Return the seconds from the SIGKILL of a driver to the end of its actors."""
    command = [sys.executable, sys.argv[0], run.name, "victim", *(["--busy"] if busy else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as driver:
        assert driver.stdout is not None
        actors = Watched(json.loads(driver.stdout.readline()))
        driver.kill()
        return actors.seconds_until_gone(_PATIENCE_S)


def victim(run: Run) -> Values:
    """Print the process ids of actors and wait, as the driver that `driver_killed` kills."""
    run.peer.start(2)
    actors = [run.peer.create(wait=False) for _ in range(2)]
    pids = [actor.collect(actor.submit("pid")) for actor in actors]
    if run.busy:
        _busy = [_begin_to_spin(actor) for actor in actors]
    print(json.dumps(pids), flush=True)
    sys.stdin.read()
    return {}


def _begin_to_spin(actor: Any) -> Any:
    """Begin a long call, and return its ticket when the actor executes it."""
    with tempfile.TemporaryDirectory() as directory:
        marker = Path(directory, "begun")
        ticket = actor.submit("spin", str(marker), 3 * _PATIENCE_S)
        while not marker.exists():
            time.sleep(0.001)
    return ticket


def actor_killed(run: Run) -> Values:
    if not run.peer.lost:
        raise NotOffered("it is not noticed; the caller waits forever")
    run.peer.start(1)
    errors: list[float] = []
    replacements: list[float] = []
    begun = _clock()
    while len(replacements) < 5 and _clock() - begun < _ENOUGH_S:
        actor = run.peer.create(wait=False)
        pid = actor.collect(actor.submit("pid"))
        ticket = _begin_to_spin(actor)
        killed: list[float] = []
        threading.Timer(0.05, _kill, (pid, killed)).start()
        try:
            actor.collect(ticket)
        except run.peer.lost:
            errors.append(_clock() - killed[0])
        actor.drop()
        del actor, ticket
        replacement = run.peer.create(wait=False)
        replacement.collect(replacement.submit("nothing"))
        replacements.append(_clock() - killed[0])
        replacement.drop()
        del replacement
    return {"error": 1e3 * statistics.median(errors), "replacement": statistics.median(replacements)}


def _kill(pid: int, when: list[float]) -> None:
    when.append(_clock())
    os.kill(pid, signal.SIGKILL)


def counting(run: Run) -> Values:
    """Measure the five-thread example of the PARL 1.x manual: serially, in threads, and in remote objects."""
    values: Values = {}
    n = run.count
    if run.name == "parl":  # the same for all peers, and slow
        values["counting_threads"] = _seconds(lambda: _in_threads([lambda: Subject().run(n)] * 5))
    before = _seconds(lambda: Subject().run(n))
    run.peer.start(5)
    begun = _clock()
    actors = [run.peer.create(wait=False) for _ in range(5)]
    tickets = [actor.submit("run", n) for actor in actors]
    for actor, ticket in zip(actors, tickets, strict=True):
        actor.collect(ticket)
    parallel = _clock() - begun
    serial = 2.5 * (before + _seconds(lambda: Subject().run(n)))
    return {**values, "counting_serial": serial, "counting_remote": parallel, "counting": parallel / serial}


def _in_threads(actions: Sequence[Callable[[], Any]]) -> None:
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _seconds(action: Callable[[], Any]) -> float:
    begun = _clock()
    action()
    return _clock() - begun


WINDOWED: dict[str, Callable[[Run], Callable[[], Values]]] = {blocking_calls.__name__: blocking_calls}
MEASURES: dict[str, Callable[[Run], Values]] = {
    function.__name__: function
    for function in (
        calls_in_flight,
        arrays,
        many_arrays,
        two_threads,
        weights_to_8_actors,
        trajectories,
        start,
        start_with_32_slots,
        one_more_actor,
        thirty_two_actors,
        slot_free_again,
        memory_of_an_actor,
        thousand_idle_actors,
        memory_given_back,
        idle,
        driver_killed,
        actor_killed,
        counting,
        import_cost,
    )
}
