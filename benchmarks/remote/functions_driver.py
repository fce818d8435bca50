"""One measurement of one peer in a fresh process: `python functions_driver.py PEER MEASUREMENT`; prints JSON."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import functions_work as work

WORKERS = 2
ITEMS = 10_000
SHORT = 2_000  # items of a millisecond
ITEMS_OF_START = 1_000  # the same
ARRAYS = 1_000
REPEATS = 5
_clock = time.perf_counter


def once(run: Callable[[], Any]) -> float:
    begun = _clock()
    run()
    return _clock() - begun


def drop(results: Iterable[Any]) -> None:
    """Iterate over the results and discard them."""
    for _ in results:
        pass


def best(
    peer: Any, function: Any, items: Callable[[], Any], sizes: Any, repeats: int, take: Callable[[Any], Any] = drop
) -> tuple[float, Any]:
    """Return the best median over chunk sizes, and that size; the first repeat of each size does not count."""
    found = []
    for size in sizes:
        times = [once(lambda size=size: take(peer.map(function, items(), size))) for _ in range(repeats + 1)][1:]  # type: ignore[misc]  # bound now
        found.append((statistics.median(times), size))
    return min(found)


def measure(peer: Any, name: str) -> dict[str, Any]:
    """Return the values of one measurement."""
    sizes = peer.sizes
    if name == "cold":

        def cold() -> None:
            peer.start(WORKERS)
            drop(peer.map(work.nothing, range(ITEMS), sizes[-1]))

        return {"cold": once(cold)}
    if name == "first":
        return {"first": once(lambda: (peer.start(WORKERS), peer.first(work.millisecond)))}
    if name == "nested":
        return {"nested": once(lambda: (peer.start(WORKERS), peer.nested(4, 100)))}
    peer.start(WORKERS)
    drop(peer.map(work.millisecond, range(ITEMS_OF_START), 10))  # until all workers have started
    if name == "nothing":
        seconds, size = best(peer, work.nothing, lambda: range(ITEMS), sizes, REPEATS)
        return {"nothing": seconds, "chunksize": size}
    if name == "millisecond":
        seconds, size = best(
            peer, work.millisecond, lambda: range(SHORT), [size for size in sizes if size is None or 1 < size <= 500], 1
        )
        return {"millisecond": seconds, "chunksize": size}
    if name in {"take", "echo", "kept"}:
        few = [size for size in sizes if size is None or size <= 32]
        function = work.take if name == "take" else work.echo
        seconds, size = best(peer, function, lambda: work.arrays(ARRAYS), few, 1, list if name == "kept" else drop)
        return {name: seconds, "chunksize": size}
    raise ValueError(name)


def main() -> None:
    peer = import_module(f"functions_peers.{sys.argv[1]}").PEER
    try:
        values = measure(peer, sys.argv[2])
    finally:
        peer.stop()
    print(json.dumps(values))


if __name__ == "__main__":
    main()
