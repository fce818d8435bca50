"""loky's reusable executor, with the best of several chunk sizes."""

from typing import Any

import functions_work as work
from loky import get_reusable_executor


def inner(count: int) -> int:
    return len(list(get_reusable_executor(2).map(work.nothing, range(count), chunksize=50)))


class _Loky:
    sizes = (1, 32, 500, 2500)

    def start(self, workers: int) -> None:
        self._executor = get_reusable_executor(workers)

    def run(self, function: Any, items: Any, size: int) -> None:
        for _ in self._executor.map(function, items, chunksize=size):
            pass

    def first(self, function: Any) -> None:
        self._executor.submit(function, 1).result()

    def nested(self, outer: int, count: int) -> None:
        assert sum(self._executor.map(inner, [count] * outer)) == outer * count

    def stop(self) -> None:
        self._executor.shutdown()


PEER = _Loky()
