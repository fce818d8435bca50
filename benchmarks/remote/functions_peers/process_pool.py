"""`concurrent.futures.ProcessPoolExecutor`, with the best of several chunk sizes."""

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import functions_work as work


def inner(count: int) -> int:
    with ProcessPoolExecutor(2) as executor:
        return len(list(executor.map(work.nothing, range(count), chunksize=50)))


class _Pool:
    sizes = (1, 32, 500, 2500)

    def start(self, workers: int) -> None:
        self._executor = ProcessPoolExecutor(workers)

    def run(self, function: Any, items: Any, size: int) -> None:
        for _ in self._executor.map(function, items, chunksize=size):
            pass

    def first(self, function: Any) -> None:
        self._executor.submit(function, 1).result()

    def nested(self, outer: int, count: int) -> None:
        assert sum(self._executor.map(inner, [count] * outer)) == outer * count

    def stop(self) -> None:
        self._executor.shutdown()


PEER = _Pool()
