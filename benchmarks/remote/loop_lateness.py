"""The lateness of an asyncio event loop under awaited remote calls: a ticker beside `gather`; ours and plain asyncio.

    hatch run base:python benchmarks/remote/loop_lateness.py [--rounds 5]

A ticker schedules itself every millisecond. Its lateness is the CPU time of the whole process between two of its turns,
which does not depend on the machine's other load; time in which the process waits does not count. Plain asyncio has as
many tasks, each of which waits for a future that one callback settles. The script prints the longest turn per round:
the median over rounds for ours, for plain asyncio, and for the difference, which is our overhead.
"""

import argparse
import asyncio
import itertools
import os
import signal
import statistics
import time
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

import machine
import numpy as np

import parl

_TICK_S = 0.001
_NAP_S = 3.0  # so that all are awaited when the first result arrives


@parl.remote_class(n_cpu=0, max_restarts=-1)
class Echo:
    def pid(self) -> int:
        return os.getpid()

    def nap(self) -> None:
        time.sleep(_NAP_S)

    def echo(self, value: Any) -> Any:
        return value

    def large(self) -> np.ndarray:
        return np.ones(50_000_000, np.uint8)


async def worst_turn(make: Callable[[], list[Awaitable[object]]]) -> float:
    """Return the maximum CPU time, in milliseconds, between two turns of a ticker while the awaitables are gathered."""
    loop = asyncio.get_running_loop()
    awaited = make()  # work of the program itself, which it could distribute
    turns = [time.process_time()]

    def tick() -> None:
        turns.append(time.process_time())
        if not is_over:
            loop.call_later(_TICK_S, tick)

    is_over = False
    loop.call_later(_TICK_S, tick)
    await asyncio.gather(*awaited, return_exceptions=True)
    is_over = True
    turns.append(time.process_time())
    return 1000 * max(later - earlier for earlier, later in itertools.pairwise(turns))


class Waiting:
    """An awaitable that `gather` must wrap in a task, like a remote call."""

    def __init__(self, future: asyncio.Future[int]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, int]:
        return self._future.__await__()


def plain(count: int) -> list[Awaitable[object]]:
    """Return awaitables that wait for futures of asyncio, all of which one callback settles."""
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(count)]

    def settle() -> None:
        for future in futures:
            future.set_result(1)

    loop.call_later(_TICK_S, settle)
    return [*map(Waiting, futures)]


def calls(actors: list[Any], count: int) -> list[Awaitable[object]]:
    for actor in actors:
        parl.submit(actor.nap)
    return [parl.submit(actors[number % len(actors)].echo, number) for number in range(count)]


def large(actors: list[Any], count: int) -> list[Awaitable[object]]:
    return [parl.submit(actors[number % len(actors)].large) for number in range(count)]


def restart(actors: list[Any], count: int) -> list[Awaitable[object]]:
    os.kill(actors[0].pid(), signal.SIGKILL)
    return [parl.submit(actors[0].echo, number) for number in range(count)]


ROWS: dict[str, tuple[Callable[[list[Any], int], list[Awaitable[object]]], int, int]] = {
    "1,000 calls of one actor": (calls, 1, 1_000),
    "10,000 calls of one actor": (calls, 1, 10_000),
    "10,000 calls of eight actors": (calls, 8, 10_000),
    "10 results of 50 MB": (large, 1, 10),
    "1,000 calls of an actor that is restarted": (restart, 1, 1_000),
}


async def measure(rounds: int) -> None:
    actors = [Echo() for _ in range(8)]
    for actor in actors:
        actor.pid()
    print("| awaited | ours, ms | plain asyncio, ms | difference, ms |\n| --- | --- | --- | --- |")
    for name, (work, used, count) in ROWS.items():
        pairs = []
        for _ in range(rounds + 1):
            theirs = await worst_turn(partial(plain, count))
            ours = await worst_turn(partial(work, actors[:used], count))
            pairs.append((ours, theirs))
        of_ours, of_theirs = zip(*pairs[1:], strict=True)  # the first round warms up
        difference = statistics.median(one - other for one, other in pairs[1:])
        print(f"| {name} | {statistics.median(of_ours):.1f} | {statistics.median(of_theirs):.1f} | {difference:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    machine.compile_sources()
    print(f"load average {machine.load()}\n")
    parl.connect(cpu_num=2)
    asyncio.run(measure(rounds))


if __name__ == "__main__":
    main()
